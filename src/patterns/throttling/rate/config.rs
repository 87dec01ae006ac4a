//! Settings of a rate limit.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, human, require, require_some_time};

/// So many permits in so much time.
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
pub struct Quota {
    /// How many permits.
    pub permits: u32,
    /// In how much time.
    #[serde(with = "human")]
    pub per: Duration,
    /// How many of them may be taken at one moment. As many as `permits` by default.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub burst: Option<u32>,
}

impl Quota {
    /// `permits` every `per`.
    pub const fn new(permits: u32, per: Duration) -> Self {
        Self { permits, per, burst: None }
    }

    /// `permits` every second.
    pub const fn per_second(permits: u32) -> Self {
        Self::new(permits, Duration::from_secs(1))
    }

    /// `permits` every minute.
    pub const fn per_minute(permits: u32) -> Self {
        Self::new(permits, Duration::from_secs(60))
    }

    /// The same, with at most `burst` of them at one moment.
    #[must_use]
    pub const fn burst(mut self, burst: u32) -> Self {
        self.burst = Some(burst);
        self
    }

    /// The largest number of permits that it can give at one moment.
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
        // So that a debt of a whole burst stays far below the range of an `Instant`.
        let longest = self.per.as_nanos() / u128::from(self.permits) * u128::from(self.largest());
        require(longest <= 100 * 366 * 24 * 3600 * 1_000_000_000, "burst", "must refill within 100 years")
    }
}

/// How a rate limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum RateMode {
    /// Permits come back one by one, evenly (GCRA, a leaky bucket as a meter). 8 bytes, lock-free. After a quiet while, one
    /// window of `per` may see a burst and then the even flow: up to `permits + burst`.
    #[default]
    Smooth,
    /// Never more than `permits` in any window of length `per`, wherever it starts. Remembers the time of each permit: 8
    /// bytes for each, behind a lock. Knows no burst of its own.
    Strict,
}

/// Settings of a [`RateLimiter`](crate::throttling::RateLimiter).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct RateLimitConfig {
    /// How many permits. 100 by default.
    pub permits: u32,
    /// In how much time. 1 s by default.
    #[serde(with = "human")]
    pub per: Duration,
    /// How many of them may be taken at one moment. As many as `permits` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
    /// How it counts. Smooth by default.
    pub mode: RateMode,
    /// How long a call under this policy may wait for its turn; it is rejected at once if its turn comes later. Not at all by
    /// default.
    #[serde(with = "human")]
    pub max_wait: Duration,
    /// The longest that a server's hint ("come back in 60 s", with a failure) pauses the limit. 15 min by default; zero takes no hint.
    #[serde(with = "human")]
    pub max_hint: Duration,
}

/// As long as a breaker's.
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

impl RateLimitConfig {
    /// The limit itself.
    pub const fn quota(&self) -> Quota {
        Quota { permits: self.permits, per: self.per, burst: self.burst }
    }

    /// Never more than `permits` in any window.
    #[must_use]
    pub const fn strict(mut self) -> Self {
        self.mode = RateMode::Strict;
        self
    }

    /// Sets how long a call may wait for its turn.
    #[must_use]
    pub const fn max_wait(mut self, longest: Duration) -> Self {
        self.max_wait = longest;
        self
    }

    /// Sets the longest that a server's hint pauses the limit.
    #[must_use]
    pub const fn max_hint(mut self, longest: Duration) -> Self {
        self.max_hint = longest;
        self
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        self.quota().check()?;
        if self.mode == RateMode::Strict {
            require(self.burst.is_none(), "burst", "must be absent in strict mode, which knows no burst of its own")?;
            require(self.permits <= MAX_STRICT, "permits", "must be at most 1000000 in strict mode")?;
        }
        Ok(())
    }
}

/// A strict limit remembers 8 bytes for each permit: at most 8 MB.
const MAX_STRICT: u32 = 1_000_000;
