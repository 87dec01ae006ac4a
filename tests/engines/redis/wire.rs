//! Round trips and bytes of each operation, through a proxy that counts.
use std::time::Duration;

use steadfast::{
    lease::{Acquired, Lease},
    notify::Notifier,
    port::{Failure, PortErrorKind},
    store::{Key, Precondition, PutOptions, Scan, Store, StoreError, StoreExt, Write},
};

use super::{connect, prefix, run};
use crate::server::{self, Lane, Proxy};

const TERM: Duration = Duration::from_secs(60);

/// Runs an operation twice: the server learns its script in the first. Fails if the second has more than one round trip, or more
/// bytes. On a busy machine a request may arrive in parts, and answers between them: then it runs again, some times.
async fn costs(proxy: &Proxy, operation: &str, limit: u64, run: impl AsyncFn(u32)) {
    run(1).await;
    let read = || (proxy.round_trips(), proxy.bytes(Lane::Requests), proxy.bytes(Lane::Replies));
    for time in 2.. {
        let before = read();
        run(time).await;
        let after = read();
        let (round_trips, sent, received) = (after.0 - before.0, after.1 - before.1, after.2 - before.2);
        if time < 6 && (round_trips != 1 || sent + received > limit) {
            continue;
        }
        println!("{operation}: {round_trips} round trip, {sent} bytes sent, {received} received");
        assert_eq!(round_trips, 1, "{operation}");
        assert!(sent + received <= limit, "{operation}: {} bytes", sent + received);
        return;
    }
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
        let proxy = &proxy;
        costs(proxy, "get", 300, async |_| drop(store.get(Key::new("orders", "42")).await.unwrap())).await;
        costs(proxy, "put", 500, async |_| {
            let options = PutOptions::from(Precondition::Any).ttl(TERM);
            store.put(Key::new("orders", "42"), body(), options).await.unwrap();
        })
        .await;
        costs(proxy, "delete", 350, async |_| {
            store.delete(Key::new("orders", "42"), Precondition::Any.into()).await.unwrap();
        })
        .await;
        costs(proxy, "batch of 10", 2300, async |i| {
            let put = |row| Write::put(format!("{row}-{i}"), body(), Precondition::Absent);
            store.batch("orders", (0..10).map(put).collect()).await.unwrap();
        })
        .await;
        costs(proxy, "append", 420, async |_| {
            store.batch("orders", vec![Write::append("log/", body())]).await.unwrap();
        })
        .await;
        costs(proxy, "page of 20", 3600, async |_| {
            drop(store.scan(&Scan::partition("orders").limit(20)).await.unwrap())
        })
        .await;
        costs(proxy, "acquire", 200, async |i| {
            let name = format!("n{i}");
            assert!(matches!(lease.acquire(&name, "a", TERM).await.unwrap(), Acquired::Granted(_)));
        })
        .await;
        costs(proxy, "publish", 250, async |_| notifier.publish("t", body()).await.unwrap()).await;
    });
}

/// A distant server: each round trip takes 400 ms.
#[test]
fn connecting_takes_few_round_trips_and_bears_slow_ones() {
    run(async {
        let server = server::Redis::start();
        server.command(&["ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all"]);
        let proxy = Proxy::start(server.port());
        proxy.delay(Duration::from_millis(200));
        // The first of a prefix names the data.
        for (user, database, round_trips) in [("", "", [2, 1]), ("app:secret@", "/2", [3, 2])] {
            for expected in round_trips {
                let before = proxy.round_trips();
                let url = format!("redis://{user}127.0.0.1:{}{database}", proxy.port());
                connect(url, "slow").await;
                assert_eq!(proxy.round_trips() - before, expected, "{user:?}");
            }
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
        let writers = (0..64).map(|i| {
            let store = store.clone();
            async move { store.insert(Key::new("p", &i.to_string()), "x").await.map(drop) }
        });
        for written in proxy.meet(writers).await {
            written.unwrap();
        }
        let round_trips = proxy.round_trips() - before;
        println!("64 concurrent puts: {round_trips} round trips");
        assert!(round_trips <= 16, "{round_trips}");
    });
}

#[test]
fn a_read_takes_one_round_trip_but_for_the_first_record_with_an_end() {
    run(async {
        let proxy = Proxy::start(server::Redis::shared().port());
        let store = connect(format!("redis://127.0.0.1:{}", proxy.port()), &prefix()).await.store();
        let (stays, ends) = (Key::new("p", "stays"), Key::new("p", "ends"));
        store.insert(stays, "x").await.unwrap();
        store.put(ends, "x".into(), PutOptions::new().ttl(TERM)).await.unwrap();
        for (key, round_trips) in [(stays, 1), (ends, 2), (ends, 1), (stays, 1)] {
            let before = proxy.round_trips();
            assert!(store.get(key).await.unwrap().is_some());
            assert_eq!(proxy.round_trips() - before, round_trips, "{key}");
        }
    });
}

/// Returns the number of times that the server ran a command.
fn calls(server: &server::Redis, command: &str) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]);
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

#[test]
fn calls_that_meet_share_one_call_of_the_server_and_each_has_its_own_answer() {
    run(async {
        const CALLERS: usize = 64;
        let server = server::Redis::start();
        let proxy = Proxy::start(server.port());
        let store = connect(server.url_at(proxy.port()), "shared").await.store();
        store.insert(Key::new("p", "first"), "x").await.unwrap();
        store.get(Key::new("p", "first")).await.unwrap();
        proxy.delay(Duration::from_millis(20));
        let before = (calls(&server, "evalsha"), calls(&server, "hmget"));
        let all = async |call: fn(steadfast::backend::redis::RedisStore, usize) -> CallFuture| {
            proxy.meet((0..CALLERS).map(|i| call(store.clone(), i))).await
        };
        // Two callers for each row: one of them is refused.
        let inserted = all(|store, i| {
            Box::pin(async move {
                let row = (i / 2).to_string();
                match store.insert(Key::new("p", &row), i.to_string()).await {
                    Ok(version) => Some((row, i.to_string(), version)),
                    Err(StoreError::Conflict { current: Some(_), .. }) => None,
                    Err(error) => panic!("{error}"),
                }
            })
        })
        .await;
        let made: Vec<_> = inserted.into_iter().flatten().collect();
        assert_eq!(made.len(), CALLERS / 2);
        let scripts = calls(&server, "evalsha") - before.0;
        let read = all(|store, i| {
            Box::pin(async move {
                let row = (i / 2).to_string();
                let record = store.get(Key::new("p", &row)).await.unwrap().unwrap();
                Some((row, String::from_utf8(record.value.to_vec()).unwrap(), record.version))
            })
        })
        .await;
        assert!(read.into_iter().flatten().all(|read| made.contains(&read)));
        // Scripts run the same command, but for those that only put.
        let reads = calls(&server, "hmget") - before.1 - scripts;
        println!("{CALLERS} puts: {scripts} calls; {CALLERS} reads: {reads} calls");
        assert!(scripts <= 16 && reads <= 16, "{scripts}, {reads}");
    });
}

type Made = Option<(String, String, steadfast::store::Version)>;
type CallFuture = std::pin::Pin<Box<dyn Future<Output = Made> + Send>>;

#[test]
fn a_full_memory_refuses_of_calls_that_meet_only_those_that_add() {
    run(async {
        let server = server::Redis::start();
        let proxy = Proxy::start(server.port());
        let store = connect(server.url_at(proxy.port()), "full").await.store();
        store.insert(Key::new("p", "old"), "x").await.unwrap();
        proxy.delay(Duration::from_millis(20));
        server.command(&["CONFIG", "SET", "maxmemory", "1"]);
        let callers = (0..32).map(|i| {
            let store = store.clone();
            async move {
                let writes = match i % 2 {
                    0 => vec![Write::put(i.to_string(), "x", PutOptions::new().ttl(TERM))],
                    _ => vec![Write::check_row("none", Precondition::Absent)],
                };
                store.batch("p", writes).await
            }
        });
        for (i, answer) in proxy.meet(callers).await.into_iter().enumerate() {
            match answer {
                Ok(_) => assert_eq!(i % 2, 1, "a put was accepted"),
                Err(error) => {
                    assert_eq!(i % 2, 0, "{error}");
                    assert_eq!(error.backend().unwrap().kind(), PortErrorKind::Full, "{error}");
                    assert!(!error.may_have_been_applied(), "{error}");
                }
            }
        }
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
