//! Round trips and bytes of each operation, through a proxy that counts.
use std::time::Duration;

use steadfast::{
    lease::{Acquired, Lease},
    notify::Notifier,
    store::{Key, Precondition, PutOptions, Scan, Store, StoreExt, Write},
};

use super::{connect, prefix, run};
use crate::server::{self, Lane, Proxy};

const TERM: Duration = Duration::from_secs(60);

/// Runs an operation twice: the server learns its script in the first. Returns the second's round trips and bytes.
async fn cost(proxy: &Proxy, operation: impl AsyncFn(u32)) -> (u64, u64, u64) {
    operation(1).await;
    let read = || (proxy.round_trips(), proxy.bytes(Lane::Requests), proxy.bytes(Lane::Replies));
    let before = read();
    operation(2).await;
    let after = read();
    (after.0 - before.0, after.1 - before.1, after.2 - before.2)
}

#[test]
fn each_operation_is_one_round_trip_of_few_bytes() {
    run(async {
        let proxy = Proxy::start(server::Redis::shared().port());
        let redis = connect(format!("redis://127.0.0.1:{}", proxy.port()), &prefix()).await;
        let (store, lease, notifier) = (redis.store(), redis.lease(), redis.notifier());
        let (store, lease, notifier) = (&store, &lease, &notifier);
        let body = || bytes::Bytes::from(vec![7; 100]);
        store.insert(Key::new("orders", "42"), body()).await.unwrap();
        let costs = [
            ("get", 300, cost(&proxy, async |_| drop(store.get(Key::new("orders", "42")).await.unwrap())).await),
            (
                "put",
                500,
                cost(&proxy, async |_| {
                    let options = PutOptions::from(Precondition::Any).ttl(TERM);
                    store.put(Key::new("orders", "42"), body(), options).await.unwrap();
                })
                .await,
            ),
            (
                "delete",
                350,
                cost(&proxy, async |_| {
                    store.delete(Key::new("orders", "42"), Precondition::Any.into()).await.unwrap();
                })
                .await,
            ),
            (
                "batch of 10",
                2300,
                cost(&proxy, async |i| {
                    let put = |row| Write::put(format!("{row}-{i}"), body(), Precondition::Absent);
                    store.batch("orders", (0..10).map(put).collect()).await.unwrap();
                })
                .await,
            ),
            (
                "append",
                420,
                cost(&proxy, async |_| {
                    store.batch("orders", vec![Write::append("log/", body())]).await.unwrap();
                })
                .await,
            ),
            (
                "page of 20",
                3600,
                cost(&proxy, async |_| drop(store.scan(&Scan::partition("orders").limit(20)).await.unwrap())).await,
            ),
            (
                "acquire",
                200,
                cost(&proxy, async |i| {
                    let name = format!("n{i}");
                    assert!(matches!(lease.acquire(&name, "a", TERM).await.unwrap(), Acquired::Granted(_)));
                })
                .await,
            ),
            ("publish", 250, cost(&proxy, async |_| notifier.publish("t", body()).await.unwrap()).await),
        ];
        for (operation, limit, (round_trips, sent, received)) in costs {
            println!("{operation}: {round_trips} round trip, {sent} bytes sent, {received} received");
            assert_eq!(round_trips, 1, "{operation}");
            assert!(sent + received <= limit, "{operation}: {} bytes", sent + received);
        }
    });
}

#[test]
fn writes_that_meet_share_round_trips() {
    run(async {
        let proxy = Proxy::start(server::Redis::shared().port());
        let redis = connect(format!("redis://127.0.0.1:{}", proxy.port()), &prefix()).await;
        let store = redis.store();
        store.insert(Key::new("p", "first"), "x").await.unwrap();
        proxy.delay(Duration::from_millis(20));
        let before = proxy.round_trips();
        let writers: Vec<_> = (0..64)
            .map(|i| {
                let store = store.clone();
                tokio::spawn(async move { store.insert(Key::new("p", &i.to_string()), "x").await.map(drop) })
            })
            .collect();
        for writer in writers {
            writer.await.unwrap().unwrap();
        }
        let round_trips = proxy.round_trips() - before;
        println!("64 concurrent puts: {round_trips} round trips");
        assert!(round_trips <= 16, "{round_trips}");
    });
}

#[test]
fn a_record_takes_some_hundred_bytes_of_memory() {
    run(async {
        const ROWS: usize = 5000;
        let server = server::Redis::start();
        let store = connect(server.url(), "memory").await.store();
        store.insert(Key::new("p", "first"), "x").await.unwrap();
        let used = || {
            let info = server.command(&["INFO", "memory"]);
            let line = info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
            line.trim().parse::<usize>().unwrap()
        };
        let before = used();
        for chunk in 0..ROWS / 500 {
            let put = |i| Write::put(format!("order-{:04}", chunk * 500 + i), vec![7; 100], Precondition::Absent);
            store.batch("p", (0..500).map(put).collect()).await.unwrap();
        }
        // The value has 100 bytes, the row key has 10.
        let each = (used() - before) / ROWS;
        println!("a record of 100 bytes takes {each}");
        assert!(each < 450, "{each}");
    });
}
