//! Spans, one per call and one per attempt, and the report of a failed call, if a `tracing`
//! subscriber wants them.
//!
//! Policies report their parts in a failed call at `DEBUG`. The call itself is the one place that
//! knows the outcome, so it alone reports that, once.
use std::future::Future;

use tracing::{
    Instrument, Level, Span, field,
    level_filters::{LevelFilter, STATIC_MAX_LEVEL},
};

use super::{CallContext, CallState, Operation, as_inside, state::Attention};
use crate::{
    config::Name,
    outcome::{Cause, FailureKind, LastFailure, Outcome},
};

/// Returns `true` if a subscriber wants spans of calls. Without a subscriber this is one load of a
/// static, in the code of the call: the macro alone would be a function of its own.
#[inline]
pub(crate) fn wanted() -> bool {
    Level::DEBUG <= STATIC_MAX_LEVEL && Level::DEBUG <= LevelFilter::current() && wanted_by_a_subscriber()
}

#[cold]
#[inline(never)]
fn wanted_by_a_subscriber() -> bool {
    tracing::enabled!(target: "steadfast::call", Level::DEBUG)
}

/// Creates the span of a call. [`note`] records its result at the end.
pub(super) fn call(name: Option<&Name>) -> Span {
    let pipeline = name.map_or("", Name::as_str);
    tracing::debug_span!(target: "steadfast::call", "call", pipeline, attempts = field::Empty, ok = field::Empty)
}

/// Records the result in the current span, which is the call's.
pub(super) fn note(attempts: u32, ok: bool) {
    let span = Span::current();
    span.record("attempts", attempts);
    span.record("ok", ok);
}

/// Reports how a call failed, if that needs attention. A call inside an attempt of another pipeline
/// is a part of that one's call.
#[cold]
#[inline(never)]
pub(super) fn failed(pipeline: Option<&Name>, cx: CallContext<'_>, outcome: Outcome, state: &dyn CallState) {
    if warns()
        && !cx.is_inside_another()
        && let Some(attention) = state.needs_attention()
    {
        warn(pipeline, cx, &state.cause_of(outcome), &attention);
    }
}

/// Reports a call through a single time-out that has timed out.
#[cold]
#[inline(never)]
pub(super) fn timed_out(cx: CallContext<'_>, cause: &Cause<FailureKind>) {
    if warns() {
        warn(None, cx, cause, &Attention { attempts: 1, stop: None, fallback_failed: false });
    }
}

fn warns() -> bool {
    tracing::enabled!(target: "steadfast::call", Level::WARN)
}

fn warn(pipeline: Option<&Name>, cx: CallContext<'_>, cause: &Cause<FailureKind>, attention: &Attention) {
    let Attention { attempts, stop, fallback_failed } = attention;
    let (pipeline, operation) = (pipeline.map(Name::as_str), cx.operation());
    let (kind, stop) = (cause.kind(), stop.map(field::display));
    let fallback_failed = fallback_failed.then_some(true);
    tracing::warn!(
        target: "steadfast::call", pipeline, operation, attempts, ?kind, %cause, stop, fallback_failed, "call failed"
    );
}

/// An operation with a span around each attempt.
pub(super) struct Traced<O>(pub(super) O);

impl<O: Operation> Operation for Traced<O> {
    type Output = O::Output;
    type Error = O::Error;

    as_inside!(0: is_idempotent, is_spent, priority, name, can_overlap, on_retry);

    fn run(&mut self, cx: CallContext<'_>) -> impl Future<Output = Result<O::Output, O::Error>> + Send {
        let span = span(cx);
        self.0.run(cx).instrument(span)
    }

    fn start(
        &mut self,
        cx: CallContext<'_>,
    ) -> Option<impl Future<Output = Result<O::Output, O::Error>> + Send + use<O>> {
        self.start_after(cx, None)
    }

    fn run_after(
        &mut self,
        cx: CallContext<'_>,
        last: Option<LastFailure<'_, O::Error>>,
    ) -> impl Future<Output = Result<O::Output, O::Error>> + Send {
        let span = span(cx);
        self.0.run_after(cx, last).instrument(span)
    }

    fn start_after(
        &mut self,
        cx: CallContext<'_>,
        last: Option<LastFailure<'_, O::Error>>,
    ) -> Option<impl Future<Output = Result<O::Output, O::Error>> + Send + use<O>> {
        let span = span(cx);
        self.0.start_after(cx, last).map(|work| work.instrument(span))
    }
}

/// Creates the span of an attempt. Its fields `operation` and `hedge` are set if the operation has
/// a name and if the attempt is a hedge.
fn span(cx: CallContext<'_>) -> Span {
    let hedge = Some(cx.hedge()).filter(|hedge| *hedge > 0);
    tracing::debug_span!(target: "steadfast::call", "attempt", operation = cx.operation(), number = cx.attempt(), hedge)
}
