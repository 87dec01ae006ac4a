//! Subscriptions: the receiving side, in a task of its own.
use std::fmt;

use tokio::sync::broadcast;

use super::Event;
#[cfg(any(feature = "metrics", feature = "console"))]
use super::source::EventSource;

/// The reason for which a subscription returned no event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Missed {
    /// The subscription fell behind, or the source dropped events in a flood; this many are lost.
    /// The next `recv` continues with the oldest remaining event.
    #[error("missed {0} events")]
    Events(u64),
    /// The policy and all its clones were dropped.
    #[error("the source of the events was dropped")]
    Closed,
}

/// A subscription to a policy's events, from its creation on.
pub struct Subscription<E> {
    pub(super) receiver: broadcast::Receiver<Event<E>>,
    /// Number of the next event, if none is dropped; 0 before the first.
    pub(super) expected: u64,
    /// An event to return after the gap before it was reported.
    pub(super) held: Option<Event<E>>,
    #[cfg(any(feature = "metrics", feature = "console"))]
    pub(super) source: std::sync::Weak<EventSource<E>>,
}

#[cfg(any(feature = "metrics", feature = "console"))]
impl<E> Subscription<E> {
    /// Calls `count` with each event from now on, where it is sent, instead of through the ring.
    /// `count` must be quick.
    pub(crate) fn tap(self, count: impl Fn(&E) + Send + Sync + 'static) {
        if let Some(source) = self.source.upgrade() {
            source.demand().listeners.add(super::hooks::Listener::Counter(Box::new(count)));
        }
    }
}

impl<E: Clone> Subscription<E> {
    /// Waits for the next event and returns it.
    ///
    /// # Errors
    /// [`Missed::Events`] if events were lost (the next call continues), [`Missed::Closed`] if no
    /// more events will come.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing: the next call returns the same event.
    pub async fn recv(&mut self) -> Result<Event<E>, Missed> {
        if let Some(event) = self.held.take() {
            return Ok(event);
        }
        match self.receiver.recv().await {
            Ok(event) => self.accept(event),
            Err(broadcast::error::RecvError::Lagged(n)) => Err(self.fell_behind(n)),
            Err(broadcast::error::RecvError::Closed) => Err(Missed::Closed),
        }
    }

    /// Returns the next event if there is one, without waiting.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub fn try_recv(&mut self) -> Result<Option<Event<E>>, Missed> {
        if let Some(event) = self.held.take() {
            return Ok(Some(event));
        }
        match self.receiver.try_recv() {
            Ok(event) => self.accept(event).map(Some),
            Err(broadcast::error::TryRecvError::Empty) => Ok(None),
            Err(broadcast::error::TryRecvError::Lagged(n)) => Err(self.fell_behind(n)),
            Err(broadcast::error::TryRecvError::Closed) => Err(Missed::Closed),
        }
    }

    /// Returns an event, or first the number of events dropped before it.
    fn accept(&mut self, event: Event<E>) -> Result<Event<E>, Missed> {
        let expected = std::mem::replace(&mut self.expected, event.number + 1);
        match event.number.saturating_sub(expected) {
            gap if gap > 0 && expected > 0 => {
                self.held = Some(event);
                Err(Missed::Events(gap))
            }
            _ => Ok(event),
        }
    }

    fn fell_behind(&mut self, n: u64) -> Missed {
        if self.expected > 0 {
            self.expected += n;
        }
        Missed::Events(n)
    }
}

impl<E> fmt::Debug for Subscription<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("waiting", &self.receiver.len()).finish()
    }
}
