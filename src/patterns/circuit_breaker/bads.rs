//! Failures and slow calls of a closed breaker, one by one. Plain data, kept under the breaker's
//! lock.
use std::{collections::VecDeque, time::Duration};

use super::{CircuitBreakerConfig, word::Word};
use crate::time::{Instant, nanos};

/// Failures and slow calls of a count window, oldest first, with their numbers of each, and the
/// weights of failures.
pub(super) struct Bads {
    queue: VecDeque<Bad>,
    failures: u32,
    slow: u32,
    weights: Option<Weights>,
}

pub(super) struct Bad {
    /// Number among the recorded outcomes.
    pub(super) number: u32,
    pub(super) failure: bool,
    pub(super) slow: bool,
}

/// Counts of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) calls: u64,
    pub(super) failures: u64,
    pub(super) slow: u64,
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
    pub(super) fn new(config: &CircuitBreakerConfig) -> Self {
        let mut bads = Self { queue: VecDeque::new(), failures: 0, slow: 0, weights: None };
        bads.weigh_over(config.trip.weight_period);
        bads
    }

    pub(super) fn push(&mut self, bad: Bad) {
        self.failures += u32::from(bad.failure);
        self.slow += u32::from(bad.slow);
        self.queue.push_back(bad);
    }

    /// Removes entries that are not among the last `size` outcomes, of which `newest` is the last.
    pub(super) fn forget_before(&mut self, newest: u32, size: u32) {
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
    pub(super) fn counts(&self, word: Word, size: u32) -> Counts {
        let gone = self.queue.iter().take_while(|bad| word.count().wrapping_sub(bad.number) >= size);
        let (failures, slow) = gone.fold((self.failures, self.slow), |(failures, slow), bad| {
            (failures - u32::from(bad.failure), slow - u32::from(bad.slow))
        });
        Counts { calls: word.filled(size).into(), failures: failures.into(), slow: slow.into() }
    }

    /// Returns the number of the newest entry.
    pub(super) fn newest(&self) -> Option<u32> {
        self.queue.back().map(|bad| bad.number)
    }

    /// Lowers the number of every entry by `by`.
    pub(super) fn shift(&mut self, by: u32) {
        self.queue.iter_mut().for_each(|bad| bad.number = bad.number.wrapping_sub(by));
    }

    /// Clears the window, but not the weights.
    pub(super) fn clear_window(&mut self) {
        (self.queue, self.failures, self.slow) = (VecDeque::new(), 0, 0);
    }

    pub(super) fn clear(&mut self) {
        self.clear_window();
        self.weights.iter_mut().for_each(|weights| weights.steps.clear());
    }

    pub(super) fn weigh(&mut self, weight: u32, now: &dyn Fn() -> Instant) {
        if let Some(weights) = &mut self.weights {
            weights.add(now(), weight);
        }
    }

    /// Returns the sum of the weights within the period.
    pub(super) fn weight(&self, now: &dyn Fn() -> Instant) -> Option<u64> {
        self.weights.as_ref().map(|weights| weights.sum(now()))
    }

    /// Sets the period of the weights. An unchanged period keeps them.
    pub(super) fn weigh_over(&mut self, period: Option<Duration>) {
        if self.weights.as_ref().map(|weights| weights.period) != period {
            self.weights = period.map(|period| Weights { period, steps: VecDeque::new() });
        }
    }
}
