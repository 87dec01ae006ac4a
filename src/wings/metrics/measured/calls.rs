//! Metrics of the policies around calls: time-outs, retries, circuit breakers, fallbacks, hedges,
//! coalescing, chaos.
use std::hash::{BuildHasher, Hash};

use super::super::{
    registry::{Measured, Sample, Scope},
    words::{self, kinds, stops},
};
use crate::{
    circuit_breaker::{
        CircuitBreaker, KeyedBreakers, SharedCircuitBreaker, SharedCircuitBreakerEvent, State, Transition,
    },
    coalesce::Coalesce,
    fallback::{Fallback, FallbackEvent},
    hedge::{Hedge, HedgeCause, HedgeEvent},
    observe::Subscription,
    outcome::{FailureKind, TripRule},
    retry::{Retry, RetryBudget, RetryEvent},
    timeout::Timeout,
};

impl Measured for Timeout {
    const KIND: &'static str = "timeout";

    fn measure(&self, scope: &Scope) -> Sample {
        let timed_out = scope.counter("steadfast_timeout_timed_out_total", &[]);
        self.events().tap(move |_| timed_out.increment(1));
        Box::new(|| ())
    }
}

impl Measured for Retry {
    const KIND: &'static str = "retry";

    fn measure(&self, scope: &Scope) -> Sample {
        let retries = scope.by_label("steadfast_retry_retries_total", "kind", &kinds());
        let recovered = scope.counter("steadfast_retry_recovered_total", &[]);
        let gave_up = scope.by_label("steadfast_retry_gave_up_total", "reason", &stops());
        let delays = scope.histogram("steadfast_retry_delay_seconds", &[]);
        self.events().tap(move |event| match event {
            RetryEvent::Retrying { cause, delay, .. } => {
                retries.increment(cause.kind().map_or("rejected", FailureKind::as_str));
                delays.record(delay.as_secs_f64());
            }
            RetryEvent::Recovered { .. } => recovered.increment(1),
            RetryEvent::GaveUp { stop, .. } => gave_up.increment(stop.as_str()),
        });
        Box::new(|| ())
    }
}

impl Measured for RetryBudget {
    const KIND: &'static str = "retry_budget";

    fn measure(&self, scope: &Scope) -> Sample {
        let (budget, clock) = (self.clone(), scope.clock().clone());
        let balance = scope.gauge("steadfast_retry_budget_balance", &[]);
        Box::new(move || balance.set(budget.balance(clock.now()) as f64))
    }
}

/// Counts the state transitions of one breaker or of a registry.
fn count_transitions(transitions: Subscription<Transition>, scope: &Scope) {
    let states = State::ALL.map(State::as_str);
    let to = scope.by_label("steadfast_circuit_breaker_transitions_total", "to", &states);
    let openings =
        scope.by_label("steadfast_circuit_breaker_openings_total", "rule", &TripRule::ALL.map(TripRule::as_str));
    let duration = |state| scope.histogram("steadfast_circuit_breaker_state_duration_seconds", &[("state", state)]);
    let durations = State::ALL.map(|state| (state, duration(state.as_str())));
    transitions.tap(move |change| {
        to.increment(change.to.as_str());
        if let Some(rule) = change.rule {
            openings.increment(rule.as_str());
        }
        if let Some((_, duration)) = durations.iter().find(|(state, _)| *state == change.from) {
            duration.record(change.after.as_secs_f64());
        }
    });
}

impl Measured for CircuitBreaker {
    const KIND: &'static str = "circuit_breaker";

    fn measure(&self, scope: &Scope) -> Sample {
        count_transitions(self.transitions(), scope);
        let state =
            |state: State| (state, scope.gauge("steadfast_circuit_breaker_state", &[("state", state.as_str())]));
        let (breaker, states) = (self.clone(), State::ALL.map(state));
        let total = |metric| scope.counter(metric, &[]);
        let total_failures = total("steadfast_circuit_breaker_failures_total");
        let total_slow = total("steadfast_circuit_breaker_slow_total");
        let suppressed = total("steadfast_circuit_breaker_suppressed_total");
        let rejected = total("steadfast_circuit_breaker_rejected_total");
        let gauge = |metric| scope.gauge(metric, &[]);
        let share = gauge("steadfast_circuit_breaker_share");
        let calls = gauge("steadfast_circuit_breaker_window_calls");
        let failures = gauge("steadfast_circuit_breaker_window_failures");
        let slow = gauge("steadfast_circuit_breaker_window_slow");
        Box::new(move || {
            let now = breaker.snapshot();
            for (state, gauge) in &states {
                gauge.set(f64::from(u8::from(*state == now.state)));
            }
            total_failures.absolute(now.total_failures);
            total_slow.absolute(now.total_slow);
            suppressed.absolute(now.total_suppressed);
            rejected.absolute(now.rejected);
            share.set(now.share);
            calls.set(now.calls as f64);
            failures.set(now.failures as f64);
            slow.set(now.slow as f64);
        })
    }
}

impl<K, S> Measured for KeyedBreakers<K, S>
where
    K: Eq + Hash + Clone + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    const KIND: &'static str = "keyed_breakers";

    fn measure(&self, scope: &Scope) -> Sample {
        count_transitions(self.transitions(), scope);
        let keys = |state: State| scope.gauge("steadfast_circuit_breaker_keys", &[("state", state.as_str())]);
        let (registry, keys) = (self.clone(), State::ALL.map(keys));
        Box::new(move || keys.iter().zip(registry.states()).for_each(|(gauge, n)| gauge.set(n as f64)))
    }
}

impl Measured for Fallback {
    const KIND: &'static str = "fallback";

    fn measure(&self, scope: &Scope) -> Sample {
        let outcomes = ["fell_back", "failed", "timed_out"];
        let [fell_back, failed, timed_out] = scope.counters("steadfast_fallback_calls_total", "outcome", outcomes);
        self.events().tap(move |event| match event {
            FallbackEvent::FellBack { .. } => fell_back.increment(1),
            FallbackEvent::Failed { .. } => failed.increment(1),
            FallbackEvent::TimedOut { .. } => timed_out.increment(1),
        });
        Box::new(|| ())
    }
}

#[cfg(feature = "chaos")]
impl Measured for crate::chaos::Chaos {
    const KIND: &'static str = "chaos";

    fn measure(&self, scope: &Scope) -> Sample {
        let injections = ["delayed", "failed", "replaced", "hung", "panicked"];
        let counters = scope.counters("steadfast_chaos_injected_total", "injection", injections);
        let (chaos, enabled) = (self.clone(), scope.gauge("steadfast_chaos_enabled", &[]));
        Box::new(move || {
            let now = chaos.injected();
            let counts = [now.delayed, now.failed, now.replaced, now.hung, now.panicked];
            counters.iter().zip(counts).for_each(|(counter, n)| counter.absolute(n));
            enabled.set(f64::from(u8::from(chaos.is_enabled())));
        })
    }
}

impl Measured for Hedge {
    const KIND: &'static str = "hedge";

    fn measure(&self, scope: &Scope) -> Sample {
        let [late, failed] = scope.counters("steadfast_hedge_hedges_total", "cause", ["late", "failed"]);
        let suppressed = scope.by_label("steadfast_hedge_suppressed_total", "reason", &words::suppressed());
        let won = scope.counter("steadfast_hedge_won_total", &[]);
        let all_failed = scope.counter("steadfast_hedge_all_failed_total", &[]);
        self.events().tap(move |event| match event {
            HedgeEvent::Hedged { cause: HedgeCause::Late { .. }, .. } => late.increment(1),
            HedgeEvent::Hedged { cause: HedgeCause::Failed { .. }, .. } => failed.increment(1),
            HedgeEvent::Suppressed { reason, .. } => suppressed.increment(reason.as_str()),
            HedgeEvent::Won { .. } => won.increment(1),
            HedgeEvent::AllFailed { .. } => all_failed.increment(1),
        });
        let (hedge, delay) = (self.clone(), scope.gauge("steadfast_hedge_delay_seconds", &[]));
        Box::new(move || delay.set(hedge.delay().as_secs_f64()))
    }
}

impl<K, T> Measured for Coalesce<K, T>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + Sync + 'static,
{
    const KIND: &'static str = "coalesce";

    fn measure(&self, scope: &Scope) -> Sample {
        let (coalesce, in_flight) = (self.clone(), scope.gauge("steadfast_coalesce_in_flight", &[]));
        Box::new(move || in_flight.set(coalesce.under_way() as f64))
    }
}

impl Measured for SharedCircuitBreaker {
    const KIND: &'static str = "shared_breaker";

    fn measure(&self, scope: &Scope) -> Sample {
        let events = ["reported", "opened_with_others", "store_failed", "notifier_failed"];
        let [reported, opened_with_others, store_failed, notifier_failed] =
            scope.counters("steadfast_shared_breaker_events_total", "event", events);
        self.events().tap(move |event| match event {
            SharedCircuitBreakerEvent::Reported { .. } => reported.increment(1),
            SharedCircuitBreakerEvent::OpenedWithOthers { .. } => opened_with_others.increment(1),
            SharedCircuitBreakerEvent::StoreFailed { .. } => store_failed.increment(1),
            SharedCircuitBreakerEvent::NotifierFailed { .. } => notifier_failed.increment(1),
            _ => {}
        });
        let shared = self.clone();
        let up = scope.gauge("steadfast_shared_breaker_store_up", &[]);
        let reports = scope.gauge("steadfast_shared_breaker_reports", &[]);
        Box::new(move || {
            up.set(f64::from(u8::from(!shared.is_store_down())));
            reports.set(shared.reports().len() as f64);
        })
    }
}
