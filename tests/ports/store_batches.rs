//! Batches of all kinds of writes, in memory and on SQLite, compared with one naive model.
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use proptest::prelude::*;
use steadfast::{
    backend::sqlite::{Durability, Sqlite, SqliteConfig},
    port::{Failure, FencingToken, PortError, PortErrorKind},
    store::{
        DeleteOptions, InMemoryStore, Precondition, PutOptions, Scan, Sequence, Store, StoreError, StoreExt, Version,
        Write,
    },
    time::{Clock, Instant, ManualClock},
};

const MS: fn(u64) -> Duration = Duration::from_millis;

/// Ordinary rows, and rows of the form of both sequences.
const ROWS: [&str; 6] =
    ["a", "b", "s/00000000000000000001", "s/00000000000000000002", "s/00000000000000000003", "t/00000000000000000002"];
const SEQUENCES: [&str; 2] = ["s/", "t/"];

#[derive(Debug, Clone)]
enum One {
    Put { row: usize, when: When, ttl: Option<u64>, fence: Option<u64> },
    Delete { row: usize, when: When, fence: Option<u64> },
    Append { sequence: usize, after: Option<u64> },
    Check { row: usize, when: When },
}

#[derive(Debug, Clone)]
enum Op {
    Batch(Vec<One>),
    Named(Vec<usize>, bool),
    DeleteAll(usize),
    Pass(u64),
}

/// The precondition of a write. A version is that of an earlier write to the row, counted back from
/// the newest.
#[derive(Debug, Clone, Copy)]
enum When {
    Any,
    Absent,
    Ago(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let when = || prop_oneof![4 => Just(When::Any), 1 => Just(When::Absent), 3 => (0usize..2).prop_map(When::Ago)];
    let (row, fence) = (|| 0..ROWS.len(), || proptest::option::weighted(0.15, 0u64..4));
    let ttl = proptest::option::weighted(0.3, 1u64..50);
    let put = (row(), when(), ttl, fence()).prop_map(|(row, when, ttl, fence)| One::Put { row, when, ttl, fence });
    let delete = (row(), when(), fence()).prop_map(|(row, when, fence)| One::Delete { row, when, fence });
    let after = proptest::option::weighted(0.4, 0u64..5);
    let append = (0..SEQUENCES.len(), after).prop_map(|(sequence, after)| One::Append { sequence, after });
    let check = (row(), when()).prop_map(|(row, when)| One::Check { row, when });
    let batch = proptest::collection::vec(prop_oneof![3 => put, 2 => delete, 4 => append, 2 => check], 0..4);
    prop_oneof![
        8 => batch.prop_map(Op::Batch),
        1 => (proptest::collection::vec(row(), 0..6), any::<bool>()).prop_map(|(rows, down)| Op::Named(rows, down)),
        1 => (0..SEQUENCES.len()).prop_map(Op::DeleteAll),
        1 => (1u64..40).prop_map(Op::Pass),
    ]
}

type Record = (String, Version, Option<Instant>);

/// A naive model of a partition.
#[derive(Default, Clone)]
struct Model {
    rows: BTreeMap<String, Record>,
    versions: BTreeMap<String, Vec<Version>>,
    fences: BTreeMap<String, u64>,
    lasts: BTreeMap<String, u64>,
}

/// A refusal: a conflict or a stale token, by the index of the write, or an invalid batch.
#[derive(Debug, Clone, PartialEq)]
enum Refusal {
    Conflict(usize, Option<u64>),
    Fenced(usize, u64),
    Invalid,
}

fn refusal(error: StoreError) -> Refusal {
    match error {
        StoreError::Conflict { write, current } => Refusal::Conflict(write, current.map(Version::as_u64)),
        StoreError::Fenced { write, highest } => Refusal::Fenced(write, highest.as_u64()),
        other if other.backend().map(PortError::kind) == Some(PortErrorKind::Invalid) => Refusal::Invalid,
        other => panic!("{other:?}"),
    }
}

/// The sequence of a row of the form of one.
fn of_row(row: &str) -> Option<&str> {
    row.len().checked_sub(20).map(|at| &row[..at]).filter(|name| SEQUENCES.contains(name))
}

impl Model {
    fn current(&self, row: &str, now: Instant) -> Option<&Record> {
        self.rows.get(row).filter(|(.., ends)| ends.is_none_or(|ends| now < ends))
    }

    fn last(&self, sequence: &str) -> u64 {
        self.lasts.get(sequence).copied().unwrap_or(0)
    }

    fn precondition(&self, row: &str, when: When) -> Precondition {
        let ago = |n| self.versions.get(row).and_then(|versions| versions.iter().rev().nth(n).copied());
        match when {
            When::Any => Precondition::Any,
            When::Absent => Precondition::Absent,
            When::Ago(n) => Precondition::Version(ago(n).unwrap_or(Version::new(999_999))),
        }
    }

    fn write(&self, one: &One, value: String) -> Write {
        match *one {
            One::Put { row, when, ttl, fence } => {
                let mut options = PutOptions::new().when(self.precondition(ROWS[row], when));
                (options.ttl, options.fence) = (ttl.map(MS), fence.map(FencingToken::new));
                Write::put(ROWS[row], value, options)
            }
            One::Delete { row, when, fence } => {
                let mut options = DeleteOptions::new().when(self.precondition(ROWS[row], when));
                options.fence = fence.map(FencingToken::new);
                Write::delete(ROWS[row], options)
            }
            One::Append { sequence, after: None } => Write::append(SEQUENCES[sequence], value),
            One::Append { sequence, after: Some(after) } => Write::append_after(SEQUENCES[sequence], value, after),
            One::Check { row, when } => Write::check_row(ROWS[row], self.precondition(ROWS[row], when)),
        }
    }

    /// Returns `true` if the batch violates a rule, whatever the state is.
    fn is_invalid(writes: &[Write]) -> bool {
        let (mut rows, mut sequences) = (BTreeSet::new(), BTreeSet::new());
        let mut invalid = false;
        for write in writes {
            invalid |= match write {
                Write::Append { sequence, after, .. } => !sequences.insert(sequence.as_str()) && after.is_some(),
                Write::Delete { row, options } => !rows.insert(row) || options.when == Precondition::Absent,
                Write::Check { row, when } => !rows.insert(row) || *when == Precondition::Any,
                Write::Put { row, .. } => !rows.insert(row),
                _ => unreachable!(),
            };
        }
        invalid || rows.iter().any(|row| of_row(row).is_some_and(|of| sequences.contains(of)))
    }

    /// Returns the first refusal, or the numbers of the appends.
    fn check(&self, writes: &[Write], now: Instant) -> Result<Vec<u64>, Refusal> {
        if Self::is_invalid(writes) {
            return Err(Refusal::Invalid);
        }
        let (mut numbers, mut lasts) = (Vec::new(), self.lasts.clone());
        for (i, write) in writes.iter().enumerate() {
            let Some(row) = write.row() else {
                let Write::Append { sequence, after, .. } = write else { unreachable!() };
                let last = lasts.entry(sequence.clone()).or_default();
                if after.is_some_and(|after| after != *last) {
                    return Err(Refusal::Conflict(i, (*last > 0).then_some(*last)));
                }
                let of_form = |row: &&str| of_row(row) == Some(sequence) && self.current(row, now).is_some();
                if *last == 0 && ROWS.iter().any(of_form) {
                    return Err(Refusal::Invalid);
                }
                *last += 1;
                numbers.push(*last);
                continue;
            };
            if let (Some(token), Some(&highest)) = (write.fence(), self.fences.get(row))
                && token.as_u64() < highest
            {
                return Err(Refusal::Fenced(i, highest));
            }
            let current = self.current(row, now).map(|(_, version, _)| *version);
            let holds = match write.when() {
                Precondition::Any => true,
                Precondition::Absent => current.is_none(),
                Precondition::Version(version) => current == Some(version),
                _ => unreachable!(),
            };
            if !holds {
                return Err(Refusal::Conflict(i, current.map(Version::as_u64)));
            }
            let creates = matches!(write, Write::Put { .. }) && current.is_none();
            if creates && of_row(row).is_some_and(|of| self.last(of) > 0) {
                return Err(Refusal::Invalid);
            }
        }
        Ok(numbers)
    }

    /// Applies a batch with the versions that the store answered.
    fn apply(&mut self, writes: &[Write], done: &[Option<Version>], now: Instant) {
        for (write, version) in writes.iter().zip(done) {
            if let (Some(row), Some(fence)) = (write.row(), write.fence()) {
                self.fences.insert(row.to_owned(), fence.as_u64());
            }
            let text = |value: &bytes::Bytes| String::from_utf8(value.to_vec()).unwrap();
            match write {
                Write::Put { row, value, options } => {
                    let (version, ends) = (version.unwrap(), options.ttl.map(|ttl| now + ttl));
                    self.rows.insert(row.clone(), (text(value), version, ends));
                    self.versions.entry(row.clone()).or_default().push(version);
                }
                Write::Delete { row, .. } => drop(self.rows.remove(row)),
                Write::Append { sequence, value, .. } => {
                    let version = version.unwrap();
                    let row = Sequence::new(sequence).row(version.as_u64());
                    self.lasts.insert(sequence.clone(), version.as_u64());
                    self.rows.insert(row.clone(), (text(value), version, None));
                    self.versions.entry(row).or_default().push(version);
                }
                _ => assert_eq!(*version, None),
            }
        }
    }

    fn live(&self, now: Instant) -> Vec<(String, String, Version)> {
        let live =
            |row: &String| self.current(row, now).map(|(value, version, _)| (row.clone(), value.clone(), *version));
        self.rows.keys().filter_map(live).collect()
    }
}

fn equals_the_model(store: &dyn Store, clock: &Clock, time: &ManualClock, ops: Vec<Op>) {
    let mut model = Model::default();
    let rows = |scan: Scan| {
        let rows = time.block_on(store.scan_all(scan)).unwrap();
        let text = |value: &[u8]| String::from_utf8(value.to_vec()).unwrap();
        rows.into_iter().map(|row| (row.row.clone(), text(&row.value), row.version)).collect::<Vec<_>>()
    };
    for (i, op) in ops.into_iter().enumerate() {
        let now = clock.now();
        match op {
            Op::Batch(ones) => {
                let writes: Vec<_> =
                    ones.iter().enumerate().map(|(n, one)| model.write(one, format!("{i} {n}"))).collect();
                let done = time.block_on(store.batch("p", writes.clone())).map_err(refusal);
                match (model.check(&writes, now), done) {
                    (Ok(numbers), Ok(done)) => {
                        let appended = writes.iter().zip(&done).filter(|(write, _)| write.row().is_none());
                        let appended: Vec<_> = appended.map(|(_, version)| version.unwrap().as_u64()).collect();
                        assert_eq!(appended, numbers);
                        model.apply(&writes, &done, now);
                    }
                    (expected, done) => assert_eq!(done.map(drop), expected.map(drop), "{writes:?}"),
                }
            }
            Op::Named(names, down) => {
                let scan = Scan::partition("p").named(names.iter().map(|row| ROWS[*row]));
                let mut expected = model.live(now);
                expected.retain(|(row, ..)| names.iter().any(|name| ROWS[*name] == row));
                if down {
                    expected.reverse();
                }
                assert_eq!(rows(if down { scan.descending() } else { scan }), expected);
            }
            Op::DeleteAll(sequence) => {
                let scan = Scan::partition("p").prefix(SEQUENCES[sequence]).limit(2);
                let of = |(row, ..): &(String, String, Version)| row.starts_with(SEQUENCES[sequence]);
                let expected = model.live(now).iter().filter(|row| of(row)).count() as u64;
                assert_eq!(time.block_on(store.delete_scanned(scan)).unwrap(), expected);
                model.rows.retain(|row, _| !row.starts_with(SEQUENCES[sequence]));
            }
            Op::Pass(ms) => time.advance(MS(ms)),
        }
        assert_eq!(rows(Scan::partition("p").limit(3)), model.live(clock.now()));
    }
    for (row, versions) in &model.versions {
        let distinct: BTreeSet<_> = versions.iter().collect();
        // A row that was put before its sequence began had a version of the store's own.
        assert!(distinct.len() == versions.len() || of_row(row).is_some(), "{row}: {versions:?}");
    }
}

// Guarantee: store 4.
// Guarantee: store 10.
// Guarantee: store 13.
proptest! {
    #[test]
    fn batches_in_memory_equal_their_model(ops in proptest::collection::vec(op(), 1..60)) {
        let (clock, time) = Clock::manual();
        let store = InMemoryStore::builder().clock(&clock).build();
        equals_the_model(&store, &clock, &time, ops);
    }

    #[test]
    fn batches_on_sqlite_equal_their_model(ops in proptest::collection::vec(op(), 1..60)) {
        let (clock, time) = Clock::manual();
        let folder = tempfile::tempdir().unwrap();
        let config = SqliteConfig::at(folder.path().join("state.db")).durability(Durability::Relaxed);
        let store = Sqlite::open_with_clock(config, &clock).unwrap().store();
        equals_the_model(&store, &clock, &time, ops);
    }
}
