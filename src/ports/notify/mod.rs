//! Hints between processes: "something changed, look".
//!
//! A notice may be lost. Whoever acts on one looks at the state behind it, and looks now and then without one, too. A subscriber
//! that may have missed notices (a lost connection, too slow) is told so by [`Notice::Gap`].
//!
//! ```
//! use steadfast::notify::{InMemoryNotifier, Notice, Notifier};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), steadfast::port::PortError> {
//! let notifier = InMemoryNotifier::new();
//! let mut notices = notifier.subscribe("prices").await?;
//! notifier.publish("prices", "eur".into()).await?;
//! assert_eq!(notices.recv().await, Notice::Message("eur".into()));
//! # Ok(())
//! # }
//! ```
//!
//! # The contract, for those who write a backend
//!
//! The public conformance suite (`testing::conformance`, feature `testing`) holds a backend to each of these by name.
//!
//! 1. **From the subscription on.** What is published after [`subscribe`](Notifier::subscribe) returned reaches the subscriber, or a
//!    [`Gap`](Notice::Gap) does; what was published before it does not.
//! 2. **Order.** One publisher's notices to a topic come in its order.
//! 3. **Topics are apart**, and a publisher is never held up by a slow subscriber.
//! 4. **Never an error, never an end** for a subscriber: a lost connection is mended behind it, and told as a gap.
mod memory;

pub use memory::InMemoryNotifier;

use std::{fmt, sync::Arc};

use bytes::Bytes;

use crate::port::{BoxFuture, Capabilities, PortError, check_part};

/// Publishes hints, and subscribes to them. The [module's page](self) has the contract.
///
/// Object-safe: patterns hold an `Arc<dyn Notifier>`.
pub trait Notifier: Send + Sync + fmt::Debug {
    /// What this backend can do.
    fn capabilities(&self) -> Capabilities;

    /// Tells all who are subscribed to the topic now, as far as they can be reached.
    ///
    /// # Cancel safety
    /// When the future is dropped it is published or not.
    fn publish<'a>(&'a self, topic: &'a str, notice: Bytes) -> BoxFuture<'a, Result<(), PortError>>;

    /// Hears what is published to the topic from now on.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    fn subscribe<'a>(&'a self, topic: &'a str) -> BoxFuture<'a, Result<Notices, PortError>>;
}

impl<N: Notifier + ?Sized> Notifier for Arc<N> {
    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }
    fn publish<'a>(&'a self, topic: &'a str, notice: Bytes) -> BoxFuture<'a, Result<(), PortError>> {
        (**self).publish(topic, notice)
    }
    fn subscribe<'a>(&'a self, topic: &'a str) -> BoxFuture<'a, Result<Notices, PortError>> {
        (**self).subscribe(topic)
    }
}

/// What a subscriber hears.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// What was published.
    Message(Bytes),
    /// Notices may have been missed here: look at everything.
    Gap,
}

/// Where a subscription's notices come from: the backend's half of [`Notices`].
pub trait NoticeSource: Send {
    /// The next notice; waits for it. Must lose nothing when the future is dropped.
    fn recv(&mut self) -> BoxFuture<'_, Notice>;
}

/// A subscription to a topic. It ends when it is dropped.
pub struct Notices(Box<dyn NoticeSource>);

impl Notices {
    /// A subscription with this source. For backends.
    pub fn new(source: impl NoticeSource + 'static) -> Self {
        Self(Box::new(source))
    }

    /// The next notice; waits for it, for ever if none comes.
    ///
    /// # Cancel safety
    /// Dropped while it waits, it loses nothing.
    pub async fn recv(&mut self) -> Notice {
        self.0.recv().await
    }
}

impl fmt::Debug for Notices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Notices")
    }
}

/// Refuses a notice that breaks a rule that every backend has, or that this one states.
pub(crate) fn check(topic: &str, notice: &Bytes, can: &Capabilities) -> Result<(), PortError> {
    check_part("topic", topic, can)?;
    if notice.len() > can.max_value() {
        let rule = format_args!("must be at most {} bytes, is {}", can.max_value(), notice.len());
        return Err(PortError::invalid("notice", rule));
    }
    Ok(())
}
