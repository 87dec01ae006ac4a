//! Indexes beside the rows: their entries are in the partition of the row, and in its batch.
//!
//! All entries of a row change in the batch that writes it, at the version that was read. So they
//! are those of the row at any moment, and nobody touches a row for them: a repair writes them in a
//! batch that checks the row.
use std::collections::BTreeMap;

use bytes::Bytes;
use futures_util::future::try_join_all;

use super::{
    IndexTableError, key,
    repair::{AT_ONCE, RepairReport, Seen},
    stored,
    table::{Found, Indexed, TableInner},
};
use crate::{
    port::{PortError, PortErrorKind},
    store::{DeleteOptions, Key, Precondition, PutOptions, StoreError, Version, Write},
};

/// The number of entries that a repair has changed.
#[derive(Debug, Default)]
pub(super) struct Mended {
    added: u64,
    removed: u64,
    copied: u64,
}

impl RepairReport {
    pub(super) fn add(&mut self, mended: &Mended) {
        self.added += mended.added;
        self.removed += mended.removed;
        self.copied += mended.copied;
    }
}

/// The entry that a row has: its index, and its copy.
type Wanted = (usize, Option<Bytes>);

impl<V> TableInner<V> {
    /// Returns the number of entries that a row may have beside it: a batch that changes all of
    /// them has them twice, and the row.
    pub(super) fn most_beside(&self) -> usize {
        self.base.capabilities().max_batch().saturating_sub(1) / 2
    }

    /// Refuses more entries beside a row than its batch can have.
    pub(super) fn check_beside(&self, indexed: &Indexed) -> Result<(), PortError> {
        let (has, most) = (indexed.beside.len(), self.most_beside());
        if has <= most {
            return Ok(());
        }
        let rule = format_args!("must be one of at most {most} in the indexes beside a row, of {has}");
        Err(PortError::invalid("index key", rule))
    }

    /// Returns `true` for the row of an entry beside another row.
    pub(super) fn is_entry(&self, row: &str) -> bool {
        key::is_beside(row) && self.indexes.iter().any(|index| index.is_beside())
    }

    /// Refuses a row that an entry beside another row may be.
    pub(super) fn check_row(&self, row: &str) -> Result<(), PortError> {
        if !self.is_entry(row) {
            return Ok(());
        }
        let rule = format_args!("must not begin as entries beside rows do, with \"index/\", is {row:?}");
        Err(PortError::invalid("row", rule))
    }

    /// Returns the writes that the entries beside a row need, for a row that replaces another.
    pub(super) fn beside_writes(&self, had: &Indexed, wanted: &Indexed) -> Vec<Write> {
        let lost = had.beside.difference(&wanted.beside);
        let lost = lost.map(|entry| Write::delete(&*entry.row, DeleteOptions::new()));
        let is_kept = |nth: usize, is_there: bool| is_there && had.values[nth] == wanted.values[nth];
        let changed = wanted.beside.iter().filter(|entry| !is_kept(entry.index, had.beside.contains(entry)));
        let changed = changed.map(|entry| {
            let value = wanted.values[entry.index].clone().unwrap_or_else(|| stored::plain(None));
            Write::put(&*entry.row, value, PutOptions::new())
        });
        lost.chain(changed).collect()
    }

    /// Writes a row, and what is beside it.
    pub(super) async fn put_with(
        &self,
        key: Key<'_>,
        value: Bytes,
        options: PutOptions,
        beside: Vec<Write>,
    ) -> Result<Version, StoreError> {
        if beside.is_empty() {
            return self.ask(self.base.put(key, value, options)).await;
        }
        let mut writes = vec![Write::put(key.row, value, options)];
        writes.extend(beside);
        let versions = self.ask(self.base.batch(key.partition, writes)).await?;
        let missing = || PortError::new(PortErrorKind::Other, "index_table: a store returned no version of a row");
        Ok(versions.first().copied().flatten().ok_or_else(missing)?)
    }

    /// Mends those of these entries that are not as their rows want them. The entries were read
    /// before.
    pub(super) async fn sweep_beside(&self, partition: &str, entries: &[Seen]) -> Result<Mended, IndexTableError> {
        let mut by_row = BTreeMap::<&str, Vec<&Seen>>::new();
        for seen in entries {
            by_row.entry(&seen.row).or_default().push(seen);
        }
        let names: Vec<&str> = by_row.keys().copied().collect();
        let rows = self.named((&*self.base, partition), &names).await?;
        let mut wrong = Vec::new();
        for (row, entries) in by_row {
            // A row that does not decode may have them.
            let Ok(wanted) = self.wanted_beside(Key::new(partition, row), rows.get(row)) else { continue };
            let is_wrong = |seen: &&Seen| wanted.get(&seen.entry.row).is_none_or(|(_, copy)| *copy != seen.copy);
            wrong.extend(entries.into_iter().filter(is_wrong).map(|seen| (row, seen.entry.row.as_str())));
        }
        self.mend(partition, wrong.into_iter()).await
    }

    /// Brings entries in line with their rows. Each comes with its row.
    pub(super) async fn mend<'a>(
        &self,
        partition: &str,
        entries: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Result<Mended, IndexTableError> {
        let mut by_row = BTreeMap::<&str, Vec<&str>>::new();
        for (row, entry) in entries {
            by_row.entry(row).or_default().push(entry);
        }
        // A batch checks the row, too.
        let most = self.base.capabilities().max_batch() - 1;
        let parts: Vec<_> =
            by_row.iter().flat_map(|(row, all)| all.chunks(most).map(move |some| (*row, some))).collect();
        let mut mended = Mended::default();
        for some in parts.chunks(AT_ONCE) {
            let all = some.iter().map(|(row, entries)| self.mend_row(Key::new(partition, row), entries));
            for of_row in try_join_all(all).await? {
                mended.added += of_row.added;
                mended.removed += of_row.removed;
                mended.copied += of_row.copied;
            }
        }
        Ok(mended)
    }

    /// Brings entries in line with their row, as both are at one moment.
    async fn mend_row(&self, of: Key<'_>, entries: &[&str]) -> Result<Mended, IndexTableError> {
        loop {
            let names: Vec<&str> = entries.iter().copied().chain([of.row]).collect();
            let there = self.named((&*self.base, of.partition), &names).await?;
            let found = there.get(of.row);
            let Ok(wanted) = self.wanted_beside(of, found) else { return Ok(Mended::default()) };
            let read = found.map_or(Precondition::Absent, |found| Precondition::Version(found.version));
            let (mut writes, mut mended) = (vec![Write::check_row(of.row, read)], Mended::default());
            for name in entries {
                let put = |copy: &Option<Bytes>| Write::put(*name, stored::plain(copy.as_ref()), PutOptions::new());
                match (wanted.get(*name), there.get(name)) {
                    (Some((_, copy)), None) => {
                        writes.push(put(copy));
                        mended.added += 1;
                    }
                    (Some((nth, copy)), Some(entry))
                        if self.has_other_copy(*nth, name, &entry.value, copy.as_ref()) =>
                    {
                        writes.push(put(copy));
                        mended.copied += 1;
                    }
                    (None, Some(_)) => {
                        writes.push(Write::delete(*name, DeleteOptions::new()));
                        mended.removed += 1;
                    }
                    _ => {}
                }
            }
            if writes.len() == 1 {
                return Ok(mended);
            }
            match self.ask(self.base.batch(of.partition, writes)).await {
                Ok(_) => return Ok(mended),
                // The row is another one by now.
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Returns the entries beside a row, by their names.
    fn wanted_beside(&self, of: Key<'_>, found: Option<&Found>) -> Result<BTreeMap<String, Wanted>, IndexTableError> {
        let Some(bytes) = found.and_then(Found::live) else { return Ok(BTreeMap::new()) };
        let value = self.decode(of, bytes)?;
        let entries = self.possible_entries(of, &value).into_iter();
        let beside = entries.filter(|entry| self.indexes[entry.index].is_beside());
        Ok(beside.map(|entry| (entry.row, (entry.index, self.possible_copy(entry.index, of, &value)))).collect())
    }

    /// Returns `true` if an entry decodes, and its copy is another one.
    fn has_other_copy(&self, nth: usize, entry: &str, value: &Bytes, copy: Option<&Bytes>) -> bool {
        let has_copies = self.indexes[nth].copy.is_some();
        has_copies && stored::copy(entry, value.clone()).is_ok_and(|there| there.as_ref() != copy)
    }
}
