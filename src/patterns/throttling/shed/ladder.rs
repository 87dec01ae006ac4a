//! How many features are switched off: the pure machine. Takes `now` as an argument.
use super::DegradationConfig;
use crate::time::Instant;

/// A ladder: one rung up for each feature that is switched off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Ladder {
    pub(super) level: usize,
    changed: Instant,
    /// Since when all gauges have been below.
    below: Option<Instant>,
}

impl Ladder {
    /// The gauges were read. `pressure` is 0 at the soft limit, 1 at the hard one; `None` is not known, and changes nothing.
    pub(super) fn sample(&mut self, now: Instant, pressure: Option<f64>, config: &DegradationConfig) {
        let rungs = config.features.len();
        self.level = self.level.min(rungs);
        let Some(pressure) = pressure else { return };
        if pressure > 0.0 {
            self.below = None;
            let all = pressure >= 1.0;
            if self.level < rungs && (all || self.level == 0 || now - self.changed >= config.step) {
                self.level = if all { rungs } else { self.level + 1 };
                self.changed = now;
            }
        } else if pressure < -config.margin || (config.margin == 0.0 && pressure <= 0.0) {
            let mut since = (*self.below.get_or_insert(now)).max(self.changed);
            // More than one where nobody looked for long.
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
