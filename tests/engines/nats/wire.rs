//! Round trips and bytes of each operation, through a proxy that counts; and what is left behind.
use std::{
    collections::BTreeMap,
    ops::Bound::{Excluded, Included},
    time::Duration,
};

use steadfast::{
    lease::{Acquired, Lease},
    notify::Notifier,
    port::Capability,
    queue::{Message, Queue, QueueExt, Receive, Settle},
    store::{InMemoryStore, Key, Precondition, PutOptions, Row, Scan, Sequence, Store, StoreExt, Write},
};

use super::{connect, prefix, run};
use crate::server::{self, Lane, Proxy};

const TERM: Duration = Duration::from_secs(60);
/// Number of times that an operation is run until it costs what it may.
const MOST_TIMES: u32 = 6;

/// Runs an operation twice, and returns the round trips and bytes of the second time. On a busy machine a request may arrive
/// in parts, and answers between them: as long as they are more than so many, it runs again, some times.
async fn cost(proxy: &Proxy, (trips, bytes): (u64, u64), operation: impl AsyncFn(u32)) -> (u64, u64, u64) {
    operation(1).await;
    let read = || (proxy.round_trips(), proxy.bytes(Lane::Requests), proxy.bytes(Lane::Replies));
    for time in 2.. {
        // What the one before has left is read.
        proxy.is_quiet().await;
        let before = read();
        operation(time).await;
        let after = read();
        let cost = (after.0 - before.0, after.1 - before.1, after.2 - before.2);
        if cost.0 <= trips && cost.1 + cost.2 <= bytes || time == MOST_TIMES {
            return cost;
        }
    }
    unreachable!("it returns")
}

/// Fails if an operation has more round trips, or bytes in both directions.
async fn costs(proxy: &Proxy, name: &str, most: (u64, u64), operation: impl AsyncFn(u32)) {
    let (trips, sent, received) = cost(proxy, most, operation).await;
    println!("{name}: {trips} round trips, {sent} bytes sent, {received} received");
    assert!(trips <= most.0, "{name}: {trips} round trips");
    assert!(sent + received <= most.1, "{name}: {sent} + {received} bytes");
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
        // The time of the server is known, and there are enough messages.
        queue.depth().await.unwrap();
        for _ in 0..MOST_TIMES {
            queue.send((0..100).map(|_| Message::new(body())).collect()).await.unwrap();
        }
        let proxy = &proxy;
        costs(proxy, "get", (1, 700), async |_| drop(store.get(key).await.unwrap())).await;
        costs(proxy, "put", (1, 450), async |_| {
            store.put(key, body(), Precondition::Any.into()).await.unwrap();
        })
        .await;
        costs(proxy, "replace", (2, 1_200), async |_| {
            let version = store.get(key).await.unwrap().unwrap().version;
            store.replace(key, body(), version).await.unwrap();
        })
        .await;
        costs(proxy, "fenced put", (2, 1_300), async |i| {
            let options = PutOptions::new().fence(steadfast::port::FencingToken::new(u64::from(i)));
            store.put(Key::new("orders", "fenced"), body(), options).await.unwrap();
        })
        .await;
        costs(proxy, "page of 2 rows", (8, 5_000), async |_| {
            assert_eq!(store.scan(&Scan::partition("orders")).await.unwrap().rows.len(), 2);
        })
        .await;
        costs(proxy, "acquire and release", (3, 2_500), async |i| {
            let name = format!("job {i}");
            let Acquired::Granted(token) = lease.acquire(&name, "a", TERM).await.unwrap() else { panic!("it is free") };
            lease.release(&name, "a", token).await.unwrap();
        })
        .await;
        costs(proxy, "publish", (2, 350), async |_| notifier.publish("t", body()).await.unwrap()).await;
        costs(proxy, "send", (1, 700), async |_| drop(queue.send_one(Message::new(body())).await.unwrap())).await;
        costs(proxy, "send of 100", (1, 45_000), async |_| {
            queue.send((0..100).map(|_| Message::new(body())).collect()).await.unwrap();
        })
        .await;
        // A pull, the claims, what hides the messages, the ends of the claims and the acknowledgements. Those of many
        // messages are sent in several parts.
        costs(proxy, "receive and complete 100", (60, 200_000), async |_| {
            let taken = queue.receive(Receive::new(100, TERM)).await.unwrap();
            assert_eq!(taken.len(), 100);
            let all = taken.into_iter().map(|delivery| (delivery.receipt, Settle::Complete)).collect();
            assert!(queue.settle(all).await.unwrap().iter().all(Result::is_ok));
        })
        .await;
    });
}

/// Puts so many rows as a topic has them, and appends as many to a sequence.
async fn fill(store: &dyn Store, partition: &str, count: u64) {
    let value = || bytes::Bytes::from(vec![7; 100]);
    let numbers: Vec<u64> = (1..=count).collect();
    for some in numbers.chunks(200) {
        let event = |number: &u64| Write::put(format!("e/{number:016x}"), value(), Precondition::Absent);
        let events = some.iter().map(event);
        let effects = some.iter().map(|_| Write::append("log/", value()));
        store.batch(partition, events.chain(effects).collect()).await.unwrap();
    }
    for row in ["h", "h/", "h/0000000000000001", "owner"] {
        store.insert(Key::new(partition, row), value()).await.unwrap();
    }
}

#[test]
fn a_page_of_ten_thousand_events_costs_as_much_as_one_of_a_hundred() {
    run(async {
        let prefix = prefix();
        let proxy = Proxy::start(server::Nats::shared().port());
        let direct = connect(server::Nats::shared().url(), &prefix).await.store();
        let store = connect(server::Nats::shared().url_at(proxy.port()), &prefix).await.store();
        let mut costs = BTreeMap::new();
        for kept in [100_u64, 1_000, 10_000] {
            let partition = format!("topic/{kept}");
            fill(&direct, &partition, kept).await;
            let scan = || Scan::partition(&*partition);
            let event = |number: u64| format!("e/{number:016x}");
            let range = |from, to| scan().range(Included(event(from)), Included(event(to)));
            let log = Sequence::new("log/");
            let scans = [
                ("page of 20 events", range(kept / 2, u64::MAX).limit(20), 20),
                ("the last 5 events", range(kept - 4, u64::MAX).limit(20), 5),
                ("poll of a reader that has read all", range(kept + 1, u64::MAX).limit(20), 0),
                ("the event before an offset", range(0, kept / 2).descending().limit(1), 1),
                ("page of 20 effects", scan().sequence(log, kept / 2).limit(20), 20),
                ("poll of effects", scan().sequence(log, kept).limit(20), 0),
                ("head and tickets", scan().range(Included("h".to_owned()), Excluded("h0".to_owned())), 3),
                ("named rows", scan().named(["h".to_owned(), event(kept)]), 2),
            ];
            for (name, scan, rows) in scans {
                let read = async |_| {
                    let page = store.scan(&scan).await.unwrap();
                    assert_eq!(page.rows.len(), rows, "{name} of {kept}");
                    assert!(page.rows.iter().all(|row| scan.rows.contains(&row.row)), "{name} of {kept}");
                    assert_eq!(page.next.is_some(), rows == 20 || rows == 1, "{name} of {kept}");
                };
                // Numbers of more digits have more filters.
                let limits = |(sent, received): (u64, u64)| (2 * sent + 2_000, received * 5 / 4 + 200);
                let most = costs.get(name).map_or(u64::MAX, |first| limits(*first).0 + limits(*first).1);
                let (trips, sent, received) = cost(&proxy, (3, most), read).await;
                println!("{name} of {kept}: {trips} round trips, {sent} bytes sent, {received} received");
                let (most_sent, most_received) = limits(*costs.entry(name).or_insert((sent, received)));
                assert!(trips <= 3, "{name} of {kept}: {trips} round trips");
                assert!(sent <= most_sent, "{name} of {kept}: {sent} bytes sent");
                assert!(received <= most_received, "{name} of {kept}: {received} bytes received");
            }
        }
    });
}

#[test]
fn pages_of_many_rows_are_those_of_another_store_whatever_was_deleted_and_whatever_the_limit() {
    run(async {
        let nats = connect(server::Nats::shared().url(), &prefix()).await;
        let (store, model) = (nats.store(), InMemoryStore::new());
        let mut rows: Vec<String> = (1..=1_100_u64).map(|i| format!("e/{:016x}", i * i)).collect();
        rows.extend((1..=100_u64).map(|i| format!("e/{:020}", i * 1_000_000_007)));
        rows.extend(
            (1..=40).map(|i| format!("e/{i}")).chain(["e", "e/", "e0", "f/0000000000000001"].map(str::to_owned)),
        );
        for some in rows.chunks(400) {
            let puts = || some.iter().map(|row| Write::put(&**row, "x", Precondition::Any)).collect();
            store.batch("p", puts()).await.unwrap();
            model.batch("p", puts()).await.unwrap();
        }
        for row in rows.iter().take(300).step_by(2).chain(rows.iter().skip(1_000).take(40)) {
            let key = Key::new("p", row);
            store.delete(key, Precondition::Any.into()).await.unwrap();
            model.delete(key, Precondition::Any.into()).await.unwrap();
        }
        let all = |rows: Vec<Row>| rows.into_iter().map(|row| row.row).collect::<Vec<_>>();
        for limit in [1, 64, 500] {
            let from = |i: u64| {
                Scan::partition("p").range(Included(format!("e/{i:016x}")), Included(format!("e/{:016x}", u64::MAX)))
            };
            let below =
                |i: u64| Scan::partition("p").range(Included(format!("e/{:016x}", 0)), Excluded(format!("e/{i:016x}")));
            let whole = [Scan::partition("p").prefix("e/"), Scan::partition("p").prefix("e"), Scan::partition("p")];
            // Their pages read the names of all rows.
            let mut scans: Vec<Scan> = whole.into_iter().filter(|_| limit == 500).collect();
            scans.extend([from(1), from(250_000), from(1_430_000), from(9_000_000), below(300), below(1_000_000)]);
            scans.push(Scan::partition("p").sequence(Sequence::new("e/"), 5_000_000_000));
            for scan in scans {
                let mut scan = scan.limit(limit);
                // With a small limit some pages tell as much as all.
                for is_descending in [false, true] {
                    if is_descending {
                        scan = scan.descending();
                    }
                    if limit > 1 {
                        let found = all(store.scan_all(scan.clone()).await.unwrap());
                        assert_eq!(found, all(model.scan_all(scan.clone()).await.unwrap()), "{scan:?}");
                    } else {
                        let mut page = store.scan(&scan).await.unwrap();
                        while let (true, Some(next)) = (page.rows.is_empty(), page.next.clone()) {
                            page = store.scan(&scan.clone().after(next)).await.unwrap();
                        }
                        assert_eq!(all(page.rows), all(model.scan(&scan).await.unwrap().rows), "{scan:?}");
                    }
                }
            }
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
            // Claims are removed together.
            let (most, size) = if stream.contains("_claims_") { (1_500, 400_000) } else { (0, 0) };
            // The server may still be at it.
            server::wait_until(&format!("{stream} is empty"), || {
                let info = server.api(&format!("STREAM.INFO.{stream}"), "");
                let (messages, bytes) = (info["state"]["messages"].as_u64(), info["state"]["bytes"].as_u64());
                messages <= Some(most) && bytes <= Some(size)
            });
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
