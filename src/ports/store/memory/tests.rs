//! Tests of the store in memory: the work of scans and sweeps.
use std::cell::Cell;

use super::*;
use crate::store::StoreExt;

fn run(case: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(case);
}

thread_local! {
    static ROWS_READ: Cell<usize> = const { Cell::new(0) };
}

pub(super) fn count_a_row() {
    ROWS_READ.set(ROWS_READ.get() + 1);
}

#[test]
fn a_page_reads_the_rows_that_it_returns_and_one_more() {
    run(async {
        let (clock, time) = Clock::manual();
        let store = InMemoryStore::builder().clock(&clock).build();
        for i in 0..10_000 {
            // Every second record expires.
            let options = PutOptions::new();
            let options = if i % 2 == 0 { options.ttl(Duration::from_secs(1)) } else { options };
            store.put(Key::new("p", &format!("{i:05}")), "x".into(), options).await.unwrap();
        }
        time.advance(Duration::from_secs(2));
        ROWS_READ.set(0);
        let all = store.scan_all(Scan::partition("p").limit(100)).await.unwrap();
        assert_eq!((all.len(), ROWS_READ.get()), (5000, 5000 + 49));
        let state = store.state();
        assert_eq!((state.ends.len(), state.partitions["p"].len()), (0, 5000), "entries that were looked at");
    });
}

#[test]
fn expired_records_are_deleted_without_reads_or_scans() {
    run(async {
        let (clock, time) = Clock::manual();
        let store = InMemoryStore::builder().clock(&clock).build();
        let options = PutOptions::new().ttl(Duration::from_secs(1));
        for i in 0..20_000 {
            time.advance(Duration::from_millis(1));
            store.put(Key::new(&i.to_string(), "r"), "x".into(), options).await.unwrap();
        }
        let held = |store: &InMemoryStore| {
            let state = store.state();
            (state.partitions.len(), state.ends.len())
        };
        assert_eq!(held(&store), (1000, 1000));
        // Expiry entries of records that were deleted or replaced are removed.
        for _ in 0..10 {
            store.put(Key::new("same", "r"), "x".into(), options).await.unwrap();
        }
        assert_eq!(held(&store).0, held(&store).1);
        store.delete(Key::new("same", "r"), DeleteOptions::new()).await.unwrap();
        assert_eq!(held(&store).0, held(&store).1);
    });
}
