//! Streams that an operator has limited, stores that have lost their end, runtimes that end, dead servers.
use std::{collections::BTreeSet, time::Duration};

use steadfast::{
    backend::nats::{Nats, NatsConfig},
    port::{Failure, PortErrorKind},
    queue::{Message, Queue, QueueError, QueueExt, Receive},
    store::{Key, Precondition, Store, StoreExt},
};

use super::{connect, prefix, run};
use crate::{
    faults::again,
    server::{self, Proxy},
};

const MS: fn(u64) -> Duration = Duration::from_millis;
const MINUTE: Duration = Duration::from_secs(60);

/// Lets a stream begin anew under its old identity, as if a machine had lost what it had not synced.
fn begin_anew(server: &server::Nats, stream: &str) {
    let config = server.api(&format!("STREAM.INFO.{stream}"), "")["config"].take();
    server.api(&format!("STREAM.DELETE.{stream}"), "");
    server.api(&format!("STREAM.CREATE.{stream}"), &config.to_string());
}

fn kind(error: &QueueError) -> Option<PortErrorKind> {
    error.backend().map(|error| error.kind())
}

/// Bounds the stream of a part of the only queue.
fn limit(server: &server::Nats, part: &str, bytes: u64) {
    let stream = server.stream(part);
    let mut config = server.api(&format!("STREAM.INFO.{stream}"), "")["config"].take();
    config["max_bytes"] = bytes.into();
    server.api(&format!("STREAM.UPDATE.{stream}"), &config.to_string());
}

async fn drained(queue: &impl Queue) -> BTreeSet<String> {
    let mut bodies = BTreeSet::new();
    loop {
        let taken = queue.receive(Receive::new(100, MINUTE)).await.unwrap();
        if taken.is_empty() {
            return bodies;
        }
        bodies.extend(taken.iter().map(|taken| String::from_utf8_lossy(&taken.body).into_owned()));
    }
}

#[test]
fn a_read_beside_many_writes_of_its_record_is_answered() {
    run(async {
        let [one, other, third] = server::NatsCluster::shared().servers();
        let prefix = prefix();
        let key = Key::new("p", "busy");
        let tasks = [one, other, third].map(async |server| {
            let store = connect(server.url(), &prefix).await.store();
            let both = (0..8).map(|_| async {
                for i in 0..60 {
                    // A busy machine may change leaders, which refuses writes, too.
                    let written = store.put(key, i.to_string().into(), Precondition::Any.into()).await;
                    let read = store.get(key).await;
                    assert!(written.is_err() || read.is_ok(), "{read:?}");
                }
            });
            futures_util::future::join_all(both).await;
        });
        futures_util::future::join_all(tasks).await;
    });
}

#[test]
fn a_mark_of_a_deleted_record_that_is_another_record_by_now_is_not_removed() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let server = server::Nats::start();
        let nats = connect(server.url(), "swept").await;
        let store = nats.store();
        let of = |row: u32| row.to_string();
        for row in 0..3 {
            store.insert(Key::new("p", &of(row)), "old").await.unwrap();
            assert!(store.delete(Key::new("p", &of(row)), Precondition::Any.into()).await.unwrap());
        }
        begin_anew(&server, "swept_store");
        for row in 10..20 {
            store.insert(Key::new("p", &of(row)), "new").await.unwrap();
        }
        // The marks are due now.
        tokio::time::pause();
        tokio::time::advance(MINUTE * 2).await;
        tokio::time::resume();
        server::ends(async {
            let mut swept = 0;
            while swept < 6 {
                let put = store.put(Key::new("q", "r"), "x".into(), Precondition::Any.into()).await;
                swept += u32::from(put.is_ok());
                server::look_again().await;
            }
        })
        .await;
        for row in 10..20 {
            let found = store.get(Key::new("p", &of(row))).await.unwrap();
            assert_eq!(found.map(|record| record.value), Some("new".into()), "row {row}");
        }
    });
}

#[test]
fn a_runtime_that_ends_leaves_the_handle_usable() {
    let main = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let server = server::Nats::start();
    let queue = main.block_on(async { connect(server.url(), "ended").await.queue("jobs").await.unwrap() });
    // Requests begin on a runtime that ends meanwhile.
    let other = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let held = queue.clone();
    other.block_on(async { assert_eq!(held.depth().await.unwrap().total(), 0) });
    server.stop();
    other.spawn(async move { held.send_one(Message::new("held")).await });
    main.block_on(server::pass(MS(200)));
    other.shutdown_background();
    main.block_on(server::pass(MS(100)));
    server.cont();
    main.block_on(async {
        let sent = server::ends(async {
            while queue.send_one(Message::new("a")).await.is_err() {
                server::look_again().await;
            }
            while queue.depth().await.is_err() {}
        });
        // It would not end if the handle waited for a task that is gone.
        sent.await;
        assert!(queue.receive_one(MINUTE).await.unwrap().is_some());
    });
}

#[test]
fn a_dead_server_among_several_delays_a_connection_and_does_not_refuse_it() {
    run(async {
        let server = server::Nats::shared();
        let dead = [Proxy::start(server.port()), Proxy::start(server.port())];
        let hosts = dead.iter().map(|proxy| {
            proxy.hold();
            format!("127.0.0.1:{}", proxy.port())
        });
        let url = format!("nats://{},127.0.0.1:{}", hosts.collect::<Vec<_>>().join(","), server.port());
        let limited = |url: String| NatsConfig::at(url).prefix(prefix()).connect_timeout(MS(300));
        for _ in 0..6 {
            let (config, mut is_again) = (limited(url.clone()), false);
            // A busy machine may need longer for the server that lives: once, or without the others, too.
            while let Err(error) = Nats::connect(config.clone()).await {
                assert!(!is_again || Nats::connect(limited(server.url())).await.is_err(), "{error}");
                is_again = true;
            }
        }
    });
}

#[test]
fn a_full_queue_is_full_and_drains_when_an_operator_makes_room() {
    run(async {
        let server = server::Nats::start();
        let queue = connect(server.url(), "full").await.queue("jobs").await.unwrap();
        limit(&server, "_queue_", 1_000_000);
        let mut sent = BTreeSet::new();
        let error = loop {
            let body = format!("{:0>20000}", sent.len());
            match queue.send_one(Message::new(body.clone())).await {
                Ok(_) => sent.insert(body),
                Err(error) => break error,
            };
            assert!(sent.len() < 100, "1 MB is never full");
        };
        assert_eq!(kind(&error), Some(PortErrorKind::Full), "{error}");
        assert!(!error.may_have_been_applied(), "{error}");
        limit(&server, "_queue_", 20_000_000);
        assert_eq!(drained(&queue).await, sent);
    });
}

#[test]
fn a_full_store_of_dead_letters_loses_no_letter_and_hides_no_message() {
    run(async {
        let server = server::Nats::start();
        let queue = connect(server.url(), "full").await.queue("jobs").await.unwrap();
        limit(&server, "_dead_", 100_000);
        // What could not be moved is tried again after this time; 30 s would be long for a test.
        let stream = server.stream("_queue_");
        let mut config = server.api(&format!("CONSUMER.INFO.{stream}.work"), "")["config"].take();
        config["ack_wait"] = 1_000_000_000_u64.into();
        let body = serde_json::json!({ "stream_name": stream, "config": config });
        server.api(&format!("CONSUMER.CREATE.{stream}.work"), &body.to_string());
        let bad: BTreeSet<_> = (0..10).map(|i| format!("{i:0>20000}")).collect();
        for body in &bad {
            queue.send_one(Message::new(body.clone())).await.unwrap();
        }
        let mut refused = 0;
        for taken in queue.receive(Receive::new(10, MS(500))).await.unwrap() {
            if let Err(error) = queue.dead_letter(&taken.receipt, "bad").await {
                assert_eq!((kind(&error), error.may_have_been_applied()), (Some(PortErrorKind::Full), true), "{error}");
                refused += 1;
            }
        }
        assert!((1..10).contains(&refused), "{refused} of 10");
        // Those that are on their way are no message for a receiver, and stop none.
        for i in 0..20 {
            queue.send_one(Message::new(format!("good {i}"))).await.unwrap();
            let taken = server::ends(async {
                loop {
                    match queue.receive_one(MINUTE).await {
                        Ok(Some(taken)) => break taken,
                        Ok(None) => server::look_again().await,
                        Err(error) => assert_eq!(kind(&error), Some(PortErrorKind::Full), "{error}"),
                    }
                }
            });
            let taken = taken.await;
            assert_eq!(taken.body, format!("good {i}"));
            queue.complete(&taken.receipt).await.unwrap();
        }
        limit(&server, "_dead_", 20_000_000);
        let letters = queue.dead_letters().unwrap();
        server::ends(async {
            while queue.depth().await.unwrap().total() > 0 {
                assert_eq!(queue.receive(Receive::new(10, MINUTE)).await.unwrap(), []);
                server::look_again().await;
            }
        })
        .await;
        assert_eq!(drained(&letters).await, bad);
    });
}

#[test]
fn handles_that_connect_to_a_new_cluster_at_once_make_one_stream() {
    run(async {
        let [one, other, third] = server::NatsCluster::shared().servers();
        let prefix = prefix();
        let connected = [one, other, third].map(|server| connect(server.url(), &prefix));
        let handles = futures_util::future::join_all(connected).await;
        for round in 0..30 {
            let name = format!("jobs {round}");
            let open = async |handle: &Nats| again("queue", || handle.queue(&name)).await.0.identity();
            let mut opened = futures_util::future::join_all(handles.iter().map(&open)).await;
            // One that comes later.
            opened.push(open(&connect(one.url(), &prefix).await).await);
            assert!(opened.iter().all(|identity| *identity == opened[0]), "round {round}: {opened:?}");
        }
    });
}
