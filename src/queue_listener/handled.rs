//! What came of a message.
use std::{fmt, time::Duration};

use crate::outcome::{CallError, Cause};

/// What came of a message: the handler's word decides what becomes of it.
///
/// A handler may return this, `()`, or a `Result<(), E>`, whose error is [`Retry`](Self::Retry).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Handled {
    /// It is done: it goes.
    Complete,
    /// It failed, and may be tried again, until its deliveries are used up.
    Retry {
        /// After how long; by the settings where there is none.
        after: Option<Duration>,
        /// How it failed, for people.
        error: String,
    },
    /// It was not begun, and that is not its fault: it comes back at once. (Its delivery is used up all the same.)
    HandBack,
    /// It cannot be handled: it is set aside.
    DeadLetter {
        /// Why, for people.
        reason: String,
    },
}

impl Handled {
    /// It failed, and comes back after a delay by the settings.
    pub fn retry(error: impl fmt::Display) -> Self {
        Self::Retry { after: None, error: error.to_string() }
    }

    /// It failed, and comes back after so long.
    pub fn retry_after(after: Duration, error: impl fmt::Display) -> Self {
        Self::Retry { after: Some(after), error: error.to_string() }
    }

    /// It cannot be handled.
    pub fn dead_letter(reason: impl fmt::Display) -> Self {
        Self::DeadLetter { reason: reason.to_string() }
    }

    /// What came of a call through a pipeline: where a policy refused it, or the other side said when to come back, the message comes back
    /// then.
    pub fn of_call<T, E: fmt::Display>(result: Result<T, CallError<E>>) -> Self {
        let Err(error) = result else { return Self::Complete };
        let after = error.retry_after();
        let error = match error.into_cause() {
            Cause::Operation(error) => error.to_string(),
            Cause::Rejected(rejected) => rejected.to_string(),
            Cause::TimedOut(timed_out) => timed_out.to_string(),
        };
        Self::Retry { after, error }
    }
}

impl From<()> for Handled {
    #[inline]
    fn from((): ()) -> Self {
        Self::Complete
    }
}

impl<E: fmt::Display> From<Result<(), E>> for Handled {
    #[inline]
    fn from(result: Result<(), E>) -> Self {
        match result {
            Ok(()) => Self::Complete,
            Err(error) => Self::retry(error),
        }
    }
}
