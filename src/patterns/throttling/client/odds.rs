//! With which probability a client turns its own calls away. Pure: knows no clock.
use super::ClientThrottleConfig;

/// The settings as the formula wants them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Odds {
    /// How many requests a client may make for each that was accepted.
    pub(super) k: f64,
    /// One over the aggression.
    pub(super) power: f64,
    /// With fewer requests in the window than this, none is rejected.
    pub(super) floor: f64,
    /// The highest probability.
    pub(super) most: f64,
}

impl Odds {
    pub(super) fn of(config: &ClientThrottleConfig) -> Self {
        Self {
            k: config.k,
            power: config.aggression.recip(),
            floor: config.min_rps * config.window.as_secs_f64(),
            most: config.max_rejection,
        }
    }

    /// The probability after so many requests in the window, of which so many were accepted.
    #[inline]
    pub(super) fn of_rejection(&self, requests: u64, accepts: u64) -> f64 {
        let (requests, accepts) = (requests as f64, accepts as f64);
        let beyond = requests - self.k * accepts;
        if beyond <= 0.0 || requests < self.floor {
            return 0.0;
        }
        let share = beyond / (requests + 1.0);
        let share = if self.power == 1.0 { share } else { share.powf(self.power) };
        share.min(self.most)
    }
}
