//! The safety suites of each backend behind a faulty network, with several seeds.
use std::sync::Arc;

use steadfast::{
    backend::sqlite::{Durability, Sqlite, SqliteConfig},
    queue::{InMemoryQueue, Queue},
    store::{InMemoryStore, Store},
    testing::{
        conformance::Fixture,
        faults::{FaultConfig, FaultNetwork},
    },
    time::Clock,
};

fn network(seed: u64, clock: &Clock) -> FaultNetwork {
    let faults = FaultConfig::default().errors(0.15).lost_replies(0.15).doubled(0.15).late(0.2);
    FaultNetwork::new(faults, seed, clock).unwrap()
}

macro_rules! seeds {
    ($($name:ident = $seed:expr),+ $(,)?) => {
        $(
            mod $name {
                use super::*;

                mod memory_store {
                    use super::*;

                    steadfast::store_safety!(async || {
                        let (clock, time) = Clock::manual();
                        let store: Arc<dyn Store> = Arc::new(InMemoryStore::builder().clock(&clock).build());
                        let faulty = network($seed, &clock).client("client").store(store.clone());
                        Fixture::new(faulty).with_second_handle(store).on_manual_time(&time)
                    });
                }

                mod sqlite_store {
                    use super::*;

                    steadfast::store_safety!(async || {
                        let (clock, time) = Clock::manual();
                        let folder = tempfile::tempdir().unwrap();
                        let config = SqliteConfig::at(folder.path().join("state.db")).durability(Durability::Relaxed);
                        let store: Arc<dyn Store> = Arc::new(Sqlite::open_with_clock(config, &clock).unwrap().store());
                        let faulty = network($seed, &clock).client("client").store(store.clone());
                        Fixture::new(faulty).with_second_handle(store).on_manual_time(&time).keeping(folder)
                    });
                }

                mod memory_queue {
                    use super::*;

                    steadfast::queue_safety!(async || {
                        let (clock, time) = Clock::manual();
                        let queue: Arc<dyn Queue> = Arc::new(InMemoryQueue::builder("jobs").clock(&clock).build());
                        let faulty = network($seed, &clock).client("client").queue(queue.clone());
                        let neighbour = Arc::new(InMemoryQueue::builder("others").clock(&clock).build());
                        let fixture = Fixture::new(faulty).with_second_handle(queue).with_neighbour(neighbour);
                        fixture.on_manual_time(&time)
                    });
                }

                mod sqlite_queue {
                    use super::*;

                    steadfast::queue_safety!(async || {
                        let (clock, time) = Clock::manual();
                        let folder = tempfile::tempdir().unwrap();
                        let config = SqliteConfig::at(folder.path().join("state.db")).durability(Durability::Relaxed);
                        let sqlite = Sqlite::open_with_clock(config, &clock).unwrap();
                        let queue: Arc<dyn Queue> = Arc::new(sqlite.queue("jobs").unwrap());
                        let faulty = network($seed, &clock).client("client").queue(queue.clone());
                        let neighbour = Arc::new(sqlite.queue("others").unwrap());
                        let fixture = Fixture::new(faulty).with_second_handle(queue).with_neighbour(neighbour);
                        fixture.on_manual_time(&time).keeping(folder)
                    });
                }
            }
        )+
    };
}

seeds!(seed_1 = 1, seed_2 = 2, seed_3 = 3);
