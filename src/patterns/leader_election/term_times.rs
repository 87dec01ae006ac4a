//! The times of one term: its deadline, the warning before it, and the next renewal. It takes `now`
//! as an argument and knows neither async nor tokio.
use std::time::Duration;

use super::LeaderElectionConfig;
use crate::time::Instant;

/// The times of a term, as its holder counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TermTimes {
    /// Start of the last call that granted or renewed the term.
    since: Instant,
    /// Time at which the next renewal begins.
    next: Instant,
}

impl TermTimes {
    /// Returns the count of a grant whose call began at `began`, or `None` if its reply took so
    /// long that no time to lead is left.
    pub(super) fn granted(config: &LeaderElectionConfig, began: Instant, now: Instant) -> Option<Self> {
        let count = Self { since: began, next: began + config.renew_every };
        (now < count.warning(config)).then_some(count)
    }

    /// Records a successful renewal whose call began at `began`.
    pub(super) fn renewed(&mut self, config: &LeaderElectionConfig, began: Instant) {
        // Replies may arrive out of order: an earlier call must not move the term back.
        self.since = self.since.max(began);
        self.next = self.since + config.renew_every;
    }

    /// Records a renewal that failed or whose outcome is unknown: the next one begins after `wait`.
    pub(super) fn failed(&mut self, now: Instant, wait: Duration) {
        self.next = now + wait;
    }

    /// Moves the next renewal to `now`, if it is later.
    pub(super) fn hurry(&mut self, now: Instant) {
        self.next = self.next.min(now);
    }

    /// Returns the start of the last call that granted or renewed the term.
    pub(super) fn since(&self) -> Instant {
        self.since
    }

    /// Returns the time at which the next renewal begins.
    pub(super) fn next_renewal(&self) -> Instant {
        self.next
    }

    /// Returns the time from which the holder must not act: `s + L * (1 - r) - margin`.
    pub(super) fn deadline(&self, config: &LeaderElectionConfig) -> Instant {
        self.since + config.usable_term().saturating_sub(config.margin)
    }

    /// Returns the time at which the holder's work is told to end, unless the term is renewed
    /// before.
    pub(super) fn warning(&self, config: &LeaderElectionConfig) -> Instant {
        self.since + config.usable_term().saturating_sub(config.margin).saturating_sub(config.grace)
    }

    /// Returns the time limit of a renewal that begins now: a result after the warning is of no
    /// use. `None` if it is too late to begin one.
    pub(super) fn budget(&self, config: &LeaderElectionConfig, now: Instant) -> Option<Duration> {
        let left = self.warning(config) - now;
        (!left.is_zero()).then(|| left.min(config.call_timeout))
    }
}
