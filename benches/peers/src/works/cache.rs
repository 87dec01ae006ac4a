//! Caches: get-or-load, hits and misses.
//!
//! Keys and values are `u64`. A hit goes round 1,000 keys that are there. A miss loads a key that never came before, and evicts another.
//! steadfast's entries expire, and its loads are guarded against invalidations; the others' do not expire unless said.

use super::{Subject, Work, beside, instance, leak, ours, poll_loop, rival};
use std::cell::Cell;
use std::convert::Infallible;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;
use steadfast::cache_aside::{CacheAside, CacheAsideConfig};
use steadfast::time::Clock;

pub const HIT: Work =
    Work { name: "cache_hit", about: "get-or-load of a key that is there", subjects: hit, light: true };
pub const MISS: Work =
    Work { name: "cache_miss", about: "get-or-load of a key that is not there", subjects: miss, light: false };

const KEYS: u64 = 1_000;
const CAPACITY: usize = 10_000;

/// The keys that a worker asks for: round those that are there, or ever new ones, other than other workers'.
fn keys(misses: bool, thread: usize) -> impl Fn() -> u64 {
    let next = Cell::new(if misses { (thread as u64 + 1) << 40 } else { 0 });
    move || {
        let key = next.get();
        next.set(if misses { key + 1 } else { (key + 1) % KEYS });
        key
    }
}

fn steadfast(clock: &Clock, config: CacheAsideConfig) -> &'static CacheAside<u64, u64> {
    let cache = CacheAside::builder(config.capacity(CAPACITY as u64)).clock(clock).build();
    let cache = cache.expect("a valid configuration");
    cache.prime((0..KEYS).map(|key| (key, key)));
    leak(cache)
}

fn hit() -> Vec<Subject> {
    subjects(false)
}

fn miss() -> Vec<Subject> {
    subjects(true)
}

fn subjects(misses: bool) -> Vec<Subject> {
    let by_clock = move |clock: Clock| {
        let cache =
            steadfast(&clock, CacheAsideConfig::default().ttl(Duration::from_secs(3600)).jitter(Duration::ZERO));
        instance(move |thread| {
            let keys = keys(misses, thread);
            poll_loop(async move || {
                let key = keys();
                black_box(cache).get_or_load(&key, || async move { Ok::<u64, Infallible>(key) }).await
            })
        })
    };
    let mut all = vec![
        ours("steadfast (quanta clock)", move || by_clock(Clock::quanta())),
        beside("steadfast (tokio clock)", move || by_clock(Clock::tokio())),
        // No expiry, no guard.
        rival("quick_cache 0.7", move || {
            let cache = leak(quick_cache::sync::Cache::<u64, u64>::new(CAPACITY));
            (0..KEYS).for_each(|key| cache.insert(key, key));
            instance(move |thread| {
                let keys = keys(misses, thread);
                poll_loop(async move || {
                    let key = keys();
                    black_box(cache).get_or_insert_async(&key, async move { Ok::<u64, Infallible>(key) }).await
                })
            })
        }),
        // With a time to live; no guard.
        beside("moka 0.12 future", move || {
            let cache = moka::future::Cache::<u64, u64>::builder().max_capacity(CAPACITY as u64);
            let cache = leak(cache.time_to_live(Duration::from_secs(3600)).build());
            super::super::harness::runtime().block_on(async {
                for key in 0..KEYS {
                    cache.insert(key, key).await;
                }
            });
            instance(move |thread| {
                let keys = keys(misses, thread);
                poll_loop(async move || {
                    let key = keys();
                    black_box(cache).try_get_with(key, async move { Ok::<u64, Arc<Infallible>>(key) }).await
                })
            })
        }),
    ];
    if !misses {
        // No expiry, no guard. (It loads in a task of the runtime, which nobody turns here: so it has no miss.)
        all.push(beside("foyer 0.22", move || {
            let cache: &foyer::Cache<u64, u64> = leak(foyer::CacheBuilder::new(CAPACITY).build());
            (0..KEYS).for_each(|key| drop(cache.insert(key, key)));
            instance(move |thread| {
                let keys = keys(misses, thread);
                poll_loop(async move || {
                    let key = keys();
                    black_box(cache)
                        .get_or_fetch(&key, || async move { Ok::<u64, std::io::Error>(key) })
                        .await
                        .map(|entry| *entry.value())
                })
            })
        }));
    }
    all
}
