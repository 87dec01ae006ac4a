//! Pages of the store: names from the server's list of last messages, values one by one.
use std::{collections::BTreeMap, ops::Bound, time::Duration};

use futures_util::{StreamExt as _, stream};

use super::{
    api::GetMessage,
    link::Effect,
    names::Names,
    reader::{Entry, Reader},
    rows::{Area, Group, Stride},
    snapshot::Most,
    store::{DELETED, Head, LIFE, NUMBER, NatsStore, version_of},
};
use crate::{
    port::{PortError, PortErrorKind},
    store::{Continuation, Order, Page, Row, Scan, Store as _, StoreError, Version},
};

/// Number of requests of a page that are under way at once.
const AT_ONCE: usize = 64;
/// Number of names that are read within the time limit of a request.
const NAMES: usize = 1_000;
/// Size of a page, after which it ends.
const PAGE_BYTES: usize = 4 << 20;
/// Size of an area that is read as a whole for each page.
const FEW: usize = 1 << 20;
/// Messages of a page at which it is a part of what was asked for, as a multiple of its limit: more
/// than once for rows that were deleted.
const SPARE: usize = 4;
/// First pause before a page is read again; the later ones are longer.
const PAUSE: Duration = Duration::from_millis(2);

/// A row without its value.
#[derive(Debug, Clone, Copy)]
pub(super) struct Listed {
    /// Number of its message.
    number: u64,
    version: Version,
    size: usize,
    /// End of its life, in nanoseconds since 1970.
    ends: Option<u64>,
}

/// The rows of a partition at one moment.
struct Listing {
    rows: BTreeMap<String, Listed>,
    /// Number of the last message of the partition, 0 for none.
    last: u64,
}

impl NatsStore {
    /// Reads a page, again until no write came between.
    pub(super) async fn page(&self, scan: &Scan) -> Result<Page, StoreError> {
        let base = self.core.link.base();
        let until = base.clock.now() + base.config.request_timeout;
        let (mut pause, mut most) = (PAUSE, FEW);
        loop {
            if self.snapshots()
                && let Some(page) = Box::pin(self.cut(scan, most)).await?
            {
                return Ok(page);
            }
            // A whole partition is too much, so that it is read in pieces.
            let page = match scan.names() {
                Some(names) => Box::pin(self.named(scan, &names)).await?,
                None => Box::pin(self.listed(scan)).await?,
            };
            if let Some(page) = page {
                return Ok(page);
            }
            // It is written at the same time.
            most = 0;
            if base.clock.now() >= until {
                let message =
                    "the partition is written all the time, so that no page is a snapshot: ask again, or divide it";
                return Err(self.core.link.failure(PortErrorKind::Throttled, message).into());
            }
            base.clock.sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(100));
        }
    }

    /// Reads a page as of one moment. `None` if there is too much to read.
    async fn cut(&self, scan: &Scan, most: usize) -> Result<Option<Page>, StoreError> {
        let (names, bytes) = (&self.core.names, most);
        let most = Most { bytes, messages: 0 };
        let (subjects, most) = match (scan.names(), Area::of(scan)) {
            (Some(rows), _) if rows.is_empty() => return Ok(Some(Page::default())),
            (Some(rows), _) => {
                let subjects = rows.iter().map(|row| names.record(&scan.partition, row).subject()).collect();
                // Named rows are all needed.
                (subjects, Most::default())
            }
            (None, Area::Group(group)) => return self.cut_group(scan, &group, bytes).await,
            (None, area) => (vec![names.records(&scan.partition, &area.filter())], most),
        };
        let heads = self.snapshot(&scan.partition, subjects, most, self.confirms).await?;
        Ok(heads.map(|heads| self.arrange(scan, heads, None)))
    }

    /// Reads a page of one group as of one moment: so many numbers that the page is full.
    async fn cut_group(&self, scan: &Scan, group: &Group, bytes: usize) -> Result<Option<Page>, StoreError> {
        let limit = scan.limit.min(self.core_limit());
        let (mut stride, mut short) = (Stride::new(limit, group), None);
        loop {
            let (filters, cut) = group.filters(stride.span);
            let subjects = filters.iter().map(|filter| self.core.names.records(&scan.partition, filter)).collect();
            let messages = if group.is_numbered { limit * SPARE } else { 0 };
            let most = Most { bytes: if group.is_numbered { PAGE_BYTES } else { bytes }, messages };
            let found = match self.snapshot(&scan.partition, subjects, most, self.confirms).await? {
                Some(heads) => {
                    let is_whole = cut.is_none();
                    let page = self.arrange(scan, heads, cut);
                    if is_whole || page.rows.len() == limit {
                        return Ok(Some(page));
                    }
                    Some(short.insert(page).rows.len())
                }
                None => None,
            };
            if !stride.advance(found) {
                return Ok(short);
            }
        }
    }

    /// Makes a page of the last messages of subjects. They are all rows of the scan, or all up to
    /// the row `cut`.
    fn arrange(&self, scan: &Scan, heads: BTreeMap<String, Head>, cut: Option<String>) -> Page {
        let is_named = scan.names().is_some();
        let (from, to) = scan.bounds();
        let to = to.as_ref().map(String::as_str);
        let is_read = |name: &str| match (&cut, scan.order) {
            (None, _) => true,
            (Some(cut), Order::Ascending) => name <= cut.as_str(),
            (Some(cut), Order::Descending) => name >= cut.as_str(),
        };
        let row = |(subject, head): (String, Head)| {
            let name = Names::row(&subject).filter(|name| is_named || (is_within(name, from, to) && is_read(name)))?;
            head.record().map(|record| Row::new(name, record.value, record.version))
        };
        let mut rows: Vec<Row> = heads.into_iter().filter_map(row).collect();
        // The order of subjects is not that of rows.
        rows.sort_unstable_by(|a, b| a.row.cmp(&b.row));
        if scan.order == Order::Descending {
            rows.reverse();
        }
        let (limit, mut bytes) = (scan.limit.min(self.core_limit()), 0);
        let fits = |row: &&Row| {
            bytes += row.value.len();
            bytes - row.value.len() < PAGE_BYTES
        };
        let count = if is_named { rows.len().min(limit) } else { rows.iter().take(limit).take_while(fits).count() };
        let has_more = rows.len() > count;
        rows.truncate(count);
        let last = if has_more { rows.last().map(|row| row.row.clone()) } else { cut };
        Page::new(rows, last.map(Continuation::behind))
    }

    /// Returns the number of the last message of some records of a partition, 0 for none.
    async fn last_of(&self, partition: &str, records: &str) -> Result<u64, PortError> {
        if self.confirms {
            // The mark is then the last message.
            return self.mark(self.core.names.mark(partition)).await;
        }
        let last = self.message(GetMessage { last_by_subj: Some(records), ..GetMessage::default() }).await?;
        Ok(last.map_or(0, |message| message.seq))
    }

    /// Reads the named rows. `None` if a write came between.
    async fn named(&self, scan: &Scan, names: &[&str]) -> Result<Option<Page>, StoreError> {
        let limit = scan.limit.min(self.core_limit());
        let all = self.core.names.partition(&scan.partition);
        let before = self.last_of(&scan.partition, &all).await?;
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let found = names.into_iter().map(|name| self.named_row(&scan.partition, name));
        let mut found = stream::iter(found.collect::<Vec<_>>()).buffered(AT_ONCE);
        let mut heads = Vec::new();
        while let Some(row) = found.next().await {
            heads.extend(row?);
        }
        // All lives are compared with one time: a page is of one moment.
        if heads.iter().any(|(_, head): &(String, Head)| head.ends.is_some()) {
            let now = self.server_time().await?;
            heads.iter_mut().for_each(|(_, head)| head.settle(now));
        }
        if !self.is_unchanged(&scan.partition, &all, before).await? {
            return Ok(None);
        }
        let there =
            |(name, head): (String, Head)| head.record().map(|record| Row::new(name, record.value, record.version));
        let mut rows: Vec<Row> = heads.into_iter().filter_map(there).take(limit + 1).collect();
        let has_more = rows.len() > limit;
        rows.truncate(limit);
        let next = rows.last().filter(|_| has_more).map(|row| Continuation::behind(row.row.clone()));
        Ok(Some(Page::new(rows, next)))
    }

    /// Returns `true` if none of these records of the partition was written since `before`.
    async fn is_unchanged(&self, partition: &str, records: &str, before: u64) -> Result<bool, PortError> {
        let now = self.last_of(partition, records).await?;
        if !self.confirms {
            return Ok(now == before);
        }
        // Only marks, of this reader and of others, may lie behind the first one: no filter matches
        // them and some of the records.
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

    /// Returns the rows of a scan without their values. `None` if a write came between.
    pub(super) async fn rows(&self, scan: &Scan) -> Result<Option<BTreeMap<String, Listed>>, StoreError> {
        let records = self.records_of(scan);
        let before = self.last_of(&scan.partition, &records).await?;
        if before == 0 {
            return Ok(Some(BTreeMap::new()));
        }
        self.rows_until(scan, records, before).await
    }

    /// Returns a filter of the records among which those of a scan are.
    fn records_of(&self, scan: &Scan) -> String {
        self.core.names.records(&scan.partition, &Area::of(scan).filter())
    }

    async fn rows_until(
        &self,
        scan: &Scan,
        records: String,
        before: u64,
    ) -> Result<Option<BTreeMap<String, Listed>>, StoreError> {
        let Some(Listing { mut rows, last }) = self.list(scan, records, before).await? else { return Ok(None) };
        // Without that message, the copy that was read is an old one.
        if last < before {
            return Ok(None);
        }
        if rows.values().any(|row| row.ends.is_some()) {
            let now = self.server_time().await?;
            rows.retain(|_, row| row.ends.is_none_or(|ends| ends > now));
        }
        Ok(Some(rows))
    }

    /// Reads a range of rows. `None` if a write came between.
    async fn listed(&self, scan: &Scan) -> Result<Option<Page>, StoreError> {
        let records = self.records_of(scan);
        let before = self.last_of(&scan.partition, &records).await?;
        if before == 0 {
            return Ok(Some(Page::default()));
        }
        let Some(listing) = self.rows_until(scan, records.clone(), before).await? else { return Ok(None) };
        let limit = scan.limit.min(self.core_limit());
        let (mut chosen, mut bytes, mut has_more) = (Vec::new(), 0, false);
        let ordered: Box<dyn Iterator<Item = _> + Send> = match scan.order {
            Order::Ascending => Box::new(listing.into_iter()),
            Order::Descending => Box::new(listing.into_iter().rev()),
        };
        for (row, listed) in ordered {
            if chosen.len() == limit || (bytes >= PAGE_BYTES && !chosen.is_empty()) {
                has_more = true;
                break;
            }
            bytes += listed.size;
            chosen.push((row, listed));
        }
        let next = chosen.last().filter(|_| has_more).map(|(row, _)| Continuation::behind(row.clone()));
        let found = chosen.into_iter().map(|(row, listed)| self.listed_row(row, listed));
        let mut found = stream::iter(found.collect::<Vec<_>>()).buffered(AT_ONCE);
        let mut rows = Vec::new();
        while let Some(row) = found.next().await {
            match row? {
                Some(row) => rows.push(row),
                // Replaced since it was listed.
                None => return Ok(None),
            }
        }
        Ok(self.is_unchanged(&scan.partition, &records, before).await?.then(|| Page::new(rows, next)))
    }

    async fn named_row(&self, partition: &str, name: String) -> Result<Option<(String, Head)>, StoreError> {
        let record = self.core.names.record(partition, &name);
        let (head, _) = self.last(&record, self.confirms).await?;
        Ok(head.map(|head| (name, head)))
    }

    /// Reads a row by the number of its message. A message keeps its number and its content, so any
    /// copy serves. `None` if it was replaced since it was listed.
    async fn listed_row(&self, row: String, listed: Listed) -> Result<Option<Row>, PortError> {
        let message = self.message(GetMessage { seq: Some(listed.number), ..GetMessage::default() }).await?;
        let Some(message) = message else { return Ok(None) };
        let value = message.body().ok_or_else(|| self.core.link.unexpected("STREAM.MSG.GET"))?;
        Ok(Some(Row::new(row, value, listed.version)))
    }

    /// Lists the rows of a scan, at least up to the message `until`. `None` if messages are
    /// missing.
    async fn list(&self, scan: &Scan, records: String, until: u64) -> Result<Option<Listing>, StoreError> {
        let names = &self.core.names;
        let mut subjects = vec![records];
        // A server refuses a filter that another one comprises.
        if self.confirms && subjects[0] != names.partition(&scan.partition) {
            subjects.push(names.mark(&scan.partition));
        }
        let mut reader = Reader::open(&self.core.link, &self.core.stream.name, &subjects).await?;
        let mut listing = Listing { rows: BTreeMap::new(), last: 0 };
        if reader.pending > 0 {
            let (from, to) = scan.bounds();
            // The time limit of a request is for so many names, since a partition may be long.
            let mut some = async || {
                for _ in 0..NAMES {
                    let Some(entry) = reader.next().await else { return Some(false) };
                    listing.last = entry.place.sequence;
                    let name = Names::row(&entry.message.subject);
                    let is_deleted = entry.header(DELETED).is_some();
                    if let Some(name) = name
                        && !is_deleted
                        && is_within(&name, from, to.as_ref().map(String::as_str))
                    {
                        listing.rows.insert(name, listed(&entry));
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

fn listed(entry: &Entry) -> Listed {
    let header = |name| entry.header(name).and_then(|text| text.parse::<u64>().ok());
    let (number, ends) = (entry.place.sequence, header(LIFE).map(|life| entry.place.stored_at.saturating_add(life)));
    let version = header(NUMBER).map_or_else(|| version_of(number, ends.is_some()), Version::new);
    let size = header("Nats-Msg-Size").and_then(|size| size.try_into().ok()).unwrap_or(0);
    Listed { number, version, size, ends }
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
