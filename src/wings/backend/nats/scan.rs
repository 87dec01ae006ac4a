//! Pages of the store: names from the server's list of last messages, values one by one.
use std::{collections::BTreeMap, ops::Bound, time::Duration};

use futures_util::{StreamExt as _, stream};

use super::{
    api::GetMessage,
    link::Effect,
    names::text,
    reader::{Range, Reader},
    store::{DELETED, NatsStore},
};
use crate::{
    port::{PortError, PortErrorKind},
    store::{Continuation, Key, Order, Page, Row, Scan, Store as _, StoreError, Version},
};

/// Number of requests of a page that are under way at once.
const AT_ONCE: usize = 64;
/// Number of names that are read within the time limit of a request.
const NAMES: usize = 1_000;
/// Size of a page, after which it ends.
const PAGE_BYTES: usize = 4 << 20;
/// First pause before a page is read again; the later ones are longer.
const PAUSE: Duration = Duration::from_millis(2);

/// The rows of a partition at one moment.
struct Listing {
    /// Number and size of the last message, by row.
    rows: BTreeMap<String, (u64, usize)>,
    /// Number of the last message of the partition, 0 for none.
    last: u64,
}

impl NatsStore {
    /// Reads a page, again until no write came between.
    pub(super) async fn page(&self, scan: &Scan) -> Result<Page, StoreError> {
        let base = self.core.link.base();
        let until = base.clock.now() + base.config.request_timeout;
        let mut pause = PAUSE;
        loop {
            let page = match scan.names() {
                Some(names) => self.named(scan, &names).await?,
                None => self.listed(scan).await?,
            };
            if let Some(page) = page {
                return Ok(page);
            }
            if base.clock.now() >= until {
                let message =
                    "the partition is written all the time, so that no page is a snapshot: ask again, or divide it";
                return Err(self.core.link.failure(PortErrorKind::Throttled, message).into());
            }
            base.clock.sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(100));
        }
    }

    /// Returns the number of the last message of a partition, 0 for none.
    async fn last_of(&self, partition: &str) -> Result<u64, PortError> {
        if self.confirms {
            // The mark is then the last message.
            return self.mark(self.core.names.mark(partition)).await;
        }
        let all = self.core.names.partition(partition);
        let last = self.message(GetMessage { last_by_subj: Some(&all), ..GetMessage::default() }).await?;
        Ok(last.map_or(0, |message| message.seq))
    }

    /// Reads the named rows. `None` if a write came between.
    async fn named(&self, scan: &Scan, names: &[&str]) -> Result<Option<Page>, StoreError> {
        let limit = scan.limit.min(self.core_limit());
        let before = self.last_of(&scan.partition).await?;
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let found = names.into_iter().map(|name| self.named_row(&scan.partition, name));
        let mut found = stream::iter(found.collect::<Vec<_>>()).buffered(AT_ONCE);
        let (mut rows, mut next) = (Vec::new(), None);
        while let Some(row) = found.next().await {
            let Some(row) = row? else { continue };
            if rows.len() == limit {
                next = rows.last().map(|row: &Row| Continuation::behind(row.row.clone()));
                break;
            }
            rows.push(row);
        }
        drop(found);
        let is_same = self.is_unchanged(&scan.partition, before).await?;
        Ok(is_same.then(|| Page::new(rows, next)))
    }

    /// Returns `true` if no record of the partition was written since `before`.
    async fn is_unchanged(&self, partition: &str, before: u64) -> Result<bool, PortError> {
        let now = self.last_of(partition).await?;
        if !self.confirms {
            return Ok(now == before);
        }
        // Only marks, of this reader and of others, may lie behind the first one.
        let (all, mark) = (self.core.names.partition(partition), self.core.names.mark(partition));
        let mut from = before + 1;
        loop {
            let get = GetMessage { seq: Some(from), next_by_subj: Some(&all), ..GetMessage::default() };
            match self.message(get).await? {
                Some(next) if next.subject != mark => return Ok(false),
                Some(next) if next.seq >= now => return Ok(true),
                Some(next) => from = next.seq + 1,
                // A server that does not know the mark.
                None => return Ok(false),
            }
        }
    }

    fn core_limit(&self) -> usize {
        self.capabilities().max_batch()
    }

    /// Reads a range of rows. `None` if a write came between.
    async fn listed(&self, scan: &Scan) -> Result<Option<Page>, StoreError> {
        let before = self.last_of(&scan.partition).await?;
        if before == 0 {
            return Ok(Some(Page::default()));
        }
        let Some(listing) = self.list(scan, before).await? else { return Ok(None) };
        // Without that message, the copy that was read is an old one.
        if listing.last < before {
            return Ok(None);
        }
        let limit = scan.limit.min(self.core_limit());
        let (mut chosen, mut bytes, mut has_more) = (Vec::new(), 0, false);
        let ordered: Box<dyn Iterator<Item = _> + Send> = match scan.order {
            Order::Ascending => Box::new(listing.rows.into_iter()),
            Order::Descending => Box::new(listing.rows.into_iter().rev()),
        };
        for (row, (number, size)) in ordered {
            if chosen.len() == limit || (bytes >= PAGE_BYTES && !chosen.is_empty()) {
                has_more = true;
                break;
            }
            bytes += size;
            chosen.push((row, number));
        }
        let next = chosen.last().filter(|_| has_more).map(|(row, _)| Continuation::behind(row.clone()));
        let found = chosen.into_iter().map(|(row, number)| self.listed_row(row, number));
        let mut found = stream::iter(found.collect::<Vec<_>>()).buffered(AT_ONCE);
        let mut rows = Vec::new();
        while let Some(row) = found.next().await {
            match row? {
                Some(row) => rows.push(row),
                // Replaced since it was listed.
                None => return Ok(None),
            }
        }
        Ok(self.is_unchanged(&scan.partition, before).await?.then(|| Page::new(rows, next)))
    }

    async fn named_row(&self, partition: &str, name: String) -> Result<Option<Row>, StoreError> {
        let record = self.get(Key::new(partition, &name)).await?;
        Ok(record.map(|record| Row::new(name, record.value, record.version)))
    }

    /// Reads a row by the number of its message. A message keeps its number and its content, so any
    /// copy serves. `None` if it was replaced since it was listed.
    async fn listed_row(&self, row: String, number: u64) -> Result<Option<Row>, PortError> {
        let message = self.message(GetMessage { seq: Some(number), ..GetMessage::default() }).await?;
        let Some(message) = message else { return Ok(None) };
        let value = message.body().ok_or_else(|| self.core.link.unexpected("STREAM.MSG.GET"))?;
        Ok(Some(Row::new(row, value, Version::new(number))))
    }

    /// Lists the rows of a scan, at least up to the message `until`. `None` if messages are
    /// missing.
    async fn list(&self, scan: &Scan, until: u64) -> Result<Option<Listing>, StoreError> {
        let all = self.core.names.partition(&scan.partition);
        let mut reader = Reader::open(&self.core.link, &self.core.stream.name, Range::LastOf(&all)).await?;
        let mut listing = Listing { rows: BTreeMap::new(), last: 0 };
        if reader.pending > 0 {
            let (from, to) = scan.bounds();
            // The time limit of a request is for so many names, since a partition may be long.
            let mut some = async || {
                for _ in 0..NAMES {
                    let Some(entry) = reader.next().await else { return Some(false) };
                    listing.last = entry.place.sequence;
                    let name = entry.message.subject.rsplit('.').nth(1).and_then(text);
                    let is_deleted = entry.header(DELETED).is_some();
                    if let Some(name) = name
                        && !is_deleted
                        && is_within(&name, from, to.as_ref().map(String::as_str))
                    {
                        let size = entry.header("Nats-Msg-Size").and_then(|size| size.parse().ok()).unwrap_or(0);
                        listing.rows.insert(name, (entry.place.sequence, size));
                    }
                    if entry.place.pending == 0 || entry.place.sequence >= until {
                        return Some(true);
                    }
                }
                None
            };
            let is_whole = loop {
                if let Some(is_whole) = self.core.link.supervise(Effect::Reads, some()).await? {
                    break is_whole;
                }
            };
            if !is_whole {
                return Ok(None);
            }
        }
        reader.close().await;
        Ok(Some(listing))
    }
}

fn is_within(row: &str, from: Bound<&str>, to: Bound<&str>) -> bool {
    let is_behind = match from {
        Bound::Included(from) => row >= from,
        Bound::Excluded(from) => row > from,
        Bound::Unbounded => true,
    };
    is_behind
        && match to {
            Bound::Included(to) => row <= to,
            Bound::Excluded(to) => row < to,
            Bound::Unbounded => true,
        }
}
