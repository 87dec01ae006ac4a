//! The one flat error of a call: its shape does not depend on which policies stand around the operation, or in what order.
use std::{error::Error, fmt, time::Duration};

use super::{FailureKind, Rejected, Verdict};
use crate::config::Name;

/// Why a call through a pipeline failed, and what was tried.
///
/// ```
/// use steadfast::{CallError, Cause, Pipeline};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let error: CallError<String> = Pipeline::new().call(|| async { Err::<(), _>("no such key".to_owned()) }).await.unwrap_err();
/// assert_eq!(error.attempts(), 1);
/// match error.into_cause() {
///     Cause::Operation(e) => assert_eq!(e, "no such key"),
///     Cause::Rejected(_) | Cause::TimedOut(_) => unreachable!("no policy stands around this call"),
/// }
/// # });
/// ```
#[derive(Debug)]
pub struct CallError<E> {
    cause: Cause<E>,
    verdict: Verdict,
    attempts: u32,
    /// What few errors have.
    more: Option<Box<More<E>>>,
}

#[derive(Debug)]
struct More<E> {
    history: Option<History<E>>,
    fallback: Option<Cause<E>>,
}

/// What ended a call that failed.
#[derive(Debug, PartialEq, Eq)]
pub enum Cause<E> {
    /// The operation came back with this error.
    Operation(E),
    /// A policy refused to run the operation.
    Rejected(Rejected),
    /// A time-out dropped the operation.
    TimedOut(TimedOut),
}

/// A time-out: which, and after how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimedOut {
    /// The name of the time-out that fired, if it has one.
    pub name: Option<Name>,
    /// How long the work was given.
    pub after: Duration,
}

/// What a retry went through before it gave up.
#[derive(Debug)]
pub struct History<E> {
    /// What the first attempt failed with; nothing if it came back with a value that was judged a failure.
    pub first: Option<Cause<E>>,
    /// The kind of the first failure.
    pub first_kind: Option<FailureKind>,
    /// The kind of the last failure.
    pub last_kind: Option<FailureKind>,
    /// From the first attempt's first wait to the end.
    pub elapsed: Duration,
    /// Why no further attempt was made.
    pub stop: Stop,
}

/// Why a retry made no further attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stop {
    /// The attempts are used up.
    Attempts,
    /// The failure is of a kind that another attempt does not mend.
    NotRetryable,
    /// Neither a mark nor a setting says that the operation is idempotent, and the failure does not
    /// prove that it was not sent. Mark it by [`idempotent`](crate::call::idempotent) where a
    /// second run changes nothing more.
    NotIdempotent,
    /// The delay does not fit into the policy's total time.
    TotalTime,
    /// The delay does not fit before the deadline.
    Deadline,
    /// The server asks for a longer wait than the policy allows.
    HintTooLong,
    /// The server asks not to be tried again.
    ToldNotTo,
    /// The retry budget is empty.
    Budget,
    /// The custom back-off came to its end.
    BackoffEnded,
    /// A retry around this one repeats such failures: this one leaves the attempts to it.
    Nested,
    /// The operation cannot be run again: what it needs, say a request that cannot be cloned, was moved into its last run.
    Spent,
    /// A time-out around the retry ended it.
    CutShort,
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Attempts => "attempts used up",
            Self::NotRetryable => "not a failure to retry",
            Self::NotIdempotent => "not marked as idempotent, and perhaps sent",
            Self::TotalTime => "the next delay does not fit the total time",
            Self::Deadline => "the next delay does not fit before the deadline",
            Self::HintTooLong => "the server asks for a longer wait than allowed",
            Self::ToldNotTo => "the server asks not to be tried again",
            Self::Budget => "retry budget empty",
            Self::BackoffEnded => "back-off ended",
            Self::Nested => "left to the outer retry",
            Self::Spent => "it cannot be run again",
            Self::CutShort => "cut short by a time-out around it",
        })
    }
}

impl<E> CallError<E> {
    #[inline]
    pub(crate) const fn new(cause: Cause<E>, verdict: Verdict, attempts: u32) -> Self {
        Self { cause, verdict, attempts, more: None }
    }

    /// The same with what few errors have.
    pub(crate) fn with(mut self, history: Option<History<E>>, fallback: Option<Cause<E>>) -> Self {
        if history.is_some() || fallback.is_some() {
            self.more = Some(Box::new(More { history, fallback }));
        }
        self
    }

    /// What the last attempt was judged to be; [`Class::Ignore`](super::Class::Ignore) for a rejection.
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// What ended the call.
    pub fn cause(&self) -> &Cause<E> {
        &self.cause
    }

    /// What ended the call, by value.
    pub fn into_cause(self) -> Cause<E> {
        self.cause
    }

    /// The operation's own error, if that is what ended the call.
    pub fn into_operation(self) -> Option<E> {
        match self.cause {
            Cause::Operation(e) => Some(e),
            _ => None,
        }
    }

    /// How often the operation was started. 0 if it was rejected before that. Where the operation is a call through another pipeline, its
    /// own error tells how often the operation inside was.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Whether a policy refused the (last) attempt: one around the operation, or one [inside it](Verdict::refused).
    pub fn is_rejected(&self) -> bool {
        matches!(self.cause, Cause::Rejected(_)) || self.verdict.is_refused()
    }

    /// Whether a time-out ended the call.
    pub fn is_timed_out(&self) -> bool {
        matches!(self.cause, Cause::TimedOut(_))
    }

    /// How long to wait before calling again, where the policy that refused or the server says so.
    pub fn retry_after(&self) -> Option<Duration> {
        match &self.cause {
            Cause::Rejected(r) => r.retry_after(),
            _ => self.verdict.hint().retry_after(),
        }
    }

    /// What a retry went through, if one stood around the operation and saw it fail.
    pub fn history(&self) -> Option<&History<E>> {
        self.more.as_ref().and_then(|more| more.history.as_ref())
    }

    /// What the call's substitute failed with, if it was asked and failed: this error is what came before that.
    pub fn fallback(&self) -> Option<&Cause<E>> {
        self.more.as_ref().and_then(|more| more.fallback.as_ref())
    }

    /// The same error with the operation's errors mapped.
    pub fn map_operation<F>(self, mut f: impl FnMut(E) -> F) -> CallError<F> {
        let mut map = |cause| match cause {
            Cause::Operation(e) => Cause::Operation(f(e)),
            Cause::Rejected(r) => Cause::Rejected(r),
            Cause::TimedOut(t) => Cause::TimedOut(t),
        };
        let more = self.more.map(|more| {
            let More { history, fallback } = *more;
            let history = history.map(|h| {
                let History { first, first_kind, last_kind, elapsed, stop } = h;
                History { first: first.map(&mut map), first_kind, last_kind, elapsed, stop }
            });
            Box::new(More { history, fallback: fallback.map(&mut map) })
        });
        CallError { cause: map(self.cause), verdict: self.verdict, attempts: self.attempts, more }
    }
}

impl<E: fmt::Display> fmt::Display for Cause<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Operation(e) => e.fmt(f),
            Self::Rejected(r) => r.fmt(f),
            Self::TimedOut(t) => t.fmt(f),
        }
    }
}

impl fmt::Display for TimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "timed out after {:?} (`{name}`)", self.after),
            None => write!(f, "timed out after {:?}", self.after),
        }
    }
}

impl Error for TimedOut {}

impl<E: fmt::Display> fmt::Display for CallError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause.fmt(f)?;
        match self.history() {
            // The time-out has said it already.
            Some(h) if h.stop == Stop::CutShort => {}
            Some(h) if self.attempts > 1 => {
                write!(f, " (after {} attempts in {:?}: {})", self.attempts, h.elapsed, h.stop)?;
            }
            Some(h) => write!(f, " ({})", h.stop)?,
            None => {}
        }
        match self.fallback() {
            Some(cause) => write!(f, "; the fallback failed, too: {cause}"),
            None => Ok(()),
        }
    }
}

impl<E: Error + 'static> Error for CallError<E> {
    /// The operation error's own source: its text is this error's text already.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.cause {
            Cause::Operation(e) => e.source(),
            Cause::Rejected(_) | Cause::TimedOut(_) => None,
        }
    }
}
