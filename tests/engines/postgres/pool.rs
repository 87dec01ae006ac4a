//! A server that has no connection left, connections that are idle or old, and a way to the server that swallows all.
use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use steadfast::{
    backend::postgres::{PostgresConfig, PostgresStore},
    notify::Notifier,
    port::{Failure, PortErrorKind},
    queue::{Message, Queue, QueueExt, Receive},
    store::{Key, Scan, Store, StoreExt},
};
use tokio_postgres::{Client, NoTls};

use super::{connect, connect_in_haste, new_schema, patient, shared};
use crate::server::{self, Proxy, Watch, wait_until};

const KEY: Key<'static> = Key::new("p", "r");

/// Starts a server with this many connections, and a user without a right to the reserved ones; returns its URL.
fn small(connections: usize) -> (server::Postgres, String) {
    let settings = [("max_connections", connections.to_string()), ("max_wal_senders", "0".to_owned())];
    let settings: Vec<(&str, &str)> = settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let server = server::Postgres::with(&settings);
    server.psql("create role app login");
    server.psql("grant create on database postgres to app");
    let url = server.url().replace("postgres@", "app@");
    (server, url)
}

/// Opens connections of another program until the server has none left.
async fn take_the_rest(url: &str) -> Vec<Client> {
    let mut taken = Vec::new();
    while let Ok((client, connection)) = tokio_postgres::connect(url, NoTls).await {
        tokio::spawn(connection);
        taken.push(client);
    }
    taken
}

/// Makes requests that share none, each from a task of its own; returns their errors.
pub(super) async fn scans(store: &PostgresStore, number: usize) -> Vec<String> {
    let store = Arc::new(store.clone());
    let scans = (0..number).map(|_| {
        let store = store.clone();
        tokio::spawn(async move { store.scan(&Scan::partition("p")).await.err().map(|error| error.to_string()) })
    });
    join_all(scans.collect::<Vec<_>>()).await.into_iter().filter_map(Result::unwrap).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_wait_for_an_open_connection_while_the_server_refuses_another_one() {
    let (server, url) = small(13);
    let proxy = Proxy::start(server.port());
    let own = url.replace(&server.port().to_string(), &proxy.port().to_string());
    let postgres = connect(&patient(own).connections(8)).await;
    let store = postgres.store();
    // Two connections, and no place for a third one.
    proxy.delay(Duration::from_millis(5));
    while proxy.open() < 2 {
        assert!(scans(&store, 2).await.is_empty());
    }
    let others = take_the_rest(&url).await;
    let (mut failed, before, began) = (Vec::new(), proxy.accepted(), Watch::start());
    for _ in 0..50 {
        failed.extend(scans(&store, 40).await);
    }
    let (attempts, most) = (proxy.accepted() - before, 30 + began.passed().as_secs());
    assert!(failed.is_empty(), "{} of 2000 failed: {}", failed.len(), failed[0]);
    // The pauses between attempts grow to seconds.
    assert!(attempts <= most, "{attempts} attempts to open a connection for 2000 requests");
    drop(others);
    // It grows again once there is room.
    wait_until("another connection", || {
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async {
                assert!(scans(&store, 8).await.is_empty());
            });
        });
        proxy.open() > 2
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stays_full_is_named_within_the_time_limit() {
    let (_server, url) = small(10);
    let postgres = connect_in_haste(&patient(url.clone()).request_timeout(Duration::from_millis(500))).await;
    let store = postgres.store();
    // The only connection of the handle ends, and its place is taken.
    let others = take_the_rest(&url).await;
    _server.psql("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'steadfast'");
    let mut taken = take_the_rest(&url).await;
    while taken.is_empty() {
        taken = take_the_rest(&url).await;
    }
    let error = server::ends(async {
        loop {
            let error = store.scan(&Scan::partition("p")).await.unwrap_err();
            // A busy server may not even refuse a connection in that time.
            if error.backend().unwrap().kind() != PortErrorKind::TimedOut {
                break error;
            }
        }
    })
    .await;
    assert_eq!(error.backend().unwrap().kind(), PortErrorKind::Throttled, "{error}");
    assert!(error.to_string().contains("max_connections"), "{error}");
    drop((others, taken));
    server::ends(async {
        while store.get(KEY).await.is_err() {
            server::look_again().await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn eleven_processes_with_the_defaults_fit_into_a_server_with_the_defaults() {
    let (server, url) = small(100);
    let mut handles = Vec::new();
    for _ in 0..11 {
        let postgres = connect(&patient(url.clone())).await;
        let notices = postgres.notifier().subscribe("t").await.unwrap();
        handles.push((postgres, notices));
    }
    // Each has all its connections at once.
    for _ in 0..3 {
        let stores: Vec<_> = handles.iter().map(|(postgres, _)| postgres.store()).collect();
        let failed = join_all(stores.iter().map(|store| scans(store, 60))).await.concat();
        assert!(failed.is_empty(), "{} failed: {}", failed.len(), failed[0]);
    }
    let left = take_the_rest(&url).await.len();
    let open = server.psql("select count(*) from pg_stat_activity where application_name = 'steadfast'");
    assert!(left >= 10, "{open} connections of eleven processes leave {left} for others");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_whose_connection_for_notices_is_refused_looks_at_intervals_of_seconds() {
    const MINUTE: Duration = Duration::from_secs(60);
    let (_server, url) = small(10);
    let config = PostgresConfig::at(&url).poll(MINUTE * 5);
    let (postgres, other) = (connect(&config).await, connect(&config).await);
    let (queue, sender) = (postgres.queue("q").await.unwrap(), other.queue("q").await.unwrap());
    let _others = take_the_rest(&url).await;
    let waits = tokio::spawn(async move { queue.receive(Receive::new(1, MINUTE).wait(MINUTE * 10)).await });
    server::pass(Duration::from_millis(500)).await;
    sender.send_one(Message::new("a")).await.unwrap();
    assert_eq!(server::ends(waits).await.unwrap().unwrap().len(), 1);
}

/// Returns settings of the shared server through a proxy, with a further line.
fn with(proxy: &Proxy, line: &str) -> PostgresConfig {
    let config: PostgresConfig = toml::from_str(&format!("url = 'postgres://host/db'\n{line}")).unwrap();
    config.url(server::Postgres::shared().url_at(proxy.port())).schema(new_schema())
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_idle_are_closed_and_one_stays() {
    let proxy = Proxy::start(server::Postgres::shared().port());
    let postgres = connect(&with(&proxy, "idle_timeout = '500ms'\nconnections = 8")).await;
    let store = postgres.store();
    proxy.delay(Duration::from_millis(20));
    assert!(scans(&store, 60).await.is_empty());
    assert!(proxy.accepted() >= 4, "{} connections", proxy.accepted());
    proxy.delay(Duration::ZERO);
    wait_until("idle connections are closed", || proxy.open() == 1);
    // The one that stays is used.
    let before = proxy.accepted();
    server::pass(Duration::from_millis(1200)).await;
    store.get(KEY).await.unwrap();
    assert_eq!(proxy.accepted(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_old_is_replaced_and_no_request_fails() {
    let proxy = Proxy::start(server::Postgres::shared().port());
    let postgres = connect(&with(&proxy, "max_lifetime = '500ms'")).await;
    let store = postgres.store();
    let before = proxy.accepted();
    server::ends(async {
        while proxy.accepted() < before + 3 {
            store.get(KEY).await.unwrap();
        }
    })
    .await;
    wait_until("an old connection without a request is closed", || proxy.open() == 0);
}

/// A machine that vanished: connections stay open, and nothing passes. A new one leads elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn one_time_out_closes_the_connections_that_are_as_silent() {
    // Longer than a request takes on a busy machine.
    const LIMIT: Duration = Duration::from_secs(3);
    let server = server::Postgres::shared();
    let (vanished, proxy) = (Proxy::start(server.port()), Proxy::start(0));
    proxy.lead_to(vanished.port());
    let config = shared().url(server.url_at(proxy.port())).request_timeout(LIMIT).connections(8);
    let postgres = connect_in_haste(&config).await;
    let store = postgres.store();
    vanished.delay(Duration::from_millis(20));
    while proxy.open() < 8 {
        scans(&store, 60).await;
    }
    vanished.hold();
    proxy.lead_to(server.port());
    let mut timed_out = 0;
    while store.insert(KEY, "x").await.is_err_and(|error| !error.is_conflict()) {
        timed_out += 1;
    }
    assert_eq!(timed_out, 1, "so many requests in a row waited for a time-out each");
}
