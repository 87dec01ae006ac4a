//! Addresses of queues, the targets of forwards.
use std::{fmt, hash, sync::Arc};

use super::{memory::CAN, memory_core::QueueCore};
use crate::port::{Capabilities, PortError, PortErrorKind};

/// The address of a queue, from [`Queue::address`](super::Queue::address): the target of a
/// [forward](super::Settle::Forward) from a queue of the same backend.
///
/// Equal addresses are of one queue. An address is no handle: it receives nothing. Its text is for
/// logs. A program that keeps the name of a target in its configuration opens the queue of that
/// name, and asks it for its address.
///
/// ```
/// use steadfast::queue::{InMemoryQueue, Message, Queue, QueueExt};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), steadfast::queue::QueueError> {
/// let (parsed, enriched) = (InMemoryQueue::new("parsed"), InMemoryQueue::new("enriched"));
/// parsed.send_one(Message::new("order 42")).await?;
///
/// let target = enriched.address().expect("a queue in memory has an address");
/// let delivery = parsed.receive_one(Duration::from_secs(30)).await?.expect("it was sent");
/// // `order 42` ends, and its result is sent: both or neither.
/// parsed.forward(&delivery.receipt, [(target, Message::new("order 42, of tenant 7"))]).await?;
///
/// assert_eq!((parsed.depth().await?.total(), enriched.depth().await?.total()), (0, 1));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Address(Place);

#[derive(Clone)]
enum Place {
    /// A queue in this process's memory. The address keeps it, so that no registry is needed.
    Memory(Arc<QueueCore>),
    /// The text of a queue, and that of its engine if the backend states it.
    Text(Arc<str>, Option<Arc<str>>),
}

impl Address {
    /// Creates it from the backend's text, which names the server or file and the queue there. For
    /// backends.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(Place::Text(text.into(), None))
    }

    /// States the file or the server of the queue, in the words of the backend, so that
    /// [`shares_engine`](Self::shares_engine) recognizes other queues there. For backends. The text
    /// is no part of the comparison of addresses.
    #[must_use]
    pub fn of_engine(self, engine: impl Into<Arc<str>>) -> Self {
        match self.0 {
            Place::Text(text, _) => Self(Place::Text(text, Some(engine.into()))),
            Place::Memory(_) => self,
        }
    }

    /// Returns `true` if both queues are known to be of one engine, such as one file or one server:
    /// deliveries of one can be forwarded to the other. It is `false` for a backend that does not
    /// [state its engine](Self::of_engine).
    ///
    /// ```
    /// use steadfast::queue::{Address, InMemoryQueue, Queue};
    ///
    /// let address = |name| InMemoryQueue::new(name).address().expect("a queue in memory has one");
    /// assert!(address("parsed").shares_engine(&address("enriched")));
    /// assert!(!address("parsed").shares_engine(&Address::new("a queue elsewhere")));
    /// ```
    pub fn shares_engine(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Place::Memory(_), Place::Memory(_)) => true,
            (Place::Text(_, Some(one)), Place::Text(_, Some(other))) => one == other,
            _ => false,
        }
    }

    /// Returns the backend's text; `None` for the address of a queue in memory. For backends.
    pub fn as_text(&self) -> Option<&str> {
        match &self.0 {
            Place::Memory(_) => None,
            Place::Text(text, _) => Some(text),
        }
    }

    /// Returns the error of a forward to an address that is not one of this backend. For backends.
    pub fn refuse(&self, can: &Capabilities) -> PortError {
        let message = format!("cannot forward to `{self}`: it is no queue of this `{}`", can.backend());
        PortError::new(PortErrorKind::Unsupported, message)
    }

    pub(super) const fn of_memory(queue: Arc<QueueCore>) -> Self {
        Self(Place::Memory(queue))
    }

    /// Returns the queue in memory of this address.
    pub(super) fn into_memory(self) -> Result<Arc<QueueCore>, PortError> {
        match self.0 {
            Place::Memory(queue) => Ok(queue),
            Place::Text(..) => Err(self.refuse(&CAN)),
        }
    }
}

impl PartialEq for Address {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Place::Memory(one), Place::Memory(other)) => Arc::ptr_eq(one, other),
            (Place::Text(one, _), Place::Text(other, _)) => one == other,
            _ => false,
        }
    }
}

impl Eq for Address {}

impl hash::Hash for Address {
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        match &self.0 {
            Place::Memory(queue) => Arc::as_ptr(queue).hash(state),
            Place::Text(text, _) => text.hash(state),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Place::Memory(queue) => f.write_str(&queue.identity()),
            Place::Text(text, _) => f.write_str(text),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}
