//! The store in memory, with versions, batches, sequences, fencing tokens and times to live.
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    ops::Bound,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;

use super::{
    Continuation, DeleteOptions, Key, Order, Page, PutOptions, Record, Row, Scan, Sequence, Store, StoreError,
    StoreFuture, Version, Write,
};
use crate::{
    build::{Builder, Common, Component},
    port::{Capabilities, Capability, FencingToken},
    sync::{Mutex, MutexGuard},
    time::{Clock, Instant},
};

/// A store in this process's memory, for tests, and for state that may end with the process.
///
/// A clone shares the records. Each operation completes in the first poll of its future. A page of
/// a scan reads the rows that it returns, and one more. Each write deletes up to two expired
/// records; a scan deletes all of them.
#[derive(Clone, Default)]
pub struct InMemoryStore {
    shared: Arc<Mutex<StoreState>>,
    clock: Clock,
}

#[derive(Default)]
struct StoreState {
    partitions: BTreeMap<String, BTreeMap<String, StoredRecord>>,
    /// The last number of each sequence, by partition and name. They are never removed.
    sequences: BTreeMap<String, BTreeMap<String, u64>>,
    /// The highest fencing token of each key that was written with one.
    fences: BTreeMap<(String, String), FencingToken>,
    /// Keys of the records that expire, in the order of expiry. The version makes each entry
    /// unique.
    ends: BTreeMap<(Instant, Version), (String, String)>,
    /// One counter of writes for all keys, so that versions grow, also across deletion. Appends
    /// count, so that the version of a put is above each number.
    writes: u64,
}

struct StoredRecord {
    value: Bytes,
    version: Version,
    ends: Option<Instant>,
}

impl StoredRecord {
    fn is_live(&self, now: Instant) -> bool {
        #[cfg(test)]
        tests::count_a_row();
        self.ends.is_none_or(|ends| now < ends)
    }
}

const CAN: Capabilities = Capabilities::of(
    "memory",
    &[
        Capability::Linearizable,
        Capability::AtomicBatch,
        Capability::OrderedVersions,
        Capability::Fencing,
        Capability::OrderedAppend,
        Capability::TimeToLive,
    ],
)
.largest_value(64 << 20)
.largest_batch(1000)
.largest_key(1024);

impl Component for InMemoryStore {
    type Built = Self;
    type Spec = ();

    fn assemble((): (), Common { clock, .. }: Common) -> Self {
        Self { clock, ..Self::default() }
    }
}

impl InMemoryStore {
    /// Creates an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a builder of an empty store. Its clock ends records.
    pub fn builder() -> Builder<Self> {
        Builder::new(())
    }

    /// Returns all current records by partition and row, for tests.
    pub fn records(&self) -> BTreeMap<(String, String), Record> {
        let (state, now) = (self.state(), self.clock.now());
        let rows = state.partitions.iter().flat_map(|(p, rows)| rows.iter().map(move |(row, entry)| (p, row, entry)));
        rows.filter(|(.., entry)| entry.is_live(now))
            .map(|(p, row, entry)| ((p.clone(), row.clone()), entry.record()))
            .collect()
    }

    fn state(&self) -> MutexGuard<'_, StoreState> {
        self.shared.lock()
    }

    fn write(&self, partition: &str, writes: Vec<Write>) -> Result<Vec<Applied>, StoreError> {
        let now = self.clock.now();
        let mut state = self.state();
        // The last numbers as this batch advances them.
        let mut lasts = HashMap::new();
        for (i, write) in writes.iter().enumerate() {
            let checked = match write {
                Write::Append { sequence, after, .. } => state.advance(partition, sequence, *after, &mut lasts, now),
                _ => state.check(partition, write, now),
            };
            checked.map_err(|e| e.of_write(i))?;
        }
        // Sweeping twice the number of new records makes expired ones dwindle.
        state.sweep(now, 2 * writes.len());
        Ok(writes.into_iter().map(|write| state.apply(partition, write, now)).collect())
    }
}

/// The result of a write.
enum Applied {
    Put(Version),
    Deleted(bool),
    Checked,
}

impl StoredRecord {
    fn record(&self) -> Record {
        Record { value: self.value.clone(), version: self.version }
    }
}

impl StoreState {
    fn live(&self, partition: &str, row: &str, now: Instant) -> Option<&StoredRecord> {
        self.partitions.get(partition)?.get(row).filter(|entry| entry.is_live(now))
    }

    fn check(&self, partition: &str, write: &Write, now: Instant) -> Result<(), StoreError> {
        let Some(row) = write.row() else { return Ok(()) };
        if let Some(token) = write.fence()
            && let Some(&highest) = self.fences.get(&(partition.to_owned(), row.to_owned()))
            && token < highest
        {
            return Err(StoreError::Fenced { write: 0, highest });
        }
        let current = self.live(partition, row, now).map(|entry| entry.version);
        write.when().check(current)?;
        let creates = current.is_none() && matches!(write, Write::Put { .. });
        match Sequence::of_row(row) {
            Some(of) if creates && self.last(partition, of.as_str()) > 0 => Err(of.refuse_put(row)),
            _ => Ok(()),
        }
    }

    /// Returns the last number of a sequence, 0 if it has none.
    fn last(&self, partition: &str, sequence: &str) -> u64 {
        self.sequences.get(partition).and_then(|of| of.get(sequence)).copied().unwrap_or(0)
    }

    /// Checks an append, and advances the last number of its sequence in `lasts`.
    fn advance<'a>(
        &self,
        partition: &str,
        name: &'a str,
        after: Option<u64>,
        lasts: &mut HashMap<&'a str, u64>,
        now: Instant,
    ) -> Result<(), StoreError> {
        let sequence = Sequence::new(name);
        let last = lasts.get(name).copied().unwrap_or_else(|| self.last(partition, name));
        lasts.insert(name, sequence.next(last, after)?);
        let Some(rows) = self.partitions.get(partition).filter(|_| last == 0) else { return Ok(()) };
        // Puts create no row of a sequence that has begun, so the first append looks for all.
        let (lowest, highest) = sequence.bounds();
        let is_taken =
            |(row, entry): &(&String, &StoredRecord)| Sequence::of_row(row) == Some(sequence) && entry.is_live(now);
        rows.range(lowest..=highest).find(is_taken).map_or(Ok(()), |(row, _)| Err(sequence.refuse_first(row)))
    }

    fn apply(&mut self, partition: &str, write: Write, now: Instant) -> Applied {
        if let (Some(token), Some(row)) = (write.fence(), write.row()) {
            self.fences.insert((partition.to_owned(), row.to_owned()), token);
        }
        match write {
            Write::Put { row, value, options } => {
                self.writes += 1;
                let version = Version::new(self.writes);
                let ends = options.ttl.map(|ttl: Duration| now + ttl);
                if let Some(ends) = ends {
                    self.ends.insert((ends, version), (partition.to_owned(), row.clone()));
                }
                self.insert(partition, row, StoredRecord { value, version, ends })
            }
            Write::Append { sequence, value, .. } => {
                self.writes += 1;
                let number = self.last(partition, &sequence) + 1;
                let row = Sequence::new(&sequence).row(number);
                self.sequences.entry(partition.to_owned()).or_default().insert(sequence, number);
                self.insert(partition, row, StoredRecord { value, version: Version::new(number), ends: None })
            }
            Write::Check { .. } => Applied::Checked,
            Write::Delete { row, .. } => {
                let before = self.remove(partition, &row);
                self.forget_end(before.as_ref());
                Applied::Deleted(before.is_some_and(|entry| entry.is_live(now)))
            }
        }
    }

    fn insert(&mut self, partition: &str, row: String, entry: StoredRecord) -> Applied {
        let version = entry.version;
        let before = self.partitions.entry(partition.to_owned()).or_default().insert(row, entry);
        self.forget_end(before.as_ref());
        Applied::Put(version)
    }

    fn remove(&mut self, partition: &str, row: &str) -> Option<StoredRecord> {
        let rows = self.partitions.get_mut(partition)?;
        let removed = rows.remove(row);
        if rows.is_empty() {
            self.partitions.remove(partition);
        }
        removed
    }

    fn forget_end(&mut self, gone: Option<&StoredRecord>) {
        if let Some(StoredRecord { ends: Some(ends), version, .. }) = gone {
            self.ends.remove(&(*ends, *version));
        }
    }

    /// Deletes up to `most` expired records.
    fn sweep(&mut self, now: Instant, most: usize) {
        for _ in 0..most {
            let Some(first) = self.ends.first_entry().filter(|first| first.key().0 <= now) else { return };
            let (partition, row) = first.remove();
            self.remove(&partition, &row);
        }
    }

    /// Returns one page. Reads the rows that it returns, and one more.
    fn page(&mut self, scan: &Scan, limit: usize, now: Instant) -> Page {
        // Each record is swept once, so that no page has to skip expired rows.
        self.sweep(now, usize::MAX);
        let Some(rows) = self.partitions.get(&scan.partition) else { return Page::default() };
        let (from, to) = scan.bounds();
        let to = to.as_ref().map(String::as_str);
        if is_empty(from, to) {
            return Page::default();
        }
        let row = |(row, entry): (&String, &StoredRecord)| {
            #[cfg(test)]
            tests::count_a_row();
            Row { row: row.clone(), value: entry.value.clone(), version: entry.version }
        };
        let mut found: Vec<Row> = match (scan.names(), scan.order) {
            (Some(names), _) => {
                names.into_iter().filter_map(|name| rows.get_key_value(name)).map(row).take(limit + 1).collect()
            }
            (None, Order::Ascending) => rows.range::<str, _>((from, to)).map(row).take(limit + 1).collect(),
            (None, Order::Descending) => rows.range::<str, _>((from, to)).rev().map(row).take(limit + 1).collect(),
        };
        let more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().filter(|_| more).map(|last| Continuation::behind(&*last.row));
        Page { rows: found, next }
    }
}

/// Returns `true` if no row lies between the bounds; a `BTreeMap` panics at such a range.
fn is_empty(from: Bound<&str>, to: Bound<&str>) -> bool {
    match (from, to) {
        (Bound::Included(from), Bound::Included(to)) => from > to,
        (Bound::Included(from) | Bound::Excluded(from), Bound::Included(to) | Bound::Excluded(to)) => from >= to,
        _ => false,
    }
}

impl Store for InMemoryStore {
    fn capabilities(&self) -> Capabilities {
        CAN
    }

    fn get<'a>(&'a self, key: Key<'a>) -> StoreFuture<'a, Option<Record>> {
        Box::pin(async move {
            key.check(&CAN)?;
            let now = self.clock.now();
            Ok(self.state().live(key.partition, key.row, now).map(StoredRecord::record))
        })
    }

    fn put<'a>(&'a self, key: Key<'a>, value: Bytes, options: PutOptions) -> StoreFuture<'a, Version> {
        Box::pin(async move {
            let versions = self.batch(key.partition, vec![Write::put(key.row, value, options)]).await?;
            // One put returns one version.
            Ok(versions.into_iter().flatten().next().unwrap_or(Version::new(0)))
        })
    }

    fn delete<'a>(&'a self, key: Key<'a>, options: DeleteOptions) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let write = Write::delete(key.row, options);
            key.check(&CAN)?;
            write.check(&CAN)?;
            let applied = self.write(key.partition, vec![write])?;
            Ok(matches!(applied[..], [Applied::Deleted(true)]))
        })
    }

    fn scan<'a>(&'a self, scan: &'a Scan) -> StoreFuture<'a, Page> {
        Box::pin(async move {
            scan.check(&CAN)?;
            let now = self.clock.now();
            Ok(self.state().page(scan, scan.limit.min(CAN.max_batch()), now))
        })
    }

    fn batch<'a>(&'a self, partition: &'a str, writes: Vec<Write>) -> StoreFuture<'a, Vec<Option<Version>>> {
        Box::pin(async move {
            Write::check_batch(partition, &writes, &CAN)?;
            let applied = self.write(partition, writes)?;
            let version = |applied| match applied {
                Applied::Put(version) => Some(version),
                Applied::Deleted(_) | Applied::Checked => None,
            };
            Ok(applied.into_iter().map(version).collect())
        })
    }
}

impl fmt::Debug for InMemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let records: usize = self.state().partitions.values().map(BTreeMap::len).sum();
        f.debug_struct("InMemoryStore").field("records", &records).finish()
    }
}
