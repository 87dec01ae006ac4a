//! Round trips and bytes of each operation, through a proxy that counts; and what is left behind.
use std::time::Duration;

use steadfast::{
    lease::{Acquired, Lease},
    notify::Notifier,
    port::Capability,
    queue::{Message, Queue, QueueExt, Receive, Settle},
    store::{Key, Precondition, PutOptions, Scan, Store, StoreExt},
};

use super::{connect, prefix, run};
use crate::server::{self, Lane, Proxy};

const TERM: Duration = Duration::from_secs(60);

/// Runs an operation twice, and returns the round trips and bytes of the second time.
async fn cost(proxy: &Proxy, operation: impl AsyncFn(u32)) -> (u64, u64, u64) {
    operation(1).await;
    // What the first one has left is read.
    server::pass(Duration::from_millis(50)).await;
    let read = || (proxy.round_trips(), proxy.bytes(Lane::Requests), proxy.bytes(Lane::Replies));
    let before = read();
    operation(2).await;
    let after = read();
    (after.0 - before.0, after.1 - before.1, after.2 - before.2)
}

#[test]
fn each_operation_has_few_round_trips_of_few_bytes() {
    run(async {
        let proxy = Proxy::start(server::Nats::shared().port());
        let nats = connect(format!("nats://127.0.0.1:{}", proxy.port()), &prefix()).await;
        let (store, lease, notifier, queue) =
            (&nats.store(), &nats.lease(), &nats.notifier(), &nats.queue("jobs").await.unwrap());
        let body = || bytes::Bytes::from(vec![7; 100]);
        let key = Key::new("orders", "42");
        store.insert(key, body()).await.unwrap();
        // The time of the server is known.
        queue.depth().await.unwrap();
        // Round trips, and bytes in both directions, at most.
        let costs = [
            ("get", 1, 700, cost(&proxy, async |_| drop(store.get(key).await.unwrap())).await),
            (
                "put",
                1,
                450,
                cost(&proxy, async |_| {
                    store.put(key, body(), Precondition::Any.into()).await.unwrap();
                })
                .await,
            ),
            (
                "replace",
                2,
                1_200,
                cost(&proxy, async |_| {
                    let version = store.get(key).await.unwrap().unwrap().version;
                    store.replace(key, body(), version).await.unwrap();
                })
                .await,
            ),
            (
                "fenced put",
                2,
                1_300,
                cost(&proxy, async |i| {
                    let options = PutOptions::new().fence(steadfast::port::FencingToken::new(u64::from(i)));
                    store.put(Key::new("orders", "fenced"), body(), options).await.unwrap();
                })
                .await,
            ),
            (
                "page of 2 rows",
                8,
                5_000,
                cost(&proxy, async |_| {
                    assert_eq!(store.scan(&Scan::partition("orders")).await.unwrap().rows.len(), 2);
                })
                .await,
            ),
            (
                "acquire and release",
                3,
                2_500,
                cost(&proxy, async |i| {
                    let name = format!("job {i}");
                    let Acquired::Granted(token) = lease.acquire(&name, "a", TERM).await.unwrap() else {
                        panic!("it is free")
                    };
                    lease.release(&name, "a", token).await.unwrap();
                })
                .await,
            ),
            ("publish", 2, 350, cost(&proxy, async |_| notifier.publish("t", body()).await.unwrap()).await),
            ("send", 1, 700, cost(&proxy, async |_| drop(queue.send_one(Message::new(body())).await.unwrap())).await),
            (
                "send of 100",
                1,
                45_000,
                cost(&proxy, async |_| {
                    queue.send((0..100).map(|_| Message::new(body())).collect()).await.unwrap();
                })
                .await,
            ),
            (
                "receive and complete 100",
                // A pull, the claims, what hides the messages, the ends of the claims and the acknowledgements. Those of many
                // messages are sent in several parts.
                60,
                200_000,
                cost(&proxy, async |_| {
                    let taken = queue.receive(Receive::new(100, TERM)).await.unwrap();
                    assert_eq!(taken.len(), 100);
                    let all = taken.into_iter().map(|delivery| (delivery.receipt, Settle::Complete)).collect();
                    assert!(queue.settle(all).await.unwrap().iter().all(Result::is_ok));
                })
                .await,
            ),
        ];
        for (name, trips, bytes, (round_trips, sent, received)) in costs {
            println!("{name}: {round_trips} round trips, {sent} bytes sent, {received} received");
            assert!(round_trips <= trips, "{name}: {round_trips} round trips");
            assert!(sent + received <= bytes, "{name}: {sent} + {received} bytes");
        }
    });
}

#[test]
fn a_queue_that_is_used_for_long_leaves_nothing_behind() {
    run(async {
        let server = server::Nats::start();
        let queue = connect(server.url(), "long").await.queue("jobs").await.unwrap();
        let body = bytes::Bytes::from(vec![b'x'; 10_000]);
        for _ in 0..20 {
            queue.send((0..50).map(|_| Message::new(body.clone())).collect()).await.unwrap();
            let taken = queue.receive(Receive::new(50, TERM)).await.unwrap();
            let all = taken.into_iter().map(|delivery| (delivery.receipt, Settle::Complete)).collect();
            assert!(queue.settle(all).await.unwrap().iter().all(Result::is_ok));
        }
        for stream in server.streams() {
            let info = server.request(&format!("$JS.API.STREAM.INFO.{stream}"), "").unwrap();
            assert!(info.contains(r#""messages":0,"#), "{info}");
        }
    });
}

#[test]
fn deleted_records_and_old_versions_take_no_room() {
    run(async {
        let server = server::Nats::start();
        let nats = connect(server.url(), "room").await;
        let store = nats.store();
        for i in 0..50 {
            store.put(Key::new("p", "same"), vec![b'x'; 10_000].into(), Precondition::Any.into()).await.unwrap();
            let row = i.to_string();
            store.insert(Key::new("p", &row), vec![b'x'; 10_000]).await.unwrap();
            assert!(store.delete(Key::new("p", &row), Precondition::Any.into()).await.unwrap());
        }
        assert!(store.capabilities().has(Capability::OrderedVersions));
        let info = server.request("$JS.API.STREAM.INFO.room_store", "").unwrap();
        let bytes: u64 = info.split_once(r#""bytes":"#).unwrap().1.split([',', '}']).next().unwrap().parse().unwrap();
        // One record, and 50 marks of deleted ones.
        assert!(bytes < 10_000 + 50 * 200, "{bytes} bytes");
        assert_eq!(store.scan_all(Scan::partition("p")).await.unwrap().len(), 1);
    });
}
