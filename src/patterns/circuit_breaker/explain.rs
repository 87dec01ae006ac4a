//! A breaker told in words, with what in its settings will hurt.
use std::hash::{BuildHasher, Hash};

use super::{CircuitBreaker, CircuitBreakerConfig, KeyedBreakers, WindowConfig};
use crate::{
    call::{Explanation, Layer},
    config::Name,
    outcome::PolicyKind,
};

/// A breaker is to open on an outage, not on chance: settings are warned of that would open it on a service of which one call in
/// so many fails.
const HEALTHY: f64 = 1.0 / 20.0;
/// And that with at least this chance, each time that they are judged anew.
const CHANCE: f64 = 0.01;
/// Half-open, the same service should not be turned away with more than this chance.
const TURNED_AWAY: f64 = 0.25;

impl CircuitBreaker {
    /// Describes the breaker as it stands alone, as [`call`](Self::call) uses it, with warnings where its settings will hurt.
    /// [`Pipeline::explain`](crate::Pipeline::explain) describes it among others.
    ///
    /// A name tells which provider or shard the breaker stands for, so one without a name is warned of: in front of several
    /// providers it opens for all of them when one fails. [`KeyedBreakers`] has a breaker for each.
    ///
    /// ```
    /// use steadfast::circuit_breaker::{CircuitBreaker, CircuitBreakerConfig};
    ///
    /// let breaker = CircuitBreaker::new(CircuitBreakerConfig::default()).unwrap();
    /// let has_no_name = |breaker: &CircuitBreaker| breaker.explain().warnings().iter().any(|w| w.contains("has no name"));
    /// assert!(has_no_name(&breaker) && !has_no_name(&breaker.named("bank-eu-1")));
    /// ```
    pub fn explain(&self) -> Explanation {
        let name = self.0.core.name.clone();
        let is_named = name.is_some();
        let mut layer = layer(&self.config(), name);
        if !is_named {
            layer = layer.with_warning(
                "has no name for the one provider or shard that it stands for: in front of several it opens for all when one fails",
            );
        }
        Explanation::default().within(layer)
    }
}

impl<K: Eq + Hash + Clone, S: BuildHasher> KeyedBreakers<K, S> {
    /// Describes the breaker that each key has, as it stands alone, with warnings where its settings will hurt.
    pub fn explain(&self) -> Explanation {
        Explanation::default().within(layer(&self.config().breaker, None))
    }
}

pub(super) fn layer(config: &CircuitBreakerConfig, name: Option<Name>) -> Layer {
    let CircuitBreakerConfig { window, min_calls, trip, open, slow_start, .. } = config;
    let over = match window {
        WindowConfig::Calls { calls } => format!("the last {calls} calls"),
        WindowConfig::Time { time, .. } => format!("the last {time:?}"),
    };
    let rules: Vec<String> = [
        trip.failure_rate.map(|r| format!("{} % failures over {over} (at least {min_calls})", percent(r))),
        trip.slow_call_rate.map(|r| {
            let slow = trip.slow_call.unwrap_or_default();
            format!("{} % slower than {slow:?} over {over} (at least {min_calls})", percent(r))
        }),
        trip.consecutive_failures.map(|n| format!("{n} failures in a row")),
        trip.weight.map(|w| format!("failures of weight {w} within {:?}", trip.weight_period.unwrap_or_default())),
    ]
    .into_iter()
    .flatten()
    .collect();
    let mut settings =
        format!("opens on {}; for {:?} to {:?}", rules.join(", or "), open.initial_delay, open.max_delay);
    if let Some(slow_start) = slow_start {
        settings += &format!("; ramps up from {} % over {:?}", percent(slow_start.min_share), slow_start.window);
    }
    let layer = Layer::new(PolicyKind::CircuitBreaker, name, settings);
    without_head_room(config).into_iter().fold(layer, Layer::with_warning)
}

fn percent(share: f64) -> String {
    format!("{:.3}", share * 100.0).trim_end_matches(['0']).trim_end_matches('.').to_owned()
}

/// Thresholds that a healthy service reaches now and then.
fn without_head_room(config: &CircuitBreakerConfig) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut warn = |chance: f64, bound: f64, what: String| {
        if chance > bound {
            warnings.push(format!(
                "{what} leaves no head-room: a service that fails one call in {:.0} reaches it with a chance of {:.0} %",
                1.0 / HEALTHY,
                chance * 100.0
            ));
        }
    };
    if let Some(rate) = config.trip.failure_rate {
        let needed = (rate * f64::from(config.min_calls) - 1e-9).ceil().max(1.0) as u32;
        let chance = at_least(needed, config.min_calls);
        warn(chance, CHANCE, format!("{} % failures over {} calls", percent(rate), config.min_calls));
    }
    if let Some(n) = config.trip.consecutive_failures {
        warn(HEALTHY.powf(f64::from(n)), CHANCE, format!("a row of {n} failures"));
    }
    let half_open = &config.half_open;
    let bad = half_open.permitted_calls - half_open.required() + 1;
    warn(
        at_least(bad, half_open.permitted_calls),
        TURNED_AWAY,
        format!("opening again after {bad} bad of {} probes", half_open.permitted_calls),
    );
    warnings
}

/// The chance that at least `k` of `n` calls of a healthy service fail.
fn at_least(k: u32, n: u32) -> f64 {
    let odds = HEALTHY / (1.0 - HEALTHY);
    let mut exactly = (1.0 - HEALTHY).powf(f64::from(n));
    if exactly < f64::MIN_POSITIVE {
        // So many calls that chance decides nothing.
        return if f64::from(k) > f64::from(n) * HEALTHY { 0.0 } else { 1.0 };
    }
    let mut fewer = 0.0;
    for i in 0..k {
        fewer += exactly;
        exactly *= odds * f64::from(n - i) / f64::from(i + 1);
    }
    (1.0_f64 - fewer).clamp(0.0, 1.0)
}
