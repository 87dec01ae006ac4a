//! Throttling, behaviour 1: a limit for each tenant, with tiers.
use std::{
    collections::HashMap,
    hash::{BuildHasher, Hasher},
    time::Duration,
};

use proptest::prelude::*;
use steadfast::{
    PolicyKind, Reason,
    throttling::{KeyedRateLimiter, Quota},
    time::Clock,
};

const MS: fn(u64) -> Duration = Duration::from_millis;

proptest! {
    // Guarantee: throttling 1.
    /// Each key has a bucket of its own, of its tier, that fills whether or not the limiter remembers it.
    #[test]
    fn each_key_equals_a_bucket_of_its_own(
        steps in prop::collection::vec((0u64..6, 0u32..5, 0u64..700, prop::bool::weighted(0.1)), 1..150)
    ) {
        let tiers = [Quota::per_second(4).burst(3), Quota::new(2, MS(300))];
        let everybody = Quota::per_second(3).burst(1);
        let (clock, hand) = Clock::manual();
        let limiter = KeyedRateLimiter::new(everybody)
            .unwrap()
            .with_tiers(&tiers, |key: &u64| (key % 4 != 3).then_some((key % 4) as usize)) // 2 is no tier, and is everybody's
            .unwrap()
            .with_clock(&clock);
        let mut buckets = HashMap::new(); // what is missing of a full bucket, in nanoseconds, and since when
        for (key, n, ms, forget) in steps {
            hand.advance(MS(ms));
            if forget {
                limiter.forget_idle();
            }
            let quota = tiers.get((key % 4) as usize).unwrap_or(&everybody);
            let interval = (quota.per.as_nanos() as u64).div_ceil(quota.permits.into());
            let full = interval * u64::from(quota.largest());
            let (missing, since) = buckets.entry(key).or_insert((0, hand.now()));
            *missing = u64::saturating_sub(*missing, (hand.now() - *since).as_nanos() as u64);
            *since = hand.now();
            let cost = u64::from(n) * interval;
            match limiter.check_n(&key, n) {
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

// Guarantee: throttling 1.
/// As the unkeyed one: again exactly then it succeeds, one nanosecond earlier it does not.
#[test]
fn a_keys_retry_after_is_exact() {
    let (clock, hand) = Clock::manual();
    let limiter = KeyedRateLimiter::new(Quota::per_second(3)).unwrap().named("tenants").with_clock(&clock);
    limiter.check_n(&7, 3).unwrap();
    let rejected = limiter.check_n(&7, 2).unwrap_err();
    assert_eq!(
        (rejected.by(), rejected.name(), rejected.reason()),
        (PolicyKind::RateLimit, Some("tenants"), Reason::RateLimited)
    );
    let wait = rejected.retry_after().unwrap();
    assert_eq!(wait, Duration::from_nanos(2 * 333_333_334));
    hand.advance(wait - Duration::from_nanos(1));
    assert_eq!(limiter.check_n(&7, 2).unwrap_err().retry_after(), Some(Duration::from_nanos(1)));
    hand.advance(Duration::from_nanos(1));
    limiter.check_n(&7, 2).unwrap();
    assert_eq!(limiter.check_n(&7, u32::MAX).unwrap_err().reason(), Reason::TooLarge);
}

// Guarantee: throttling 1.
/// A refusal remembers nothing: whoever asks for too much, or in the name of many, takes no memory by it.
#[test]
fn a_key_that_took_nothing_is_not_remembered() {
    let limiter = KeyedRateLimiter::new(Quota::per_second(3)).unwrap();
    for key in 0..1000 {
        limiter.check_n(&key, 4).unwrap_err();
        limiter.check_n(&key, 0).unwrap();
    }
    assert!(limiter.is_empty());
}

// Guarantee: throttling 1.
/// Clones are one limiter; a limiter that gets a clock, a name or tiers is a new one.
#[test]
fn clones_share_their_keys() {
    let limiter = KeyedRateLimiter::new(Quota::per_second(1)).unwrap();
    let clone = limiter.clone();
    limiter.check(&"a").unwrap();
    clone.check(&"a").unwrap_err();
    clone.named("new").check(&"a").unwrap();
    assert!(KeyedRateLimiter::<u8>::new(Quota::per_second(1).burst(0)).is_err_and(|e| e.field() == "burst"));
}

// Guarantee: throttling 1.
/// Two thousand threads' worth of calls on a hundred keys: of each key exactly its burst is given.
#[test]
fn racing_callers_get_exactly_the_burst() {
    let (clock, _hand) = Clock::manual();
    let limiter = KeyedRateLimiter::new(Quota::per_second(50)).unwrap().with_clock(&clock);
    let granted: usize = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| (0..20_000u32).filter(|i| limiter.check(&(i % 100)).is_ok()).count()))
            .collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).sum()
    });
    assert_eq!(granted, 50 * 100);
}

/// Puts every key into the same shard.
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
        // As SplitMix64, without the bits that choose the shard.
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

// Guarantee: throttling 1.
/// A table that is all but full of keys that are not idle must not be looked through for every new key: then this test would
/// take minutes.
#[test]
fn a_steady_flow_of_new_keys_stays_quick() {
    let (clock, hand) = Clock::manual();
    let limiter = KeyedRateLimiter::with_hasher(Quota::per_second(1), OneShard).unwrap().with_clock(&clock);
    let step = Duration::from_nanos(1_000_000_000 / 28_600); // a table that fits 28,672
    for key in 0..150_000u64 {
        limiter.check(&key).unwrap();
        hand.advance(step);
    }
    assert!(limiter.len() < 57_344);
}
