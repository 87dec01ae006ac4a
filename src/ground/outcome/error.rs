//! The error of a call. It is flat: its shape does not depend on the policies or on their order.
use std::{error::Error, fmt, time::Duration};

use super::{CallErrorParts, FailureKind, Reason, Rejected, Verdict};
use crate::config::Name;

/// The error of a call through a pipeline, with the attempts that were made.
///
/// ```
/// use steadfast::{CallError, Cause, Pipeline};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let get = || async { Err::<(), _>("no such key".to_owned()) };
/// let error: CallError<String> = Pipeline::new().call(get).await.unwrap_err();
/// assert_eq!(error.attempts(), 1);
/// match error.into_cause() {
///     Cause::Operation(e) => assert_eq!(e, "no such key"),
///     other => unreachable!("the call has no policy: {other:?}"),
/// }
/// # });
/// ```
#[derive(Debug)]
pub struct CallError<E> {
    cause: Cause<E>,
    verdict: Verdict,
    attempts: u32,
    /// Parts that few errors have: boxed, so that the error stays small.
    more: Option<Box<More<E>>>,
}

#[derive(Debug)]
struct More<E> {
    history: Option<History<E>>,
    fallback: Option<Cause<E>>,
}

/// The cause that ended a failed call.
///
/// Events carry a `Cause<FailureKind>`: in place of the operation's error the kind of its failure,
/// also of a value that was judged one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause<E> {
    /// The operation returned this error.
    Operation(E),
    /// A policy rejected the call before the operation ran.
    Rejected(Rejected),
    /// A time-out dropped the operation.
    TimedOut(TimedOut),
}

/// The time-out that fired, and the time that it had given.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TimedOut {
    /// Name of the time-out, if it has one.
    pub name: Option<Name>,
    /// Time that the work was given.
    pub after: Duration,
}

/// The attempts of a retry that gave up.
#[derive(Debug)]
#[non_exhaustive]
pub struct History<E> {
    /// The cause of the first failure. `None` if the first attempt returned a value that was judged
    /// a failure.
    pub first: Option<Cause<E>>,
    /// Kind of the first failure.
    pub first_kind: Option<FailureKind>,
    /// Kind of the last failure.
    pub last_kind: Option<FailureKind>,
    /// Time from the first wait of the first attempt to the end.
    pub elapsed: Duration,
    /// The reason why no further attempt was made.
    pub stop: StopReason,
}

/// The reason why a retry made no further attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// All attempts are used.
    Attempts,
    /// The failure is of a kind that is not retried.
    NotRetryable,
    /// The operation is not known to be idempotent, and the failure does not prove that the request
    /// was not sent. Mark the operation with [`idempotent`](crate::call::idempotent) if a second
    /// run changes nothing more.
    NotIdempotent,
    /// The next delay does not fit into the total time of the policy.
    TotalTime,
    /// The next delay does not fit before the deadline.
    Deadline,
    /// The server asks for a longer wait than the policy allows.
    HintTooLong,
    /// The server asks the client not to retry.
    DoNotRetry,
    /// The retry budget is empty.
    Budget,
    /// The custom delays are exhausted.
    BackoffEnded,
    /// An outer retry repeats such failures, so the inner one leaves the attempts to it.
    Nested,
    /// The operation cannot be run again: its input, say a request that cannot be cloned, was moved
    /// into the last run.
    Spent,
    /// A time-out around the retry ended it.
    TimedOut,
}

impl StopReason {
    /// All reasons.
    #[cfg(feature = "metrics")]
    pub(crate) const ALL: [Self; 12] = [
        Self::Attempts,
        Self::NotRetryable,
        Self::NotIdempotent,
        Self::TotalTime,
        Self::Deadline,
        Self::HintTooLong,
        Self::DoNotRetry,
        Self::Budget,
        Self::BackoffEnded,
        Self::Nested,
        Self::Spent,
        Self::TimedOut,
    ];

    /// Returns the reason as a word, for labels of metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Attempts => "attempts",
            Self::NotRetryable => "not_retryable",
            Self::NotIdempotent => "not_idempotent",
            Self::TotalTime => "total_time",
            Self::Deadline => "deadline",
            Self::HintTooLong => "hint_too_long",
            Self::DoNotRetry => "do_not_retry",
            Self::Budget => "budget",
            Self::BackoffEnded => "backoff_ended",
            Self::Nested => "nested",
            Self::Spent => "spent",
            Self::TimedOut => "timed_out",
        }
    }
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Attempts => "all attempts used",
            Self::NotRetryable => "this kind of failure is not retried",
            Self::NotIdempotent => "not marked as idempotent, and may have been sent",
            Self::TotalTime => "the next delay exceeds the total time",
            Self::Deadline => "the next delay exceeds the deadline",
            Self::HintTooLong => "the server asks for a longer wait than allowed",
            Self::DoNotRetry => "the server asks not to retry",
            Self::Budget => "retry budget empty",
            Self::BackoffEnded => "no delay left",
            Self::Nested => "left to the outer retry",
            Self::Spent => "the operation cannot be run again",
            Self::TimedOut => "ended by an outer time-out",
        })
    }
}

impl<E> History<E> {
    pub(super) fn map_first<F>(self, map: impl FnMut(Cause<E>) -> Cause<F>) -> History<F> {
        let Self { first, first_kind, last_kind, elapsed, stop } = self;
        History { first: first.map(map), first_kind, last_kind, elapsed, stop }
    }
}

impl<E> CallError<E> {
    #[inline]
    pub(crate) const fn new(cause: Cause<E>, verdict: Verdict, attempts: u32) -> Self {
        Self { cause, verdict, attempts, more: None }
    }

    /// Adds the parts that few errors have.
    pub(crate) fn with(mut self, history: Option<History<E>>, fallback: Option<Cause<E>>) -> Self {
        if history.is_some() || fallback.is_some() {
            self.more = Some(Box::new(More { history, fallback }));
        }
        self
    }

    /// Returns the verdict on the last attempt; [`Class::Ignore`](super::Class::Ignore) for a
    /// rejection.
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Returns the cause that ended the call.
    pub fn cause(&self) -> &Cause<E> {
        &self.cause
    }

    /// Returns the cause that ended the call, by value.
    pub fn into_cause(self) -> Cause<E> {
        self.cause
    }

    /// Returns all parts, by value.
    pub fn into_parts(self) -> CallErrorParts<E> {
        let Self { cause, verdict, attempts, more } = self;
        let (history, fallback) = more.map_or((None, None), |more| (more.history, more.fallback));
        CallErrorParts { cause, verdict, attempts, history, fallback }
    }

    /// Returns the number of times that the operation was started; 0 if it was rejected before the
    /// first start. If the operation is a call through another pipeline, the inner error counts the
    /// inner attempts.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Returns `true` if a policy rejected the last attempt: one around the operation, or one
    /// [inside it](Verdict::refused).
    pub fn is_rejected(&self) -> bool {
        matches!(self.cause, Cause::Rejected(_)) || self.verdict.is_refused()
    }

    /// Returns `true` if a time-out ended the call.
    pub fn is_timed_out(&self) -> bool {
        matches!(self.cause, Cause::TimedOut(_))
    }

    /// Returns the time to wait before the next call, if the rejecting policy or the server stated
    /// one.
    pub fn retry_after(&self) -> Option<Duration> {
        match &self.cause {
            Cause::Rejected(r) => r.retry_after(),
            _ => self.verdict.hint().retry_after(),
        }
    }

    /// Returns the attempts of the retry, if a retry stood around the operation and saw it fail.
    pub fn history(&self) -> Option<&History<E>> {
        self.more.as_ref().and_then(|more| more.history.as_ref())
    }

    /// Returns the error of the fallback, if one ran and failed. The call's own error is the one
    /// that came before it.
    pub fn fallback(&self) -> Option<&Cause<E>> {
        self.more.as_ref().and_then(|more| more.fallback.as_ref())
    }

    /// Maps the operation's errors and keeps everything else.
    pub fn map_operation<F>(self, mut f: impl FnMut(E) -> F) -> CallError<F> {
        self.map_own(|e| Cause::Operation(f(e)))
    }

    /// Maps the operation's errors to causes and keeps everything else.
    pub(crate) fn map_own<F>(self, mut f: impl FnMut(E) -> Cause<F>) -> CallError<F> {
        let mut map = |cause| match cause {
            Cause::Operation(e) => f(e),
            Cause::Rejected(r) => Cause::Rejected(r),
            Cause::TimedOut(t) => Cause::TimedOut(t),
        };
        let more = self.more.map(|more| {
            let More { history, fallback } = *more;
            let history = history.map(|history| history.map_first(&mut map));
            Box::new(More { history, fallback: fallback.map(&mut map) })
        });
        CallError { cause: map(self.cause), verdict: self.verdict, attempts: self.attempts, more }
    }
}

impl Cause<FailureKind> {
    /// Returns the kind of failure; `None` if a policy rejected the attempt.
    pub const fn kind(&self) -> Option<FailureKind> {
        match self {
            Self::Operation(kind) => Some(*kind),
            Self::TimedOut(_) => Some(FailureKind::Timeout),
            Self::Rejected(rejected) => match rejected.reason() {
                Reason::Injected { kind } => Some(kind),
                _ => None,
            },
        }
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
            // The text of a time-out already states its duration.
            Some(h) if h.stop == StopReason::TimedOut => {}
            Some(h) if self.attempts > 1 => {
                write!(f, " (after {} attempts in {:?}: {})", self.attempts, h.elapsed, h.stop)?;
            }
            Some(h) => write!(f, " ({})", h.stop)?,
            None => {}
        }
        match self.fallback() {
            Some(cause) => write!(f, "; the fallback also failed: {cause}"),
            None => Ok(()),
        }
    }
}

impl<E: Error + 'static> Error for CallError<E> {
    /// Returns the source of the operation's error: the text of that error is already the text of
    /// this one.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.cause {
            Cause::Operation(e) => e.source(),
            Cause::Rejected(_) | Cause::TimedOut(_) => None,
        }
    }
}
