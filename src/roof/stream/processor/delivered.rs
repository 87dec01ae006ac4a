//! The argument of a handler.
use std::{ops::Deref, sync::Arc};

use crate::{port::FencingToken, stream::Recorded, work::Cancelled};

/// An event of a read. It keeps all events of the read in memory: one allocation for all of them.
#[derive(Debug, Clone)]
pub(super) struct OfRead {
    events: Arc<Vec<Recorded>>,
    at: usize,
}

impl OfRead {
    pub(super) fn all(events: Vec<Recorded>) -> impl Iterator<Item = Self> {
        let (count, events) = (events.len(), Arc::new(events));
        (0..count).map(move |at| Self { events: events.clone(), at })
    }
}

impl Deref for OfRead {
    type Target = Recorded;

    fn deref(&self) -> &Recorded {
        &self.events[self.at]
    }
}

/// An event that a handler works on. Dereferences to the [`Recorded`] event.
///
/// It keeps the events of its read in memory, at most 500. Copy what is needed for long.
pub struct Delivered {
    pub(super) recorded: OfRead,
    pub(super) attempt: u32,
    pub(super) token: FencingToken,
    pub(super) cancel: Cancelled,
}

impl Delivered {
    /// Returns the number of this attempt, from 1. Attempts of earlier owners are not counted.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Returns the fencing token of the owner's term: above those of all earlier owners of the
    /// partition. A resource that remembers the highest token can refuse the late write of an
    /// earlier owner.
    pub fn token(&self) -> FencingToken {
        self.token
    }

    /// Returns the signal that asks this handler to stop, for use in other futures.
    pub fn cancel(&self) -> &Cancelled {
        &self.cancel
    }

    /// Returns `true` if the handler was asked to stop.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Waits until the handler is asked to stop: the term of its partition is about to end, or its
    /// [`drain_timeout`](super::StreamProcessorConfig::drain_timeout) has passed. The handler is
    /// dropped when the term ends, or a
    /// [`grace`](crate::leader_election::LeaderElectionConfig::grace) later.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn cancelled(&self) {
        self.cancel.cancelled().await;
    }
}

impl Deref for Delivered {
    type Target = Recorded;

    fn deref(&self) -> &Recorded {
        &self.recorded
    }
}

crate::build::debug_fields!(Delivered, |this| position: this.position, attempt: this.attempt, token: this.token);
