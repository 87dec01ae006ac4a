//! A shared limit over a faulty store: a row that is misread, and conflicts without end.
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use bytes::Bytes;
use steadfast::{
    Reason,
    store::{InMemoryStore, Key, PutOptions, Record, Store, StoreError, StoreFuture, Version},
    throttling::{Quota, SharedRateLimitConfig, SharedRateLimiter, WhenDown},
    time::{Clock, ManualClock, Timestamp},
};

const S: fn(u64) -> Duration = Duration::from_secs;
const WALL: u64 = 1_800_000_000_000;

/// A store that misreads a row on demand, and may answer each write with a conflict.
#[derive(Debug)]
struct Errs {
    store: InMemoryStore,
    misread: Mutex<Option<String>>,
    conflicts: bool,
    asked: AtomicU64,
}

impl Store for Errs {
    forward_store! { store: capabilities, delete, scan, batch }

    fn get<'a>(&'a self, key: Key<'a>) -> StoreFuture<'a, Option<Record>> {
        Box::pin(async move {
            self.asked.fetch_add(1, SeqCst);
            let mut record = self.store.get(key).await?;
            if let (Some(record), Some(text)) = (&mut record, self.misread.lock().unwrap().clone()) {
                record.value = Bytes::from(text);
            }
            Ok(record)
        })
    }
    fn put<'a>(&'a self, key: Key<'a>, value: Bytes, options: PutOptions) -> StoreFuture<'a, Version> {
        Box::pin(async move {
            if self.conflicts {
                return Err(StoreError::Conflict { current: None, write: 0 });
            }
            self.store.put(key, value, options).await
        })
    }
}

fn world(conflicts: bool, config: SharedRateLimitConfig) -> (Arc<Errs>, SharedRateLimiter, ManualClock) {
    let (clock, time) = Clock::manual();
    let store = InMemoryStore::builder().clock(&clock).build();
    let store = Arc::new(Errs { store, misread: Mutex::default(), conflicts, asked: AtomicU64::new(0) });
    let limiter = SharedRateLimiter::builder(store.clone(), "payments", config)
        .clock(&clock)
        .wall_time(Timestamp::from_millis(WALL))
        .build()
        .unwrap();
    (store, limiter, time)
}

fn closed() -> SharedRateLimitConfig {
    SharedRateLimitConfig::from(Quota::per_second(10)).when_down(WhenDown::FailClosed)
}

// Guarantee: throttling 10.
/// One digit more or less, in either number of the row, in one read.
#[test]
fn a_row_that_was_misread_once_stops_a_process_for_some_seconds_at_most() {
    let now = u128::from(WALL) * 1_000_000;
    let (one, many, day) = (now * 2, 9_000_000_000_000_000_000, now + 80_000_000_000_000);
    for (tat, written) in [(many, now), (one, now), (now, many), (many, many), (day, now), (now, day), (day, day)] {
        let (store, limiter, time) = world(false, closed());
        time.block_on(limiter.acquire()).unwrap();
        *store.misread.lock().unwrap() = Some(format!("rate 1 {tat} {written}"));
        let _ = time.block_on(limiter.acquire());
        *store.misread.lock().unwrap() = None;
        time.advance(S(10));
        let again = time.block_on(limiter.acquire());
        assert!(again.is_ok(), "{tat} {written}: {again:?}");
    }
}

// Guarantee: throttling 10.
/// While the row is read so, the store counts as down.
#[test]
fn a_row_that_lies_implausibly_far_ahead_is_damaged() {
    let (store, limiter, time) = world(false, closed());
    time.block_on(limiter.acquire()).unwrap();
    *store.misread.lock().unwrap() = Some("rate 1 9000000000000000000 9000000000000000000".to_owned());
    assert_eq!(time.block_on(limiter.acquire()).unwrap_err().reason(), Reason::StoreDown);
    assert!(limiter.is_store_down());
    let open = world(false, closed().when_down(WhenDown::LocalShare(1.0)));
    *open.0.misread.lock().unwrap() = Some("rate 1 9000000000000000000 9000000000000000000".to_owned());
    let passed = (0..20).filter(|_| open.2.block_on(open.1.acquire()).is_ok()).count();
    assert!((10..=11).contains(&passed), "{passed}");
}

// Guarantee: throttling 10.
#[test]
fn endless_conflicts_yield_the_thread_and_end_with_the_call_time_out() {
    for timeout in [Duration::from_millis(250), Duration::MAX] {
        let (store, limiter, time) = world(true, closed().call_timeout(timeout));
        let start = time.now();
        assert_eq!(time.block_on(limiter.acquire()).unwrap_err().reason(), Reason::StoreDown);
        assert!(time.now() - start <= timeout.min(S(2)), "{:?}", time.now() - start);
        let asked = store.asked.load(SeqCst);
        assert!((20..=1_000).contains(&asked), "{asked}");
    }
}
