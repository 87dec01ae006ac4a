//! Housekeeping and the server's clock.
use std::time::Duration;

use steadfast::{
    lease::{Acquired, Lease},
    store::{Key, Precondition, PutOptions, Store, StoreExt, Write},
};

use super::{connect, run};
use crate::server::{self, wait_until};

/// The last version and token of a server whose clock was in the year 2100, and was set right.
const THEN: u64 = 4_102_444_800_000_000;

const SOON: Duration = Duration::from_millis(50);
const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn expired_records_are_deleted_along_with_writes_a_few_at_a_time() {
    run(async {
        let server = server::Redis::start();
        let store = connect(server.url(), "swept").await.store();
        let count = || server.command(&["ZCARD", "swept:s:{p}:index"]).parse::<u64>().unwrap();
        store.insert(Key::new("p", "stays"), "x").await.unwrap();
        // At once: otherwise the writes of a slow machine would delete those before them.
        let ends = |row: u32| Write::put(row.to_string(), "x", PutOptions::new().ttl(SOON));
        store.batch("p", (0..20).map(ends).collect()).await.unwrap();
        let last = Key::new("p", "19");
        while store.get(last).await.unwrap().is_some() {}
        // A write deletes at most two of those that ended.
        let before = count();
        store.put(Key::new("p", "stays"), "y".into(), Precondition::Any.into()).await.unwrap();
        assert_eq!(count(), before - 2);
        for _ in 0..10 {
            store.put(Key::new("p", "stays"), "y".into(), Precondition::Any.into()).await.unwrap();
        }
        assert_eq!(count(), 1);
        assert_eq!(server.command(&["EXISTS", "swept:s:{p}:ends"]), "0");
        // The record's head and value, and the last version.
        assert_eq!(server.command(&["HLEN", "swept:s:{p}:rows"]), "3");
    });
}

#[test]
fn a_partition_whose_records_all_end_is_deleted_without_a_write() {
    run(async {
        let server = server::Redis::start();
        let store = connect(server.url(), "mortal").await.store();
        store.put(Key::new("p", "a"), "x".into(), PutOptions::new().ttl(SOON)).await.unwrap();
        store.put(Key::new("p", "b"), "x".into(), PutOptions::new().ttl(SOON * 2)).await.unwrap();
        let version = store.put(Key::new("p", "c"), "x".into(), PutOptions::new().ttl(SOON)).await.unwrap();
        // One that stays shows the names of the keys.
        store.put(Key::new("q", "a"), "x".into(), PutOptions::new().ttl(HOUR)).await.unwrap();
        let parts = ["rows", "index", "ends"];
        let exists = |partition: &str, part: &str| {
            server.command(&["EXISTS", &format!("mortal:s:{{{partition}}}:{part}")]) == "1"
        };
        assert!(parts.iter().all(|part| exists("q", part)));
        wait_until("the partition is deleted", || !parts.iter().any(|part| exists("p", part)));
        // Its versions go on.
        assert!(store.insert(Key::new("p", "c"), "y").await.unwrap() > version);
    });
}

#[test]
fn a_record_that_stays_keeps_its_partition() {
    run(async {
        let server = server::Redis::start();
        let store = connect(server.url(), "kept").await.store();
        store.put(Key::new("p", "a"), "x".into(), PutOptions::new().ttl(HOUR)).await.unwrap();
        let life = || server.command(&["PTTL", "kept:s:{p}:rows"]).parse::<i64>().unwrap();
        assert!(life() > 0);
        store.insert(Key::new("p", "stays"), "x").await.unwrap();
        for part in ["rows", "index"] {
            assert_eq!(server.command(&["PTTL", &format!("kept:s:{{p}}:{part}")]), "-1", "{part}");
        }
        store.delete(Key::new("p", "stays"), Precondition::Any.into()).await.unwrap();
        store.put(Key::new("p", "b"), "x".into(), PutOptions::new().ttl(HOUR * 2)).await.unwrap();
        assert!(life() > 5_400_000, "{}", life());
        store.put(Key::new("p", "b"), "x".into(), PutOptions::new()).await.unwrap();
        assert_eq!(life(), -1);
    });
}

#[test]
fn versions_grow_although_the_servers_clock_was_set_back() {
    run(async {
        let server = server::Redis::start();
        let redis = connect(server.url(), "back").await;
        server.command(&["HSET", "back:s:{p}:meta", "v", &format!("{THEN:020}")]);
        let (store, key) = (redis.store(), Key::new("p", "r"));
        let mut last = THEN;
        for _ in 0..3 {
            let version = store.insert(key, "x").await.unwrap().as_u64();
            assert!(version > last, "{version} after {last}");
            last = version;
            assert!(store.delete(key, Precondition::Any.into()).await.unwrap());
        }
    });
}

#[test]
fn tokens_grow_although_the_servers_clock_was_set_back() {
    run(async {
        let server = server::Redis::start();
        let lease = connect(server.url(), "back").await.lease();
        server.command(&["HSET", "back:l:{n}:", "token", &format!("{THEN:020}")]);
        let mut last = THEN;
        for _ in 0..3 {
            let granted = lease.acquire("n", "a", HOUR).await.unwrap();
            let Acquired::Granted(token) = granted else { panic!("{granted:?}") };
            assert!(token.as_u64() > last, "{token} after {last}");
            last = token.as_u64();
            lease.release("n", "a", token).await.unwrap();
        }
    });
}
