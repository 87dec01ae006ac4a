//! Settings of a client throttle.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    config::{ConfigError, human, require, require_share, require_some_time},
    outcome::{FailureKind, KindSet},
};

/// Settings of a [`ClientThrottle`](crate::throttling::ClientThrottle).
///
/// ```
/// use steadfast::throttling::{ClientThrottle, ClientThrottleConfig};
///
/// let config: ClientThrottleConfig = toml::from_str(r#"
///     k = 1.5
///     window = "30s"
///     max_rejection = 0.8
/// "#).unwrap();
/// assert!(ClientThrottle::new(config).is_ok());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ClientThrottleConfig {
    /// How many requests are made for each that is accepted, before any is rejected: from 1, which lets none go in vain, upwards. 2 by
    /// default: of three calls, one may be refused by the other side.
    pub k: f64,
    /// How long a request counts. 2 minutes by default.
    #[serde(with = "human")]
    pub window: Duration,
    /// How steeply the probability rises: it is taken to the power of one over this. 1, in proportion, by default; above 1 more is rejected.
    pub aggression: f64,
    /// Nothing is rejected while fewer requests a second come than this, on the average of the window: few calls prove little. 1 by default.
    pub min_rps: f64,
    /// The highest probability. 0.9 by default: the tenth call still finds out that the other side is well again.
    pub max_rejection: f64,
    /// The kinds of failure by which the other side says that it did not accept a request: `throttled` and `overloaded` by default. Every
    /// other answer, an error too, is one that it took the request for.
    pub refusals: KindSet,
}

impl Default for ClientThrottleConfig {
    fn default() -> Self {
        Self { min_rps: 1.0, max_rejection: 0.9, ..Self::sre() }
    }
}

impl ClientThrottleConfig {
    /// The formula as the SRE book has it, with neither a floor nor a highest probability: after an outage of a whole window hardly any call is
    /// let through to find out that it is over.
    pub const fn sre() -> Self {
        Self {
            k: 2.0,
            window: Duration::from_secs(120),
            aggression: 1.0,
            min_rps: 0.0,
            max_rejection: 1.0,
            refusals: KindSet::of(&[FailureKind::Throttled, FailureKind::Overloaded]),
        }
    }

    /// As Envoy's admission control: begins to reject where less than `threshold` of the requests succeed (its default is 0.95), over 30 s, at
    /// most 80 %; every failure counts against the other side.
    pub const fn admission(threshold: f64) -> Self {
        let window = Duration::from_secs(30);
        Self { k: threshold.recip(), window, max_rejection: 0.8, refusals: KindSet::ALL, ..Self::sre() }
    }

    /// Sets how many requests are made for each that is accepted.
    #[must_use]
    pub const fn k(mut self, k: f64) -> Self {
        self.k = k;
        self
    }

    /// Sets how long a request counts.
    #[must_use]
    pub const fn window(mut self, window: Duration) -> Self {
        self.window = window;
        self
    }

    /// Sets how steeply the probability rises.
    #[must_use]
    pub const fn aggression(mut self, aggression: f64) -> Self {
        self.aggression = aggression;
        self
    }

    /// Sets the floor, in requests a second.
    #[must_use]
    pub const fn min_rps(mut self, floor: f64) -> Self {
        self.min_rps = floor;
        self
    }

    /// Sets the highest probability.
    #[must_use]
    pub const fn max_rejection(mut self, most: f64) -> Self {
        self.max_rejection = most;
        self
    }

    /// Sets the kinds of failure by which the other side says that it did not accept a request.
    #[must_use]
    pub const fn refusals(mut self, kinds: KindSet) -> Self {
        self.refusals = kinds;
        self
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        require(self.k >= 1.0 && self.k <= 1000.0, "k", "must lie between 1 and 1000")?;
        require_some_time(self.window, "window")?;
        require(self.window <= Duration::from_secs(3600), "window", "must be at most 1h")?;
        require(
            self.aggression > 0.0 && self.aggression.is_finite(),
            "aggression",
            "must be a finite number, above 0",
        )?;
        require(self.min_rps >= 0.0 && self.min_rps.is_finite(), "min_rps", "must be a finite number, at least 0")?;
        require_share(self.max_rejection, "max_rejection")?;
        require(!self.refusals.is_empty(), "refusals", "must name at least one kind of failure")
    }

    /// What will hurt.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.k < 1.05 {
            warnings.push(format!("with k = {} a single refusal begins to reject: there is no head-room", self.k));
        }
        if self.max_rejection > 0.99 {
            warnings.push(
                "without a highest probability, hardly any call finds out that an outage of a whole window is over"
                    .to_owned(),
            );
        }
        warnings
    }
}
