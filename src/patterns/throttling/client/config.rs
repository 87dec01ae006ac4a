//! Settings of a client throttle.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    config::{ConfigError, human, require, require_share, require_some_time, setters},
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
    /// Number of requests per accepted one above which requests are rejected. At least 1, which
    /// tolerates no refusal; 2 by default, which tolerates one refusal in two requests.
    pub k: f64,
    /// Time for which a request counts. 2 minutes by default.
    #[serde(with = "human")]
    pub window: Duration,
    /// Steepness of the rejection probability, which is raised to the power of one over this value.
    /// 1, proportional, by default; above 1 more is rejected.
    pub aggression: f64,
    /// Request rate per second, averaged over the window, below which no request is rejected: few
    /// calls prove little. 1 by default.
    pub min_rps: f64,
    /// Maximum rejection probability. 0.9 by default: one call in ten still finds out that the
    /// service has recovered.
    pub max_rejection: f64,
    /// Kinds of failure that mean that the service refused a request: `throttled` and `overloaded`
    /// by default. Any other response, even an error, counts as accepted.
    pub refusals: KindSet,
}

impl Default for ClientThrottleConfig {
    fn default() -> Self {
        Self { min_rps: 1.0, max_rejection: 0.9, ..Self::sre() }
    }
}

setters! {
    impl ClientThrottleConfig {
        k: f64,
        window: Duration,
        aggression: f64,
        min_rps: f64,
        max_rejection: f64,
        refusals: KindSet,
    }
}

impl ClientThrottleConfig {
    /// Returns the formula of the SRE book, with no floor and no maximum probability. After an
    /// outage of a whole window, hardly any call passes and finds out that it is over.
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

    /// Returns settings like those of Envoy's admission control: rejects if less than `threshold`
    /// of the requests succeed (0.95 in Envoy), over 30 s, at most 80 %. Every kind of failure is a
    /// refusal.
    pub const fn admission(threshold: f64) -> Self {
        let window = Duration::from_secs(30);
        Self { k: threshold.recip(), window, max_rejection: 0.8, refusals: KindSet::ALL, ..Self::sre() }
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

    /// Returns warnings about settings that will cause trouble.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.k < 1.05 {
            warnings.push(format!("with k = {} there is no head-room: a single refusal starts rejections", self.k));
        }
        if self.max_rejection > 0.99 {
            warnings.push(
                "with a `max_rejection` this high, hardly any call finds out that an outage of a whole window is over"
                    .to_owned(),
            );
        }
        warnings
    }
}
