//! The time windows that rates are measured over.
use std::{sync::OnceLock, time::Duration};

use super::bads::Counts;
use crate::{
    sync::{AtomicU32, AtomicU64, Ordering},
    time::{Instant, nanos},
    window::TimeWindow,
};

/// The windows, and larger ones behind them: who counts does not lock, so windows that were outgrown are not freed before the
/// breaker is. Each is at least twice as large as the one before it, so they take at most twice what the largest takes.
#[derive(Default)]
pub(super) struct Rates(OnceLock<Box<Windows>>);

pub(super) struct Windows {
    pub(super) calls: TimeWindow,
    pub(super) failures: TimeWindow,
    pub(super) slow: TimeWindow,
    span: AtomicU64,
    buckets: AtomicU32,
    larger: Rates,
}

impl Rates {
    /// The windows at this depth, if there are any.
    #[inline]
    pub(super) fn at(&self, depth: u32) -> Option<&Windows> {
        let mut windows = self.0.get()?;
        for _ in 0..depth {
            windows = windows.larger.0.get()?;
        }
        Some(windows)
    }

    /// The depth of windows that can have so many buckets; they are made if there are none.
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
            larger: Rates::default(),
        }
    }

    /// Whether what came then may still lie in the window.
    #[inline]
    pub(super) fn may_hold(&self, at: u64, now: Instant) -> bool {
        now.as_nanos().saturating_sub(at) < self.span.load(Ordering::Relaxed)
    }

    pub(super) fn has_shape(&self, span: Duration, buckets: u32) -> bool {
        self.span.load(Ordering::Relaxed) == nanos(span) && self.buckets.load(Ordering::Relaxed) == buckets
    }

    /// Gives the windows another shape, and empties them.
    pub(super) fn reshape(&self, span: Duration, buckets: u32) {
        self.span.store(nanos(span), Ordering::Relaxed);
        self.buckets.store(buckets, Ordering::Relaxed);
        [&self.calls, &self.failures, &self.slow].iter().for_each(|window| window.reshape(span, buckets));
    }

    pub(super) fn clear(&self) {
        [&self.calls, &self.failures, &self.slow].iter().for_each(|window| window.clear());
    }

    pub(super) fn counts(&self, generation: u32, now: Instant) -> Counts {
        Counts {
            calls: self.calls.sum(generation, now),
            failures: self.failures.sum(generation, now),
            slow: self.slow.sum(generation, now),
        }
    }
}
