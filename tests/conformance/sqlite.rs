//! SQLite: two handles of one file, as two processes have them.
use std::{path::Path, sync::Arc};

use steadfast::{
    backend::sqlite::{Durability, Sqlite, SqliteConfig},
    testing::conformance::Fixture,
    time::{Clock, ManualClock},
};

/// Two handles of a new file with manual time, and the folder that must be kept as long.
fn two_handles(durability: Durability) -> (Sqlite, Sqlite, ManualClock, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let (clock, time) = Clock::manual();
    let open = |path: &Path| {
        let config = SqliteConfig::at(path).durability(durability);
        Sqlite::open_with_clock(config, &clock).unwrap()
    };
    let path = folder.path().join("state.db");
    (open(&path), open(&path), time, folder)
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
            };

            mod store {
                use super::*;

                steadfast::store_conformance!(async || {
                    let (one, other, time, folder) = two_handles($durability);
                    let (port, other): (Arc<dyn Store>, Arc<dyn Store>) =
                        (Arc::new(one.store()), Arc::new(other.store()));
                    Fixture::new(port).with_second_handle(other).on_manual_time(&time).keeping(folder)
                });
            }

            mod queue {
                use super::*;

                steadfast::queue_conformance!(async || {
                    let (one, other, time, folder) = two_handles($durability);
                    let queue = |sqlite: &Sqlite| Arc::new(sqlite.queue("jobs").unwrap());
                    let (port, other): (Arc<dyn Queue>, Arc<dyn Queue>) = (queue(&one), queue(&other));
                    Fixture::new(port).with_second_handle(other).on_manual_time(&time).keeping(folder)
                });
            }

            mod lease {
                use super::*;

                steadfast::lease_conformance!(async || {
                    let (one, other, time, folder) = two_handles($durability);
                    let clock = time.clock();
                    let door = |sqlite: &Sqlite| {
                        Arc::new(StoreLease::builder(Arc::new(sqlite.store())).clock(&clock).build().unwrap())
                    };
                    let (port, other): (Arc<dyn Lease>, Arc<dyn Lease>) = (door(&one), door(&other));
                    Fixture::new(port).with_second_handle(other).on_manual_time(&time).keeping(folder)
                });
            }

            mod notify {
                use super::*;

                steadfast::notifier_conformance!(async || {
                    let (one, other, time, folder) = two_handles($durability);
                    let (port, other): (Arc<dyn Notifier>, Arc<dyn Notifier>) =
                        (Arc::new(one.notifier()), Arc::new(other.notifier()));
                    Fixture::new(port).with_second_handle(other).on_manual_time(&time).keeping(folder)
                });
            }
        }
    };
}

suites!(durable, Durability::Full);
suites!(relaxed, Durability::Relaxed);
