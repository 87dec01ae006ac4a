//! Index tables: rows that are found by other keys than their own.
mod attacks;
mod beside;
mod copies;
mod drops;
mod faults;
mod model;
mod repairs;
mod unique;
mod writes;

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use steadfast::{
    codec::Codec,
    index_table::{IndexKey, IndexTable, IndexTableConfig, IndexTableError, IndexTableEvent},
    store::{InMemoryStore, Key, Precondition, Scan, Store, StoreExt},
    testing::{PortAnswer, ScriptedPort},
    time::{Clock, ManualClock},
};

#[cfg(feature = "nats")]
pub(crate) use beside::{is_refused_beside, lies_beside};
#[cfg(feature = "nats")]
pub(crate) use copies::are_right_on;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) use faults::ends_at_any;

const SECOND: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Movie {
    title: String,
    cast: Vec<String>,
    isan: Option<String>,
}

fn movie(title: &str, cast: &[&str]) -> Movie {
    let cast = cast.iter().map(|actor| (*actor).to_owned()).collect();
    Movie { title: title.to_owned(), cast, isan: None }
}

fn numbered(title: &str, isan: &str) -> Movie {
    Movie { isan: Some(isan.to_owned()), ..movie(title, &[]) }
}

fn json<T: Serialize + for<'a> Deserialize<'a> + 'static>() -> Codec<T> {
    Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes))
}

fn by_actor(movie: &Movie) -> Vec<IndexKey> {
    movie.cast.iter().map(|actor| IndexKey::new(actor, &movie.title)).collect()
}

/// A table over stores of its own, whose requests go through a script.
struct World {
    clock: Clock,
    time: ManualClock,
    script: ScriptedPort,
    /// The rows, the entries by actor, and those by number.
    stores: [Arc<dyn Store>; 3],
}

impl World {
    fn new() -> Self {
        let (clock, time) = Clock::manual();
        let script = ScriptedPort::new(&clock);
        let stores = [(); 3].map(|()| Arc::new(InMemoryStore::builder().clock(&clock).build()) as Arc<dyn Store>);
        Self { clock, time, script, stores }
    }

    /// The table as a process has it.
    fn table(&self) -> IndexTable<Movie> {
        let [base, actors, isans] = self.stores.clone().map(|store| self.script.store(store));
        IndexTable::builder(base, json(), IndexTableConfig::default())
            .index("by-actor", actors, by_actor)
            .unique("by-isan", isans, |movie: &Movie| movie.isan.clone())
            .clock(&self.clock)
            .name("movies")
            .build()
            .unwrap()
    }

    /// A table whose indexes are built.
    fn built(&self) -> IndexTable<Movie> {
        let table = self.table();
        self.run(table.build_indexes(["action"])).unwrap();
        table
    }

    fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.time.block_on(future)
    }

    fn put(&self, table: &IndexTable<Movie>, movie: &Movie) {
        self.run(table.put(at(&movie.title), movie, Precondition::Any)).unwrap();
    }

    fn titles(&self, table: &IndexTable<Movie>, actor: &str) -> Vec<String> {
        let page = self.run(table.lookup("by-actor", actor).rows()).unwrap();
        page.rows.into_iter().map(|row| row.value.title).collect()
    }

    /// The number of all entries of an index, past the table.
    fn entries(&self, index: &str) -> usize {
        let store = &self.stores[if index == "by-actor" { 1 } else { 2 }];
        let partitions = (0..16).map(|nth| Scan::partition(format!("index/{index}/{nth:02}")));
        partitions.map(|scan| self.run(store.scan_all(scan)).unwrap().len()).sum()
    }

    /// Writes a row past the table.
    fn write(&self, movie: &Movie) {
        let value = json::<Movie>().encode(movie).unwrap();
        self.run(self.stores[0].put(at(&movie.title), value.into(), Precondition::Any.into())).unwrap();
    }
}

/// Runs two writes, of which the second begins a second later.
fn both(world: &World, write: impl AsyncFn(usize) -> Result<(), IndexTableError>) {
    world.run(async {
        let second = async {
            world.clock.sleep(SECOND).await;
            write(1).await
        };
        let (first, second) = futures::join!(write(0), second);
        first.and(second).unwrap();
    });
}

fn at(title: &str) -> Key<'_> {
    Key::new("action", title)
}

fn is_duplicate<T>(result: &Result<T, IndexTableError>) -> bool {
    matches!(result, Err(IndexTableError::Duplicate { .. }))
}
