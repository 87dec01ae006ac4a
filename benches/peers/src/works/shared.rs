//! What several callers, keys or processes share: work for a key, breakers by key, a limit and a breaker shared through a store.
//!
//! The store is the one in memory, and the fast path is measured: a limit that takes from its lease, a breaker that is closed.
//! "By hand" is the plainest version that is correct with several threads: without the drop of a caller who drives the work,
//! without expiry of keys, without other processes.

use super::{Subject, Work, instance, leak, operation, ours, poll_loop, rival};
use std::cell::Cell;
use std::collections::HashMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};
use steadfast::circuit_breaker::{
    CircuitBreaker, CircuitBreakerConfig, KeyedBreakers, SharedCircuitBreaker, SharedCircuitBreakerConfig, TripConfig,
};
use steadfast::coalesce::Coalesce;
use steadfast::store::InMemoryStore;
use steadfast::throttling::{Quota, SharedRateLimitConfig, SharedRateLimiter};
use tokio::sync::OnceCell;

pub const COALESCE: Work = Work {
    name: "coalesce",
    about: "work for a key that nobody else asks for, ready at once",
    subjects: coalesce,
    light: true,
};
pub const KEYED_BREAKER: Work = Work {
    name: "keyed_breaker",
    about: "a call that succeeds, through the closed breaker of one of 10,000 keys",
    subjects: keyed_breaker,
    light: true,
};
pub const SHARED_LIMIT: Work = Work {
    name: "shared_limit",
    about: "a permit from the lease of a limit that processes share",
    subjects: shared_limit,
    light: true,
};
pub const SHARED_BREAKER: Work = Work {
    name: "shared_breaker",
    about: "a call that succeeds, through a closed breaker that processes share",
    subjects: shared_breaker,
    light: true,
};

const KEYS: u64 = 10_000;

/// Keys in an order that no cache line follows; each thread begins elsewhere.
fn keys(thread: usize) -> impl Fn() -> u64 {
    let next = Cell::new(thread as u64 * KEYS / 2);
    move || {
        next.set((next.get() + 7_919) % KEYS);
        next.get()
    }
}

fn breaker() -> CircuitBreakerConfig {
    CircuitBreakerConfig::default().count_window(100, 100).trip(TripConfig::default().failure_rate(0.5))
}

fn recloser() -> recloser::AsyncRecloser {
    recloser::Recloser::custom().error_rate(0.5).closed_len(100).half_open_len(10).build().into()
}

fn coalesce() -> Vec<Subject> {
    vec![
        ours("steadfast", || {
            let coalesce = leak(Coalesce::<u64, u32>::new());
            instance(move |thread| {
                let keys = keys(thread);
                poll_loop(async move || {
                    black_box(coalesce).run(&keys(), || async { operation().await.unwrap_or(0) }).await
                })
            })
        }),
        rival("by hand: cells in a map behind a mutex", || {
            let map = leak(Mutex::new(HashMap::<u64, Arc<OnceCell<u32>>>::new()));
            instance(move |thread| {
                let keys = keys(thread);
                poll_loop(async move || {
                    let key = keys();
                    let cell = black_box(map).lock().expect("no panic").entry(key).or_default().clone();
                    let answer = *cell.get_or_init(async || operation().await.unwrap_or(0)).await;
                    map.lock().expect("no panic").remove(&key);
                    answer
                })
            })
        }),
    ]
}

fn keyed_breaker() -> Vec<Subject> {
    vec![
        ours("steadfast", || {
            let breakers = leak(KeyedBreakers::<u64>::new(breaker()).expect("a valid configuration"));
            (0..KEYS).for_each(|key| drop(breakers.get(&key)));
            instance(move |thread| {
                let keys = keys(thread);
                poll_loop(async move || black_box(breakers).call(&keys(), || operation()).await)
            })
        }),
        rival("by hand: reclosers in a map behind a lock", || {
            let all = (0..KEYS).map(|key| (key, Arc::new(recloser())));
            let map = leak(RwLock::new(all.collect::<HashMap<u64, Arc<recloser::AsyncRecloser>>>()));
            let breaker = |key: u64| {
                if let Some(breaker) = map.read().expect("no panic").get(&key) {
                    return breaker.clone();
                }
                map.write().expect("no panic").entry(key).or_insert_with(|| Arc::new(recloser())).clone()
            };
            instance(move |thread| {
                let keys = keys(thread);
                poll_loop(async move || breaker(black_box(keys())).call(operation()).await)
            })
        }),
    ]
}

/// Permits that lapse after a tenth of a second, taken from one number, and renewed from another behind a mutex.
struct Leased {
    since: Instant,
    /// Milliseconds; what is left is void from then on.
    until: AtomicU64,
    left: AtomicI64,
    store: Mutex<(Instant, i64)>,
}

impl Leased {
    fn new() -> Self {
        let store = Mutex::new((Instant::now(), 1_000_000_000));
        Self { since: Instant::now(), until: AtomicU64::new(0), left: AtomicI64::new(0), store }
    }

    fn acquire(&self) -> bool {
        let now = self.since.elapsed().as_millis() as u64;
        (now < self.until.load(Relaxed) && self.left.fetch_sub(1, Relaxed) > 0) || self.renew(now)
    }

    #[cold]
    fn renew(&self, now: u64) -> bool {
        const BATCH: i64 = 100_000_000;
        let mut store = self.store.lock().expect("no panic");
        if store.0.elapsed() >= Duration::from_secs(1) {
            *store = (Instant::now(), 10 * BATCH);
        }
        let granted = store.1.min(BATCH);
        store.1 -= granted;
        self.left.store(granted - 1, Relaxed);
        self.until.store(now + 100, Relaxed);
        granted > 0
    }
}

fn shared_limit() -> Vec<Subject> {
    vec![
        ours("steadfast, leased", || {
            let config = SharedRateLimitConfig::from(Quota::per_second(1_000_000_000));
            let config = config.leased(Duration::from_millis(100));
            let limiter = SharedRateLimiter::new(Arc::new(InMemoryStore::new()), "payments", config);
            let limiter = leak(limiter.expect("a valid configuration"));
            instance(move |_| poll_loop(async move || black_box(limiter).acquire().await))
        }),
        rival("by hand: an atomic number that lapses", || {
            let leased = leak(Leased::new());
            instance(move |_| poll_loop(async move || black_box(leased).acquire()))
        }),
    ]
}

fn shared_breaker() -> Vec<Subject> {
    vec![
        ours("steadfast", || {
            let breaker = CircuitBreaker::new(breaker()).expect("a valid configuration");
            let (store, config) = (Arc::new(InMemoryStore::new()), SharedCircuitBreakerConfig::default());
            let shared = leak(SharedCircuitBreaker::new(breaker, store, "payments", config).expect("a valid one"));
            instance(move |_| poll_loop(async move || black_box(shared).breaker().call(|| operation()).await))
        }),
        // Of one process alone: none is shared.
        rival("recloser 1.4 async", || {
            let breaker = leak(recloser());
            instance(move |_| poll_loop(async move || black_box(breaker).call(operation()).await))
        }),
    ]
}
