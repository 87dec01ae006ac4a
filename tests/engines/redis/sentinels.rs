//! Sentinels that name the primary.
use std::time::Duration;

use steadfast::{
    backend::redis::{Redis, RedisConfig},
    port::{Capability, PortErrorKind},
    store::{Key, Store, StoreExt},
};

use super::{prefix, run};
use crate::server::{self, Proxy};

const KEY: Key<'static> = Key::new("p", "r");

fn config(login: &str, ports: &[u16], service: &str) -> RedisConfig {
    let hosts: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    RedisConfig::at(format!("redis+sentinel://{login}{}/{service}", hosts.join(","))).prefix(prefix())
}

async fn refused(config: RedisConfig, kind: PortErrorKind, words: &[&str]) {
    let Err(error) = server::ends(Redis::connect(config)).await else { panic!("it was accepted") };
    let text = format!("{error} {error:?}");
    assert!(error.kind() == kind && words.iter().all(|word| text.contains(word)), "{error}");
    assert!(text.starts_with("redis: ") && !text.contains("secret"), "{text}");
}

#[test]
fn each_password_is_given_to_its_server_alone() {
    run(async {
        let primary = server::Redis::with(&["--requirepass", "secret-1"]);
        let watches = ["requirepass secret-2", "sentinel auth-pass jobs secret-1"];
        let ports = [primary.sentinel(&watches), primary.sentinel(&watches)];
        let ports = ports.each_ref().map(server::Redis::port);
        let no = None::<String>;
        refused(config(":secret-1@", &ports, "jobs"), PortErrorKind::Denied, &["set `sentinel_password`"]).await;
        let wrong = config(":secret-1@", &ports, "jobs").sentinel_password("secret-1".to_owned());
        refused(wrong, PortErrorKind::Denied, &["check `sentinel_user` and `sentinel_password`"]).await;
        let right = |login: &str| config(login, &ports, "jobs").sentinel_password("secret-2".to_owned());
        refused(right(""), PortErrorKind::Denied, &["requires a password", "`url`"]).await;
        refused(right(":secret-2@"), PortErrorKind::Denied, &["with this password", "jobs at 127.0.0.1"]).await;
        Redis::connect(right(":secret-1@")).await.unwrap();
        refused(right(":secret-1@").sentinel_password(no), PortErrorKind::Denied, &["`sentinel_password`"]).await;
    });
}

#[test]
fn what_is_no_sentinel_or_watches_nothing_of_the_name_is_told() {
    run(async {
        let primary = server::Redis::start();
        let sentinel = primary.sentinel(&[]);
        refused(config("", &[sentinel.port()], "jbos"), PortErrorKind::Invalid, &["watches no service `jbos`"]).await;
        refused(config("", &[primary.port()], "jobs"), PortErrorKind::Unavailable, &["is it a sentinel?"]).await;
        refused(config("", &[1], "jobs"), PortErrorKind::Unavailable, &["127.0.0.1:1", "cannot connect"]).await;
        let plain = RedisConfig::at(sentinel.url());
        refused(plain, PortErrorKind::Unsupported, &["`redis+sentinel://HOST/SERVICE`"]).await;
        let backend = steadfast::backend::open(&config("", &[sentinel.port()], "jobs").url).await.unwrap();
        backend.store().insert(KEY, "x").await.unwrap();
        assert_eq!(primary.command(&["HGET", "steadfast:s:{p}:rows", "vr"]), "x");
        let can = backend.store().capabilities();
        assert!(!can.has(Capability::Linearizable), "a replica may come");
    });
}

/// One sentinel is down, one is silent, and one of those that answer is cut off from the others.
#[test]
fn the_primary_that_most_sentinels_name_is_used_and_a_replica_is_not() {
    run(async {
        let primary = server::Redis::start();
        let replica = primary.replica(&[]);
        let (one, two, behind) = (primary.sentinel(&[]), primary.sentinel(&[]), replica.sentinel(&[]));
        let silent = Proxy::start(one.port());
        silent.hold();
        let ports = [1, silent.port(), behind.port(), one.port(), two.port()];
        let redis = Redis::connect(config("", &ports, "jobs")).await.unwrap();
        redis.store().insert(KEY, "x").await.unwrap();
        refused(config("", &[behind.port()], "jobs"), PortErrorKind::Unavailable, &["read-only replica", "fail-over"])
            .await;
        let fast = config("", &[silent.port()], "jobs").connect_timeout(Duration::from_secs(1));
        refused(fast, PortErrorKind::TimedOut, &["no sentinel answered within 500ms"]).await;
        let tie = config("", &[one.port(), behind.port()], "jobs");
        refused(tie, PortErrorKind::Unavailable, &["name different servers"]).await;
    });
}

/// The word of one sentinel ends no connection while the others say nothing.
#[test]
fn a_handle_stays_until_more_than_half_of_the_sentinels_name_another_server() {
    run(async {
        let primary = server::Redis::start();
        let replica = primary.replica(&[]);
        let (one, two, behind) = (primary.sentinel(&[]), primary.sentinel(&[]), replica.sentinel(&[]));
        let held = [Proxy::start(one.port()), Proxy::start(two.port())];
        let ports = [behind.port(), held[0].port(), held[1].port()];
        let config = config("", &ports, "jobs").connect_timeout(Duration::from_secs(2));
        let redis = Redis::connect(config).await.unwrap();
        let mut events = redis.events();
        held.iter().for_each(Proxy::hold);
        // The handle hears the first sentinel. With another one it looks at once.
        server::wait_until("the handle hears it", || behind.command(&["CLIENT", "KILL", "TYPE", "pubsub"]) != "0");
        let before = held[0].accepted();
        server::wait_until("the handle has looked", || held[0].accepted() >= before + 4);
        redis.store().insert(KEY, "x").await.unwrap();
        let told = tokio::time::timeout(Duration::from_millis(1), events.recv()).await;
        assert!(told.is_err(), "{told:?}");
        held[0].pass();
        held[1].pass();
    });
}
