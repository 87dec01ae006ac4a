//! The amount of shedding: a pure state machine that takes `now` as an argument.
use std::time::Duration;

use super::ShedderConfig;
use crate::{outcome::Priority, time::Instant};

/// The amount of shedding, in priority classes: 0.5 is half of the low calls, 1.25 is all of them
/// and a quarter of the normal ones.
///
/// It follows the gauges upwards at once. Downwards it is sustained for a time, and then falls at a
/// bounded speed. The amount is continuous, so that there is a value at which the gauges stay
/// constant. Whole classes have none: without a class there is too little load, with it too much,
/// and the class would switch on and off for ever.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct ShedLevel {
    value: f64,
    /// Time before which the amount does not fall.
    sustained_until: Instant,
    sampled: Instant,
}

impl ShedLevel {
    /// Applies a reading of the gauges and returns the amount. `None` is an unknown pressure.
    pub(super) fn sample(&mut self, now: Instant, pressure: Option<f64>, config: &ShedderConfig) -> f64 {
        let classes = config.min_priority.index() as f64;
        // With no known gauge nothing changes, as in a degradation.
        let Some(pressure) = pressure else {
            self.value = self.value.min(classes);
            self.sampled = now;
            return self.value;
        };
        let wanted = pressure.clamp(0.0, 1.0) * classes;
        let before = self.value.min(classes);
        if wanted >= before {
            self.value = wanted;
            self.sustained_until = now + config.sustain;
        } else {
            let falls: Duration = now - self.sampled.max(self.sustained_until);
            self.value = wanted.max(before - classes * falls.as_secs_f64() / config.recovery.as_secs_f64());
        }
        self.sampled = now;
        self.value
    }
}

/// Returns the share of the calls of this priority that is shed.
#[inline]
pub(super) fn share(level: f64, priority: Priority) -> f64 {
    (level - priority.index() as f64).clamp(0.0, 1.0)
}
