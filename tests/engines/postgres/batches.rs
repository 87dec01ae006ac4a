//! Batches: the server applies large ones by other statements than small ones.
use std::time::Duration;

use steadfast::{
    entropy::Entropy,
    port::FencingToken,
    store::{InMemoryStore, Key, Precondition, PutOptions, Scan, Store, StoreError, StoreExt, Version, Write},
};

use super::{connect, shared};

/// A write whose precondition is said by words, since the stores number versions differently.
#[derive(Debug, Clone)]
enum Wish {
    Put { row: String, when: When, ttl: bool, fence: Option<u64> },
    Delete { row: String, when: When },
    Check { row: String, when: When },
    Append { sequence: String, after: Option<u64> },
}

#[derive(Debug, Clone, Copy)]
enum When {
    Any,
    Absent,
    Current,
    Stale,
}

/// A few rows and sequences, so that preconditions meet, and rows of sequences, too.
fn wish(draw: &mut impl FnMut(u64) -> u64) -> Wish {
    let row = match draw(20) {
        0 => format!("s{}/{:020}", draw(3), draw(3) + 1),
        _ => format!("row {}", draw(30)),
    };
    let when = match draw(12) {
        0 => When::Absent,
        1 => When::Current,
        2 if draw(4) == 0 => When::Stale,
        _ => When::Any,
    };
    match draw(10) {
        0 => Wish::Delete { row, when },
        1 => Wish::Check { row, when: When::Current },
        2..=4 => {
            let after = if draw(8) == 0 { Some(draw(30)) } else { None };
            Wish::Append { sequence: format!("s{}/", draw(3)), after }
        }
        _ => Wish::Put { row, when, ttl: draw(6) == 0, fence: if draw(60) == 0 { Some(draw(3)) } else { None } },
    }
}

async fn write(store: &impl Store, wish: &Wish, value: String) -> Write {
    let condition = async |row: &str, when: When| {
        let found = store.get(Key::new("p", row)).await.unwrap().map(|record| record.version);
        match (when, found) {
            (When::Any, _) => Precondition::Any,
            (When::Absent, _) => Precondition::Absent,
            (When::Current, Some(version)) => Precondition::Version(version),
            (When::Current, None) => Precondition::Absent,
            (When::Stale, _) => Precondition::Version(Version::new(u64::MAX >> 2)),
        }
    };
    match wish {
        Wish::Put { row, when, ttl, fence } => {
            let mut options = PutOptions::from(condition(row, *when).await);
            options.ttl = ttl.then_some(Duration::from_secs(3_600));
            options.fence = fence.map(FencingToken::new);
            Write::put(row, value, options)
        }
        Wish::Delete { row, when } => Write::delete(row, condition(row, *when).await),
        Wish::Check { row, when } => Write::check_row(row, condition(row, *when).await),
        Wish::Append { sequence, after: None } => Write::append(sequence, value),
        Wish::Append { sequence, after: Some(after) } => Write::append_after(sequence, value, *after),
    }
}

/// What both stores must say alike: numbers of appends, and which write was refused.
fn told(wishes: &[Wish], done: Result<Vec<Option<Version>>, StoreError>) -> String {
    match done {
        Ok(versions) => {
            let of = |(wish, version): (&Wish, Option<Version>)| match wish {
                Wish::Append { .. } => format!("{version:?}"),
                _ => version.is_some().to_string(),
            };
            format!("{:?}", wishes.iter().zip(versions).map(of).collect::<Vec<_>>())
        }
        Err(StoreError::Conflict { write, current }) => match &wishes[write] {
            Wish::Append { .. } => format!("conflict of {write}: {current:?}"),
            _ => format!("conflict of {write}: {}", current.is_some()),
        },
        Err(StoreError::Fenced { write, highest }) => format!("fenced {write}: {highest:?}"),
        Err(StoreError::Failed(error)) => format!("{:?}", error.kind()),
        Err(other) => format!("{other:?}"),
    }
}

#[tokio::test]
async fn batches_of_any_size_have_the_results_that_they_have_in_memory() {
    let (postgres, memory) = (connect(&shared()).await.store(), InMemoryStore::new());
    let seed = std::env::var("STEADFAST_SEED").map_or(7, |seed| seed.parse().unwrap());
    let entropy = Entropy::from_seed(seed);
    let mut draw = |below: u64| entropy.up_to(below - 1);
    let (mut applied, mut refused) = ([0; 2], [0; 2]);
    for round in 0..400 {
        let mut wishes: Vec<Wish> = Vec::new();
        for _ in 0..=draw(24) {
            let next = wish(&mut draw);
            // Rules of a batch that hold before anything is sent.
            let mut with = wishes.clone();
            with.push(next);
            let mut writes = Vec::new();
            for wish in &with {
                writes.push(write(&memory, wish, String::new()).await);
            }
            if Write::check_batch("p", &writes, &memory.capabilities()).is_ok() {
                wishes = with;
            }
        }
        let (mut of_postgres, mut of_memory) = (Vec::new(), Vec::new());
        for (i, wish) in wishes.iter().enumerate() {
            of_postgres.push(write(&postgres, wish, format!("{round}.{i}")).await);
            of_memory.push(write(&memory, wish, format!("{round}.{i}")).await);
        }
        let (done, wanted) = (postgres.batch("p", of_postgres).await, memory.batch("p", of_memory).await);
        let is_large = usize::from(wishes.len() >= 8);
        if wanted.is_ok() {
            applied[is_large] += 1
        } else {
            refused[is_large] += 1
        }
        assert_eq!(told(&wishes, done), told(&wishes, wanted), "seed {seed}, round {round}: {wishes:?}");
        let rows = async |store: &dyn Store| {
            let rows = store.scan_all(Scan::partition("p")).await.unwrap();
            rows.into_iter().map(|row| (row.row, row.value)).collect::<Vec<_>>()
        };
        assert_eq!(rows(&postgres).await, rows(&memory).await, "seed {seed}, round {round}: {wishes:?}");
    }
    assert!(applied.iter().chain(&refused).all(|n| *n >= 20), "applied {applied:?}, refused {refused:?}");
}
