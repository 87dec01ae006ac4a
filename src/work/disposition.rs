//! Results of a handler.
use std::{convert::Infallible, fmt, time::Duration};

use crate::{
    outcome::{CallError, Cause},
    queue::{Address, Message},
};

/// Minimum delay of a released, refused or snoozed piece of work, so that an immediate second one
/// does not become a busy loop.
pub(crate) const SHORTEST_DELAY: Duration = Duration::from_millis(100);

/// Result of a handler, which decides how its message or event is settled.
///
/// A handler may return this, `()`, or a `Result<(), E>`, whose error becomes
/// [`Retry`](Self::Retry). That of a queue's message may forward results `R` to other queues; that
/// of an event cannot ([`EventDisposition`]).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Disposition<R = Vec<(Address, Message)>> {
    /// The message was handled and is removed from the queue.
    Complete,
    /// The message was handled and is removed from the queue. In the same step its results are
    /// sent, as by [`Settle::Forward`](crate::queue::Settle::Forward).
    ///
    /// While a target is full, the listener repeats the settlement until a third of the lease is
    /// left, or the listener stops. Then it releases the message, which counts no attempt, and the
    /// handler runs again. A forward that the queue refuses for good (it cannot forward, the
    /// address is of another backend, a message is too large) is a failed attempt.
    Forward {
        /// The results, each with the queue that receives it.
        messages: R,
    },
    /// The message failed. It is delivered again until its attempts are used up.
    Retry {
        /// Delay until the next delivery; `None` for the configured delays.
        after: Option<Duration>,
        /// Error text, for people.
        error: String,
    },
    /// The message was not tried. It is delivered again, and no attempt is counted: at once if the
    /// listener stops or its queue is paused, otherwise after 100 ms, and after twice as long with
    /// each earlier release, refusal or snooze of the message, up to
    /// [`LONGEST_REFUSAL`](Self::LONGEST_REFUSAL).
    Release,
    /// A dependency refused the call, as an open circuit breaker does. The message is delivered
    /// again later, and no attempt is counted.
    Refused {
        /// Delay until the next delivery, at most [`LONGEST_REFUSAL`](Self::LONGEST_REFUSAL);
        /// `None` for about a second.
        after: Option<Duration>,
        /// Text of the refusal, for people.
        error: String,
    },
    /// It is too early for the message. The message is delivered again later, and no attempt is
    /// counted, however often it is snoozed.
    Snooze {
        /// Delay until the next delivery: from 100 ms to [`LONGEST_SNOOZE`](Self::LONGEST_SNOOZE).
        /// A value outside is replaced by the nearer bound.
        after: Duration,
    },
    /// The message cannot be handled and becomes a dead letter.
    DeadLetter {
        /// Reason, for people.
        reason: String,
    },
}

/// Result of the handler of an event, which cannot be [forwarded](Disposition::Forward).
///
/// A position of a topic and the messages of a queue have no common step. A handler sends them
/// itself, before it returns. This does not compile:
///
/// ```compile_fail,E0277
/// # use steadfast::{queue::{Address, Message}, stream::{Delivered, StreamProcessor}};
/// # use steadfast::work::Disposition;
/// # async fn run(processor: StreamProcessor, queue: Address) {
/// let shutdown = std::future::pending();
/// processor.run(shutdown, async |event: Delivered| {
///     Disposition::forward([(queue.clone(), Message::new(event.event.body.clone()))])
/// }).await;
/// # }
/// ```
pub type EventDisposition = Disposition<Infallible>;

impl Disposition {
    /// Maximum delay of a refused message. A message that is refused for longer is delivered and
    /// refused again in between.
    pub const LONGEST_REFUSAL: Duration = Duration::from_secs(30);

    /// Maximum delay of a snoozed message: seven days. A handler that wants a longer delay snoozes
    /// the message again when it is delivered.
    pub const LONGEST_SNOOZE: Duration = Duration::from_secs(7 * 24 * 3600);

    /// Returns the disposition of a message that was handled, with its results: the end of the
    /// message and the sending of the results are one step. No results are
    /// [`Complete`](Self::Complete).
    ///
    /// ```
    /// use std::{sync::Arc, time::Duration};
    /// use steadfast::{
    ///     queue::{InMemoryQueue, Message, Queue, QueueExt},
    ///     queue_listener::{QueueListener, QueueListenerConfig, Work},
    ///     time::Clock,
    ///     work::Disposition,
    /// };
    ///
    /// # let (clock, driver) = Clock::manual();
    /// # driver.block_on(async {
    /// let orders = Arc::new(InMemoryQueue::builder("orders").clock(&clock).build());
    /// let invoices = InMemoryQueue::builder("invoices").clock(&clock).build();
    /// orders.send_one(Message::new("order 42")).await?;
    ///
    /// let target = invoices.address().expect("a queue in memory has an address");
    /// let config = QueueListenerConfig::default();
    /// let listener = QueueListener::builder(orders.clone(), config).clock(&clock).build()?;
    /// let shutdown = clock.sleep(Duration::from_secs(1));
    /// listener.run(shutdown, async |work: Work| {
    ///     let invoice = [b"invoice for ", &work.body[..]].concat();
    ///     Disposition::forward([(target.clone(), Message::new(invoice))])
    /// }).await?;
    /// assert_eq!((orders.depth().await?.total(), invoices.depth().await?.total()), (0, 1));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn forward(messages: impl IntoIterator<Item = (Address, Message)>) -> Self {
        let messages: Vec<_> = messages.into_iter().collect();
        if messages.is_empty() { Self::Complete } else { Self::Forward { messages } }
    }
}

impl<R> Disposition<R> {
    /// Returns a failure that is tried again after the configured delay.
    pub fn retry(error: impl fmt::Display) -> Self {
        Self::Retry { after: None, error: error.to_string() }
    }

    /// Returns a failure that is tried again after this delay.
    pub fn retry_after(after: Duration, error: impl fmt::Display) -> Self {
        Self::Retry { after: Some(after), error: error.to_string() }
    }

    /// Returns a refusal. Its message is delivered again after this delay, or after about a second
    /// if it is `None`.
    pub fn refused(after: Option<Duration>, error: impl fmt::Display) -> Self {
        Self::Refused { after, error: error.to_string() }
    }

    /// Returns the disposition of a message that comes too early: it is delivered again after this
    /// delay, and no attempt is counted.
    ///
    /// ```
    /// use std::{sync::{Arc, Mutex}, time::Duration};
    /// use steadfast::{
    ///     queue::{InMemoryQueue, Message, QueueExt},
    ///     queue_listener::{QueueListener, QueueListenerConfig, Work},
    ///     time::Clock,
    ///     work::Disposition,
    /// };
    ///
    /// # let (clock, driver) = Clock::manual();
    /// # driver.block_on(async {
    /// let queue = Arc::new(InMemoryQueue::builder("parcels").clock(&clock).build());
    /// queue.send_one(Message::new("has parcel 7 arrived?")).await?;
    ///
    /// // One failed attempt would make the message a dead letter. A snooze is none.
    /// let config = QueueListenerConfig::default().max_attempts(1);
    /// let listener = QueueListener::builder(queue, config).clock(&clock).build()?;
    /// let asked_at = Mutex::new(Vec::new());
    /// let shutdown = clock.sleep(Duration::from_secs(3600));
    /// listener.run(shutdown, async |work: Work| {
    ///     asked_at.lock().unwrap().push(clock.now());
    ///     match work.deliveries {
    ///         1 | 2 => Disposition::snooze(Duration::from_secs(600)), // it is on its way
    ///         _ => Disposition::Complete,
    ///     }
    /// }).await?;
    /// assert_eq!((listener.state().snoozed, listener.state().handled), (2, 1));
    /// let asked_at = asked_at.into_inner().unwrap();
    /// assert!(asked_at[1] - asked_at[0] >= Duration::from_secs(600));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub const fn snooze(after: Duration) -> Self {
        Self::Snooze { after }
    }

    /// Returns the disposition of a message that cannot be handled.
    pub fn dead_letter(reason: impl fmt::Display) -> Self {
        Self::DeadLetter { reason: reason.to_string() }
    }

    /// Converts the result of a call through a pipeline. A call that a policy rejected is not an
    /// attempt: its message is delivered again after the delay that the rejection gives. A call
    /// that failed is an attempt; its message is delivered again after the delay that the other
    /// side gave, if any.
    pub fn of_call<T, E: fmt::Display>(result: Result<T, CallError<E>>) -> Self {
        let Err(error) = result else { return Self::Complete };
        let (after, was_sent) = (error.retry_after(), error.attempts() > 0);
        match error.into_cause() {
            Cause::Operation(error) => Self::Retry { after, error: error.to_string() },
            // A retry whose first attempt failed and whose second was rejected did send a request.
            Cause::Rejected(rejected) if was_sent => Self::Retry { after, error: rejected.to_string() },
            Cause::Rejected(rejected) => Self::Refused { after, error: rejected.to_string() },
            Cause::TimedOut(timed_out) => Self::Retry { after, error: timed_out.to_string() },
        }
    }
}

impl<R> From<()> for Disposition<R> {
    #[inline]
    fn from((): ()) -> Self {
        Self::Complete
    }
}

impl<R, E: fmt::Display> From<Result<(), E>> for Disposition<R> {
    #[inline]
    fn from(result: Result<(), E>) -> Self {
        match result {
            Ok(()) => Self::Complete,
            Err(error) => Self::retry(error),
        }
    }
}
