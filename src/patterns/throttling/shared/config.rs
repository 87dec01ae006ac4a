//! Settings of a limit that processes share.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::{Quota, rate::gcra::Pace};
use crate::{
    config::{ConfigError, human, require, require_share, require_some_time},
    time::nanos,
};

/// Settings of a [`SharedRateLimiter`](super::SharedRateLimiter): plain data, from code or from a document.
///
/// ```
/// use std::time::Duration;
/// use steadfast::throttling::{Quota, SharedRateLimitConfig, Sharing, WhenDown};
///
/// let config: SharedRateLimitConfig = toml::from_str(r#"
///     permits = 100
///     per = "1s"
///     burst = 10
///     sharing = { leased = { every = "100ms" } }
///     when_down = { local_share = 0.5 }
/// "#).unwrap();
/// assert_eq!(config, SharedRateLimitConfig::from(Quota::per_second(100).burst(10))
///     .leased(Duration::from_millis(100))
///     .when_down(WhenDown::LocalShare(0.5)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct SharedRateLimitConfig {
    /// How many permits, for all processes together. 100 by default.
    pub permits: u32,
    /// In how much time. 1 s by default.
    #[serde(with = "human")]
    pub per: Duration,
    /// How many of them may be taken at one moment. As many as `permits` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
    /// How it is shared. Exactly by default.
    pub sharing: Sharing,
    /// What a process does while the store is down. It goes on with the whole limit by itself by default.
    pub when_down: WhenDown,
    /// How long a call may wait for its turn; it is rejected at once if its turn comes later. Not at all by default.
    #[serde(with = "human")]
    pub max_wait: Duration,
    /// How long the store may take for one admission, or one lease; longer is down. 250 ms by default.
    #[serde(with = "human")]
    pub call_timeout: Duration,
    /// For how long a store that was down is not asked. 1 s by default.
    #[serde(with = "human")]
    pub rest: Duration,
}

/// How processes share one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Sharing {
    /// Each admission is a compare-and-set on the limit's row. The smallest slack; each call waits for the store.
    #[default]
    Exact,
    /// A process takes permits from the row ahead of its calls, by as many as it used lately, and spends them in place. What is not
    /// spent in time is lost.
    Leased {
        /// How long a leased permit lasts: at most what the whole limit gives in this time is leased at once.
        #[serde(with = "human")]
        every: Duration,
    },
}

/// What a process does while the store does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhenDown {
    /// Every call passes: better no limit than no calls.
    FailOpen,
    /// Every call is rejected: better no calls than no limit.
    FailClosed,
    /// It goes on with this share of the limit, above 0 and at most 1, by itself. With one part of as many as there are processes they keep
    /// the limit together; what a process took through the store of late counts against its share.
    LocalShare(f64),
}

impl Default for SharedRateLimitConfig {
    fn default() -> Self {
        Self {
            permits: 100,
            per: Duration::from_secs(1),
            burst: None,
            sharing: Sharing::Exact,
            when_down: WhenDown::LocalShare(1.0),
            max_wait: Duration::ZERO,
            call_timeout: Duration::from_millis(250),
            rest: Duration::from_secs(1),
        }
    }
}

impl From<Quota> for SharedRateLimitConfig {
    fn from(quota: Quota) -> Self {
        Self { permits: quota.permits, per: quota.per, burst: quota.burst, ..Self::default() }
    }
}

impl SharedRateLimitConfig {
    /// The limit itself.
    pub const fn quota(&self) -> Quota {
        Quota { permits: self.permits, per: self.per, burst: self.burst }
    }

    /// Shares it by leases, each of which lasts so long.
    #[must_use]
    pub const fn leased(mut self, every: Duration) -> Self {
        self.sharing = Sharing::Leased { every };
        self
    }

    /// Sets what a process does while the store is down.
    #[must_use]
    pub const fn when_down(mut self, when_down: WhenDown) -> Self {
        self.when_down = when_down;
        self
    }

    /// Sets how long a call may wait for its turn.
    #[must_use]
    pub const fn max_wait(mut self, longest: Duration) -> Self {
        self.max_wait = longest;
        self
    }

    /// Sets how long the store may take.
    #[must_use]
    pub const fn call_timeout(mut self, longest: Duration) -> Self {
        self.call_timeout = longest;
        self
    }

    /// Sets for how long a store that was down is not asked.
    #[must_use]
    pub const fn rest(mut self, rest: Duration) -> Self {
        self.rest = rest;
        self
    }

    /// The stated slack: how many calls more than one limiter in one place would admit, all processes together may admit in a window of
    /// any length, where their wall clocks differ by at most `skew` when they begin.
    ///
    /// It is what the limit gives in the time for which a permit may be under way: `call_timeout`, or a lease's time if that is longer, and
    /// `skew`, which counts again for each process that begins with a wrong clock after the row has ended. (One limiter in one place admits `permits` for each `per`, and a burst.) It holds while the store answers. While it is down,
    /// [`LocalShare`](WhenDown::LocalShare) adds each process's share.
    ///
    /// ```
    /// use std::time::Duration;
    /// use steadfast::throttling::{Quota, SharedRateLimitConfig};
    ///
    /// let config = SharedRateLimitConfig::from(Quota::per_second(100)).call_timeout(Duration::from_millis(50));
    /// assert_eq!(config.slack(Duration::ZERO), 5);
    /// assert_eq!(config.leased(Duration::from_millis(100)).slack(Duration::from_millis(10)), 11);
    /// ```
    pub fn slack(&self, skew: Duration) -> u32 {
        let held = match self.sharing {
            Sharing::Exact => self.call_timeout,
            Sharing::Leased { every } => every.max(self.call_timeout),
        };
        let interval = Pace::new(&self.quota()).interval.max(1);
        u32::try_from(nanos(held.saturating_add(skew)).div_ceil(interval)).unwrap_or(u32::MAX)
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        self.quota().check()?;
        if let Sharing::Leased { every } = self.sharing {
            let rule = "must be from 10ms to 1day";
            let day = Duration::from_secs(24 * 3600);
            require((Duration::from_millis(10)..=day).contains(&every), "sharing.leased.every", rule)?;
        }
        if let WhenDown::LocalShare(share) = self.when_down {
            require_share(share, "when_down.local_share")?;
        }
        require_some_time(self.call_timeout, "call_timeout")
    }
}
