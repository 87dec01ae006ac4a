//! What is kept of a call where its operation ends: the value, and all that only failures have.
use std::time::Duration;

use crate::outcome::{
    CallError, Cause, Class, Classify, FailureKind, Hint, History, Outcome, PolicyKind, Reason, Rejected, Stop,
    TimedOut, Verdict,
};

/// What a policy may read and write of the call it is part of, beyond the [`Outcome`](crate::Outcome): reached by
/// [`Attempt::ledger`](super::Attempt::ledger), and only needed where something went wrong.
///
/// Implemented by this crate alone.
pub trait Ledger: Send + sealed::Sealed {
    /// The refusal that stands, if the last outcome is one of a policy of this call. (A refusal by a policy inside the operation is
    /// the operation's own error.)
    fn rejection(&self) -> Option<&Rejected>;

    /// What the server said, with the last failure, about calling it again.
    fn hint(&self) -> Hint;

    /// Returns whether the operation cannot be run again: what it needs was moved into its last run.
    fn is_spent(&self) -> bool;

    /// Puts a refusal in the place of whatever was there.
    fn reject(&mut self, rejected: Rejected);

    /// Puts a failure that a policy made in the place of whatever was there: told as its refusal, judged as the failure. The policy
    /// returns that failure as its outcome.
    fn fail(&mut self, made_by: Rejected, verdict: Verdict);

    /// Puts a time-out in the place of whatever was there.
    fn time_out(&mut self, timed_out: TimedOut);

    /// Another attempt follows: the last outcome is over, and remembered if it was the call's first.
    fn again(&mut self);

    /// No other attempt follows, for this reason, after this time.
    fn gave_up(&mut self, stop: Stop, elapsed: Duration);

    /// The call's substitute was dropped, for it took too long. What it should have taken the place of stays.
    fn fallback_timed_out(&mut self, timed_out: TimedOut);
}

mod sealed {
    pub trait Sealed {}
}

/// The one ledger, in the future of the call.
pub(super) struct Kept<T, E> {
    pub(super) value: Option<T>,
    /// How often the operation was started.
    pub(super) attempts: u32,
    /// Set where the operation failed and cannot be run again.
    spent: bool,
    /// Written by failures alone, so that a success moves none of it.
    bad: Bad<E>,
}

struct Bad<E> {
    cause: Option<Cause<E>>,
    verdict: Verdict,
    past: Option<Box<Past<E>>>,
}

/// What few calls leave behind.
struct Past<E> {
    /// Whether a retry has been here: the next four are its.
    retried: bool,
    /// Whether it made another attempt: then `first` is what the first came to.
    repeated: bool,
    first: Option<Cause<E>>,
    first_kind: Option<FailureKind>,
    stopped: Option<(Stop, Duration)>,
    /// What the substitute failed with.
    fallback: Option<Cause<E>>,
}

impl<E> Bad<E> {
    fn past(&mut self) -> &mut Past<E> {
        self.past.get_or_insert_with(|| {
            Box::new(Past {
                retried: false,
                repeated: false,
                first: None,
                first_kind: None,
                stopped: None,
                fallback: None,
            })
        })
    }
}

impl<T, E> Kept<T, E> {
    #[inline]
    pub(super) const fn new() -> Self {
        let bad = Bad { cause: None, verdict: Verdict::success(), past: None };
        Self { value: None, attempts: 0, spent: false, bad }
    }

    /// The operation came back.
    #[inline]
    pub(super) fn judge<C: Classify<T, E> + ?Sized>(&mut self, result: Result<T, E>, classify: &C) -> Outcome {
        let verdict = classify.classify(&result);
        match result {
            Ok(value) if verdict.is_success() => {
                self.value = Some(value);
                Outcome::Judged(Class::Success)
            }
            result => {
                self.failed(result, verdict);
                verdict.outcome()
            }
        }
    }

    /// The operation came back with something that was not judged a success.
    #[cold]
    #[inline(never)]
    pub(super) fn failed(&mut self, result: Result<T, E>, verdict: Verdict) {
        self.bad.verdict = verdict;
        (self.value, self.bad.cause) = match result {
            Ok(value) => (Some(value), None),
            Err(error) => (None, Some(Cause::Operation(error))),
        };
    }

    /// Notes that the operation cannot be run again. The server's hint stays beside that: it is for every policy.
    #[cold]
    pub(super) const fn set_spent(&mut self) {
        self.spent = true;
    }

    /// Takes over what came of a fork. The attempts were counted here already, and what an outer retry remembers stays.
    pub(super) fn adopt(&mut self, fork: Self) {
        let Bad { cause, verdict, past } = fork.bad;
        self.value = fork.value;
        self.bad.cause = cause;
        self.bad.verdict = verdict;
        match (&mut self.bad.past, past) {
            (Some(mine), Some(theirs)) if mine.retried => mine.stopped = theirs.stopped,
            (mine, theirs @ Some(_)) => *mine = theirs,
            (_, None) => {}
        }
    }

    pub(super) const fn cause(&self) -> Option<&Cause<E>> {
        self.bad.cause.as_ref()
    }

    pub(super) const fn verdict(&self) -> Verdict {
        self.bad.verdict
    }

    /// The substitute's value is the call's.
    pub(super) fn take_over(&mut self, value: T) {
        self.value = Some(value);
        self.bad.cause = None;
        self.bad.verdict = Verdict::success();
    }

    /// The substitute failed: with this, if it was no value.
    pub(super) fn fallback_failed(&mut self, cause: Option<Cause<E>>) {
        self.bad.past().fallback = cause;
    }

    /// What the caller gets.
    #[inline]
    pub(super) fn result(&mut self) -> Result<T, CallError<E>> {
        match self.value.take() {
            Some(value) => Ok(value),
            None => Err(self.error()),
        }
    }

    #[cold]
    #[inline(never)]
    fn error(&mut self) -> CallError<E> {
        let Bad { cause, verdict, past } = &mut self.bad;
        // Only a policy that neither made the attempt nor refused it leaves nothing at all.
        let cause = cause.take().unwrap_or_else(|| {
            let reason = Reason::Custom("it neither made an attempt nor refused it");
            Cause::Rejected(Rejected::new(PolicyKind::Custom("policy"), reason))
        });
        let Some(past) = past.take() else { return CallError::new(cause, *verdict, self.attempts) };
        let Past { retried, repeated: _, first, first_kind, stopped, fallback } = *past;
        let cut_short = || match &cause {
            Cause::TimedOut(timed_out) => Some((Stop::CutShort, timed_out.after)),
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

impl<T, E> sealed::Sealed for Kept<T, E> {}

impl<T: Send, E: Send> Ledger for Kept<T, E> {
    fn rejection(&self) -> Option<&Rejected> {
        match &self.bad.cause {
            Some(Cause::Rejected(rejected)) if !self.bad.verdict.is_failure() => Some(rejected),
            _ => None,
        }
    }

    fn hint(&self) -> Hint {
        self.bad.verdict.hint()
    }

    fn is_spent(&self) -> bool {
        self.spent
    }

    fn reject(&mut self, rejected: Rejected) {
        self.value = None;
        self.bad.verdict = Verdict::ignore();
        self.bad.cause = Some(Cause::Rejected(rejected));
    }

    fn fail(&mut self, made_by: Rejected, verdict: Verdict) {
        self.value = None;
        self.bad.verdict = verdict;
        self.bad.cause = Some(Cause::Rejected(made_by));
    }

    fn time_out(&mut self, timed_out: TimedOut) {
        self.value = None;
        self.bad.verdict = Verdict::failure(FailureKind::Timeout);
        self.bad.cause = Some(Cause::TimedOut(timed_out));
    }

    fn again(&mut self) {
        self.value = None;
        let (first, first_kind) = (self.bad.cause.take(), self.bad.verdict.kind());
        let past = self.bad.past();
        past.retried = true;
        if !std::mem::replace(&mut past.repeated, true) {
            (past.first, past.first_kind) = (first, first_kind);
        }
        past.stopped = None; // an inner retry's word on the attempt that is over
    }

    fn gave_up(&mut self, stop: Stop, elapsed: Duration) {
        let first_kind = self.bad.verdict.kind();
        let past = self.bad.past();
        past.retried = true;
        if !past.repeated {
            past.first_kind = first_kind;
        }
        past.stopped = Some((stop, elapsed));
    }

    fn fallback_timed_out(&mut self, timed_out: TimedOut) {
        self.fallback_failed(Some(Cause::TimedOut(timed_out)));
    }
}
