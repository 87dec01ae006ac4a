//! The backends in memory.
use std::sync::Arc;

use steadfast::{testing::conformance::Fixture, time::Clock};

mod store {
    use super::*;
    use steadfast::store::{InMemoryStore, Store};

    steadfast::store_conformance!(async || {
        let (clock, time) = Clock::manual();
        let store = InMemoryStore::builder().clock(&clock).build();
        let handles = move || {
            let (port, other): (Arc<dyn Store>, Arc<dyn Store>) = (Arc::new(store.clone()), Arc::new(store.clone()));
            Fixture::new(port).with_second_handle(other)
        };
        // The clients restart: the state is in another part of the process.
        handles().on_manual_time(&time).with_restart(async move || handles())
    });
}

mod topic {
    use super::*;
    use steadfast::{
        store::InMemoryStore,
        stream::{StoreTopic, Topic},
    };

    steadfast::topic_conformance!(async || {
        let (clock, time) = Clock::manual();
        let store = InMemoryStore::builder().clock(&clock).build();
        let open = move |name: &'static str| {
            let topic = StoreTopic::builder(Arc::new(store.clone()), name, 3).clock(&clock);
            async move { Arc::new(topic.build().await.unwrap()) as Arc<dyn Topic> }
        };
        let handles = async move || {
            let fixture = Fixture::new(open("events").await).with_second_handle(open("events").await);
            fixture.with_neighbour(open("others").await)
        };
        handles().await.on_manual_time(&time).with_restart(handles)
    });
}

/// Number of messages at which a queue is full.
const BOUND: usize = 1_500;

mod queue {
    use super::*;
    use steadfast::queue::{InMemoryQueue, Queue};

    steadfast::queue_conformance!(async || {
        let (clock, time) = Clock::manual();
        let queue = InMemoryQueue::builder("jobs").bounded(BOUND).clock(&clock).build();
        let neighbour = Arc::new(InMemoryQueue::builder("others").clock(&clock).build());
        let handles = move || {
            let (port, other): (Arc<dyn Queue>, Arc<dyn Queue>) = (Arc::new(queue.clone()), Arc::new(queue.clone()));
            Fixture::new(port).with_second_handle(other).with_neighbour(neighbour.clone())
        };
        handles().full_at(BOUND).on_manual_time(&time).with_restart(async move || handles())
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
        let (queue, store) =
            (InMemoryQueue::builder("jobs").bounded(BOUND).clock(&clock).build(), Arc::new(InMemoryStore::new()));
        let neighbour = Arc::new(InMemoryQueue::builder("others").clock(&clock).build());
        let handles = move || {
            let door = || wrap(Arc::new(queue.clone()), store.clone());
            Fixture::new(door()).with_second_handle(door()).with_neighbour(neighbour.clone())
        };
        handles().full_at(BOUND).on_manual_time(&time).with_restart(async move || handles())
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
            let neighbour = Arc::new(InMemoryQueue::builder("others").clock(&clock).build());
            let handles = move || {
                let door = || -> Arc<dyn Queue> {
                    let partitions = partitions.iter().map(|queue| Arc::new(queue.clone()) as Arc<dyn Queue>);
                    Arc::new(PartitionedQueue::new(partitions.collect()).unwrap())
                };
                Fixture::new(door()).with_second_handle(door()).with_neighbour(neighbour.clone())
            };
            handles().on_manual_time(&time).with_restart(async move || handles())
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
        let handles = move || {
            let door = || Arc::new(StoreLease::builder(store.clone()).clock(&clock).build().unwrap());
            let (port, other): (Arc<dyn Lease>, Arc<dyn Lease>) = (door(), door());
            Fixture::new(port).with_second_handle(other)
        };
        handles().on_manual_time(&time).with_restart(async move || handles())
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
