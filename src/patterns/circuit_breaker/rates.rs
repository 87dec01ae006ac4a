//! Time windows over which rates are measured.
use std::{sync::OnceLock, time::Duration};

use super::bads::Counts;
use crate::{
    sync::{AtomicU32, AtomicU64, Ordering},
    time::{Instant, nanos},
    window::TimeWindow,
};

/// Time windows, each with a larger one behind it.
///
/// Recording does not lock, so windows that were outgrown are not freed before the breaker is. Each
/// is at least twice as large as the one before it, so together they take at most twice the memory
/// of the largest.
#[derive(Default)]
pub(super) struct Rates(OnceLock<Box<Windows>>);

pub(super) struct Windows {
    pub(super) calls: TimeWindow,
    pub(super) failures: TimeWindow,
    pub(super) slow: TimeWindow,
    span: AtomicU64,
    buckets: AtomicU32,
    /// 1 while a bucket is being halved.
    halves: AtomicU32,
    larger: Rates,
}

impl Rates {
    /// Returns the windows at this depth, if there are any.
    #[inline]
    pub(super) fn at(&self, depth: u32) -> Option<&Windows> {
        let mut windows = self.0.get()?;
        for _ in 0..depth {
            windows = windows.larger.0.get()?;
        }
        Some(windows)
    }

    /// Returns the depth of windows with room for `buckets`, and creates them if there are none.
    pub(super) fn make_room(&self, span: Duration, buckets: u32) -> u32 {
        let (mut rates, mut depth, mut least) = (self, 0, buckets);
        loop {
            let windows = rates.0.get_or_init(|| Box::new(Windows::new(span, buckets, least)));
            if windows.calls.capacity() >= buckets {
                return depth;
            }
            (rates, depth, least) = (&windows.larger, depth + 1, buckets.max(2 * windows.calls.capacity()));
        }
    }
}

impl Windows {
    fn new(span: Duration, buckets: u32, capacity: u32) -> Self {
        let window = || {
            let window = TimeWindow::new(span, capacity);
            window.reshape(span, buckets);
            window
        };
        Self {
            calls: window(),
            failures: window(),
            slow: window(),
            span: AtomicU64::new(nanos(span)),
            buckets: AtomicU32::new(buckets),
            halves: AtomicU32::new(0),
            larger: Rates::default(),
        }
    }

    /// Returns whether an outcome at this time may still lie in the window.
    #[inline]
    pub(super) fn may_hold(&self, at: u64, now: Instant) -> bool {
        now.as_nanos().saturating_sub(at) < self.span.load(Ordering::Relaxed)
    }

    pub(super) fn has_shape(&self, span: Duration, buckets: u32) -> bool {
        self.span.load(Ordering::Relaxed) == nanos(span) && self.buckets.load(Ordering::Relaxed) == buckets
    }

    /// Changes the shape of the windows and empties them.
    pub(super) fn reshape(&self, span: Duration, buckets: u32) {
        self.span.store(nanos(span), Ordering::Relaxed);
        self.buckets.store(buckets, Ordering::Relaxed);
        [&self.calls, &self.failures, &self.slow].iter().for_each(|window| window.reshape(span, buckets));
    }

    pub(super) fn clear(&self) {
        [&self.calls, &self.failures, &self.slow].iter().for_each(|window| window.clear());
    }

    /// Counts a call.
    #[inline]
    pub(super) fn call(&self, generation: u32, now: Instant) {
        if !self.calls.add(generation, now, 1) {
            self.make_room(generation, now);
            // If there is no room again, another thread is halving the bucket. One call of so many is
            // negligible.
            self.calls.add(generation, now, 1);
        }
    }

    /// Counts a failed or slow call. `calls` is increased last, so that a success that sees this
    /// call in its sum sees the rest of it.
    pub(super) fn bad_call(&self, generation: u32, now: Instant, failed: bool, slow: bool) {
        if !self.calls.has_room(generation, now) {
            self.make_room(generation, now);
        }
        if failed {
            self.failures.add(generation, now, 1);
        }
        if slow {
            self.slow.add(generation, now, 1);
        }
        self.calls.add(generation, now, 1);
    }

    /// Halves the buckets of `now`, so that the rates keep their values and go on changing.
    ///
    /// `calls` is halved last: meanwhile the rates are too low, and never too high. One thread
    /// halves at a time; the others do not wait.
    #[cold]
    fn make_room(&self, generation: u32, now: Instant) {
        if self.halves.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return;
        }
        if !self.calls.has_room(generation, now) {
            [&self.failures, &self.slow, &self.calls].iter().for_each(|window| window.halve(generation, now));
        }
        self.halves.store(0, Ordering::Release);
    }

    pub(super) fn counts(&self, generation: u32, now: Instant) -> Counts {
        Counts {
            calls: self.calls.sum(generation, now),
            failures: self.failures.sum(generation, now),
            slow: self.slow.sum(generation, now),
        }
    }
}
