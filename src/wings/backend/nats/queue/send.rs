//! Sends: each message is one message of the stream, and several are one batch.
use std::{collections::HashMap, time::Duration};

use super::{
    super::{
        api::{DUPLICATE_IN_BATCH, DUPLICATE_UNDER_WAY, GetMessage, RawMessage},
        batch::Draft,
        link::Effect,
        names::Part,
    },
    NatsQueue,
    record::Numbered,
    wire,
};
use crate::{
    port::{PortError, PortErrorKind},
    queue::{Message, MessageId, QueueError},
    time::nanos,
};

/// Pause before a message is sent again whose id belongs to another one that is being stored.
const UNDER_WAY: Duration = Duration::from_millis(10);

/// The numbers of the messages with known ids.
type Known = HashMap<String, u64>;

impl NatsQueue {
    pub(super) async fn send_all(&self, messages: Vec<Message>) -> Result<Vec<MessageId>, QueueError> {
        Message::check(&messages, &self.core.can)?;
        let ids: Vec<_> = messages.iter().map(|message| message.deduplication_id.clone()).collect();
        let window = self.core.window;
        let mut known = if window.is_zero() { Known::new() } else { self.settled(ids.iter().flatten()).await? };
        let mut numbers = vec![0; messages.len()];
        loop {
            // The first message of each id that is not known.
            let mut firsts: HashMap<&str, usize> = HashMap::new();
            let mut new = Vec::new();
            for (at, id) in ids.iter().enumerate() {
                match id.as_deref() {
                    Some(id) if known.contains_key(id) => {}
                    Some(id) if firsts.contains_key(id) => {}
                    Some(id) => {
                        firsts.insert(id, at);
                        new.push(at);
                    }
                    None => new.push(at),
                }
            }
            let Some(stored) = self.store_new(&messages, &new).await? else {
                // The server does not say which. Each is sent by itself, and answered with its number.
                for at in new {
                    if let (Some(id), Some(stored)) = (&ids[at], self.store_new(&messages, &[at]).await?) {
                        known.extend(stored.into_iter().map(|number| (id.clone(), number)));
                    }
                }
                continue;
            };
            for (at, number) in new.iter().zip(stored) {
                numbers[*at] = number;
            }
            for (at, id) in ids.iter().enumerate() {
                if let Some(id) = id.as_deref() {
                    let number = known.get(id).copied().or_else(|| firsts.get(id).map(|first| numbers[*first]));
                    numbers[at] = number.unwrap_or_default();
                }
            }
            return Ok(numbers.into_iter().map(|number| self.id(number)).collect());
        }
    }

    /// Returns the id of a message that was sent to this part of the queue.
    pub(super) fn id(&self, number: u64) -> MessageId {
        MessageId::from_numbers(number, u64::from(self.part == Part::DeadLetters))
    }

    /// Stores these messages, and returns their numbers. `None` if the id of one is known.
    async fn store_new(&self, messages: &[Message], new: &[usize]) -> Result<Option<Vec<u64>>, PortError> {
        let link = &self.core.nats.link;
        let now = if new.iter().any(|at| !messages[*at].delay.is_zero()) { self.now().await? } else { 0 };
        let mut all = new.iter().map(|at| {
            let message = &messages[*at];
            let mut subject = self.part().subject.clone();
            if !message.delay.is_zero() {
                // Rounded up.
                let due = now.saturating_add(nanos(message.delay)) / 1_000_000;
                subject = format!("{subject}.{}", due.saturating_add(1));
            }
            let id = message.deduplication_id.as_deref().filter(|_| !self.core.window.is_zero());
            Draft { subject, headers: wire::headers_of(message, id), payload: message.body.clone() }
        });
        if new.len() > 1 {
            let all: Vec<_> = all.collect();
            return match link.store_batch(&all).await? {
                Ok(last) => Ok(Some((0..new.len() as u64).rev().map(|behind| last.saturating_sub(behind)).collect())),
                Err(error) if error.err_code == DUPLICATE_IN_BATCH => Ok(None),
                Err(error) => Err(link.rejected("the messages cannot be stored", &error)),
            };
        }
        let Some(Draft { subject, headers, payload }) = all.next() else { return Ok(Some(Vec::new())) };
        let clock = &link.base().clock;
        let until = clock.now() + link.base().config.request_timeout;
        loop {
            let headers = (!headers.is_empty()).then(|| headers.clone());
            match link.store(subject.clone(), headers, payload.clone()).await? {
                // A cluster that refused a message with this id, or is storing one, knows no number yet.
                Ok(0) => {}
                Err(error) if error.err_code == DUPLICATE_UNDER_WAY => {}
                // The number of the first one, if this one is a duplicate.
                Ok(number) => return Ok(Some(vec![number])),
                Err(error) => return Err(link.rejected("the message cannot be stored", &error)),
            }
            if clock.now() >= until {
                let message = "another message with this id is being stored, or was refused";
                return Err(link.failure(PortErrorKind::Unavailable, message));
            }
            clock.sleep(UNDER_WAY).await;
        }
    }

    /// Finds ids among those of messages that are gone: a server forgets them when it is restarted.
    async fn settled(&self, ids: impl Iterator<Item = &String>) -> Result<Known, PortError> {
        let core = &self.core;
        let looked_up = ids.map(async |id| {
            let subject = core.nats.names.id_of(&core.name, self.part, id);
            let get = GetMessage { last_by_subj: Some(&subject), ..GetMessage::default() };
            let found = core.get(&core.ids.name, get).await?;
            let text = found.and_then(|found| String::from_utf8(found.body()?.into()).ok());
            Ok::<_, PortError>((id.clone(), text))
        });
        let mut known = Known::new();
        for found in futures_util::future::join_all(looked_up).await {
            let (id, Some(text)) = found? else { continue };
            let Some((number, accepted)) = text.split_once(' ') else { continue };
            if let (Ok(number), Ok(accepted)) = (number.parse(), accepted.parse::<u64>())
                && self.now().await?.saturating_sub(accepted) < nanos(core.window)
            {
                known.insert(id, number);
            }
        }
        Ok(known)
    }

    /// Remembers the id of a message that is about to go.
    pub(super) async fn remember(&self, id: &str, message: Numbered) -> Result<(), PortError> {
        let Numbered { number, stored_at: accepted } = message;
        let core = &self.core;
        if core.window.is_zero() {
            return Ok(());
        }
        let subject = core.nats.names.id_of(&core.name, self.part, id);
        let link = &core.nats.link;
        match link.store(subject, None, format!("{number} {accepted}").into()).await? {
            Ok(_) => Ok(()),
            Err(error) => {
                let error = link.rejected("the id of a message cannot be remembered", &error);
                // The server itself remembers it until it is restarted.
                if error.kind() == PortErrorKind::Full { Ok(()) } else { Err(error) }
            }
        }
    }

    /// Reads a message of the queue. `None` if it is gone, or another one has its number.
    pub(super) async fn stored(&self, message: Numbered) -> Result<Option<RawMessage>, PortError> {
        let get = GetMessage { seq: Some(message.number), ..GetMessage::default() };
        let found = self.core.get(&self.part().stream.name, get).await?;
        Ok(found.filter(|found| found.stored_at() == Some(message.stored_at)))
    }

    /// Removes a message by its number, and returns `true` if it was there.
    pub(super) async fn delete(&self, stream: &str, number: u64) -> Result<bool, PortError> {
        use super::super::api::{DELETE_FAILED, DeleteMessage, NO_MESSAGE, SEQUENCE_NOT_FOUND};
        let link = &self.core.nats.link;
        let request = DeleteMessage { seq: number, no_erase: true };
        let call = format!("STREAM.MSG.DELETE.{stream}");
        match link.api::<serde::de::IgnoredAny>(&call, &request, Effect::Writes).await? {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.err_code, NO_MESSAGE | DELETE_FAILED | SEQUENCE_NOT_FOUND) => Ok(false),
            Err(error) => Err(link.rejected("the message cannot be removed", &error)),
        }
    }
}
