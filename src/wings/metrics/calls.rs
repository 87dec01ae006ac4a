//! A policy that counts and times calls.
use std::{
    fmt,
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
};

use ::metrics::{Counter, Gauge, Histogram};

use super::{
    registry::{LabelledCounters, Scope},
    words::{REASONS, kinds},
};
use crate::{
    call::{Attempt, CallContext, Policy},
    outcome::{Class, FailureKind, Outcome, Rejected},
    time::{Clock, Instant},
};

/// A policy that counts and times calls: see [`Metrics::calls`](super::Metrics::calls). Clones
/// share their metrics.
#[derive(Clone)]
pub struct CallMeter(Arc<Meters>);

struct Meters {
    clock: Clock,
    in_flight: Gauge,
    success: OutcomeMeter,
    failure: OutcomeMeter,
    ignored: OutcomeMeter,
    rejected: OutcomeMeter,
    cancelled: OutcomeMeter,
    failures: LabelledCounters,
    rejections: LabelledCounters,
}

struct OutcomeMeter {
    count: Counter,
    duration: Histogram,
}

impl CallMeter {
    pub(super) fn new(scope: &Scope) -> Self {
        let meter = |outcome| OutcomeMeter {
            count: scope.counter("steadfast_calls_total", &[("outcome", outcome)]),
            duration: scope.histogram("steadfast_call_duration_seconds", &[("outcome", outcome)]),
        };
        Self(Arc::new(Meters {
            clock: scope.clock().clone(),
            in_flight: scope.gauge("steadfast_calls_in_flight", &[]),
            success: meter("success"),
            failure: meter("failure"),
            ignored: meter("ignored"),
            rejected: meter("rejected"),
            cancelled: meter("cancelled"),
            failures: scope.by_label("steadfast_call_failures_total", "kind", &kinds()),
            rejections: scope.by_label("steadfast_call_rejections_total", "reason", &REASONS),
        }))
    }

    /// Counts a rejection outside of any pipeline, such as a failed `try_acquire` of a policy, as a
    /// rejected call.
    pub fn count_rejection(&self, rejected: &Rejected) {
        self.0.rejected.count.increment(1);
        self.0.rejections.increment(rejected.reason().as_str());
    }
}

impl Policy for CallMeter {
    #[inline]
    async fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> Outcome {
        let mut call = CallInFlight::begin(&self.0);
        let outcome = {
            let mut work = pin!(inner.attempt(cx));
            poll_fn(|task| {
                // Tells a panic of the work from one of another future in the same task.
                call.running = true;
                let polled = work.as_mut().poll(task);
                call.running = false;
                polled
            })
            .await
        };
        call.end(outcome, &mut inner);
        outcome
    }
}

/// A call in flight. Dropped before its end, it was cancelled or panicked.
struct CallInFlight<'a> {
    meter: &'a Meters,
    began: Instant,
    ended: bool,
    /// `true` while the work is polled.
    running: bool,
}

impl<'a> CallInFlight<'a> {
    fn begin(meter: &'a Meters) -> Self {
        meter.in_flight.increment(1.0);
        Self { meter, began: meter.clock.now(), ended: false, running: false }
    }

    fn end(mut self, outcome: Outcome, inner: &mut impl Attempt) {
        self.ended = true;
        let meter = self.meter;
        match outcome {
            Outcome::Judged(Class::Success) => self.count(&meter.success),
            Outcome::Judged(Class::Ignore) => self.count(&meter.ignored),
            Outcome::Judged(Class::Failure { kind, .. }) => self.fail(kind),
            Outcome::Rejected => {
                self.count(&meter.rejected);
                if let Some(rejected) = inner.call_state().rejection() {
                    meter.rejections.increment(rejected.reason().as_str());
                }
            }
        }
    }

    fn count(&self, outcome: &OutcomeMeter) {
        outcome.count.increment(1);
        outcome.duration.record((self.meter.clock.now() - self.began).as_secs_f64());
    }

    fn fail(&self, kind: FailureKind) {
        self.count(&self.meter.failure);
        self.meter.failures.increment(kind.as_str());
    }
}

impl Drop for CallInFlight<'_> {
    fn drop(&mut self) {
        self.meter.in_flight.decrement(1.0);
        if !self.ended {
            match self.running && std::thread::panicking() {
                true => self.fail(FailureKind::Panic),
                false => self.count(&self.meter.cancelled),
            }
        }
    }
}

impl fmt::Debug for CallMeter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CallMeter")
    }
}
