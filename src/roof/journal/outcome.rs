//! Results of deferrable calls and of replays, and the gate.
use std::{fmt, time::Duration};

use crate::{
    circuit_breaker::{CircuitBreaker, State},
    outcome::{CallError, Cause},
};

/// Result of a deferrable call. Returned by [`Journal::or_defer`](super::Journal::or_defer).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
// Exhaustive: a call was made, or it is in the journal. Everything else is its error.
pub enum Served<T> {
    /// The call was made.
    Now(T),
    /// The call was rejected and is in the journal.
    Later,
}

/// Result of a replay, which decides what becomes of the entry.
///
/// A handler may return this, `()`, or a `Result<(), E>`, whose error is a [failure](Self::failed).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Replayed {
    /// The call was made; the entry is removed.
    Done,
    /// The call was rejected before it was sent. The entry waits, and no attempt is counted.
    Refused {
        /// Delay before the next attempt, if known; at most [30
        /// s](crate::queue_listener::Disposition::LONGEST_REFUSAL).
        after: Option<Duration>,
    },
    /// The call failed. This counts as an attempt only while the gate is open; otherwise the
    /// service is to blame.
    Failed {
        /// Delay before the next attempt, if known.
        after: Option<Duration>,
        /// Error text, for people.
        error: String,
    },
    /// The call can never be made; the entry becomes a dead letter.
    Poison {
        /// Reason, for people.
        reason: String,
    },
}

impl Replayed {
    /// Returns a failure.
    pub fn failed(error: impl fmt::Display) -> Self {
        Self::Failed { after: None, error: error.to_string() }
    }

    /// Returns the result of an entry that can never be replayed.
    pub fn poison(reason: impl fmt::Display) -> Self {
        Self::Poison { reason: reason.to_string() }
    }

    /// Converts the result of a call through a pipeline. If a policy rejected the call, the entry
    /// waits.
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

/// Permission to replay entries now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Gate {
    /// Entries are replayed.
    Open,
    /// No entries are replayed. The gate is checked again after this time, at most a second.
    Shut(Duration),
}

impl Gate {
    /// Returns a gate that is shut while this breaker rejects calls. It opens when the breaker
    /// admits a probe: if no other caller comes, an entry is the first probe, and the breaker
    /// bounds the number of probes.
    pub fn of(breaker: &CircuitBreaker) -> Self {
        match breaker.state() {
            State::Closed | State::HalfOpen => Self::Open,
            State::Isolated => Self::Shut(Duration::MAX),
            State::Open => Self::shut_for(breaker.snapshot().retry_after.unwrap_or_default()),
        }
    }

    /// Returns a gate that is shut for this time, or open if the time is zero.
    pub fn shut_for(wait: Duration) -> Self {
        if wait.is_zero() { Self::Open } else { Self::Shut(wait) }
    }

    /// Returns `true` if the gate is shut.
    pub fn is_shut(self) -> bool {
        self != Self::Open
    }
}
