//! Settings of a rate limit that processes share.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::{Quota, rate::gcra::Pace};
use crate::{
    config::{ConfigError, human, require, require_share, require_some_time, setters},
    time::nanos,
};

/// Settings of a [`SharedRateLimiter`](super::SharedRateLimiter): plain data, from code or from a
/// document.
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
    /// Number of permits in each period, for all processes together. 100 by default.
    pub permits: u32,
    /// Length of the period. 1 s by default.
    #[serde(with = "human")]
    pub per: Duration,
    /// Number of permits that may be taken at one moment. Equal to `permits` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
    /// Mode of sharing. Exact by default.
    pub sharing: Sharing,
    /// Behaviour of a process while the store is down. By default it goes on with the whole limit
    /// locally.
    pub when_down: WhenDown,
    /// Maximum time that a call waits for its turn. A call whose turn comes later is rejected at
    /// once. Zero, no waiting, by default.
    #[serde(with = "human")]
    pub max_wait: Duration,
    /// Maximum time that the store takes for one admission or one lease; beyond it the store is
    /// down. 250 ms by default.
    #[serde(with = "human")]
    pub call_timeout: Duration,
    /// Time for which a store that was down is not asked. 1 s by default.
    #[serde(with = "human")]
    pub rest: Duration,
}

/// The way in which processes share one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Sharing {
    /// Each admission is a compare-and-set on the limit's row. The smallest slack; each call waits
    /// for the store.
    #[default]
    Exact,
    /// A process takes permits from the row ahead of its calls, as many as it used lately, and
    /// spends them locally. Permits that are not spent in time are lost.
    Leased {
        /// Lifetime of a leased permit. At most the permits that the whole limit gives in this time
        /// are leased at once.
        #[serde(with = "human")]
        every: Duration,
    },
}

/// The behaviour of a process while the store does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WhenDown {
    /// Every call passes: better no limit than no calls.
    FailOpen,
    /// Every call is rejected: better no calls than no limit.
    FailClosed,
    /// The process goes on alone with this share of the limit, above 0 and at most 1. With one over
    /// the number of processes, they keep the limit together. Permits that the process took through
    /// the store lately count against its share.
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

setters! {
    impl SharedRateLimitConfig {
        permits: u32,
        per: Duration,
        burst: Option<u32>,
        sharing: Sharing,
        when_down: WhenDown,
        max_wait: Duration,
        call_timeout: Duration,
        rest: Duration,
    }
}

impl SharedRateLimitConfig {
    /// Returns the limit as a quota.
    pub const fn quota(&self) -> Quota {
        Quota { permits: self.permits, per: self.per, burst: self.burst }
    }

    /// Shares the limit by leases with this lifetime.
    #[must_use]
    pub const fn leased(mut self, every: Duration) -> Self {
        self.sharing = Sharing::Leased { every };
        self
    }

    /// Returns the stated slack: the number of calls by which all processes together may exceed a
    /// single limiter, in a window of any length. `skew` is the maximum difference of their
    /// wall clocks when they begin. (A single limiter admits `permits` for each `per`, and
    /// a burst.)
    ///
    /// The slack is what the limit gives while a permit may be under way: in `call_timeout`, or in
    /// a lease's lifetime if that is longer, plus `skew`. The skew counts again for each process
    /// that begins with a wrong clock after the row has expired. The slack holds while the store
    /// answers. While it is down, [`LocalShare`](WhenDown::LocalShare) adds each process's share.
    ///
    /// ```
    /// use std::time::Duration;
    /// use steadfast::throttling::{Quota, SharedRateLimitConfig};
    ///
    /// let quota = Quota::per_second(100);
    /// let config = SharedRateLimitConfig::from(quota).call_timeout(Duration::from_millis(50));
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
