//! Results of a handler.
use std::{fmt, time::Duration};

use crate::outcome::{CallError, Cause};

/// Result of a handler, which decides how its message is settled.
///
/// A handler may return this, `()`, or a `Result<(), E>`, whose error becomes
/// [`Retry`](Self::Retry).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Disposition {
    /// The message was handled and is removed from the queue.
    Complete,
    /// The message failed. It is delivered again until its attempts are used up.
    Retry {
        /// Delay until the next delivery; `None` for the configured delays.
        after: Option<Duration>,
        /// Error text, for people.
        error: String,
    },
    /// The message was not tried. It is delivered again at once, and no attempt is counted.
    Release,
    /// A dependency refused the call, as an open circuit breaker does. The message is delivered
    /// again later, and no attempt is counted.
    Refused {
        /// Delay until the next delivery, at most [`LONGEST_REFUSAL`](Self::LONGEST_REFUSAL);
        /// `None` for about a second.
        after: Option<Duration>,
        /// Text of the refusal, for people.
        error: String,
    },
    /// The message cannot be handled and becomes a dead letter.
    DeadLetter {
        /// Reason, for people.
        reason: String,
    },
}

impl Disposition {
    /// Maximum delay of a refused message. A message that is refused for longer is delivered and
    /// refused again in between.
    pub const LONGEST_REFUSAL: Duration = Duration::from_secs(30);

    /// Returns a failure that is tried again after the configured delay.
    pub fn retry(error: impl fmt::Display) -> Self {
        Self::Retry { after: None, error: error.to_string() }
    }

    /// Returns a failure that is tried again after this delay.
    pub fn retry_after(after: Duration, error: impl fmt::Display) -> Self {
        Self::Retry { after: Some(after), error: error.to_string() }
    }

    /// Returns a refusal. Its message is delivered again after this delay, or after about a second
    /// if it is `None`.
    pub fn refused(after: Option<Duration>, error: impl fmt::Display) -> Self {
        Self::Refused { after, error: error.to_string() }
    }

    /// Returns the disposition of a message that cannot be handled.
    pub fn dead_letter(reason: impl fmt::Display) -> Self {
        Self::DeadLetter { reason: reason.to_string() }
    }

    /// Converts the result of a call through a pipeline. A call that a policy rejected is not an
    /// attempt: its message is delivered again after the delay that the rejection gives. A call
    /// that failed is an attempt; its message is delivered again after the delay that the other
    /// side gave, if any.
    pub fn of_call<T, E: fmt::Display>(result: Result<T, CallError<E>>) -> Self {
        let Err(error) = result else { return Self::Complete };
        let (after, was_sent) = (error.retry_after(), error.attempts() > 0);
        match error.into_cause() {
            Cause::Operation(error) => Self::Retry { after, error: error.to_string() },
            // A retry whose first attempt failed and whose second was rejected did send a request.
            Cause::Rejected(rejected) if was_sent => Self::Retry { after, error: rejected.to_string() },
            Cause::Rejected(rejected) => Self::Refused { after, error: rejected.to_string() },
            Cause::TimedOut(timed_out) => Self::Retry { after, error: timed_out.to_string() },
        }
    }
}

impl From<()> for Disposition {
    #[inline]
    fn from((): ()) -> Self {
        Self::Complete
    }
}

impl<E: fmt::Display> From<Result<(), E>> for Disposition {
    #[inline]
    fn from(result: Result<(), E>) -> Self {
        match result {
            Ok(()) => Self::Complete,
            Err(error) => Self::retry(error),
        }
    }
}
