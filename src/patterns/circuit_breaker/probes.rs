//! Probes of a half-open breaker: their results, and the time spent waiting for them.
use std::time::Duration;

use crate::time::Instant;

/// Results and waiting time of the probes. Plain data, kept under the breaker's lock.
///
/// The limit counts only time in which a probe was in flight, since the last result. It detects
/// probes that hang: it does not run out while no calls come. A probe that is dropped leaves its
/// waiting time behind, so that callers that give up do not hide a hang.
///
/// A probe that succeeds after its half-open state has timed out did not hang: calls take longer
/// than the limit. It doubles the limit of later half-open states ([`Patience`]).
#[derive(Default)]
pub(super) struct Probes {
    pub(super) good: u32,
    pub(super) bad: u32,
    in_flight: u32,
    /// Time with a probe in flight since the last result, up to `counted_to`.
    waited: Duration,
    counted_to: Instant,
    /// Limit of `waited`.
    max: Duration,
}

impl Probes {
    /// Starts a cycle with one probe in flight.
    pub(super) fn begin(now: Instant, max: Duration) -> Self {
        Self { in_flight: 1, counted_to: now, max, ..Self::default() }
    }

    /// Adds a probe.
    pub(super) fn admit(&mut self, now: Instant) {
        self.count(now);
        self.in_flight += 1;
    }

    /// Removes a probe without a result.
    pub(super) fn leave(&mut self, now: Instant) {
        self.count(now);
        self.in_flight -= 1;
    }

    /// Removes a probe with a result.
    pub(super) fn record(&mut self, now: Instant, good: bool) {
        self.leave(now);
        self.waited = Duration::ZERO;
        *if good { &mut self.good } else { &mut self.bad } += 1;
    }

    /// Returns whether the probes have hung.
    pub(super) fn hang(&mut self, now: Instant) -> bool {
        self.count(now);
        self.waited >= self.max
    }

    /// Returns the time at which the probes in flight will have hung.
    pub(super) fn deadline(&self) -> Instant {
        self.counted_to + self.max.saturating_sub(self.waited)
    }

    fn count(&mut self, now: Instant) {
        if self.in_flight > 0 {
            self.waited = self.waited.saturating_add(now - self.counted_to);
        }
        // A caller may have read the clock before the previous holder of the lock did.
        self.counted_to = self.counted_to.max(now);
    }
}

/// Largest number of times that the limit is doubled: from 30 s to eight hours.
const DOUBLINGS: u32 = 10;

/// The factor on the time limit of half-open states, learnt from probes that succeeded too late.
#[derive(Default)]
pub(super) struct Patience {
    doublings: u32,
    /// Generations of the first and the last half-open state that timed out since the limit was
    /// doubled.
    timed_out: Option<(u32, u32)>,
}

impl Patience {
    /// Returns the time limit of a half-open state.
    pub(super) fn limit(&self, max: Duration) -> Duration {
        max.saturating_mul(1 << self.doublings)
    }

    /// Records that the half-open state of this generation timed out.
    pub(super) fn timed_out(&mut self, generation: u32) {
        let first = self.timed_out.map_or(generation, |(first, _)| first);
        self.timed_out = Some((first, generation));
    }

    /// Records the success of a probe of an earlier state. `is_between` tells whether a generation
    /// lies between two others.
    pub(super) fn succeeded_late(&mut self, generation: u32, is_between: impl Fn(u32, u32, u32) -> bool) {
        if self.timed_out.is_some_and(|(first, last)| is_between(first, generation, last)) {
            self.doublings = (self.doublings + 1).min(DOUBLINGS);
            self.timed_out = None;
        }
    }
}

/// Naive version of the same, for the model test of the whole breaker.
#[cfg(all(test, not(steadfast_loom)))]
pub(super) mod model {
    use super::{Duration, Instant};

    /// Event in the life of a probe.
    #[derive(Clone, Copy, PartialEq)]
    pub(in super::super) enum Probe {
        Began,
        Dropped,
        Judged,
    }

    /// Returns the number of probes in flight at the end, and the time since the last result during
    /// which any was.
    pub(in super::super) fn waited(log: &[(Instant, Probe)], now: Instant) -> (u32, Duration) {
        let (mut flying, mut waited) = (0, Duration::ZERO);
        for (i, (at, probe)) in log.iter().enumerate() {
            match probe {
                Probe::Began => flying += 1,
                Probe::Dropped => flying -= 1,
                Probe::Judged => (flying, waited) = (flying - 1, Duration::ZERO),
            }
            let next = log.get(i + 1).map_or(now, |(next, _)| *next);
            waited += if flying > 0 { next - *at } else { Duration::ZERO };
        }
        (flying, waited)
    }
}
