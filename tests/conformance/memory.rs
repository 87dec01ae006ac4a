//! The backends in memory.
use std::sync::Arc;

use steadfast::{testing::conformance::Fixture, time::Clock};

mod store {
    use super::*;
    use steadfast::store::{InMemoryStore, Store};

    steadfast::store_conformance!(async || {
        let (clock, hand) = Clock::manual();
        let store = InMemoryStore::new().with_clock(&clock);
        let (port, other): (Arc<dyn Store>, Arc<dyn Store>) = (Arc::new(store.clone()), Arc::new(store));
        Fixture::new(port).with_other_door(other).on_manual_time(&hand)
    });
}

mod queue {
    use super::*;
    use steadfast::queue::{InMemoryQueue, Queue};

    steadfast::queue_conformance!(async || {
        let (clock, hand) = Clock::manual();
        let queue = InMemoryQueue::new("jobs").with_clock(&clock);
        let (port, other): (Arc<dyn Queue>, Arc<dyn Queue>) = (Arc::new(queue.clone()), Arc::new(queue));
        Fixture::new(port).with_other_door(other).on_manual_time(&hand)
    });
}

mod lease {
    use super::*;
    use steadfast::lease::{InMemoryLease, Lease};

    steadfast::lease_conformance!(async || {
        let (clock, hand) = Clock::manual();
        let lease: Arc<dyn Lease> = Arc::new(InMemoryLease::new().with_clock(&clock));
        Fixture::new(lease.clone()).with_other_door(lease).on_manual_time(&hand)
    });
}

/// Leases over the store: two doors, each with eyes of its own.
mod store_lease {
    use super::*;
    use steadfast::{
        lease::{Lease, StoreLease},
        store::InMemoryStore,
    };

    steadfast::lease_conformance!(async || {
        let (clock, hand) = Clock::manual();
        let store = Arc::new(InMemoryStore::new().with_clock(&clock));
        let door = || Arc::new(StoreLease::new(store.clone()).unwrap().with_clock(&clock));
        let (port, other): (Arc<dyn Lease>, Arc<dyn Lease>) = (door(), door());
        Fixture::new(port).with_other_door(other).on_manual_time(&hand)
    });
}

mod notify {
    use super::*;
    use steadfast::notify::{InMemoryNotifier, Notifier};

    steadfast::notifier_conformance!(async || {
        let (_, hand) = Clock::manual();
        let notifier: Arc<dyn Notifier> = Arc::new(InMemoryNotifier::new());
        Fixture::new(notifier.clone()).with_other_door(notifier).on_manual_time(&hand)
    });
}
