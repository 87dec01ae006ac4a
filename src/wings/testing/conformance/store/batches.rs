//! Batches.
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use super::*;

// Guarantee: store 3.
/// While batches rewrite two rows, no page shows one old and one new row.
pub async fn a_page_is_one_snapshot(fixture: &Fixture<dyn Store>) {
    let store = fixture.shared();
    if !store.capabilities().has(Capability::AtomicBatch) {
        return;
    }
    let pair = |n: usize| {
        vec![Write::put("a", n.to_string(), Precondition::Any), Write::put("b", n.to_string(), Precondition::Any)]
    };
    ok(store.batch("p", pair(0)).await);
    while_rewritten(store, pair, async {
        for _ in 0..200 {
            let page = ok(fixture.other().scan(&Scan::partition("p")).await);
            let [a, b] = &page.rows[..] else { panic!("two rows were written: {page:?}") };
            assert_eq!(a.value, b.value);
            yield_now().await;
        }
    })
    .await;
}

/// Runs a reader while another task applies one batch after the other.
pub(super) async fn while_rewritten(
    store: Arc<dyn Store>,
    batch: impl Fn(usize) -> Vec<Write> + Send + 'static,
    reader: impl Future<Output = ()>,
) {
    let is_over = Arc::new(AtomicBool::new(false));
    let is_read = is_over.clone();
    let writer = tokio::spawn(async move {
        for n in 1.. {
            if is_read.load(Ordering::Relaxed) {
                break;
            }
            ok(store.batch("p", batch(n)).await);
            yield_now().await;
        }
    });
    reader.await;
    is_over.store(true, Ordering::Relaxed);
    writer.await.unwrap_or_else(|e| panic!("the writer failed: {e}"));
}

// Guarantee: store 4.
/// A batch returns the version of each write in order, or is not applied at all.
pub async fn a_batch_is_all_or_none(fixture: &Fixture<dyn Store>) {
    let store = fixture.port();
    let writes = vec![Write::put("a", "1", Precondition::Absent), Write::put("b", "1", Precondition::Any)];
    let made = store.batch("p", writes).await;
    if !store.capabilities().has(Capability::AtomicBatch) {
        return assert!(is_unsupported(made));
    }
    let made = ok(made);
    assert_eq!(made.len(), 2);
    assert_eq!(ok(store.get(Key::new("p", "b")).await).map(|r| r.version), made[1]);
    let version = made[0].unwrap_or_else(|| panic!("a put has a version"));
    let changed = ok(store
        .batch("p", vec![Write::put("a", "2", Precondition::Version(version)), Write::delete("b", Precondition::Any)])
        .await);
    assert!(changed[0].is_some() && changed[1].is_none());
    assert_eq!(
        (value(store, Key::new("p", "a")).await.as_deref(), value(store, Key::new("p", "b")).await),
        (Some("2"), None)
    );
    assert_eq!(ok(store.batch("p", Vec::new()).await), []);
}

// Guarantee: store 4.
/// The failed write is named by its index, and nothing is written.
pub async fn a_batch_names_the_write_that_failed(fixture: &Fixture<dyn Store>) {
    let store = fixture.port();
    if !store.capabilities().has(Capability::AtomicBatch) {
        return;
    }
    let there = ok(store.insert(Key::new("p", "there"), "1").await);
    let writes = vec![
        Write::put("new", "1", Precondition::Any),
        Write::delete("there", Precondition::Any),
        Write::put("missing", "1", Precondition::Version(there)),
    ];
    let failed = store.batch("p", writes).await;
    assert!(matches!(failed, Err(StoreError::Conflict { write: 2, current: None })), "{failed:?}");
    assert_eq!(rows(fixture.other(), Scan::partition("p")).await, ["there"]);
    // Of several writes that fail, the first is named, with the current version of its row.
    let writes = ["new", "there", "missing"].map(|row| {
        let when = if row == "missing" { Precondition::Version(there) } else { Precondition::Absent };
        Write::put(row, "2", when)
    });
    let failed = store.batch("p", writes.into()).await;
    assert!(matches!(failed, Err(StoreError::Conflict { write: 1, current }) if current == Some(there)), "{failed:?}");
    assert_eq!(value(store, Key::new("p", "there")).await.as_deref(), Some("1"));
}

// Guarantee: store 4.
/// A repeated row, too many writes and an invalid row are refused before anything is written.
pub async fn an_invalid_batch_is_refused(fixture: &Fixture<dyn Store>) {
    let (store, can) = (fixture.port(), fixture.port().capabilities());
    if !can.has(Capability::AtomicBatch) {
        return;
    }
    let put = |row: &str| Write::put(row, "x", Precondition::Any);
    refused(store.batch("p", vec![put("a"), put("b"), put("a")]).await, "writes");
    refused(store.batch("p", vec![put("a"), put("")]).await, "row");
    refused(store.batch("", vec![put("a")]).await, "partition");
    refused(store.batch("p", vec![put("a"), Write::delete("b", Precondition::Absent)]).await, "when");
    if can.max_batch() < 100_000 {
        let many = (0..=can.max_batch()).map(|i| put(&i.to_string())).collect();
        refused(store.batch("p", many).await, "writes");
    }
    assert_eq!(rows(store, Scan::partition("p")).await, [""; 0]);
}

// Guarantee: store 4.
/// A batch of the largest stated number of writes is accepted; versions are returned in the order
/// of the writes, whatever the order of their rows.
pub async fn a_batch_returns_versions_in_the_order_of_its_writes(fixture: &Fixture<dyn Store>) {
    let (store, can) = (fixture.port(), fixture.port().capabilities());
    if !can.has(Capability::AtomicBatch) {
        return;
    }
    ok(store.insert(Key::new("p", "y"), "x").await);
    let put = |row: &str| Write::put(row, row.to_owned(), Precondition::Any);
    let delete = |row: &str| Write::delete(row, Precondition::Any);
    let made = ok(store.batch("p", vec![put("z"), delete("y"), put("b"), put("a"), delete("never there")]).await);
    let mut read = Vec::new();
    for row in ["z", "y", "b", "a", "never there"] {
        read.push(ok(fixture.other().get(Key::new("p", row)).await).map(|record| record.version));
    }
    assert_eq!(made, read);
    assert_eq!(made.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, true, true, false]);
    let most = can.max_batch().min(10_000);
    let many: Vec<_> = (0..most).map(|i| put(&format!("{i:05}"))).collect();
    assert_eq!(ok(store.batch("many", many).await).len(), most);
    assert_eq!(rows(fixture.other(), Scan::partition("many").limit(most)).await.len(), most);
}

// Guarantee: store 9.
/// A batch whose future is dropped is applied as a whole or not at all.
pub async fn a_dropped_batch_is_whole_or_not_there(fixture: &Fixture<dyn Store>) {
    let store = fixture.port();
    if !store.capabilities().has(Capability::AtomicBatch) {
        return;
    }
    for polls in 0..20 {
        let put = |row: &str| Write::put(row, polls.to_string(), Precondition::Any);
        let after_some_polls = async {
            for _ in 0..polls {
                yield_now().await;
            }
        };
        // The rows show whether the batch was applied.
        let _ = race(store.batch("p", vec![put("a"), put("b")]), after_some_polls).await;
        let page = ok(fixture.other().scan(&Scan::partition("p")).await).rows;
        assert!(matches!(&page[..], []) || matches!(&page[..], [a, b] if a.value == b.value), "{page:?}");
    }
}
