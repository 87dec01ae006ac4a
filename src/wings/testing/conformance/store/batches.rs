//! Batches.
use super::*;

// Guarantee: store 3.
/// While a batch rewrites two rows over and over, no page shows one old and one new.
pub async fn a_page_is_one_snapshot(fixture: &Fixture<dyn Store>) {
    let store = fixture.shared();
    if !store.capabilities().has(Capability::AtomicBatch) {
        return;
    }
    let pair = |n: usize| {
        vec![Write::put("a", n.to_string(), Precondition::Any), Write::put("b", n.to_string(), Precondition::Any)]
    };
    ok(store.batch("p", pair(0)).await);
    let writer = tokio::spawn(async move {
        for n in 1..=50 {
            ok(store.batch("p", pair(n)).await);
        }
    });
    while !writer.is_finished() {
        let page = ok(fixture.other().scan(&Scan::partition("p")).await);
        assert_eq!(page.rows[0].value, page.rows[1].value);
        tokio::task::yield_now().await;
    }
    writer.await.unwrap_or_else(|e| panic!("the writer: {e}"));
}

// Guarantee: store 4.
/// Each write in order with its version; or none at all.
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
/// The write that failed is named by its place, and nothing was written.
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
}

// Guarantee: store 4.
/// One row twice, too many writes, a bad row: refused before anything is written.
pub async fn a_batch_that_makes_no_sense_is_refused(fixture: &Fixture<dyn Store>) {
    let (store, can) = (fixture.port(), fixture.port().capabilities());
    if !can.has(Capability::AtomicBatch) {
        return;
    }
    let put = |row: &str| Write::put(row, "x", Precondition::Any);
    assert!(is_invalid(store.batch("p", vec![put("a"), put("b"), put("a")]).await));
    assert!(is_invalid(store.batch("p", vec![put("a"), put("")]).await));
    assert!(is_invalid(store.batch("", vec![put("a")]).await));
    if can.max_batch() < 100_000 {
        let many = (0..=can.max_batch()).map(|i| put(&i.to_string())).collect();
        assert!(is_invalid(store.batch("p", many).await));
    }
    assert_eq!(rows(store, Scan::partition("p")).await, [""; 0]);
}
