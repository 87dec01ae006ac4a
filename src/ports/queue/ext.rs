//! What is convenient on every queue.
use std::{future::Future, time::Duration};

use super::{Delivery, Message, MessageId, Queue, QueueError, Receipt, Receive, Settle};
use crate::port::{PortError, PortErrorKind};

/// What is convenient on every [`Queue`]: built on its methods, never implemented by a backend.
pub trait QueueExt: Queue {
    /// Sends one message.
    ///
    /// # Errors
    /// As [`Queue::send`].
    ///
    /// # Cancel safety
    /// As [`Queue::send`].
    fn send_one(&self, message: Message) -> impl Future<Output = Result<MessageId, QueueError>> + Send {
        async move { only(self.send(vec![message]).await?) }
    }

    /// Takes one message if there is one, without waiting.
    ///
    /// # Errors
    /// As [`Queue::receive`].
    ///
    /// # Cancel safety
    /// As [`Queue::receive`].
    fn receive_one(&self, visibility: Duration) -> impl Future<Output = Result<Option<Delivery>, QueueError>> + Send {
        async move { Ok(self.receive(Receive::new(1, visibility)).await?.pop()) }
    }

    /// The message was handled: it goes.
    ///
    /// # Errors
    /// [`QueueError::LeaseLost`] for an old receipt.
    ///
    /// # Cancel safety
    /// As [`Queue::settle`].
    fn complete(&self, receipt: &Receipt) -> impl Future<Output = Result<(), QueueError>> + Send {
        settle_one(self, receipt, Settle::Complete)
    }

    /// The message was not handled: it becomes visible again after so long, and the delivery counts as an attempt.
    ///
    /// # Errors
    /// [`QueueError::LeaseLost`] for an old receipt.
    ///
    /// # Cancel safety
    /// As [`Queue::settle`].
    fn abandon(&self, receipt: &Receipt, after: Duration) -> impl Future<Output = Result<(), QueueError>> + Send {
        settle_one(self, receipt, Settle::Abandon { after })
    }

    /// Nothing was tried with the message: it becomes visible again after so long, and the delivery does not count as an attempt.
    ///
    /// # Errors
    /// [`QueueError::LeaseLost`] for an old receipt.
    ///
    /// # Cancel safety
    /// As [`Queue::settle`].
    fn release(&self, receipt: &Receipt, after: Duration) -> impl Future<Output = Result<(), QueueError>> + Send {
        settle_one(self, receipt, Settle::Release { after })
    }

    /// The message cannot be handled: it moves to the dead letters.
    ///
    /// # Errors
    /// [`QueueError::LeaseLost`] for an old receipt.
    ///
    /// # Cancel safety
    /// As [`Queue::settle`].
    fn dead_letter(
        &self,
        receipt: &Receipt,
        reason: impl Into<String> + Send,
    ) -> impl Future<Output = Result<(), QueueError>> + Send {
        settle_one(self, receipt, Settle::dead_letter(reason))
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

/// The one answer to one request.
fn only<T>(answers: Vec<T>) -> Result<T, QueueError> {
    let [answer] = <[T; 1]>::try_from(answers).map_err(|answers| {
        let message = format!("the backend gave {} answers to one request", answers.len());
        PortError::new(PortErrorKind::Other, message)
    })?;
    Ok(answer)
}
