//! An index table: movies by actor, and each number of a movie once, while writers and a repair are killed.
//!
//! A program of old has written movies by genre. Three processes write through the table, another one indexes what is there,
//! then repairs, and all of them are killed. Watchers put movies, too, and find each of them by each of its actors, with the
//! copy of its number that the index has, and by its year within its genre, until they put it again. At the end all rows are
//! compared with all entries and all copies. The last line is the result as JSON.
#![allow(missing_docs, reason = "a program has no readers from outside")]
#[path = "common/mod.rs"]
mod common;
#[path = "common/engine.rs"]
mod engine;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use clap::{Parser, ValueEnum};
use common::{Result, say};
use engine::{Engine, EngineAt};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use steadfast::{
    codec::Codec,
    entropy::Entropy,
    index_table::{IndexKey, IndexTable, IndexTableConfig, IndexTableError, Lookup, is_deleted},
    port::{ErrorClass, Failure as _},
    store::{Key, Precondition, Scan, Store, StoreExt as _},
    time::Clock,
};
use tokio::process::{Child, Command};

/// Writes and finds movies in several processes that are killed.
#[derive(Parser, Clone)]
struct Args {
    /// Number of movies of a genre that are there before.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    movies: u32,
    /// Number of kills of a random process.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(..=1_000))]
    kills: u32,
    /// Place of movies and indexes: `sqlite:FILE`, the URL of a server, or `postgres` or `redis` for a server of this run. A
    /// temporary file by default.
    #[arg(long, value_name = "BACKEND")]
    backend: Option<EngineAt>,
    /// Seed of the movies and the kills.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[arg(long, hide = true, default_value = "write")]
    role: Role,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq)]
enum Role {
    Write,
    Repair,
}

const GENRES: [&str; 3] = ["action", "comedy", "drama"];
const ACTORS: u64 = 12;
const YEARS: RangeInclusive<u64> = 1979..=1984;
const NUMBERS: u64 = 200;
const WRITERS: usize = 3;
const WATCHERS: u64 = 4;

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    match Engine::of_parent() {
        Some(engine) => common::end(work(&args, &engine).await.map(|()| (Value::Null, true))),
        None => common::end(watch(&args).await),
    }
}

#[derive(Clone, Serialize, Deserialize)]
struct Movie {
    title: String,
    year: u64,
    cast: BTreeSet<String>,
    isan: Option<String>,
}

impl Movie {
    fn draw(title: String, entropy: &Entropy) -> Self {
        let cast = (0..=entropy.up_to(2)).map(|_| format!("actor {}", entropy.up_to(ACTORS - 1))).collect();
        let isan = (entropy.up_to(1) == 0).then(|| format!("isan {}", entropy.up_to(NUMBERS - 1)));
        let year = YEARS.start() + entropy.up_to(YEARS.end() - YEARS.start());
        Self { title, year, cast, isan }
    }
}

fn codec() -> Codec<Movie> {
    Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes))
}

/// Passes errors on but those of a busy file, after which the same is done again.
fn unless_busy<T>(done: std::result::Result<T, IndexTableError>) -> Result<Option<T>> {
    match done {
        Err(error) if error.class() == ErrorClass::Transient => Ok(None),
        other => Ok(Some(other?)),
    }
}

/// Movies, and the number of stale entries.
type Found = std::result::Result<(Vec<Movie>, u64), IndexTableError>;

struct Movies {
    store: Arc<dyn Store>,
    table: IndexTable<Movie>,
    genres: [String; 3],
    by_actor: String,
    by_year: String,
}

impl Movies {
    async fn open(engine: &Engine) -> Result<Self> {
        let store = engine.open().await?.store();
        let (by_actor, by_year) = (engine.name("by-actor"), engine.name("by-year"));
        let table = IndexTable::builder(store.clone(), codec(), IndexTableConfig::default())
            .index(by_actor.clone(), store.clone(), |movie: &Movie| {
                movie.cast.iter().map(|actor| IndexKey::new(actor, &movie.title)).collect()
            })
            .copying(by_actor.clone(), |movie: &Movie| movie.isan.clone().unwrap_or_default())
            .unique(engine.name("by-isan"), store.clone(), |movie: &Movie| movie.isan.clone())
            .beside(by_year.clone(), |movie: &Movie| vec![IndexKey::new(movie.year.to_string(), &movie.title)])
            .build()?;
        Ok(Self { store, table, genres: GENRES.map(|genre| engine.name(genre)), by_actor, by_year })
    }

    /// Puts a movie, or leaves it as it is if another one has its number.
    async fn put(&self, genre: &str, movie: &Movie) -> Result<bool> {
        loop {
            match self.table.put(Key::new(genre, &movie.title), movie, Precondition::Any).await {
                Ok(_) => return Ok(true),
                Err(IndexTableError::Duplicate { .. }) => return Ok(false),
                // The put is the same the second time.
                other => drop(unless_busy(other)?),
            }
        }
    }

    /// Returns all movies of a genre, past the table.
    async fn all(&self, genre: &str) -> Result<Vec<Movie>> {
        let rows = self.store.scan_all(Scan::partition(genre)).await?;
        let rows = rows.into_iter().filter(|row| !row.row.starts_with("index/") && !is_deleted(&row.value));
        Ok(rows.map(|row| codec().decode(&row.value)).collect::<std::result::Result<_, _>>()?)
    }

    /// Returns the titles of the movies of an actor whose titles have this prefix, with the copies of their numbers.
    async fn numbers(&self, actor: &str, prefix: &str) -> Result<Vec<(String, String)>> {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let lookup = self.table.lookup(&*self.by_actor, actor).prefix(prefix);
            let page = match after {
                Some(after) => lookup.after(after),
                None => lookup,
            };
            let page = page.copies().await?;
            let of_page = page.rows.into_iter();
            found.extend(of_page.map(|found| (found.key.row, String::from_utf8_lossy(&found.copy).into_owned())));
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(found),
            }
        }
    }

    /// Returns the movies of an actor whose titles have this prefix, and the number of stale entries.
    async fn of(&self, actor: &str, prefix: &str) -> Found {
        Self::pages(|| self.table.lookup(&*self.by_actor, actor).prefix(prefix)).await
    }

    /// Returns the movies of a genre and a year whose titles have this prefix, and the number of stale entries.
    async fn within(&self, genre: &str, year: u64, prefix: &str) -> Found {
        Self::pages(|| self.table.lookup(&*self.by_year, year.to_string()).within(genre).prefix(prefix)).await
    }

    async fn pages<'a>(lookup: impl Fn() -> Lookup<'a, Movie>) -> Found {
        let (mut found, mut stale, mut after) = (Vec::new(), 0, None);
        loop {
            let lookup = lookup();
            let page = match after {
                Some(after) => lookup.after(after),
                None => lookup,
            };
            let page = page.rows().await?;
            found.extend(page.rows.into_iter().map(|row| row.value));
            stale += page.stale;
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok((found, stale)),
            }
        }
    }
}

// ---- a process that writes, or repairs, until it is killed ------------------------------------------------------------------

async fn work(args: &Args, engine: &Engine) -> Result<()> {
    let (movies, clock) = (Movies::open(engine).await?, Clock::tokio());
    if args.role == Role::Repair {
        while let Err(error) = movies.table.build_indexes(&movies.genres).await {
            if !matches!(error.class(), ErrorClass::Transient) {
                return Err(error.into());
            }
        }
        loop {
            for genre in &movies.genres {
                unless_busy(movies.table.repair(genre).await)?;
                clock.sleep(Duration::from_millis(200)).await;
            }
        }
    }
    let entropy = Entropy::from_seed(args.seed);
    futures::future::try_join_all((0..4).map(|_| async {
        loop {
            let genre = &movies.genres[entropy.up_to(2) as usize];
            let title = format!("movie {:04}", entropy.up_to(u64::from(args.movies) - 1));
            if entropy.up_to(9) == 0 {
                unless_busy(movies.table.delete(Key::new(genre, &title), Precondition::Any).await)?;
            } else {
                movies.put(genre, &Movie::draw(title, &entropy)).await?;
            }
            clock.sleep(Duration::from_millis(entropy.up_to(4))).await;
        }
    }))
    .await
    .map(|_: Vec<()>| ())
}

fn start(engine: &Engine, args: &Args, role: &str, seed: u64) -> Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--role", role, "--seed", &seed.to_string(), "--movies", &args.movies.to_string()]);
    Ok(command.envs(engine.variables()).kill_on_drop(true).spawn()?)
}

// ---- watchers, and the judgement --------------------------------------------------------------------------------------------

#[derive(Default)]
struct Seen {
    looked_up: AtomicU64,
    false_rows: AtomicU64,
    missing_rows: AtomicU64,
    false_copies: AtomicU64,
}

fn count(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Relaxed);
}

/// Puts a movie of its own, and looks it up by each actor until the next put.
async fn watches(movies: &Movies, nth: u64, seen: &Seen, ends: &AtomicBool) -> Result<()> {
    let (entropy, clock) = (Entropy::from_seed(1_000 + nth), Clock::tokio());
    while !ends.load(Relaxed) {
        let movie = Movie::draw(format!("watched {nth}"), &entropy);
        let is_put = movies.put(&movies.genres[0], &movie).await?;
        for actor in (0..ACTORS).map(|actor| format!("actor {actor}")) {
            let has_it = movie.cast.contains(&actor);
            match movies.of(&actor, &movie.title).await {
                Ok((found, _)) => {
                    count(&seen.looked_up, 1);
                    count(&seen.false_rows, found.iter().filter(|movie| !movie.cast.contains(&actor)).count());
                    count(&seen.missing_rows, usize::from(is_put && has_it && found.is_empty()));
                    let copies = movies.numbers(&actor, &movie.title).await?;
                    let wanted = (movie.title.clone(), movie.isan.clone().unwrap_or_default());
                    let is_true = copies.iter().eq(has_it.then_some(&wanted));
                    count(&seen.false_copies, usize::from(is_put && !is_true));
                }
                Err(IndexTableError::Building { .. }) => clock.sleep(Duration::from_millis(5)).await,
                other => drop(unless_busy(other)?),
            }
        }
        for year in YEARS {
            let genre = &movies.genres[0];
            match movies.within(genre, year, &movie.title).await {
                Ok((found, stale)) => {
                    count(&seen.looked_up, 1);
                    let false_rows = found.iter().filter(|movie| movie.year != year).count();
                    // No entry beside its row is ever stale.
                    count(&seen.false_rows, false_rows + stale as usize);
                    count(&seen.missing_rows, usize::from(is_put && year == movie.year && found.is_empty()));
                }
                Err(IndexTableError::Building { .. }) => clock.sleep(Duration::from_millis(5)).await,
                other => drop(unless_busy(other)?),
            }
        }
        clock.sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

async fn watch(args: &Args) -> Result<(Value, bool)> {
    let (folder, clock, entropy) = (tempfile::tempdir()?, Clock::tokio(), Entropy::from_seed(args.seed));
    let engine = EngineAt::start_shared(args.backend.as_ref(), folder.path(), "movies.db")?;
    let movies = Movies::open(&engine).await?;
    // A program of old, which knows no index.
    for genre in &movies.genres {
        for nth in 0..args.movies {
            let movie = Movie { isan: None, ..Movie::draw(format!("movie {nth:04}"), &entropy) };
            movies.store.insert(Key::new(genre, &movie.title), codec().encode(&movie)?).await?;
        }
    }
    say(format!("  {} movies of each of {} genres, on one {}", args.movies, GENRES.len(), engine.place()));
    let mut processes = Vec::new();
    for nth in 0..=WRITERS {
        let role = if nth == WRITERS { "repair" } else { "write" };
        processes.push((role, start(&engine, args, role, entropy.next_u64())?));
    }
    let (seen, ends) = (Seen::default(), AtomicBool::new(false));
    let watchers = futures::future::try_join_all((0..WATCHERS).map(|nth| watches(&movies, nth, &seen, &ends)));
    let course = async {
        for _ in 0..args.kills {
            clock.sleep(Duration::from_millis(100 + entropy.up_to(300))).await;
            let i = entropy.up_to(WRITERS as u64) as usize;
            let (role, process) = &mut processes[i];
            if process.try_wait()?.is_some_and(|ended| !ended.success()) {
                return Err(format!("a process to {role} has failed").into());
            }
            process.kill().await?;
            *process = start(&engine, args, role, entropy.next_u64())?;
        }
        // Until what was there is indexed.
        let is_building = |found: Found| matches!(found, Err(IndexTableError::Building { .. }));
        while is_building(movies.of("actor 0", "").await)
            || is_building(movies.within(&movies.genres[0], 1979, "").await)
        {
            clock.sleep(Duration::from_millis(50)).await;
        }
        for (_, process) in &mut processes {
            process.kill().await?;
        }
        clock.sleep(Duration::from_millis(200)).await;
        ends.store(true, Relaxed);
        Ok::<_, common::Failure>(())
    };
    tokio::try_join!(watchers, course)?;
    judge(&movies, &seen, args).await
}

/// Repairs what the kills have left, and compares all rows with all entries.
async fn judge(movies: &Movies, seen: &Seen, args: &Args) -> Result<(Value, bool)> {
    let (mut stale_entries, mut repaired, mut added) = (0, 0, 0);
    for actor in 0..ACTORS {
        stale_entries += movies.of(&format!("actor {actor}"), "").await?.1;
    }
    for genre in &movies.genres {
        for year in YEARS {
            count(&seen.false_rows, movies.within(genre, year, "").await?.1 as usize);
        }
        let report = movies.table.repair(genre).await?;
        (repaired, added) = (repaired + report.removed, added + report.added);
    }
    let (mut rows, mut left, mut numbers) = (Vec::new(), 0, BTreeMap::<String, usize>::new());
    for genre in &movies.genres {
        let of_genre = movies.all(genre).await?;
        for year in YEARS {
            let (found, stale) = movies.within(genre, year, "").await?;
            let wanted = of_genre.iter().filter(|movie| movie.year == year).count();
            count(&seen.missing_rows, wanted.saturating_sub(found.len()));
            count(&seen.false_rows, found.len().saturating_sub(wanted));
            left += stale;
        }
        rows.extend(of_genre);
    }
    for isan in rows.iter().filter_map(|movie| movie.isan.clone()) {
        *numbers.entry(isan).or_default() += 1;
    }
    let duplicates = numbers.values().filter(|count| **count > 1).count();
    for actor in (0..ACTORS).map(|actor| format!("actor {actor}")) {
        let (found, stale) = movies.of(&actor, "").await?;
        let wanted = rows.iter().filter(|movie| movie.cast.contains(&actor)).count();
        count(&seen.missing_rows, wanted.saturating_sub(found.len()));
        count(&seen.false_rows, found.len().saturating_sub(wanted));
        let numbers = found.into_iter().map(|movie| (movie.title, movie.isan.unwrap_or_default()));
        count(&seen.false_copies, usize::from(!numbers.eq(movies.numbers(&actor, "").await?)));
        left += stale;
    }
    let (looked_up, false_rows, missing_rows) =
        (seen.looked_up.load(Relaxed), seen.false_rows.load(Relaxed), seen.missing_rows.load(Relaxed));
    let false_copies = seen.false_copies.load(Relaxed);
    say(format!(
        "  {looked_up} look-ups of watched movies; a last repair removed {repaired} entries and added {added}"
    ));
    let summary = json!({ "rows": rows.len(), "false_copies": false_copies, "false_rows": false_rows, "missing_rows": missing_rows,
        "duplicates": duplicates, "stale_entries": stale_entries, "repaired": repaired, "left": left, "kills": args.kills });
    // Entries by number may be stale, too.
    let holds = (false_copies, false_rows, missing_rows, duplicates, left, added) == (0, 0, 0, 0, 0, 0);
    Ok((summary, holds && repaired >= stale_entries && looked_up > 0))
}
