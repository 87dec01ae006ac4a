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
//!    accepts all or none, also if its future is dropped. A refused `send` has no effect: its
//!    de-duplication ids are not remembered. Ids of messages are never given twice.
//! 2. **Visibility time-out.** A received message is hidden for its visibility time-out, by the
//!    queue's own clock, never by a client's. The time begins when the message is taken, neither
//!    when it was sent nor when a wait began. No duration has a maximum. [`extend`](Queue::extend)
//!    sets the time that is left. Then the message is delivered again, its
//!    [`deliveries`](Delivery::deliveries) raised by one and with a new [`Receipt`], and otherwise
//!    unchanged. Three counts describe the earlier deliveries. `deliveries` counts all of them.
//!    [`attempts`](Delivery::attempts) counts those that were [abandoned](Settle::Abandon) and
//!    those that expired: they ended without being settled, and the message was delivered again. It
//!    does not count [released](Settle::Release) ones. [`expiries`](Delivery::expiries) counts
//!    those that expired since the last abandoned one: above 0, the end of an earlier delivery is
//!    unexplained. A release changes neither count; an extension changes none of the three. A
//!    fourth, [`crashes`](Delivery::crashes), counts those of `expiries` whose handling was
//!    [recorded as begun](Queue::mark_begun) when they expired. An abandoned delivery resets
//!    `expiries` and `crashes`, and takes back the attempts of which nothing tells that they were
//!    tried: all expired ones but the crashes and, if there was a crash, one before it.
//! 3. **A stale receipt has no effect.** Settling or extending with it returns
//!    [`QueueError::LeaseLost`], and changes nothing. A receipt is stale once its message was
//!    delivered again, or settled: of two settlements with one receipt, one takes effect. A receipt
//!    of another queue, the dead letters included, and any text that is no receipt are stale, too.
//!    After its visibility time-out, but before the next delivery, the backend may accept or refuse
//!    a receipt. If it is accepted, the delivery was settled or extended and did not expire. A
//!    valid receipt is accepted by all handles of the queue, in each process. No receipt is given
//!    twice.
//! 4. **Order** is first in, first out for messages that are visible at once, if no delivery failed
//!    and no delay was requested. A queue without [`Ordered`](crate::port::Capability::Ordered)
//!    promises that for messages of one group key only. Messages of one group key are delivered
//!    strictly in order, one at a time: while one is hidden, delayed, or waits for its redelivery,
//!    none behind it is visible. A message that returns stays the first of its group. A purge ends
//!    all groups.
//! 5. **Waiting.** A `wait` of zero returns at once. Otherwise `receive` returns as soon as a
//!    message is visible, whatever made it so, or empty when the wait is over, and not before. A
//!    queue without [`Push`](crate::port::Capability::Push) looks at intervals of seconds at most,
//!    and once more at the end of the wait. `receive` may return fewer messages than are visible,
//!    for example to limit a response, but never none while one is visible: messages that cannot be
//!    received hide no other.
//! 6. **A dropped `receive`** loses nothing: the messages that it had taken come back, at the
//!    latest after the visibility time-out. After its drop it takes no more messages, except by a
//!    request that is under way.
//! 7. **De-duplication.** A message with an id that was sent within the queue's window, or earlier
//!    in the same request, is accepted with the id of the first message, and is not enqueued. Both
//!    have the same group key, or none: a queue may remember the id for that key alone. The window
//!    begins with the first message; a duplicate does not renew it. The id is remembered whatever
//!    becomes of the message, except that a purge may forget it, and is forgotten at the latest
//!    when one and a half windows have passed.
//! 8. **Dead letters are a queue**, too, with all operations except dead letters of its own. A
//!    message is in one of the two, never in both or in none, whichever process is killed. Where
//!    two queues do not change in one step, the next delivery finishes what a killed process began,
//!    and until then a dead letter may also be hidden in the queue. A dead letter is visible at
//!    once, and keeps the id, the parts, the counts and the errors of its message, and the reason.
//!    Dead letters of one group key come in its order; the order of others is not promised. A dead
//!    letter that would become one again is refused as
//!    [`Unsupported`](crate::port::PortErrorKind::Unsupported), and stays in flight.
//! 9. **A full queue is an error** of class [`Throttled`](crate::port::ErrorClass::Throttled),
//!    returned before any message was accepted. Hidden messages take places. Duplicates take none:
//!    a full queue accepts them.
//! 10. **Identity.** [`identity`](Queue::identity) is the same text for every handle on one queue,
//!     in each process and after each restart. Every other queue has another text: also a queue of
//!     the same name on another backend, and the dead letters.
//! 11. **Errors of attempts.** A queue with
//!     [`ErrorHistory`](crate::port::Capability::ErrorHistory) keeps the errors that settlements
//!     report, the first and the latest ten, and returns them with each later delivery and with the
//!     dead letter. A release keeps them. A settlement with a stale receipt adds none. A queue
//!     without the capability ignores them.
//! 12. **A forward is one step.** With [`Forward`](crate::port::Capability::Forward),
//!     [`Settle::Forward`] ends a delivery and sends messages to queues of the same backend: both
//!     happen or neither, whichever process is killed. The messages are accepted as by `send`, with
//!     its limits, groups, delays and de-duplication: a duplicate counts as sent, and the delivery
//!     ends. A queue with an [`address`](Queue::address) can forward to itself and to its dead
//!     letters. If it is full, the message that ends makes room for one.
//! 13. **A refused forward changes nothing.** No message is sent, and the delivery continues with
//!     its receipt. A stale receipt sends nothing. An address of another backend, or of a queue
//!     that the backend cannot change in the same step, such as one of another file or server, is
//!     [`Unsupported`](crate::port::PortErrorKind::Unsupported); so is each forward of a queue
//!     without the capability. A full target refuses this settlement alone.
//! 14. **Age.** [`Delivery::age`] is the time since the acceptance of the message by the queue's
//!     own clock, in each delivery and in those of the dead letter. It is never negative. No step
//!     of a client's wall clock changes it; on a server whose own clock is set, it may change.
//! 15. **The de-duplication window is stated.** A queue with
//!     [`Deduplication`](crate::port::Capability::Deduplication) remembers an id at least for
//!     [`deduplicates_for`](crate::port::Capabilities::deduplicates_for).
mod address;
mod announcing;
mod error;
mod ext;
mod history;
mod idempotency;
mod memory;
mod memory_core;
mod message;
mod partitioned;
mod redrive;
mod requester;
mod send_only;
mod settle;
mod state;
mod unexplained;

pub use address::Address;
pub use announcing::AnnouncingQueue;
pub use error::{QueueError, QueueFuture};
pub use ext::QueueExt;
pub use history::{AttemptError, AttemptErrorKind, ErrorHistory};
pub use idempotency::IdempotencyFilter;
pub use memory::InMemoryQueue;
pub(crate) use message::EXPIRES_AFTER;
pub use message::{Delivery, Depth, Message, MessageId, Peeked, Receipt};
pub use partitioned::PartitionedQueue;
pub use redrive::redrive;
pub use requester::{ReplyTo, RequestError, Requester};
pub use send_only::SendOnly;
pub use settle::{Receive, Settle, check_visibility};
pub(crate) use unexplained::{Unexplained, untried};

use std::{fmt, sync::Arc, time::Duration};

use crate::port::Capabilities;

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

    /// Returns the address of this queue, as the target of a [forward](Settle::Forward) from queues
    /// of the same backend; `None` if no queue can forward to this one. All handles of a queue have
    /// equal addresses.
    ///
    /// A wrapper returns the address of the wrapped queue only if it adds nothing to
    /// [`send`](Self::send): a forward does not pass through the wrapper.
    fn address(&self) -> Option<Address>;

    /// Accepts these messages, all or none, and returns their ids in the same order.
    ///
    /// # Errors
    /// An error of class `Throttled` and kind `Full` if the queue is full; `Invalid` if a message
    /// violates a rule.
    ///
    /// # Cancel safety
    /// If the future is dropped, all messages are accepted or none, and the caller cannot tell
    /// which. A de-duplication id makes it safe to send again.
    fn send<'a>(&'a self, messages: Vec<Message>) -> QueueFuture<'a, Vec<MessageId>>;

    /// Receives up to [`max`](Receive::max) messages, and hides each from other receivers for
    /// [`visibility`](Receive::visibility) from now. It may return fewer messages than are visible,
    /// but never none while one is.
    ///
    /// A maximum above the backend's [`max_batch`](Capabilities::max_batch) is lowered to that.
    ///
    /// # Errors
    /// `Invalid` if the maximum or the visibility is zero.
    ///
    /// # Cancel safety
    /// Nothing is lost: taken messages come back, at the latest after the visibility time-out. A
    /// dropped `receive` takes no more messages.
    fn receive<'a>(&'a self, receive: Receive) -> QueueFuture<'a, Vec<Delivery>>;

    /// Settles each message as requested. Returns one result for each, in the same order. A request
    /// has any number of settlements; a backend divides large ones.
    ///
    /// # Errors
    /// The outer error means that the request failed as a whole. The inner ones are
    /// [`QueueError::LeaseLost`] for a stale receipt, `Unsupported` for a dead letter that would
    /// become one again, and the refusals of a [forward](Settle::Forward): `Unsupported` for a
    /// queue that cannot forward and for an address of another backend, `Invalid` for a message
    /// that violates a rule, `Full` for a target without room. An inner error changed nothing, and
    /// concerns its settlement alone.
    ///
    /// # Cancel safety
    /// Each message is settled or not, and the caller cannot tell which. A message that was not
    /// settled comes back.
    fn settle<'a>(&'a self, settlements: Vec<(Receipt, Settle)>) -> QueueFuture<'a, Vec<Result<(), QueueError>>>;

    /// Hides a received message for `visibility` from now, with the same receipt. This sets the
    /// time that is left: it may shorten it, and adds nothing. No count changes.
    ///
    /// # Errors
    /// [`QueueError::LeaseLost`] if the receipt is stale; `Invalid` if the visibility is zero. To
    /// make a message visible at once, [release](Settle::Release) it.
    ///
    /// # Cancel safety
    /// The message is extended or not, and the caller cannot tell which.
    fn extend<'a>(&'a self, receipt: &'a Receipt, visibility: Duration) -> QueueFuture<'a, ()>;

    /// [Extends](Self::extend), and records whether the handling of the message has begun. If the
    /// delivery then expires, it counts as one of the [`crashes`](Delivery::crashes). `false` takes
    /// the record back. Every settlement ends it.
    ///
    /// # Errors
    /// As [`extend`](Self::extend).
    ///
    /// # Cancel safety
    /// The record is made or not, and the caller cannot tell which.
    fn mark_begun<'a>(&'a self, receipt: &'a Receipt, visibility: Duration, begun: bool) -> QueueFuture<'a, ()>;

    /// Returns the number of messages by state. A backend may count roughly while others send and
    /// receive, and counts exactly otherwise.
    fn depth(&self) -> QueueFuture<'_, Depth>;

    /// Returns the first messages, hidden ones included, without receiving them; at most `max`.
    /// With [`Ordered`](crate::port::Capability::Ordered) these are the oldest ones, in order. A
    /// backend may return fewer if they are large together.
    fn peek(&self, max: usize) -> QueueFuture<'_, Vec<Peeked>>;

    /// Deletes all messages, hidden and delayed ones included, and returns their number. Their
    /// receipts are stale, and their groups begin anew. Dead letters stay.
    fn purge(&self) -> QueueFuture<'_, u64>;

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
    fn address(&self) -> Option<Address> {
        (**self).address()
    }
    fn send<'a>(&'a self, messages: Vec<Message>) -> QueueFuture<'a, Vec<MessageId>> {
        (**self).send(messages)
    }
    fn receive<'a>(&'a self, receive: Receive) -> QueueFuture<'a, Vec<Delivery>> {
        (**self).receive(receive)
    }
    fn settle<'a>(&'a self, settlements: Vec<(Receipt, Settle)>) -> QueueFuture<'a, Vec<Result<(), QueueError>>> {
        (**self).settle(settlements)
    }
    fn extend<'a>(&'a self, receipt: &'a Receipt, visibility: Duration) -> QueueFuture<'a, ()> {
        (**self).extend(receipt, visibility)
    }
    fn mark_begun<'a>(&'a self, receipt: &'a Receipt, visibility: Duration, begun: bool) -> QueueFuture<'a, ()> {
        (**self).mark_begun(receipt, visibility, begun)
    }
    fn depth(&self) -> QueueFuture<'_, Depth> {
        (**self).depth()
    }
    fn peek(&self, max: usize) -> QueueFuture<'_, Vec<Peeked>> {
        (**self).peek(max)
    }
    fn purge(&self) -> QueueFuture<'_, u64> {
        (**self).purge()
    }
    fn dead_letters(&self) -> Option<Arc<dyn Queue>> {
        (**self).dead_letters()
    }
}
