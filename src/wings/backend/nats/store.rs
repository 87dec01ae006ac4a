//! The store on a server.
use std::{collections::VecDeque, fmt, sync::Arc, time::Duration};

use async_nats::HeaderMap;
use bytes::Bytes;

use super::{
    api::{DELETE_FAILED, DeleteMessage, EXPECTED, GetMessage, GotMessage, NO_MESSAGE, RawMessage, SEQUENCE_NOT_FOUND},
    handle::NatsCore,
    link::Effect,
};
use crate::{
    port::{BoxFuture, Capabilities, Capability, FencingToken, PortError, PortErrorKind},
    store::{DeleteOptions, Key, Page, Precondition, PutOptions, Record, Scan, Store, StoreError, Version, Write},
    sync::Mutex,
    time::Instant,
};

/// The store on NATS, from [`Nats::store`](super::Nats::store). A clone is the same store.
///
/// A record is the last message of a subject of the stream `PREFIX_store`, and its version is the
/// message's number there. A write with a precondition names the number that it requires, so that
/// the server refuses it if another write was faster.
///
/// | operation | requests |
/// |---|---|
/// | a put without a fencing token | 1; after a conflict 1 or 3 more |
/// | a put with one, a delete | 1 more than a get |
/// | a get of a stream on one server | 1 |
/// | a get of a replicated stream | 3, of which one is a write, in two round trips |
/// | a page of a scan | 5 or 6, and 1 for each row |
///
/// **Confirmed reads.** The leader of a stream answers a read from its own copy, also if it was
/// replaced in the meantime and does not know. So each read of a replicated stream stores a mark
/// beside the record, and asks for the first message behind the version that it has read: if that
/// is the mark, the answering server knew all writes before the read.
/// [`confirmed_reads`](field@super::NatsConfig::confirmed_reads) switches this off.
///
/// **Scans.** Each page reads the names of all rows of its partition, and then the values of its
/// own rows. If a write to the partition came between, the page is read again. A partition that is
/// written all the time therefore cannot be scanned: the page ends as `Throttled` after
/// [`request_timeout`](field@super::NatsConfig::request_timeout). Keep partitions to some thousand
/// rows.
///
/// **Deletes** leave a small message in the record's place. The handle that wrote it removes it
/// with a later write, a minute after; one with a fencing token stays for ever.
///
/// A write without a token to a key that has a fence removes the fence: do not mix the two.
#[derive(Clone)]
pub struct NatsStore {
    pub(super) core: Arc<NatsCore>,
    /// `true` if each read is confirmed.
    pub(super) confirms: bool,
    can: Capabilities,
}

const CAN: Capabilities =
    Capabilities::of("nats", &[Capability::OrderedVersions, Capability::Fencing]).largest_batch(1000).largest_key(1024);

/// Room in a message beside its value.
const HEADROOM: usize = 4096;

/// Header of a message in the place of a deleted record.
pub(super) const DELETED: &str = "Steadfast-Deleted";
const FENCE: &str = "Steadfast-Fence";

/// Time for which the mark of a deleted record stays at least: longer than a page is read, so that
/// its removal hides no delete from one.
const REMAINS: Duration = Duration::from_secs(60);

/// The marks of records that this handle deleted, oldest first.
pub(super) type Deleted = Mutex<VecDeque<(Instant, u64)>>;

/// The last message of a subject: a record, or the mark of a deleted one.
struct Head {
    number: u64,
    fence: Option<u64>,
    value: Option<Bytes>,
}

impl Head {
    fn record(self) -> Option<Record> {
        let version = Version::new(self.number);
        self.value.map(|value| Record::new(value, version))
    }

    fn version(&self) -> Option<Version> {
        self.value.is_some().then(|| Version::new(self.number))
    }
}

impl NatsStore {
    pub(super) fn new(core: Arc<NatsCore>, confirms: bool) -> Self {
        let confirms = confirms && core.stream.replicas > 1;
        let largest = core.link.client().max_payload().saturating_sub(HEADROOM);
        let mut can = core.stream.grant(CAN).largest_value(largest);
        if confirms || core.stream.replicas == 1 {
            can = can.with(Capability::Linearizable);
        }
        Self { core, confirms, can }
    }

    fn unexpected(&self) -> PortError {
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
        let stored = self.core.link.store(subject, None, Bytes::new()).await;
        // A mark changes nothing, so a reader need not know what became of it.
        let stored =
            stored.map_err(|error| self.core.link.failure(error.kind(), format_args!("unconfirmed read: {error}")))?;
        stored.map_err(|error| self.core.link.rejected("the read cannot be confirmed", &error))
    }

    fn head(&self, message: &RawMessage) -> Result<Head, PortError> {
        let fence = message.header(FENCE).map(|text| text.parse().map_err(|_| self.unexpected())).transpose()?;
        let value = match message.header(DELETED) {
            Some(_) => None,
            None => Some(message.body().ok_or_else(|| self.unexpected())?),
        };
        Ok(Head { number: message.seq, fence, value })
    }

    /// Reads the last message of a record's subject.
    async fn read(&self, record: &str) -> Result<Option<Head>, PortError> {
        let subject = format!("{record}.v");
        let last = self.message(GetMessage { last_by_subj: Some(&subject), ..GetMessage::default() });
        if !self.confirms {
            return last.await?.map(|message| self.head(&message)).transpose();
        }
        let mark = format!("{record}.b");
        // Without a leader a write is refused at once, and a read is not answered.
        let (mut last, marked) = futures_util::future::try_join(last, self.mark(mark.clone())).await?;
        let both = format!("{record}.*");
        // Each turn is behind another write, and that of the mark is the last before the mark.
        loop {
            // A server that knows a message behind the mark knew all before the mark.
            if last.as_ref().is_some_and(|message| message.seq > marked) {
                return last.map(|message| self.head(&message)).transpose();
            }
            let from = last.as_ref().map_or(0, |message| message.seq) + 1;
            let next = self.message(GetMessage { seq: Some(from), next_by_subj: Some(&both), ..GetMessage::default() });
            match next.await? {
                Some(next) if next.subject == subject => last = Some(next),
                Some(next) if next.subject == mark && next.seq >= marked => {
                    return last.map(|message| self.head(&message)).transpose();
                }
                // A server that does not know the mark: the leader was replaced.
                _ => {
                    let message = "the stream is changing its leader";
                    return Err(self.core.link.failure(PortErrorKind::Unavailable, message));
                }
            }
        }
    }

    /// Stores a message in the place of the one with the number `last`, 0 if there is none. Returns
    /// `None` if another write was faster.
    async fn replace(
        &self,
        record: &str,
        last: Option<u64>,
        fence: Option<u64>,
        value: Option<Bytes>,
    ) -> Result<Option<u64>, PortError> {
        let mut headers = HeaderMap::new();
        if let Some(last) = last {
            headers.insert(EXPECTED, last.to_string().as_str());
        }
        if let Some(fence) = fence {
            headers.insert(FENCE, fence.to_string().as_str());
        }
        if value.is_none() {
            headers.insert(DELETED, "1");
        }
        let headers = (!headers.is_empty()).then_some(headers);
        match self.core.link.store(format!("{record}.v"), headers, value.unwrap_or_default()).await? {
            Ok(number) => Ok(Some(number)),
            Err(error) if error.is_conflict() => Ok(None),
            Err(error) => Err(self.core.link.rejected("the record cannot be written", &error)),
        }
    }

    /// Writes a record, or the mark of a deleted one. Returns the number of the message, and
    /// whether there was a record before.
    async fn write(
        &self,
        record: &str,
        when: Precondition,
        token: Option<FencingToken>,
        value: Option<Bytes>,
    ) -> Result<(Option<u64>, bool), StoreError> {
        // Without a token the number alone decides: the server compares.
        if token.is_none() {
            let expected = match when {
                Precondition::Any if value.is_some() => Some(None),
                Precondition::Version(version) => Some(Some(version.as_u64())),
                Precondition::Absent => Some(Some(0)),
                Precondition::Any => None,
            };
            // A message that never was is not the last: 0 means that there is none.
            if let Some(expected) = expected
                && when != Precondition::Version(Version::new(0))
                && let Some(number) = self.replace(record, expected, None, value.clone()).await?
            {
                return Ok((Some(number), true));
            }
        }
        loop {
            let head = self.read(record).await?;
            let seen = head.as_ref().and_then(|head| head.fence);
            if let (Some(token), Some(seen)) = (token, seen)
                && token.as_u64() < seen
            {
                return Err(StoreError::Fenced { write: 0, highest: FencingToken::new(seen) });
            }
            let current = head.as_ref().and_then(Head::version);
            when.check(current)?;
            let fence = token.map_or(seen, |token| Some(token.as_u64()));
            if value.is_none() && current.is_none() && fence == seen {
                return Ok((None, false));
            }
            let last = head.map_or(0, |head| head.number);
            if let Some(number) = self.replace(record, Some(last), fence, value.clone()).await? {
                return Ok((Some(number), current.is_some()));
            }
        }
    }

    /// Removes up to two marks of records that were deleted a while ago.
    async fn sweep(&self) {
        let now = self.core.link.base().clock.now();
        let due: Vec<u64> = {
            let mut deleted = self.core.deleted.lock();
            let due = deleted.iter().take(2).take_while(|(at, _)| now - *at >= REMAINS).count();
            deleted.drain(..due).map(|(_, number)| number).collect()
        };
        for seq in due {
            // A server that has lost its last writes gives their numbers to others: look first.
            let is_mark = match self.message(GetMessage { seq: Some(seq), ..GetMessage::default() }).await {
                Ok(found) => {
                    found.is_some_and(|found| found.header(DELETED).is_some() && found.header(FENCE).is_none())
                }
                Err(_) => {
                    self.core.deleted.lock().push_back((now, seq));
                    continue;
                }
            };
            if !is_mark {
                continue;
            }
            let call = format!("STREAM.MSG.DELETE.{}", self.core.stream.name);
            let request = DeleteMessage { seq, no_erase: true };
            let done = self.core.link.api::<serde::de::IgnoredAny>(&call, &request, Effect::Writes).await;
            // Replaced meanwhile, it is gone.
            let is_gone = matches!(&done, Ok(Ok(_)))
                || matches!(&done, Ok(Err(error)) if matches!(error.err_code, NO_MESSAGE | DELETE_FAILED | SEQUENCE_NOT_FOUND));
            if !is_gone {
                self.core.deleted.lock().push_back((now, seq));
            }
        }
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
            Ok(self.read(&record).await?.and_then(Head::record))
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
            Write::put(key.row, value.clone(), options).check(&self.can)?;
            let record = self.core.names.record(key.partition, key.row);
            let (number, _) = self.write(&record, options.when, options.fence, Some(value)).await?;
            self.sweep().await;
            Ok(Version::new(number.unwrap_or_default()))
        })
    }

    fn delete<'a>(&'a self, key: Key<'a>, options: DeleteOptions) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            key.check(&self.can)?;
            Write::delete(key.row, options).check(&self.can)?;
            let record = self.core.names.record(key.partition, key.row);
            let (number, existed) = self.write(&record, options.when, options.fence, None).await?;
            if let (Some(number), None) = (number, options.fence) {
                let now = self.core.link.base().clock.now();
                self.core.deleted.lock().push_back((now, number));
            }
            self.sweep().await;
            Ok(existed)
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
            // Refuses every batch: the server has none before version 2.12.
            Write::check_batch(partition, &writes, &self.can)?;
            Ok(Vec::new())
        })
    }
}

impl fmt::Debug for NatsStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsStore").field("server", &self.core.link.target().address()).finish_non_exhaustive()
    }
}
