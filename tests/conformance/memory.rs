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
