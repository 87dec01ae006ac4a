//! Rate limit, keyed: 10,000 and 1,000,000 u64 keys, looked up in random order; and live heap bytes a key.
//!
//! Every key's quota is 10^9 a second, so that every check is allowed. The order is drawn once from a seeded
//! xorshift; each thread starts at another place of it.

use super::{Instance, Subject, Work, call_loop, instance, leak, rival};
use crate::alloc;
use crate::works::rate_limit::BILLION;
use governor::{Quota, RateLimiter};
use std::hint::black_box;
use std::sync::OnceLock;

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

fn subjects(keys: u64) -> Vec<Subject> {
    vec![
        // GCRA on the time-stamp counter, state in a dashmap.
        rival("governor 0.10 dashmap (quanta)", move || {
            keyed(
                keys,
                || RateLimiter::dashmap(Quota::per_second(BILLION)),
                |limiter, key| limiter.check_key(key).is_ok(),
            )
        }),
        // The same, state in one map behind a mutex.
        rival("governor 0.10 hashmap (quanta)", move || {
            keyed(
                keys,
                || RateLimiter::hashmap(Quota::per_second(BILLION)),
                |limiter, key| limiter.check_key(key).is_ok(),
            )
        }),
    ]
}
