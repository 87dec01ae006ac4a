//! `StoreExt::delete_scanned`, with and without atomic batches.
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use steadfast::{
    port::{Capabilities, Capability, PortError, PortErrorKind},
    store::{
        DeleteOptions, InMemoryStore, Key, Page, PutOptions, Record, Scan, Store, StoreError, StoreExt, StoreFuture,
        Version, Write,
    },
    time::Clock,
};

/// A store that counts its batches and single deletes, and fails after a number of requests.
#[derive(Debug)]
struct Counted {
    store: InMemoryStore,
    can: Capabilities,
    /// Sizes of the batches.
    batches: Mutex<Vec<usize>>,
    deletes: AtomicUsize,
    /// Number of scans, batches and deletes until the store fails.
    left: AtomicUsize,
}

impl Counted {
    fn new(can: impl FnOnce(Capabilities) -> Capabilities) -> Arc<Self> {
        let store = InMemoryStore::new();
        let can = can(store.capabilities());
        let (batches, deletes, left) = (Mutex::default(), AtomicUsize::new(0), AtomicUsize::new(usize::MAX));
        Arc::new(Self { store, can, batches, deletes, left })
    }

    fn pass(&self) -> Result<(), StoreError> {
        let left = self.left.fetch_sub(1, Ordering::Relaxed);
        if left > 0 { Ok(()) } else { Err(PortError::new(PortErrorKind::Unavailable, "the store is away").into()) }
    }
}

impl Store for Counted {
    fn capabilities(&self) -> Capabilities {
        self.can
    }
    fn get<'a>(&'a self, key: Key<'a>) -> StoreFuture<'a, Option<Record>> {
        self.store.get(key)
    }
    fn put<'a>(&'a self, key: Key<'a>, value: Bytes, options: PutOptions) -> StoreFuture<'a, Version> {
        self.store.put(key, value, options)
    }
    fn delete<'a>(&'a self, key: Key<'a>, options: DeleteOptions) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            self.pass()?;
            self.deletes.fetch_add(1, Ordering::Relaxed);
            self.store.delete(key, options).await
        })
    }
    fn scan<'a>(&'a self, scan: &'a Scan) -> StoreFuture<'a, Page> {
        Box::pin(async move {
            self.pass()?;
            self.store.scan(scan).await
        })
    }
    fn batch<'a>(&'a self, partition: &'a str, writes: Vec<Write>) -> StoreFuture<'a, Vec<Option<Version>>> {
        Box::pin(async move {
            self.pass()?;
            Write::check_batch(partition, &writes, &self.can)?;
            self.batches.lock().unwrap().push(writes.len());
            self.store.batch(partition, writes).await
        })
    }
}

/// Fills a partition with ten rows of each of two prefixes.
async fn fill(store: &Counted) {
    for i in 0..10 {
        for prefix in ["a", "b"] {
            store.store.insert(Key::new("p", &format!("{prefix}/{i}")), "x").await.unwrap();
        }
    }
}

async fn left(store: &Counted) -> usize {
    store.store.scan_all(Scan::partition("p")).await.unwrap().len()
}

fn run(case: impl Future<Output = ()>) {
    Clock::manual().1.block_on(case);
}

#[test]
fn the_rows_of_a_scan_are_deleted_in_one_batch_a_page_and_the_others_stay() {
    run(async {
        let store = Counted::new(|can| can.largest_batch(4));
        fill(&store).await;
        // The page is never larger than a batch.
        assert_eq!(store.delete_scanned(Scan::partition("p").prefix("a/").limit(100)).await.unwrap(), 10);
        assert_eq!(store.batches.lock().unwrap()[..], [4, 4, 2]);
        assert_eq!(left(&store).await, 10);
        assert_eq!(store.delete_scanned(Scan::partition("p").prefix("a/")).await.unwrap(), 0);
        assert_eq!(store.delete_scanned(Scan::partition("p").descending().limit(3)).await.unwrap(), 10);
        assert_eq!(left(&store).await, 0);
    });
}

#[test]
fn without_atomic_batches_rows_are_deleted_one_by_one() {
    run(async {
        let store = Counted::new(|can| can.without(Capability::AtomicBatch).without(Capability::OrderedAppend));
        fill(&store).await;
        assert_eq!(store.delete_scanned(Scan::partition("p").named(["a/1", "b/2", "missing"])).await.unwrap(), 2);
        assert_eq!((store.deletes.load(Ordering::Relaxed), left(&store).await), (2, 18));
    });
}

#[test]
fn a_deletion_that_failed_deletes_the_rest_when_it_is_repeated() {
    run(async {
        for batches in [true, false] {
            let store = Counted::new(|can| if batches { can } else { can.without(Capability::AtomicBatch) });
            fill(&store).await;
            let scan = || Scan::partition("p").limit(6);
            // A scan with its batch, and the next scan; or a scan, six deletes, a scan and a delete.
            store.left.store(if batches { 3 } else { 9 }, Ordering::Relaxed);
            assert!(store.delete_scanned(scan()).await.is_err());
            let deleted = if batches { 6 } else { 7 };
            assert_eq!(left(&store).await, 20 - deleted);
            store.left.store(usize::MAX, Ordering::Relaxed);
            assert_eq!(store.delete_scanned(scan()).await.unwrap(), 20 - deleted as u64);
            assert_eq!(left(&store).await, 0);
        }
    });
}

#[test]
fn a_scan_that_the_store_refuses_deletes_nothing() {
    run(async {
        let store = Counted::new(|can| can);
        fill(&store).await;
        let refused = store.delete_scanned(Scan::partition("p").limit(0)).await.unwrap_err();
        assert!(refused.to_string().contains("limit"), "{refused}");
        assert_eq!(left(&store).await, 20);
        assert!(store.batches.lock().unwrap().is_empty());
    });
}
