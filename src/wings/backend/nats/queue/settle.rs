//! Settlements: each changes the record that the delivery claimed, and only then tells the server.
use std::{collections::HashSet, time::Duration};

use async_nats::HeaderMap;

use super::{
    super::{
        api::{EXPECTED, GetMessage, MESSAGE_ID, Place, Purge, Purged, WRONG_LAST_SEQUENCE},
        link::Effect,
        names::Part,
    },
    NatsQueue,
    receive::nak,
    record::Record,
    wire::{self, Parts},
};
use crate::{
    port::{Capability, PortError, PortErrorKind},
    queue::{QueueError, Receipt, Settle},
    time::nanos,
};

/// Number of settlements of a request that are under way at once.
const AT_ONCE: usize = 256;
/// Largest size of the errors and of the reason of a dead letter, in bytes.
const ERRORS: usize = 24 << 10;
const REASON: usize = 4 << 10;

/// A receipt of this part of the queue.
pub(super) struct Held<'a> {
    /// Number of the claim; 0 if there was no room for one.
    claim: u64,
    /// Number of the message.
    pub(super) message: u64,
    accepted: u64,
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
            let held = Held { claim, message: place.sequence, accepted: place.stored_at, reply, deduplication_id };
            reply.contains(&of).then_some(held)
        };
        parse().ok_or(QueueError::LeaseLost)
    }

    /// Returns the record of a message and its number. The record is `None` if it cannot be read.
    pub(super) async fn record(&self, message: u64) -> Result<Option<(u64, Option<Record>)>, PortError> {
        let subject = format!("{}.{message}", self.part().claims);
        let get = GetMessage { last_by_subj: Some(&subject), ..GetMessage::default() };
        let found = self.core.get(&self.core.claims.name, get).await?;
        Ok(found.map(|found| (found.seq, found.body().and_then(|body| Record::parse(&body)))))
    }

    /// Stores a record in the place of the one with the number `last`. `None` if another write was
    /// faster.
    pub(super) async fn write_record(
        &self,
        message: u64,
        last: u64,
        record: &Record,
    ) -> Result<Option<u64>, PortError> {
        let link = &self.core.nats.link;
        let (mut headers, body) = record.encode();
        headers.insert(EXPECTED, last.to_string().as_str());
        match link.store(format!("{}.{message}", self.part().claims), Some(headers), body).await? {
            Ok(number) => Ok(Some(number)),
            Err(error) if error.is_conflict() => Ok(None),
            Err(error) => Err(link.rejected("the message cannot be claimed", &error)),
        }
    }

    /// Returns the record that a receipt holds, and its number.
    async fn current(&self, held: &Held<'_>) -> Result<(u64, Record), QueueError> {
        match self.record(held.message).await? {
            None if held.claim == 0 => Ok((0, Record::default().delivered(0, 0))),
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
            return Ok(self.core.nats.link.answer(self.address(held.reply).await?, nak(nanos(time))).await?);
        }
    }

    /// Returns the address for words on a delivery. A server that was killed may have forgotten the
    /// last deliveries, and ignores words on them: so they are said of the last one that it knows.
    async fn address(&self, reply: &str) -> Result<String, PortError> {
        if self.core.nats.link.health().borrow().losses == 0 {
            return Ok(reply.to_owned());
        }
        let last = self.consumer().await?.delivered.consumer_seq;
        Ok(Place::with_delivery(reply, last))
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

    /// Notes in the record that the receipt holds that the message is done, and removes the message.
    async fn complete(&self, held: &Held<'_>) -> Result<(), QueueError> {
        if held.claim == 0 {
            return self.complete_unclaimed(held).await;
        }
        let mut number = held.claim;
        loop {
            match self.write_record(held.message, number, &Record::completed()).await {
                Ok(Some(_)) => break,
                // Extended, the delivery has another record.
                Ok(None) => number = self.current(held).await?.0,
                // Without room for a note the removal of the record is the settlement.
                Err(error) if error.kind() == PortErrorKind::Full => {
                    if self.delete(&self.core.claims.name, number).await? {
                        break;
                    }
                    number = self.current(held).await?.0;
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.remember_held(held).await.map_err(PortError::outcome_unknown)?;
        self.finish(held.message, held.reply).await.map_err(|error| error.outcome_unknown().into())
    }

    /// Completes a message that was delivered without a record: it is there for one settlement.
    async fn complete_unclaimed(&self, held: &Held<'_>) -> Result<(), QueueError> {
        // A later delivery may have a record.
        self.current(held).await?;
        self.remember_held(held).await?;
        if !self.delete(&self.part().stream.name, held.message).await? {
            return Err(QueueError::LeaseLost);
        }
        Ok(self.core.nats.link.answer(held.reply.to_owned(), "+ACK".to_owned()).await?)
    }

    /// Removes a message, and then its records.
    pub(super) async fn finish(&self, message: u64, reply: &str) -> Result<(), PortError> {
        self.core.nats.link.answer(reply.to_owned(), "+ACK".to_owned()).await?;
        // Those that stay are small, and no message's.
        let _ = self.forget(message).await;
        Ok(())
    }

    /// Removes all records of a message. They are kept until then, the replaced ones too: a server
    /// that is killed brings back what was replaced, but not what was removed.
    pub(super) async fn forget(&self, message: u64) -> Result<(), PortError> {
        let link = &self.core.nats.link;
        let subject = format!("{}.{message}", self.part().claims);
        let call = format!("STREAM.PURGE.{}", self.core.claims.name);
        let purged = link.api::<Purged>(&call, &Purge { filter: Some(&subject), seq: None }, Effect::Writes).await?;
        purged.map(drop).map_err(|error| link.rejected("the records of a message cannot be removed", &error))
    }

    async fn remember_held(&self, held: &Held<'_>) -> Result<(), PortError> {
        match held.deduplication_id {
            Some(id) => self.remember(id, held.message, held.accepted).await,
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
            if self.write_record(held.message, number, &record).await?.is_some() {
                let moved = self.finish_move(held.message, &record, held.reply).await;
                return moved.map_err(|error| error.outcome_unknown().into());
            }
        }
    }

    /// Moves a message to the dead letters, whose record says so. What is done is not done again.
    pub(super) async fn finish_move(&self, number: u64, record: &Record, reply: &str) -> Result<(), PortError> {
        let link = &self.core.nats.link;
        if let Some(message) = self.stored(number).await? {
            let all = message.headers();
            let parts = Parts::of_list(&all);
            let accepted = message.stored_at().ok_or_else(|| link.unexpected("STREAM.MSG.GET"))?;
            let mut headers: HeaderMap = wire::user_headers(&parts.headers);
            headers.insert(wire::NUMBER, number.to_string().as_str());
            headers.insert(wire::ACCEPTED, accepted.to_string().as_str());
            headers.insert(wire::COUNTS, record.counts().as_str());
            headers.insert(wire::REASON, wire::escape(record.moves.as_deref().unwrap_or_default()).as_str());
            if let Some(errors) = record.errors_within(ERRORS) {
                headers.insert(wire::ERRORS, errors.as_str());
            }
            // No user's id begins so.
            headers.insert(MESSAGE_ID, format!("%of-{number}").as_str());
            headers.insert(EXPECTED, "0");
            let body = message.body().ok_or_else(|| link.unexpected("STREAM.MSG.GET"))?;
            let subject = format!("{}.of-{number}", self.core.part(Part::DeadLetters).subject);
            match link.store(subject, Some(headers), body).await? {
                Ok(_) => {}
                Err(error) if error.err_code == WRONG_LAST_SEQUENCE || error.is_conflict() => {}
                Err(error) => return Err(link.rejected("the dead letter cannot be stored", &error)),
            }
            if let Some(id) = &parts.deduplication_id {
                self.remember(id, number, accepted).await?;
            }
        }
        self.finish(number, reply).await
    }
}
