//! The depth, the first messages, and the purge of a queue.
use std::time::Duration;

use super::{
    super::{
        api::{CountSubjects, GetMessage, Nothing, Purge, Purged, StreamInfo, nanoseconds},
        link::Effect,
    },
    NatsQueue,
    clean::Claims,
    receive::due,
    record::Numbered,
    wire::Parts,
};
use crate::{
    port::PortError,
    queue::{Depth, MessageId, Peeked},
    time::Timestamp,
};

impl NatsQueue {
    /// Returns the server's time.
    pub(super) async fn now(&self) -> Result<u64, PortError> {
        let (times, clock) = (&self.core.times, &self.core.nats.link.base().clock);
        if let Some(now) = times.now(clock.now()) {
            return Ok(now);
        }
        let info = self.info(&Nothing {}).await?;
        times.now(clock.now()).or_else(|| nanoseconds(&info.ts)).ok_or_else(|| self.unexpected())
    }

    fn unexpected(&self) -> PortError {
        self.core.nats.link.unexpected("STREAM.INFO")
    }

    pub(super) async fn info(&self, request: &impl serde::Serialize) -> Result<StreamInfo, PortError> {
        let link = &self.core.nats.link;
        let asked = link.base().clock.now();
        let info = link.api(&format!("STREAM.INFO.{}", self.part().stream.name), request, Effect::Once).await?;
        let info: StreamInfo = info.map_err(|error| link.rejected("the stream cannot be read", &error))?;
        self.core.times.note(asked, link.base().clock.now(), &info.ts);
        Ok(info)
    }

    pub(super) async fn count(&self) -> Result<Depth, PortError> {
        let (clock, limit) = {
            let base = self.core.nats.link.base();
            (base.clock.clone(), base.clock.now() + base.config.request_timeout)
        };
        // The servers of a cluster tell each other of accepted and of settled messages.
        while self.part().stream.replicas > 1
            && self.info(&Nothing {}).await?.state.messages != self.known_by_consumer().await?.0
            && clock.now() < limit
        {
            clock.sleep(Duration::from_millis(5)).await;
        }
        let claims = Claims(self).not_done().await?;
        let filter = format!("{}.*", self.part().subject);
        let (mut delayed, mut offset) = (0, 0);
        loop {
            let info = self.info(&CountSubjects { subjects_filter: &filter, offset }).await?;
            let now = self.now().await?;
            let subjects = &info.state.subjects;
            let waits = subjects.iter().filter(|(subject, _)| due(subject).is_some_and(|due| due > now));
            delayed += waits.map(|(_, messages)| messages).sum::<u64>();
            offset += subjects.len();
            if subjects.is_empty() || offset >= info.total {
                let first = info.state.first_seq;
                let flights = claims
                    .iter()
                    .filter(|claim| claim.message.number >= first && claim.hides_for(now).is_some())
                    .count() as u64;
                let visible = info.state.messages.saturating_sub(delayed).saturating_sub(flights);
                return Ok(Depth::new(visible, delayed, flights));
            }
        }
    }

    pub(super) async fn first(&self, max: usize) -> Result<Vec<Peeked>, PortError> {
        let link = &self.core.nats.link;
        let max = max.min(super::CAN.max_batch());
        let (mut peeked, mut from, mut size) = (Vec::new(), 1, 0);
        while peeked.len() < max && size < (8 << 20) {
            let get = GetMessage { seq: Some(from), next_by_subj: Some(">"), ..GetMessage::default() };
            let Some(message) = self.core.get(&self.part().stream.name, get).await? else { break };
            from = message.seq + 1;
            let now = self.now().await?;
            let parts = Parts::of_list(&message.headers());
            let stored_at = message.stored_at().ok_or_else(|| link.unexpected("STREAM.MSG.GET"))?;
            let found = self.record(Numbered { number: message.seq, stored_at }).await?.and_then(|(_, record)| record);
            let record = found.or_else(|| parts.record.clone()).unwrap_or_default();
            let is_delayed = due(&message.subject).is_some_and(|due| due > now);
            let accepted = parts.accepted.unwrap_or(stored_at);
            let body = message.body().ok_or_else(|| link.unexpected("STREAM.MSG.GET"))?;
            size += body.len();
            let id = parts.number.map_or_else(|| self.id(message.seq), |number| MessageId::from_numbers(number, 0));
            let hidden = is_delayed || record.hides_for(now).is_some();
            let sent_at = Timestamp::from_millis(Duration::from_nanos(accepted).as_millis() as u64);
            let mut one = Peeked::new(id, body, record.deliveries, sent_at, hidden);
            one.headers = parts.headers;
            one.attempts = record.attempts;
            (one.expiries, one.crashes) = (record.unexplained().expiries(), record.unexplained().crashes());
            one.reason = parts.reason;
            one.errors = record.errors();
            peeked.push(one);
        }
        Ok(peeked)
    }

    pub(super) async fn empty(&self) -> Result<u64, PortError> {
        let link = &self.core.nats.link;
        let purge = async |stream: &str, filter: Option<&str>| {
            let call = format!("STREAM.PURGE.{stream}");
            let purged = link.api::<Purged>(&call, &Purge { filter, seq: None }, Effect::Writes).await?;
            purged.map_err(|error| link.rejected("the queue cannot be purged", &error))
        };
        let purged = purge(&self.part().stream.name, None).await?.purged;
        // Receipts of messages that are gone are stale. One of a message that was sent meanwhile may be, too.
        purge(&self.core.claims.name, Some(&format!("{}.*", self.part().claims))).await?;
        Ok(purged)
    }
}
