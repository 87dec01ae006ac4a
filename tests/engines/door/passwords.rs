//! A password that is changed on the server: errors and events tell the reason until the handle may connect again.
use std::time::Duration;

use steadfast::{
    backend::ConnectionEvent,
    observe::Subscription,
    port::{ErrorClass, Failure, PortErrorKind},
    store::{Key, Precondition, Store},
};

use crate::server::{self, ends};

const KEY: Key<'static> = Key::new("p", "r");

/// Waits until a request fails for this reason.
async fn until_denied(store: &dyn Store, words: &str) {
    ends(async {
        loop {
            let Err(error) = store.get(KEY).await else {
                server::look_again().await;
                continue;
            };
            let text = format!("{error} {error:?}");
            assert!(!text.contains("S3cr3t"), "{text}");
            let kind = error.backend().unwrap().kind();
            assert!(matches!(kind, PortErrorKind::Unavailable | PortErrorKind::Denied), "{text}");
            // What runs over it, such as a listener of a queue, goes on when the password is put right.
            assert_eq!(error.class(), ErrorClass::Transient, "{text}");
            if kind == PortErrorKind::Denied {
                assert!(text.contains(words), "{text}");
                break;
            }
            server::look_again().await;
        }
        // So do those that find out nothing by themselves.
        for _ in 0..20 {
            let error = store.get(KEY).await.unwrap_err();
            assert_eq!(error.backend().unwrap().kind(), PortErrorKind::Denied, "{error}");
            assert!(error.to_string().contains(words), "{error}");
            assert_eq!(error.class(), ErrorClass::Transient, "{error}");
        }
    })
    .await;
}

/// Reads events up to the one that tells the reason.
async fn tells_denied(events: &mut Subscription<ConnectionEvent>, words: &str) {
    let mut told = Vec::new();
    let found = tokio::time::timeout(Duration::from_secs(120), async {
        loop {
            let event = format!("{:?}", events.recv().await.unwrap().what);
            assert!(!event.contains("S3cr3t"), "{event}");
            told.push(event.clone());
            if event.contains("Denied") && event.contains(words) {
                return;
            }
        }
    });
    let is_found = found.await.is_ok();
    assert!(is_found, "{told:?}: no event tells it");
}

async fn until_it_works(store: &dyn Store, events: &mut Subscription<ConnectionEvent>) {
    ends(async {
        while store.put(KEY, "back".into(), Precondition::Any.into()).await.is_err() {
            server::look_again().await;
        }
        while !matches!(events.recv().await.unwrap().what, ConnectionEvent::Restored { .. }) {}
    })
    .await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_password_of_postgres_is_told_in_errors_and_events() {
    use steadfast::backend::postgres::{Postgres, PostgresConfig};

    let server = server::Postgres::start();
    server.psql("create role app superuser login password 'S3cr3t'");
    server.set_hba("host all postgres all trust\nhost all all all scram-sha-256\n");
    server::wait_until("the rules are read", || {
        server.psql("select count(*) from pg_hba_file_rules where auth_method = 'scram-sha-256'") != "0"
    });
    let url = server.url().replace("postgres@", "app:S3cr3t@");
    let postgres = Postgres::connect(PostgresConfig::at(url)).await.unwrap();
    let (store, mut events) = (postgres.store(), postgres.events());
    store.put(KEY, "x".into(), Precondition::Any.into()).await.unwrap();
    server.psql("alter role app password 'new'");
    server.restart();
    until_denied(&store, "password authentication failed").await;
    tells_denied(&mut events, "password authentication failed").await;
    server.psql("alter role app password 'S3cr3t'");
    until_it_works(&store, &mut events).await;
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_password_of_redis_is_told_in_errors_and_events() {
    use steadfast::backend::redis::{Redis, RedisConfig};

    let server = server::Redis::start();
    server.command(&["ACL", "SETUSER", "app", "on", ">S3cr3t", "~*", "&*", "+@all"]);
    let redis = Redis::connect(RedisConfig::at(server.url().replace("//", "//app:S3cr3t@"))).await.unwrap();
    let (store, mut events) = (redis.store(), redis.events());
    store.put(KEY, "x".into(), Precondition::Any.into()).await.unwrap();
    server.command(&["ACL", "SETUSER", "app", "resetpass", ">new"]);
    server.cut();
    until_denied(&store, "refuses the user `app` with this password").await;
    tells_denied(&mut events, "refuses the user `app` with this password").await;
    server.command(&["ACL", "SETUSER", "app", "resetpass", ">S3cr3t"]);
    until_it_works(&store, &mut events).await;
}

#[cfg(feature = "nats")]
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_password_of_nats_is_told_in_errors_and_events() {
    use steadfast::backend::nats::{Nats, NatsConfig};

    let server = server::Nats::with("authorization { user: app\n password: S3cr3t }\n");
    let nats = Nats::connect(NatsConfig::at(server.url().replace("//", "//app:S3cr3t@"))).await.unwrap();
    let (store, mut events) = (nats.store(), nats.events());
    store.put(KEY, "x".into(), Precondition::Any.into()).await.unwrap();
    server.change("S3cr3t", "new");
    server.restart();
    until_denied(&store, "refuses the user `app` with this password").await;
    tells_denied(&mut events, "refuses the user `app` with this password").await;
    server.change("new", "S3cr3t");
    server.restart();
    until_it_works(&store, &mut events).await;
}
