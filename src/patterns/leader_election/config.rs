//! Settings of a leader election.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    config::{ConfigError, human, require, require_some_time, setters},
    time::scaled,
};

/// Settings of a [`LeaderElection`](super::LeaderElection).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct LeaderElectionConfig {
    /// Time for which leadership is granted at a time. It bounds how soon a dead leader is noticed.
    /// 15 s by default.
    #[serde(with = "human")]
    pub term: Duration,
    /// Time from the start of the last renewal to the next one. 5 s by default.
    #[serde(with = "human")]
    pub renew_every: Duration,
    /// Time limit of one call of the lease. 3 s by default.
    #[serde(with = "human")]
    pub call_timeout: Duration,
    /// Time that a task has to end by itself, after it was told that its term is about to end. 1 s
    /// by default.
    #[serde(with = "human")]
    pub grace: Duration,
    /// Time before the end of the term at which the leader stops acting. It is the longest pause
    /// (of a garbage collector, a scheduler, a virtual machine) that does no harm. 1 s by default.
    #[serde(with = "human")]
    pub margin: Duration,
    /// Largest difference between the rates of two nodes' clocks. 0.001 is a millisecond in a
    /// second. 0.001 by default; a quartz is good to 0.0001.
    pub clock_drift: f64,
    /// Longest time between two attempts of a candidate, and about the time between a failed call
    /// and the next one. 2 s by default.
    #[serde(with = "human")]
    pub poll: Duration,
    /// Time by which a leader's last renewal may be older than its term before the node's health is
    /// bad. 5 s by default.
    #[serde(with = "human")]
    pub health_tolerance: Duration,
}

impl Default for LeaderElectionConfig {
    fn default() -> Self {
        Self {
            term: Duration::from_secs(15),
            renew_every: Duration::from_secs(5),
            call_timeout: Duration::from_secs(3),
            grace: Duration::from_secs(1),
            margin: Duration::from_secs(1),
            clock_drift: 0.001,
            poll: Duration::from_secs(2),
            health_tolerance: Duration::from_secs(5),
        }
    }
}

setters! {
    impl LeaderElectionConfig {
        term: Duration,
        renew_every: Duration,
        call_timeout: Duration,
        grace: Duration,
        margin: Duration,
        clock_drift: f64,
        poll: Duration,
        health_tolerance: Duration,
    }
}

impl LeaderElectionConfig {
    /// Returns the default settings in proportion to another term: a renewal after a third of it, a
    /// grace of a fifteenth, and so on.
    #[must_use]
    pub fn of_term(term: Duration) -> Self {
        Self {
            term,
            renew_every: term / 3,
            call_timeout: term / 5,
            grace: term / 15,
            margin: term / 15,
            poll: term / 15 * 2,
            health_tolerance: term / 3,
            ..Self::default()
        }
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require_some_time(self.term, "term")?;
        require_some_time(self.renew_every, "renew_every")?;
        require_some_time(self.call_timeout, "call_timeout")?;
        require_some_time(self.poll, "poll")?;
        let drift = self.clock_drift;
        require((0.0..0.5).contains(&drift), "clock_drift", "must be at least 0 and below 0.5")?;
        let needed = [self.renew_every, self.call_timeout, self.grace, self.margin]
            .into_iter()
            .try_fold(Duration::ZERO, Duration::checked_add);
        let usable = self.usable_term();
        if needed.is_some_and(|needed| needed < usable) {
            return Ok(());
        }
        let shown = |d| humantime::format_duration(d).to_string();
        let rule = format!(
            "must be longer than `renew_every + call_timeout + grace + margin` after clock drift is subtracted: {} against {}",
            shown(usable),
            needed.map_or("an overflow".to_owned(), shown),
        );
        Err(ConfigError::new("term", rule))
    }

    /// Returns the length of the term as the slowest clock may count it.
    pub(super) fn usable_term(&self) -> Duration {
        self.term.saturating_sub(scaled(self.term, self.clock_drift))
    }
}
