//! Servers that are set up badly, and servers that go: each a clear error in time.
use std::time::Duration;

use steadfast::{
    backend::{
        ConnectionEvent, TlsConfig,
        redis::{Redis, RedisConfig},
    },
    lease::Lease,
    port::{Capability, Failure, PortError, PortErrorKind},
    store::{Key, Precondition, PutOptions, Scan, Store, StoreError, StoreExt, Write},
};

use super::{connect, prefix, run};
use crate::{
    faults::again,
    server::{self, Certificates, Lane, Proxy, wait_until},
};

const KEY: Key<'static> = Key::new("p", "r");
const MINUTE: Duration = Duration::from_secs(60);

/// Asserts that connecting fails with this kind and these words, and without the word `secret`.
async fn refused(config: RedisConfig, kind: PortErrorKind, words: &[&str]) {
    let Err(error) = server::ends(Redis::connect(config.clone())).await else { panic!("{config:?} was accepted") };
    assert_eq!(error.kind(), kind, "{error}");
    let text = format!("{error} {error:?}");
    assert!(words.iter().all(|word| text.contains(word)), "{error}");
    assert!(text.starts_with("redis: ") && !text.contains("secret"), "{text}");
    assert!(!format!("{config:?}").contains("secret"));
    assert!(!error.may_have_been_applied(), "{error}");
}

fn backend(error: &StoreError) -> &PortError {
    error.backend().unwrap_or_else(|| panic!("no failure of the backend: {error}"))
}

/// Puts until it succeeds.
async fn until_it_works(store: &dyn Store) {
    let mut failures = 0;
    while let Err(error) = store.put(KEY, "back".into(), Precondition::Any.into()).await {
        failures += 1;
        assert!(failures < 5000, "{error}");
        server::look_again().await;
    }
}

#[test]
fn a_wrong_or_missing_password_is_denied() {
    run(async {
        let server = server::Redis::with(&["--requirepass", "right"]);
        let at = |user: &str| RedisConfig::at(server.url().replace("//", &format!("//{user}")));
        for config in [at(":secret@"), at("nobody:secret@")] {
            refused(config, PortErrorKind::Denied, &["with this password"]).await;
        }
        refused(at(""), PortErrorKind::Denied, &["requires a password"]).await;
        let redis = Redis::connect(at(":right@")).await.unwrap();
        redis.store().insert(KEY, "x").await.unwrap();
    });
}

#[test]
fn a_user_without_a_right_is_denied_with_the_name_of_the_right() {
    run(async {
        let server = server::Redis::start();
        let user = |name: &str, rights: &[&str]| {
            let set = [&["ACL", "SETUSER", name, "resetchannels", "on", ">secret"][..], rights].concat();
            assert_eq!(server.command(&set), "OK");
            RedisConfig::at(server.url().replace("//", &format!("//{name}:secret@")))
        };
        let no_scripts = user("one", &["~*", "&*", "+@all", "-@scripting"]);
        refused(no_scripts, PortErrorKind::Denied, &["evalsha"]).await;
        let other_keys = user("two", &["~other:*", "&*", "+@all"]);
        refused(other_keys, PortErrorKind::Denied, &["lacks a right"]).await;
        // The least rights, which the page states.
        let enough =
            user("three", &["~steadfast:*", "&steadfast:*", "-@all"].into_iter().chain(RIGHTS).collect::<Vec<_>>());
        let redis = Redis::connect(enough).await.unwrap();
        redis.store().insert(KEY, "x").await.unwrap();
        redis
            .store()
            .batch("p", vec![Write::append("log/", "x"), Write::put("s", "y", Precondition::Absent)])
            .await
            .unwrap();
        assert_eq!(redis.store().scan(&Scan::partition("p")).await.unwrap().rows.len(), 3);
        redis.lease().acquire("n", "a", Duration::from_secs(1)).await.unwrap();
        let mut notices = steadfast::notify::Notifier::subscribe(&redis.notifier(), "t").await.unwrap();
        steadfast::notify::Notifier::publish(&redis.notifier(), "t", "x".into()).await.unwrap();
        notices.recv().await;
        assert!(!redis.store().capabilities().has(Capability::Durable), "its settings cannot be read");
    });
}

/// The commands that the ports use.
const RIGHTS: [&str; 7] = ["+@read", "+@write", "+@scripting", "+@pubsub", "+@connection", "+info", "+time"];

#[test]
fn a_server_that_is_not_reached_is_unavailable_in_time() {
    run(async {
        // Told at once, however slow the resolver and the machine are.
        let patient = |url: &str| RedisConfig::at(url).connect_timeout(MINUTE);
        refused(patient("redis://:secret@no-such-host.invalid"), PortErrorKind::Unavailable, &["no-such-host"]).await;
        refused(patient("redis://:secret@127.0.0.1:1"), PortErrorKind::Unavailable, &["cannot connect"]).await;
        let fast = |url: &str| RedisConfig::at(url).connect_timeout(Duration::from_millis(300));
        let proxy = Proxy::start(server::Redis::shared().port());
        proxy.hold();
        let held = fast(&format!("redis://127.0.0.1:{}", proxy.port()));
        refused(held, PortErrorKind::TimedOut, &["no connection within 300ms"]).await;
        // TLS at a port without it.
        let plain = fast(&format!("rediss://127.0.0.1:{}", server::Redis::shared().port()));
        let error = Redis::connect(plain).await.unwrap_err();
        assert!(matches!(error.kind(), PortErrorKind::Unavailable | PortErrorKind::TimedOut), "{error}");
    });
}

#[test]
fn a_certificate_is_checked_and_the_clients_own_is_shown() {
    run(async {
        let (ours, others) = (Certificates::new(), Certificates::new());
        let server = server::Redis::with_tls(&ours, &[]);
        let url = format!("rediss://localhost:{}", server.tls_port());
        let text = |path: &std::path::Path| Certificates::text(path);
        let client = |roots: &Certificates| {
            let tls = TlsConfig::default().roots(text(&roots.roots()));
            RedisConfig::at(&url).tls(tls.certificate(text(&ours.client())).key(text(&ours.client_key())))
        };
        let redis = Redis::connect(client(&ours)).await.unwrap();
        redis.store().insert(KEY, "x").await.unwrap();
        refused(client(&others), PortErrorKind::Denied, &["not trusted", "tls.roots"]).await;
        let anonymous = RedisConfig::at(&url).tls(TlsConfig::default().roots(text(&ours.roots())));
        let error = Redis::connect(anonymous).await.unwrap_err();
        assert!(error.to_string().contains("certificate of the client"), "{error}");
    });
}

#[test]
fn a_server_that_would_lose_data_or_cannot_take_writes_is_refused() {
    run(async {
        let server = server::Redis::with(&["--maxmemory-policy", "allkeys-lru"]);
        let words = ["maxmemory-policy", "allkeys-lru", "noeviction"];
        refused(RedisConfig::at(server.url()), PortErrorKind::Unsupported, &words).await;
        let server = server::Redis::with(&["--cluster-enabled", "yes"]);
        refused(RedisConfig::at(server.url()), PortErrorKind::Unsupported, &["cluster"]).await;
        let primary = server::Redis::start();
        let replica = primary.replica(&[]);
        refused(RedisConfig::at(replica.url()), PortErrorKind::Unavailable, &["replica", "its primary"]).await;
        primary.command(&["HSET", "steadfast:meta", "form", "3", "identity", "x"]);
        refused(RedisConfig::at(primary.url()), PortErrorKind::TooNew, &["form 3", "newer release"]).await;
        // That of an older release is raised, so that no further handle of it connects.
        primary.command(&["HSET", "older:meta", "form", "1", "identity", "x"]);
        connect(primary.url(), "older").await;
        assert_eq!(primary.command(&["HGET", "older:meta", "form"]), "2");
        connect(primary.url(), "other").await;
    });
}

#[test]
fn capabilities_are_those_that_the_servers_settings_keep() {
    run(async {
        let has = async |server: &server::Redis, capability| {
            let redis = connect(server.url(), &prefix()).await;
            let all = [redis.store().capabilities(), redis.lease().capabilities()];
            assert!(all[0].has(capability) == all[1].has(capability));
            all[0].has(capability)
        };
        let server = server::Redis::shared();
        assert!(!has(server, Capability::Durable).await && has(server, Capability::Linearizable).await);
        let durable = server::Redis::durable();
        assert!(has(&durable, Capability::Durable).await);
        let weaker = [("appendfsync", "everysec"), ("no-appendfsync-on-rewrite", "yes"), ("aof-load-truncated", "yes")];
        for (setting, weak) in weaker {
            let strong = server::Redis::durable();
            assert_eq!(strong.command(&["CONFIG", "SET", setting, weak]), "OK");
            assert!(!has(&strong, Capability::Durable).await, "{setting}");
        }
        let _replica = durable.replica(&[]);
        assert!(!has(&durable, Capability::Linearizable).await);
    });
}

#[test]
fn a_full_memory_refuses_writes_and_nothing_else() {
    run(async {
        let server = server::Redis::with(&["--maxmemory", "4mb"]);
        let redis = connect(server.url(), "full").await;
        let store = redis.store();
        let lease = redis.lease();
        let steadfast::lease::Acquired::Granted(token) =
            lease.acquire("n", "a", Duration::from_secs(60)).await.unwrap()
        else {
            panic!("the name is free")
        };
        let mut written = 0;
        let error = loop {
            match store
                .put(Key::new("p", &written.to_string()), vec![7; 100_000].into(), Precondition::Any.into())
                .await
            {
                Ok(_) => written += 1,
                Err(error) => break error,
            }
            assert!(written < 100);
        };
        assert_eq!(backend(&error).kind(), PortErrorKind::Full, "{error}");
        assert!(error.to_string().contains("maxmemory") && !error.may_have_been_applied(), "{error}");
        assert!(store.get(Key::new("p", "0")).await.unwrap().is_some());
        assert!(store.get(Key::new("p", &written.to_string())).await.unwrap().is_none());
        lease.release("n", "a", token).await.unwrap();
        for row in 0..written {
            assert!(store.delete(Key::new("p", &row.to_string()), Precondition::Any.into()).await.unwrap());
        }
        store.insert(KEY, "room again").await.unwrap();
    });
}

#[test]
fn a_full_disk_refuses_writes_and_nothing_else() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let appended = folder.path().join("appendonlydir");
        std::fs::create_dir(&appended).unwrap();
        // A file whose disk is full.
        std::os::unix::fs::symlink("/dev/full", appended.join("appendonly.aof.1.incr.aof")).unwrap();
        let server = server::Redis::with(&["--appendonly", "yes", "--dir", folder.path().to_str().unwrap()]);
        let store = connect(server.url(), "full").await.store();
        wait_until("the server sees it", || server.command(&["SET", "a", "b"]).starts_with("MISCONF"));
        let error = store.insert(KEY, "x").await.unwrap_err();
        assert_eq!(backend(&error).kind(), PortErrorKind::Full, "{error}");
        assert!(error.to_string().starts_with("redis: "), "{error}");
        assert!(error.to_string().contains("free space on its disk") && !error.may_have_been_applied(), "{error}");
        assert!(store.get(KEY).await.unwrap().is_none());
    });
}

#[test]
fn a_request_without_an_answer_is_unknown_and_the_connection_is_replaced() {
    run(async {
        let proxy = Proxy::start(server::Redis::shared().port());
        let url = format!("redis://127.0.0.1:{}", proxy.port());
        let config = RedisConfig::at(url).prefix(prefix()).request_timeout(Duration::from_millis(300));
        // A busy machine may exceed the limit before anything is held.
        let redis = again("connect", || Redis::connect(config.clone())).await.0;
        let store = redis.store();
        until_it_works(&store).await;
        let mut events = redis.events();
        proxy.hold_lane(Lane::Replies);
        let error = store.put(KEY, "second".into(), Precondition::Any.into()).await.unwrap_err();
        assert_eq!(backend(&error).kind(), PortErrorKind::TimedOut, "{error}");
        assert!(error.may_have_been_applied() && error.to_string().contains("no answer within 300ms"), "{error}");
        // Other requests do not wait for the connection.
        let error = store.get(KEY).await.unwrap_err();
        assert_eq!(backend(&error).kind(), PortErrorKind::Unavailable, "{error}");
        assert!(!error.may_have_been_applied(), "{error}");
        proxy.pass();
        until_it_works(&store).await;
        assert!(matches!(events.recv().await.unwrap().what, ConnectionEvent::Lost { .. }));
        assert!(matches!(events.recv().await.unwrap().what, ConnectionEvent::Restored { .. }));
    });
}

#[test]
fn a_read_without_an_answer_is_not_unknown() {
    run(async {
        let proxy = Proxy::start(server::Redis::shared().port());
        let url = format!("redis://127.0.0.1:{}", proxy.port());
        let config = RedisConfig::at(url).prefix(prefix()).request_timeout(Duration::from_millis(300));
        let redis = again("connect", || Redis::connect(config.clone())).await.0;
        until_it_works(&redis.store()).await;
        proxy.hold();
        let error = redis.store().get(KEY).await.unwrap_err();
        assert!(backend(&error).kind() == PortErrorKind::TimedOut && !error.may_have_been_applied(), "{error}");
    });
}

#[test]
fn requests_fail_at_once_while_the_server_is_gone_and_work_when_it_is_back() {
    run(async {
        let server = server::Redis::durable();
        let redis = connect(server.url(), "gone").await;
        let (store, mut events) = (redis.store(), redis.events());
        store.insert(KEY, "first").await.unwrap();
        server.kill();
        assert!(matches!(events.recv().await.unwrap().what, ConnectionEvent::Lost { .. }));
        // Together, those that wait for their time limit would not end.
        server::ends(async {
            for _ in 0..1000 {
                let error = store.get(KEY).await.unwrap_err();
                assert_eq!(backend(&error).kind(), PortErrorKind::Unavailable, "{error}");
                assert!(error.to_string().contains("not connected, and trying again"), "{error}");
            }
        })
        .await;
        server.start_again();
        until_it_works(&store).await;
        assert!(matches!(events.recv().await.unwrap().what, ConnectionEvent::Restored { .. }));
    });
}

#[test]
fn a_handle_whose_server_turns_read_only_under_load_goes_on_with_the_new_primary() {
    run(async {
        let old = server::Redis::start();
        let new = old.replica(&[]);
        let proxy = Proxy::start(old.port());
        let redis = connect(old.url_at(proxy.port()), "turned").await;
        let store = redis.store();
        store.insert(KEY, "first").await.unwrap();
        wait_until("the replica has it", || new.command(&["EXISTS", "turned:s:{p}:rows"]) == "1");
        new.promote();
        old.command(&["REPLICAOF", "127.0.0.1", &new.port().to_string()]);
        proxy.lead_to(new.port());
        let error = store.put(KEY, "second".into(), Precondition::Any.into()).await.unwrap_err();
        assert_eq!(backend(&error).kind(), PortErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("read-only replica") && !error.may_have_been_applied(), "{error}");
        until_it_works(&store).await;
        assert_eq!(new.command(&["HGET", "turned:s:{p}:rows", "vr"]), "back");
    });
}

#[test]
fn a_durable_handle_does_not_go_on_with_the_data_of_another_server() {
    run(async {
        let (one, other) = (server::Redis::durable(), server::Redis::durable());
        let proxy = Proxy::start(one.port());
        let redis = connect(one.url_at(proxy.port()), "same").await;
        let store = redis.store();
        store.insert(KEY, "one's").await.unwrap();
        connect(other.url(), "same").await;
        proxy.lead_to(other.port());
        let mut events = redis.events();
        proxy.cut();
        assert!(matches!(events.recv().await.unwrap().what, ConnectionEvent::Lost { .. }));
        server::ends(async {
            while !store.get(KEY).await.unwrap_err().to_string().contains("other data than before") {
                server::look_again().await;
            }
        })
        .await;
        proxy.lead_to(one.port());
        until_it_works(&store).await;
    });
}

#[test]
fn a_script_cache_that_was_emptied_is_filled_again() {
    run(async {
        let server = server::Redis::start();
        let redis = connect(server.url(), "scripts").await;
        for round in 0..3 {
            server.command(&["SCRIPT", "FLUSH"]);
            redis.store().insert(Key::new("p", &round.to_string()), "x").await.unwrap();
        }
    });
}

#[test]
fn a_key_of_another_program_is_corrupt_and_stays_as_it_is() {
    run(async {
        let server = server::Redis::start();
        let redis = connect(server.url(), "foreign").await;
        server.command(&["SET", "foreign:s:{p}:rows", "theirs"]);
        let error = redis.store().put(KEY, "ours".into(), Precondition::Any.into()).await.unwrap_err();
        assert_eq!(backend(&error).kind(), PortErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains("another program"), "{error}");
        assert_eq!(server.command(&["GET", "foreign:s:{p}:rows"]), "theirs");
        redis.store().put(Key::new("q", "r"), "ours".into(), Precondition::Any.into()).await.unwrap();
    });
}

#[test]
fn a_write_that_fails_half_way_is_unknown_and_changes_no_record() {
    run(async {
        let server = server::Redis::start();
        let redis = connect(server.url(), "half").await;
        let store = redis.store();
        let plain = || vec![Write::put("r", "new", Precondition::Any)];
        let mortal = || vec![Write::put("r", "new", PutOptions::new().ttl(Duration::from_secs(60)))];
        for (key, writes) in [("index", plain()), ("index", mortal()), ("ends", mortal())] {
            let key = format!("half:s:{{p}}:{key}");
            server.command(&["XADD", &key, "*", "a", "b"]);
            let error = store.batch("p", writes).await.unwrap_err();
            assert!(error.may_have_been_applied(), "{key}: {error}");
            assert!(store.get(KEY).await.unwrap().is_none(), "{key}");
            server.command(&["DEL", &key]);
            store.batch("p", mortal()).await.unwrap();
            assert_eq!(store.scan(&Scan::partition("p")).await.unwrap().rows.len(), 1);
            store.delete(KEY, Precondition::Any.into()).await.unwrap();
        }
    });
}

#[test]
fn a_capability_that_the_server_loses_is_told_after_the_next_connection() {
    run(async {
        let server = server::Redis::durable();
        let redis = connect(server.url(), "weakened").await;
        let mut events = redis.events();
        server.command(&["CONFIG", "SET", "appendfsync", "no"]);
        server.cut();
        let mut told = Vec::new();
        while !matches!(told.last(), Some(ConnectionEvent::Weakened { capability: Capability::Durable })) {
            assert!(told.len() < 5, "{told:?}");
            told.push(events.recv().await.unwrap().what);
        }
        redis.store().insert(KEY, "x").await.unwrap();
    });
}

#[test]
fn a_server_that_keeps_nothing_is_used_again_after_a_restart() {
    run(async {
        let server = server::Redis::start();
        let (one, two) = (connect(server.url(), "emptied").await, connect(server.url(), "emptied").await);
        one.store().insert(KEY, "x").await.unwrap();
        for another_first in [false, true] {
            server.kill();
            server.start_again();
            if another_first {
                connect(server.url(), "emptied").await;
            }
            for redis in [&one, &two] {
                until_it_works(&redis.store()).await;
            }
        }
    });
}

#[test]
fn a_durable_server_that_was_emptied_keeps_the_name_of_its_data() {
    run(async {
        let server = server::Redis::durable();
        let redis = connect(server.url(), "flushed").await;
        let name = || server.command(&["HGET", "flushed:meta", "identity"]);
        let before = name();
        server.command(&["FLUSHALL"]);
        server.cut();
        until_it_works(&redis.store()).await;
        wait_until("the connection is checked", || !name().is_empty());
        assert_eq!(name(), before);
    });
}
