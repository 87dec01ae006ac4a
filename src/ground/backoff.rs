//! Delays that grow: how long to wait before the next try, and how to keep many clients from trying at once.
//!
//! ```
//! use std::time::Duration;
//! use steadfast::{backoff::{Backoff, BackoffConfig, Jitter}, entropy::Entropy};
//!
//! let config = BackoffConfig::default().jitter(Jitter::None);
//! let delays: Vec<_> = Backoff::new(config, &Entropy::from_seed(1)).unwrap().take(4).collect();
//! assert_eq!(delays, [100, 200, 400, 800].map(Duration::from_millis));
//! ```
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub(crate) use crate::time::scaled;
use crate::{
    config::{ConfigError, human, require, require_some_time},
    entropy::Entropy,
    time::nanos,
};

/// How a delay grows from one try to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Curve {
    /// Always `base`.
    Constant,
    /// `base`, twice `base`, three times `base`.
    Linear,
    /// `base`, times `factor` each time.
    #[default]
    Exponential,
    /// `base` times 1, 1, 2, 3, 5, 8.
    Fibonacci,
}

/// How delays are spread, so that clients that failed together do not come back together.
///
/// The names and formulas are those of Marc Brooker, "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015), where
/// full jitter makes the fewest calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Jitter {
    /// The delay itself.
    None,
    /// Uniform in `0..=delay`.
    #[default]
    Full,
    /// Half the delay, and uniform in `0..=delay/2` on top.
    Equal,
    /// Uniform in `base..=3 * the delay before`, and then at most the cap; the curve plays no part.
    Decorrelated,
}

/// Settings of a [`Backoff`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct BackoffConfig {
    /// How it grows. Exponential by default.
    pub curve: Curve,
    /// The first delay. 100 ms by default.
    #[serde(with = "human")]
    pub base: Duration,
    /// What an exponential delay is multiplied with each time. 2 by default.
    pub factor: f64,
    /// No delay is longer, jitter included. 20 s by default.
    #[serde(with = "human")]
    pub cap: Duration,
    /// How it is spread. Full by default.
    pub jitter: Jitter,
    /// Whether the first delay is none at all: for faults that are rare, where a second try usually works. Off by default.
    pub immediate_first: bool,
}

impl Default for BackoffConfig {
    fn default() -> Self {
        Self {
            curve: Curve::Exponential,
            base: Duration::from_millis(100),
            factor: 2.0,
            cap: Duration::from_secs(20),
            jitter: Jitter::Full,
            immediate_first: false,
        }
    }
}

impl BackoffConfig {
    /// Sets the curve.
    #[must_use]
    pub const fn curve(mut self, curve: Curve) -> Self {
        self.curve = curve;
        self
    }

    /// Sets the first delay and the longest.
    #[must_use]
    pub const fn between(mut self, base: Duration, cap: Duration) -> Self {
        self.base = base;
        self.cap = cap;
        self
    }

    /// Sets the factor of an exponential delay.
    #[must_use]
    pub const fn factor(mut self, factor: f64) -> Self {
        self.factor = factor;
        self
    }

    /// Sets the jitter.
    #[must_use]
    pub const fn jitter(mut self, jitter: Jitter) -> Self {
        self.jitter = jitter;
        self
    }

    /// Makes the first delay none at all.
    #[must_use]
    pub const fn immediate_first(mut self) -> Self {
        self.immediate_first = true;
        self
    }

    /// Delay number `k`, from 1, before jitter: never above the cap, for every `k`.
    pub fn delay(&self, k: u32) -> Duration {
        let k = if self.immediate_first { k.saturating_sub(1) } else { k };
        if k == 0 {
            return Duration::ZERO;
        }
        let grown = match self.curve {
            Curve::Constant => self.base,
            Curve::Linear => self.base.saturating_mul(k),
            Curve::Exponential => scaled(self.base, self.factor.powf(f64::from(k - 1))),
            Curve::Fibonacci => {
                let (mut now, mut next) = (self.base, self.base);
                let mut i = 1;
                while i < k && now < self.cap {
                    (now, next) = (next, now.saturating_add(next));
                    i += 1;
                }
                now
            }
        };
        grown.min(self.cap)
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        require_some_time(self.base, "base")?;
        require(self.base <= self.cap, "base", "must not be longer than `cap`")?;
        require(self.factor >= 1.0 && self.factor.is_finite(), "factor", "must be a finite number, at least 1")
    }
}

/// An endless iterator of delays.
#[derive(Debug, Clone)]
pub struct Backoff {
    config: BackoffConfig,
    entropy: Entropy,
    k: u32,
    last: Duration,
}

impl Backoff {
    /// Delays by these settings, spread by this randomness.
    ///
    /// # Errors
    /// Where a setting breaks its rule.
    pub fn new(config: BackoffConfig, entropy: &Entropy) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self::checked(config, entropy))
    }

    /// For settings that a policy has checked before.
    pub(crate) fn checked(config: BackoffConfig, entropy: &Entropy) -> Self {
        Self { config, entropy: entropy.clone(), k: 0, last: config.base }
    }
}

impl Iterator for Backoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.k = self.k.saturating_add(1);
        let delay = self.config.delay(self.k);
        if delay.is_zero() {
            return Some(delay);
        }
        let spread = |d: Duration| Duration::from_nanos(self.entropy.up_to(nanos(d)));
        let jittered = match self.config.jitter {
            Jitter::None => delay,
            Jitter::Full => spread(delay),
            Jitter::Equal => delay / 2 + spread(delay - delay / 2),
            Jitter::Decorrelated => {
                // The cap comes after the draw, as in the article: what lies above it becomes the cap.
                let more = self.last.saturating_mul(3).saturating_sub(self.config.base);
                self.last = self.config.base.saturating_add(spread(more)).min(self.config.cap);
                self.last
            }
        };
        Some(jittered.min(self.config.cap))
    }
}
