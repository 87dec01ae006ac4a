//! The end of an attempt: the event is finished, runs again later, or becomes a dead letter.
use std::{
    future::{Future, pending},
    time::Duration,
};

use super::{Delivered, StreamCall, StreamProcessorEvent as Event, component::ProcessorCore, worker::Worker};
use crate::{
    backoff::Backoff,
    hash::stable_hash,
    port::AskError,
    queue::{Message, Queue},
    stream::{Position, Recorded},
    time::Instant,
    work::{Disposition, EventDisposition, PatientSend, SHORTEST_DELAY, SendEnd},
};

/// Delay of an event that was refused without a delay of its own.
const REFUSED: Duration = Duration::from_secs(1);

/// Maximum number of characters of the reason in a dead letter: a longer one might exceed the
/// queue's limit, and halt the partition.
const REASON: usize = 2_000;

impl<'a, F, H> Worker<'a, F, H>
where
    F: Fn(Delivered) -> H,
    H: Future,
    H::Output: Into<EventDisposition>,
{
    /// Decides on an event whose handler has ended.
    pub(super) fn settle(&mut self, position: u64, output: Result<EventDisposition, String>, now: Instant) {
        let after = match output {
            Ok(Disposition::Complete) => return self.finish(position, now),
            Ok(Disposition::DeadLetter { reason }) => return self.bury(position, reason),
            Ok(Disposition::Retry { after, error }) => return self.failed(position, after, error, now),
            Ok(Disposition::Release) => SHORTEST_DELAY,
            Ok(Disposition::Refused { after, .. }) => {
                after.unwrap_or(REFUSED).clamp(SHORTEST_DELAY, Disposition::LONGEST_REFUSAL)
            }
            Ok(Disposition::Snooze { after }) => after.clamp(SHORTEST_DELAY, Disposition::LONGEST_SNOOZE),
            Ok(Disposition::Forward { messages }) => match messages {},
            Err(panic) => return self.failed(position, None, panic, now),
        };
        self.delay(position, now + after);
    }

    fn failed(&mut self, position: u64, after: Option<Duration>, error: String, now: Instant) {
        let (core, partition) = (self.partition.core, self.partition.number);
        let config = core.config.now();
        let attempt = self.partition.lanes.fail(position);
        let is_last = attempt >= config.max_deliveries;
        let retry_in = (!is_last).then(|| {
            let mut delays = Backoff::checked(config.retry, &core.entropy);
            after.unwrap_or_else(|| delays.nth(attempt as usize - 1).unwrap_or(config.retry.cap))
        });
        let at = Position::new(partition, position);
        core.event(|| Event::AttemptFailed { position: at, attempt, error: error.clone(), retry_in });
        match retry_in {
            Some(delay) => self.delay(position, now + delay),
            None => self.bury(position, error),
        }
    }

    /// Sends an event that ran to the dead letters.
    pub(super) fn bury(&mut self, position: u64, reason: String) {
        let core = self.partition.core;
        let (Some(queue), Some(recorded)) = (&core.dead_letters, self.partition.lanes.event(position)) else {
            return self.halt_at(position, &format!("{reason}; there is no queue for dead letters"));
        };
        let at = recorded.position;
        let message = dead_letter(core, &**queue, recorded, &reason);
        self.handlers.bury(Box::pin(async move {
            let sent = send(core, &**queue, message, at.partition).await;
            if sent.is_ok() {
                core.event(|| Event::DeadLettered { position: at, reason });
            }
            (position, sent)
        }));
    }
}

/// Returns the dead letter of an event. Its de-duplication id is the position.
fn dead_letter(core: &ProcessorCore, queue: &dyn Queue, recorded: &Recorded, reason: &str) -> Message {
    let Recorded { position, event } = recorded;
    let topic = core.topic.name();
    let mut message = Message::new(event.body.clone());
    for (name, value) in &event.headers {
        message = message.header(name, value);
    }
    if let Some(key) = &event.key {
        message = message.header("event-key", key);
    }
    if let Some(id) = &event.id {
        message = message.header("event-id", id);
    }
    message = message.header("event-topic", topic).header("event-position", position.to_string());
    let id = format!("{}/{position}", core.partition);
    let id =
        if id.len() <= queue.capabilities().max_key() { id } else { format!("{:016x}", stable_hash(id.as_bytes())) };
    let reason: String = reason.chars().take(REASON).collect();
    message.header("event-group", core.group.as_str()).header("event-reason", reason).deduplicate(id)
}

/// Sends a dead letter, and repeats that while the queue is full or fails.
async fn send(core: &ProcessorCore, queue: &dyn Queue, message: Message, partition: u16) -> Result<(), String> {
    let patient = PatientSend { queue, clock: &core.clock, limit: core.call_timeout(), delays: core.delays() };
    let failed = |error: &AskError<_>| core.failed(StreamCall::DeadLetter, Some(partition), error.kind());
    match patient.send(|_, _| vec![message.clone()], failed, pending()).await {
        Err(SendEnd::Refused(error)) => Err(error.to_string()),
        Ok(()) | Err(SendEnd::Stopped) => Ok(()),
    }
}
