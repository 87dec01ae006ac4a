//! A failure that a retry repeats, as hooks and the next attempt see it.
use std::{fmt, time::Duration};

use super::{Cause, FailureKind, Rejected, Verdict};

/// The failure of the attempt before, as the next attempt of a retry sees it: see
/// [`with_last_failure`](crate::call::with_last_failure).
#[derive(Debug)]
pub struct LastFailure<'a, E> {
    cause: Option<&'a Cause<E>>,
    verdict: Verdict,
}

impl<E> Clone for LastFailure<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E> Copy for LastFailure<'_, E> {}

impl<'a, E> LastFailure<'a, E> {
    pub(crate) const fn new(cause: Option<&'a Cause<E>>, verdict: Verdict) -> Self {
        Self { cause, verdict }
    }

    /// Returns the cause; `None` if a value was judged a failure. The value itself is dropped
    /// before the wait.
    pub const fn cause(&self) -> Option<&'a Cause<E>> {
        self.cause
    }

    /// Returns the operation's own error, if that was the failure.
    pub const fn error(&self) -> Option<&'a E> {
        match self.cause {
            Some(Cause::Operation(error)) => Some(error),
            _ => None,
        }
    }

    /// Returns the rejection, if a policy rejected the attempt.
    pub const fn rejection(&self) -> Option<&'a Rejected> {
        match self.cause {
            Some(Cause::Rejected(rejected)) => Some(rejected),
            _ => None,
        }
    }

    /// Returns the verdict on the attempt; [`Class::Ignore`](crate::Class::Ignore) for a rejection.
    pub const fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Returns the kind of failure; `None` for a rejection.
    pub const fn kind(&self) -> Option<FailureKind> {
        self.verdict.kind()
    }
}

/// A failed attempt that another one follows, as a hook sees it before the wait: see
/// [`on_retry`](crate::call::on_retry) and [`Pipeline::on_retry`](crate::Pipeline::on_retry).
///
/// Its text is a log line: `attempt 1 failed: connection refused; the next one starts in 100ms`.
#[derive(Debug)]
pub struct Retrying<'a, T, E> {
    value: Option<&'a T>,
    last: LastFailure<'a, E>,
    next: NextAttempt<'a>,
}

/// The next attempt, as the retry announces it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NextAttempt<'a> {
    /// Number of the failed attempt, from 1.
    pub(crate) failed: u32,
    /// Wait before the next attempt.
    pub(crate) delay: Duration,
    /// Name of the retry.
    pub(crate) retry: Option<&'a str>,
    /// Name of the operation.
    pub(crate) operation: Option<&'static str>,
    /// Number of the hedge that the retry runs in; 0 outside of one.
    pub(crate) hedge: u32,
}

impl<'a, T, E> Retrying<'a, T, E> {
    pub(crate) const fn new(value: Option<&'a T>, last: LastFailure<'a, E>, next: NextAttempt<'a>) -> Self {
        Self { value, last, next }
    }

    /// Returns the parts, to describe the same failure by other types.
    pub(crate) const fn next(&self) -> NextAttempt<'a> {
        self.next
    }

    /// Returns the number of the failed attempt, from 1, counted by the retry that repeats it.
    pub const fn attempt(&self) -> u32 {
        self.next.failed
    }

    /// Returns the wait before the next attempt.
    pub const fn delay(&self) -> Duration {
        self.next.delay
    }

    /// Returns the value that was judged a failure, if there is one.
    pub const fn value(&self) -> Option<&'a T> {
        self.value
    }

    /// Returns the cause; `None` if a value was judged a failure.
    pub const fn cause(&self) -> Option<&'a Cause<E>> {
        self.last.cause()
    }

    /// Returns the operation's own error, if that was the failure.
    pub const fn error(&self) -> Option<&'a E> {
        self.last.error()
    }

    /// Returns the rejection, if a policy rejected the attempt.
    pub const fn rejection(&self) -> Option<&'a Rejected> {
        self.last.rejection()
    }

    /// Returns the verdict on the attempt, with the server's hint;
    /// [`Class::Ignore`](crate::Class::Ignore) for a rejection.
    pub const fn verdict(&self) -> Verdict {
        self.last.verdict()
    }

    /// Returns the kind of failure; `None` for a rejection.
    pub const fn kind(&self) -> Option<FailureKind> {
        self.last.kind()
    }

    /// Returns the name of the retry, if it has one.
    pub const fn retry(&self) -> Option<&'a str> {
        self.next.retry
    }

    /// Returns the name of the operation, if it has [one](crate::call::named).
    pub const fn operation(&self) -> Option<&'static str> {
        self.next.operation
    }

    /// Returns the number of the hedged attempt inside which the retry runs; 0 for the first
    /// attempt of a hedge, and without one.
    pub const fn hedge(&self) -> u32 {
        self.next.hedge
    }
}

impl<T, E: fmt::Display> fmt::Display for Retrying<'_, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "attempt {} failed: ", self.attempt())?;
        match (self.cause(), self.kind()) {
            (Some(cause), _) => cause.fmt(f)?,
            (None, Some(kind)) => write!(f, "the value was judged a failure ({kind})")?,
            (None, None) => f.write_str("the value was judged a rejection")?,
        }
        write!(f, "; the next one starts in {:?}", self.delay())
    }
}
