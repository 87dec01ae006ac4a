//! Calls counted and timed, by a policy that does nothing else.
use std::{
    fmt,
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
};

use ::metrics::{Counter, Gauge, Histogram};

use super::{
    registry::{Scope, Words},
    words::{KINDS, REASONS},
};
use crate::{
    call::{Attempt, CallContext, Policy},
    outcome::{Class, FailureKind, Outcome, Rejected},
    time::{Clock, Instant},
};

/// Counts and times the calls through it: [`Metrics::calls`](super::Metrics::calls). A clone is the same meter.
#[derive(Clone)]
pub struct CallMeter(Arc<Inner>);

struct Inner {
    clock: Clock,
    in_flight: Gauge,
    success: Ended,
    failure: Ended,
    ignored: Ended,
    rejected: Ended,
    cancelled: Ended,
    failures: Words,
    rejections: Words,
}

struct Ended {
    count: Counter,
    took: Histogram,
}

impl CallMeter {
    pub(super) fn new(scope: &Scope) -> Self {
        let ended = |outcome| Ended {
            count: scope.counter("steadfast_calls_total", &[("outcome", outcome)]),
            took: scope.histogram("steadfast_call_duration_seconds", &[("outcome", outcome)]),
        };
        Self(Arc::new(Inner {
            clock: scope.clock().clone(),
            in_flight: scope.gauge("steadfast_calls_in_flight", &[]),
            success: ended("success"),
            failure: ended("failure"),
            ignored: ended("ignored"),
            rejected: ended("rejected"),
            cancelled: ended("cancelled"),
            failures: scope.words("steadfast_call_failures_total", "kind", &KINDS),
            rejections: scope.words("steadfast_call_rejections_total", "reason", &REASONS),
        }))
    }

    /// Counts a refusal that was made outside of any pipeline, by a policy's own door, as a call that was rejected.
    pub fn count_rejection(&self, rejected: &Rejected) {
        self.0.rejected.count.increment(1);
        self.0.rejections.count(rejected.reason().as_str());
    }
}

impl Policy for CallMeter {
    #[inline]
    async fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> Outcome {
        let mut call = Call::begin(&self.0);
        let outcome = {
            let mut work = pin!(inner.attempt(cx));
            poll_fn(|task| {
                // A panic in it is the call's own; one of a neighbour in the same task is not.
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

/// A call under way. Dropped before its end it was given up, or panicked.
struct Call<'a> {
    meter: &'a Inner,
    began: Instant,
    ended: bool,
    /// Set while the work is polled.
    running: bool,
}

impl<'a> Call<'a> {
    fn begin(meter: &'a Inner) -> Self {
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
                    meter.rejections.count(rejected.reason().as_str());
                }
            }
        }
    }

    fn count(&self, ended: &Ended) {
        ended.count.increment(1);
        ended.took.record((self.meter.clock.now() - self.began).as_secs_f64());
    }

    fn fail(&self, kind: FailureKind) {
        self.count(&self.meter.failure);
        self.meter.failures.count(kind.as_str());
    }
}

impl Drop for Call<'_> {
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
