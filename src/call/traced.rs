//! Spans: one per call and one per attempt, if a `tracing` subscriber wants them.
use std::future::Future;

use tracing::{Instrument, Level, Span, field};

use super::{CallContext, Operation, as_inside};
use crate::{config::Name, outcome::LastFailure};

/// Returns `true` if a subscriber wants spans of calls. Without a subscriber this is one load of a
/// static.
#[inline]
pub(crate) fn wanted() -> bool {
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
