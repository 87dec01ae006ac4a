//! The store on a server.
use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;

use super::{
    api::{GetMessage, GotMessage, NO_MESSAGE, RawMessage, SEQUENCE_NOT_FOUND, nanoseconds},
    batch::MOST,
    handle::NatsCore,
    link::Effect,
    names::Place,
    setup,
    write::Done,
};
use crate::{
    port::{BoxFuture, Capabilities, Capability, PortError, PortErrorKind},
    store::{DeleteOptions, Key, Page, PutOptions, Record, Scan, Store, StoreError, Version, Write},
};

/// The store on NATS, from [`Nats::store`](super::Nats::store). A clone is the same store.
///
/// A record is the last message of a subject of the stream `PREFIX_store`. Its version is twice
/// the message's number there, and one more if it has a life; that of an appended row is its number
/// in the sequence. A write with a precondition names the number that it requires, so that the
/// server refuses it if another write was faster.
///
/// | operation | requests |
/// |---|---|
/// | a put without a fencing token | 1; after a conflict at least 2 more |
/// | a put with one, a delete, an append | 1 more than an unconfirmed get |
/// | a batch | 1, and 1 or 2 if rows have to be read: of a token, a record with a life, a sequence |
/// | a get of a stream on one server | 1; 2 of a record with a life |
/// | a get of a replicated stream | 3, of which one is a write, in two round trips |
/// | a page of a scan | 1, in a cluster 2; of many rows without numbers 5 or 6, and 1 for each row |
///
/// **Confirmed reads.** The leader of a stream answers a read from its own copy, also if it was
/// replaced in the meantime and does not know. So each read of a replicated stream stores a mark
/// beside the record, and asks for the first message behind the version that it has read: if that
/// is the mark, the answering server knew all writes before the read.
/// [`confirmed_reads`](field@super::NatsConfig::confirmed_reads) switches this off. A write needs
/// no such read: the server compares what it requires.
///
/// **Batches** need a server from release 2.12 on. They are its atomic batches: at most 1,000
/// messages, so that a batch of 500 writes always fits. The server takes 50 batches of a stream at
/// once. One more is sent again, and is `Throttled` after
/// [`request_timeout`](field@super::NatsConfig::request_timeout). A batch whose sender ends before
/// its last message takes one of these places for ten seconds.
///
/// **Lives** need one from 2.11 on. Whether a record has ended is told by the server's clock and
/// the record's own time, to the nanosecond, and a writer knows it a round trip before its write.
/// The server removes the record a minute later, in whole seconds; one that was written with a
/// fencing token stays, because its fence stays. A life of more than a hundred years has no end.
///
/// **Sequences** come with batches. The last number is the *head* of the sequence, a message of its
/// own, and an append is one batch of the head and its rows. So concurrent appends to one sequence
/// conflict, and are repeated. A put of a row that ends with twenty digits reads the head of the
/// sequence to which it would belong; before the first append it is a batch of two messages. The
/// first append reads the names of all rows of its group.
///
/// **Scans.** The subjects of a partition begin with the first character of the row, then with its
/// *group*, the text up to the first `/`. A scan whose rows have a character or a group in common
/// reads nothing else. Rows that are a group and a number of fixed length, 16 hexadecimal or 20
/// decimal digits, are found by their numbers: a page that begins at such a row reads little more
/// than it returns, however long the partition is. These are the events of a topic, and the rows of
/// a [`Sequence`](crate::store::Sequence) whose name has one `/`, at its end.
///
/// From release 2.12 on a page is one request, and one for a mark in a cluster: the server returns
/// the whole partition, the group, the numbers or the named rows as of one moment. A page of
/// numbers with large gaps between them, and one behind the last number, takes two or three, seldom
/// more. Without numbers, more than 1,024 rows or 1 MiB are too much for that, and on an older
/// server each: a page then reads the names of all rows of its partition, character or group, and
/// the values of its own ones one by one. If a write to the partition came between, the page is
/// read again, as a whole up to 64 MiB where the server can. What is still too much, and written
/// all the time, cannot be scanned: the page ends as `Throttled` after
/// [`request_timeout`](field@super::NatsConfig::request_timeout).
///
/// **Deletes** leave a small message in the record's place. The server removes it a minute after,
/// before release 2.11 the handle that wrote it, with a later write; one with a fencing token stays
/// for ever.
///
/// A write without a token to a key that has a fence removes the fence: do not mix the two.
#[derive(Clone)]
pub struct NatsStore {
    pub(super) core: Arc<NatsCore>,
    /// `true` if each read is confirmed.
    pub(super) confirms: bool,
    can: Capabilities,
}

const CAN: Capabilities = Capabilities::of("nats", &[Capability::OrderedVersions, Capability::Fencing])
    // A write is two messages at most.
    .largest_batch(MOST / 2)
    .largest_key(1024);

/// Room in a message beside its value.
const HEADROOM: usize = 4096;

/// Header of a message in the place of a deleted record.
pub(super) const DELETED: &str = "Steadfast-Deleted";
pub(super) const FENCE: &str = "Steadfast-Fence";
/// Header of a record with a life: its length in nanoseconds.
pub(super) const LIFE: &str = "Steadfast-Life";
/// Header of an appended row: its number in the sequence.
pub(super) const NUMBER: &str = "Steadfast-Number";

/// Time for which the mark of a deleted record, and a record whose life is over, stay at least:
/// longer than a page is read, so that the removal hides no change from one.
pub(super) const REMAINS: Duration = Duration::from_secs(60);

/// Returns the version of a record in the message with this number.
pub(super) const fn version_of(number: u64, lives: bool) -> Version {
    Version::new(number * 2 + lives as u64)
}

/// The last message of a subject: a record, or the mark of a deleted one.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) number: u64,
    pub(super) fence: Option<u64>,
    value: Option<Bytes>,
    /// Number in the sequence.
    place: Option<u64>,
    /// End of its life, in nanoseconds since 1970.
    pub(super) ends: Option<u64>,
}

impl Head {
    /// Reads a message with this number, which was stored at this time. `None` if it is damaged.
    pub(super) fn new(
        number: u64,
        stored_at: Option<u64>,
        header: impl Fn(&str) -> Option<String>,
        body: impl FnOnce() -> Option<Bytes>,
    ) -> Option<Self> {
        let parsed = |name| header(name).map_or(Some(None), |text| text.parse::<u64>().ok().map(Some));
        let ends = match parsed(LIFE)? {
            Some(life) => Some(stored_at?.saturating_add(life)),
            None => None,
        };
        let value = match header(DELETED) {
            Some(_) => None,
            None => Some(body()?),
        };
        Some(Self { number, fence: parsed(FENCE)?, value, place: parsed(NUMBER)?, ends })
    }

    pub(super) fn record(self) -> Option<Record> {
        let version = self.version()?;
        self.value.map(|value| Record::new(value, version))
    }

    pub(super) fn version(&self) -> Option<Version> {
        self.value.as_ref()?;
        Some(self.place.map_or_else(|| version_of(self.number, self.ends.is_some()), Version::new))
    }

    /// Returns the last number of a sequence; `None` if this is no head of one.
    pub(super) fn last(&self) -> Option<u64> {
        std::str::from_utf8(self.value.as_ref()?).ok()?.parse().ok()
    }

    /// Forgets the record if its life is over.
    pub(super) fn settle(&mut self, now: u64) {
        if self.ends.is_some_and(|ends| ends <= now) {
            self.value = None;
        }
    }
}

impl NatsStore {
    pub(super) fn new(core: Arc<NatsCore>, confirms: bool) -> Self {
        let confirms = confirms && core.stream.replicas > 1;
        let largest = core.link.client().max_payload().saturating_sub(HEADROOM);
        let mut can = core.features.grant(core.stream.grant(CAN)).largest_value(largest);
        if confirms || core.stream.replicas == 1 {
            can = can.with(Capability::Linearizable);
        }
        Self { core, confirms, can }
    }

    /// Returns `true` if the server stores atomic batches.
    pub(super) fn batches(&self) -> bool {
        self.core.features.batches
    }

    /// Returns `true` if the server reads many messages as of one moment.
    pub(super) fn snapshots(&self) -> bool {
        self.core.features.snapshots
    }

    /// Returns `true` if the server ends the lives of messages.
    pub(super) fn lives(&self) -> bool {
        self.core.features.lives
    }

    pub(super) fn unexpected(&self) -> PortError {
        self.core.link.unexpected("STREAM.MSG.GET")
    }

    /// Reads one message of the stream.
    pub(super) async fn message(&self, get: GetMessage<'_>) -> Result<Option<RawMessage>, PortError> {
        let call = format!("STREAM.MSG.GET.{}", self.core.stream.name);
        match self.core.link.api::<GotMessage>(&call, &get, Effect::Reads).await? {
            Ok(got) => Ok(Some(got.message)),
            Err(error) if matches!(error.err_code, NO_MESSAGE | SEQUENCE_NOT_FOUND) => Ok(None),
            Err(error) => Err(self.core.link.rejected("the record cannot be read", &error)),
        }
    }

    /// Stores a mark, which comes behind all writes that were accepted before. Returns its number.
    pub(super) async fn mark(&self, subject: String) -> Result<u64, PortError> {
        let headers = Some(self.passing()).filter(|headers| !headers.is_empty());
        let stored = self.core.link.store(subject, headers, Bytes::new()).await;
        // A mark changes nothing, so a reader need not know what became of it.
        let stored =
            stored.map_err(|error| self.core.link.failure(error.kind(), format_args!("unconfirmed read: {error}")))?;
        stored.map_err(|error| self.core.link.rejected("the read cannot be confirmed", &error))
    }

    fn head(&self, message: &RawMessage) -> Result<Head, PortError> {
        Head::new(message.seq, message.stored_at(), |name| message.header(name), || message.body())
            .ok_or_else(|| self.unexpected())
    }

    /// Returns the time of the server.
    pub(super) async fn server_time(&self) -> Result<u64, PortError> {
        let info = setup::find(&self.core.link, &self.core.stream.name).await?;
        info.and_then(|info| nanoseconds(&info.ts)).ok_or_else(|| self.core.link.unexpected("STREAM.INFO"))
    }

    /// Reads the message of a place. A record whose life is over is as a deleted one.
    pub(super) async fn read(&self, place: &Place, confirm: bool) -> Result<Option<Head>, PortError> {
        let (mut head, time) = self.last(place, confirm).await?;
        if let Some(head) = head.as_mut().filter(|head| head.ends.is_some()) {
            head.settle(match time {
                Some(time) => time,
                None => self.server_time().await?,
            });
        }
        Ok(head)
    }

    /// Reads the message of a place, and the time of the read if the server told it.
    pub(super) async fn last(&self, place: &Place, confirm: bool) -> Result<(Option<Head>, Option<u64>), PortError> {
        let subject = place.subject();
        let last = self.message(GetMessage { last_by_subj: Some(&subject), ..GetMessage::default() });
        if !confirm {
            return Ok((last.await?.map(|message| self.head(&message)).transpose()?, None));
        }
        let mark = place.mark();
        // Without a leader a write is refused at once, and a read is not answered.
        let (mut last, marked) = futures_util::future::try_join(last, self.mark(mark.clone())).await?;
        let both = place.both();
        // Each turn is behind another write, and that of the mark is the last before the mark.
        let time = loop {
            // A server that knows a message behind the mark knew all before the mark.
            if let Some(last) = last.as_ref().filter(|message| message.seq > marked) {
                break last.stored_at();
            }
            let from = last.as_ref().map_or(0, |message| message.seq) + 1;
            let next = self.message(GetMessage { seq: Some(from), next_by_subj: Some(&both), ..GetMessage::default() });
            match next.await? {
                Some(next) if next.subject == subject => last = Some(next),
                Some(next) if next.subject == mark && next.seq >= marked => break next.stored_at(),
                // A server that does not know the mark: the leader was replaced.
                _ => {
                    let message = "the stream is changing its leader";
                    return Err(self.core.link.failure(PortErrorKind::Unavailable, message));
                }
            }
        };
        Ok((last.map(|message| self.head(&message)).transpose()?, time))
    }

    /// Carries out one write.
    async fn write(&self, partition: &str, write: Write) -> Result<Done, StoreError> {
        write.check(&self.can)?;
        let done = self.commit(partition, &[write], true).await?;
        self.sweep().await;
        Ok(done.first().copied().unwrap_or(Done::Checked))
    }
}

impl Store for NatsStore {
    fn capabilities(&self) -> Capabilities {
        self.can
    }

    fn get<'a>(&'a self, key: Key<'a>) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(async move {
            key.check(&self.can)?;
            let record = self.core.names.record(key.partition, key.row);
            Ok(self.read(&record, self.confirms).await?.and_then(Head::record))
        })
    }

    fn put<'a>(
        &'a self,
        key: Key<'a>,
        value: Bytes,
        options: PutOptions,
    ) -> BoxFuture<'a, Result<Version, StoreError>> {
        Box::pin(async move {
            key.check(&self.can)?;
            match self.write(key.partition, Write::put(key.row, value, options)).await? {
                Done::Put(version) => Ok(version),
                _ => Err(self.unexpected().into()),
            }
        })
    }

    fn delete<'a>(&'a self, key: Key<'a>, options: DeleteOptions) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            key.check(&self.can)?;
            let done = self.write(key.partition, Write::delete(key.row, options)).await?;
            Ok(matches!(done, Done::Deleted(true)))
        })
    }

    fn scan<'a>(&'a self, scan: &'a Scan) -> BoxFuture<'a, Result<Page, StoreError>> {
        Box::pin(async move {
            scan.check(&self.can)?;
            self.page(scan).await
        })
    }

    fn batch<'a>(
        &'a self,
        partition: &'a str,
        writes: Vec<Write>,
    ) -> BoxFuture<'a, Result<Vec<Option<Version>>, StoreError>> {
        Box::pin(async move {
            Write::check_batch(partition, &writes, &self.can)?;
            let done = self.commit(partition, &writes, false).await?;
            let version = |done| match done {
                Done::Put(version) => Some(version),
                Done::Deleted(_) | Done::Checked => None,
            };
            Ok(done.into_iter().map(version).collect())
        })
    }
}

impl fmt::Debug for NatsStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsStore").field("server", &self.core.link.target().address()).finish_non_exhaustive()
    }
}
