//! Rate limit, keyed: 10,000 and 1,000,000 u64 keys, looked up in random order; and live heap bytes a key.
//!
//! Every key's quota is one a minute with a burst of 10^7: every check is allowed, and no key is idle (so that nobody may
//! forget it) while its bytes are counted. The order is drawn once from a seeded
//! xorshift; each thread starts at another place of it.

use super::{Instance, Subject, Work, beside, call_loop, instance, leak, ours, rival};
use crate::alloc;
use governor::{Quota, RateLimiter};
use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::OnceLock;
use steadfast::throttling::KeyedRateLimiter;
use steadfast::time::Clock;

pub const TEN_THOUSAND: Work = Work {
    name: "keyed_10k",
    about: "a check that is allowed, over 10,000 u64 keys in random order",
    subjects: || subjects(10_000),
    light: true,
};
pub const MILLION: Work = Work {
    name: "keyed_1m",
    about: "a check that is allowed, over 1,000,000 u64 keys in random order",
    subjects: || subjects(1_000_000),
    light: false,
};

/// How many look-ups are drawn before the order repeats.
const DRAWS: usize = 1 << 20;

fn order(keys: u64) -> &'static [u64] {
    static TEN_THOUSAND: OnceLock<Vec<u64>> = OnceLock::new();
    static MILLION: OnceLock<Vec<u64>> = OnceLock::new();
    let drawn = if keys == 10_000 { &TEN_THOUSAND } else { &MILLION };
    drawn.get_or_init(|| {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let draw = |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % keys
        };
        (0..DRAWS).map(draw).collect()
    })
}

/// Fills `limiter` with each key once, counting what stays on the heap, and looks keys up in the drawn order.
fn keyed<L: Sync + 'static>(
    keys: u64,
    build: impl FnOnce() -> L,
    check: impl Fn(&L, &u64) -> bool + Copy + Sync + 'static,
) -> Instance {
    let order = order(keys);
    let (limiter, _, bytes) = alloc::count(|| {
        let limiter = leak(build());
        for key in 0..keys {
            assert!(check(limiter, &key), "the quota of a new key is not spent");
        }
        limiter
    });
    let worker = move |thread: usize| {
        let mut at = thread * DRAWS / 2;
        call_loop(move || {
            at = (at + 1) % DRAWS;
            check(black_box(limiter), &order[at])
        })
    };
    Instance { bytes_per_key: Some(bytes as f64 / keys as f64), ..instance(worker) }
}

const BURST: NonZeroU32 = NonZeroU32::new(10_000_000).unwrap();

fn quota() -> Quota {
    Quota::per_minute(NonZeroU32::MIN).allow_burst(BURST)
}

fn steadfast(clock: &Clock) -> KeyedRateLimiter<u64> {
    let quota = steadfast::throttling::Quota::per_minute(1).burst(BURST.get());
    KeyedRateLimiter::builder(quota).clock(clock).build().expect("a valid configuration")
}

fn subjects(keys: u64) -> Vec<Subject> {
    vec![
        ours("steadfast (quanta clock)", move || {
            keyed(keys, || steadfast(&Clock::quanta()), |limiter, key| limiter.try_acquire(key).is_ok())
        }),
        // On the default clock.
        beside("steadfast (tokio clock)", move || {
            keyed(keys, || steadfast(&Clock::tokio()), |limiter, key| limiter.try_acquire(key).is_ok())
        }),
        // GCRA on the time-stamp counter, state in a dashmap.
        rival("governor 0.10 dashmap (quanta)", move || {
            keyed(keys, || RateLimiter::dashmap(quota()), |limiter, key| limiter.check_key(key).is_ok())
        }),
        // The same, state in one map behind a mutex.
        rival("governor 0.10 hashmap (quanta)", move || {
            keyed(keys, || RateLimiter::hashmap(quota()), |limiter, key| limiter.check_key(key).is_ok())
        }),
    ]
}
