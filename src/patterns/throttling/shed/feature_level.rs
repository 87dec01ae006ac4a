//! The number of disabled features: a pure state machine that takes `now` as an argument.
use super::DegradationConfig;
use crate::time::Instant;

/// The number of features that are switched off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct FeatureLevel {
    pub(super) level: usize,
    changed: Instant,
    /// Time since which all gauges have been below, if they are.
    below: Option<Instant>,
}

impl FeatureLevel {
    /// Applies a reading of the gauges. `pressure` is 0 at the soft limit and 1 at the hard one;
    /// `None` is unknown and changes nothing.
    pub(super) fn sample(&mut self, now: Instant, pressure: Option<f64>, config: &DegradationConfig) {
        let features = config.features.len();
        self.level = self.level.min(features);
        let Some(pressure) = pressure else { return };
        if pressure > 0.0 {
            self.below = None;
            let all = pressure >= 1.0;
            if self.level < features && (all || self.level == 0 || now - self.changed >= config.step) {
                self.level = if all { features } else { self.level + 1 };
                self.changed = now;
            }
        } else if pressure < -config.margin || (config.margin == 0.0 && pressure <= 0.0) {
            let mut since = (*self.below.get_or_insert(now)).max(self.changed);
            // More than one feature if no call looked for long.
            while self.level > 0 && now - since >= config.hold {
                self.level -= 1;
                since = since + config.hold;
                self.changed = since;
            }
        } else {
            self.below = None;
        }
    }
}
