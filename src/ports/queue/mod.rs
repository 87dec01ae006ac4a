//! Queues with at-least-once delivery: a received message is hidden from other receivers for a
//! while, and comes back unless it is settled.
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
//! # Guarantees
//!
//! Each backend upholds these. The public conformance suite (`testing::conformance`, feature
//! `testing`) checks a backend against them, with one named test for each case.
//!
//! 1. **Accepted messages are kept.** A message for which [`send`](Queue::send) returned an id is
//!    delivered until it is settled, whichever process is killed. A `send` of several messages
//!    accepts all or none.
//! 2. **Visibility time-out.** A received message is hidden for its visibility time-out, by the
//!    queue's own clock. Then it is delivered again, its [`deliveries`](Delivery::deliveries)
//!    raised by one and with a new [`Receipt`]. Three counts describe the earlier deliveries.
//!    `deliveries` counts all of them. [`attempts`](Delivery::attempts) counts those that were
//!    [abandoned](Settle::Abandon) and those that expired: they ended without being settled, and
//!    the message was delivered again. It does not count [released](Settle::Release) ones.
//!    [`expiries`](Delivery::expiries) counts those that expired since the last abandoned one:
//!    above 0, the end of an earlier delivery is unexplained. A release changes neither count.
//! 3. **A stale receipt has no effect.** Settling or extending with it returns
//!    [`QueueError::LeaseLost`], and changes nothing. A receipt is stale once its message was
//!    delivered again, or settled. After its visibility time-out, but before the next delivery, the
//!    backend may accept or refuse it. If it is accepted, the delivery was settled and did not
//!    expire.
//! 4. **Order** is first in, first out for messages that are visible at once, if no delivery failed
//!    and no delay was requested. A queue without [`Ordered`](crate::port::Capability::Ordered)
//!    promises that for messages of one group key only. Messages of one group key are delivered
//!    strictly in order, one at a time: while one is hidden, or waits for its redelivery, none
//!    behind it is visible.
//! 5. **Waiting.** A `wait` of zero returns at once. Otherwise `receive` returns as soon as there
//!    is one message, or empty when the wait is over. It may return fewer messages than there are,
//!    but not none while one is visible.
//! 6. **A dropped `receive`** loses nothing: the messages that it had taken come back, at the
//!    latest after the visibility time-out.
//! 7. **De-duplication.** A message with an id that was sent within the queue's window is accepted
//!    with the id of the first message, and is not enqueued. Both have the same group key, or none:
//!    a queue may remember the id for that key alone.
//! 8. **Dead letters are a queue**, too, with all operations except dead letters of its own. A
//!    message is in one of the two, never in both or in none, whichever process is killed. A dead
//!    letter has its reason and its counts.
//! 9. **A full queue is an error** of class [`Throttled`](crate::port::ErrorClass::Throttled),
//!    returned before any message was accepted.
//! 10. **Identity.** [`identity`](Queue::identity) is the same text for every handle on one queue,
//!     in each process and after each restart. Every other queue has another text: also a queue of
//!     the same name on another backend, and the dead letters.
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

/// A queue of messages. The [module's page](self) lists the guarantees; [`QueueExt`] has
/// convenience methods.
///
/// The trait is object-safe: patterns hold an `Arc<dyn Queue>`.
pub trait Queue: Send + Sync + fmt::Debug {
    /// Returns the capabilities of this backend, and the largest sizes that it accepts.
    fn capabilities(&self) -> Capabilities;

    /// Returns a text that distinguishes this queue from every other one, of at most 128 bytes. A
    /// queue that ends with its process may generate one.
    fn identity(&self) -> String;

    /// Accepts these messages, all or none, and returns their ids in the same order.
    ///
    /// # Errors
    /// An error of class `Throttled` and kind `Full` if the queue is full; `Invalid` if a message
    /// violates a rule.
    ///
    /// # Cancel safety
    /// If the future is dropped, all messages are accepted or none, and the caller cannot tell
    /// which. A de-duplication id makes it safe to send again.
    fn send<'a>(&'a self, messages: Vec<Message>) -> BoxFuture<'a, Result<Vec<MessageId>, QueueError>>;

    /// Receives up to [`max`](Receive::max) messages, and hides each from other receivers for a
    /// while.
    ///
    /// # Cancel safety
    /// Nothing is lost: taken messages come back, at the latest after the visibility time-out.
    fn receive<'a>(&'a self, receive: Receive) -> BoxFuture<'a, Result<Vec<Delivery>, QueueError>>;

    /// Settles each message as requested. Returns one result for each, in the same order.
    ///
    /// # Errors
    /// The outer error means that the request failed as a whole. The inner ones are
    /// [`QueueError::LeaseLost`] for a stale receipt.
    ///
    /// # Cancel safety
    /// Each message is settled or not, and the caller cannot tell which. A message that was not
    /// settled comes back.
    fn settle<'a>(
        &'a self,
        settlements: Vec<(Receipt, Settle)>,
    ) -> BoxFuture<'a, Result<Vec<Result<(), QueueError>>, QueueError>>;

    /// Hides a received message for `visibility` from now, with the same receipt.
    ///
    /// # Errors
    /// [`QueueError::LeaseLost`] if the receipt is stale.
    ///
    /// # Cancel safety
    /// The message is extended or not, and the caller cannot tell which.
    fn extend<'a>(&'a self, receipt: &'a Receipt, visibility: Duration) -> BoxFuture<'a, Result<(), QueueError>>;

    /// Returns the number of messages by state. A backend may count roughly while others send and
    /// receive.
    fn depth(&self) -> BoxFuture<'_, Result<Depth, QueueError>>;

    /// Returns the first messages, hidden ones included, without receiving them; at most `max`.
    fn peek(&self, max: usize) -> BoxFuture<'_, Result<Vec<Peeked>, QueueError>>;

    /// Deletes all messages, hidden ones included, and returns their number. Dead letters stay.
    fn purge(&self) -> BoxFuture<'_, Result<u64, QueueError>>;

    /// Returns the queue of this one's dead letters; `None` if this one is such a queue itself.
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
