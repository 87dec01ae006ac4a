//! A rate limit for each tenant, with tiers.
use std::{
    collections::HashMap,
    hash::{BuildHasher, Hasher},
    time::Duration,
};

use proptest::prelude::*;
use steadfast::{
    PolicyKind, Reason,
    throttling::{KeyedRateLimitConfig, KeyedRateLimiter, Quota},
    time::Clock,
};

const MS: fn(u64) -> Duration = Duration::from_millis;

proptest! {
    // Guarantee: throttling 7.
    /// Each key has a bucket of its tier, which refills even if the limiter has forgotten the key.
    #[test]
    fn each_key_equals_a_bucket_of_its_own(
        steps in prop::collection::vec((0u64..6, 0u32..5, 0u64..700, prop::bool::weighted(0.1)), 1..150)
    ) {
        let tiers = [Quota::per_second(4).burst(3), Quota::new(2, MS(300))];
        let default_quota = Quota::per_second(3).burst(1);
        let (clock, time) = Clock::manual();
        let limiter = KeyedRateLimiter::builder(KeyedRateLimitConfig::from(default_quota).tiers(tiers))
            .tier_of(|key: &u64| (key % 4 != 3).then_some((key % 4) as usize)) // tier 2 does not exist: the default
            .clock(&clock)
            .build()
            .unwrap();
        let mut buckets = HashMap::new(); // what is missing of a full bucket, in nanoseconds, and since when
        for (key, n, ms, forget) in steps {
            time.advance(MS(ms));
            if forget {
                limiter.forget_idle();
            }
            let quota = tiers.get((key % 4) as usize).unwrap_or(&default_quota);
            let interval = (quota.per.as_nanos() as u64).div_ceil(quota.permits.into());
            let full = interval * u64::from(quota.largest());
            let (missing, since) = buckets.entry(key).or_insert((0, time.now()));
            *missing = u64::saturating_sub(*missing, (time.now() - *since).as_nanos() as u64);
            *since = time.now();
            let cost = u64::from(n) * interval;
            match limiter.try_acquire_n(&key, n) {
                Ok(()) => {
                    prop_assert!(*missing + cost <= full);
                    *missing += cost;
                }
                Err(e) if n > quota.largest() => {
                    prop_assert_eq!((e.reason(), e.retry_after()), (Reason::TooLarge, None));
                }
                Err(e) => {
                    prop_assert_eq!(e.retry_after(), Some(Duration::from_nanos(*missing + cost - full)));
                }
            }
        }
    }
}

// Guarantee: throttling 1, 7.
/// A permit is available exactly at that time, and not one nanosecond earlier.
#[test]
fn a_keys_retry_after_is_exact() {
    let (clock, time) = Clock::manual();
    let limiter = KeyedRateLimiter::builder(Quota::per_second(3)).name("tenants").clock(&clock).build().unwrap();
    limiter.try_acquire_n(&7, 3).unwrap();
    let rejected = limiter.try_acquire_n(&7, 2).unwrap_err();
    assert_eq!(
        (rejected.by(), rejected.name(), rejected.reason()),
        (PolicyKind::RateLimit, Some("tenants"), Reason::RateLimited)
    );
    let wait = rejected.retry_after().unwrap();
    assert_eq!(wait, Duration::from_nanos(2 * 333_333_334));
    time.advance(wait - Duration::from_nanos(1));
    assert_eq!(limiter.try_acquire_n(&7, 2).unwrap_err().retry_after(), Some(Duration::from_nanos(1)));
    time.advance(Duration::from_nanos(1));
    limiter.try_acquire_n(&7, 2).unwrap();
    assert_eq!(limiter.try_acquire_n(&7, u32::MAX).unwrap_err().reason(), Reason::TooLarge);
}

// Guarantee: throttling 8.
/// A rejected call leaves no entry: asking for too much, or for many keys, uses no memory.
#[test]
fn a_key_that_took_nothing_is_not_remembered() {
    let limiter = KeyedRateLimiter::new(Quota::per_second(3)).unwrap();
    for key in 0..1000 {
        limiter.try_acquire_n(&key, 4).unwrap_err();
        limiter.try_acquire_n(&key, 0).unwrap();
    }
    assert!(limiter.is_empty());
}

/// A clone is the same limiter; a limiter with another clock, name or tiers is a new one.
#[test]
fn a_clone_shares_its_keys() {
    let limiter = KeyedRateLimiter::new(Quota::per_second(1)).unwrap();
    let clone = limiter.clone();
    limiter.try_acquire(&"a").unwrap();
    clone.try_acquire(&"a").unwrap_err();
    assert!(KeyedRateLimiter::<u8>::new(Quota::per_second(1).burst(0)).is_err_and(|e| e.field() == "limit.burst"));
}

// Guarantee: throttling 7.
/// Calls of many threads on a hundred keys: each key gives exactly its burst.
#[test]
fn racing_callers_get_exactly_the_burst_of_each_key() {
    let (clock, _hand) = Clock::manual();
    let limiter = KeyedRateLimiter::builder(Quota::per_second(50)).clock(&clock).build().unwrap();
    let granted: usize = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| (0..20_000u32).filter(|i| limiter.try_acquire(&(i % 100)).is_ok()).count()))
            .collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).sum()
    });
    assert_eq!(granted, 50 * 100);
}

/// A hasher that puts every key into the same shard.
#[derive(Clone)]
struct OneShard;

struct Low(u64);

impl BuildHasher for OneShard {
    type Hasher = Low;
    fn build_hasher(&self) -> Low {
        Low(0)
    }
}

impl Hasher for Low {
    fn finish(&self) -> u64 {
        // SplitMix64 without the bits that choose the shard.
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) & !(0x3f << 48)
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("the keys are numbers");
    }
    fn write_u64(&mut self, key: u64) {
        self.0 = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

// Guarantee: throttling 8.
/// A table that is nearly full of busy keys must not be scanned for every new key, or this test
/// would take minutes.
#[test]
fn a_steady_flow_of_new_keys_stays_quick() {
    let (clock, time) = Clock::manual();
    let limiter = KeyedRateLimiter::builder(Quota::per_second(1)).hasher(OneShard).clock(&clock).build().unwrap();
    let step = Duration::from_nanos(1_000_000_000 / 28_600); // a table that fits 28,672
    for key in 0..150_000u64 {
        limiter.try_acquire(&key).unwrap();
        time.advance(step);
    }
    assert!(limiter.len() < 57_344);
}
