//! The safety of sequences and checks.
use std::collections::{BTreeMap, BTreeSet};

use super::{
    Fixture,
    safety::{STEPS, WriteOutcome, outcome_of},
};
use crate::{
    entropy::Entropy,
    port::Capability,
    store::{DeleteOptions, Key, Precondition, Row, Scan, Sequence, Store, StoreError, StoreExt, Version, Write},
};

const LOG: Sequence<'static> = Sequence::new("log/");

fn sure<T>(result: Result<T, StoreError>) -> T {
    result.unwrap_or_else(|error| panic!("the backend itself failed: {error}"))
}

async fn read(fixture: &Fixture<dyn Store>, after: u64) -> Vec<Row> {
    sure(fixture.other().scan_all(Scan::partition("safety").sequence(LOG, after)).await)
}

fn number_of(done: &[Option<Version>]) -> u64 {
    done.first().copied().flatten().map_or(0, Version::as_u64)
}

// Guarantee: store 12.
/// Five clients append behind one number: at most one receives a success, in each of many rounds,
/// and its row is stored.
pub async fn of_appends_behind_one_number_one_wins_at_most(fixture: &Fixture<dyn Store>) {
    if !fixture.port().capabilities().has(Capability::OrderedAppend) {
        return;
    }
    let mut won = 0;
    for round in 0..STEPS / 5 {
        let last = read(fixture, 0).await.last().and_then(|row| LOG.number(&row.row)).unwrap_or(0);
        let mut winners = Vec::new();
        for client in 0..5 {
            let value = format!("{round}-{client}");
            let writes = vec![Write::append_after("log/", value.clone(), last)];
            if let WriteOutcome::Made(done) = outcome_of(fixture.port().batch("safety", writes).await) {
                assert_eq!(number_of(&done), last + 1, "behind {last}");
                winners.push(value);
            }
        }
        assert!(winners.len() <= 1, "{winners:?} behind {last}");
        if let [winner] = &winners[..] {
            assert_eq!(read(fixture, last).await.first().map(|row| row.value.clone()), Some(winner.clone().into()));
            won += 1;
        }
    }
    assert!(won > 0, "at least one append was confirmed");
}

// Guarantee: store 10.
// Guarantee: store 11.
/// Appends, refused batches with appends, and deletes: a reader that continues behind the last
/// number finds no hole, confirmed appends are in their rows, and a number never comes twice.
pub async fn numbers_are_dense_and_no_deleted_row_comes_back(fixture: &Fixture<dyn Store>) {
    if !fixture.port().capabilities().has(Capability::OrderedAppend) {
        return;
    }
    let entropy = Entropy::from_seed(6);
    let (mut seen, mut rows) = (0, BTreeMap::new());
    let (mut confirmed, mut deleted) = (BTreeMap::new(), BTreeSet::new());
    for step in 0..STEPS {
        let append = |what: &str| Write::append("log/", format!("{what} {step}"));
        match entropy.up_to(3) {
            0 => {
                let refused =
                    vec![append("refused"), Write::check_row("absent", Precondition::Version(Version::new(1)))];
                assert!(fixture.port().batch("safety", refused).await.is_err());
            }
            1 if seen > 0 => {
                // The reader has seen it, so that it misses none. Often it is the last one.
                let number = if entropy.up_to(1) == 0 { seen } else { 1 + entropy.up_to(seen - 1) };
                let row = LOG.row(number);
                let key = Key::new("safety", &row);
                if fixture.port().delete(key, DeleteOptions::new()).await.is_ok() {
                    deleted.insert(row);
                }
            }
            _ => {
                let writes = vec![append("made"), append("too")];
                if let WriteOutcome::Made(done) = outcome_of(fixture.port().batch("safety", writes).await) {
                    let number = number_of(&done);
                    assert!(confirmed.insert(number, format!("made {step}")).is_none(), "{number} came twice");
                    assert!(number > seen, "{number} is new, and the reader has seen {seen}");
                }
            }
        }
        for row in read(fixture, seen).await {
            assert_eq!(LOG.number(&row.row), Some(seen + 1), "the reader has seen {seen}");
            assert!(!row.value.starts_with(b"refused"), "{row:?}");
            rows.insert(seen + 1, row.value);
            seen += 1;
        }
    }
    for (number, value) in &confirmed {
        assert_eq!(rows.get(number).map(|value| &value[..]), Some(value.as_bytes()), "number {number}");
    }
    let stored: BTreeSet<String> = read(fixture, 0).await.into_iter().map(|row| row.row).collect();
    assert_eq!(deleted.intersection(&stored).collect::<Vec<_>>(), Vec::<&String>::new(), "deleted, and back");
    assert!(!confirmed.is_empty() && !deleted.is_empty(), "some appends and deletes were confirmed");
}

// Guarantee: store 4.
/// Writes that check the version of a gate: once the gate has moved, no late write of before
/// appears.
pub async fn a_check_holds_when_its_batch_takes_effect(fixture: &Fixture<dyn Store>) {
    if !fixture.port().capabilities().has(Capability::AtomicBatch) {
        return;
    }
    let (gate, row) = (Key::new("safety", "gate"), Key::new("safety", "row"));
    let mut before = 0;
    for round in 0..STEPS / 4 {
        let open = sure(fixture.other().put(gate, round.to_string().into(), Precondition::Any.into()).await);
        for _ in 0..4 {
            let check = Write::check_row(gate.row, Precondition::Version(open));
            let writes = vec![check, Write::put(row.row, round.to_string(), Precondition::Any)];
            // The row shows whether the batch was applied.
            let _ = fixture.port().batch("safety", writes).await;
            let Some(record) = sure(fixture.other().get(row).await) else { continue };
            let text = String::from_utf8_lossy(&record.value).into_owned();
            let now = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
            assert!(now >= before, "a write behind gate {now} took effect after one behind gate {before}");
            before = now;
        }
    }
    assert!(before > 0, "at least one write was confirmed");
}
