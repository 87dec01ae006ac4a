//! The state of a call, kept where its operation ends: the value, and the parts that only failures
//! have.
use std::time::Duration;

use crate::outcome::{
    CallError, Cause, Class, Classify, FailureKind, Hint, History, LastFailure, NextAttempt, Outcome, PolicyKind,
    Reason, Rejected, Retrying, StopReason, TimedOut, Verdict,
};

/// The parts of a call that a policy may read and write beyond the [`Outcome`](crate::Outcome).
/// [`call_state`](super::AttemptInternals::call_state) returns it; only failures need it.
pub(crate) trait CallState: Send {
    /// Returns the current rejection, if the last outcome is one by a policy of this call. A
    /// rejection by a policy inside the operation is the operation's own error.
    fn rejection(&self) -> Option<&Rejected>;

    /// Returns the server's hint that came with the last failure.
    fn hint(&self) -> Hint;

    /// Returns the cause of the last failure or rejection, whose outcome was `outcome`, for events.
    fn cause_of(&self, outcome: Outcome) -> Cause<FailureKind>;

    /// Returns the facts about a call that failed in the end, if it needs attention: it timed out,
    /// a retry gave it up, or its fallback failed, too. All others are the caller's own matter.
    fn needs_attention(&self) -> Option<Attention>;

    /// Returns `true` if the operation cannot run again, because its input was moved into its last
    /// run.
    fn is_spent(&self) -> bool;

    /// Replaces the last outcome with a rejection.
    fn reject(&mut self, rejected: Rejected);

    /// Replaces the last outcome with a failure that a policy produced: reported as that policy's
    /// rejection, judged as `verdict`. The policy returns that failure as its outcome.
    #[cfg(feature = "chaos")]
    fn fail(&mut self, made_by: Rejected, verdict: Verdict);

    /// Replaces the last outcome with a time-out.
    fn time_out(&mut self, timed_out: TimedOut);

    /// Records that no further attempt follows, with the reason and the elapsed time.
    fn gave_up(&mut self, stop: StopReason, elapsed: Duration);

    /// Records that the fallback timed out and was dropped. The call's own failure stays.
    fn fallback_timed_out(&mut self, timed_out: TimedOut);
}

/// Facts about a failed call that needs attention.
pub(crate) struct Attention {
    pub(crate) attempts: u32,
    pub(crate) stop: Option<StopReason>,
    pub(crate) fallback_failed: bool,
}

/// The one implementation of [`CallState`], kept in the future of the call.
pub(super) struct TypedCallState<T, E> {
    pub(super) value: Option<T>,
    /// Number of times that the operation was started.
    pub(super) attempts: u32,
    /// `true` if a policy runs the fallback by its own rules.
    pub(super) fallback_claimed: bool,
    /// `true` if the operation failed and cannot run again.
    spent: bool,
    /// Written only by failures, so that a success moves none of it.
    failure: FailureState<E>,
}

struct FailureState<E> {
    cause: Option<Cause<E>>,
    verdict: Verdict,
    history: Option<Box<FailureHistory<E>>>,
}

/// Parts that few failed calls have: boxed, so that the state stays small.
struct FailureHistory<E> {
    /// `true` if a retry has recorded this call. The fields up to `stopped` are its records.
    retried: bool,
    /// `true` if the retry made another attempt: `first` then holds the cause of the first failure.
    repeated: bool,
    first: Option<Cause<E>>,
    first_kind: Option<FailureKind>,
    /// Cause of the failure that the retry repeated last, unless that is the first one.
    last: Option<Cause<E>>,
    last_is_first: bool,
    last_verdict: Verdict,
    stopped: Option<(StopReason, Duration)>,
    /// `true` if the fallback failed, and the cause, unless it returned a value that was judged a
    /// failure.
    fallback_failed: bool,
    fallback: Option<Cause<E>>,
}

impl<E> FailureState<E> {
    fn history(&mut self) -> &mut FailureHistory<E> {
        self.history.get_or_insert_with(|| {
            Box::new(FailureHistory {
                retried: false,
                repeated: false,
                first: None,
                first_kind: None,
                last: None,
                last_is_first: false,
                last_verdict: Verdict::success(),
                stopped: None,
                fallback_failed: false,
                fallback: None,
            })
        })
    }
}

impl<T, E> TypedCallState<T, E> {
    #[inline]
    pub(super) const fn new() -> Self {
        let failure = FailureState { cause: None, verdict: Verdict::success(), history: None };
        Self { value: None, attempts: 0, fallback_claimed: false, spent: false, failure }
    }

    /// Records the result of the operation, and returns its outcome.
    #[inline]
    pub(super) fn judge<C: Classify<T, E> + ?Sized>(&mut self, result: Result<T, E>, classify: &C) -> Outcome {
        let verdict = classify.classify(&result);
        match result {
            Ok(value) if verdict.is_success() => {
                self.value = Some(value);
                Outcome::Judged(Class::Success)
            }
            result => {
                self.failed(result, verdict, classify);
                verdict.outcome()
            }
        }
    }

    /// Records a result that was not judged a success.
    #[cold]
    #[inline(never)]
    pub(super) fn failed<C: Classify<T, E> + ?Sized>(&mut self, result: Result<T, E>, verdict: Verdict, classify: &C) {
        self.failure.verdict = verdict;
        (self.value, self.failure.cause) = match as_error(result, verdict, classify) {
            Ok(value) => (Some(value), None),
            Err(error) => (None, Some(Cause::Operation(error))),
        };
    }

    /// Records that the operation cannot run again. The server's hint is kept, as every policy may
    /// need it.
    #[cold]
    pub(super) const fn set_spent(&mut self) {
        self.spent = true;
    }

    /// Takes over the result of a fork. Its attempts are already counted here, and the records of
    /// an outer retry stay.
    pub(super) fn adopt(&mut self, fork: Self) {
        let FailureState { cause, verdict, history } = fork.failure;
        self.value = fork.value;
        self.failure.cause = cause;
        self.failure.verdict = verdict;
        match (&mut self.failure.history, history) {
            (Some(mine), Some(theirs)) if mine.retried => mine.stopped = theirs.stopped,
            (mine, theirs @ Some(_)) => *mine = theirs,
            (_, None) => {}
        }
    }

    pub(super) const fn cause(&self) -> Option<&Cause<E>> {
        self.failure.cause.as_ref()
    }

    pub(super) const fn verdict(&self) -> Verdict {
        self.failure.verdict
    }

    /// Makes the fallback's value the call's.
    pub(super) fn take_over(&mut self, value: T) {
        self.value = Some(value);
        self.failure.cause = None;
        self.failure.verdict = Verdict::success();
    }

    /// Records the fallback's failure; `None` if it returned a value that was judged a failure.
    pub(super) fn fallback_failed(&mut self, cause: Option<Cause<E>>) {
        let history = self.failure.history();
        (history.fallback_failed, history.fallback) = (true, cause);
    }

    /// Returns the failure of the attempt that is over, as hooks see it.
    pub(super) const fn retrying<'a>(&'a self, next: NextAttempt<'a>) -> Retrying<'a, T, E> {
        Retrying::new(self.value.as_ref(), LastFailure::new(self.cause(), self.verdict()), next)
    }

    /// Records that another attempt follows. The last outcome is over; the first of the call, and
    /// the last, are remembered.
    pub(super) fn again(&mut self) {
        self.value = None;
        let (cause, verdict) = (self.failure.cause.take(), self.failure.verdict);
        let history = self.failure.history();
        history.retried = true;
        history.last_verdict = verdict;
        history.last_is_first = !std::mem::replace(&mut history.repeated, true);
        if history.last_is_first {
            (history.first, history.first_kind) = (cause, verdict.kind());
        } else {
            history.last = cause;
        }
        history.stopped = None; // an inner retry's word on the attempt that is over
    }

    /// Returns the failure that a retry repeats, if it repeats one.
    #[inline]
    pub(super) fn last_failure(&self) -> Option<LastFailure<'_, E>> {
        let history = self.failure.history.as_deref().filter(|history| history.repeated)?;
        let cause = if history.last_is_first { &history.first } else { &history.last };
        Some(LastFailure::new(cause.as_ref(), history.last_verdict))
    }

    /// Returns the result of the call.
    #[inline]
    pub(super) fn result(&mut self) -> Result<T, CallError<E>> {
        match self.value.take() {
            Some(value) => Ok(value),
            None => self.failure_of_the_call(),
        }
    }

    /// Returns the whole result, for the reason in `alone`.
    #[cold]
    #[inline(never)]
    fn failure_of_the_call(&mut self) -> Result<T, CallError<E>> {
        Err(self.error())
    }

    fn error(&mut self) -> CallError<E> {
        let FailureState { cause, verdict, history } = &mut self.failure;
        // Only a policy that neither made the attempt nor rejected it leaves no cause at all.
        let cause = cause.take().unwrap_or_else(|| {
            let reason = Reason::Custom("it neither made an attempt nor rejected the call");
            Cause::Rejected(Rejected::new(PolicyKind::Custom("policy"), reason))
        });
        let Some(history) = history.take() else { return CallError::new(cause, *verdict, self.attempts) };
        let FailureHistory { retried, first, first_kind, stopped, fallback, .. } = *history;
        let cut_short = || match &cause {
            Cause::TimedOut(timed_out) => Some((StopReason::TimedOut, timed_out.after)),
            Cause::Operation(_) | Cause::Rejected(_) => None,
        };
        let history = stopped.or_else(cut_short).filter(|_| retried).map(|(stop, elapsed)| History {
            first,
            first_kind,
            last_kind: verdict.kind(),
            elapsed,
            stop,
        });
        CallError::new(cause, *verdict, self.attempts).with(history, fallback)
    }
}

/// Replaces a value that was judged a failure, or a rejection, with the classifier's error for it.
pub(super) fn as_error<T, E, C>(result: Result<T, E>, verdict: Verdict, classify: &C) -> Result<T, E>
where
    C: Classify<T, E> + ?Sized,
{
    match result {
        Ok(value) if verdict.is_failure() || verdict.is_refused() => classify.error_for(value, verdict),
        result => result,
    }
}

impl<T: Send, E: Send> CallState for TypedCallState<T, E> {
    fn rejection(&self) -> Option<&Rejected> {
        match &self.failure.cause {
            Some(Cause::Rejected(rejected)) if !self.failure.verdict.is_failure() => Some(rejected),
            _ => None,
        }
    }

    fn hint(&self) -> Hint {
        self.failure.verdict.hint()
    }

    #[cold]
    fn cause_of(&self, outcome: Outcome) -> Cause<FailureKind> {
        match (&self.failure.cause, outcome.kind()) {
            (Some(Cause::Rejected(rejected)), _) => Cause::Rejected(rejected.clone()),
            (Some(Cause::TimedOut(timed_out)), _) => Cause::TimedOut(timed_out.clone()),
            (_, Some(kind)) => Cause::Operation(kind),
            (_, None) => {
                let reason = Reason::Custom("a policy inside it rejected the call");
                let rejected = Rejected::new(PolicyKind::Custom("operation"), reason);
                Cause::Rejected(match self.hint().retry_after() {
                    Some(wait) => rejected.with_retry_after(wait),
                    None => rejected,
                })
            }
        }
    }

    #[cold]
    fn needs_attention(&self) -> Option<Attention> {
        let history = self.failure.history.as_deref();
        let stop = history.and_then(|history| history.stopped).map(|(stop, _)| stop);
        let fallback_failed = history.is_some_and(|history| history.fallback_failed);
        let given_up = stop.is_some_and(|stop| stop != StopReason::Nested);
        let timed_out = matches!(self.failure.cause, Some(Cause::TimedOut(_)));
        (given_up || timed_out || fallback_failed).then_some(Attention {
            attempts: self.attempts,
            stop,
            fallback_failed,
        })
    }

    fn is_spent(&self) -> bool {
        self.spent
    }

    fn reject(&mut self, rejected: Rejected) {
        self.value = None;
        self.failure.verdict = Verdict::ignore();
        self.failure.cause = Some(Cause::Rejected(rejected));
    }

    #[cfg(feature = "chaos")]
    fn fail(&mut self, made_by: Rejected, verdict: Verdict) {
        self.value = None;
        self.failure.verdict = verdict;
        self.failure.cause = Some(Cause::Rejected(made_by));
    }

    fn time_out(&mut self, timed_out: TimedOut) {
        self.value = None;
        self.failure.verdict = Verdict::failure(FailureKind::Timeout);
        self.failure.cause = Some(Cause::TimedOut(timed_out));
    }

    fn gave_up(&mut self, stop: StopReason, elapsed: Duration) {
        let first_kind = self.failure.verdict.kind();
        let history = self.failure.history();
        history.retried = true;
        if !history.repeated {
            history.first_kind = first_kind;
        }
        history.stopped = Some((stop, elapsed));
    }

    fn fallback_timed_out(&mut self, timed_out: TimedOut) {
        self.fallback_failed(Some(Cause::TimedOut(timed_out)));
    }
}
