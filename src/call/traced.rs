//! Spans: one for a call, one for each of its attempts, where a `tracing` subscriber wants them.
use std::future::Future;

use tracing::{Instrument, Level, Span, field};

use super::{CallContext, Operation, as_inside};
use crate::config::Name;

/// Whether anybody wants spans of calls now. Without a subscriber it is one load of a static.
#[inline]
pub(crate) fn wanted() -> bool {
    tracing::enabled!(target: "steadfast::call", Level::DEBUG)
}

/// The span of a call. What came of it is noted by [`note`] in its end.
pub(super) fn call(name: Option<&Name>) -> Span {
    let pipeline = name.map_or("", Name::as_str);
    tracing::debug_span!(target: "steadfast::call", "call", pipeline, attempts = field::Empty, ok = field::Empty)
}

/// Notes what came of the call whose span is the current one.
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

    as_inside!(0: is_idempotent, is_spent, priority, name, can_overlap);

    fn run(&mut self, cx: CallContext<'_>) -> impl Future<Output = Result<O::Output, O::Error>> + Send {
        let span = span(cx);
        self.0.run(cx).instrument(span)
    }

    fn start(
        &mut self,
        cx: CallContext<'_>,
    ) -> Option<impl Future<Output = Result<O::Output, O::Error>> + Send + use<O>> {
        let span = span(cx);
        self.0.start(cx).map(|work| work.instrument(span))
    }
}

/// The span of an attempt. It has an `operation` where that has a name, a `hedge` where it was started beside another.
fn span(cx: CallContext<'_>) -> Span {
    let hedge = Some(cx.hedge()).filter(|hedge| *hedge > 0);
    tracing::debug_span!(target: "steadfast::call", "attempt", operation = cx.operation(), number = cx.attempt(), hedge)
}
