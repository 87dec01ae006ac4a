//! A queue that can be sent to, and not be read.
use std::sync::Arc;

use super::{Message, MessageId, Queue, QueueError, QueueExt};

/// A queue for a process that sends, and must not read what it sent: it has no method to receive,
/// to look at, or to settle a message.
///
/// It bounds the code of a process. The rights of its user at the backend must be bounded there.
///
/// ```
/// use std::sync::Arc;
/// use steadfast::queue::{InMemoryQueue, Message, Queue, SendOnly};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let queue = Arc::new(InMemoryQueue::new("orders"));
/// let gate = SendOnly::new(queue.clone());
/// gate.send(Message::new("an order")).await.unwrap();
/// assert_eq!(queue.depth().await.unwrap().visible, 1);
/// # });
/// ```
///
/// ```compile_fail,E0599
/// # use std::{sync::Arc, time::Duration};
/// # use steadfast::queue::{InMemoryQueue, QueueExt, SendOnly};
/// # async fn read() {
/// let gate = SendOnly::new(Arc::new(InMemoryQueue::new("orders")));
/// gate.receive_one(Duration::from_secs(30)).await; // does not compile
/// # }
/// ```
#[derive(Clone)]
pub struct SendOnly(Arc<dyn Queue>);

impl SendOnly {
    /// Creates a way into this queue.
    pub fn new(queue: Arc<dyn Queue>) -> Self {
        Self(queue)
    }

    /// Sends one message.
    ///
    /// # Errors
    /// Same as [`Queue::send`].
    ///
    /// # Cancel safety
    /// Same as [`Queue::send`].
    pub async fn send(&self, message: Message) -> Result<MessageId, QueueError> {
        self.0.send_one(message).await
    }
}

crate::build::debug_fields!(SendOnly, |this| queue: this.0.identity());
