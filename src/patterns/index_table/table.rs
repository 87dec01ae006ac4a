//! The table: its component, and its writes.
use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::{join_all, try_join_all};

use super::{
    IndexKey, IndexTableConfig, IndexTableError, IndexTableEvent, key,
    stored::{self, is_deleted},
};
use crate::{
    build::{Builder, Common, Component, HasEntropy, HasEvents, HasName, debug_fields},
    codec::Codec,
    config::{ConfigError, Name},
    entropy::Entropy,
    observe::{Events, Subscription},
    port::{Capability, PortError, PortErrorKind, ask},
    store::{DeleteOptions, Key, Precondition, PutOptions, Scan, Store, StoreError, Version},
    time::Clock,
};

/// Time limit of one request to a store.
const ATTEMPT: Duration = Duration::from_secs(5);

/// Rows in a store, and indexes of them in others. The [module's page](super) has the details.
///
/// Clones share their state.
pub struct IndexTable<V>(pub(super) Arc<TableInner<V>>);

impl<V> Clone for IndexTable<V> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

debug_fields!([V] IndexTable<V>, |this| name: this.0.name, config: this.0.config, store: this.0.base);

type KeysOf<V> = dyn Fn(&V) -> Vec<IndexKey> + Send + Sync;
type CopyOf<V> = dyn Fn(&V) -> Bytes + Send + Sync;

pub(super) struct Index<V> {
    pub(super) name: Name,
    pub(super) store: Arc<dyn Store>,
    keys: Box<KeysOf<V>>,
    /// Part of a row that its entries have beside the place.
    pub(super) copy: Option<Box<CopyOf<V>>>,
    kind: Kind,
    /// `true` once this process has seen that it is built, and has noted the look-up.
    pub(super) is_served: AtomicBool,
}

/// The place of the entries of an index, and the rows that may have one key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Unique,
    /// In the partition of the row, and in the batch that writes it.
    Beside,
}

impl<V> Index<V> {
    pub(super) fn is_unique(&self) -> bool {
        self.kind == Kind::Unique
    }

    pub(super) fn is_beside(&self) -> bool {
        self.kind == Kind::Beside
    }
}

pub(super) struct TableInner<V> {
    name: Option<Name>,
    pub(super) base: Arc<dyn Store>,
    codec: Codec<V>,
    pub(super) config: IndexTableConfig,
    pub(super) indexes: Vec<Index<V>>,
    pub(super) clock: Clock,
    pub(super) entropy: Entropy,
    events: Events<IndexTableEvent>,
}

/// Arguments of a table, beside name and clock.
pub struct IndexTableSpec<V> {
    base: Arc<dyn Store>,
    codec: Codec<V>,
    config: IndexTableConfig,
    indexes: Vec<Index<V>>,
    copies: Vec<(String, Box<CopyOf<V>>)>,
}

impl<V> Builder<IndexTable<V>> {
    /// Adds an index in a store, by the keys that a row has. The function is pure: another one is
    /// another index, with another name. An index has its name for itself in its store.
    pub fn index(
        self,
        name: impl Into<Name>,
        store: Arc<dyn Store>,
        keys: impl Fn(&V) -> Vec<IndexKey> + Send + Sync + 'static,
    ) -> Self {
        self.with(name.into(), store, Box::new(keys), Kind::Plain)
    }

    /// Adds an index whose keys at most one row has. A row may have none.
    pub fn unique<K: Into<IndexKey>>(
        self,
        name: impl Into<Name>,
        store: Arc<dyn Store>,
        key: impl Fn(&V) -> Option<K> + Send + Sync + 'static,
    ) -> Self {
        let keys = move |value: &V| key(value).map(Into::into).into_iter().collect();
        self.with(name.into(), store, Box::new(keys), Kind::Unique)
    }

    /// Adds an index whose entries lie in the partition of their row, and are written in one batch
    /// with it. A look-up names that partition, by [`within`](super::Lookup::within). The store of
    /// the rows needs [`AtomicBatch`](Capability::AtomicBatch). The function is pure, as that of
    /// any index.
    pub fn beside(self, name: impl Into<Name>, keys: impl Fn(&V) -> Vec<IndexKey> + Send + Sync + 'static) -> Self {
        let base = self.spec.base.clone();
        self.with(name.into(), base, Box::new(keys), Kind::Beside)
    }

    /// Lets the entries of this index have a copy of a part of the row, which
    /// [`copies`](super::Lookup::copies) returns without reading rows. The function is pure: run a
    /// repair of all partitions once no process has a former one.
    pub fn copying<C: Into<Bytes>>(
        mut self,
        index: impl Into<String>,
        copy: impl Fn(&V) -> C + Send + Sync + 'static,
    ) -> Self {
        self.spec.copies.push((index.into(), Box::new(move |value| copy(value).into())));
        self
    }

    fn with(mut self, name: Name, store: Arc<dyn Store>, keys: Box<KeysOf<V>>, kind: Kind) -> Self {
        let is_served = AtomicBool::new(false);
        self.spec.indexes.push(Index { name, store, keys, copy: None, kind, is_served });
        self
    }
}

impl<V> Component for IndexTable<V> {
    type Built = Result<Self, ConfigError>;
    type Spec = IndexTableSpec<V>;

    fn assemble(spec: IndexTableSpec<V>, common: Common) -> Self::Built {
        let IndexTableSpec { base, codec, config, mut indexes, copies } = spec;
        config.check()?;
        let can = base.capabilities();
        if indexes.iter().any(Index::is_beside) {
            can.require(Capability::AtomicBatch).map_err(|lacks| lacks.refuse("store"))?;
            if can.max_batch() < 3 {
                let (backend, most) = (can.backend(), can.max_batch());
                let rule = format!("must take batches of 3 writes, of the backend `{backend}` one has {most} at most");
                return Err(ConfigError::new("store", rule));
            }
        }
        for needed in [Capability::Linearizable, Capability::TimeToLive] {
            can.require(needed).map_err(|lacks| lacks.refuse("store"))?;
        }
        let mut names = BTreeSet::new();
        for index in &indexes {
            let can = index.store.capabilities();
            can.require(Capability::Linearizable).map_err(|lacks| lacks.refuse("index"))?;
            let partition = key::partition_of(index.name.as_str(), "");
            if index.name.as_str().is_empty() || can.check_key("index", &partition).is_err() {
                let rule = format!("must have a name that is not too long for its store, is {:?}", index.name);
                return Err(ConfigError::new("index", rule));
            }
            if !names.insert(index.name.as_str()) {
                return Err(ConfigError::new("index", format!("must have a name of its own, {} is taken", index.name)));
            }
        }
        for (name, copy) in copies {
            let index = indexes.iter_mut().find(|index| index.name.as_str() == name && index.copy.is_none());
            let rule = || format!("must name an index of the table, and each once, is {name:?}");
            index.ok_or_else(|| ConfigError::new("copying", rule()))?.copy = Some(copy);
        }
        let (entropy, Common { name, clock, hooks, .. }) = (common.entropy(), common);
        let events = hooks.events();
        Ok(Self(Arc::new(TableInner { name, base, codec, config, indexes, clock, entropy, events })))
    }
}

impl<V> HasName for IndexTable<V> {}
impl<V> HasEntropy for IndexTable<V> {}
impl<V> HasEvents<IndexTableEvent> for IndexTable<V> {}

/// A row of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct IndexedRow<V> {
    /// The place of the row.
    pub key: super::RowKey,
    /// The value.
    pub value: V,
    /// The version of the row.
    pub version: Version,
}

impl<V> IndexTable<V> {
    /// Creates a builder of a table over the rows of a store. It may have rows already, and other
    /// rows beside those.
    ///
    /// Methods of [this builder alone](crate::Builder#impl-Builder%3CIndexTable%3CV%3E%3E):
    /// `index`, `unique`, `beside`, `copying`. `build` fails if two indexes have one name, if a
    /// store lacks [`Linearizable`](Capability::Linearizable), if that of the rows lacks
    /// [`TimeToLive`](Capability::TimeToLive), or [`AtomicBatch`](Capability::AtomicBatch) for an
    /// index `beside` its rows, or if a setting breaks a rule.
    pub fn builder(base: Arc<dyn Store>, codec: Codec<V>, config: IndexTableConfig) -> Builder<Self> {
        Builder::new(IndexTableSpec { base, codec, config, indexes: Vec::new(), copies: Vec::new() })
    }

    /// Returns a row.
    ///
    /// # Errors
    /// `Invalid` for a row key that an entry beside a row may have. Else an error of the store.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn get(&self, key: Key<'_>) -> Result<Option<IndexedRow<V>>, IndexTableError> {
        self.0.check_row(key.row).map_err(IndexTableError::Invalid)?;
        let Some(found) = self.0.read(key).await? else { return Ok(None) };
        let Some(bytes) = found.live() else { return Ok(None) };
        let value = self.0.decode(key, bytes)?;
        Ok(Some(IndexedRow { key: key.into(), value, version: found.version }))
    }

    /// Writes a whole row, and returns its version. From then on each of its keys finds it.
    ///
    /// # Errors
    /// [`Duplicate`](IndexTableError::Duplicate) if another row has a unique key of it,
    /// [`Conflict`](IndexTableError::Conflict) if the precondition does not hold, `Invalid` if an
    /// index has a key twice, or a key or a copy that is too long for its store, or the partition
    /// or the row key, or if the row has too many keys for its batch. A row that does not decode is
    /// an error, too, unless it is named by its version. Else an error of a store:
    /// [`Failure`](crate::port::Failure) tells whether the row may have been written.
    ///
    /// # Cancel safety
    /// The row is written as a whole or not at all. Stale entries may stay behind, which no look-up
    /// returns, and a repair removes.
    pub async fn put(&self, key: Key<'_>, value: &V, when: Precondition) -> Result<Version, IndexTableError> {
        let invalid = |error: crate::codec::CodecError| PortError::invalid("value", format_args!("{error}"));
        let bytes = self.0.codec.encode(value).map_err(|error| IndexTableError::Invalid(invalid(error)))?;
        if is_deleted(&bytes) {
            return Err(IndexTableError::Invalid(PortError::invalid("value", "must not be that of a deleted row")));
        }
        // Before entries are written for it.
        let can = self.0.base.capabilities();
        key.check(&can).map_err(IndexTableError::Invalid)?;
        self.0.check_partition(key.partition).map_err(IndexTableError::Invalid)?;
        self.0.check_row(key.row).map_err(IndexTableError::Invalid)?;
        can.check_value("value", &bytes).map_err(IndexTableError::Invalid)?;
        // The keys of what is stored, which look-ups see: the codec may leave something out.
        let stored = self.0.codec.decode(&bytes).map_err(|error| IndexTableError::Invalid(invalid(error)))?;
        let wanted = self.0.checked(key, &stored)?;
        match self.0.write(key, Some(bytes.into()), &wanted, when).await? {
            Some(version) => Ok(version),
            // Only a delete finds nothing to do.
            None => Err(IndexTableError::Conflict { current: None }),
        }
    }

    /// Deletes a row, and returns `true` if there was one. For `grace` a tombstone takes its place
    /// in the store.
    ///
    /// # Errors
    /// Same as [`put`](Self::put). A delete with [`Precondition::Absent`] is refused as invalid,
    /// because it could do nothing.
    ///
    /// # Cancel safety
    /// Same as [`put`](Self::put).
    pub async fn delete(&self, key: Key<'_>, when: Precondition) -> Result<bool, IndexTableError> {
        if when == Precondition::Absent {
            return Err(IndexTableError::Invalid(PortError::invalid("when", "must not be `Absent` for a delete")));
        }
        self.0.check_partition(key.partition).map_err(IndexTableError::Invalid)?;
        self.0.check_row(key.row).map_err(IndexTableError::Invalid)?;
        Ok(self.0.write(key, None, &self.0.nothing(), when).await?.is_some())
    }

    /// Subscribes to the events that follow.
    pub fn events(&self) -> Subscription<IndexTableEvent> {
        self.0.events.subscribe()
    }
}

/// A row as it was read: a value, or a tombstone.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) value: Bytes,
    pub(super) version: Version,
}

impl Found {
    /// Returns the value, unless the row is deleted.
    pub(super) fn live(&self) -> Option<&Bytes> {
        (!is_deleted(&self.value)).then_some(&self.value)
    }
}

/// Rows of a partition, in the order of their names.
pub(super) struct Named(Vec<(String, Found)>);

impl Named {
    pub(super) fn get(&self, row: &str) -> Option<&Found> {
        let at = self.0.binary_search_by(|(name, _)| name.as_str().cmp(row)).ok()?;
        Some(&self.0[at].1)
    }
}

/// An entry of an index: its place.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    /// Number of the index.
    pub(super) index: usize,
    pub(super) key: IndexKey,
    pub(super) partition: String,
    pub(super) row: String,
}

impl Entry {
    pub(super) fn as_key(&self) -> Key<'_> {
        Key::new(&self.partition, &self.row)
    }
}

/// The part of a row that the indexes have.
pub(super) struct Indexed {
    /// Entries in the stores of indexes.
    entries: BTreeSet<Entry>,
    /// Entries in the partition of the row.
    pub(super) beside: BTreeSet<Entry>,
    /// The value of an entry with its copy, by the number of the index; `None` for one without.
    pub(super) values: Vec<Option<Bytes>>,
}

impl<V> TableInner<V> {
    pub(super) fn send_event(&self, event: impl FnOnce() -> IndexTableEvent) {
        self.events.send(self.name.as_ref(), self.clock.now(), event);
    }

    /// Waits for the answer of a store.
    pub(super) async fn ask<T>(&self, request: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let answer = ask(&self.clock, ATTEMPT, request).await;
        answer.map_err(|error| error.or_timed_out("index_table: a store did not answer in time"))
    }

    pub(super) async fn read(&self, key: Key<'_>) -> Result<Option<Found>, IndexTableError> {
        let found = self.ask(self.base.get(key)).await?;
        Ok(found.map(|record| Found { value: record.value, version: record.version }))
    }

    pub(super) fn decode(&self, key: Key<'_>, value: &Bytes) -> Result<V, IndexTableError> {
        self.codec.decode(value).map_err(|error| {
            let message = format!("index_table: the row {key}: {error}");
            IndexTableError::Store(PortError::new(PortErrorKind::Corrupt, message))
        })
    }

    /// Returns the keys of a row in an index.
    pub(super) fn keys(&self, index: usize, value: &V) -> Vec<IndexKey> {
        (self.indexes[index].keys)(value)
    }

    fn all_entries(&self, of: Key<'_>, value: &V) -> Vec<Entry> {
        let entries = self.indexes.iter().enumerate().flat_map(|(nth, index)| {
            (index.keys)(value).into_iter().map(move |key| {
                let name = index.name.as_str();
                let (partition, row) = match index.kind {
                    Kind::Plain => (key::partition_of(name, key.first()), key::entry(&key, of)),
                    Kind::Unique => (key::partition_of(name, key.first()), key::unique_entry(&key)),
                    Kind::Beside => (of.partition.to_owned(), key::entry_beside(name, &key, of.row)),
                };
                Entry { index: nth, partition, row, key }
            })
        });
        entries.collect()
    }

    /// Refuses rows in a partition of an index of this table: their stores may be one.
    pub(super) fn check_partition(&self, partition: &str) -> Result<(), PortError> {
        match self.indexes.iter().find(|index| key::is_partition_of(index.name.as_str(), partition)) {
            Some(index) => {
                let rule = format_args!("must be none of the index {:?}, is {partition:?}", index.name);
                Err(PortError::invalid("partition", rule))
            }
            None => Ok(()),
        }
    }

    fn check_entry(&self, entry: &Entry) -> Result<(), PortError> {
        self.indexes[entry.index].store.capabilities().check_key("index key", &entry.row)
    }

    /// Returns the entries of a row. Refuses a key that an index has twice, or that is too long,
    /// a copy that is too large, and more keys than a batch can have.
    fn checked(&self, of: Key<'_>, value: &V) -> Result<Indexed, IndexTableError> {
        let (mut entries, values) = (BTreeSet::new(), self.values(of, value));
        for entry in self.all_entries(of, value) {
            self.check_entry(&entry).map_err(IndexTableError::Invalid)?;
            if let Some(value) = &values[entry.index] {
                let can = self.indexes[entry.index].store.capabilities();
                can.check_value("copy", value).map_err(IndexTableError::Invalid)?;
            }
            if entries.contains(&entry) {
                let index = &self.indexes[entry.index].name;
                let rule = format_args!("must be given once, {index:?} has {} twice", entry.key);
                return Err(IndexTableError::Invalid(PortError::invalid("index key", rule)));
            }
            entries.insert(entry);
        }
        let indexed = self.indexed(entries, values);
        self.check_beside(&indexed).map_err(IndexTableError::Invalid)?;
        Ok(indexed)
    }

    fn indexed(&self, entries: BTreeSet<Entry>, values: Vec<Option<Bytes>>) -> Indexed {
        let (beside, entries) = entries.into_iter().partition(|entry| self.indexes[entry.index].is_beside());
        Indexed { entries, beside, values }
    }

    fn nothing(&self) -> Indexed {
        self.indexed(BTreeSet::new(), vec![None; self.indexes.len()])
    }

    /// Returns the values of entries with copies of this row, by the number of the index.
    fn values(&self, of: Key<'_>, value: &V) -> Vec<Option<Bytes>> {
        let of_index = |nth| Some(self.value_of(nth, of, Some(&self.copy(nth, value)?)));
        (0..self.indexes.len()).map(of_index).collect()
    }

    /// Returns the copy that an index has of a row; `None` if it has none.
    pub(super) fn copy(&self, index: usize, value: &V) -> Option<Bytes> {
        self.indexes[index].copy.as_ref().map(|copy| copy(value))
    }

    /// Returns the copy that an entry of this row can have: a row that was written past the table
    /// may have one that is too large.
    pub(super) fn possible_copy(&self, index: usize, of: Key<'_>, value: &V) -> Option<Bytes> {
        let can = self.indexes[index].store.capabilities();
        let fits = |copy: &Bytes| can.check_value("copy", &self.value_of(index, of, Some(copy))).is_ok();
        self.copy(index, value).filter(fits)
    }

    /// Returns the value of an entry of a row.
    pub(super) fn value_of(&self, index: usize, of: Key<'_>, copy: Option<&Bytes>) -> Bytes {
        if self.indexes[index].is_unique() { stored::claim(of, copy) } else { stored::plain(copy) }
    }

    /// Returns the entries that a row of the store can have: it may have been written past the
    /// table.
    pub(super) fn possible_entries(&self, of: Key<'_>, value: &V) -> BTreeSet<Entry> {
        let entries = self.all_entries(of, value).into_iter().filter(|entry| self.check_entry(entry).is_ok());
        let (mut entries, mut beside) = (entries.collect::<BTreeSet<_>>(), 0);
        // The first ones, in the order that all processes have.
        entries.retain(|entry| {
            beside += usize::from(self.indexes[entry.index].is_beside());
            !self.indexes[entry.index].is_beside() || beside <= self.most_beside()
        });
        entries
    }

    /// Returns what a delete writes.
    pub(super) fn tombstone(&self) -> (Bytes, PutOptions) {
        (stored::tombstone(), PutOptions::new().ttl(self.config.grace))
    }

    /// Writes a row and its entries, or deletes it; `None` if there is nothing to delete.
    async fn write(
        &self,
        key: Key<'_>,
        value: Option<Bytes>,
        wanted: &Indexed,
        when: Precondition,
    ) -> Result<Option<Version>, IndexTableError> {
        // The entries that this call has written, or read, in all of its rounds. The call that has
        // won a round cannot delete what this one has rewritten since, or fill it in.
        let mut seen = BTreeMap::new();
        loop {
            let began = self.clock.now();
            let found = self.read(key).await?;
            let live = found.as_ref().and_then(|found| Some((found.live()?, found.version)));
            when.check(live.map(|(_, version)| version))?;
            let had = match live {
                Some((value, _)) => match self.decode(key, value) {
                    Ok(value) => self.indexed(self.possible_entries(key, &value), self.values(key, &value)),
                    // Its entries are stale from here on.
                    Err(_) if matches!(when, Precondition::Version(_)) => self.nothing(),
                    Err(error) => return Err(error),
                },
                // Another delete was first. A put that has written one of the entries before this
                // call has may be on its way.
                None if value.is_none() => {
                    if seen.is_empty() || self.touch(key, found.as_ref()).await? {
                        self.settle(seen, wanted).await;
                        return Ok(None);
                    }
                    continue;
                }
                None => self.nothing(),
            };
            // Before the row, and in each round anew: a repair deletes only versions that it has
            // seen before it touched the row. First of all, since a unique key may be refused.
            seen.extend(self.add(key, wanted.entries.difference(&had.entries)).await?);
            // Read behind the row. An entry that another put of this row writes from now on has
            // another version, and is neither deleted nor filled in below. An entry whose copy
            // changes has none from here on, so that no copy is older than the row.
            let is_kept =
                |entry: &Entry| wanted.entries.contains(entry) && had.values[entry.index] == wanted.values[entry.index];
            let changed = had.entries.iter().filter(|entry| !is_kept(entry));
            let cleared = try_join_all(changed.map(|entry| self.clear_copy(entry, key))).await?;
            seen.extend(cleared.into_iter().flatten());
            // A tombstone that has refused this put may be gone by now.
            if self.clock.now() - began > self.config.grace / 2 {
                continue;
            }
            let (value, options) = value.clone().map_or_else(|| self.tombstone(), |value| (value, PutOptions::new()));
            let read = found.as_ref().map_or(Precondition::Absent, |found| Precondition::Version(found.version));
            let beside = self.beside_writes(&had, wanted);
            match self.put_with(key, value, options.when(read), beside).await {
                Ok(version) => {
                    self.settle(seen, wanted).await;
                    return Ok(Some(version));
                }
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Deletes those of these entries that the row lacks, and fills in the copies of the others. An
    /// entry for which it fails is stale, or its copy is read from the row.
    async fn settle(&self, seen: BTreeMap<Entry, Version>, wanted: &Indexed) {
        let settles = seen.into_iter().map(async |(entry, version)| {
            if !wanted.entries.contains(&entry) {
                self.remove(&entry, version).await;
            } else if let Some(value) = &wanted.values[entry.index] {
                self.fill(&entry, version, value.clone()).await;
            }
        });
        join_all(settles).await;
    }

    /// Returns the version of an entry, if it is one of this row; from here on it has no copy. The
    /// claim of a unique key that this row has may be another row's: one of them was written past
    /// the table.
    async fn clear_copy(&self, entry: &Entry, of: Key<'_>) -> Result<Option<(Entry, Version)>, IndexTableError> {
        let index = &self.indexes[entry.index];
        if index.copy.is_some() && !index.is_unique() {
            return Ok(Some((entry.clone(), self.add_plain(entry, Precondition::Any).await?)));
        }
        loop {
            let found = self.ask(index.store.get(entry.as_key())).await?;
            let Some(found) = found.filter(|found| !index.is_unique() || stored::is_claim_of(of, &found.value)) else {
                return Ok(None);
            };
            if index.copy.is_none() {
                return Ok(Some((entry.clone(), found.version)));
            }
            let when = Precondition::Version(found.version).into();
            match self.ask(index.store.put(entry.as_key(), stored::claim(of, None), when)).await {
                Ok(version) => return Ok(Some((entry.clone(), version))),
                // Another put of this row has filled in its copy.
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Adds entries of a row without copies, and returns their versions: unique ones first, which
    /// may be refused.
    async fn add<'a>(
        &self,
        of: Key<'_>,
        entries: impl Iterator<Item = &'a Entry>,
    ) -> Result<Vec<(Entry, Version)>, IndexTableError> {
        let (unique, plain): (Vec<_>, Vec<_>) = entries.partition(|entry| self.indexes[entry.index].is_unique());
        // One after the other, in the order that all rows have: of two that want the same keys, the
        // first one to claim gets the others, too.
        let mut added = Vec::new();
        for entry in unique {
            added.push((entry.clone(), self.claim(entry, of).await?));
        }
        let adds = plain.into_iter().map(async |entry| {
            Ok::<_, IndexTableError>((entry.clone(), self.add_plain(entry, Precondition::Any).await?))
        });
        added.extend(try_join_all(adds).await?);
        Ok(added)
    }

    pub(super) async fn add_plain(&self, entry: &Entry, when: Precondition) -> Result<Version, IndexTableError> {
        let store = &self.indexes[entry.index].store;
        Ok(self.ask(store.put(entry.as_key(), stored::plain(None), when.into())).await?)
    }

    /// Replaces the value of this version of an entry. Returns `true` if it did.
    pub(super) async fn fill(&self, entry: &Entry, version: Version, value: Bytes) -> bool {
        let (store, when) = (&self.indexes[entry.index].store, Precondition::Version(version));
        self.ask(store.put(entry.as_key(), value, when.into())).await.is_ok()
    }

    /// Deletes this version of an entry. Returns `true` if it did.
    pub(super) async fn remove(&self, entry: &Entry, version: Version) -> bool {
        let (store, when) = (&self.indexes[entry.index].store, Precondition::Version(version));
        matches!(self.ask(store.delete(entry.as_key(), DeleteOptions::new().when(when))).await, Ok(true))
    }

    /// Replaces a row by itself, so that no put that has read it before can still be accepted;
    /// where there is none, by a tombstone. Returns `false` if it is another one by now.
    pub(super) async fn touch(&self, key: Key<'_>, found: Option<&Found>) -> Result<bool, IndexTableError> {
        let (value, options) = match found {
            Some(found) if found.live().is_some() => (found.value.clone(), PutOptions::new()),
            _ => self.tombstone(),
        };
        let when = found.map_or(Precondition::Absent, |found| Precondition::Version(found.version));
        match self.ask(self.base.put(key, value, options.when(when))).await {
            Ok(_) => Ok(true),
            Err(StoreError::Conflict { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns these rows of a partition, as of one moment for each batch of them.
    pub(super) async fn named(
        &self,
        (store, partition): (&dyn Store, &str),
        rows: &[&str],
    ) -> Result<Named, IndexTableError> {
        let pages = rows.chunks(store.capabilities().max_batch()).map(async |names| {
            let scan = Scan::partition(partition).named(names.iter().copied());
            Ok::<_, IndexTableError>(self.ask(store.scan(&scan)).await?.rows)
        });
        let pages = try_join_all(pages).await?.into_iter().flatten();
        let mut rows: Vec<_> = pages.map(|row| (row.row, Found { value: row.value, version: row.version })).collect();
        rows.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        Ok(Named(rows))
    }
}
