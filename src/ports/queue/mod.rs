//! Messages that are handed out at least once: each is hidden for a while from all but its receiver, and comes back unless it is
//! settled.
//!
//! ```
//! use std::time::Duration;
//! use steadfast::queue::{InMemoryQueue, Message, Queue, QueueError, QueueExt, Receive};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), QueueError> {
//! let queue = InMemoryQueue::new("invoices");
//! queue.send_one(Message::new("pay 42")).await?;
//!
//! let delivery = queue.receive_one(Duration::from_secs(30)).await?.expect("it was sent");
//! assert_eq!((&delivery.body[..], delivery.deliveries), (&b"pay 42"[..], 1));
//! queue.complete(&delivery.receipt).await?;
//! assert_eq!(queue.depth().await?.total(), 0);
//! # Ok(())
//! # }
//! ```
//!
//! # The contract, for those who write a backend
//!
//! The public conformance suite (`testing::conformance`, feature `testing`) holds a backend to each of these by name.
//!
//! 1. **Accepted is kept.** What [`send`](Queue::send) returned an id for is handed out until it is settled, whatever process is killed;
//!    a `send` of several accepts all or none.
//! 2. **Hidden, then back.** A received message is hidden for its visibility time-out, by the queue's own clock. Then it is handed
//!    out again, its [`deliveries`](Delivery::deliveries) raised by one and with a new [`Receipt`].
//!    Three counts say what became of earlier deliveries. `deliveries` counts all of them. [`attempts`](Delivery::attempts) counts
//!    those that were [abandoned](Settle::Abandon) and those that expired: they ended without being settled, and the message was
//!    handed out again. It does not count [released](Settle::Release) ones. [`expiries`](Delivery::expiries) counts the expired
//!    ones since the last that was abandoned: above 0, the end of an earlier delivery is unexplained. A release changes neither.
//! 3. **An old receipt can do nothing**: to settle or extend with it is [`QueueError::LeaseLost`], and changes nothing. A receipt is old
//!    once its message was handed out again, or settled. One whose time is over while the message was not handed out again may
//!    still be honoured, or refused: both are right. Where it is honoured, the delivery was settled and did not expire.
//! 4. **Order** is first in, first out for messages that are visible at once, where no delivery failed and no delay was asked for;
//!    a queue without [`Ordered`](crate::port::Capability::Ordered) promises that for messages of one group key only.
//!    Messages of one group key are handed out strictly in order, one at a time: while one is hidden, or waits for its return, none
//!    behind it is visible.
//! 5. **Waiting.** A `wait` of zero returns at once. Otherwise `receive` returns as soon as there is one message, or empty when the time is
//!    over. A receive may return fewer messages than there are, but not none while one is visible.
//! 6. **A dropped `receive`** loses nothing: what it had taken comes back, at the latest after the visibility time-out.
//! 7. **A de-duplication id** that was sent within the queue's window is accepted, with the id of the first, and not enqueued. Its
//!    message has the same group key each time, or none: a queue may remember the id for that key alone.
//! 8. **Dead letters are a queue**, too, with everything but dead letters of its own. A message is in one of the two, never in both
//!    or in none, whatever is killed; there it has its reason and its counts.
//! 9. **Full is an error** of class [`Throttled`](crate::port::ErrorClass::Throttled), before anything was accepted.
//! 10. **Identity.** [`identity`](Queue::identity) is the same text for every handle on one queue, in every process and after each
//!     restart, and another for every other queue: also for one of the same name on another backend, and for the dead letters.
mod announcing;
mod error;
mod ext;
mod idempotency;
mod memory;
mod message;
mod partitioned;
mod redrive;
mod requester;
mod settle;
mod state;

pub use announcing::AnnouncingQueue;
pub use error::QueueError;
pub use ext::QueueExt;
pub use idempotency::IdempotencyFilter;
pub use memory::InMemoryQueue;
pub use message::{Delivery, Depth, Message, MessageId, Peeked, Receipt};
pub use partitioned::PartitionedQueue;
pub use redrive::redrive;
pub use requester::{ReplyTo, RequestError, Requester};
#[cfg(feature = "sqlite")]
pub(crate) use settle::check_visibility;
pub use settle::{Receive, Settle};

use std::{fmt, sync::Arc, time::Duration};

use crate::port::{BoxFuture, Capabilities};

/// One queue of messages. The [module's page](self) has the contract; [`QueueExt`] has what is convenient.
///
/// Object-safe: patterns hold an `Arc<dyn Queue>`.
pub trait Queue: Send + Sync + fmt::Debug {
    /// What this backend can do, and how large what it takes may be.
    fn capabilities(&self) -> Capabilities;

    /// Returns the text that tells this queue from every other one; at most 128 bytes. A queue with the lifetime of its process may
    /// make one up.
    fn identity(&self) -> String;

    /// Accepts these messages, all or none, and gives their ids in the same order.
    ///
    /// # Errors
    /// A failure of class `Throttled` and kind `Full` where the queue's bound is reached; `Invalid` where a message breaks a rule.
    ///
    /// # Cancel safety
    /// When the future is dropped all of them are accepted or none, and nobody is told which: a de-duplication id makes it safe to
    /// send again.
    fn send<'a>(&'a self, messages: Vec<Message>) -> BoxFuture<'a, Result<Vec<MessageId>, QueueError>>;

    /// Takes up to [`max`](Receive::max) messages, and hides each from all others for a while.
    ///
    /// # Cancel safety
    /// Nothing is lost: what was taken comes back, at the latest after the visibility time-out.
    fn receive<'a>(&'a self, receive: Receive) -> BoxFuture<'a, Result<Vec<Delivery>, QueueError>>;

    /// Ends the hiding of each message in the way that goes with it; one result for each, in the same order.
    ///
    /// # Errors
    /// The outer one where the request failed as a whole. The inner ones are [`QueueError::LeaseLost`] for an old receipt.
    ///
    /// # Cancel safety
    /// Each message is settled or not, and nobody is told which. One that was not comes back.
    fn settle<'a>(
        &'a self,
        settlements: Vec<(Receipt, Settle)>,
    ) -> BoxFuture<'a, Result<Vec<Result<(), QueueError>>, QueueError>>;

    /// Hides a received message for `visibility` from now, with the same receipt.
    ///
    /// # Errors
    /// [`QueueError::LeaseLost`] for an old receipt.
    ///
    /// # Cancel safety
    /// It is extended or not, and nobody is told which.
    fn extend<'a>(&'a self, receipt: &'a Receipt, visibility: Duration) -> BoxFuture<'a, Result<(), QueueError>>;

    /// How many messages there are, by what they wait for. A backend may count roughly while others send and receive.
    fn depth(&self) -> BoxFuture<'_, Result<Depth, QueueError>>;

    /// The first messages, hidden ones too, without taking them; at most `max`.
    fn peek(&self, max: usize) -> BoxFuture<'_, Result<Vec<Peeked>, QueueError>>;

    /// Deletes all messages, hidden ones too, and gives their number. Dead letters stay.
    fn purge(&self) -> BoxFuture<'_, Result<u64, QueueError>>;

    /// The queue of this one's dead letters; `None` where this one is such a queue itself.
    fn dead_letters(&self) -> Option<Arc<dyn Queue>>;
}

impl<Q: Queue + ?Sized> Queue for Arc<Q> {
    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }
    fn identity(&self) -> String {
        (**self).identity()
    }
    fn send<'a>(&'a self, messages: Vec<Message>) -> BoxFuture<'a, Result<Vec<MessageId>, QueueError>> {
        (**self).send(messages)
    }
    fn receive<'a>(&'a self, receive: Receive) -> BoxFuture<'a, Result<Vec<Delivery>, QueueError>> {
        (**self).receive(receive)
    }
    fn settle<'a>(
        &'a self,
        settlements: Vec<(Receipt, Settle)>,
    ) -> BoxFuture<'a, Result<Vec<Result<(), QueueError>>, QueueError>> {
        (**self).settle(settlements)
    }
    fn extend<'a>(&'a self, receipt: &'a Receipt, visibility: Duration) -> BoxFuture<'a, Result<(), QueueError>> {
        (**self).extend(receipt, visibility)
    }
    fn depth(&self) -> BoxFuture<'_, Result<Depth, QueueError>> {
        (**self).depth()
    }
    fn peek(&self, max: usize) -> BoxFuture<'_, Result<Vec<Peeked>, QueueError>> {
        (**self).peek(max)
    }
    fn purge(&self) -> BoxFuture<'_, Result<u64, QueueError>> {
        (**self).purge()
    }
    fn dead_letters(&self) -> Option<Arc<dyn Queue>> {
        (**self).dead_letters()
    }
}
