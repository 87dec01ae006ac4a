//! SQLite: two handles of one file, as two processes have them.
use std::sync::Arc;

use steadfast::{
    backend::sqlite::{Durability, Sqlite, SqliteConfig},
    testing::conformance::Fixture,
    time::Clock,
};

/// Returns a fixture of two handles of a new file with manual time. A restart closes both, and opens the file anew.
fn fixture<P: ?Sized + 'static>(
    durability: Durability,
    port: impl Fn(&Sqlite, &Clock) -> Arc<P> + Copy + 'static,
    neighbour: impl Fn(&Sqlite) -> Option<Arc<P>> + 'static,
) -> Fixture<P> {
    let folder = tempfile::tempdir().unwrap();
    let (clock, time) = Clock::manual();
    let path = folder.path().join("state.db");
    let handles = move || {
        let open = || Sqlite::open_with_clock(SqliteConfig::at(&path).durability(durability), &clock).unwrap();
        let one = open();
        let fixture = Fixture::new(port(&one, &clock)).with_second_handle(port(&open(), &clock));
        match neighbour(&one) {
            Some(neighbour) => fixture.with_neighbour(neighbour),
            None => fixture,
        }
    };
    handles().on_manual_time(&time).keeping(folder).with_restart(async move || handles())
}

macro_rules! suites {
    ($name:ident, $durability:expr) => {
        mod $name {
            use super::*;
            use steadfast::{
                lease::{Lease, StoreLease},
                notify::Notifier,
                queue::Queue,
                store::Store,
                stream::{StoreTopic, Topic},
                time::block_on,
            };

            mod store {
                use super::*;

                steadfast::store_conformance!(async || {
                    fixture($durability, |sqlite, _| -> Arc<dyn Store> { Arc::new(sqlite.store()) }, |_| None)
                });
            }

            mod queue {
                use super::*;

                steadfast::queue_conformance!(async || {
                    let queue = |sqlite: &Sqlite, name| -> Arc<dyn Queue> { Arc::new(sqlite.queue(name).unwrap()) };
                    fixture(
                        $durability,
                        move |sqlite, _| queue(sqlite, "jobs"),
                        move |sqlite| Some(queue(sqlite, "others")),
                    )
                });
            }

            mod lease {
                use super::*;

                steadfast::lease_conformance!(async || {
                    fixture(
                        $durability,
                        |sqlite, clock| -> Arc<dyn Lease> {
                            let lease = StoreLease::builder(Arc::new(sqlite.store())).clock(clock);
                            Arc::new(lease.build().unwrap())
                        },
                        |_| None,
                    )
                });
            }

            mod topic {
                use super::*;

                steadfast::topic_conformance!(async || {
                    let topic = |sqlite: &Sqlite, clock: &Clock| -> Arc<dyn Topic> {
                        // Relaxed writes are made in place, and durable ones by a thread: neither waits for this one.
                        let topic = StoreTopic::builder(Arc::new(sqlite.store()), "events", 3).clock(clock);
                        Arc::new(block_on(topic.build()).unwrap())
                    };
                    fixture($durability, topic, |_| None)
                });
            }

            mod notify {
                use super::*;

                steadfast::notifier_conformance!(async || {
                    fixture($durability, |sqlite, _| -> Arc<dyn Notifier> { Arc::new(sqlite.notifier()) }, |_| None)
                });
            }
        }
    };
}

suites!(durable, Durability::Full);
suites!(relaxed, Durability::Relaxed);
