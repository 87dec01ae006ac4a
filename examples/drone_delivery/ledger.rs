//! The job's ledger, in a store: what each request has come to, so that a run that was killed is gone on with.
use std::{collections::BTreeMap, path::PathBuf, str::FromStr, sync::Arc};

use serde::{Deserialize, Serialize};
use steadfast::{
    port::PortError,
    queue::{InMemoryQueue, Queue},
    store::{InMemoryStore, Key, Precondition, Scan, Store, StoreError, StoreExt, Version, Write},
};

/// The queue of the requests that were accepted.
const ACCEPTED: &str = "accepted";
/// In memory it holds no more than that: whoever sends waits.
const MOST: usize = 100_000;

/// Where the ledger and the services' books are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreAt {
    Memory,
    Sqlite(PathBuf),
}

impl FromStr for StoreAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "memory" => Ok(Self::Memory),
            Some(("sqlite", file)) if !file.is_empty() => Ok(Self::Sqlite(file.into())),
            _ => Err("must be `memory` or `sqlite:FILE`".into()),
        }
    }
}

/// The store of the ledger and the books, and the queue of the requests that were accepted.
type Ports = (Arc<dyn Store>, Arc<dyn Queue>);

impl StoreAt {
    pub fn open(&self) -> Result<Ports, PortError> {
        match self {
            Self::Memory => Ok((Arc::new(InMemoryStore::new()), Arc::new(InMemoryQueue::new(ACCEPTED).bounded(MOST)))),
            Self::Sqlite(file) => sqlite(file),
        }
    }
}

#[cfg(feature = "sqlite")]
fn sqlite(file: &std::path::Path) -> Result<Ports, PortError> {
    use steadfast::backend::sqlite::{Sqlite, SqliteConfig};
    let sqlite = Sqlite::open(SqliteConfig::at(file))?;
    Ok((Arc::new(sqlite.store()), Arc::new(sqlite.queue(ACCEPTED)?)))
}

#[cfg(not(feature = "sqlite"))]
fn sqlite(_: &std::path::Path) -> Result<Ports, PortError> {
    Err(PortError::invalid("--store", "sqlite needs the feature `sqlite`, which this build has not: --features sqlite"))
}

/// What a request has come to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum State {
    /// Its steps before this one are done.
    Received {
        step: usize,
    },
    Scheduled,
    Rejected,
    /// Given up by a run. The next run takes it up again, at this step.
    Lost {
        step: usize,
        why: String,
    },
    Duplicate,
    DeadLettered {
        why: String,
    },
}

/// What a file belongs to: another job is refused.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub input: String,
    pub requests: usize,
    pub seed: u64,
}

/// One request's record.
#[derive(Debug, Clone)]
pub struct Entry {
    pub state: State,
    pub version: Version,
}

/// The records, one for each request of the job, by its place in the input.
pub struct Ledger(Arc<dyn Store>);

const REQUESTS: &str = "requests";

impl Ledger {
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self(store)
    }

    /// Takes the job up: enters what is new, and gives what each request has come to before.
    pub async fn take_up(
        &self,
        job: &Identity,
        mut fresh: BTreeMap<usize, State>,
    ) -> Result<BTreeMap<usize, Entry>, String> {
        self.identify(job).await?;
        let mut entries = BTreeMap::new();
        let rows = self.0.scan_all(Scan::partition(REQUESTS).limit(1000)).await.map_err(|e| e.to_string())?;
        for row in rows {
            let place = row.row.parse().map_err(|_| format!("the row {:?} is no place in the input", row.row))?;
            let state = serde_json::from_slice(&row.value).map_err(|e| format!("request {place}: {e}"))?;
            fresh.remove(&place);
            entries.insert(place, Entry { state, version: row.version });
        }
        let fresh: Vec<(usize, State)> = fresh.into_iter().collect();
        // A run that is killed here has entered some: the next one enters the others.
        for some in fresh.chunks(self.0.capabilities().max_batch().clamp(1, 500)) {
            let enter = |(place, state): &(usize, State)| Write::put(row(*place), json(state), Precondition::Absent);
            let versions = self.0.batch(REQUESTS, some.iter().map(enter).collect()).await.map_err(|e| changed(&e))?;
            for ((place, state), version) in some.iter().zip(versions) {
                let version = version.ok_or("a record that was put has no version")?;
                entries.insert(*place, Entry { state: state.clone(), version });
            }
        }
        Ok(entries)
    }

    async fn identify(&self, job: &Identity) -> Result<(), String> {
        let key = Key::new("job", "identity");
        match self.0.insert(key, json(job)).await {
            Ok(_) => return Ok(()),
            Err(StoreError::Conflict { .. }) => {}
            Err(error) => return Err(error.to_string()),
        }
        let record = self.0.get(key).await.map_err(|e| e.to_string())?.ok_or("its identity was deleted meanwhile")?;
        let kept: Identity = serde_json::from_slice(&record.value).map_err(|e| format!("its identity: {e}"))?;
        let show = |job: &Identity| format!("{} requests of input {}, seed {}", job.requests, job.input, job.seed);
        if kept == *job {
            Ok(())
        } else {
            Err(format!("it belongs to another job: {}; this one has {}", show(&kept), show(job)))
        }
    }

    /// Says what a request has come to, if nobody else has since: compare and set.
    pub async fn advance(&self, place: usize, entry: &mut Entry, state: State) -> Result<(), String> {
        let replaced = self.0.replace(Key::new(REQUESTS, &row(place)), json(&state), entry.version).await;
        let version = replaced.map_err(|e| changed(&e))?;
        *entry = Entry { state, version };
        Ok(())
    }
}

fn changed(error: &StoreError) -> String {
    match error {
        StoreError::Conflict { .. } => format!("another process works on it at the same time: {error}"),
        _ => error.to_string(),
    }
}

/// Digits enough for any job, so that rows stand in the order of the input.
fn row(place: usize) -> String {
    format!("{place:010}")
}

fn json(document: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(document).unwrap_or_default()
}

/// Tells one input from another; not against somebody who wants two to look the same. FNV-1a.
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

/// A reader that takes the fingerprint of what it reads.
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
