//! Repairs: missing entries are added, and stale ones removed, while all go on.
use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use futures_util::future::try_join_all;

use super::{
    IndexKey, IndexTable, IndexTableError, IndexTableEvent, RowKey, key,
    stored::{self, STATE, State},
    table::{Entry, Found, TableInner},
};
use crate::{
    port::PortErrorKind,
    store::{Continuation, Key, Precondition, Row, Scan, Store, Version},
};

/// Number of entries from which on a key is called coarse.
const MANY: u64 = 100;

/// Number of requests that are made at a time.
pub(super) const AT_ONCE: usize = 16;

/// The result of a repair.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RepairReport {
    /// Number of rows that were read.
    pub rows: u64,
    /// Number of rows that do not decode. They have no entries, and entries that name them stay.
    pub unreadable: u64,
    /// Number of entries that do not decode, or are of a newer release, and of unique keys that a
    /// row lacks because of one, or of an owner that does not decode. They stay as they are.
    pub damaged: u64,
    /// Number of entries that were missing, and were added.
    pub added: u64,
    /// Number of stale entries that were removed.
    pub removed: u64,
    /// Number of entries whose copy was missing, or was not that of the row, and was replaced.
    pub copied: u64,
    /// Unique keys that two rows have.
    pub duplicates: Vec<DuplicateKey>,
    /// The indexes, in their order.
    pub indexes: Vec<IndexReport>,
}

/// A unique key that two rows have. Both were there before the index was built, or were written
/// past the table.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DuplicateKey {
    /// Name of the index.
    pub index: String,
    /// The key.
    pub key: IndexKey,
    /// The row that the key does not find.
    pub row: RowKey,
}

/// The state of an index, as a repair has found it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct IndexReport {
    /// Name of the index.
    pub index: String,
    /// Number of entries, of all partitions of the table. Of an index beside its rows, those of the
    /// partitions that were repaired.
    pub entries: u64,
    /// `true` if a process has looked it up since it was built. If none does, drop it.
    pub is_looked_up: bool,
    /// First parts of keys with more than a tenth of at least 100 entries: such a key tells little
    /// apart. Of an index beside its rows, of the entries of one partition.
    pub coarse: Vec<(String, u64)>,
}

impl<V> IndexTable<V> {
    /// Repairs the entries of a partition of the table, while all go on: adds those that are
    /// missing, removes those whose row lacks the key, and replaces copies that are not those of
    /// the row. It reads the partition once, and all indexes; of those beside their rows the
    /// entries of the partition alone.
    ///
    /// # Errors
    /// `Invalid` for a partition of the table's own indexes. Else an error of a store. The same
    /// call again does the rest.
    ///
    /// # Cancel safety
    /// Repairs that were made stay. The same call again does the rest.
    pub async fn repair(&self, partition: impl Into<String>) -> Result<RepairReport, IndexTableError> {
        self.0.repair(&BTreeSet::from([partition.into()])).await
    }

    /// Repairs these partitions of the table, which are all that it has, and serves the indexes
    /// from then on. For a table without rows there are none to name. A process that writes rows
    /// without one of the indexes must have ended before.
    ///
    /// # Errors
    /// [`Duplicate`](IndexTableError::Duplicate) if two rows have one unique key: a
    /// [repair](Self::repair) lists them. `Invalid` for a partition of the table's own indexes.
    /// Else an error of a store. The same call again does the rest.
    ///
    /// # Cancel safety
    /// Repairs that were made stay. The same call again does the rest.
    pub async fn build_indexes(
        &self,
        partitions: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<RepairReport, IndexTableError> {
        let inner = &*self.0;
        let report = inner.repair(&partitions.into_iter().map(Into::into).collect()).await?;
        if let Some(duplicate) = report.duplicates.first() {
            let DuplicateKey { index, key, .. } = duplicate.clone();
            return Err(IndexTableError::Duplicate { index, key });
        }
        for index in &inner.indexes {
            loop {
                let (state, when) = inner.state(index).await?;
                if state.is_built {
                    break;
                }
                match inner.put_state(index, State { is_built: true, ..state }, when).await {
                    Err(IndexTableError::Conflict { .. }) => {}
                    written => {
                        written?;
                        break;
                    }
                }
            }
        }
        Ok(report)
    }
}

impl<V> TableInner<V> {
    async fn repair(&self, partitions: &BTreeSet<String>) -> Result<RepairReport, IndexTableError> {
        for partition in partitions {
            self.check_partition(partition).map_err(IndexTableError::Invalid)?;
        }
        let mut report = RepairReport::default();
        for partition in partitions {
            self.add_missing(partition, &mut report).await?;
        }
        for nth in 0..self.indexes.len() {
            let seen = self.remove_stale(nth, partitions, &mut report).await?;
            report.indexes.push(seen);
        }
        let (added, removed, unreadable) = (report.added, report.removed, report.unreadable);
        self.send_event(|| IndexTableEvent::Repaired { added, removed, unreadable });
        Ok(report)
    }

    /// Reads the next page of a scan; `None` behind the last one.
    async fn page(
        &self,
        store: &dyn Store,
        scan: &mut Scan,
        after: &mut Option<Option<Continuation>>,
    ) -> Result<Option<Vec<Row>>, IndexTableError> {
        let Some(from) = after.take() else { return Ok(None) };
        (scan.limit, scan.after) = ((self.config.page as usize).min(store.capabilities().max_batch()), from);
        let page = self.ask(store.scan(scan)).await?;
        *after = page.next.map(Some);
        Ok(Some(page.rows))
    }

    /// Adds the entries that rows of a partition lack.
    async fn add_missing(&self, partition: &str, report: &mut RepairReport) -> Result<(), IndexTableError> {
        let (mut scan, mut after) = (Scan::partition(partition), Some(None));
        while let Some(rows) = self.page(&*self.base, &mut scan, &mut after).await? {
            // By the partitions of indexes, each entry with the row that has it.
            let mut wanted = BTreeMap::<(usize, String), Vec<(Entry, String)>>::new();
            for row in rows.into_iter().filter(|row| !self.is_entry(&row.row)) {
                let (found, of) = (Found { value: row.value, version: row.version }, Key::new(partition, &row.row));
                let Some(bytes) = found.live() else { continue };
                report.rows += 1;
                let Ok(value) = self.decode(of, bytes) else {
                    report.unreadable += 1;
                    continue;
                };
                for entry in self.possible_entries(of, &value) {
                    let of = row.row.clone();
                    wanted.entry((entry.index, entry.partition.clone())).or_default().push((entry, of));
                }
            }
            for ((nth, of_index), entries) in wanted {
                let names: Vec<&str> = entries.iter().map(|(entry, _)| entry.row.as_str()).collect();
                let there = self.named((&*self.indexes[nth].store, &of_index), &names).await?;
                let is_missing = |(entry, row): &&(Entry, String)| match there.get(&entry.row) {
                    None => true,
                    // A claim of this row counts as there, even while a put takes it over.
                    Some(found) => {
                        self.indexes[nth].is_unique() && !stored::is_claim_of(Key::new(partition, row), &found.value)
                    }
                };
                let missing: Vec<_> = entries.iter().filter(is_missing).collect();
                if self.indexes[nth].is_beside() {
                    let missing = missing.iter().map(|(entry, row)| (row.as_str(), entry.row.as_str()));
                    report.add(&self.mend(partition, missing).await?);
                    continue;
                }
                for some in missing.chunks(AT_ONCE) {
                    let added =
                        try_join_all(some.iter().map(|(entry, row)| self.add_one(entry, Key::new(partition, row))));
                    for added in added.await? {
                        match added {
                            Added::Yes => report.added += 1,
                            Added::NotNeeded => {}
                            Added::Damaged => report.damaged += 1,
                            Added::Taken(duplicate) => report.duplicates.push(duplicate),
                        }
                    }
                }
            }
        }
        Ok(())
    }

    async fn add_one(&self, entry: &Entry, of: Key<'_>) -> Result<Added, IndexTableError> {
        let added = match self.indexes[entry.index].is_unique() {
            true => self.claim(entry, of).await,
            false => self.add_plain(entry, Precondition::Absent).await,
        };
        match added {
            Ok(_) => Ok(Added::Yes),
            // A put has added it.
            Err(IndexTableError::Conflict { .. }) => Ok(Added::NotNeeded),
            Err(IndexTableError::Duplicate { index, key }) => {
                // The row may have lost it since it was read.
                let row = self.read(of).await?;
                let has_it = self.row_with((entry.index, &key), of, row.as_ref())?.is_some();
                Ok(if has_it { Added::Taken(DuplicateKey { index, key, row: of.into() }) } else { Added::NotNeeded })
            }
            Err(IndexTableError::Store(error))
                if matches!(error.kind(), PortErrorKind::Corrupt | PortErrorKind::TooNew) =>
            {
                Ok(Added::Damaged)
            }
            Err(error) => Err(error),
        }
    }

    /// Removes the entries of an index whose rows, in these partitions, lack the key, and replaces
    /// copies that are not those of the row.
    async fn remove_stale(
        &self,
        nth: usize,
        partitions: &BTreeSet<String>,
        report: &mut RepairReport,
    ) -> Result<IndexReport, IndexTableError> {
        let (index, name) = (&self.indexes[nth], self.indexes[nth].name.as_str());
        let scans: Vec<Scan> = match index.is_beside() {
            true => partitions.iter().map(|partition| Scan::partition(partition).prefix(key::beside(name))).collect(),
            false => key::partitions(name).map(Scan::partition).collect(),
        };
        let (mut all_counts, mut counts) = (Vec::new(), Counts::default());
        for mut scan in scans {
            let mut after = Some(None);
            while let Some(rows) = self.page(&*index.store, &mut scan, &mut after).await? {
                let mut by_partition = BTreeMap::<String, Vec<Seen>>::new();
                // The state of an index `NAME/00`, if the store has one, is no entry of `NAME`.
                for row in rows.into_iter().filter(|row| row.row != STATE) {
                    let Some((key, of)) = self.parse(nth, Key::new(&scan.partition, &row.row)) else {
                        report.damaged += 1;
                        continue;
                    };
                    counts.add(key.first());
                    let Ok((of, copy)) = self.owner_and_copy(nth, of, &row.row, row.value) else {
                        report.damaged += 1;
                        continue;
                    };
                    if partitions.contains(&of.partition) {
                        let entry = Entry { index: nth, key, partition: scan.partition.clone(), row: row.row };
                        let seen = Seen { entry, row: of.row, version: row.version, copy };
                        by_partition.entry(of.partition).or_default().push(seen);
                    }
                }
                for (partition, entries) in by_partition {
                    match index.is_beside() {
                        true => report.add(&self.sweep_beside(&partition, &entries).await?),
                        false => self.sweep(&partition, &entries, report).await?,
                    }
                }
            }
            // Each partition of rows is looked up by itself.
            if index.is_beside() {
                all_counts.push(std::mem::take(&mut counts));
            }
        }
        all_counts.push(counts);
        let (state, _) = self.state(index).await?;
        let name = name.to_owned();
        if state.is_built && !state.is_looked_up {
            self.send_event(|| IndexTableEvent::NeverLookedUp { index: name.clone() });
        }
        let mut coarse = Vec::new();
        for counts in all_counts.iter().filter(|_| !index.is_unique()) {
            for (key, entries) in counts.coarse() {
                coarse.push((key.clone(), entries));
                let (index, all) = (name.clone(), counts.all);
                self.send_event(|| IndexTableEvent::CoarseKey { index, key, entries, all });
            }
        }
        let entries = all_counts.iter().map(|counts| counts.all).sum();
        Ok(IndexReport { index: name, entries, is_looked_up: state.is_looked_up, coarse })
    }

    /// Removes those of these entries whose rows lack the key, and replaces copies. The entries
    /// were read before.
    async fn sweep(&self, partition: &str, entries: &[Seen], report: &mut RepairReport) -> Result<(), IndexTableError> {
        let mut names: Vec<&str> = entries.iter().map(|seen| seen.row.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        let rows = self.named((&*self.base, partition), &names).await?;
        let mut stale = BTreeMap::<&str, Vec<(&Seen, Option<Bytes>)>>::new();
        for seen in entries {
            let (nth, of) = (seen.entry.index, Key::new(partition, &seen.row));
            match self.row_with((nth, &seen.entry.key), of, rows.get(&seen.row)) {
                Ok(None) => stale.entry(&seen.row).or_default().push((seen, None)),
                Ok(Some((value, _))) => {
                    let copy = self.possible_copy(nth, of, &value);
                    if self.indexes[nth].copy.is_some() && copy != seen.copy {
                        let value = self.value_of(nth, of, copy.as_ref());
                        stale.entry(&seen.row).or_default().push((seen, Some(value)));
                    }
                }
                // A row that does not decode may have it.
                Err(_) => {}
            }
        }
        for (row, entries) in stale {
            // No put that has written one of these entries can still be accepted from here on; one
            // that begins now writes it anew.
            if self.touch(Key::new(partition, row), rows.get(row)).await? {
                for (seen, value) in entries {
                    match value {
                        None => report.removed += u64::from(self.remove(&seen.entry, seen.version).await),
                        Some(value) => {
                            report.copied += u64::from(self.fill(&seen.entry, seen.version, value).await);
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

/// An entry as a repair has read it.
pub(super) struct Seen {
    pub(super) entry: Entry,
    /// The row of the table that it names.
    pub(super) row: String,
    version: Version,
    pub(super) copy: Option<Bytes>,
}

/// The result of adding one entry.
enum Added {
    Yes,
    /// The row has it by now, or no longer has the key.
    NotNeeded,
    /// The claim that is there does not decode, or its owner does not.
    Damaged,
    Taken(DuplicateKey),
}

/// Entries by the first part of their keys, which come one after the other.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) all: u64,
    last: Option<(String, u64)>,
    /// Keys with many entries, of those that are complete.
    large: Vec<(String, u64)>,
}

impl Counts {
    pub(super) fn add(&mut self, first: &str) {
        self.all += 1;
        match &mut self.last {
            Some((last, count)) if last == first => *count += 1,
            last => {
                let complete = last.replace((first.to_owned(), 1));
                // More come, so that a tenth of all is more than a tenth of those so far.
                self.large.extend(complete.filter(|(_, count)| count * 10 > self.all));
                if self.large.len() > 64 {
                    self.large.retain(|(_, count)| count * 10 > self.all);
                }
            }
        }
    }

    /// Returns the keys with more than a tenth of all entries, if there are many of those.
    pub(super) fn coarse(&self) -> Vec<(String, u64)> {
        let keys = self.large.iter().chain(&self.last);
        keys.filter(|(_, count)| self.all >= MANY && count * 10 > self.all).cloned().collect()
    }
}
