//! The backends in memory.
use std::sync::Arc;

use steadfast::{testing::conformance::Fixture, time::Clock};

mod store {
    use super::*;
    use steadfast::store::{InMemoryStore, Store};

    steadfast::store_conformance!(async || {
        let (clock, time) = Clock::manual();
        let store = InMemoryStore::builder().clock(&clock).build();
        let (port, other): (Arc<dyn Store>, Arc<dyn Store>) = (Arc::new(store.clone()), Arc::new(store));
        Fixture::new(port).with_second_handle(other).on_manual_time(&time)
    });
}

mod queue {
    use super::*;
    use steadfast::queue::{InMemoryQueue, Queue};

    steadfast::queue_conformance!(async || {
        let (clock, time) = Clock::manual();
        let queue = InMemoryQueue::builder("jobs").clock(&clock).build();
        let (port, other): (Arc<dyn Queue>, Arc<dyn Queue>) = (Arc::new(queue.clone()), Arc::new(queue));
        Fixture::new(port).with_second_handle(other).on_manual_time(&time)
    });
}

/// Queues that wrap queues uphold the guarantees of the wrapped one.
mod wrapped {
    use super::*;
    use steadfast::{
        claim_check::{ClaimCheck, ClaimCheckConfig},
        notify::InMemoryNotifier,
        queue::{AnnouncingQueue, InMemoryQueue, PartitionedQueue, Queue},
        store::InMemoryStore,
    };

    type Wrap = fn(Arc<dyn Queue>, Arc<InMemoryStore>) -> Arc<dyn Queue>;

    async fn fixture(wrap: Wrap) -> Fixture<dyn Queue> {
        let (clock, time) = Clock::manual();
        let (queue, store) = (InMemoryQueue::builder("jobs").clock(&clock).build(), Arc::new(InMemoryStore::new()));
        let door = || wrap(Arc::new(queue.clone()), store.clone());
        Fixture::new(door()).with_second_handle(door()).on_manual_time(&time)
    }

    mod claim_check {
        use super::*;
        steadfast::queue_conformance!(async || {
            fixture(|queue, store| {
                // Every body, down to one byte.
                let config = ClaimCheckConfig::default().threshold(0);
                Arc::new(ClaimCheck::new(queue, store, config).unwrap())
            })
            .await
        });
    }

    mod partitioned {
        use super::*;
        steadfast::queue_conformance!(async || {
            fixture(|queue, _| Arc::new(PartitionedQueue::new(vec![queue]).unwrap())).await
        });
    }

    mod partitioned_in_two {
        use super::*;
        steadfast::queue_conformance!(async || {
            let (clock, time) = Clock::manual();
            let partitions: Vec<_> = ["0", "1"].map(|name| InMemoryQueue::builder(name).clock(&clock).build()).into();
            let door = || -> Arc<dyn Queue> {
                let partitions = partitions.iter().map(|queue| Arc::new(queue.clone()) as Arc<dyn Queue>);
                Arc::new(PartitionedQueue::new(partitions.collect()).unwrap())
            };
            Fixture::new(door()).with_second_handle(door()).on_manual_time(&time)
        });
    }

    mod announcing {
        use super::*;
        steadfast::queue_conformance!(async || {
            fixture(|queue, _| Arc::new(AnnouncingQueue::new(queue, Arc::new(InMemoryNotifier::new()), "jobs"))).await
        });
    }
}

mod lease {
    use super::*;
    use steadfast::lease::{InMemoryLease, Lease};

    steadfast::lease_conformance!(async || {
        let (clock, time) = Clock::manual();
        let lease: Arc<dyn Lease> = Arc::new(InMemoryLease::builder().clock(&clock).build());
        Fixture::new(lease.clone()).with_second_handle(lease).on_manual_time(&time)
    });
}

/// Leases over a store, with two instances that observe it separately.
mod store_lease {
    use super::*;
    use steadfast::{
        lease::{Lease, StoreLease},
        store::InMemoryStore,
    };

    steadfast::lease_conformance!(async || {
        let (clock, time) = Clock::manual();
        let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
        let door = || Arc::new(StoreLease::builder(store.clone()).clock(&clock).build().unwrap());
        let (port, other): (Arc<dyn Lease>, Arc<dyn Lease>) = (door(), door());
        Fixture::new(port).with_second_handle(other).on_manual_time(&time)
    });
}

mod notify {
    use super::*;
    use steadfast::notify::{InMemoryNotifier, Notifier};

    steadfast::notifier_conformance!(async || {
        let (_, time) = Clock::manual();
        let notifier: Arc<dyn Notifier> = Arc::new(InMemoryNotifier::new());
        Fixture::new(notifier.clone()).with_second_handle(notifier).on_manual_time(&time)
    });
}
