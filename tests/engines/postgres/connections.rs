//! Connections that are lost, slow or held, and requests that share them.
use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::FutureExt as _;
use steadfast::{
    backend::{
        ConnectionEvent, ConnectionRole,
        postgres::{Postgres, PostgresConfig},
    },
    notify::{Notice, Notifier},
    port::{ErrorClass, Failure, PortErrorKind},
    store::{Key, Precondition, PutOptions, Scan, Store, StoreError, StoreExt, Version, Write},
};

use super::{connect, connect_in_haste, new_schema, shared};
use crate::server::{self, Lane, Proxy};

const KEY: Key<'static> = Key::new("p", "r");
const LIMIT: Duration = Duration::from_millis(500);
/// Less than 100 requests that each wait for the time limit, on a busy machine.
const LONG: Duration = Duration::from_secs(20);

/// Returns a handle behind a proxy.
async fn by_proxy(config: PostgresConfig) -> (Postgres, Proxy) {
    let server = server::Postgres::shared();
    let proxy = Proxy::start(server.port());
    (connect(&config.url(server.url_at(proxy.port()))).await, proxy)
}

async fn put(store: &dyn Store, row: &str) -> Result<Version, StoreError> {
    store.put(Key::new("p", row), "x".into(), PutOptions::new()).await
}

/// Repeats a request until it succeeds.
async fn again<T, F: Future<Output = Result<T, StoreError>>>(request: impl Fn() -> F) -> T {
    server::ends(async {
        loop {
            match request().await {
                Ok(done) => return done,
                Err(_) => server::look_again().await,
            }
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_server_is_down_requests_fail_at_once_and_later_work_again() {
    let server = server::Postgres::start();
    let postgres = connect(&PostgresConfig::at(server.url())).await;
    let (store, mut events) = (postgres.store(), postgres.events());
    put(&store, "before").await.unwrap();
    server.kill();
    // The first requests find out.
    let lost = server::ends(async {
        loop {
            let _ = put(&store, "down").await.unwrap_err();
            if let Some(event) = events.recv().now_or_never() {
                break event.unwrap().what;
            }
        }
    })
    .await;
    assert!(matches!(lost, ConnectionEvent::Lost { role: ConnectionRole::Requests, .. }), "{lost:?}");
    let begun = Instant::now();
    for _ in 0..1000 {
        let error = store.get(KEY).await.unwrap_err();
        assert_eq!(error.backend().unwrap().kind(), PortErrorKind::Unavailable, "{error}");
        let error = put(&store, "down").await.unwrap_err();
        assert_eq!(error.class(), ErrorClass::Transient, "{error}");
        assert!(!error.may_have_been_applied(), "nothing was sent: {error}");
    }
    assert!(begun.elapsed() < LONG, "they fail at once, not after {:?}", begun.elapsed());
    server.start_again();
    again(|| put(&store, "after")).await;
    let restored = loop {
        if let ConnectionEvent::Restored { role, .. } = events.recv().await.unwrap().what {
            break role;
        }
    };
    assert_eq!(restored, ConnectionRole::Requests);
    assert!(store.get(Key::new("p", "before")).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_an_answer_ends_in_time_and_its_write_is_unknown() {
    let server = server::Postgres::shared();
    let proxy = Proxy::start(server.port());
    let config = shared().url(server.url_at(proxy.port())).request_timeout(LIMIT).connect_timeout(LIMIT);
    let store = connect_in_haste(&config).await.store();
    again(|| put(&store, "r")).await;
    for lanes in [None, Some(Lane::Replies)] {
        match lanes {
            None => proxy.hold(),
            Some(lane) => proxy.hold_lane(lane),
        }
        let begun = Instant::now();
        let error = put(&store, "written").await.unwrap_err();
        assert_eq!(error.backend().unwrap().kind(), PortErrorKind::TimedOut, "{error}");
        assert!(error.may_have_been_applied(), "{error}");
        let error = store.get(KEY).await.unwrap_err();
        assert_eq!(error.class(), ErrorClass::Transient, "{error}");
        assert!(!error.may_have_been_applied(), "{error}");
        assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
        proxy.pass();
        proxy.cut();
        again(|| put(&store, "r")).await;
    }
    // The request arrived, and only its answer was lost. A busy server may be at it still.
    server::ends(async {
        while again(|| store.get(Key::new("p", "written"))).await.is_none() {
            server::look_again().await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_survives_the_loss_of_its_connection() {
    let (postgres, proxy) = by_proxy(shared()).await;
    let store = postgres.store();
    put(&store, "r").await.unwrap();
    for _ in 0..20 {
        proxy.cut();
        assert!(store.get(KEY).await.unwrap().is_some());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_server_is_silent_requests_fail_at_once() {
    let server = server::Postgres::start();
    let config = PostgresConfig::at(server.url()).request_timeout(LIMIT).connect_timeout(LIMIT);
    let postgres = connect_in_haste(&config).await;
    let store = postgres.store();
    again(|| put(&store, "r")).await;
    let mut events = postgres.events();
    server.stop();
    server::ends(async {
        while events.recv().now_or_never().is_none() {
            assert_eq!(put(&store, "r").await.unwrap_err().class(), ErrorClass::Transient);
        }
    })
    .await;
    let begun = Instant::now();
    for _ in 0..100 {
        let error = store.get(KEY).await.unwrap_err();
        assert_eq!(error.backend().unwrap().kind(), PortErrorKind::Unavailable, "{error}");
    }
    assert!(begun.elapsed() < LONG, "100 requests took {:?}", begun.elapsed());
    server.cont();
    again(|| put(&store, "r")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_append_whose_answer_is_lost_is_not_repeated() {
    let config = shared();
    let (postgres, proxy) = by_proxy(config.clone()).await;
    let server = server::Postgres::shared();
    let count = || server.psql(&format!("select count(*) from \"{}\".records where part = 'p'", config.schema));
    for round in 1..=5_u32 {
        // A connection that is open and idle, and knows the statement, so that the request alone meets the fault.
        let store = postgres.store();
        again(|| store.batch("others", vec![Write::append("log/", "x")])).await;
        proxy.hold_lane(Lane::Replies);
        let append = tokio::spawn(async move { store.batch("p", vec![Write::append("log/", "x")]).await });
        server::wait_until("the append", || count() == round.to_string());
        proxy.cut();
        proxy.pass();
        let error = append.await.unwrap().unwrap_err();
        assert!(error.may_have_been_applied(), "{error}");
        assert_eq!(count(), round.to_string());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_the_server_ends_is_replaced() {
    let server = server::Postgres::start();
    let postgres = connect(&PostgresConfig::at(server.url())).await;
    let store = postgres.store();
    for i in 0..5 {
        put(&store, "r").await.unwrap();
        server.cut();
        // A write that met the end of its connection may fail, and says so.
        again(|| put(&store, "r")).await;
        assert!(store.get(KEY).await.unwrap().is_some(), "round {i}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_becomes_read_only_is_named_and_used_again_when_it_is_not() {
    let server = server::Postgres::start();
    let postgres = connect(&PostgresConfig::at(server.url())).await;
    let store = postgres.store();
    put(&store, "r").await.unwrap();
    server.psql("alter system set default_transaction_read_only = on");
    server.reload();
    server::wait_until("the setting is read", || server.psql("show default_transaction_read_only") == "on");
    let error = loop {
        if let Err(error) = put(&store, "r").await {
            break error;
        }
    };
    assert!(error.to_string().contains("read-only"), "{error}");
    assert_eq!(error.class(), ErrorClass::Transient, "it may become the primary: {error}");
    assert!(!error.may_have_been_applied());
    let mut reset = server.client();
    reset.env("PGOPTIONS", "-c default_transaction_read_only=off");
    reset.args(["-c", "alter system reset default_transaction_read_only"]);
    assert!(reset.status().unwrap().success());
    server.reload();
    again(|| put(&store, "r")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_requests_are_bounded() {
    let (postgres, proxy) = by_proxy(shared().connections(1).max_waiting(2)).await;
    let store = Arc::new(postgres.store());
    store.get(KEY).await.unwrap();
    proxy.hold();
    let reads: Vec<_> = (0..10)
        .map(|_| {
            let store = store.clone();
            // Scans share no request.
            tokio::spawn(async move { store.scan(&Scan::partition("p")).await })
        })
        .collect();
    // One is under way, and two wait.
    server::ends(async {
        while reads.iter().filter(|read| read.is_finished()).count() < 7 {
            server::look_again().await;
        }
    })
    .await;
    proxy.pass();
    let mut throttled = 0;
    for read in reads {
        if let Err(error) = read.await.unwrap() {
            assert_eq!(error.class(), ErrorClass::Throttled, "{error}");
            throttled += 1;
        }
    }
    assert_eq!(throttled, 7, "one is under way, two wait, and so many were throttled");
    again(|| store.get(KEY)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_requests_keep_their_connections_and_lose_no_place() {
    let (postgres, proxy) = by_proxy(shared().connections(2)).await;
    let store = postgres.store();
    for i in 0..200_u32 {
        let polls = i % 4;
        let request: std::pin::Pin<Box<dyn Future<Output = ()> + Send>> = match i % 2 {
            0 => Box::pin(async { drop(store.get(KEY).await) }),
            _ => Box::pin(async { drop(put(&store, "r").await) }),
        };
        let _ = tokio::time::timeout(Duration::from_micros(u64::from(polls) * 100), request).await;
    }
    for i in 0..20 {
        let row = format!("after {i}");
        again(|| put(&store, &row)).await;
    }
    assert!(proxy.accepted() <= 4, "{} connections for two places", proxy.accepted());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_that_meet_share_a_request_and_each_has_its_own_answer() {
    // Neither new connections nor the preparation of statements are counted.
    let (postgres, proxy) = by_proxy(shared().connections(2).prepare(false)).await;
    let store = Arc::new(postgres.store());
    store.insert(KEY, "x").await.unwrap();
    let before = proxy.round_trips();
    proxy.delay(Duration::from_millis(20));
    let writes = (0..100).map(|i| {
        let store = store.clone();
        async move {
            // Every tenth is refused.
            let row = if i % 10 == 0 { "r".to_owned() } else { format!("row {i}") };
            (i, store.insert(Key::new("p", &row), i.to_string()).await)
        }
    });
    for (i, answer) in proxy.meet(writes).await {
        match answer {
            Ok(_) => assert_ne!(i % 10, 0),
            Err(error) => assert!(i % 10 == 0 && error.is_conflict(), "{i}: {error}"),
        }
    }
    let requests = proxy.round_trips() - before;
    assert!(requests <= 12, "100 writes took {requests} requests");
    proxy.delay(Duration::ZERO);
    assert_eq!(store.get(Key::new("p", "row 99")).await.unwrap().unwrap().value, "99");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_that_meet_share_a_request_and_large_records_come_as_well() {
    let (postgres, proxy) = by_proxy(shared().connections(2).prepare(false)).await;
    let store = Arc::new(postgres.store());
    let value = |i: u32| i.to_string().repeat(if i % 10 == 3 { 300_000 } else { 1 });
    for i in 0..40 {
        store.insert(Key::new("p", &format!("row {i}")), value(i)).await.unwrap();
    }
    let before = proxy.round_trips();
    proxy.delay(Duration::from_millis(20));
    let reads = (0..100_u32).map(|i| {
        let store = store.clone();
        // Most rows are missing.
        async move { (i, store.get(Key::new("p", &format!("row {i}"))).await.unwrap()) }
    });
    for (i, found) in proxy.meet(reads).await {
        assert_eq!(found.map(|record| record.value), (i < 40).then(|| value(i).into()), "row {i}");
    }
    let requests = proxy.round_trips() - before;
    assert!(requests <= 12, "100 reads took {requests} requests");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn puts_that_meet_share_a_request_and_each_has_its_own_answer() {
    // Neither new connections nor the preparation of statements are counted.
    let (postgres, proxy) = by_proxy(shared().connections(2).prepare(false)).await;
    let store = Arc::new(postgres.store());
    let known = store.insert(KEY, "x").await.unwrap();
    let other = store.insert(Key::new("p", "other"), "x").await.unwrap();
    let before = proxy.round_trips();
    proxy.delay(Duration::from_millis(20));
    let puts = (0..100).map(|i| {
        let store = store.clone();
        async move {
            // Of the replacements of one row all but one are refused, the other puts are to new rows and twice to one.
            let (row, when) = match i % 10 {
                0 => ("r".to_owned(), Precondition::Version(known).into()),
                1 => ("other".to_owned(), Precondition::Version(known).into()),
                _ => (format!("row {}", i / 2), PutOptions::new()),
            };
            (i, store.put(Key::new("p", &row), i.to_string().into(), when).await)
        }
    });
    let (mut replaced, mut versions) = (0, std::collections::BTreeSet::new());
    for (i, answer) in proxy.meet(puts).await {
        match answer {
            Ok(version) => {
                assert!(i % 10 != 1 && version > other && versions.insert(version), "{i}: {version:?}");
                replaced += usize::from(i % 10 == 0);
            }
            Err(error) => assert!(i % 10 < 2 && error.is_conflict(), "{i}: {error}"),
        }
    }
    assert_eq!((replaced, versions.len()), (1, 81));
    let requests = proxy.round_trips() - before;
    assert!(requests <= 40, "100 puts took {requests} requests");
    assert_eq!(store.get(Key::new("p", "other")).await.unwrap().unwrap().version, other);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_is_told_of_a_gap_after_each_lost_connection() {
    let server = server::Postgres::start();
    let postgres = connect(&PostgresConfig::at(server.url()).schema(new_schema())).await;
    let notifier = postgres.notifier();
    let mut notices = notifier.subscribe("t").await.unwrap();
    for round in 0..3 {
        server.restart();
        assert_eq!(server::ends(notices.recv()).await, Notice::Gap, "round {round}");
        while notifier.publish("t", format!("{round}").into()).await.is_err() {
            server::look_again().await;
        }
        assert_eq!(server::ends(notices.recv()).await, Notice::Message(format!("{round}").into()));
    }
}
