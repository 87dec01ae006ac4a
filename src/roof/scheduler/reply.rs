//! Replies: sent in the step that completes the message that they answer, or before it.
use std::{sync::Arc, time::Duration};

use super::submission::fitting;
use crate::{
    port::{Capability, ask},
    queue::{Message, Queue, QueueError, QueueExt},
    queue_listener::Work,
    time::Clock,
    work::Disposition,
};

/// Finds a reply queue by its name.
pub(super) type Replies = Arc<dyn Fn(&str) -> Option<Arc<dyn Queue>> + Send + Sync>;

/// The queue of the messages that are answered, and the time limit of a request.
pub(super) struct Replier<'a> {
    pub(super) queue: &'a Arc<dyn Queue>,
    pub(super) clock: &'a Clock,
    pub(super) limit: Duration,
}

impl Replier<'_> {
    /// Sends a message, once for each id where the queue recognises repeated ids.
    pub(super) async fn send(&self, to: &Arc<dyn Queue>, message: Message, id: String) -> Result<(), QueueError> {
        let message = once(to, message, id);
        let sent = ask(self.clock, self.limit, to.send_one(message)).await;
        sent.map(drop).map_err(|error| error.or_timed_out("the queue did not answer in time"))
    }

    /// Completes a message with its reply. Where both queues are of one backend, that is one step.
    pub(super) async fn complete(
        &self,
        work: &Work,
        to: &Arc<dyn Queue>,
        reply: Message,
        id: String,
    ) -> Result<Disposition, QueueError> {
        // A forward that the queue refuses, as to another file or server, is a failed attempt.
        let forwards = self.queue.capabilities().has(Capability::Forward) && work.attempts == 0;
        if let Some(address) = to.address().filter(|_| forwards) {
            return Ok(Disposition::forward([(address, once(to, reply, id))]));
        }
        self.send(to, reply, id).await?;
        Ok(Disposition::Complete)
    }
}

/// Lets the queue recognise a repeated message, if it can.
fn once(to: &Arc<dyn Queue>, message: Message, id: String) -> Message {
    let can = to.capabilities();
    if can.has(Capability::Deduplication) { message.deduplicate(fitting(id, &can)) } else { message }
}
