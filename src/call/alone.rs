//! What the doors of single policies have in common: a call with one policy around it, where every `Err` is a failure.
//!
//! Such a door runs the first attempt in place and gives its value straight to the caller, as a call by hand would. Only what
//! follows an error needs the machinery of a pipeline, and only a retry goes on after one. A call that somebody traces
//! [takes the way of a pipeline](super::call_alone) from the start, in a box: its door's future stays small.
pub(crate) use super::traced::wanted as is_traced;
use super::{Operation, policy::Judged};
use crate::outcome::{CallError, Cause, Classify, ErrIsFailure, FailureKind, Rejected, TimedOut, Verdict};

/// A call whose first attempt a door has made, in vain.
pub(crate) fn after_failure<O: Operation>(operation: O, error: O::Error) -> Judged<'static, O, ErrIsFailure> {
    let mut judged = Judged::new(operation, &ErrIsFailure);
    let result = Err(error);
    let verdict = ErrIsFailure.classify(&result);
    judged.kept.attempts = 1;
    judged.kept.failed(result, verdict);
    judged
}

/// The error of a call whose only attempt failed.
#[cold]
#[inline(never)]
pub(crate) fn failed<E>(error: E) -> CallError<E> {
    CallError::new(Cause::Operation(error), Verdict::failure(FailureKind::Other), 1)
}

/// The error of a call whose only attempt was cut short.
pub(crate) fn timed_out<E>(timed_out: TimedOut) -> CallError<E> {
    CallError::new(Cause::TimedOut(timed_out), Verdict::failure(FailureKind::Timeout), 1)
}

/// The error of a call that was refused.
#[inline]
pub(crate) fn refused<E>(rejected: Rejected) -> CallError<E> {
    CallError::new(Cause::Rejected(rejected), Verdict::ignore(), 0)
}
