//! Atomic batches: the server stores all messages of one or none, from release 2.12 on.
use std::time::Duration;

use async_nats::{
    HeaderMap,
    header::{NATS_BATCH_COMMIT, NATS_BATCH_COMMIT_FINAL, NATS_BATCH_ID, NATS_BATCH_SEQUENCE},
};
use bytes::Bytes;

use super::{
    api::{ApiError, PubAck},
    link::{Effect, Link},
};
use crate::port::PortError;

/// Most messages of a batch, by the server's default.
pub(super) const MOST: usize = 1_000;

/// Size of messages that are sent before the server has confirmed that it has them.
const AHEAD: usize = 4 << 20;
/// First pause before a batch is sent again; the later ones are longer.
const PAUSE: Duration = Duration::from_millis(2);

/// A message to be stored.
#[derive(Debug, Clone)]
pub(super) struct Draft {
    pub(super) subject: String,
    pub(super) headers: HeaderMap,
    pub(super) payload: Bytes,
}

impl Link {
    /// Stores the messages, at least two, as one batch. Returns the number of the last one; those
    /// of the others precede it without a gap. The inner error is a refusal: nothing was stored.
    ///
    /// A server takes 50 batches of a stream at once. While others use them up, the batch is sent
    /// again, for the time limit of a request.
    ///
    /// # Cancel safety
    /// Dropped, all messages are stored or none. The server forgets an unfinished batch after 10 s.
    pub(super) async fn store_batch(&self, messages: &[Draft]) -> Result<Result<u64, ApiError>, PortError> {
        let base = self.base();
        let until = base.clock.now() + base.config.request_timeout;
        let (mut pause, since) = (PAUSE, self.refusals());
        loop {
            match self.send_batch(messages).await? {
                Err(error) if error.is_crowded() => {
                    // A batch also lacks those messages that the user may not publish.
                    self.unless_any_refused(messages.iter().map(|message| &message.subject), since)?;
                    if base.clock.now() >= until {
                        return Ok(Err(error));
                    }
                    base.clock.sleep(pause).await;
                }
                stored => return Ok(stored),
            }
            pause = (pause * 2).min(Duration::from_millis(100));
        }
    }

    async fn send_batch(&self, messages: &[Draft]) -> Result<Result<u64, ApiError>, PortError> {
        let entropy = &self.base().entropy;
        let id = entropy.id();
        let parts = |draft: &Draft, number: usize| {
            let mut headers = draft.headers.clone();
            headers.insert(NATS_BATCH_ID, id.as_str());
            headers.insert(NATS_BATCH_SEQUENCE, number.to_string().as_str());
            (draft.subject.clone(), headers, draft.payload.clone())
        };
        // No caller has an empty batch.
        let Some((last, others)) = messages.split_last() else { return Ok(Ok(0)) };
        let mut ahead = 0;
        for (number, draft) in (1..).zip(others) {
            let (subject, headers, payload) = parts(draft, number);
            ahead += payload.len();
            // Nothing is stored before the last message.
            if ahead < AHEAD {
                let sent = self.client().publish_with_headers(subject, headers, payload);
                self.supervise(Effect::Once, sent).await?.map_err(|error| self.unsent(error))?;
                continue;
            }
            ahead = 0;
            let answer = self.request(subject, Some(headers), payload, Effect::Once).await?;
            // The server has the message, if it says nothing.
            if !answer.payload.is_empty()
                && let Err(error) = self.parse::<PubAck>("publish", &answer.payload, Effect::Once)?
            {
                return Ok(Err(error));
            }
        }
        let (subject, mut headers, payload) = parts(last, messages.len());
        headers.insert(NATS_BATCH_COMMIT, NATS_BATCH_COMMIT_FINAL);
        let answer = self.request(subject, Some(headers), payload, Effect::Writes).await?;
        match self.parse::<PubAck>("publish", &answer.payload, Effect::Writes)? {
            // A server that knows no batches stores each message by itself.
            Ok(ack) if ack.count != messages.len() as u64 => Err(self.unexpected("a batch").outcome_unknown()),
            ack => Ok(ack.map(|ack| ack.seq)),
        }
    }
}
