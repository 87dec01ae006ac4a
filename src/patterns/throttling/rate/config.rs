//! Settings of a rate limit.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, human, require, require_some_time, setters};

/// A number of permits per period.
///
/// ```
/// use std::time::Duration;
/// use steadfast::throttling::Quota;
///
/// let quota = Quota::per_second(100).burst(20);
/// assert_eq!(quota.per, Duration::from_secs(1));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Quota {
    /// Number of permits in each period.
    pub permits: u32,
    /// Length of the period.
    #[serde(with = "human")]
    pub per: Duration,
    /// Number of permits that may be taken at one moment. Equal to `permits` by default.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub burst: Option<u32>,
}

setters! {
    impl Quota {
        permits: u32,
        per: Duration,
        burst: Option<u32>,
    }
}

impl Quota {
    /// Returns a quota of `permits` every `per`.
    pub const fn new(permits: u32, per: Duration) -> Self {
        Self { permits, per, burst: None }
    }

    /// Returns a quota of `permits` every second.
    pub const fn per_second(permits: u32) -> Self {
        Self::new(permits, Duration::from_secs(1))
    }

    /// Returns a quota of `permits` every minute.
    pub const fn per_minute(permits: u32) -> Self {
        Self::new(permits, Duration::from_secs(60))
    }

    /// Returns the largest number of permits that can be taken at one moment.
    pub const fn largest(&self) -> u32 {
        match self.burst {
            Some(burst) => burst,
            None => self.permits,
        }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        require(self.permits >= 1, "permits", "must be at least 1")?;
        require_some_time(self.per, "per")?;
        require(self.per <= Duration::from_secs(366 * 24 * 3600), "per", "must be at most 366days")?;
        require(
            self.per.as_nanos() >= u128::from(self.permits),
            "permits",
            "must be at most one for each nanosecond of `per`",
        )?;
        require(self.burst != Some(0), "burst", "must be at least 1")?;
        // Keeps the refill time of a whole burst far below the range of an `Instant`.
        let longest = self.per.as_nanos() / u128::from(self.permits) * u128::from(self.largest());
        require(longest <= 100 * 366 * 24 * 3600 * 1_000_000_000, "burst", "must refill within 100 years")
    }
}

/// The algorithm by which a rate limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RateMode {
    /// Permits return one by one at even intervals (GCRA, a leaky bucket as a meter). Takes 8
    /// bytes, lock-free. After a quiet period, one window of `per` may admit a burst and then the
    /// even flow: up to `permits + burst`.
    #[default]
    Smooth,
    /// At most `permits` in any window of length `per`, wherever it starts. Remembers the time of
    /// each permit: 8 bytes each, behind a lock. Has no separate burst.
    Strict,
}

/// Settings of a [`RateLimiter`](crate::throttling::RateLimiter).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct RateLimitConfig {
    /// Number of permits in each period. 100 by default.
    pub permits: u32,
    /// Length of the period. 1 s by default.
    #[serde(with = "human")]
    pub per: Duration,
    /// Number of permits that may be taken at one moment. Equal to `permits` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
    /// The algorithm by which permits are counted. Smooth by default.
    pub mode: RateMode,
    /// Maximum time that a call under this policy waits for its turn. A call whose turn comes later
    /// is rejected at once. Zero, no waiting, by default.
    #[serde(with = "human")]
    pub max_wait: Duration,
    /// Maximum time that a server's hint ("come back in 60 s", with a failure) pauses the limit. 15
    /// min by default; zero ignores hints.
    #[serde(with = "human")]
    pub max_hint: Duration,
}

/// Default of `max_hint`, equal to that of a circuit breaker.
pub(crate) const MAX_HINT: Duration = Duration::from_secs(15 * 60);

impl Default for RateLimitConfig {
    fn default() -> Self {
        Self {
            permits: 100,
            per: Duration::from_secs(1),
            burst: None,
            mode: RateMode::Smooth,
            max_wait: Duration::ZERO,
            max_hint: MAX_HINT,
        }
    }
}

impl From<Quota> for RateLimitConfig {
    fn from(quota: Quota) -> Self {
        Self { permits: quota.permits, per: quota.per, burst: quota.burst, ..Self::default() }
    }
}

setters! {
    impl RateLimitConfig {
        permits: u32,
        per: Duration,
        burst: Option<u32>,
        mode: RateMode,
        max_wait: Duration,
        max_hint: Duration,
    }
}

impl RateLimitConfig {
    /// Returns the limit as a quota.
    pub const fn quota(&self) -> Quota {
        Quota { permits: self.permits, per: self.per, burst: self.burst }
    }

    /// Sets the permits, the period and the burst to those of `quota`.
    #[must_use]
    pub const fn with_quota(mut self, quota: Quota) -> Self {
        (self.permits, self.per, self.burst) = (quota.permits, quota.per, quota.burst);
        self
    }

    /// Selects strict mode: at most `permits` in any window.
    #[must_use]
    pub const fn strict(mut self) -> Self {
        self.mode = RateMode::Strict;
        self
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        self.quota().check()?;
        if self.mode == RateMode::Strict {
            require(self.burst.is_none(), "burst", "must be absent in strict mode")?;
            require(self.permits <= MAX_STRICT, "permits", "must be at most 1000000 in strict mode")?;
        }
        Ok(())
    }
}

/// Maximum number of permits in strict mode, which stores 8 bytes per permit: at most 8 MB.
const MAX_STRICT: u32 = 1_000_000;
