//! Settlements: each changes the record that the delivery claimed, and only then tells the server.
use std::{collections::HashSet, time::Duration};

use async_nats::HeaderMap;
use bytes::Bytes;

use super::{
    super::{
        api::{EXPECTED, GetMessage, MESSAGE_ID, Place, Purge, Purged, RawMessage, WRONG_LAST_SEQUENCE},
        link::Effect,
        names::Part,
    },
    NatsQueue,
    receive::nak,
    record::{Numbered, Record},
    wire::{self, Parts},
};
use crate::{
    port::{Capability, PortError, PortErrorKind, within},
    queue::{QueueError, Receipt, Settle},
    time::nanos,
};

/// Time after which an unanswered acknowledgement is replaced by a deletion.
const UNANSWERED: Duration = Duration::from_millis(500);
/// Number of settlements of a request that are under way at once.
const AT_ONCE: usize = 256;
/// Largest size of the errors and of the reason of a dead letter, in bytes.
const ERRORS: usize = 24 << 10;
const REASON: usize = 4 << 10;

/// A receipt of this part of the queue.
pub(super) struct Held<'a> {
    /// Number of the claim; 0 if there was no room for one.
    claim: u64,
    pub(super) message: Numbered,
    reply: &'a str,
    deduplication_id: Option<&'a str>,
}

impl NatsQueue {
    fn held<'a>(&self, receipt: &'a Receipt) -> Result<Held<'a>, QueueError> {
        let parse = || {
            let mut parts = receipt.as_text()?.splitn(4, ' ');
            let tag = u64::from_str_radix(parts.next()?, 16).ok()?;
            let (claim, reply) = (parts.next()?.parse().ok()?, parts.next()?);
            let place = Place::parse(reply).filter(|_| tag == self.tag())?;
            let of = format!(".{}.{}.", self.part().stream.name, super::CONSUMER);
            let deduplication_id = parts.next();
            let held = Held { claim, message: place.message(), reply, deduplication_id };
            reply.contains(&of).then_some(held)
        };
        parse().ok_or(QueueError::LeaseLost)
    }

    /// Returns the record of a message and its number. The record is `None` if it cannot be read.
    pub(super) async fn record(&self, message: Numbered) -> Result<Option<(u64, Option<Record>)>, PortError> {
        let subject = format!("{}.{message}", self.part().claims);
        let get = GetMessage { last_by_subj: Some(&subject), ..GetMessage::default() };
        let found = self.core.get(&self.core.claims.name, get).await?;
        Ok(found.map(|found| (found.seq, found.body().and_then(|body| Record::parse(&body)))))
    }

    /// Stores a record in the place of the one with the number `last`. `None` if another write was
    /// faster.
    pub(super) async fn write_record(
        &self,
        message: Numbered,
        last: u64,
        record: &Record,
    ) -> Result<Option<u64>, PortError> {
        let link = &self.core.nats.link;
        let (mut headers, body) = record.encode();
        headers.insert(EXPECTED, last.to_string().as_str());
        match link.store(format!("{}.{message}", self.part().claims), Some(headers), body).await? {
            Ok(number) => {
                self.core.cleaning.note_write();
                Ok(Some(number))
            }
            Err(error) if error.is_conflict() => Ok(None),
            Err(error) => Err(link.rejected("the message cannot be claimed", &error)),
        }
    }

    /// Returns the record that a receipt holds, and its number.
    async fn current(&self, held: &Held<'_>) -> Result<(u64, Record), QueueError> {
        match self.record(held.message).await? {
            None if held.claim == 0 && self.stored(held.message).await?.is_some() => {
                Ok((0, Record::default().delivered(0, 0)))
            }
            Some((number, Some(record)))
                if record.held && record.moves.is_none() && record.claim(number) == held.claim =>
            {
                Ok((number, record))
            }
            _ => Err(QueueError::LeaseLost),
        }
    }

    /// Replaces the record that a receipt holds, and hides the message for a time.
    async fn replace(
        &self,
        held: &Held<'_>,
        time: Duration,
        change: impl Fn(Record, u64) -> Record,
    ) -> Result<(), QueueError> {
        loop {
            let (number, record) = self.current(held).await?;
            let now = self.now().await?;
            match self.write_record(held.message, number, &change(record, now)).await {
                // The same delivery may have been extended meanwhile.
                Ok(None) => continue,
                // Without room for a record the server's own time is all that is kept.
                Err(error) if error.kind() != PortErrorKind::Full || number != 0 => return Err(error.into()),
                Ok(Some(_)) | Err(_) => {}
            }
            return self.hide(held.reply, time).await.map_err(|error| error.outcome_unknown().into());
        }
    }

    /// Tells the server after what time a message returns. A server that was killed may have
    /// forgotten the last deliveries, and a consumer that was made anew never knew them. Both
    /// ignore words on them: so they are said of the last one that it knows.
    async fn hide(&self, reply: &str, time: Duration) -> Result<(), PortError> {
        let last = self.consumer().await?.delivered.consumer_seq;
        self.core.nats.link.answer(Place::with_delivery(reply, last), nak(nanos(time))).await
    }

    pub(super) async fn extend_one(
        &self,
        receipt: &Receipt,
        visibility: Duration,
        begun: Option<bool>,
    ) -> Result<(), QueueError> {
        let held = self.held(receipt)?;
        self.replace(&held, visibility, |record, now| record.extended(held.claim, now, nanos(visibility), begun)).await
    }

    pub(super) async fn settle_all(
        &self,
        settlements: Vec<(Receipt, Settle)>,
    ) -> Result<Vec<Result<(), QueueError>>, QueueError> {
        let mut results = Vec::with_capacity(settlements.len());
        let mut seen = HashSet::new();
        // Of several with one receipt the first takes effect.
        let at_once = if settlements.iter().all(|(receipt, _)| seen.insert(receipt)) { AT_ONCE } else { 1 };
        drop(seen);
        let mut settlements = settlements.into_iter();
        loop {
            let some: Vec<_> = settlements.by_ref().take(at_once).collect();
            if some.is_empty() {
                return Ok(results);
            }
            let some = some.into_iter().map(|(receipt, how)| self.settle_one(receipt, how));
            results.extend(futures_util::future::join_all(some).await);
        }
    }

    async fn settle_one(&self, receipt: Receipt, how: Settle) -> Result<(), QueueError> {
        how.check(&self.core.can)?;
        let held = self.held(&receipt)?;
        match how {
            Settle::Complete => self.complete(&held).await,
            Settle::Abandon { after, error } => {
                self.replace(&held, after, |record, now| record.abandoned(now, nanos(after), error.clone())).await
            }
            Settle::Release { after } => {
                self.replace(&held, after, |record, now| record.released(now, nanos(after))).await
            }
            Settle::DeadLetter { reason, error } => self.dead_letter(&held, reason, error).await,
            Settle::Forward { .. } => Err(self.core.can.require(Capability::Forward).map_or_else(
                |lacks| lacks.into(),
                |()| self.core.nats.link.failure(PortErrorKind::Unsupported, "a queue on NATS cannot forward").into(),
            )),
        }
    }

    /// Notes in the record that the receipt holds that the message is done, and removes the
    /// message.
    async fn complete(&self, held: &Held<'_>) -> Result<(), QueueError> {
        if held.claim == 0 {
            return self.complete_without_note(held).await;
        }
        let mut number = held.claim;
        loop {
            match self.write_record(held.message, number, &Record::completed()).await {
                Ok(Some(_)) => break,
                // Extended, the delivery has another record.
                Ok(None) => number = self.current(held).await?.0,
                Err(error) if error.kind() == PortErrorKind::Full => return self.complete_without_note(held).await,
                Err(error) => return Err(error.into()),
            }
        }
        self.remember_held(held).await.map_err(PortError::outcome_unknown)?;
        self.finish(held.message, held.reply).await.map_err(|error| error.outcome_unknown().into())
    }

    /// Completes a message for whose note there is no room, or that was delivered without a record:
    /// it is there for one settlement.
    async fn complete_without_note(&self, held: &Held<'_>) -> Result<(), QueueError> {
        // A later delivery may have a record.
        let (number, _) = self.current(held).await?;
        self.remember_held(held).await?;
        if !self.delete(&self.part().stream.name, held.message.number).await? {
            return Err(QueueError::LeaseLost);
        }
        // A server that was killed may not know of the delivery, and then it does not answer.
        self.core.nats.link.tell(held.reply.to_owned(), "+ACK".to_owned()).await;
        if number != 0 {
            // A second settlement by the same receipt finds none.
            let _ = self.forget(held.message).await;
        }
        Ok(())
    }

    /// Removes a message whose record says that it is done.
    pub(super) async fn finish(&self, message: Numbered, reply: &str) -> Result<(), PortError> {
        let link = &self.core.nats.link;
        let noted = link.answer(reply.to_owned(), "+ACK".to_owned());
        match within(&link.base().clock, UNANSWERED, Box::pin(noted)).await {
            Some(Ok(())) => Ok(()),
            // A server that was killed may have forgotten the delivery, and ignores words on it. The
            // consumer skips a message that is gone.
            _ if self.stored(message).await?.is_some() => {
                self.delete(&self.part().stream.name, message.number).await.map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Removes the history of a message that stays, because there is no room for a new claim.
    pub(super) async fn forget(&self, message: Numbered) -> Result<(), PortError> {
        let link = &self.core.nats.link;
        let subject = format!("{}.{message}", self.part().claims);
        let call = format!("STREAM.PURGE.{}", self.core.claims.name);
        let purged = link.api::<Purged>(&call, &Purge { filter: Some(&subject), seq: None }, Effect::Writes).await?;
        purged.map(drop).map_err(|error| link.rejected("the records of a message cannot be removed", &error))
    }

    async fn remember_held(&self, held: &Held<'_>) -> Result<(), PortError> {
        match held.deduplication_id {
            Some(id) => self.remember(id, held.message).await,
            None => Ok(()),
        }
    }

    async fn dead_letter(
        &self,
        held: &Held<'_>,
        mut reason: String,
        error: Option<Box<crate::queue::AttemptError>>,
    ) -> Result<(), QueueError> {
        if self.part == Part::DeadLetters {
            self.current(held).await?;
            let message = "a dead letter does not become one again: there is no third queue";
            return Err(self.core.nats.link.failure(PortErrorKind::Unsupported, message).into());
        }
        reason.truncate(reason.floor_char_boundary(REASON));
        loop {
            let (number, record) = self.current(held).await?;
            let record = record.moving(reason.clone(), error.clone());
            let Some(message) = self.stored(held.message).await? else { return Err(QueueError::LeaseLost) };
            // Noted, it would be tried for ever.
            self.letter(held.message, &message, &record)?;
            if self.write_record(held.message, number, &record).await?.is_some() {
                let moved = self.finish_move(held.message, &record, held.reply).await;
                return moved.map_err(|error| error.outcome_unknown().into());
            }
        }
    }

    /// Moves a message to the dead letters, whose record says so. What is done is not done again.
    pub(super) async fn finish_move(&self, number: Numbered, record: &Record, reply: &str) -> Result<(), PortError> {
        let link = &self.core.nats.link;
        if let Some(message) = self.stored(number).await? {
            let (headers, body) = self.letter(number, &message, record)?;
            let subject = format!("{}.of-{number}", self.core.part(Part::DeadLetters).subject);
            match link.store(subject, Some(headers), body).await? {
                Ok(_) => {}
                Err(error) if error.err_code == WRONG_LAST_SEQUENCE || error.is_conflict() => {}
                Err(error) => return Err(link.rejected("the dead letter cannot be stored", &error)),
            }
            if let Some(id) = &Parts::of_list(&message.headers()).deduplication_id {
                self.remember(id, number).await?;
            }
        }
        self.finish(number, reply).await
    }

    /// Returns the headers and the body of a dead letter. Of its errors those are left out that
    /// need more room than the server takes.
    fn letter(&self, number: Numbered, message: &RawMessage, record: &Record) -> Result<(HeaderMap, Bytes), PortError> {
        let link = &self.core.nats.link;
        let body = message.body().ok_or_else(|| link.unexpected("STREAM.MSG.GET"))?;
        let all = message.headers();
        let mut headers: HeaderMap = wire::user_headers(&Parts::of_list(&all).headers);
        headers.insert(wire::NUMBER, number.number.to_string().as_str());
        headers.insert(wire::ACCEPTED, number.stored_at.to_string().as_str());
        headers.insert(wire::COUNTS, record.counts().as_str());
        headers.insert(wire::REASON, wire::escape(record.moves.as_deref().unwrap_or_default()).as_str());
        // No user's id begins so.
        headers.insert(MESSAGE_ID, format!("%of-{number}").as_str());
        headers.insert(EXPECTED, "0");
        let most = link.client().max_payload();
        let Some(room) = most.checked_sub(wire::size(&headers) + body.len()) else {
            let message = format_args!(
                "the message is too large to become a dead letter: complete it, or raise the server's `max_payload` of {most} bytes"
            );
            return Err(link.failure(PortErrorKind::Invalid, message));
        };
        // With the name, and what is between.
        let room = room.saturating_sub(wire::ERRORS.len() + 4);
        if let Some(errors) = record.errors_within(ERRORS.min(room)) {
            headers.insert(wire::ERRORS, errors.as_str());
        }
        Ok((headers, body))
    }
}
