//! Taking messages, and what becomes of those that were taken.
use std::time::Duration;

use crate::port::{Capabilities, PortError};

/// How to take messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Receive {
    /// At most so many.
    pub max: usize,
    /// For how long they are hidden from all others.
    pub visibility: Duration,
    /// For how long to wait for the first. Not at all by default.
    pub wait: Duration,
}

impl Receive {
    /// At most `max` messages, hidden for `visibility`, without waiting.
    pub const fn new(max: usize, visibility: Duration) -> Self {
        Self { max, visibility, wait: Duration::ZERO }
    }

    /// Waits for the first message, at most so long.
    #[must_use]
    pub const fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// How many to take at most from this backend; refuses what breaks a rule. For backends.
    ///
    /// # Errors
    /// `Invalid`, with the field's name and the rule.
    pub fn check(&self, can: &Capabilities) -> Result<usize, PortError> {
        if self.max == 0 {
            return Err(PortError::invalid("max", "must be at least 1"));
        }
        check_visibility(self.visibility)?;
        Ok(self.max.min(can.max_batch()))
    }
}

/// Refuses a time for which a message cannot be hidden.
pub(crate) fn check_visibility(visibility: Duration) -> Result<(), PortError> {
    if visibility.is_zero() { Err(PortError::invalid("visibility", "must be longer than zero")) } else { Ok(()) }
}

/// What becomes of a message that was received.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Settle {
    /// It was handled: it goes.
    Complete,
    /// It was not: it becomes visible again after so long. The delivery counts as an attempt.
    Abandon {
        /// After how long; zero is at once.
        after: Duration,
    },
    /// Nothing was tried with it: it becomes visible again after so long. The delivery does not count as an attempt.
    Release {
        /// After how long; zero is at once.
        after: Duration,
    },
    /// It cannot be handled: it moves to the dead letters.
    DeadLetter {
        /// Why, for people.
        reason: String,
    },
}

impl Settle {
    /// It was not handled, and becomes visible again after so long.
    pub const fn abandon(after: Duration) -> Self {
        Self::Abandon { after }
    }

    /// Nothing was tried with it, and it becomes visible again after so long.
    pub const fn release(after: Duration) -> Self {
        Self::Release { after }
    }

    /// It cannot be handled.
    pub fn dead_letter(reason: impl Into<String>) -> Self {
        Self::DeadLetter { reason: reason.into() }
    }
}
