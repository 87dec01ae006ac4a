//! The machine of one term: what may be done when. Takes `now` as an argument; knows neither async nor tokio.
use std::time::Duration;

use super::LeaderElectionConfig;
use crate::time::Instant;

/// A term as its holder counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Count {
    /// The start of the last call that was granted or renewed.
    since: Instant,
    /// When the next renewal is to begin.
    next: Instant,
}

impl Count {
    /// Granted by a call that began then. `None` where its reply took so long that nothing is left to lead in.
    pub(super) fn granted(config: &LeaderElectionConfig, began: Instant, now: Instant) -> Option<Self> {
        let count = Self { since: began, next: began + config.renew_every };
        (now < count.warning(config)).then_some(count)
    }

    /// Renewed by a call that began then.
    pub(super) fn renewed(&mut self, config: &LeaderElectionConfig, began: Instant) {
        // A reply that comes out of turn tells of an earlier time.
        self.since = self.since.max(began);
        self.next = self.since + config.renew_every;
    }

    /// A renewal failed, or nobody knows: again after so long.
    pub(super) fn failed(&mut self, now: Instant, wait: Duration) {
        self.next = now + wait;
    }

    /// Begins the next renewal at once.
    pub(super) fn hurry(&mut self, now: Instant) {
        self.next = self.next.min(now);
    }

    /// The start of the last call that was granted or renewed.
    pub(super) fn since(&self) -> Instant {
        self.since
    }

    /// When the next renewal is to begin.
    pub(super) fn next_renewal(&self) -> Instant {
        self.next
    }

    /// From when on the holder must not act: `s + L * (1 - r) - margin`.
    pub(super) fn deadline(&self, config: &LeaderElectionConfig) -> Instant {
        self.since + config.usable_term().saturating_sub(config.margin)
    }

    /// When the holder's work is told to end, if it is not renewed before.
    pub(super) fn warning(&self, config: &LeaderElectionConfig) -> Instant {
        self.since + config.usable_term().saturating_sub(config.margin).saturating_sub(config.grace)
    }

    /// How long a renewal that begins now may take: no longer than its result is of use. `None` where it is too late.
    pub(super) fn budget(&self, config: &LeaderElectionConfig, now: Instant) -> Option<Duration> {
        let left = self.warning(config) - now;
        (!left.is_zero()).then(|| left.min(config.call_timeout))
    }
}
