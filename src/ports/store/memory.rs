//! The store in memory, with versions, batches, fencing tokens and times to live.
use std::{collections::BTreeMap, fmt, ops::Bound, sync::Arc, time::Duration};

use bytes::Bytes;

use super::{
    Continuation, DeleteOptions, Key, Order, Page, PutOptions, Record, Row, Scan, Store, StoreError, Version, Write,
};
use crate::{
    build::{Builder, Common, Component},
    port::{BoxFuture, Capabilities, Capability, FencingToken},
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
    /// The highest fencing token of each key that was written with one.
    fences: BTreeMap<(String, String), FencingToken>,
    /// Keys of the records that expire, in the order of expiry. The version makes each entry
    /// unique.
    ends: BTreeMap<(Instant, Version), (String, String)>,
    /// One counter of writes for all keys, so that versions grow, also across deletion.
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
        for (i, write) in writes.iter().enumerate() {
            state.check(partition, write, now).map_err(|e| e.of_write(i))?;
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
        let fence = self.fences.get(&(partition.to_owned(), write.row().to_owned()));
        if let (Some(token), Some(&highest)) = (write.fence(), fence)
            && token < highest
        {
            return Err(StoreError::Fenced { write: 0, highest });
        }
        write.when().check(self.live(partition, write.row(), now).map(|entry| entry.version))
    }

    fn apply(&mut self, partition: &str, write: Write, now: Instant) -> Applied {
        if let Some(token) = write.fence() {
            self.fences.insert((partition.to_owned(), write.row().to_owned()), token);
        }
        match write {
            Write::Put { row, value, options } => {
                self.writes += 1;
                let version = Version::new(self.writes);
                let ends = options.ttl.map(|ttl: Duration| now + ttl);
                if let Some(ends) = ends {
                    self.ends.insert((ends, version), (partition.to_owned(), row.clone()));
                }
                let entry = StoredRecord { value, version, ends };
                let before = self.partitions.entry(partition.to_owned()).or_default().insert(row, entry);
                self.forget_end(before.as_ref());
                Applied::Put(version)
            }
            Write::Delete { row, .. } => {
                let before = self.remove(partition, &row);
                self.forget_end(before.as_ref());
                Applied::Deleted(before.is_some_and(|entry| entry.is_live(now)))
            }
        }
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
        let range = rows.range::<str, _>((from, to)).map(row);
        let mut found: Vec<Row> = match scan.order {
            Order::Ascending => range.take(limit + 1).collect(),
            Order::Descending => range.rev().take(limit + 1).collect(),
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

    fn get<'a>(&'a self, key: Key<'a>) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(async move {
            key.check(&CAN)?;
            let now = self.clock.now();
            Ok(self.state().live(key.partition, key.row, now).map(StoredRecord::record))
        })
    }

    fn put<'a>(
        &'a self,
        key: Key<'a>,
        value: Bytes,
        options: PutOptions,
    ) -> BoxFuture<'a, Result<Version, StoreError>> {
        Box::pin(async move {
            let versions = self.batch(key.partition, vec![Write::put(key.row, value, options)]).await?;
            // One put returns one version.
            Ok(versions.into_iter().flatten().next().unwrap_or(Version::new(0)))
        })
    }

    fn delete<'a>(&'a self, key: Key<'a>, options: DeleteOptions) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let write = Write::delete(key.row, options);
            key.check(&CAN)?;
            write.check(&CAN)?;
            let applied = self.write(key.partition, vec![write])?;
            Ok(matches!(applied[..], [Applied::Deleted(true)]))
        })
    }

    fn scan<'a>(&'a self, scan: &'a Scan) -> BoxFuture<'a, Result<Page, StoreError>> {
        Box::pin(async move {
            scan.check(&CAN)?;
            let now = self.clock.now();
            Ok(self.state().page(scan, scan.limit.min(CAN.max_batch()), now))
        })
    }

    fn batch<'a>(
        &'a self,
        partition: &'a str,
        writes: Vec<Write>,
    ) -> BoxFuture<'a, Result<Vec<Option<Version>>, StoreError>> {
        Box::pin(async move {
            Write::check_batch(partition, &writes, &CAN)?;
            let applied = self.write(partition, writes)?;
            let version = |applied| match applied {
                Applied::Put(version) => Some(version),
                Applied::Deleted(_) => None,
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::store::StoreExt;

    fn run(case: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(case);
    }

    thread_local! {
        static ROWS_READ: Cell<usize> = const { Cell::new(0) };
    }

    pub(super) fn count_a_row() {
        ROWS_READ.set(ROWS_READ.get() + 1);
    }

    #[test]
    fn a_page_reads_the_rows_that_it_returns_and_one_more() {
        run(async {
            let (clock, time) = Clock::manual();
            let store = InMemoryStore::builder().clock(&clock).build();
            for i in 0..10_000 {
                // Every second record expires.
                let options = PutOptions::new();
                let options = if i % 2 == 0 { options.ttl(Duration::from_secs(1)) } else { options };
                store.put(Key::new("p", &format!("{i:05}")), "x".into(), options).await.unwrap();
            }
            time.advance(Duration::from_secs(2));
            ROWS_READ.set(0);
            let all = store.scan_all(Scan::partition("p").limit(100)).await.unwrap();
            assert_eq!((all.len(), ROWS_READ.get()), (5000, 5000 + 49));
            let state = store.state();
            assert_eq!((state.ends.len(), state.partitions["p"].len()), (0, 5000), "entries that were looked at");
        });
    }

    #[test]
    fn expired_records_are_deleted_without_reads_or_scans() {
        run(async {
            let (clock, time) = Clock::manual();
            let store = InMemoryStore::builder().clock(&clock).build();
            let options = PutOptions::new().ttl(Duration::from_secs(1));
            for i in 0..20_000 {
                time.advance(Duration::from_millis(1));
                store.put(Key::new(&i.to_string(), "r"), "x".into(), options).await.unwrap();
            }
            let held = |store: &InMemoryStore| {
                let state = store.state();
                (state.partitions.len(), state.ends.len())
            };
            assert_eq!(held(&store), (1000, 1000));
            // Expiry entries of records that were deleted or replaced are removed.
            for _ in 0..10 {
                store.put(Key::new("same", "r"), "x".into(), options).await.unwrap();
            }
            assert_eq!(held(&store).0, held(&store).1);
            store.delete(Key::new("same", "r"), DeleteOptions::new()).await.unwrap();
            assert_eq!(held(&store).0, held(&store).1);
        });
    }
}
