//! How much is shed: the pure machine. Takes `now` as an argument.
use std::time::Duration;

use super::ShedderConfig;
use crate::{outcome::Priority, time::Instant};

/// How much is shed, in classes of priority: 0.5 is half of the low calls, 1.25 all of them and a quarter of the normal ones.
///
/// It follows the gauges upwards at once, and downwards slowly: held for a time, and then at a bounded speed. What is shed is a share, not a class, so
/// that there is a value at which the gauges stay where they are. With whole classes there is none: without a class there is too little to do, with
/// it too much, and it comes and goes for ever.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Cut {
    value: f64,
    /// It does not fall before.
    held_until: Instant,
    sampled: Instant,
}

impl Cut {
    /// The gauges were read: how much is shed now.
    pub(super) fn sample(&mut self, now: Instant, pressure: Option<f64>, config: &ShedderConfig) -> f64 {
        let classes = config.spare.index() as f64;
        // Nothing is known: nothing changes, as for a degradation.
        let Some(pressure) = pressure else {
            self.value = self.value.min(classes);
            self.sampled = now;
            return self.value;
        };
        let wanted = pressure.clamp(0.0, 1.0) * classes;
        let before = self.value.min(classes);
        if wanted >= before {
            self.value = wanted;
            self.held_until = now + config.hold;
        } else {
            let falls: Duration = now - self.sampled.max(self.held_until);
            self.value = wanted.max(before - classes * falls.as_secs_f64() / config.recover.as_secs_f64());
        }
        self.sampled = now;
        self.value
    }
}

/// The share of the calls of this priority that is shed.
#[inline]
pub(super) fn share(cut: f64, priority: Priority) -> f64 {
    (cut - priority.index() as f64).clamp(0.0, 1.0)
}
