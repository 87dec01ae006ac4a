//! Metrics of limiters, load shedding and degradation.
use std::hash::{BuildHasher, Hash};

use super::super::{
    registry::{Measured, Sample, Scope},
    words::REASONS,
};
use crate::{
    observe::Subscription,
    outcome::Priority,
    throttling::{
        AdaptiveLimiter, ClientThrottle, ConcurrencyLimiter, Degradation, DegradationEvent, KeyedRateLimiter,
        RateLimiter, SharedRateLimitEvent, SharedRateLimiter, Shedder, ThrottlingEvent,
    },
};

/// Counts the events that all limiters have, with the kind of limiter as the label `policy`.
/// Counters of `reasons`, those that this kind has, read 0 from the start.
fn count(events: Subscription<ThrottlingEvent>, scope: &Scope, policy: &'static str, reasons: &[&'static str]) {
    let rejected = Rejections::new(scope, policy, reasons);
    let labels = [("policy", policy)];
    let queued = scope.counter("steadfast_throttling_queued_total", &labels);
    let waits = scope.histogram("steadfast_throttling_wait_seconds", &labels);
    let changed = scope.counter("steadfast_throttling_changed_total", &labels);
    events.tap(move |event| match event {
        ThrottlingEvent::Rejected { reason: why, .. } => rejected.increment(why.as_str()),
        ThrottlingEvent::Queued { wait } => {
            queued.increment(1);
            if let Some(wait) = wait {
                waits.record(wait.as_secs_f64());
            }
        }
        ThrottlingEvent::LimitChanged => changed.increment(1),
        _ => {}
    });
}

/// Counters of rejections by reason, of one limiter.
struct Rejections {
    scope: Scope,
    policy: &'static str,
    known: Vec<(&'static str, ::metrics::Counter)>,
}

const REJECTED: &str = "steadfast_throttling_rejected_total";

impl Rejections {
    fn new(scope: &Scope, policy: &'static str, reasons: &[&'static str]) -> Self {
        let of = |reason| scope.counter(REJECTED, &[("policy", policy), ("reason", reason)]);
        debug_assert!(reasons.iter().all(|reason| REASONS.contains(reason)));
        let known = reasons.iter().map(|reason| (*reason, of(reason))).collect();
        Self { scope: scope.clone(), policy, known }
    }

    fn increment(&self, reason: &'static str) {
        match self.known.iter().find(|(known, _)| *known == reason) {
            Some((_, counter)) => counter.increment(1),
            None => self.scope.counter(REJECTED, &[("policy", self.policy), ("reason", reason)]).increment(1),
        }
    }
}

impl Measured for RateLimiter {
    const KIND: &'static str = "rate_limit";

    fn measure(&self, scope: &Scope) -> Sample {
        count(self.events(), scope, Self::KIND, &["rate_limited", "too_large"]);
        let (limiter, in_use) = (self.clone(), scope.gauge("steadfast_rate_limit_in_use", &[]));
        Box::new(move || in_use.set(limiter.used() as f64))
    }
}

impl<K, S> Measured for KeyedRateLimiter<K, S>
where
    K: Eq + Hash + Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    const KIND: &'static str = "keyed_rate_limit";

    fn measure(&self, scope: &Scope) -> Sample {
        let (limiter, keys) = (self.clone(), scope.gauge("steadfast_rate_limit_keys", &[]));
        Box::new(move || keys.set(limiter.len() as f64))
    }
}

impl Measured for SharedRateLimiter {
    const KIND: &'static str = "shared_rate_limit";

    fn measure(&self, scope: &Scope) -> Sample {
        let rejected = Rejections::new(scope, Self::KIND, &["rate_limited", "too_large", "store_down"]);
        let failures = scope.counter("steadfast_shared_limit_store_failures_total", &[]);
        let permits = scope.counter("steadfast_shared_limit_leased_total", &[]);
        let changed = scope.counter("steadfast_throttling_changed_total", &[("policy", Self::KIND)]);
        self.events().tap(move |event| match event {
            SharedRateLimitEvent::Rejected { reason: why, .. } => rejected.increment(why.as_str()),
            SharedRateLimitEvent::Leased { permits: n } => permits.increment(u64::from(*n)),
            SharedRateLimitEvent::StoreFailed { .. } => failures.increment(1),
            SharedRateLimitEvent::LimitChanged => changed.increment(1),
            SharedRateLimitEvent::StoreBack => {}
        });
        let limiter = self.clone();
        let up = scope.gauge("steadfast_shared_limit_store_up", &[]);
        let leased = scope.gauge("steadfast_shared_limit_leased", &[]);
        let tenants = scope.gauge("steadfast_shared_limit_tenants", &[]);
        Box::new(move || {
            up.set(f64::from(u8::from(!limiter.is_store_down())));
            leased.set(limiter.leased() as f64);
            tenants.set(limiter.tenants() as f64);
        })
    }
}

impl Measured for ConcurrencyLimiter {
    const KIND: &'static str = "concurrency_limit";

    fn measure(&self, scope: &Scope) -> Sample {
        count(self.events(), scope, Self::KIND, &["queue_full", "waited_too_long", "too_large"]);
        let limiter = self.clone();
        let capacity = scope.gauge("steadfast_concurrency_limit_capacity", &[]);
        let in_use = scope.gauge("steadfast_concurrency_limit_in_use", &[]);
        let waiting = scope.gauge("steadfast_concurrency_limit_waiting", &[]);
        Box::new(move || {
            let permits = limiter.capacity();
            capacity.set(f64::from(permits));
            in_use.set((i64::from(permits) - limiter.available()) as f64);
            waiting.set(limiter.waiting() as f64);
        })
    }
}

impl Measured for AdaptiveLimiter {
    const KIND: &'static str = "adaptive_limit";

    fn measure(&self, scope: &Scope) -> Sample {
        count(self.events(), scope, Self::KIND, &["queue_full", "waited_too_long", "shed"]);
        let limiter = self.clone();
        let limit = scope.gauge("steadfast_adaptive_limit_limit", &[]);
        let in_flight = scope.gauge("steadfast_adaptive_limit_in_flight", &[]);
        let waiting = scope.gauge("steadfast_adaptive_limit_waiting", &[]);
        let base = scope.gauge("steadfast_adaptive_limit_base_latency_seconds", &[]);
        Box::new(move || {
            limit.set(f64::from(limiter.limit()));
            in_flight.set(f64::from(limiter.in_flight()));
            waiting.set(limiter.waiting() as f64);
            base.set(limiter.base_latency().unwrap_or_default().as_secs_f64());
        })
    }
}

impl Measured for Shedder {
    const KIND: &'static str = "shedder";

    fn measure(&self, scope: &Scope) -> Sample {
        count(self.events(), scope, Self::KIND, &["shed"]);
        let began = scope.counter("steadfast_shed_began_total", &[]);
        self.events().tap(move |event| {
            if matches!(event, ThrottlingEvent::SheddingBegan) {
                began.increment(1);
            }
        });
        let share = |priority: Priority| scope.gauge("steadfast_shed_ratio", &[("priority", priority.as_str())]);
        let (shedder, shares) = (self.clone(), Priority::ALL.map(|priority| (priority, share(priority))));
        Box::new(move || shares.iter().for_each(|(priority, gauge)| gauge.set(shedder.shed_share(*priority))))
    }
}

impl Measured for ClientThrottle {
    const KIND: &'static str = "client_throttle";

    fn measure(&self, scope: &Scope) -> Sample {
        count(self.events(), scope, Self::KIND, &["likely_refused"]);
        let throttle = self.clone();
        let requests = scope.gauge("steadfast_client_throttle_requests", &[]);
        let accepts = scope.gauge("steadfast_client_throttle_accepts", &[]);
        let rejection = scope.gauge("steadfast_client_throttle_rejection_ratio", &[]);
        Box::new(move || {
            let now = throttle.snapshot();
            requests.set(now.requests as f64);
            accepts.set(now.accepts as f64);
            rejection.set(now.rejection);
        })
    }
}

impl Measured for Degradation {
    const KIND: &'static str = "degradation";

    fn measure(&self, scope: &Scope) -> Sample {
        let switches = scope.clone();
        self.events().tap(move |event| {
            let (feature, to) = match event {
                DegradationEvent::SwitchedOff { feature } => (feature, "off"),
                DegradationEvent::SwitchedOn { feature } => (feature, "on"),
            };
            let labels = [("feature", feature.as_str()), ("to", to)];
            switches.counter("steadfast_degradation_switches_total", &labels).increment(1);
        });
        let (degradation, off) = (self.clone(), scope.gauge("steadfast_degradation_features_off", &[]));
        Box::new(move || off.set(degradation.switched_off().len() as f64))
    }
}
