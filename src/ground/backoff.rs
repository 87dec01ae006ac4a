//! Back-off: growing delays between attempts, with jitter that spreads many clients apart.
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
    config::{ConfigError, human, require, require_some_time, setters},
    entropy::Entropy,
    time::nanos,
};

/// The growth of a delay from one attempt to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Curve {
    /// Always `base`.
    Constant,
    /// `base`, twice `base`, three times `base`.
    Linear,
    /// `base`, multiplied by `factor` each time.
    #[default]
    Exponential,
    /// `base` times 1, 1, 2, 3, 5, 8.
    Fibonacci,
}

/// The random spread of delays, so that clients that failed together do not come back together.
///
/// Names and formulas follow Marc Brooker, "Exponential Backoff And Jitter" (AWS Architecture Blog,
/// 2015), where full jitter makes the fewest calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Jitter {
    /// The computed delay, without randomness.
    None,
    /// Uniform in `0..=delay`.
    #[default]
    Full,
    /// Half the delay, plus a uniform part in `0..=delay/2`.
    Equal,
    /// Uniform in `base..=3 * previous delay`, then limited by `cap`; the curve is not used.
    Decorrelated,
}

/// Settings of a [`Backoff`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct BackoffConfig {
    /// Growth of the delay. Exponential by default.
    pub curve: Curve,
    /// First delay. 100 ms by default.
    #[serde(with = "human")]
    pub base: Duration,
    /// Factor by which an exponential delay grows. 2 by default.
    pub factor: f64,
    /// Maximum delay, jitter included. 20 s by default.
    #[serde(with = "human")]
    pub cap: Duration,
    /// Random spread of the delays. Full by default.
    pub jitter: Jitter,
    /// If set, the first delay is zero: for rare faults, where a second attempt usually works. Off
    /// by default.
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

setters! {
    impl BackoffConfig {
        curve: Curve,
        base: Duration,
        factor: f64,
        cap: Duration,
        jitter: Jitter,
        immediate_first: bool,
    }
}

impl BackoffConfig {
    /// Sets the first and the maximum delay.
    #[must_use]
    pub const fn between(mut self, base: Duration, cap: Duration) -> Self {
        self.base = base;
        self.cap = cap;
        self
    }

    /// Returns delay number `k`, from 1, before jitter. It never exceeds `cap`, for any `k`.
    fn delay(&self, k: u32) -> Duration {
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
    /// Creates an iterator with these settings and this source of randomness.
    ///
    /// # Errors
    /// Returns a [`ConfigError`] if a setting is out of range.
    pub fn new(config: BackoffConfig, entropy: &Entropy) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self::checked(config, entropy))
    }

    /// Creates an iterator from settings that a policy has checked before.
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
                // The cap applies after the draw, as in the article: a value above it becomes the
                // cap.
                let more = self.last.saturating_mul(3).saturating_sub(self.config.base);
                self.last = self.config.base.saturating_add(spread(more)).min(self.config.cap);
                self.last
            }
        };
        Some(jittered.min(self.config.cap))
    }
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use proptest::prelude::*;

    use std::time::Duration;

    use crate::backoff::{BackoffConfig, Curve};

    fn any_curve() -> impl Strategy<Value = Curve> {
        prop::sample::select(vec![Curve::Constant, Curve::Linear, Curve::Exponential, Curve::Fibonacci])
    }

    proptest! {
        /// Iterating to such numbers would take hours.
        #[test]
        fn the_delay_of_any_number_is_at_most_the_cap(
            curve in any_curve(), base in 1u64.., more: u64, factor in 1.0..1e300f64, first: bool,
            k in prop_oneof![Just(1u32), Just(u32::MAX), any::<u32>()]
        ) {
            let base = Duration::from_nanos(base);
            let config = BackoffConfig::default().curve(curve).factor(factor).immediate_first(first);
            let config = config.between(base, base.saturating_add(Duration::from_nanos(more)));
            prop_assert!(config.delay(k) <= config.cap);
            prop_assert!(config.delay(k.saturating_add(1)) >= config.delay(k));
        }
    }
}
