//! Helpers for calls through a single policy, such as [`Retry::call`](crate::retry::Retry::call),
//! where every `Err` is a failure.
//!
//! Such a method runs the first attempt in place and returns its value directly to the caller. Only
//! a failure needs the machinery of a pipeline, and only a retry continues after one. A traced call
//! [goes through a pipeline](super::call_alone) from the start, in a box, so that the method's
//! future stays small.
pub(crate) use super::traced::wanted as is_traced;
use super::{CallContext, Operation, attempt::OperationAttempt, run::has_failed, traced};
use crate::{
    config::Name,
    outcome::{CallError, Cause, Classify, ErrIsFailure, FailureKind, Outcome, Rejected, TimedOut, Verdict},
};

/// Creates the attempt of a call whose first attempt has failed with `error`.
pub(crate) fn after_failure<O: Operation>(operation: &mut O, error: O::Error) -> OperationAttempt<'_, O, ErrIsFailure> {
    let is_spent = operation.is_spent();
    let mut attempt = OperationAttempt::new(operation, &ErrIsFailure);
    let result = Err(error);
    let verdict = ErrIsFailure.classify(&result);
    attempt.state.attempts = 1;
    attempt.state.failed(result, verdict, &ErrIsFailure);
    if is_spent {
        attempt.state.set_spent();
    }
    attempt
}

/// Returns the result of a call that a retry has continued after [`after_failure`], and reports it
/// if it failed.
pub(crate) fn result<O: Operation>(
    attempt: &mut OperationAttempt<'_, O, ErrIsFailure>,
    (name, outcome): (Option<&Name>, Outcome),
    cx: CallContext<'_>,
) -> Result<O::Output, CallError<O::Error>> {
    if has_failed(outcome) {
        traced::failed(name, cx, outcome, &attempt.state);
    }
    attempt.state.result()
}

// The functions below return the error alone, so that a value stays in a register. A function that
// returns the whole result writes it to a place in memory, and then a success writes its value there
// in a narrow word and reads it again in a wide one, which waits for the narrow one: 6 ns of a call
// through a closed breaker. The copy of an error takes longer instead: an open breaker's, 9 ns.

/// Returns the error of a call whose only attempt failed.
#[cold]
#[inline(never)]
pub(crate) fn failed<E>(error: E) -> CallError<E> {
    CallError::new(Cause::Operation(error), Verdict::failure(FailureKind::Other), 1)
}

/// Returns the error of a call whose only attempt timed out, and reports it.
#[cold]
#[inline(never)]
pub(crate) fn timed_out<E>(timed_out: TimedOut, cx: CallContext<'_>) -> CallError<E> {
    traced::timed_out(cx, &Cause::TimedOut(timed_out.clone()));
    CallError::new(Cause::TimedOut(timed_out), Verdict::failure(FailureKind::Timeout), 1)
}

/// Returns the error of a call that was rejected.
#[inline]
pub(crate) fn refused<E>(rejected: Rejected) -> CallError<E> {
    CallError::new(Cause::Rejected(rejected), Verdict::ignore(), 0)
}
