//! The argument of a handler: a delivery, and the signal to stop.
use std::fmt;

use super::Cancelled;
use crate::queue::{Delivery, ReplyTo};

/// A message that a handler works on. Dereferences to its [`Delivery`].
///
/// The listener renews the lease of the message while the handler runs.
pub struct Work {
    delivery: Delivery,
    cancel: Cancelled,
}

impl Work {
    #[inline]
    pub(super) fn new(delivery: Delivery, cancel: Cancelled) -> Self {
        Self { delivery, cancel }
    }

    /// Returns the delivery.
    pub fn into_delivery(self) -> Delivery {
        self.delivery
    }

    /// Returns the number of this attempt, starting at 1. Released deliveries are not counted.
    /// Deliveries that ended without a settlement are, since their handlers may have begun; the
    /// listener does not count them if nothing tells that.
    pub fn attempt(&self) -> u32 {
        self.delivery.attempts.saturating_add(1)
    }

    /// Returns the signal that asks this handler to stop, for use in other futures.
    pub fn cancel(&self) -> &Cancelled {
        &self.cancel
    }

    /// Returns `true` if the handler was asked to stop.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Waits until the handler is asked to stop: its lease cannot be renewed, its time limit has
    /// passed, the listener stops, or a [`QueueControl`](super::QueueControl) cancelled the
    /// message. The handler is dropped after the
    /// [`margin`](super::QueueListenerConfig::lease_margin), except for a cancelled message.
    ///
    /// # Cancel safety
    /// Cancel safe: a dropped wait loses nothing.
    pub async fn cancelled(&self) {
        self.cancel.cancelled().await;
    }

    /// Returns the address for the reply, if the message asks for one.
    pub fn reply_to(&self) -> Option<ReplyTo<'_>> {
        ReplyTo::of(&self.delivery.headers)
    }
}

impl std::ops::Deref for Work {
    type Target = Delivery;
    fn deref(&self) -> &Delivery {
        &self.delivery
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").field("id", &self.delivery.id).field("attempt", &self.attempt()).finish()
    }
}
