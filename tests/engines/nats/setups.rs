//! Servers that are set up badly, and servers that go: each a clear error in time.
use std::{
    io::{Read as _, Write as _},
    time::Duration,
};

use steadfast::{
    backend::{
        self, ConnectionEvent, TlsConfig,
        nats::{Nats, NatsConfig},
    },
    notify::{Notice, Notifier},
    port::{Capability, Failure, PortErrorKind},
    queue::{Message, Queue, QueueExt, Settle},
    store::{Key, Precondition, Store, StoreExt},
};

use super::{connect, prefix, run};
use crate::{
    faults::again,
    server::{self, Certificates, Lane, Proxy, wait_until},
};

const KEY: Key<'static> = Key::new("p", "r");
const MS: fn(u64) -> Duration = Duration::from_millis;
const MINUTE: Duration = Duration::from_secs(60);

/// Asserts that connecting fails with this kind and these words, and without the word `secret`.
async fn refused(config: NatsConfig, kind: PortErrorKind, words: &[&str]) {
    let Err(error) = server::ends(Nats::connect(config.clone())).await else { panic!("{config:?} was accepted") };
    let text = format!("{error} {error:?}");
    assert_eq!(error.kind(), kind, "{error}");
    assert!(words.iter().all(|word| text.contains(word)), "{error}");
    assert!(text.starts_with("nats: ") && !text.contains("secret"), "{text}");
    assert!(!format!("{config:?}").contains("secret"));
    assert!(!error.may_have_been_applied(), "{error}");
}

/// Asks the server's API over a connection of its own.
fn api(server: &server::Nats, call: &str, body: &str) -> String {
    server.request(&format!("$JS.API.{call}"), body).unwrap()
}

#[test]
fn a_wrong_or_missing_password_is_denied() {
    run(async {
        let server = server::Nats::with("authorization { user: app\n password: right }\n");
        let at = |login: &str| NatsConfig::at(server.url().replace("//", &format!("//{login}")));
        refused(at("app:secret@"), PortErrorKind::Denied, &["the user `app` with this password"]).await;
        refused(at("secret@"), PortErrorKind::Denied, &["refuses the token"]).await;
        refused(at(""), PortErrorKind::Denied, &["demands a user or a token"]).await;
        let nats = Nats::connect(at("app:right@")).await.unwrap();
        nats.store().insert(KEY, "x").await.unwrap();
    });
}

#[test]
fn a_server_that_is_not_reached_is_unavailable_in_time() {
    run(async {
        // Told at once, however slow the resolver and the machine are.
        let patient = |url: &str| NatsConfig::at(url).connect_timeout(MINUTE);
        refused(patient("nats://u:secret@no-such-host.invalid"), PortErrorKind::Unavailable, &["no-such-host"]).await;
        refused(patient("nats://u:secret@127.0.0.1:1"), PortErrorKind::Unavailable, &["cannot connect"]).await;
        let proxy = Proxy::start(server::Nats::shared().port());
        proxy.hold();
        let held = NatsConfig::at(format!("nats://127.0.0.1:{}", proxy.port())).connect_timeout(MS(300));
        refused(held, PortErrorKind::TimedOut, &["no connection"]).await;
    });
}

#[test]
fn a_certificate_is_checked_and_the_clients_own_is_shown() {
    run(async {
        let (ours, others) = (Certificates::new(), Certificates::new());
        let server = server::Nats::with_tls(&ours);
        let url = format!("tls://localhost:{}", server.port());
        let text = |path: &std::path::Path| Certificates::text(path);
        let client = |roots: &Certificates| {
            let tls = TlsConfig::default().roots(text(&roots.roots()));
            NatsConfig::at(&url).tls(tls.certificate(text(&ours.client())).key(text(&ours.client_key())))
        };
        let nats = Nats::connect(client(&ours)).await.unwrap();
        nats.store().insert(KEY, "x").await.unwrap();
        refused(client(&others), PortErrorKind::Denied, &["not trusted", "tls.roots"]).await;
    });
}

#[test]
fn a_server_of_an_old_version_is_refused_by_its_version() {
    run(async {
        // The greeting is all that a client knows of the version.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let info = r#"{"server_id":"x","version":"2.9.10","headers":true,"max_payload":1048576}"#;
                let _ = write!(stream, "INFO {info}\r\n");
                let mut buffer = [0; 1024];
                while let Ok(1..) = stream.read(&mut buffer) {
                    let _ = write!(stream, "PONG\r\n");
                }
            }
        });
        let config = NatsConfig::at(format!("nats://127.0.0.1:{port}"));
        refused(config, PortErrorKind::Unsupported, &["`2.9.10`: at least 2.10"]).await;
    });
}

#[test]
fn a_server_without_jetstream_is_refused() {
    run(async {
        let server = server::Nats::with("jetstream: disabled\n");
        let config = NatsConfig::at(server.url());
        refused(config, PortErrorKind::Unavailable, &["is JetStream on"]).await;
    });
}

#[test]
fn more_replicas_than_servers_are_refused() {
    run(async {
        let config = NatsConfig::at(server::Nats::shared().url()).prefix(prefix()).replicas(3);
        refused(config, PortErrorKind::Unsupported, &["too few servers for `replicas`"]).await;
    });
}

#[test]
fn a_stream_that_was_changed_or_is_another_programs_is_refused() {
    run(async {
        let server = server::Nats::start();
        let of = |prefix: &str| NatsConfig::at(server.url()).prefix(prefix);
        for prefix in ["changed", "newer", "older"] {
            Nats::connect(of(prefix)).await.unwrap();
        }
        let stream = |prefix: &str, rest: &str| {
            format!(
                r#"{{"name":"{prefix}_store","subjects":["{prefix}.s.>"],"storage":"file","allow_msg_ttl":true,{rest}}}"#
            )
        };
        let ours = r#""metadata":{"steadfast.form":"2","steadfast.identity":"x"},"max_msgs_per_subject":1"#;
        let changed = api(
            &server,
            "STREAM.UPDATE.changed_store",
            &stream("changed", &format!(r#"{ours},"max_age":60000000000,"discard":"new""#)),
        );
        assert!(!changed.contains("error"), "{changed}");
        refused(of("changed"), PortErrorKind::Unsupported, &["`max_age` of the stream `changed_store`"]).await;
        for (prefix, form) in [("newer", r#""3""#), ("older", r#""1""#)] {
            let other = stream(prefix, &format!(r#"{},"discard":"new""#, ours.replace(r#""2""#, form)));
            let changed = api(&server, &format!("STREAM.UPDATE.{prefix}_store"), &other);
            assert!(!changed.contains("error"), "{changed}");
        }
        refused(of("newer"), PortErrorKind::TooNew, &["form 3", "use the newer release"]).await;
        refused(of("older"), PortErrorKind::Unsupported, &["form 1", "earlier release", "`prefix`"]).await;
        api(&server, "STREAM.CREATE.other_store", &stream("other", r#""max_msgs":5"#));
        refused(of("other"), PortErrorKind::Corrupt, &["another program's", "`prefix`"]).await;
    });
}

#[test]
fn a_queue_that_cannot_forward_does_not_claim_it_and_refuses_it_by_name() {
    run(async {
        let nats = connect(server::Nats::shared().url(), &prefix()).await;
        let queue = nats.queue("jobs").await.unwrap();
        assert!(!queue.capabilities().has(Capability::Forward) && queue.address().is_none());
        queue.send_one(Message::new("a")).await.unwrap();
        let delivery = queue.receive_one(Duration::from_secs(60)).await.unwrap().unwrap();
        let settled = queue.settle(vec![(delivery.receipt, Settle::forward([]))]).await.unwrap();
        assert!(settled[0].as_ref().unwrap_err().to_string().contains("`forward`"), "{settled:?}");
    });
}

#[test]
fn reads_that_are_not_confirmed_are_not_linearizable() {
    run(async {
        let cluster = server::NatsCluster::shared();
        let config = NatsConfig::at(cluster.url()).prefix(prefix());
        let confirmed = Nats::connect(config.clone()).await.unwrap();
        assert!(confirmed.store().capabilities().has(Capability::Linearizable));
        let plain = Nats::connect(config.confirmed_reads(false)).await.unwrap();
        let can = plain.store().capabilities();
        assert!(!can.has(Capability::Linearizable) && can.has(Capability::Durable));
        // Leases need them, and have them.
        assert!(steadfast::lease::Lease::capabilities(&plain.lease()).has(Capability::Linearizable));
        plain.store().insert(KEY, "x").await.unwrap();
        assert_eq!(&plain.store().get(KEY).await.unwrap().unwrap().value[..], b"x");
        let one = connect(server::Nats::shared().url(), &prefix()).await;
        assert!(one.store().capabilities().has(Capability::Linearizable), "one server has no old leader");
    });
}

#[test]
fn a_full_server_is_full_and_works_again_when_there_is_room() {
    run(async {
        let jetstream = "jetstream { max_file_store: 2MB\n store_dir: \"/dev/shm/steadfast-full\" }\n";
        let folder = std::env::temp_dir().join(format!("steadfast-full-{}", std::process::id()));
        let jetstream = jetstream.replace("/dev/shm/steadfast-full", folder.to_str().unwrap());
        let server = server::Nats::with(&jetstream);
        let nats = connect(server.url(), "full").await;
        let store = nats.store();
        let mut stored = Vec::new();
        let error = loop {
            let row = stored.len().to_string();
            match store.insert(Key::new("p", &row), vec![b'x'; 100_000]).await {
                Ok(_) => stored.push(row),
                Err(error) => break error,
            }
            assert!(stored.len() < 100, "2 MB are never full");
        };
        assert_eq!(error.backend().map(|error| error.kind()), Some(PortErrorKind::Full), "{error}");
        assert!(!error.may_have_been_applied(), "{error}");
        assert!(stored.len() > 10);
        // Nothing old was deleted for new records, and a smaller one makes room.
        for row in &stored {
            assert_eq!(store.get(Key::new("p", row)).await.unwrap().unwrap().value.len(), 100_000);
        }
        let purged = api(&server, "STREAM.PURGE.full_store", r#"{"filter":"full.s.p.v.0.%.0"}"#);
        assert!(purged.contains(r#""purged":1"#), "{purged}");
        wait_until("there is room", || api(&server, "INFO", "").contains("storage"));
        store.insert(Key::new("p", "small"), "x").await.unwrap();
        drop(server);
        let _ = std::fs::remove_dir_all(folder);
    });
}

#[test]
fn a_lost_connection_fails_at_once_is_restored_and_is_told() {
    run(async {
        let proxy = Proxy::start(server::Nats::shared().port());
        let url = format!("nats://127.0.0.1:{}", proxy.port());
        let nats = connect(url, &prefix()).await;
        let (store, mut events) = (nats.store(), nats.events());
        let mut notices = nats.notifier().subscribe("t").await.unwrap();
        store.insert(KEY, "x").await.unwrap();
        proxy.refuse(true);
        proxy.cut();
        let lost = server::ends(events.recv()).await.unwrap().what;
        assert!(matches!(lost, ConnectionEvent::Lost { kind: PortErrorKind::Unavailable, .. }), "{lost:?}");
        // Together, those that queue while the connection is lost would not end.
        server::ends(async {
            for _ in 0..3_000 {
                let error = store.get(KEY).await.unwrap_err();
                assert_eq!(error.backend().map(|error| error.kind()), Some(PortErrorKind::Unavailable), "{error}");
                assert!(!error.may_have_been_applied(), "{error}");
            }
        })
        .await;
        proxy.pass();
        let restored = server::ends(events.recv()).await.unwrap().what;
        assert!(matches!(restored, ConnectionEvent::Restored { attempts: 1.., .. }), "{restored:?}");
        assert_eq!(server::ends(notices.recv()).await, Notice::Gap);
        store.put(KEY, "back".into(), Precondition::Any.into()).await.unwrap();
    });
}

#[test]
fn a_request_without_an_answer_ends_in_time_and_says_that_it_may_have_been_applied() {
    run(async {
        let proxy = Proxy::start(server::Nats::shared().port());
        let config = NatsConfig::at(format!("nats://127.0.0.1:{}", proxy.port())).prefix(prefix());
        // A busy machine may exceed the limit before anything is held.
        let config = config.request_timeout(MS(600));
        let nats = again("connect", || Nats::connect(config.clone())).await.0;
        let (store, queue) = (nats.store(), again("queue", || nats.queue("jobs")).await.0);
        again("put", || store.put(KEY, "x".into(), Precondition::Any.into())).await;
        assert_eq!(again("depth", || queue.depth()).await.0.total(), 0);
        proxy.hold_lane(Lane::Replies);
        let error = store.put(KEY, "y".into(), Precondition::Any.into()).await.unwrap_err();
        assert_eq!(error.backend().map(|error| error.kind()), Some(PortErrorKind::TimedOut), "{error}");
        assert!(error.may_have_been_applied(), "{error}");
        let error = queue.send_one(Message::new("a")).await.unwrap_err();
        assert!(error.may_have_been_applied(), "{error}");
        proxy.pass();
        again("depth", || queue.depth()).await;
        assert_eq!(&again("get", || store.get(KEY)).await.0.unwrap().value[..], b"y", "it was applied");
        assert_eq!(again("depth", || queue.depth()).await.0.total(), 1, "it was accepted once");
    });
}

#[test]
fn a_backend_is_opened_by_its_url() {
    run(async {
        let backend = backend::open(&server::Nats::shared().url()).await.unwrap();
        assert_eq!(backend.scheme(), "nats");
        backend.store().put(KEY, "x".into(), Precondition::Any.into()).await.unwrap();
        let queue = backend.queue("opened").await.unwrap();
        queue.send_one(Message::new("a")).await.unwrap();
        assert_eq!(queue.depth().await.unwrap().total(), 1);
        backend.lease().acquire("n", "a", Duration::from_secs(1)).await.unwrap();
        backend.notifier().publish("t", "x".into()).await.unwrap();
    });
}
