//! A message in a handler's hands, and how it is told to end.
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::Notify;

use crate::queue::{Delivery, ReplyTo};

/// A message in a handler's hands. Reads as its [`Delivery`].
///
/// Its lease is renewed while the handler runs.
pub struct Work {
    delivery: Delivery,
    cancel: Cancelled,
}

impl Work {
    #[inline]
    pub(super) fn new(delivery: Delivery, cancel: Cancelled) -> Self {
        Self { delivery, cancel }
    }

    /// The message, taken out.
    pub fn into_delivery(self) -> Delivery {
        self.delivery
    }

    /// Number of this attempt: 1 at first. Deliveries that were released are not counted.
    pub fn attempt(&self) -> u32 {
        self.delivery.attempts.saturating_add(1)
    }

    /// How this handler is told to end, to hand on.
    pub fn cancel(&self) -> &Cancelled {
        &self.cancel
    }

    /// Whether the handler was told to end.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Waits until the handler is told to end: its lease cannot be renewed, its time is over, or the listener stops. It has the
    /// [`margin`](super::QueueListenerConfig::lease_margin), then it is dropped.
    ///
    /// # Cancel safety
    /// Dropped while it waits, it loses nothing.
    pub async fn cancelled(&self) {
        self.cancel.cancelled().await;
    }

    /// Where the answer is expected, if one is.
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

/// Whether one handler was told to end. A clone is of the same handler.
///
/// A task has one of these for all its handlers, who come one after another: each has a number, and all up to a number were told. So a
/// message costs no allocation.
#[derive(Clone)]
pub struct Cancelled {
    shared: Arc<Shared>,
    number: u64,
}

#[derive(Default)]
struct Shared {
    /// All handlers up to this number were told.
    told: AtomicU64,
    tell: Notify,
}

impl Cancelled {
    /// Whether the handler was told to end.
    pub fn is_cancelled(&self) -> bool {
        self.shared.told.load(Ordering::Acquire) >= self.number
    }

    /// Waits until the handler is told to end.
    ///
    /// # Cancel safety
    /// Dropped while it waits, it loses nothing.
    pub async fn cancelled(&self) {
        loop {
            // Made before the look: whoever tells in between is heard.
            let told = self.shared.tell.notified();
            if self.is_cancelled() {
                return;
            }
            told.await;
        }
    }
}

impl fmt::Debug for Cancelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cancelled").field(&self.is_cancelled()).finish()
    }
}

/// The other end of a task's [`Cancelled`]s.
pub(super) struct Cancel {
    shared: Arc<Shared>,
    number: u64,
}

impl Cancel {
    pub(super) fn new() -> Self {
        Self { shared: Arc::default(), number: 0 }
    }

    /// For the next handler.
    #[inline]
    pub(super) fn next(&mut self) -> Cancelled {
        self.number += 1;
        Cancelled { shared: self.shared.clone(), number: self.number }
    }

    /// Tells the handler that is running; true if it was not told before.
    pub(super) fn tell(&self) -> bool {
        let before = self.shared.told.fetch_max(self.number, Ordering::AcqRel);
        if before < self.number {
            self.shared.tell.notify_waiters();
        }
        before < self.number
    }
}
