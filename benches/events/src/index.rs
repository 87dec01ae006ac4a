//! An index table, and the same requests to the same store by hand.
//!
//! By hand there are no states of an index, no versions of entries, no second attempts, and no keys that need escapes.
use std::{path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use steadfast::{
    backend::sqlite::{Durability, Sqlite, SqliteConfig},
    codec::Codec,
    index_table::{IndexKey, IndexTable, IndexTableConfig},
    store::{Key, Precondition, Row, Scan, Store},
};

use crate::timed;

/// Movies of an actor.
const PER_ACTOR: usize = 10;
/// Movies of a file.
const MOVIES: usize = 2_000;
/// Partitions of the movies, and of the index.
const PARTITIONS: usize = 16;

#[derive(Clone, Serialize, Deserialize)]
struct Movie {
    title: String,
    actor: String,
}

impl Movie {
    fn new(n: usize) -> Self {
        Self { title: format!("movie-{n:06}"), actor: actor(n / PER_ACTOR) }
    }
}

fn actor(n: usize) -> String {
    format!("actor-{n:06}")
}

/// The movies of an actor are in one partition.
fn partition(n: usize) -> String {
    format!("movies-{:02}", n / PER_ACTOR % PARTITIONS)
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// The ten movies of an actor.
    Rows,
    /// The same from the index alone, which has their titles.
    Copies,
    /// A movie with another actor.
    Put,
}

fn store(file: &Path) -> Arc<dyn Store> {
    Arc::new(Sqlite::open(SqliteConfig::at(file).durability(Durability::Relaxed)).expect("a file").store())
}

/// Looks movies up, or gives them another actor, one after the other.
pub async fn ours(file: &Path, request: Request, count: usize) -> Duration {
    let (store, json) = (store(file), Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes)));
    let by_actor = |movie: &Movie| vec![IndexKey::new(&movie.actor, &movie.title)];
    let table =
        IndexTable::builder(store.clone(), json, IndexTableConfig::default()).index("by-actor", store, by_actor);
    let table =
        if request == Request::Copies { table.copying("by-actor", |movie: &Movie| movie.title.clone()) } else { table };
    let table = table.build().expect("a table");
    table.build_indexes((0..PARTITIONS).map(|n| partition(n * PER_ACTOR))).await.expect("an index");
    for n in 0..MOVIES {
        let (partition, movie) = (partition(n), Movie::new(n));
        table.put(Key::new(&partition, &movie.title), &movie, Precondition::Any).await.expect("a movie");
    }
    timed(async {
        for n in 0..count {
            let first = actor(n * 61 % (MOVIES / PER_ACTOR));
            match request {
                Request::Rows => {
                    let page = table.lookup("by-actor", first).rows().await.expect("a page");
                    assert_eq!(page.rows.len(), PER_ACTOR);
                }
                Request::Copies => {
                    let page = table.lookup("by-actor", first).copies().await.expect("a page");
                    assert_eq!(page.rows.len(), PER_ACTOR);
                }
                Request::Put => {
                    let (at, mut movie) = (partition(n % MOVIES), Movie::new(n % MOVIES));
                    movie.actor = format!("actor-of-{n}");
                    table.put(Key::new(&at, &movie.title), &movie, Precondition::Any).await.expect("a movie");
                }
            }
        }
    })
    .await
}

/// Partition and row of an entry.
fn entry(movie: &Movie) -> (String, String) {
    (entries(&movie.actor), format!("{}/{}", movie.actor, movie.title))
}

fn entries(actor: &str) -> String {
    let hash = actor.bytes().fold(0_usize, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
    format!("by-actor-{:02}", hash % PARTITIONS)
}

async fn put(store: &dyn Store, partition: &str, row: &str, value: Vec<u8>, when: Precondition) {
    store.put(Key::new(partition, row), value.into(), when.into()).await.expect("a put");
}

/// The same by hand.
pub async fn by_hand(file: &Path, request: Request, count: usize) -> Duration {
    let store = store(file);
    let json = |movie: &Movie| serde_json::to_vec(movie).expect("JSON");
    let of = |bytes: &Bytes| serde_json::from_slice::<Movie>(bytes).expect("JSON");
    for n in 0..MOVIES {
        let movie = Movie::new(n);
        let (at, row) = entry(&movie);
        put(&store, &at, &row, movie.title.clone().into_bytes(), Precondition::Any).await;
        put(&store, &partition(n), &movie.title, json(&movie), Precondition::Any).await;
    }
    timed(async {
        for n in 0..count {
            let of_actor = n * 61 % (MOVIES / PER_ACTOR);
            let first = actor(of_actor);
            match request {
                Request::Rows | Request::Copies => {
                    let scan = Scan::partition(entries(&first)).prefix(format!("{first}/"));
                    let page = store.scan(&scan).await.expect("a page");
                    if request == Request::Copies {
                        // The place of each movie, whose row is behind the actor in the name of the entry, and its copy.
                        let at = partition(of_actor * PER_ACTOR);
                        let copy = |entry: Row| {
                            let row = entry.row.split_once('/').expect("a title").1.to_owned();
                            (at.clone(), row, entry.value)
                        };
                        let copies: Vec<(String, String, Bytes)> = page.rows.into_iter().map(copy).collect();
                        assert_eq!(copies.len(), PER_ACTOR);
                        continue;
                    }
                    let titles = page.rows.iter().map(|entry| String::from_utf8(entry.value.to_vec()).expect("text"));
                    let movies = Scan::partition(partition(of_actor * PER_ACTOR)).named(titles);
                    let movies = store.scan(&movies).await.expect("movies");
                    let found = movies.rows.iter().filter(|row| of(&row.value).actor == first).count();
                    assert_eq!(found, PER_ACTOR);
                }
                Request::Put => {
                    let (at, mut movie) = (partition(n % MOVIES), Movie::new(n % MOVIES));
                    movie.actor = format!("actor-of-{n}");
                    let old = store.get(Key::new(&at, &movie.title)).await.expect("a read").expect("a movie");
                    let ((gains, gained), (loses, lost)) = (entry(&movie), entry(&of(&old.value)));
                    put(&store, &gains, &gained, movie.title.clone().into_bytes(), Precondition::Any).await;
                    let lost_entry = store.get(Key::new(&loses, &lost)).await.expect("a read").expect("an entry");
                    put(&store, &at, &movie.title, json(&movie), Precondition::Version(old.version)).await;
                    let when = Precondition::Version(lost_entry.version);
                    assert!(store.delete(Key::new(&loses, &lost), when.into()).await.expect("a delete"));
                }
            }
        }
    })
    .await
}
