//! The rejection probability of a client throttle. Pure; reads no clock.
use super::ClientThrottleConfig;

/// The settings in the form that the formula uses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Odds {
    /// Number of requests per accepted one above which requests are rejected.
    pub(super) k: f64,
    /// One over the aggression.
    pub(super) power: f64,
    /// Number of requests in the window below which none is rejected.
    pub(super) floor: f64,
    /// Maximum probability.
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

    /// Returns the rejection probability after `requests` in the window, of which `accepts` were
    /// accepted.
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

    /// Returns the number of further requests after which the probability is still zero.
    pub(super) fn room(&self, requests: u64, accepts: u64) -> u64 {
        ((self.k * accepts as f64).max(self.floor) - requests as f64) as u64
    }
}
