//! Records of a closed breaker: the failures and slow calls of a count window one by one, the
//! weights of failures, and the time windows over which rates are measured.
//!
//! The first two are plain data under the breaker's lock. The time windows are lock-free.
use std::{collections::VecDeque, sync::OnceLock, time::Duration};

use super::super::{CircuitBreakerConfig, state::Word};
use crate::{
    sync::{AtomicU32, AtomicU64, Ordering},
    time::{Instant, nanos},
    window::TimeWindow,
};

/// Failures and slow calls of a count window, oldest first, with their numbers of each, and the
/// weights of failures.
pub(in super::super) struct Bads {
    queue: VecDeque<Bad>,
    failures: u32,
    slow: u32,
    weights: Option<Weights>,
}

pub(in super::super) struct Bad {
    /// Number among the recorded outcomes.
    pub(in super::super) number: u32,
    pub(in super::super) failure: bool,
    pub(in super::super) slow: bool,
}

/// Counts of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Counts {
    pub(in super::super) calls: u64,
    pub(in super::super) failures: u64,
    pub(in super::super) slow: u64,
}

/// Weights of failures, by steps of their period: the number of the step and the sum of its
/// weights, oldest first.
struct Weights {
    period: Duration,
    steps: VecDeque<(u64, u64)>,
}

/// Number of steps of a period in which weights are kept.
const WEIGHT_STEPS: u64 = 10;

impl Weights {
    fn step(&self, now: Instant) -> u64 {
        now.as_nanos() / (nanos(self.period) / WEIGHT_STEPS).max(1)
    }

    fn add(&mut self, now: Instant, weight: u32) {
        let step = self.step(now);
        self.steps.retain(|(at, _)| step.saturating_sub(*at) < WEIGHT_STEPS);
        match self.steps.back_mut() {
            // The time was read under the lock: steps do not decrease.
            Some((at, sum)) if *at >= step => *sum = sum.saturating_add(weight.into()),
            _ => self.steps.push_back((step, weight.into())),
        }
    }

    fn sum(&self, now: Instant) -> u64 {
        let step = self.step(now);
        let live = self.steps.iter().filter(|(at, _)| step.saturating_sub(*at) < WEIGHT_STEPS);
        live.fold(0, |sum, (_, weight)| sum.saturating_add(*weight))
    }
}

impl Bads {
    pub(in super::super) fn new(config: &CircuitBreakerConfig) -> Self {
        let mut bads = Self { queue: VecDeque::new(), failures: 0, slow: 0, weights: None };
        bads.weigh_over(config.trip.weight_period);
        bads
    }

    pub(in super::super) fn push(&mut self, bad: Bad) {
        self.failures += u32::from(bad.failure);
        self.slow += u32::from(bad.slow);
        self.queue.push_back(bad);
    }

    /// Removes entries that are not among the last `size` outcomes, of which `newest` is the last.
    pub(in super::super) fn forget_before(&mut self, newest: u32, size: u32) {
        while let Some(bad) = self.queue.front()
            && newest.wrapping_sub(bad.number) >= size
        {
            self.failures -= u32::from(bad.failure);
            self.slow -= u32::from(bad.slow);
            self.queue.pop_front();
        }
    }

    /// Returns the counts of the window of `size` at `word`, without the entries that successes
    /// have pushed out.
    pub(in super::super) fn counts(&self, word: Word, size: u32) -> Counts {
        let gone = self.queue.iter().take_while(|bad| word.count().wrapping_sub(bad.number) >= size);
        let (failures, slow) = gone.fold((self.failures, self.slow), |(failures, slow), bad| {
            (failures - u32::from(bad.failure), slow - u32::from(bad.slow))
        });
        Counts { calls: word.filled(size).into(), failures: failures.into(), slow: slow.into() }
    }

    /// Returns the number of the newest entry.
    pub(in super::super) fn newest(&self) -> Option<u32> {
        self.queue.back().map(|bad| bad.number)
    }

    /// Lowers the number of every entry by `by`.
    pub(in super::super) fn shift(&mut self, by: u32) {
        self.queue.iter_mut().for_each(|bad| bad.number = bad.number.wrapping_sub(by));
    }

    /// Clears the window, but not the weights.
    pub(in super::super) fn clear_window(&mut self) {
        (self.queue, self.failures, self.slow) = (VecDeque::new(), 0, 0);
    }

    pub(in super::super) fn clear(&mut self) {
        self.clear_window();
        self.weights.iter_mut().for_each(|weights| weights.steps.clear());
    }

    pub(in super::super) fn weigh(&mut self, weight: u32, now: &dyn Fn() -> Instant) {
        if let Some(weights) = &mut self.weights {
            weights.add(now(), weight);
        }
    }

    /// Returns the sum of the weights within the period.
    pub(in super::super) fn weight(&self, now: &dyn Fn() -> Instant) -> Option<u64> {
        self.weights.as_ref().map(|weights| weights.sum(now()))
    }

    /// Sets the period of the weights. An unchanged period keeps them.
    pub(in super::super) fn weigh_over(&mut self, period: Option<Duration>) {
        if self.weights.as_ref().map(|weights| weights.period) != period {
            self.weights = period.map(|period| Weights { period, steps: VecDeque::new() });
        }
    }
}

/// Time windows, each with a larger one behind it.
///
/// Recording does not lock, so windows that were outgrown are not freed before the breaker is. Each
/// is at least twice as large as the one before it, so together they take at most twice the memory
/// of the largest.
#[derive(Default)]
pub(in super::super) struct Rates(OnceLock<Box<Windows>>);

pub(in super::super) struct Windows {
    pub(in super::super) calls: TimeWindow,
    pub(in super::super) failures: TimeWindow,
    pub(in super::super) slow: TimeWindow,
    span: AtomicU64,
    buckets: AtomicU32,
    /// 1 while a bucket is being halved.
    halves: AtomicU32,
    larger: Rates,
}

impl Rates {
    /// Returns the windows at this depth, if there are any.
    #[inline]
    pub(in super::super) fn at(&self, depth: u32) -> Option<&Windows> {
        let mut windows = self.0.get()?;
        for _ in 0..depth {
            windows = windows.larger.0.get()?;
        }
        Some(windows)
    }

    /// Returns the depth of windows with room for `buckets`, and creates them if there are none.
    pub(in super::super) fn make_room(&self, span: Duration, buckets: u32) -> u32 {
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
    pub(in super::super) fn may_hold(&self, at: u64, now: Instant) -> bool {
        now.as_nanos().saturating_sub(at) < self.span.load(Ordering::Relaxed)
    }

    pub(in super::super) fn has_shape(&self, span: Duration, buckets: u32) -> bool {
        self.span.load(Ordering::Relaxed) == nanos(span) && self.buckets.load(Ordering::Relaxed) == buckets
    }

    /// Changes the shape of the windows and empties them.
    pub(in super::super) fn reshape(&self, span: Duration, buckets: u32) {
        self.span.store(nanos(span), Ordering::Relaxed);
        self.buckets.store(buckets, Ordering::Relaxed);
        [&self.calls, &self.failures, &self.slow].iter().for_each(|window| window.reshape(span, buckets));
    }

    pub(in super::super) fn clear(&self) {
        [&self.calls, &self.failures, &self.slow].iter().for_each(|window| window.clear());
    }

    /// Counts a call.
    #[inline]
    pub(in super::super) fn call(&self, generation: u32, now: Instant) {
        if !self.calls.add(generation, now, 1) {
            self.make_room(generation, now);
            // If there is no room again, another thread is halving the bucket. One call of so many is
            // negligible.
            self.calls.add(generation, now, 1);
        }
    }

    /// Counts a failed or slow call. `calls` is increased last, so that a success that sees this
    /// call in its sum sees the rest of it.
    pub(in super::super) fn bad_call(&self, generation: u32, now: Instant, failed: bool, slow: bool) {
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

    pub(in super::super) fn counts(&self, generation: u32, now: Instant) -> Counts {
        Counts {
            calls: self.calls.sum(generation, now),
            failures: self.failures.sum(generation, now),
            slow: self.slow.sum(generation, now),
        }
    }
}
