//! Convenience methods of queues.
use std::{future::Future, time::Duration};

use super::{Address, Delivery, Message, MessageId, Queue, QueueError, Receipt, Receive, Settle};
use crate::port::{PortError, PortErrorKind};

/// Convenience methods of every [`Queue`], built on its own methods. Backends do not implement
/// them.
pub trait QueueExt: Queue {
    /// Sends one message.
    ///
    /// # Errors
    /// Same as [`Queue::send`].
    ///
    /// # Cancel safety
    /// Same as [`Queue::send`].
    fn send_one(&self, message: Message) -> impl Future<Output = Result<MessageId, QueueError>> + Send {
        async move { only(self.send(vec![message]).await?) }
    }

    /// Receives one message if there is one, without waiting.
    ///
    /// # Errors
    /// Same as [`Queue::receive`].
    ///
    /// # Cancel safety
    /// Same as [`Queue::receive`].
    fn receive_one(&self, visibility: Duration) -> impl Future<Output = Result<Option<Delivery>, QueueError>> + Send {
        async move { Ok(self.receive(Receive::new(1, visibility)).await?.pop()) }
    }

    /// Removes a message that was handled.
    ///
    /// # Errors
    /// [`QueueError::LeaseLost`] if the receipt is stale.
    ///
    /// # Cancel safety
    /// Same as [`Queue::settle`].
    fn complete(&self, receipt: &Receipt) -> impl Future<Output = Result<(), QueueError>> + Send {
        settle_one(self, receipt, Settle::Complete)
    }

    /// Returns a message that was not handled to the queue, visible again after `after`. The
    /// delivery counts as an attempt.
    ///
    /// # Errors
    /// [`QueueError::LeaseLost`] if the receipt is stale.
    ///
    /// # Cancel safety
    /// Same as [`Queue::settle`].
    fn abandon(&self, receipt: &Receipt, after: Duration) -> impl Future<Output = Result<(), QueueError>> + Send {
        settle_one(self, receipt, Settle::abandon(after))
    }

    /// Returns an untried message to the queue, visible again after `after`. The delivery does not
    /// count as an attempt.
    ///
    /// # Errors
    /// [`QueueError::LeaseLost`] if the receipt is stale.
    ///
    /// # Cancel safety
    /// Same as [`Queue::settle`].
    fn release(&self, receipt: &Receipt, after: Duration) -> impl Future<Output = Result<(), QueueError>> + Send {
        settle_one(self, receipt, Settle::Release { after })
    }

    /// Moves a message that cannot be handled to the dead letters.
    ///
    /// # Errors
    /// [`QueueError::LeaseLost`] if the receipt is stale.
    ///
    /// # Cancel safety
    /// Same as [`Queue::settle`].
    fn dead_letter(
        &self,
        receipt: &Receipt,
        reason: impl Into<String> + Send,
    ) -> impl Future<Output = Result<(), QueueError>> + Send {
        settle_one(self, receipt, Settle::dead_letter(reason))
    }

    /// Removes a message that was handled and sends these others, in one step.
    ///
    /// # Errors
    /// [`QueueError::LeaseLost`] if the receipt is stale. `Unsupported` if the queue cannot
    /// forward to one of the addresses, `Invalid` if a message violates a rule, `Full` if a target
    /// has no room. Each of these leaves everything as it was.
    ///
    /// # Cancel safety
    /// Same as [`Queue::settle`].
    fn forward(
        &self,
        receipt: &Receipt,
        messages: impl IntoIterator<Item = (Address, Message)>,
    ) -> impl Future<Output = Result<(), QueueError>> + Send {
        settle_one(self, receipt, Settle::forward(messages))
    }
}

impl<Q: Queue + ?Sized> QueueExt for Q {}

fn settle_one<Q: Queue + ?Sized>(
    queue: &Q,
    receipt: &Receipt,
    how: Settle,
) -> impl Future<Output = Result<(), QueueError>> + Send {
    let settlement = vec![(receipt.clone(), how)];
    async move { only(queue.settle(settlement).await?)? }
}

/// Returns the single result of a single request.
fn only<T>(answers: Vec<T>) -> Result<T, QueueError> {
    let [answer] = <[T; 1]>::try_from(answers).map_err(|answers| {
        let message = format!("the backend returned {} results for one request", answers.len());
        PortError::new(PortErrorKind::Other, message)
    })?;
    Ok(answer)
}
