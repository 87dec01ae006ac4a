//! Notifications between processes: a hint that something changed.
//!
//! A notice may be lost. A subscriber therefore reads the state behind a notice, and also reads it
//! from time to time without one. A subscriber that may have missed notices, because its connection
//! was lost or because it is too slow, receives a [`Notice::Gap`].
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
//! # Guarantees
//!
//! Each backend upholds these. The public conformance suite (`testing::conformance`, feature
//! `testing`) checks a backend against them, with one named test for each case.
//!
//! 1. **From the subscription on.** A notice that is published after
//!    [`subscribe`](Notifier::subscribe) returned reaches the subscriber, or a [`Gap`](Notice::Gap)
//!    does. An earlier one does not.
//! 2. **Order.** Notices of one publisher to one topic arrive in the order of publishing, each at
//!    most once, and equal ones are not merged.
//! 3. **Isolation.** Topics are separate, and a slow subscriber never delays a publisher. Each
//!    subscription receives each notice, and dropping one ends no other.
//! 4. **No errors and no end** for a subscriber. The backend restores a lost connection, and
//!    reports a gap unless it knows that no notice was missed. A dropped `recv` loses no notice.
//! 5. **Topics are any text** of up to [`max_key`](Capabilities::max_key) bytes, and not empty.
//!    Notices are any bytes up to [`max_value`](Capabilities::max_value), and arrive unchanged.
//!    Anything else is refused as `Invalid` before it is sent, by `publish` and by `subscribe`.
mod hints;
mod memory;

pub(crate) use hints::Hints;
pub use memory::InMemoryNotifier;

use std::{fmt, sync::Arc};

use bytes::Bytes;

use crate::port::{BoxFuture, Capabilities, PortError, PortFuture};

/// Publishes and subscribes to hints. The [module's page](self) lists the guarantees.
///
/// The trait is object-safe: patterns hold an `Arc<dyn Notifier>`.
pub trait Notifier: Send + Sync + fmt::Debug {
    /// Returns the capabilities of this backend, and the largest sizes that it accepts.
    fn capabilities(&self) -> Capabilities;

    /// Sends a notice to all current subscribers of the topic, as far as they can be reached.
    ///
    /// # Errors
    /// `Invalid` for a topic that is empty or too long, or a notice that is too large; it reaches
    /// no subscriber. Another error if the backend failed: the notice may be lost.
    ///
    /// # Cancel safety
    /// If the future is dropped, the notice was published or not.
    fn publish<'a>(&'a self, topic: &'a str, notice: Bytes) -> PortFuture<'a, ()>;

    /// Subscribes to the notices that are published to the topic from now on.
    ///
    /// # Errors
    /// `Invalid` for a topic that is empty or too long. Another error if the backend failed:
    /// subscribe again.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    fn subscribe<'a>(&'a self, topic: &'a str) -> PortFuture<'a, Notices>;
}

impl<N: Notifier + ?Sized> Notifier for Arc<N> {
    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }
    fn publish<'a>(&'a self, topic: &'a str, notice: Bytes) -> PortFuture<'a, ()> {
        (**self).publish(topic, notice)
    }
    fn subscribe<'a>(&'a self, topic: &'a str) -> PortFuture<'a, Notices> {
        (**self).subscribe(topic)
    }
}

/// An event of a subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
// Exhaustive: after anything that is no message, a subscriber reads the whole state.
pub enum Notice {
    /// A published notice.
    Message(Bytes),
    /// The subscriber may have missed notices: read the whole state.
    Gap,
}

/// The backend's source of notices behind [`Notices`].
pub trait NoticeSource: Send {
    /// Waits for the next notice. Dropping the future must lose no notice.
    fn recv(&mut self) -> BoxFuture<'_, Notice>;
}

/// A subscription to a topic. Dropping it ends the subscription.
pub struct Notices(Box<dyn NoticeSource>);

impl Notices {
    /// Creates a subscription from this source, for backends.
    pub fn new(source: impl NoticeSource + 'static) -> Self {
        Self(Box::new(source))
    }

    /// Waits for the next notice, without a limit on the time.
    ///
    /// # Cancel safety
    /// Dropping the future loses no notice.
    pub async fn recv(&mut self) -> Notice {
        self.0.recv().await
    }
}

impl fmt::Debug for Notices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Notices")
    }
}

/// Rejects a topic or a notice that [`publish`](Notifier::publish) does not accept. For backends. A
/// subscription [checks its topic](Capabilities::check_key) alone.
///
/// # Errors
/// `Invalid`, with the name of the field and the rule.
pub fn check_notice(topic: &str, notice: &[u8], can: &Capabilities) -> Result<(), PortError> {
    can.check_key("topic", topic)?;
    can.check_value("notice", notice)
}
