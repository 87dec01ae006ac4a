//! The job's ledger, in shards: the state of each request, so that a killed run can be continued.
use std::{
    collections::{BTreeMap, HashMap},
    fs::{File, TryLockError},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use steadfast::{
    port::PortError,
    queue::{InMemoryQueue, Queue},
    sharding::{ShardId, ShardMap},
    store::{InMemoryStore, Key, Row, Store, StoreError, StoreExt, Version},
};

use crate::{
    engine::Engine,
    shards::{self, Shards, Unrouted},
};

/// Name of the queue of accepted requests.
const ACCEPTED: &str = "accepted";
/// Capacity of the queue in memory; senders wait while it is full.
const MOST: usize = 100_000;

/// Location of the ledger and the services' books.
pub(crate) use crate::engine::EngineAt as StoreAt;

/// Store of the ledger and the books, and the queue of accepted requests.
type Ports = (Arc<dyn Store>, Arc<dyn Queue>);

impl StoreAt {
    pub async fn open(&self, engine: &Engine) -> Result<Ports, PortError> {
        match self {
            Self::Memory => {
                Ok((Arc::new(InMemoryStore::new()), Arc::new(InMemoryQueue::builder(ACCEPTED).bounded(MOST).build())))
            }
            Self::Sqlite(file) => sqlite(file),
            Self::Server(_) | Self::Private(_) => {
                let backend = engine.open().await?;
                Ok((backend.store(), backend.queue(ACCEPTED).await?))
            }
        }
    }

    /// Locks the file for this process until the returned value is dropped: a second process would
    /// undo the first one's work. The lock ends with the process, also after a kill.
    pub fn take(&self) -> Result<Option<File>, String> {
        let Self::Sqlite(file) = self else { return Ok(None) };
        let at = |e: io::Error| format!("{}: {e}", file.display());
        // One file has one lock, also under several paths.
        let file = match file.canonicalize() {
            Ok(file) => file,
            Err(_) => {
                let (folder, name) = (file.parent().unwrap_or(Path::new("")), file.file_name());
                let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
                folder.canonicalize().map_err(at)?.join(name.ok_or_else(|| format!("{}: not a file", file.display()))?)
            }
        };
        let mut name = file.into_os_string();
        name.push(".running");
        let path = PathBuf::from(name);
        let at = |e: io::Error| format!("{}: {e}", path.display());
        let mut lock = File::options().read(true).write(true).create(true).truncate(false).open(&path).map_err(at)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let known = lock.take(20).read_to_string(&mut holder).is_ok() && !holder.is_empty();
                let holder = if known { format!(" (process {holder})") } else { String::new() };
                return Err(format!("another run{holder} is at work on it: wait for its end, or take another file"));
            }
            Err(TryLockError::Error(e)) => return Err(at(e)),
        }
        // For the message above only: the lock does not need it.
        let _ = lock.set_len(0).and_then(|()| write!(lock, "{}", std::process::id()));
        Ok(Some(lock))
    }

    /// Opens the store of a shard: in memory, a file beside the job's, or a name space of the server.
    pub async fn shard(&self, engine: &Engine, shard: ShardId) -> Result<Arc<dyn Store>, PortError> {
        match self {
            Self::Memory => Ok(Arc::new(InMemoryStore::new())),
            Self::Sqlite(file) => Ok(sqlite(&shard_file(file, shard))?.0),
            Self::Server(_) | Self::Private(_) => engine.store_aside(&format!("shard-{:04}", shard.0)).await,
        }
    }
}

/// `job.db.shard-0003`.
pub fn shard_file(file: &Path, shard: ShardId) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(format!(".shard-{:04}", shard.0));
    name.into()
}

#[cfg(feature = "sqlite")]
fn sqlite(file: &Path) -> Result<Ports, PortError> {
    use steadfast::backend::sqlite::{Sqlite, SqliteConfig};
    let sqlite = Sqlite::open(SqliteConfig::at(file))?;
    Ok((Arc::new(sqlite.store()), Arc::new(sqlite.queue(ACCEPTED)?)))
}

#[cfg(not(feature = "sqlite"))]
fn sqlite(_: &Path) -> Result<Ports, PortError> {
    Err(PortError::invalid("--store", "sqlite needs the feature `sqlite`, which this build has not: --features sqlite"))
}

/// State of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum State {
    /// Its saga has the progress.
    Received,
    Scheduled,
    Rejected,
    /// Abandoned by a run. The next run tries again.
    Lost {
        /// Number of its sagas that were compensated.
        tries: u32,
        why: String,
    },
    Duplicate,
    DeadLettered {
        why: String,
    },
}

/// Identity of the job that owns a file; other jobs are refused.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub input: String,
    pub requests: usize,
    pub seed: u64,
    /// Number of shards at the start.
    #[serde(default = "one")]
    pub shards: u32,
}

const fn one() -> u32 {
    1
}

/// One request's record.
#[derive(Debug, Clone)]
pub struct Entry {
    pub state: State,
    pub version: Version,
    /// `true` if it was entered by an earlier run.
    pub is_old: bool,
    /// `true` if a newer state may have been written without a response.
    in_doubt: bool,
}

/// The error of a failed entry.
#[derive(Debug, thiserror::Error)]
pub enum Unwritten {
    /// The record's shard is unavailable: retry after at least this time.
    #[error("{why}")]
    Away { wait: Duration, why: String },
    /// The job cannot continue.
    #[error("{0}")]
    Failed(String),
}

/// The records, one for each request of the job, by index in the input.
pub struct Ledger {
    /// Store of the job's own records.
    store: Arc<dyn Store>,
    pub shards: Arc<Shards>,
}

impl Ledger {
    /// Opens the job's ledger; a new file is assigned to the job.
    pub async fn open(store: &Arc<dyn Store>, job: &Identity) -> Result<(), String> {
        let key = Key::new("job", "identity");
        match store.insert(key, json(job)).await {
            Ok(_) => return Ok(()),
            Err(StoreError::Conflict { .. }) => {}
            Err(error) => return Err(error.to_string()),
        }
        let record = store.get(key).await.map_err(shards::why)?.ok_or("its identity was deleted by another process")?;
        let kept: Identity = serde_json::from_slice(&record.value).map_err(|e| format!("its identity: {e}"))?;
        let show = |job: &Identity| {
            let shards = if job.shards == 1 { String::new() } else { format!(", {} shards", job.shards) };
            format!("{} requests of input {}, seed {}{shards}", job.requests, job.input, job.seed)
        };
        if kept == *job {
            Ok(())
        } else {
            Err(format!("it belongs to another job: {}; this one has {}", show(&kept), show(job)))
        }
    }

    pub fn new(store: Arc<dyn Store>, shards: Arc<Shards>) -> Self {
        Self { store, shards }
    }

    /// Starts or continues the job: enters new requests, and returns the earlier states. No move is in progress then.
    pub async fn take_up(
        &self,
        mut fresh: BTreeMap<usize, State>,
        patience: Duration,
    ) -> Result<BTreeMap<usize, Entry>, String> {
        let mut entries = BTreeMap::new();
        let at_home = |rows: &mut Vec<_>, row, home: bool| rows.extend(home.then_some(row));
        let read = self.shards.read(patience, at_home).await?;
        for row in read.into_values().flatten() {
            let (place, state) = parse(&row.row, &row.value)?;
            fresh.remove(&place);
            entries.insert(place, Entry { state, version: row.version, is_old: true, in_doubt: false });
        }
        // Once all requests are entered none may be missing: an empty shard is then an error, not a new shard.
        let entered = Key::new("job", "entered");
        if let Some((first, _)) = fresh.first_key_value() {
            if self.store.get(entered).await.map_err(shards::why)?.is_some() {
                let n = fresh.len();
                return Err(format!(
                    "{n} of its records are gone, the first that of request {first}: where is its shard?"
                ));
            }
            // A run killed here has entered some requests: the next run enters the others.
            let rows = fresh.iter().map(|(place, state)| (row(*place), json(state).into())).collect();
            let mut versions = self.shards.insert(rows).await?;
            for (place, state) in fresh {
                let version = versions.remove(&row(place)).ok_or("a record that was put has no version")?;
                entries.insert(place, Entry { state, version, is_old: false, in_doubt: false });
            }
        }
        match self.store.insert(entered, "all").await {
            Ok(_) | Err(StoreError::Conflict { .. }) => Ok(entries),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Writes the state of a request by compare-and-set.
    pub async fn advance(&self, place: usize, entry: &mut Entry, state: &State) -> Result<(), Unwritten> {
        let row = row(place);
        loop {
            let error = match self.shards.replace(&row, json(state).into(), entry.version).await {
                Ok(version) => {
                    *entry = Entry { state: state.clone(), version, in_doubt: false, ..*entry };
                    return Ok(());
                }
                Err(error) if shards::conflicts(&error) => error,
                Err(error) => return Err(entry.unwritten(&error)),
            };
            // The version differs: the record was moved to a shard with its own versions, or an earlier write had no response, or
            // another process owns the record.
            let kept = self.shards.get(&row).await.map_err(|error| entry.unwritten(&error))?;
            let kept = kept.ok_or_else(|| Unwritten::Failed(format!("the record of request {place} is gone")))?;
            let (_, now) = parse(&row, &kept.value).map_err(Unwritten::Failed)?;
            if now == *state && entry.in_doubt {
                *entry = Entry { state: now, version: kept.version, in_doubt: false, ..*entry };
                return Ok(());
            }
            if now != entry.state {
                return Err(Unwritten::Failed(format!("another process works on it at the same time: {error}")));
            }
            entry.version = kept.version;
        }
    }

    /// Reads all records of all shards. Without a move in progress it also finds misplaced records.
    pub async fn tally(&self, patience: Duration) -> Result<Tally, String> {
        let fold = |rows: &mut Vec<_>, row: Row, home: bool| rows.push((parse(&row.row, &row.value), home));
        let mut tally = Tally::default();
        for (shard, rows) in self.shards.read(patience, fold).await? {
            tally.shards.insert(shard, 0);
            for (parsed, home) in rows {
                let (place, state) = parsed.map_err(|e| format!("{shard}: {e}"))?;
                tally.add(shard, place, &state, home);
            }
        }
        Ok(tally)
    }
}

impl Entry {
    fn unwritten(&mut self, error: &Unrouted) -> Unwritten {
        self.in_doubt |= shards::in_doubt(error);
        match shards::away(error) {
            Some(wait) => Unwritten::Away { wait, why: error.to_string() },
            None => Unwritten::Failed(error.to_string()),
        }
    }
}

fn parse(row: &str, value: &[u8]) -> Result<(usize, State), String> {
    let place = row.parse().map_err(|_| format!("the row {row:?} is no place in the input"))?;
    let state = serde_json::from_slice(value).map_err(|e| format!("request {place}: {e}"))?;
    Ok((place, state))
}

/// Contents of the shards.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Tally {
    pub scheduled: usize,
    pub rejected: usize,
    pub duplicates: usize,
    pub dead_lettered: usize,
    pub lost: usize,
    /// Unfinished requests.
    pub open: usize,
    /// Records, by shard.
    pub shards: BTreeMap<ShardId, usize>,
    /// Shard of each record, by index.
    places: HashMap<usize, ShardId>,
    /// Misplaced records.
    pub astray: Vec<String>,
}

impl Tally {
    fn add(&mut self, shard: ShardId, place: usize, state: &State, home: bool) {
        if !home {
            return self.astray.push(format!("a record of request {place} lies at {shard}, which does not own it"));
        }
        *self.shards.entry(shard).or_default() += 1;
        self.places.insert(place, shard);
        let class = match state {
            State::Scheduled => &mut self.scheduled,
            State::Rejected => &mut self.rejected,
            State::Duplicate => &mut self.duplicates,
            State::DeadLettered { .. } => &mut self.dead_lettered,
            State::Lost { .. } => &mut self.lost,
            State::Received => &mut self.open,
        };
        *class += 1;
    }

    /// Returns the number of records.
    pub fn records(&self) -> usize {
        self.places.len()
    }

    /// Returns the number of records that lie elsewhere than by this map.
    pub fn moved_since(&self, map: &ShardMap) -> usize {
        self.places.iter().filter(|(place, shard)| map.shard_of(&row(**place)) != Some(**shard)).count()
    }
}

/// Number of digits, enough for any job, so that rows sort in the order of the input.
fn row(place: usize) -> String {
    format!("{place:010}")
}

fn json(document: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(document).unwrap_or_default()
}

/// A fingerprint of the input, without protection against malicious collisions: FNV-1a.
pub struct Fingerprint(u64);

impl Fingerprint {
    pub const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    pub fn add(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    }
}

impl std::fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A reader that computes the fingerprint of its bytes.
pub struct Fingerprinted<R> {
    pub from: R,
    pub print: Fingerprint,
}

impl<R: std::io::Read> std::io::Read for Fingerprinted<R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let n = self.from.read(into)?;
        self.print.add(&into[..n]);
        Ok(n)
    }
}
