//! Removal of claims that no message needs any more.
//!
//! The claims of a message are a history under one subject, and none is removed by itself: of a
//! history without its end, which a server that was killed may bring back, an older claim would
//! stand again. So the oldest half of the stream is removed up to a number, after the last claims
//! of messages that are still there were stored again behind it. If that purge is lost, claims
//! return behind which all later ones of their subject are there, too.
use std::{
    cmp::Reverse,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use super::{
    super::{
        api::{GetMessage, Nothing, Purge, Purged, StreamInfo, StreamState},
        link::Effect,
        names::Part,
        reader::Reader,
    },
    NatsQueue,
    record::{DONE, Numbered, UNTIL, hides_for},
};
use crate::port::PortError;

/// Number of claims that a handle writes between two looks at their stream.
const LOOK_AFTER: u64 = 200;
/// Number of claims that are kept in any case.
const KEPT: u64 = 1_000;
/// Number of messages that are looked at together.
const AT_ONCE: usize = 64;

/// Counts by which a handle decides when to remove claims. They publish nothing, so `Relaxed`
/// suffices.
#[derive(Debug, Default)]
pub(super) struct Cleaning {
    /// Number of claims that the handle has written since its last look.
    written: AtomicU64,
    /// Number of messages that were not done at its last removal.
    open: AtomicU64,
}

impl Cleaning {
    pub(super) fn note_write(&self) {
        self.written.fetch_add(1, Relaxed);
    }
}

/// The last claim of a message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Last {
    pub(super) part: Part,
    pub(super) message: Numbered,
    /// Number of the claim.
    pub(super) number: u64,
    /// The message is hidden until then; [`DONE`] if it is done.
    until: u64,
    /// Time for which it was hidden when that was written.
    span: u64,
}

impl Last {
    /// Returns the time for which the message is still hidden.
    pub(super) fn hides_for(&self, now: u64) -> Option<u64> {
        hides_for(self.until, self.span, now)
    }
}

/// The claims of a queue, for those operations that read all of them.
pub(super) struct Claims<'a>(pub(super) &'a NatsQueue);

impl Claims<'_> {
    /// Removes old claims, if the handle has written many.
    pub(super) async fn clean_at_times(&self) {
        let cleaning = &self.0.core.cleaning;
        if cleaning.written.load(Relaxed) < LOOK_AFTER || cleaning.written.swap(0, Relaxed) < LOOK_AFTER {
            return;
        }
        // Claims that stay are removed later.
        let _ = self.clean().await;
    }

    async fn clean(&self) -> Result<(), PortError> {
        let messages = self.state_of(&self.0.core.claims.name).await?.messages;
        if messages < KEPT + 4 * self.0.core.cleaning.open.load(Relaxed) {
            return Ok(());
        }
        let firsts = [Part::Messages, Part::DeadLetters].map(|part| async move {
            let state = self.state_of(&self.0.core.part(part).stream.name).await?;
            // All messages before it are gone.
            Ok::<_, PortError>(if state.messages == 0 { state.last_seq + 1 } else { state.first_seq })
        });
        let firsts = futures_util::future::try_join_all(firsts).await?;
        let (claims, mut lasts, is_whole) = self.last_claims().await?;
        if !is_whole {
            return Ok(());
        }
        let mut until = claims.last_seq.saturating_sub(claims.messages / 2);
        lasts.retain(|last| last.message.number >= firsts[last.part as usize]);
        let open = lasts.iter().filter(|last| last.until != DONE).count() as u64;
        let old: Vec<_> = lasts.into_iter().filter(|last| last.number < until).collect();
        for some in old.chunks(AT_ONCE) {
            let renewed = some.iter().map(|last| self.renew(last, until));
            for stays in futures_util::future::join_all(renewed).await {
                if let Some(number) = stays? {
                    until = until.min(number);
                }
            }
        }
        if until <= claims.first_seq {
            // One of them cannot be read. The next look is when there are twice as many.
            self.0.core.cleaning.open.store(claims.messages / 2, Relaxed);
            return Ok(());
        }
        self.0.core.cleaning.open.store(open, Relaxed);
        let link = &self.0.core.nats.link;
        let call = format!("STREAM.PURGE.{}", self.0.core.claims.name);
        let purged = link.api::<Purged>(&call, &Purge { filter: None, seq: Some(until) }, Effect::Writes).await?;
        purged.map(drop).map_err(|error| link.rejected("old claims cannot be removed", &error))
    }

    /// Returns the state of the stream of claims, and the last claim of each message of both parts.
    /// `false` if a server of a cluster may be behind, and not have had all of them.
    async fn last_claims(&self) -> Result<(StreamState, Vec<Last>, bool), PortError> {
        let (link, claims) = (&self.0.core.nats.link, &self.0.core.claims);
        let state = self.state_of(&claims.name).await?;
        let (mut lasts, mut seen) = (Vec::new(), 0);
        if state.messages == 0 {
            return Ok((state, lasts, true));
        }
        let filter = format!("{}.>", self.0.core.nats.names.claims(&self.0.core.name));
        let mut reader = Reader::open(link, &claims.name, std::slice::from_ref(&filter)).await?;
        let mut left = reader.pending;
        while left > 0 || claims.replicas > 1 && seen < state.last_seq {
            if left == 0 {
                // They come in the order of their numbers: this server has the others later, unless a
                // purge has removed them.
                let last = GetMessage { seq: Some(state.last_seq), ..GetMessage::default() };
                if self.0.core.get(&claims.name, last).await?.is_none() {
                    break;
                }
            }
            let Some(entry) = link.supervise(Effect::Reads, reader.next()).await? else {
                return Err(link.unexpected("CONSUMER.CREATE"));
            };
            // Claims that are written meanwhile follow.
            (left, seen) = (left.saturating_sub(1).min(entry.place.pending), entry.place.sequence);
            let times = entry.header(UNTIL).and_then(|times| times.split_once(' '));
            let times = times.and_then(|(until, span)| Some((until.parse().ok()?, span.parse().ok()?)));
            if let (Some((part, message)), Some((until, span))) = (self.message_of(&entry.message.subject), times) {
                lasts.push(Last { part, message, number: seen, until, span });
            }
        }
        reader.close().await;
        // Of a claim that was written meanwhile, the one before has come, too.
        lasts.sort_unstable_by_key(|last| (last.part as usize, last.message, Reverse(last.number)));
        lasts.dedup_by_key(|last| (last.part, last.message));
        let is_whole = claims.replicas == 1 || seen >= state.last_seq;
        Ok((state, lasts, is_whole))
    }

    /// Returns the claims of the messages of this part that are not done.
    pub(super) async fn not_done(&self) -> Result<Vec<Last>, PortError> {
        let (_, mut lasts, _) = self.last_claims().await?;
        lasts.retain(|last| last.part == self.0.part && last.until != DONE);
        Ok(lasts)
    }

    async fn state_of(&self, stream: &str) -> Result<StreamState, PortError> {
        let link = &self.0.core.nats.link;
        let info = link.api(&format!("STREAM.INFO.{stream}"), &Nothing {}, Effect::Reads).await?;
        let info: StreamInfo = info.map_err(|error| link.rejected("the stream cannot be read", &error))?;
        Ok(info.state)
    }

    /// Returns the message of a claim's subject.
    fn message_of(&self, subject: &str) -> Option<(Part, Numbered)> {
        let (before, message) = subject.rsplit_once('.')?;
        let part =
            [Part::Messages, Part::DeadLetters].into_iter().find(|part| self.0.core.part(*part).claims == before);
        Some((part?, Numbered::parse(message)?))
    }

    /// Stores the last claim of a message again, if it is before this number and the message is
    /// there. Returns the number of a claim that stays where it is.
    async fn renew(&self, last: &Last, until: u64) -> Result<Option<u64>, PortError> {
        let queue = NatsQueue { core: self.0.core.clone(), part: last.part };
        if queue.stored(last.message).await?.is_none() {
            return Ok(None);
        }
        match queue.record(last.message).await? {
            Some((number, Some(record))) if number < until => {
                // If another write was faster, the last claim is a new one.
                queue.write_record(last.message, number, &record.renewed(number)).await?;
                Ok(None)
            }
            // One that cannot be read cannot be stored again.
            Some((number, None)) if number < until => Ok(Some(number)),
            _ => Ok(None),
        }
    }
}
