//! Checks of rows that a batch does not write.
use std::sync::Arc;

use super::*;

// Guarantee: store 4.
/// A check asks for the state of a row, and leaves the row as it is; the check that fails is named
/// with the current version.
pub async fn a_check_asks_of_a_row_that_it_does_not_write(fixture: &Fixture<dyn Store>) {
    let store = fixture.port();
    let put = |n: &str| Write::put("beside", n.to_owned(), Precondition::Any);
    if !store.capabilities().has(Capability::AtomicBatch) {
        let checked = store.batch("p", vec![Write::check_row("r", Precondition::Absent)]).await;
        return assert!(is_unsupported(checked));
    }
    let version = ok(store.insert(Key::new("p", "r"), "x").await);
    let checked = vec![
        Write::check_row("r", Precondition::Version(version)),
        put("1"),
        Write::check_row("absent", Precondition::Absent),
    ];
    let done = ok(store.batch("p", checked).await);
    assert!(matches!(done[..], [None, Some(_), None]), "{done:?}");
    assert_eq!(ok(store.get(Key::new("p", "r")).await).map(|record| record.version), Some(version));
    assert_eq!(rows(fixture.other(), Scan::partition("p")).await, ["beside", "r"]);
    let wrong = [
        (Write::check_row("r", Precondition::Absent), Some(version)),
        (Write::check_row("absent", Precondition::Version(version)), None),
        (Write::check_row("r", Precondition::Version(Version::new(version.as_u64() + 1))), Some(version)),
    ];
    for (check, expected) in wrong {
        let refused = fixture.other().batch("p", vec![put("2"), check]).await;
        assert!(
            matches!(refused, Err(StoreError::Conflict { write: 1, current }) if current == expected),
            "{refused:?}, not {expected:?}"
        );
    }
    assert_eq!(value(store, Key::new("p", "beside")).await.as_deref(), Some("1"));
}

// Guarantee: store 4.
/// Of two concurrent batches that each write what the other one checks, one succeeds; the other is
/// a conflict.
pub async fn of_two_batches_that_check_each_other_s_row_one_wins(fixture: &Fixture<dyn Store>) {
    if !fixture.port().capabilities().has(Capability::AtomicBatch) {
        return;
    }
    for round in 0..20 {
        let crossed = |store: Arc<dyn Store>, write: &str, check: &str| {
            let (write, check) = (format!("{write} {round}"), format!("{check} {round}"));
            let writes = vec![Write::put(write, "x", Precondition::Any), Write::check_row(check, Precondition::Absent)];
            tokio::spawn(async move { store.batch("crossed", writes).await })
        };
        let (one, other) = (crossed(fixture.shared(), "a", "b"), crossed(fixture.shared_other(), "b", "a"));
        let both = [one.await, other.await].map(|ended| ended.unwrap_or_else(|e| panic!("a batch failed: {e}")));
        let is_one = matches!(
            &both,
            [Ok(_), Err(StoreError::Conflict { write: 1, current: Some(_) })]
                | [Err(StoreError::Conflict { write: 1, current: Some(_) }), Ok(_)]
        );
        assert!(is_one, "{both:?}");
    }
}

// Guarantee: store 4.
/// A check that requires nothing, and a check of a row that the batch writes, are refused.
pub async fn an_invalid_check_is_refused(fixture: &Fixture<dyn Store>) {
    let store = fixture.port();
    if !store.capabilities().has(Capability::AtomicBatch) {
        return;
    }
    let (put, check) = (Write::put("r", "x", Precondition::Any), |row| Write::check_row(row, Precondition::Absent));
    for batch in [
        vec![put.clone(), Write::check_row("s", Precondition::Any)],
        vec![put.clone(), check("r")],
        vec![check("r"), put.clone()],
        vec![check("r"), Write::delete("r", Precondition::Any)],
        vec![put.clone(), check("s"), check("s")],
        vec![put, check("")],
    ] {
        assert!(is_invalid(store.batch("p", batch).await));
    }
    assert_eq!(rows(store, Scan::partition("p")).await, [""; 0]);
}
