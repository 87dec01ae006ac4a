//! Replicas: writes that wait for them, and fail-overs.
use std::{sync::Arc, time::Duration};

use steadfast::{
    backend::redis::{Redis, RedisConfig, RedisStore},
    leader_election::{LeaderElection, LeaderElectionEvent},
    lease::{Acquired, Lease},
    port::{Capability, Failure, PortErrorKind},
    queue::{Message, Queue},
    store::{Key, Precondition, Store, StoreExt, Version},
};

use super::run;
use crate::{
    faults::again,
    server::{self, Proxy},
};

const TERM: Duration = Duration::from_secs(3600);
/// Time limit of requests that end by it.
const LIMIT: Duration = Duration::from_secs(2);

/// Connects through the proxy; each write waits for this number of replicas.
async fn connect(proxy: &Proxy, replicas: u16) -> Redis {
    within(proxy, replicas, Duration::from_secs(60)).await
}

/// Connects with this time limit of requests.
async fn within(proxy: &Proxy, replicas: u16, limit: Duration) -> Redis {
    let config = RedisConfig::at(format!("redis://127.0.0.1:{}", proxy.port())).replicas(replicas);
    again("connect", || Redis::connect(config.clone().request_timeout(limit))).await.0
}

/// Kills the primary, and promotes the replica behind the proxy. Waits until writes succeed.
async fn fail_over(primary: &server::Redis, replica: &server::Redis, proxy: &Proxy, store: &RedisStore) {
    primary.kill();
    replica.promote();
    proxy.lead_to(replica.port());
    let mut failures = 0;
    while let Err(error) = store.put(Key::new("after", "r"), "x".into(), Precondition::Any.into()).await {
        failures += 1;
        assert!(failures < 2000, "{error}");
        server::look_again().await;
    }
}

async fn put_all(store: &RedisStore, rows: u32) -> Vec<Version> {
    let mut versions = Vec::new();
    for row in 0..rows {
        versions.push(store.insert(Key::new("p", &row.to_string()), "x").await.unwrap());
    }
    versions
}

async fn count(store: &RedisStore, rows: u32) -> u32 {
    let mut found = 0;
    for row in 0..rows {
        found += u32::from(store.get(Key::new("p", &row.to_string())).await.unwrap().is_some());
    }
    found
}

#[test]
fn a_write_that_too_few_replicas_confirm_is_unknown() {
    run(async {
        let primary = server::Redis::start();
        let replica = primary.replica(&[]);
        let proxy = Proxy::start(primary.port());
        let store = connect(&proxy, 1).await.store();
        put_all(&store, 5).await;
        let hurried = within(&proxy, 1, LIMIT).await.store();
        assert_eq!(replica.command(&["ZCARD", "steadfast:s:{p}:index"]), "5");
        replica.stop();
        let error = hurried.insert(Key::new("p", "unconfirmed"), "x").await.unwrap_err();
        replica.cont();
        assert!(error.may_have_been_applied(), "{error}");
        assert_eq!(error.backend().unwrap().kind(), PortErrorKind::TimedOut);
        assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
        assert!(store.get(Key::new("p", "unconfirmed")).await.unwrap().is_some());
        store.insert(Key::new("p", "confirmed"), "x").await.unwrap();
    });
}

/// The write is made, and the command that asks for confirmations is refused.
// Guarantee: queue 1, 7.
#[test]
fn a_write_whose_confirmation_is_refused_is_unknown_and_a_new_handle_is_refused() {
    run(async {
        let primary = server::Redis::start();
        let _replica = primary.replica(&[]);
        let config = super::rights::user(&primary, "app", &["~*", "&*", "+@all"]).replicas(1);
        let redis = Redis::connect(config.clone()).await.unwrap();
        let (store, queue) = (redis.store(), redis.queue("jobs").unwrap());
        queue.send(vec![Message::new("confirmed")]).await.unwrap();
        primary.command(&["ACL", "SETUSER", "app", "-wait"]);
        let error = queue.send(vec![Message::new("unconfirmed")]).await.unwrap_err();
        assert!(error.may_have_been_applied(), "{error}");
        assert!(error.to_string().contains("wait"), "{error}");
        assert_eq!(queue.depth().await.unwrap().visible, 2, "it was sent");
        let error = store.insert(Key::new("p", "r"), "x").await.unwrap_err();
        assert!(error.may_have_been_applied(), "{error}");
        let error = Redis::connect(config).await.unwrap_err();
        assert_eq!(error.kind(), PortErrorKind::Denied, "{error}");
        let text = error.to_string();
        assert!(text.contains("`app`") && text.contains("+wait") && text.contains("`replicas`"), "{text}");
    });
}

/// The message is there, and no replica has it: another connection has sent it.
// Guarantee: queue 1, 7.
#[test]
fn a_send_that_is_repeated_waits_for_the_replicas_again() {
    run(async {
        let primary = server::Redis::start();
        let replica = primary.replica(&[]);
        let proxy = Proxy::start(primary.port());
        let queue = within(&proxy, 1, LIMIT).await.queue("jobs").unwrap();
        let send = async || queue.send(vec![Message::new("x").deduplicate("id")]).await;
        replica.stop();
        let error = send().await.unwrap_err();
        assert!(error.may_have_been_applied(), "{error}");
        proxy.cut();
        let error = loop {
            match send().await {
                Ok(_) => panic!("no replica has it"),
                Err(error) if error.may_have_been_applied() => break error,
                Err(_) => server::look_again().await,
            }
        };
        assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
        replica.cont();
        again("send", send).await;
        assert_eq!(again("depth", || queue.depth()).await.0.visible, 1);
    });
}

#[test]
fn with_a_confirming_replica_a_fail_over_loses_no_accepted_write() {
    run(async {
        let primary = server::Redis::start();
        let replica = primary.replica(&[]);
        let proxy = Proxy::start(primary.port());
        let redis = connect(&proxy, 1).await;
        let (store, lease) = (redis.store(), redis.lease());
        let versions = put_all(&store, 200).await;
        let Acquired::Granted(token) = lease.acquire("n", "a", TERM).await.unwrap() else { panic!("it is free") };
        // The replica that takes over has no replica itself.
        let after = connect(&proxy, 0).await;
        fail_over(&primary, &replica, &proxy, &after.store()).await;
        let store = after.store();
        assert_eq!(count(&store, 200).await, 200);
        let Acquired::Held(held) = after.lease().acquire("n", "b", TERM).await.unwrap() else { panic!("it is held") };
        assert_eq!((held.holder.as_str(), held.token), ("a", token));
        let version = store.put(Key::new("p", "0"), "y".into(), Precondition::Any.into()).await.unwrap();
        assert!(version > versions[199]);
    });
}

#[test]
fn a_fail_over_without_confirmations_loses_writes_and_repeats_no_version_and_no_token() {
    run(async {
        const ROWS: u32 = 200;
        let primary = server::Redis::start();
        // What it holds back when the primary dies is lost, as on a broken network.
        let replication = Proxy::start(primary.port());
        let replica = server::Redis::with(&["--replicaof", "127.0.0.1", &replication.port().to_string()]);
        server::wait_until("the replica has a copy", || {
            replica.command(&["INFO", "replication"]).contains("master_link_status:up")
                && primary.command(&["INFO", "replication"]).contains("state=online")
        });
        let proxy = Proxy::start(primary.port());
        let redis = connect(&proxy, 0).await;
        let (store, lease) = (redis.store(), redis.lease());
        assert!(!store.capabilities().has(Capability::Linearizable) && !store.capabilities().has(Capability::Durable));
        let lasts = put_all(&store, ROWS / 2).await;
        store.insert(Key::new("seen", "r"), "x").await.unwrap();
        server::wait_until("the replica has the first half", || {
            replica.command(&["ZCARD", "steadfast:s:{seen}:index"]) == "1"
        });
        replication.hold();
        for row in ROWS / 2..ROWS {
            store.insert(Key::new("p", &row.to_string()), "x").await.unwrap();
        }
        let last = store.put(Key::new("p", "0"), "y".into(), Precondition::Any.into()).await.unwrap();
        let Acquired::Granted(token) = lease.acquire("n", "a", TERM).await.unwrap() else { panic!("it is free") };
        fail_over(&primary, &replica, &proxy, &store).await;
        let found = count(&store, ROWS).await;
        println!("of {ROWS} accepted writes the fail-over lost {}", ROWS - found);
        // The page: what no replica had received is lost, in order from the end.
        assert!((ROWS / 2..ROWS).contains(&found), "{found}");
        assert_eq!(store.get(Key::new("p", "0")).await.unwrap().unwrap().version, lasts[0]);
        let version = store.put(Key::new("p", "0"), "z".into(), Precondition::Any.into()).await.unwrap();
        assert!(version > last, "a lost version is given again");
        // The lost grant is granted to another, under a token above it.
        let Acquired::Granted(next) = lease.acquire("n", "b", TERM).await.unwrap() else { panic!("it was lost") };
        assert!(next > token);
    });
}

#[test]
fn an_election_over_a_server_that_may_forget_grants_begins_with_a_warning() {
    run(async {
        let (primary, forgetful) = (server::Redis::durable(), server::Redis::start());
        let (proxy, direct) = (Proxy::start(primary.port()), Proxy::start(forgetful.port()));
        let alone = connect(&proxy, 0).await.lease();
        let _replica = primary.replica(&[]);
        let leases =
            [(alone, false), (connect(&proxy, 0).await.lease(), true), (connect(&direct, 0).await.lease(), true)];
        for (i, (lease, warns)) in leases.into_iter().enumerate() {
            let election = LeaderElection::new(Arc::new(lease), format!("n{i}"), Default::default()).unwrap();
            let mut events = election.events();
            drop(election.campaign().await.unwrap());
            let first = events.recv().await.unwrap().what;
            let is_warning = matches!(first, LeaderElectionEvent::GrantsMayBeForgotten { backend: "redis" });
            assert_eq!(is_warning, warns, "{i}: {first:?}");
        }
    });
}
