//! Receiving and settling messages.
use std::time::Duration;

use super::{Address, AttemptError, Message};
use crate::port::{Capabilities, Capability, PortError};

/// Options of a receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Receive {
    /// Maximum number of messages.
    pub max: usize,
    /// Time for which the messages are hidden from other receivers, from the moment at which they
    /// are taken. It has no maximum.
    pub visibility: Duration,
    /// Time to wait for the first message. Zero, the default, returns at once.
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

/// Rejects a visibility time-out of zero. For backends: [`Receive::check`] calls it, and
/// [`extend`](super::Queue::extend) does.
///
/// # Errors
/// `Invalid`, with the name of the field and the rule.
pub fn check_visibility(visibility: Duration) -> Result<(), PortError> {
    if visibility.is_zero() { Err(PortError::invalid("visibility", "must be longer than zero")) } else { Ok(()) }
}

/// The way to settle a received message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Settle {
    /// Removes the message: it was handled.
    Complete,
    /// Makes the message visible again later: it was not handled. The delivery counts as an
    /// attempt. Expired ones of which nothing tells that they were tried no longer do.
    Abandon {
        /// Time until the message is visible again; zero is at once.
        after: Duration,
        /// Error of the attempt, to be kept with the message.
        error: Option<Box<AttemptError>>,
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
        /// Error of the attempt, to be kept with the message.
        error: Option<Box<AttemptError>>,
    },
    /// Removes the message and sends others, in one step: both happen or neither. It was handled,
    /// and the others are its results.
    ///
    /// It needs the capability [`Forward`](Capability::Forward). Each target is a queue of the same
    /// backend, given by its [address](super::Queue::address); the queue itself and its dead
    /// letters are targets, too. The messages are accepted as by [`send`](super::Queue::send), in
    /// their order, with the same limits. A duplicate is not enqueued and counts as sent. Without
    /// messages this is [`Complete`](Self::Complete).
    ///
    /// A forward that is refused changes nothing: no message is sent, and the delivery continues
    /// with its receipt.
    Forward {
        /// The messages, each with the queue that receives it.
        messages: Vec<(Address, Message)>,
    },
}

impl Settle {
    /// Creates a settlement that makes a failed message visible again after `after`.
    pub const fn abandon(after: Duration) -> Self {
        Self::Abandon { after, error: None }
    }

    /// Creates a settlement that makes an untried message visible again after `after`.
    pub const fn release(after: Duration) -> Self {
        Self::Release { after }
    }

    /// Creates a settlement that moves the message to the dead letters.
    pub fn dead_letter(reason: impl Into<String>) -> Self {
        Self::DeadLetter { reason: reason.into(), error: None }
    }

    /// Creates a settlement that removes a handled message and sends these others, in one step.
    pub fn forward(messages: impl IntoIterator<Item = (Address, Message)>) -> Self {
        Self::Forward { messages: messages.into_iter().collect() }
    }

    /// Rejects a forward if this backend cannot forward, or if a message violates a rule or a
    /// limit, as [`Message::check`] does. For backends, which check the addresses.
    ///
    /// # Errors
    /// `Invalid` or `Unsupported`, with the name of the field or the capability.
    pub fn check(&self, can: &Capabilities) -> Result<(), PortError> {
        let Self::Forward { messages } = self else { return Ok(()) };
        can.require(Capability::Forward)?;
        Message::check_each(messages.iter().map(|(_, message)| message), can)
    }

    /// Adds the error of the attempt to an [`Abandon`](Self::Abandon) or a
    /// [`DeadLetter`](Self::DeadLetter); other settlements carry none.
    #[must_use]
    pub fn because(mut self, because: AttemptError) -> Self {
        if let Self::Abandon { error, .. } | Self::DeadLetter { error, .. } = &mut self {
            *error = Some(Box::new(because));
        }
        self
    }
}
