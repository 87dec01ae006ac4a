//! The failures and slow calls of a closed breaker, one by one: kept under the breaker's lock, so plain data.
use std::{collections::VecDeque, time::Duration};

use super::{CircuitBreakerConfig, word::Word};
use crate::time::{Instant, nanos};

/// The failures and slow calls of a count window, oldest first, how many there are of each, and what failures weigh.
pub(super) struct Bads {
    queue: VecDeque<Bad>,
    failures: u32,
    slow: u32,
    weights: Option<Weights>,
}

pub(super) struct Bad {
    /// Its number among the recorded outcomes.
    pub(super) number: u32,
    pub(super) failure: bool,
    pub(super) slow: bool,
}

/// What a window holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) calls: u64,
    pub(super) failures: u64,
    pub(super) slow: u64,
}

/// What failures weigh, by steps of their period: the number of a step, and the weight in it, oldest first.
struct Weights {
    period: Duration,
    steps: VecDeque<(u64, u64)>,
}

/// Weights are kept in this many steps of their period.
const WEIGHT_STEPS: u64 = 10;

impl Weights {
    fn step(&self, now: Instant) -> u64 {
        now.as_nanos() / (nanos(self.period) / WEIGHT_STEPS).max(1)
    }

    fn add(&mut self, now: Instant, weight: u32) {
        let step = self.step(now);
        self.steps.retain(|(at, _)| step.saturating_sub(*at) < WEIGHT_STEPS);
        match self.steps.back_mut() {
            // The time was read under the lock: no earlier step comes after a later one.
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

    /// Forgets what is not among the last `size` outcomes, of which `newest` is the last.
    pub(super) fn forget_before(&mut self, newest: u32, size: u32) {
        while let Some(bad) = self.queue.front()
            && newest.wrapping_sub(bad.number) >= size
        {
            self.failures -= u32::from(bad.failure);
            self.slow -= u32::from(bad.slow);
            self.queue.pop_front();
        }
    }

    /// What the window of `size` holds when `word` was read; entries that successes have pushed out since are left out.
    pub(super) fn counts(&self, word: Word, size: u32) -> Counts {
        let gone = self.queue.iter().take_while(|bad| word.count().wrapping_sub(bad.number) >= size);
        let (failures, slow) = gone.fold((self.failures, self.slow), |(failures, slow), bad| {
            (failures - u32::from(bad.failure), slow - u32::from(bad.slow))
        });
        Counts { calls: word.filled(size).into(), failures: failures.into(), slow: slow.into() }
    }

    /// The number of the newest.
    pub(super) fn newest(&self) -> Option<u32> {
        self.queue.back().map(|bad| bad.number)
    }

    /// Numbers them anew, each by so much lower.
    pub(super) fn shift(&mut self, by: u32) {
        self.queue.iter_mut().for_each(|bad| bad.number = bad.number.wrapping_sub(by));
    }

    /// Forgets the window, not the weights.
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

    /// What the failures of the period weigh.
    pub(super) fn weight(&self, now: &dyn Fn() -> Instant) -> Option<u64> {
        self.weights.as_ref().map(|weights| weights.sum(now()))
    }

    /// Weighs failures over this period from now on; over the same as before, it forgets none.
    pub(super) fn weigh_over(&mut self, period: Option<Duration>) {
        if self.weights.as_ref().map(|weights| weights.period) != period {
            self.weights = period.map(|period| Weights { period, steps: VecDeque::new() });
        }
    }
}
