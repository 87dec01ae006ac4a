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
    /// It failed, and may be tried again, until its attempts are used up.
    Retry {
        /// After how long; by the settings where there is none.
        after: Option<Duration>,
        /// How it failed, for people.
        error: String,
    },
    /// Nothing was tried with it: it comes back at once, and no attempt is counted.
    HandBack,
    /// What it needs refused it, as an open circuit breaker does: it comes back later, and no attempt is counted.
    Refused {
        /// After how long; at most [`LONGEST_REFUSAL`](Self::LONGEST_REFUSAL), and after a second where nobody knows.
        after: Option<Duration>,
        /// Why it was refused, for people.
        error: String,
    },
    /// It cannot be handled: it is set aside.
    DeadLetter {
        /// Why, for people.
        reason: String,
    },
}

impl Handled {
    /// The longest time for which a refused message stays hidden. One that is refused for longer is refused again meanwhile.
    pub const LONGEST_REFUSAL: Duration = Duration::from_secs(30);

    /// It failed, and comes back after a delay by the settings.
    pub fn retry(error: impl fmt::Display) -> Self {
        Self::Retry { after: None, error: error.to_string() }
    }

    /// It failed, and comes back after so long.
    pub fn retry_after(after: Duration, error: impl fmt::Display) -> Self {
        Self::Retry { after: Some(after), error: error.to_string() }
    }

    /// What it needs refused it; it comes back after so long, or soon where nobody knows.
    pub fn refused(after: Option<Duration>, error: impl fmt::Display) -> Self {
        Self::Refused { after, error: error.to_string() }
    }

    /// It cannot be handled.
    pub fn dead_letter(reason: impl fmt::Display) -> Self {
        Self::DeadLetter { reason: reason.to_string() }
    }

    /// Converts the result of a call through a pipeline. A call that a policy refused is no attempt: its message comes back when the
    /// refusal says. One that failed is an attempt, and its message comes back when the other side said, if it did.
    pub fn of_call<T, E: fmt::Display>(result: Result<T, CallError<E>>) -> Self {
        let Err(error) = result else { return Self::Complete };
        let (after, was_sent) = (error.retry_after(), error.attempts() > 0);
        match error.into_cause() {
            Cause::Operation(error) => Self::Retry { after, error: error.to_string() },
            // A retry whose first attempt failed, and whose second was refused, did try.
            Cause::Rejected(rejected) if was_sent => Self::Retry { after, error: rejected.to_string() },
            Cause::Rejected(rejected) => Self::Refused { after, error: rejected.to_string() },
            Cause::TimedOut(timed_out) => Self::Retry { after, error: timed_out.to_string() },
        }
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
