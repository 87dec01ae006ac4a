//! Requests and values at their limits, and a server without memory.
use std::{pin::Pin, sync::Arc};

use steadfast::{
    lease::{Acquired, Lease},
    notify::Notifier,
    port::FencingToken,
    queue::{QueueExt, Settle},
    store::{DeleteOptions, Key, Precondition, PutOptions, Scan, Store, Write},
};

use super::*;
use crate::{faults::again, server::Proxy};

/// Settlements that together are too large for one request are divided.
#[test]
fn forwards_that_are_large_together_are_sent_in_several_requests() {
    run(async {
        let proxy = Proxy::start(server::Redis::shared().port());
        let redis = connect(config(server::Redis::shared().url_at(proxy.port())).request_timeout(PATIENCE)).await;
        let (queue, target) = (redis.queue("q").unwrap(), redis.queue("target").unwrap());
        let body = bytes::Bytes::from(vec![7; 15 << 20]);
        for _ in 0..20 {
            send(&queue, "x").await;
        }
        let taken = take(&queue, 20).await;
        let forward = || Settle::forward(vec![(target.address().unwrap(), Message::new(body.clone()))]);
        let settlements = taken.into_iter().map(|taken| (taken.receipt, forward())).collect();
        let before = proxy.round_trips();
        let settled = ends("settling", queue.settle(settlements)).await.unwrap_or_else(|error| panic!("{error}"));
        settled.into_iter().for_each(|settled| settled.unwrap_or_else(|error| panic!("{error}")));
        assert!(proxy.round_trips() - before >= 20, "{} requests", proxy.round_trips() - before);
        assert_eq!(target.depth().await.unwrap().visible, 20);
        target.purge().await.unwrap();
    });
}

/// A leader keeps its lease, and records can be deleted with a token, while the memory is full.
#[test]
fn a_server_without_memory_renews_leases_and_deletes_with_a_token() {
    run(async {
        let server = server::Redis::with(&["--maxmemory", "4mb"]);
        let redis = connect(config(server.url())).await;
        let (store, lease) = (redis.store(), redis.lease());
        let minute = Duration::from_secs(60);
        let Acquired::Granted(token) = lease.acquire("n", "a", minute).await.unwrap() else { panic!("it is free") };
        let fence = || PutOptions::new().fence(FencingToken::new(7));
        let mut written = 0;
        let row = |i: u32| i.to_string();
        while store.put(Key::new("p", &row(written)), vec![7; 100_000].into(), fence()).await.is_ok() {
            written += 1;
        }
        server.command(&["CONFIG", "SET", "maxmemory", "1mb"]);
        lease.renew("n", "a", token, minute).await.unwrap_or_else(|error| panic!("renewing: {error}"));
        lease.request_release("n", token).await.unwrap_or_else(|error| panic!("asking: {error}"));
        let fenced = |token| DeleteOptions::new().fence(FencingToken::new(token));
        for i in 0..written {
            let gone = store.delete(Key::new("p", &row(i)), fenced(8)).await;
            assert!(gone.unwrap_or_else(|error| panic!("deleting: {error}")), "{i}");
        }
        server.command(&["CONFIG", "SET", "maxmemory", "8mb"]);
        let late = store.put(Key::new("p", "0"), "late".into(), fence()).await.unwrap_err();
        assert!(late.to_string().contains('8'), "{late}");
    });
}

/// The largest batch of each kind of write fits into the stack of a script, and so does the longest list of names.
#[test]
fn the_largest_batch_of_each_kind_of_write_is_one_request() {
    run(async {
        let redis = connect(config(server::Redis::shared().url())).await;
        let store = redis.store();
        let rows = || (0..1000).map(|i| format!("row {i:04}"));
        type Make = fn(String) -> Write;
        let kinds: [Make; 5] = [
            |row| Write::put(row, "x", PutOptions::new().fence(FencingToken::new(u64::MAX - 1)).ttl(Duration::MAX)),
            |row| Write::append(row + "/", "x"),
            |_| Write::append("log/", "x"),
            |row| Write::check_row(row + "?", Precondition::Absent),
            |row| Write::delete(row, DeleteOptions::new().fence(FencingToken::new(u64::MAX))),
        ];
        for (at, make) in kinds.into_iter().enumerate() {
            let done = store.batch("p", rows().map(make).collect()).await;
            assert_eq!(done.unwrap_or_else(|error| panic!("{at}: {error}")).len(), 1000);
            let page = store.scan(&Scan::partition("p").named(rows()).limit(usize::MAX)).await.unwrap();
            assert_eq!(page.rows.len(), if at == 4 { 0 } else { 1000 }, "{at}");
        }
    });
}

type Request<'a> = Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>>;

/// Returns one request of each kind; each checks that the answer is its own.
fn requests<'a>(redis: &'a Redis, queue: &'a dyn Queue, i: u32) -> Vec<Request<'a>> {
    fn text(error: impl std::fmt::Display) -> String {
        error.to_string()
    }
    let is =
        move |holds: bool, what: &str| if holds { Ok(()) } else { Err(format!("{i}: another's answer to {what}")) };
    let own = move |what: &str| format!("{what} {i}");
    vec![
        Box::pin(async move {
            let row = own("put");
            redis.store().put(Key::new("p", &row), row.clone().into(), Precondition::Any.into()).await.map_err(text)?;
            let found = redis.store().get(Key::new("p", &row)).await.map_err(text)?;
            is(found.is_some_and(|found| found.value == row), "get")
        }),
        Box::pin(async move {
            let holder = own("holder");
            redis.lease().acquire(&own("lease"), &holder, Duration::from_secs(60)).await.map_err(text)?;
            let held = redis.lease().read(&own("lease")).await.map_err(text)?;
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
        Box::pin(async move { redis.notifier().publish("t", own("notice").into()).await.map_err(text) }),
    ]
}

#[test]
fn a_future_that_is_dropped_at_any_reply_leaves_the_others_their_own_answers() {
    run(async {
        let server = server::Redis::shared();
        let proxy = Proxy::start(server.port());
        let redis = connect(config(server.url_at(proxy.port())).request_timeout(PATIENCE)).await;
        let queue = redis.queue("q").unwrap();
        let kinds = requests(&redis, &queue, 0).len();
        proxy.delay(Duration::from_micros(300));
        for i in 1..=60_u32 {
            for kind in 0..kinds {
                let dropped = requests(&redis, &queue, i).swap_remove(kind);
                let beside = requests(&redis, &queue, 1000 + i).swap_remove((kind + i as usize) % kinds);
                let after = Duration::from_micros(u64::from(i) * 53);
                let both = async { tokio::join!(tokio::time::timeout(after, dropped), beside) };
                ends("the other caller", both).await.1.unwrap();
            }
        }
        proxy.delay(Duration::ZERO);
        for request in requests(&redis, &queue, 5000) {
            ends("a later request", request).await.unwrap();
        }
        assert_eq!(proxy.accepted(), 1, "no request ends the connection");
    });
}

#[test]
fn a_thousand_callers_of_a_server_that_stops_end_in_time_and_go_on_with_it() {
    run(async {
        let server = server::Redis::start();
        let limit = Duration::from_secs(1);
        let config = config(server.url()).request_timeout(limit).connect_timeout(limit);
        let redis = Arc::new(again("connect", || Redis::connect(config.clone())).await.0);
        let queue = Arc::new(redis.queue("q").unwrap());
        let callers = |from: u32| {
            (from..from + 1000)
                .map(|i| {
                    let (redis, queue) = (redis.clone(), queue.clone());
                    tokio::spawn(async move { requests(&redis, &*queue, i).swap_remove(i as usize % 6).await })
                })
                .collect::<Vec<_>>()
        };
        for round in 0..2 {
            server.stop();
            for caller in callers(0) {
                ends("a caller", caller).await.unwrap().expect_err("the server is stopped");
            }
            server.cont();
            ends("the server's return", async {
                while redis.store().get(Key::new("p", "r")).await.is_err() {
                    crate::server::pass(Duration::from_millis(20)).await;
                }
            })
            .await;
            for (number, caller) in (10_000 * (round + 1)..).zip(callers(10_000 * (round + 1))) {
                let mut answer = ends("a caller", caller).await.unwrap();
                // A busy machine may exceed the limit again.
                ends("a caller", async {
                    while let Err(error) = answer {
                        assert!(!error.contains("another's"), "{error}");
                        crate::server::look_again().await;
                        answer = requests(&redis, &*queue, number).swap_remove(number as usize % 6).await;
                    }
                })
                .await;
            }
        }
    });
}
