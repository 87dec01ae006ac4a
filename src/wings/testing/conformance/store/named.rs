//! Scans of named rows.
use super::{batches::while_rewritten, *};
use crate::store::{Order, Rows};

// Guarantee: store 3.
/// Named rows come once each, in the scan's order, without those that do not exist, in one page.
pub async fn named_rows_come_once_and_in_order(fixture: &Fixture<dyn Store>) {
    let (store, can) = (fixture.port(), fixture.port().capabilities());
    for row in ["a", "b", "c", "d", "e"] {
        ok(store.insert(Key::new("p", row), row.to_string()).await);
    }
    let named = |names: &[&str]| Scan::partition("p").named(names.iter().copied());
    let names = ["d", "b", "missing", "d", "a"];
    assert_eq!(rows(fixture.other(), named(&names)).await, ["a", "b", "d"]);
    assert_eq!(rows(store, named(&names).descending()).await, ["d", "b", "a"]);
    assert_eq!(rows(store, named(&[])).await, [""; 0]);
    assert_eq!(rows(store, named(&["missing"])).await, [""; 0]);
    let page = ok(store.scan(&named(&names)).await);
    assert_eq!(page.next, None);
    assert!(page.rows.iter().all(|row| row.value == row.row.as_bytes()), "with their values");
    // With a smaller limit they are pages as of every scan.
    for order in [Order::Ascending, Order::Descending] {
        let mut scan = named(&names).limit(2);
        scan.order = order;
        let first = ok(store.scan(&scan).await);
        assert_eq!((first.rows.len(), first.next.is_some()), (2, true));
        let mut all = vec!["a", "b", "d"];
        if order == Order::Descending {
            all.reverse();
        }
        assert_eq!(rows(store, scan).await, all);
    }
    if can.has(Capability::TimeToLive) {
        ok(store.put(Key::new("p", "b"), "b".into(), PutOptions::new().ttl(a_while())).await);
        fixture.pass(a_while() * 2).await;
        assert_eq!(rows(store, named(&names)).await, ["a", "d"]);
    }
    // Size ends no page of named rows.
    let large = Bytes::from(vec![7; (1 << 20).min(can.max_value())]);
    for row in ["x", "y", "z"] {
        ok(store.put(Key::new("p", row), large.clone(), PutOptions::new()).await);
    }
    let page = ok(store.scan(&named(&["x", "y", "z", "a"])).await);
    assert_eq!((page.rows.len(), page.next), (4, None));
    assert!(page.rows[1..].iter().all(|row| row.value == large));
}

// Guarantee: store 3.
/// While batches rewrite rows far apart, no page of named rows shows old and new ones.
pub async fn a_page_of_named_rows_is_one_snapshot(fixture: &Fixture<dyn Store>) {
    let store = fixture.shared();
    if !store.capabilities().has(Capability::AtomicBatch) {
        return;
    }
    const NAMES: [&str; 5] = ["a", "c", "m", "x", "z"];
    let all = |n: usize| NAMES.map(|row| Write::put(row, n.to_string(), Precondition::Any)).into();
    ok(store.batch("p", all(0)).await);
    ok(store.insert(Key::new("p", "b"), "another").await);
    let scan = Scan::partition("p").named(NAMES);
    while_rewritten(store, all, async {
        for _ in 0..200 {
            let page = ok(fixture.other().scan(&scan).await);
            assert_eq!(page.rows.len(), NAMES.len());
            assert!(page.rows.iter().all(|row| row.value == page.rows[0].value), "{:?}", page.rows);
            yield_now().await;
        }
    })
    .await;
}

// Guarantee: store 3.
/// More names than a batch may have writes, an empty name and a name that is too long are refused.
pub async fn invalid_names_of_rows_are_refused(fixture: &Fixture<dyn Store>) {
    let (store, can) = (fixture.port(), fixture.port().capabilities());
    let refused = |result: Result<crate::store::Page, StoreError>| {
        let names_the_field = result.as_ref().is_err_and(|error| error.to_string().contains("rows"));
        assert!(names_the_field, "{result:?}");
        assert!(is_invalid(result));
    };
    refused(store.scan(&Scan::partition("p").named(["a", ""])).await);
    if can.max_key() < 1 << 20 {
        refused(store.scan(&Scan::partition("p").named(["x".repeat(can.max_key() + 1)])).await);
    }
    if can.max_batch() < 100_000 {
        let names = |n: usize| Scan::partition("p").named((0..n).map(|i| i.to_string()));
        refused(store.scan(&names(can.max_batch() + 1)).await);
        ok(store.insert(Key::new("p", "0"), "x").await);
        ok(store.insert(Key::new("p", &(can.max_batch() - 1).to_string()), "x").await);
        let page = ok(store.scan(&names(can.max_batch())).await);
        assert_eq!((page.rows.len(), page.next), (2, None));
    }
    let mut none = Scan::partition("p").limit(0);
    none.rows = Rows::Named(Vec::new());
    assert!(is_invalid(store.scan(&none).await));
}
