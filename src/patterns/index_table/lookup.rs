//! Look-ups by the key of an index.
use std::{collections::BTreeMap, sync::atomic::Ordering::Relaxed};

use bytes::Bytes;
use futures_util::future::try_join_all;

use super::{
    IndexKey, IndexTable, IndexTableError, IndexTableEvent, IndexedRow, RowKey, key,
    stored::{self, STATE, State, state_partition},
    table::{Found, Index, Named, TableInner},
};
use crate::{
    port::PortError,
    store::{Continuation, Key, Precondition, Scan, Version},
};

/// A query of an index, by [`IndexTable::lookup`].
#[must_use = "a look-up does nothing before `rows`, `copies` or `keys`"]
#[derive(Debug)]
pub struct Lookup<'a, V> {
    table: &'a IndexTable<V>,
    index: String,
    first: String,
    prefix: String,
    /// The partition of the rows, for an index beside them.
    within: Option<String>,
    limit: usize,
    after: Option<Continuation>,
}

/// A page of a look-up.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct IndexPage<T> {
    /// Rows, or their places, in the order of the second part of the key. There may be fewer than
    /// the limit, or none, although more follow.
    pub rows: Vec<T>,
    /// Token of the next page; `None` after the last one.
    pub next: Option<Continuation>,
    /// Number of entries that were left out, because their rows no longer have the key.
    pub stale: u64,
    /// Rows that were left out, because they do not decode, and their versions. A put or a delete
    /// with [`Precondition::Version`] replaces such a row.
    pub unreadable: Vec<(RowKey, Version)>,
}

/// The copy of a part of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct IndexedCopy {
    /// The place of the row.
    pub key: RowKey,
    /// The copy, as the function of the index made it.
    pub copy: Bytes,
}

/// An entry that a look-up has found.
struct Hit {
    key: IndexKey,
    of: RowKey,
    /// The copy of the row; `None` if the entry has none, or the index.
    copy: Option<Bytes>,
}

impl<V> IndexTable<V> {
    /// Looks up the rows that have a key with this first part, by this index.
    pub fn lookup(&self, index: impl Into<String>, first: impl Into<String>) -> Lookup<'_, V> {
        let (index, first, prefix) = (index.into(), first.into(), String::new());
        Lookup { table: self, index, first, prefix, within: None, limit: 100, after: None }
    }
}

impl<V> Lookup<'_, V> {
    /// Limits the look-up to keys whose second part has this prefix.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Names the partition of the rows. An index that lies [beside](IndexTable::builder) its rows
    /// is looked up in one partition, and no other index is.
    pub fn within(mut self, partition: impl Into<String>) -> Self {
        self.within = Some(partition.into());
        self
    }

    /// Sets the maximum number of entries of a page. 100 by default; the store may return fewer.
    pub fn limit(mut self, entries: usize) -> Self {
        self.limit = entries;
        self
    }

    /// Continues behind the end of a page.
    pub fn after(mut self, page: Continuation) -> Self {
        self.after = Some(page);
        self
    }

    /// Returns the rows that have the key, each as of the moment at which it was read. It is one
    /// request to the index, and one for each partition of the rows. A row with several such keys
    /// comes once for each.
    ///
    /// # Errors
    /// [`Building`](IndexTableError::Building) before the index has all rows, `Invalid` for an
    /// unknown index, or if [`within`](Self::within) is missing, or is not for the index. Else an
    /// error of a store.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn rows(self) -> Result<IndexPage<IndexedRow<V>>, IndexTableError> {
        let (nth, hits, next) = self.hits().await?;
        let found = |of: RowKey, value, version| IndexedRow { key: of, value, version };
        self.table.0.page_of(nth, hits, next, Of::Row, found).await
    }

    /// Returns the copies that an index with [`copying`](IndexTable::builder) has of the rows with
    /// the key. It is one request to the index. Rows of which an entry has no copy are read as by
    /// [`rows`](Self::rows), with one request for each partition of them: a put of such a row is
    /// under way, or has failed, or was refused. A repair fills their copies in.
    ///
    /// # Errors
    /// Same as [`rows`](Self::rows), and `Invalid` for an index without copies.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn copies(self) -> Result<IndexPage<IndexedCopy>, IndexTableError> {
        let inner = &*self.table.0;
        let nth = inner.index_named(&self.index)?;
        let Some(copy) = &inner.indexes[nth].copy else {
            let rule = format_args!("must be one with copies, is {:?}", self.index);
            return Err(IndexTableError::Invalid(PortError::invalid("index", rule)));
        };
        let (nth, hits, next) = self.hits().await?;
        let of_entry = |hit: Hit| match hit.copy {
            Some(copy) => Of::Entry(IndexedCopy { key: hit.of, copy }),
            None => Of::Row(hit),
        };
        let of_row = |of: RowKey, value: V, _| IndexedCopy { key: of, copy: copy(&value) };
        inner.page_of(nth, hits, next, of_entry, of_row).await
    }

    /// Returns the places of the rows, as the index has them: some of the rows may no longer have
    /// the key. It is one request.
    ///
    /// # Errors
    /// Same as [`rows`](Self::rows).
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn keys(self) -> Result<IndexPage<RowKey>, IndexTableError> {
        let (_, hits, next) = self.hits().await?;
        let rows = hits.into_iter().map(|hit| hit.of).collect();
        Ok(IndexPage { rows, next, stale: 0, unreadable: Vec::new() })
    }

    /// Returns the number of the index, and a page of its entries.
    async fn hits(&self) -> Result<(usize, Vec<Hit>, Option<Continuation>), IndexTableError> {
        let inner = &*self.table.0;
        let nth = inner.index_named(&self.index)?;
        let index = &inner.indexes[nth];
        let (name, prefix) = (index.name.as_str(), key::prefix(&self.first, &self.prefix));
        let mut scan = match (index.is_beside(), &self.within) {
            (false, None) => Scan::partition(key::partition_of(name, &self.first)).prefix(prefix),
            (true, Some(within)) => {
                index.store.capabilities().check_key("within", within).map_err(IndexTableError::Invalid)?;
                Scan::partition(within).prefix(key::beside(name) + &prefix)
            }
            (is_beside, _) => {
                let rule = match is_beside {
                    true => format_args!("must name the partition of the rows: {name:?} lies beside them"),
                    false => format_args!("must be left out: {name:?} does not lie beside its rows"),
                };
                return Err(IndexTableError::Invalid(PortError::invalid("within", rule)));
            }
        };
        inner.check_served(index).await?;
        (scan.limit, scan.after) = (self.limit, self.after.clone());
        let page = inner.ask(index.store.scan(&scan)).await?;
        let hits = page.rows.into_iter().map(|row| {
            let damaged = || stored::damaged(&row.row);
            let (key, of) = inner.parse(nth, Key::new(&scan.partition, &row.row)).ok_or_else(damaged)?;
            let (of, copy) = inner.owner_and_copy(nth, of, &row.row, row.value)?;
            Ok(Hit { key, of, copy })
        });
        let hits: Result<Vec<_>, PortError> = hits.collect();
        Ok((nth, hits.map_err(IndexTableError::Store)?, page.next))
    }
}

/// A hit that is a result by itself, or one whose row is to be read.
enum Of<T> {
    Entry(T),
    Row(Hit),
}

impl<V> TableInner<V> {
    /// Returns the number of the index with this name.
    fn index_named(&self, name: &str) -> Result<usize, IndexTableError> {
        self.indexes.iter().position(|index| index.name.as_str() == name).ok_or_else(|| {
            IndexTableError::Invalid(PortError::invalid("index", format_args!("must be one of the table, is {name:?}")))
        })
    }

    /// Splits the place of an entry of an index into the key, and the row of the table if it is
    /// named.
    pub(super) fn parse(&self, index: usize, entry: Key<'_>) -> Option<(IndexKey, Option<RowKey>)> {
        let index = &self.indexes[index];
        if !index.is_beside() {
            return key::parse(entry.row);
        }
        key::parse_beside(index.name.as_str(), entry).map(|(key, of)| (key, Some(of)))
    }

    /// Returns the row of an entry and its copy of it. `of` is the row that its name has.
    pub(super) fn owner_and_copy(
        &self,
        index: usize,
        of: Option<RowKey>,
        entry: &str,
        value: Bytes,
    ) -> Result<(RowKey, Option<Bytes>), PortError> {
        let (of, copy) = match of {
            // Without copies the name has all.
            Some(of) if self.indexes[index].copy.is_none() => (of, None),
            Some(of) => (of, stored::copy(entry, value)?),
            None => stored::owner(entry, value)?,
        };
        // A store would refuse to read it, and all other rows with it.
        of.as_key().check(&self.base.capabilities()).map_err(|_| stored::damaged(entry))?;
        Ok((of, copy))
    }

    /// Returns a page: of each entry by itself, or of the row that it names, if that has the key.
    async fn page_of<T>(
        &self,
        nth: usize,
        hits: Vec<Hit>,
        next: Option<Continuation>,
        of_entry: impl Fn(Hit) -> Of<T>,
        of_row: impl Fn(RowKey, V, Version) -> T,
    ) -> Result<IndexPage<T>, IndexTableError> {
        let hits: Vec<Of<T>> = hits.into_iter().map(of_entry).collect();
        let mut partitions = BTreeMap::<&str, Vec<&str>>::new();
        for of in &hits {
            let Of::Row(hit) = of else { continue };
            partitions.entry(&hit.of.partition).or_default().push(&hit.of.row);
        }
        let reads = partitions.into_iter().map(async |(partition, mut rows)| {
            // A row has several entries if several of its keys are looked up.
            rows.sort_unstable();
            rows.dedup();
            Ok::<_, IndexTableError>((partition.to_owned(), self.named((&*self.base, partition), &rows).await?))
        });
        let read: BTreeMap<String, Named> = try_join_all(reads).await?.into_iter().collect();
        let (mut rows, mut stale, mut unreadable) = (Vec::new(), 0, Vec::new());
        for of in hits {
            let hit = match of {
                Of::Entry(found) => {
                    rows.push(found);
                    continue;
                }
                Of::Row(hit) => hit,
            };
            let row = read.get(&hit.of.partition).and_then(|rows| rows.get(&hit.of.row));
            match self.row_with((nth, &hit.key), hit.of.as_key(), row) {
                Ok(Some((value, version))) => rows.push(of_row(hit.of, value, version)),
                Ok(None) => stale += 1,
                Err(_) => unreadable.extend(row.map(|row| (hit.of, row.version))),
            }
        }
        if stale > 0 {
            let index = self.indexes[nth].name.to_string();
            self.send_event(|| IndexTableEvent::StaleEntries { index, entries: stale });
        }
        unreadable.sort_unstable();
        unreadable.dedup();
        Ok(IndexPage { rows, next, stale, unreadable })
    }

    /// Returns the row if it has this key of an index.
    pub(super) fn row_with(
        &self,
        (index, key): (usize, &IndexKey),
        of: Key<'_>,
        found: Option<&Found>,
    ) -> Result<Option<(V, Version)>, IndexTableError> {
        let Some((bytes, version)) = found.and_then(|found| Some((found.live()?, found.version))) else {
            return Ok(None);
        };
        let value = self.decode(of, bytes)?;
        let has_it = self.keys(index, &value).contains(key);
        Ok(has_it.then_some((value, version)))
    }

    pub(super) async fn state(&self, index: &Index<V>) -> Result<(State, Precondition), IndexTableError> {
        let partition = state_partition(index.name.as_str());
        match self.ask(index.store.get(Key::new(&partition, STATE))).await? {
            Some(found) => {
                let state = State::decode(index.name.as_str(), found.value).map_err(IndexTableError::Store)?;
                Ok((state, Precondition::Version(found.version)))
            }
            None => Ok((State::default(), Precondition::Absent)),
        }
    }

    pub(super) async fn put_state(
        &self,
        index: &Index<V>,
        state: State,
        when: Precondition,
    ) -> Result<(), IndexTableError> {
        let partition = state_partition(index.name.as_str());
        self.ask(index.store.put(Key::new(&partition, STATE), state.encode(), when.into())).await?;
        Ok(())
    }

    /// Checks that an index has all rows, and notes that it is looked up: once in a process.
    async fn check_served(&self, index: &Index<V>) -> Result<(), IndexTableError> {
        if index.is_served.load(Relaxed) {
            return Ok(());
        }
        let (state, when) = self.state(index).await?;
        if !state.is_built {
            return Err(IndexTableError::Building { index: index.name.to_string() });
        }
        if !state.is_looked_up {
            // Another process may have noted it. A note that is lost is made by the next process.
            let _ = self.put_state(index, State { is_looked_up: true, ..state }, when).await;
        }
        index.is_served.store(true, Relaxed);
        Ok(())
    }
}
