//! Receiving and settling messages.
use std::time::Duration;

use crate::port::{Capabilities, PortError};

/// Options of a receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Receive {
    /// Maximum number of messages.
    pub max: usize,
    /// Time for which the messages are hidden from other receivers.
    pub visibility: Duration,
    /// Time to wait for the first message. Zero by default.
    pub wait: Duration,
}

impl Receive {
    /// Creates options for at most `max` messages, hidden for `visibility`, without waiting.
    pub const fn new(max: usize, visibility: Duration) -> Self {
        Self { max, visibility, wait: Duration::ZERO }
    }

    /// Sets the time to wait for the first message.
    #[must_use]
    pub const fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Returns the maximum number of messages to take from this backend. For backends.
    ///
    /// # Errors
    /// `Invalid`, with the field's name and the rule, if an option violates a rule.
    pub fn check(&self, can: &Capabilities) -> Result<usize, PortError> {
        if self.max == 0 {
            return Err(PortError::invalid("max", "must be at least 1"));
        }
        check_visibility(self.visibility)?;
        Ok(self.max.min(can.max_batch()))
    }
}

/// Rejects a visibility time-out of zero.
pub(crate) fn check_visibility(visibility: Duration) -> Result<(), PortError> {
    if visibility.is_zero() { Err(PortError::invalid("visibility", "must be longer than zero")) } else { Ok(()) }
}

/// The way to settle a received message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Settle {
    /// Removes the message: it was handled.
    Complete,
    /// Makes the message visible again later: it was not handled. The delivery counts as an
    /// attempt.
    Abandon {
        /// Time until the message is visible again; zero is at once.
        after: Duration,
    },
    /// Makes the message visible again later: it was not tried. The delivery does not count as an
    /// attempt.
    Release {
        /// Time until the message is visible again; zero is at once.
        after: Duration,
    },
    /// Moves the message to the dead letters: it cannot be handled.
    DeadLetter {
        /// The reason, for people.
        reason: String,
    },
}

impl Settle {
    /// Creates a settlement that makes a failed message visible again after `after`.
    pub const fn abandon(after: Duration) -> Self {
        Self::Abandon { after }
    }

    /// Creates a settlement that makes an untried message visible again after `after`.
    pub const fn release(after: Duration) -> Self {
        Self::Release { after }
    }

    /// Creates a settlement that moves the message to the dead letters.
    pub fn dead_letter(reason: impl Into<String>) -> Self {
        Self::DeadLetter { reason: reason.into() }
    }
}
