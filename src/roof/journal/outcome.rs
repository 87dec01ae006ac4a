//! What came of a call that may be deferred, what came of a replay, and when there is to be none.
use std::{fmt, time::Duration};

use crate::{
    circuit_breaker::{CircuitBreaker, State},
    outcome::{CallError, Cause},
};

/// What came of a call that may be deferred. From [`Journal::or_defer`](super::Journal::or_defer).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Served<T> {
    /// It was made.
    Now(T),
    /// It was refused, and is in the journal.
    Later,
}

/// What came of a replay: the handler's word decides what becomes of the entry.
///
/// A handler may return this, `()`, or a `Result<(), E>`, whose error is a [failure](Self::failed).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Replayed {
    /// It is done: it goes.
    Done,
    /// It was refused before it was sent: it waits, and that is not held against it.
    Refused {
        /// For how long, where that is known; at most [30 s](crate::queue_listener::Handled::LONGEST_REFUSAL).
        after: Option<Duration>,
    },
    /// It failed. Held against it only while the gate is open: else it is the other side's failure.
    Failed {
        /// When to try again, where that is known.
        after: Option<Duration>,
        /// How, for people.
        error: String,
    },
    /// It can never be done: it is set aside.
    Poison {
        /// Why, for people.
        reason: String,
    },
}

impl Replayed {
    /// It failed.
    pub fn failed(error: impl fmt::Display) -> Self {
        Self::Failed { after: None, error: error.to_string() }
    }

    /// It can never be done.
    pub fn poison(reason: impl fmt::Display) -> Self {
        Self::Poison { reason: reason.to_string() }
    }

    /// What came of a call through a pipeline: where a policy refused it, it waits.
    pub fn of_call<T, E: fmt::Display>(result: Result<T, CallError<E>>) -> Self {
        let Err(error) = result else { return Self::Done };
        let after = error.retry_after();
        match error.into_cause() {
            Cause::Rejected(_) => Self::Refused { after },
            Cause::Operation(error) => Self::Failed { after, error: error.to_string() },
            Cause::TimedOut(timed_out) => Self::Failed { after, error: timed_out.to_string() },
        }
    }
}

impl From<()> for Replayed {
    fn from((): ()) -> Self {
        Self::Done
    }
}

impl<E: fmt::Display> From<Result<(), E>> for Replayed {
    fn from(result: Result<(), E>) -> Self {
        match result {
            Ok(()) => Self::Done,
            Err(error) => Self::failed(error),
        }
    }
}

/// Whether entries are replayed now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// They are.
    Open,
    /// They are not; look again after so long, at the latest after a second.
    Shut(Duration),
}

impl Gate {
    /// Shut while this breaker rejects. Once its time is over it is open: if nobody else calls, an entry is the first probe, and the breaker bounds
    /// how many are.
    pub fn of(breaker: &CircuitBreaker) -> Self {
        match breaker.state() {
            State::Closed | State::HalfOpen => Self::Open,
            State::Isolated => Self::Shut(Duration::MAX),
            State::Open => Self::shut_for(breaker.snapshot().retry_after.unwrap_or_default()),
        }
    }

    /// Shut where it is to be shut for some time.
    pub fn shut_for(wait: Duration) -> Self {
        if wait.is_zero() { Self::Open } else { Self::Shut(wait) }
    }

    /// Whether it is shut.
    pub fn is_shut(self) -> bool {
        self != Self::Open
    }
}
