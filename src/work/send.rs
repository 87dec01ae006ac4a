//! Sending messages until their queue accepts them.
use std::{future::Future, pin::pin, time::Duration};

use crate::{
    backoff::Backoff,
    port::{AskError, ErrorClass, Failure, ask},
    queue::{Message, Queue, QueueError},
    race::{First, race},
    time::{Clock, Instant},
};

/// A request to a queue that is repeated while the queue is full or fails.
pub(crate) struct PatientSend<'a> {
    pub(crate) queue: &'a dyn Queue,
    pub(crate) clock: &'a Clock,
    /// Maximum duration of one request.
    pub(crate) limit: Duration,
    /// Delays between requests.
    pub(crate) delays: Backoff,
}

/// The reasons for which messages are not sent.
#[derive(Debug)]
pub(crate) enum SendEnd {
    /// The queue refuses them for good.
    Refused(QueueError),
    Stopped,
}

impl PatientSend<'_> {
    /// Sends messages, until the queue accepts or refuses them, or `stopped` is ready after a
    /// failed request.
    ///
    /// `messages` gets the time of the request, and that of the first one whose messages may have
    /// been accepted with the reply lost. `failed` is told of each failed request.
    pub(crate) async fn send(
        mut self,
        mut messages: impl FnMut(Instant, Option<Instant>) -> Vec<Message>,
        failed: impl Fn(&AskError<QueueError>),
        stopped: impl Future<Output = ()>,
    ) -> Result<(), SendEnd> {
        let (mut stopped, mut lost) = (pin!(stopped), None);
        loop {
            let now = self.clock.now();
            let error = match ask(self.clock, self.limit, self.queue.send(messages(now, lost))).await {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            failed(&error);
            match error {
                AskError::Failed(error) if error.class() == ErrorClass::Permanent => {
                    return Err(SendEnd::Refused(error));
                }
                AskError::Failed(error) if !error.may_have_been_applied() => {}
                _ => lost = lost.or(Some(now)),
            }
            let pause = self.clock.sleep(self.delays.next().unwrap_or_default());
            if let First::One(()) = race(stopped.as_mut(), pause).await {
                return Err(SendEnd::Stopped);
            }
        }
    }
}
