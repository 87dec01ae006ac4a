//! An index table under seeded schedules: three writers and a repair, requests that come late, twice, or not at all, processes
//! that die or stand still. At any moment each row has its entries, one row at most has a unique key, and each copy is that of
//! the row. The entries beside a row are those of the row, and no others. With a guard taken out this is violated. Without faults
//! no entry is stale at the end, or without its copy.
use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Waker},
    time::Duration,
};

use bytes::Bytes;
use futures::future::join_all;
use serde::{Deserialize, Serialize};
use steadfast::{
    codec::Codec,
    entropy::Entropy,
    index_table::{IndexKey, IndexTable, IndexTableConfig, IndexTableError, RepairReport, is_deleted},
    store::{
        DeleteOptions, InMemoryStore, Key, Page, Precondition, PutOptions, Row, Scan, Store, StoreError, StoreExt,
        StoreFuture, Version, Write,
    },
    testing::faults::{FaultClient, FaultConfig, FaultNetwork, for_each_seed},
    time::{Clock, ManualClock, block_on},
};

use super::services::{self, Strikes};

const MS: fn(u64) -> Duration = Duration::from_millis;
const WRITERS: usize = 3;
const ROWS: u64 = 3;
const KEYS: u64 = 2;
const NUMBERS: u64 = 2;
const PARTITION: &str = "p";
/// Longest delay of a slow request, in milliseconds.
const SLOW: u64 = 80;
/// The indexes with copies, by their stores, and the length of an entry of each that has no copy.
const COPYING: [(usize, &str, usize); 2] = [(1, "by-key", 1), (2, "by-number", 5)];

/// The guard that is taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    /// Nobody touches a row before it deletes an entry, or takes over a unique key.
    Touch,
    /// A put writes its entries behind the row.
    Order,
    /// An entry is deleted whatever its version is.
    Version,
    /// A put leaves the copy in an entry while it writes the row.
    Copy,
    /// A copy is filled in whatever the version of the entry is.
    Fill,
    /// The entries beside a row are written one by one, behind it.
    Batch,
    /// A repair checks no row whose entries beside it it writes.
    Check,
}

/// Requests that are on their way for long in a schedule, so that others come in between; there all else is fast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slow {
    /// None of them more than the others.
    Nothing,
    /// Writes of rows, behind their entries.
    Rows,
    /// Deletions of entries.
    Deletions,
    /// Copies that are filled in.
    Fills,
    /// Entries beside a row that a repair writes.
    Mends,
}

/// How often requests of processes meet.
#[derive(Debug, Clone, Copy)]
struct Pace {
    slow: Slow,
    /// Number of rows that are written.
    rows: u64,
    /// Longest times between two writes of a process, and between two repairs.
    rests: [u64; 2],
    /// Latencies, of which a schedule has one.
    latencies: [u64; 3],
    /// Time that a schedule lasts. All are milliseconds.
    lasts: u64,
}

impl Pace {
    const EVEN: Self = Self { slow: Slow::Nothing, rows: ROWS, rests: [20, 60], latencies: [0, 5, 40], lasts: 3_000 };

    const fn with_slow(slow: Slow, rows: u64) -> Self {
        Self { slow, rows, rests: [5, 5], latencies: [0, 2, 5], lasts: 400 }
    }

    /// One schedule of five is even.
    fn of(seed: u64) -> Self {
        match seed / 4 % 5 {
            0 => Self::EVEN,
            1 => Self::with_slow(Slow::Rows, 2),
            2 => Self::with_slow(Slow::Deletions, 2),
            3 => Self::with_slow(Slow::Fills, 1),
            _ => Self::with_slow(Slow::Mends, ROWS),
        }
    }
}

/// A row, with a number of its own, so that no put writes what is there.
#[derive(Debug, Serialize, Deserialize)]
struct Thing {
    nth: u64,
    keys: Vec<u64>,
    number: Option<u64>,
    /// Another unique key.
    name: Option<u64>,
}

fn json<T: Serialize + for<'a> Deserialize<'a> + 'static>() -> Codec<T> {
    Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes))
}

type Entries = Vec<(Arc<dyn Store>, String, String, Bytes)>;

/// A store as a process uses it, with its slow requests, and without a guard.
#[derive(Debug)]
struct Careless {
    store: Arc<dyn Store>,
    without: Without,
    is_base: bool,
    /// Length of an entry without its copy, in the store of an index that has copies.
    bare: Option<usize>,
    /// Entries that wait for the row.
    late: Arc<Mutex<Entries>>,
    slow: Slow,
    clock: Clock,
    entropy: Entropy,
    /// The store as it is without the network.
    beside: Arc<dyn Store>,
}

impl Careless {
    /// Returns `true` for an entry with its copy.
    fn is_fill(&self, value: &Bytes) -> bool {
        self.bare.is_some_and(|bare| value.len() > bare)
    }

    /// Waits before a slow request.
    async fn delay(&self, of: Slow) {
        if self.slow == of {
            self.clock.sleep(MS(self.entropy.up_to(SLOW))).await;
        }
    }
}

impl Store for Careless {
    forward_store! { store: capabilities, get }

    fn scan<'a>(&'a self, scan: &'a Scan) -> StoreFuture<'a, Page> {
        Box::pin(async move {
            // Most partitions of an index are empty. A repair that waits for each of them meets few writers.
            if self.slow != Slow::Nothing {
                let page = self.beside.scan(scan).await?;
                if page.rows.is_empty() {
                    return Ok(page);
                }
            }
            self.store.scan(scan).await
        })
    }

    fn batch<'a>(&'a self, partition: &'a str, mut writes: Vec<Write>) -> StoreFuture<'a, Vec<Option<Version>>> {
        Box::pin(async move {
            let is_mend = writes.iter().any(|write| matches!(write, Write::Check { .. }));
            self.delay(if is_mend { Slow::Mends } else { Slow::Rows }).await;
            if self.without == Without::Check {
                writes.retain(|write| !matches!(write, Write::Check { .. }));
            }
            if self.without != Without::Batch {
                let late = std::mem::take(&mut *self.late.lock().unwrap());
                let versions = self.store.batch(partition, writes).await?;
                write_late(late).await?;
                return Ok(versions);
            }
            let mut versions = Vec::new();
            for write in writes {
                versions.push(match write {
                    Write::Put { row, value, options } => {
                        Some(self.store.put(Key::new(partition, &row), value, options).await?)
                    }
                    Write::Delete { row, options } => {
                        self.store.delete(Key::new(partition, &row), options).await?;
                        None
                    }
                    Write::Check { row, when } => {
                        when.check(self.store.get(Key::new(partition, &row)).await?.map(|found| found.version))?;
                        None
                    }
                    other => unreachable!("{other:?}"),
                });
            }
            Ok(versions)
        })
    }

    fn put<'a>(&'a self, key: Key<'a>, value: Bytes, mut options: PutOptions) -> StoreFuture<'a, Version> {
        Box::pin(async move {
            match self.without {
                Without::Touch if self.is_base => {
                    let found = self.store.get(key).await?;
                    let same = found.as_ref().filter(|found| found.value == value).map(|found| found.version);
                    let is_touch = match options.when {
                        Precondition::Version(version) => same == Some(version),
                        _ => found.is_none() && is_deleted(&value),
                    };
                    if is_touch {
                        return Ok(same.unwrap_or(Version::new(0)));
                    }
                }
                Without::Order if !self.is_base && options.when == Precondition::Any => {
                    let late = (self.store.clone(), key.partition.to_owned(), key.row.to_owned(), value);
                    self.late.lock().unwrap().push(late);
                    return Ok(Version::new(0));
                }
                Without::Order if self.is_base => {
                    let late = std::mem::take(&mut *self.late.lock().unwrap());
                    let version = self.store.put(key, value, options).await?;
                    write_late(late).await?;
                    return Ok(version);
                }
                Without::Copy if self.bare == Some(value.len()) => {
                    if let Some(found) = self.store.get(key).await? {
                        let may = [Precondition::Any, Precondition::Version(found.version)].contains(&options.when);
                        if may && found.value.starts_with(&value) {
                            return Ok(found.version);
                        }
                    }
                }
                Without::Fill if self.is_fill(&value) => options.when = Precondition::Any,
                _ => {}
            }
            if self.is_base {
                self.delay(Slow::Rows).await;
            } else if self.is_fill(&value) {
                self.delay(Slow::Fills).await;
            }
            self.store.put(key, value, options).await
        })
    }

    fn delete<'a>(&'a self, key: Key<'a>, options: DeleteOptions) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            self.delay(Slow::Deletions).await;
            let is_careless = self.without == Without::Version && !self.is_base;
            self.store.delete(key, if is_careless { options.when(Precondition::Any) } else { options }).await
        })
    }
}

/// Writes the entries that have waited for the row.
async fn write_late(late: Entries) -> Result<(), StoreError> {
    for (store, partition, row, value) in late {
        store.put(Key::new(&partition, &row), value, PutOptions::new()).await?;
    }
    Ok(())
}

type Node = Pin<Box<dyn Future<Output = ()>>>;

struct World {
    clock: Clock,
    time: ManualClock,
    entropy: Entropy,
    network: FaultNetwork,
    /// The rows, the entries by key, and those by number and by name.
    stores: [Arc<dyn Store>; 4],
    without: Without,
    pace: Pace,
    /// Number of names. Every second schedule has none, and no control: more puts are refused
    /// with them.
    names: u64,
    /// Number of different copies of a row.
    copies: u64,
    violations: Vec<String>,
    errors: Arc<Mutex<Vec<String>>>,
    puts: Arc<Mutex<u64>>,
    is_built: bool,
}

struct Lived {
    violations: Vec<String>,
    puts: u64,
    removed: u64,
}

impl World {
    fn new(seed: u64, without: Without) -> Self {
        let (clock, time) = Clock::manual();
        let entropy = Entropy::from_seed(seed);
        let pace = Pace::of(seed);
        let network = services::network(&entropy, pace.latencies, &clock);
        let stores = [(); 4].map(|()| Arc::new(InMemoryStore::builder().clock(&clock).build()) as Arc<dyn Store>);
        // Rows that are there before, with numbers of their own.
        for nth in 0..ROWS {
            let thing = Thing { nth, keys: vec![nth % KEYS], number: Some(100 + nth), name: None };
            let value = json().encode(&thing).unwrap();
            block_on(stores[0].insert(Key::new(PARTITION, &nth.to_string()), value)).unwrap();
        }
        let (violations, errors, puts) = (Vec::new(), Arc::default(), Arc::default());
        let names = if without == Without::Nothing { seed % 2 * NUMBERS } else { 0 };
        // Copies that come again, in every second pair of schedules. In a control they would hide violations.
        let copies = if without == Without::Nothing && seed % 4 < 2 { 2 } else { u64::MAX };
        let is_built = false;
        Self { clock, time, entropy, network, stores, without, pace, names, copies, violations, errors, puts, is_built }
    }

    /// The table as a process has it, behind the network or beside the stores.
    fn table(&self, client: Option<&FaultClient>) -> IndexTable<Thing> {
        let late = Arc::<Mutex<Entries>>::default();
        let (without, slow) =
            if client.is_some() { (self.without, self.pace.slow) } else { (Without::Nothing, Slow::Nothing) };
        let store = |nth: usize| {
            let beside = self.stores[nth].clone();
            let store = client.map_or(beside.clone(), |client| client.store(beside.clone()));
            let bare = COPYING.iter().find(|(store, ..)| *store == nth).map(|(.., bare)| *bare);
            let (clock, entropy) = (self.clock.clone(), Entropy::from_seed(self.entropy.next_u64()));
            let (is_base, late) = (nth == 0, late.clone());
            Arc::new(Careless { store, without, is_base, bare, late, slow, clock, entropy, beside }) as Arc<dyn Store>
        };
        // In a control others take over while a put is often on its way.
        let patience = if self.without == Without::Nothing { MS(40) } else { MS(5) };
        let config = IndexTableConfig::default().patience(patience).page(2);
        let copies = self.copies;
        let copy = move |thing: &Thing| (thing.nth % copies).to_string();
        IndexTable::builder(store(0), json(), config)
            .index("by-key", store(1), |thing: &Thing| {
                thing.keys.iter().map(|key| key.to_string().as_str().into()).collect()
            })
            .beside("beside", |thing: &Thing| thing.keys.iter().map(|key| key.to_string().as_str().into()).collect())
            .copying("beside", copy)
            .copying("by-key", copy)
            .copying("by-number", copy)
            .unique("by-number", store(2), |thing: &Thing| {
                thing.number.map(|number| IndexKey::from(number.to_string()))
            })
            .unique("by-name", store(3), |thing: &Thing| thing.name.map(|name| IndexKey::from(name.to_string())))
            .clock(&self.clock)
            .entropy(&Entropy::from_seed(self.entropy.next_u64()))
            .build()
            .unwrap()
    }

    /// A process that begins anew, until it dies.
    fn node(&self, nth: usize, client: &FaultClient) -> Node {
        let (table, clock, names) = (self.table(Some(client)), self.clock.clone(), self.names);
        // Puts that are not refused meet late deletions more often.
        let numbers = if self.without == Without::Version { 0 } else { NUMBERS };
        let Pace { rows, rests: [rest, until_repair], .. } = self.pace;
        let (entropy, errors, puts) =
            (Entropy::from_seed(self.entropy.next_u64()), self.errors.clone(), self.puts.clone());
        Box::pin(async move {
            if nth == WRITERS {
                while table.build_indexes([PARTITION]).await.is_err() {
                    clock.sleep(MS(5)).await;
                }
                loop {
                    let _ = table.repair(PARTITION).await;
                    clock.sleep(MS(entropy.up_to(until_repair))).await;
                }
            }
            loop {
                clock.sleep(MS(entropy.up_to(rest))).await;
                let row = entropy.up_to(rows - 1).to_string();
                let key = Key::new(PARTITION, &row);
                let written = if entropy.up_to(4) == 0 {
                    table.delete(key, Precondition::Any).await.map(drop)
                } else {
                    let number = entropy.up_to(NUMBERS * 2);
                    let keys = (0..KEYS).filter(|_| entropy.up_to(1) == 0).collect();
                    let number = (number < numbers).then_some(number);
                    let name = Some(entropy.up_to(NUMBERS * 2)).filter(|name| *name < names);
                    let thing = Thing { nth: entropy.next_u64(), keys, number, name };
                    table.put(key, &thing, Precondition::Any).await.map(drop)
                };
                match written {
                    Ok(()) => *puts.lock().unwrap() += 1,
                    Err(IndexTableError::Store(_) | IndexTableError::Duplicate { .. }) => {}
                    Err(error) => errors.lock().unwrap().push(format!("a write ended: {error}")),
                }
            }
        })
    }

    /// The rows that an index has under a key.
    fn entries(&self, reader: &IndexTable<Thing>, index: &str, key: u64) -> Option<BTreeSet<String>> {
        match block_on(reader.lookup(index, key.to_string()).keys()) {
            Ok(page) => Some(page.rows.into_iter().map(|found| found.row).collect()),
            Err(IndexTableError::Building { .. }) if !self.is_built => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// The copies that an index has under a key.
    fn copies(&self, reader: &IndexTable<Thing>, index: &str, key: u64) -> BTreeMap<String, String> {
        let page = block_on(reader.lookup(index, key.to_string()).copies()).unwrap();
        let text = |copy: Bytes| String::from_utf8(copy.to_vec()).unwrap();
        page.rows.into_iter().map(|found| (found.key.row, text(found.copy))).collect()
    }

    /// Compares all rows with all entries, as of this moment. At the end there are no others.
    fn look(&mut self, reader: &IndexTable<Thing>, is_end: bool) {
        let rows = block_on(self.stores[0].scan_all(Scan::partition(PARTITION))).unwrap();
        let (beside, rows): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.row.starts_with("index/"));
        let rows = rows.into_iter().filter(|row| !is_deleted(&row.value));
        let rows: Vec<(String, Thing)> = rows.map(|row| (row.row, json().decode(&row.value).unwrap())).collect();
        let having = |has: &dyn Fn(&Thing) -> bool| -> BTreeSet<String> {
            rows.iter().filter(|(_, thing)| has(thing)).map(|(row, _)| row.clone()).collect()
        };
        let lack = self.look_beside(&rows, beside);
        let (mut found, numbers) = (Vec::new(), (0..NUMBERS).chain(100..100 + ROWS));
        let keys = (0..KEYS).map(|key| ("by-key", key));
        let unique = numbers.map(|number| ("by-number", number)).chain((0..NUMBERS).map(|name| ("by-name", name)));
        for (index, key) in keys.chain(unique) {
            let wanted = having(&|thing| match index {
                "by-key" => thing.keys.contains(&key),
                "by-number" => thing.number == Some(key),
                _ => thing.name == Some(key),
            });
            if index != "by-key" && wanted.len() > 1 {
                found.push(format!("{index}: {wanted:?} have {key}"));
            }
            let Some(there) = self.entries(reader, index, key) else { return self.violations.append(&mut found) };
            if COPYING.iter().any(|(_, copying, _)| *copying == index) {
                let of_rows = rows.iter().filter(|(row, _)| wanted.contains(row));
                let of_rows: BTreeMap<_, _> =
                    of_rows.map(|(row, thing)| (row.clone(), (thing.nth % self.copies).to_string())).collect();
                let copies = self.copies(reader, index, key);
                if copies != of_rows {
                    found.push(format!("{index}: {key} has the copies {copies:?}, and the rows are {of_rows:?}"));
                }
            }
            if !wanted.is_subset(&there) {
                found.push(format!("{index}: {wanted:?} have {key}, and {there:?} are found"));
            } else if is_end && wanted != there {
                found.push(format!("{index}: {there:?} are found by {key} after a repair, and {wanted:?} have it"));
            }
        }
        if !lack.is_empty() {
            found.push(format!("rows lack the entries {lack:?} beside them"));
        }
        self.is_built = true;
        self.violations.append(&mut found);
    }

    /// Compares all rows with the entries beside them. Returns those that are missing, as of the rows that were there before
    /// while the index is built.
    fn look_beside(&mut self, rows: &[(String, Thing)], beside: Vec<Row>) -> Vec<String> {
        let mut wanted = BTreeMap::new();
        for (row, thing) in rows {
            let copy = (thing.nth % self.copies).to_string();
            let value = [&[1, u8::try_from(copy.len()).unwrap()], copy.as_bytes()].concat();
            let names = thing.keys.iter().map(|key| format!("index/beside\u{1}\u{1}{key}\u{1}\u{1}\u{1}\u{1}{row}"));
            wanted.extend(names.map(|name| (name, value.clone())));
        }
        for entry in beside {
            match wanted.remove(&entry.row) {
                Some(value) if entry.value == value => {}
                Some(_) => self.violations.push(format!("{:?} has another copy than its row", entry.row)),
                None => self.violations.push(format!("{:?} is stale", entry.row)),
            }
        }
        wanted.into_keys().collect()
    }

    fn live(mut self) -> Lived {
        let count = WRITERS + 1;
        let clients: Vec<_> = (0..count).map(|i| self.network.client(&format!("node-{i}"))).collect();
        let mut nodes: Vec<Node> = clients.iter().enumerate().map(|(i, client)| self.node(i, client)).collect();
        let reader = self.table(None);
        // Before it is built, an index need not have all entries, and a repair has the most to write.
        if !matches!(self.pace.slow, Slow::Nothing | Slow::Mends) {
            block_on(reader.build_indexes([PARTITION])).unwrap();
        }
        let mut cx = Context::from_waker(Waker::noop());
        let end = self.clock.now() + MS(self.pace.lasts);
        let mut strikes = Strikes::new(self.clock.now() + MS(100), count, (20, 150), 300);
        while self.violations.is_empty() {
            let now = self.clock.now();
            if let Some(dead) = strikes.strike(now, &clients, &self.entropy) {
                nodes[dead] = self.node(dead, &clients[dead]);
            }
            for node in &mut nodes {
                for _ in 0..3 {
                    assert!(node.as_mut().poll(&mut cx).is_pending());
                }
                self.look(&reader, false);
            }
            let Some(at) = self.time.next_timer().filter(|at| *at <= end) else { break };
            self.time.advance_to(at);
        }
        drop(nodes);
        self.finish(&reader)
    }

    /// What is on its way arrives, since a repair answers for the entries that were there before it alone, and one without
    /// faults does the rest.
    fn finish(mut self, reader: &IndexTable<Thing>) -> Lived {
        self.network.configure(FaultConfig::default()).unwrap();
        let healthy = self.network.client("last");
        let last = self.table(Some(&healthy));
        let (clock, network) = (self.clock.clone(), self.network.clone());
        let repaired = self.time.block_on(async {
            clock.sleep(MS(1_000)).await;
            network.deliver_late().await;
            last.build_indexes([PARTITION]).await.map(|report| report.removed)
        });
        self.look(reader, self.without == Without::Nothing);
        if let Err(error) = &repaired {
            self.violations.push(format!("the last repair ends: {error}"));
        }
        self.violations.append(&mut self.errors.lock().unwrap());
        let puts = *self.puts.lock().unwrap();
        Lived { violations: self.violations, puts, removed: repaired.unwrap_or_default() }
    }
}

/// Writers without faults, of rows with unique keys of their own; returns what is left for a repair.
fn calm(seed: u64) -> RepairReport {
    let world = World::new(seed, Without::Nothing);
    world.network.configure(FaultConfig::default().latency(MS(0), MS(20))).unwrap();
    let tables: Vec<_> =
        (0..WRITERS).map(|nth| world.table(Some(&world.network.client(&format!("node-{nth}"))))).collect();
    let write = async |table: &IndexTable<Thing>| {
        for _ in 0..20 {
            let (row, some) = (world.entropy.up_to(ROWS - 1), || world.entropy.up_to(1));
            let (key, row) = (row.to_string(), row * 10);
            let key = Key::new(PARTITION, &key);
            if world.entropy.up_to(4) == 0 {
                table.delete(key, Precondition::Any).await.unwrap();
            } else {
                let (number, name) = (Some(row + some()), Some(row + some()).filter(|_| some() == 0));
                let keys = (0..KEYS).filter(|_| some() == 0).collect();
                let thing = Thing { nth: world.entropy.next_u64(), keys, number, name };
                table.put(key, &thing, Precondition::Any).await.unwrap();
            }
        }
    };
    world.time.block_on(async {
        tables[0].build_indexes([PARTITION]).await.unwrap();
        join_all(tables.iter().map(write)).await;
        tables[0].repair(PARTITION).await.unwrap()
    })
}

#[test]
fn writers_that_meet_without_a_fault_leave_no_entry_that_is_stale_or_has_no_copy() {
    let seeds = super::schedules(40);
    let mut entries = 0;
    for_each_seed(0..seeds, |seed| {
        let left = calm(seed);
        assert_eq!((left.added, left.removed, left.copied), (0, 0, 0), "{left:#?}");
        entries += left.indexes.iter().map(|index| index.entries).sum::<u64>();
    });
    println!("{seeds} schedules without faults: {entries} entries at the end, none of them stale or without its copy");
    super::assert_met(entries > seeds * 3, entries);
}

// Guarantee: index_table 1, 2, 3, 4, 8, 9.
#[test]
fn each_row_has_its_entries_at_any_moment_and_one_row_at_most_has_a_unique_key() {
    let seeds = super::schedules(40);
    let (mut puts, mut removed) = (0, 0);
    for_each_seed(0..seeds, |seed| {
        let lived = World::new(seed, Without::Nothing).live();
        assert!(lived.violations.is_empty(), "{:#?}", lived.violations);
        puts += lived.puts;
        removed += lived.removed;
    });
    println!("{seeds} schedules of {WRITERS} writers: {puts} writes, {removed} stale entries at the end; no violation");
    super::assert_met(puts > seeds * 20 && removed > seeds / 20, (puts, removed));
}

#[test]
fn a_guard_of_an_index_table_that_is_taken_out_is_missed() {
    let guards = [Without::Touch, Without::Order, Without::Version, Without::Copy, Without::Fill];
    for without in guards.into_iter().chain([Without::Batch, Without::Check]) {
        super::assert_missed(without, super::controls(200, 1_000), |seed| {
            World::new(seed, without).live().violations.into_iter().next()
        });
    }
}
