//! Description of a breaker, with warnings about its settings.
use std::hash::{BuildHasher, Hash};

use super::{CircuitBreaker, CircuitBreakerConfig, KeyedBreakers, WindowConfig};
use crate::{
    call::{Explanation, Layer},
    config::Name,
    outcome::PolicyKind,
};

/// Share of calls that a healthy service fails.
///
/// A breaker should open on an outage, not on chance: settings that would open it on such a service
/// cause a warning.
const HEALTHY: f64 = 1.0 / 20.0;
/// Maximum chance, each time that the rules are judged anew, that a healthy service breaks a rule.
const CHANCE: f64 = 0.01;
/// Maximum chance that a half-open breaker opens again on a healthy service.
const TURNED_AWAY: f64 = 0.25;

impl CircuitBreaker {
    /// Describes the breaker alone, as [`call`](Self::call) uses it, with warnings about its
    /// settings. [`Pipeline::explain`](crate::Pipeline::explain) describes it among other policies.
    ///
    /// A breaker without a name causes a warning, because its name says which provider or shard it
    /// guards: in front of several providers it opens for all of them when one fails.
    /// [`KeyedBreakers`] has one breaker for each.
    ///
    /// ```
    /// use steadfast::circuit_breaker::{CircuitBreaker, CircuitBreakerConfig};
    ///
    /// let breaker = CircuitBreaker::new(CircuitBreakerConfig::default()).unwrap();
    /// let warns = |breaker: &CircuitBreaker| {
    ///     breaker.explain().warnings().iter().any(|w| w.contains("has no name"))
    /// };
    /// let named = CircuitBreaker::builder(CircuitBreakerConfig::default()).name("bank-eu-1");
    /// assert!(warns(&breaker) && !warns(&named.build().unwrap()));
    /// ```
    pub fn explain(&self) -> Explanation {
        let name = self.0.core.name.clone();
        let is_named = name.is_some();
        let mut layer = layer(&self.config(), name);
        if !is_named {
            layer = layer.with_warning(
                "has no name of one provider or shard: in front of several it opens for all when one fails",
            );
        }
        Explanation::default().within(layer)
    }
}

impl<K: Eq + Hash + Clone, S: BuildHasher> KeyedBreakers<K, S> {
    /// Describes the breaker of each key alone, with warnings about its settings.
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
        trip.consecutive_failures.map(|n| format!("{n} consecutive failures")),
        trip.weight.map(|w| format!("failures of weight {w} within {:?}", trip.weight_period.unwrap_or_default())),
    ]
    .into_iter()
    .flatten()
    .collect();
    let mut settings =
        format!("opens on {}; for {:?} to {:?}", rules.join(", or "), open.initial_delay, open.max_delay);
    if let Some(slow_start) = slow_start {
        settings += &format!("; slow start from {} % over {:?}", percent(slow_start.min_share), slow_start.window);
    }
    let layer = Layer::new(PolicyKind::CircuitBreaker, name, settings);
    without_head_room(config).into_iter().fold(layer, Layer::with_warning)
}

fn percent(share: f64) -> String {
    format!("{:.3}", share * 100.0).trim_end_matches(['0']).trim_end_matches('.').to_owned()
}

/// Returns a warning for each threshold that a healthy service reaches by chance.
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
        warn(HEALTHY.powf(f64::from(n)), CHANCE, format!("{n} consecutive failures"));
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

/// Returns the chance that at least `k` of `n` calls of a healthy service fail.
fn at_least(k: u32, n: u32) -> f64 {
    let odds = HEALTHY / (1.0 - HEALTHY);
    let mut exactly = (1.0 - HEALTHY).powf(f64::from(n));
    if exactly < f64::MIN_POSITIVE {
        // The number of calls is so large that chance decides nothing.
        return if f64::from(k) > f64::from(n) * HEALTHY { 0.0 } else { 1.0 };
    }
    let mut fewer = 0.0;
    for i in 0..k {
        fewer += exactly;
        exactly *= odds * f64::from(n - i) / f64::from(i + 1);
    }
    (1.0_f64 - fewer).clamp(0.0, 1.0)
}
