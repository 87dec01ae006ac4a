//! Futures that are dropped, servers that stop, runtimes that end.
use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use steadfast::{
    backend::postgres::{Postgres, PostgresConfig},
    lease::Lease,
    notify::Notifier,
    port::{ErrorClass, Failure},
    queue::{Message, Queue, QueueExt, Receive},
    store::{Key, Precondition, Scan, Store, StoreExt, Write},
};

use super::{super::*, *};
use crate::{
    faults::again,
    server::{Lane, Proxy},
};

type Request<'a> = Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>>;

/// Returns one request of each kind; each checks that the answer is its own.
fn requests<'a>(postgres: &'a Postgres, queue: &'a dyn Queue, i: u32) -> Vec<Request<'a>> {
    fn text(error: impl std::fmt::Display) -> String {
        error.to_string()
    }
    let is =
        move |holds: bool, what: &str| if holds { Ok(()) } else { Err(format!("{i}: another's answer to {what}")) };
    let own = move |what: &str| format!("{what} {i}");
    vec![
        Box::pin(async move {
            let row = own("put");
            postgres
                .store()
                .put(Key::new("p", &row), row.clone().into(), Precondition::Any.into())
                .await
                .map_err(text)?;
            let found = postgres.store().get(Key::new("p", &row)).await.map_err(text)?;
            is(found.is_some_and(|found| found.value == row), "get")
        }),
        Box::pin(async move {
            let (one, two) = (own("one"), own("two"));
            let writes = vec![Write::put(&*one, "1", Precondition::Any), Write::delete(&*two, Precondition::Any)];
            let done = postgres.store().batch("b", writes).await.map_err(text)?;
            is(done.len() == 2 && done[0].is_some() && done[1].is_none(), "batch")
        }),
        Box::pin(async move {
            let page = postgres.store().scan(&Scan::partition("p").prefix(own("put"))).await.map_err(text)?;
            is(page.rows.iter().all(|row| row.row.starts_with(&own("put"))), "scan")
        }),
        Box::pin(async move {
            let holder = own("holder");
            let name = own("lease");
            postgres.lease().acquire(&name, &holder, Duration::from_secs(60)).await.map_err(text)?;
            let held = postgres.lease().read(&name).await.map_err(text)?;
            is(held.is_some_and(|held| held.holder == holder), "lease")
        }),
        Box::pin(async move {
            queue.send_one(Message::new(own("message"))).await.map_err(text)?;
            let taken = queue.receive(Receive::new(1, Duration::from_secs(600))).await.map_err(text)?;
            for taken in &taken {
                queue.complete(&taken.receipt).await.map_err(text)?;
            }
            is(taken.iter().all(|taken| taken.body.starts_with(b"message ")), "receive")
        }),
        Box::pin(async move { queue.depth().await.map(drop).map_err(text) }),
        Box::pin(async move { queue.peek(3).await.map(drop).map_err(text) }),
        Box::pin(async move { postgres.queue(&own("queue")).await.map(drop).map_err(text) }),
        Box::pin(async move { postgres.notifier().publish("t", own("notice").into()).await.map_err(text) }),
    ]
}

/// Each request is dropped after some of its replies, while others wait with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_future_that_is_dropped_at_any_reply_leaves_the_others_their_own_answers() {
    let server = server::Postgres::shared();
    for prepares in [false, true] {
        let proxy = Proxy::start(server.port());
        let config = shared().url(server.url_at(proxy.port())).connections(2).prepare(prepares);
        let postgres = connect(&config).await;
        let queue = postgres.queue("q").await.unwrap();
        let kinds = requests(&postgres, &queue, 0).len();
        proxy.delay(Duration::from_micros(300));
        for i in 1..=60_u32 {
            for kind in 0..kinds {
                let dropped = requests(&postgres, &queue, i).swap_remove(kind);
                let beside = requests(&postgres, &queue, 1000 + i).swap_remove((kind + i as usize) % kinds);
                let after = Duration::from_micros(u64::from(i) * 53);
                let (_, beside) =
                    ends("the other caller", async { tokio::join!(tokio::time::timeout(after, dropped), beside) })
                        .await;
                beside.unwrap();
            }
        }
        proxy.delay(Duration::ZERO);
        for request in requests(&postgres, &queue, 5000) {
            ends("a later request", request).await.unwrap();
        }
        assert!(proxy.open() <= 3, "{} connections", proxy.open());
    }
}

/// Many more callers than connections, while the server is stopped: each ends in time, and all go on when it continues.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_callers_of_a_server_that_stops_end_in_time_and_go_on_with_it() {
    let server = server::Postgres::start();
    let limit = Duration::from_secs(1);
    let config = PostgresConfig::at(server.url()).request_timeout(limit).connect_timeout(limit).max_waiting(300);
    let postgres = Arc::new(connect_in_haste(&config).await);
    let queue = Arc::new(again("queue", || postgres.queue("q")).await.0);
    for round in 0..2 {
        server.stop();
        let callers: Vec<_> = (0..1000)
            .map(|i| {
                let (postgres, queue) = (postgres.clone(), queue.clone());
                tokio::spawn(async move {
                    let kind = i as usize % 9;
                    requests(&postgres, &*queue, i).swap_remove(kind).await
                })
            })
            .collect();
        for caller in callers {
            ends("a caller", caller).await.unwrap().expect_err("the server is stopped");
        }
        server.cont();
        ends("the server's return", async {
            while postgres.store().get(Key::new("p", "r")).await.is_err() {
                server::look_again().await;
            }
        })
        .await;
        // All places are there again.
        let callers: Vec<_> = (0..200)
            .map(|i| {
                let (postgres, queue) = (postgres.clone(), queue.clone());
                let number = 10_000 * (round + 1) + i;
                tokio::spawn(async move {
                    let make = || requests(&postgres, &*queue, number).swap_remove(i as usize % 9);
                    // A busy machine may exceed the limit again.
                    while let Err(error) = make().await {
                        assert!(!error.contains("another's"), "{error}");
                        server::look_again().await;
                    }
                })
            })
            .collect();
        for caller in callers {
            ends("a caller", caller).await.unwrap();
        }
    }
}

/// A credential that changes does not end connections that work.
#[tokio::test(flavor = "multi_thread")]
async fn while_new_connections_are_refused_those_that_work_go_on() {
    let server = server::Postgres::start();
    server.psql("create role app superuser login password 'old'");
    server.set_hba("host all postgres all trust\nhost all all all scram-sha-256\n");
    server::wait_until("the rules are read", || {
        server.psql("select count(*) from pg_hba_file_rules where auth_method = 'scram-sha-256'") != "0"
    });
    let url = server.url().replace("postgres@", "app:old@");
    // A refusal is slow on a busy machine.
    let postgres = connect(&PostgresConfig::at(url).connect_timeout(Duration::from_secs(30))).await;
    let store = postgres.store();
    store.insert(Key::new("p", "r"), "x").await.unwrap();
    server.psql("alter role app password 'new'");
    let get = || async { store.get(Key::new("p", "r")).await };
    get().await.unwrap();
    // More than the connections that are open.
    let many = futures::future::join_all((0..50).map(|_| get())).await;
    for answer in many.iter().filter_map(|answer| answer.as_ref().err()) {
        assert!(!format!("{answer} {answer:?}").contains("old"), "{answer:?}");
    }
    for _ in 0..50 {
        get().await.unwrap_or_else(|error| panic!("the connection that works is not used: {error}"));
    }
}

/// The runtime ends in the middle of requests; a handle in another one gets an error, and does not hang.
#[test]
fn a_runtime_that_ends_in_the_middle_leaves_no_caller_of_another_one_waiting() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (first, second) = (runtime(), runtime());
    let proxy = Proxy::start(server::Postgres::shared().port());
    let config = shared().url(server::Postgres::shared().url_at(proxy.port())).request_timeout(Duration::from_secs(2));
    let (postgres, queue) = first.block_on(async {
        let postgres = connect_in_haste(&config).await;
        let queue = again("queue", || postgres.queue("q")).await.0;
        (Arc::new(postgres), Arc::new(queue))
    });
    proxy.hold_lane(Lane::Replies);
    let callers = |runtime: &tokio::runtime::Runtime, from: u32| {
        (0..40)
            .map(|i| {
                let (postgres, queue) = (postgres.clone(), queue.clone());
                runtime.spawn(async move { requests(&postgres, &*queue, from + i).swap_remove(i as usize % 9).await })
            })
            .collect::<Vec<_>>()
    };
    let _ended = callers(&first, 0);
    second.block_on(server::pass(Duration::from_millis(200)));
    let others = callers(&second, 100);
    second.block_on(server::pass(Duration::from_millis(200)));
    first.shutdown_timeout(Duration::from_secs(5));
    proxy.pass();
    second.block_on(async {
        for other in others {
            let _ = ends("a caller of the other runtime", other).await.unwrap();
        }
        // The handle goes on in the other runtime, or says why not.
        for request in requests(&postgres, &*queue, 500) {
            let _ = ends("a later request", request).await;
        }
    });
    // A request is dropped outside of any runtime.
    proxy.hold_lane(Lane::Replies);
    let store = postgres.store();
    let mut request = Box::pin(store.get(Key::new("p", "r")));
    second.block_on(async { tokio::time::timeout(Duration::from_millis(50), &mut request).await.unwrap_err() });
    drop(request);
    drop(store);
    drop((postgres, queue));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handle_that_is_dropped_while_requests_run_ends_its_connections_and_no_request() {
    let proxy = Proxy::start(server::Postgres::shared().port());
    let config = shared().url(server::Postgres::shared().url_at(proxy.port()));
    let postgres = connect(&config).await;
    let (store, queue) = (postgres.store(), postgres.queue("q").await.unwrap());
    proxy.delay(Duration::from_millis(20));
    let requests: Vec<_> = (0..30)
        .map(|i| {
            let (store, queue) = (store.clone(), queue.clone());
            tokio::spawn(async move {
                store.insert(Key::new("p", &i.to_string()), "x").await.unwrap();
                queue.send_one(Message::new("x")).await.unwrap();
                queue
                    .receive(Receive::new(1, Duration::from_secs(600)).wait(Duration::from_secs(60)))
                    .await
                    .unwrap()
                    .len()
            })
        })
        .collect();
    drop((postgres, store, queue));
    let mut received = 0;
    for request in requests {
        received += ends("a request", request).await.unwrap();
    }
    assert_eq!(received, 30);
    proxy.delay(Duration::ZERO);
    server::wait_until("the connections end", || proxy.open() == 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_callers_than_may_wait_are_throttled_and_no_place_is_lost() {
    let proxy = Proxy::start(server::Postgres::shared().port());
    let url = server::Postgres::shared().url_at(proxy.port());
    let postgres = connect(&shared().url(url).connections(1).max_waiting(5)).await;
    let store = postgres.store();
    proxy.delay(Duration::from_millis(10));
    for _ in 0..5 {
        // Scans share no request.
        let scan = Scan::partition("p");
        let reads = futures::future::join_all((0..50).map(|_| store.scan(&scan))).await;
        let refused = reads.iter().filter_map(|read| read.as_ref().err()).collect::<Vec<_>>();
        assert_eq!(refused.len(), 44, "one is under way, and five wait");
        assert!(refused.iter().all(|error| error.class() == ErrorClass::Throttled), "{refused:?}");
    }
}
