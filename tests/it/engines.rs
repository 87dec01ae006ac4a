//! The engines on which a scenario is run: in memory, and one SQLite file.
use std::{fmt, future::Future, sync::Arc};

use steadfast::{
    backend::sqlite::{Durability, Sqlite, SqliteConfig},
    queue::{InMemoryQueue, Queue},
    store::{InMemoryStore, Store},
    time::{Clock, ManualClock, block_on},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    Memory,
    Sqlite,
}

/// A new, empty backend on a manual clock.
pub(crate) struct World {
    pub(crate) clock: Clock,
    pub(crate) time: ManualClock,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) queue: Arc<dyn Queue>,
    engine: Engine,
    _folder: Option<tempfile::TempDir>,
}

impl Engine {
    pub(crate) const ALL: [Self; 2] = [Self::Memory, Self::Sqlite];

    pub(crate) fn world(self) -> World {
        let (clock, time) = Clock::manual();
        let (store, queue, folder): (Arc<dyn Store>, Arc<dyn Queue>, _) = match self {
            Self::Memory => {
                let queue = InMemoryQueue::builder("jobs").clock(&clock).build();
                (Arc::new(InMemoryStore::builder().clock(&clock).build()), Arc::new(queue), None)
            }
            Self::Sqlite => {
                let folder = tempfile::tempdir().unwrap();
                let config = SqliteConfig::at(folder.path().join("state.db")).durability(Durability::Relaxed);
                let sqlite = Sqlite::open_with_clock(config, &clock).unwrap();
                (Arc::new(sqlite.store()), Arc::new(sqlite.queue("jobs").unwrap()), Some(folder))
            }
        };
        World { clock, time, store, queue, engine: self, _folder: folder }
    }
}

impl World {
    /// Runs the future, and moves the clock while it waits.
    pub(crate) fn run<F: Future>(&self, future: F) -> F::Output {
        self.time.block_on(future)
    }

    /// Returns the number of messages in the queue, and of its dead letters. The clock does not move.
    pub(crate) fn depths(&self) -> (u64, u64) {
        let depth = |queue: &dyn Queue| block_on(queue.depth()).unwrap().total();
        (depth(&*self.queue), depth(&*self.queue.dead_letters().unwrap()))
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.engine.fmt(f)
    }
}
