//! The logs: each process appends a line for each fact, and the first process reads them all.
use std::{
    collections::{BTreeMap, HashSet},
    fs::{File, OpenOptions},
    io::{Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use serde::{Deserialize, Serialize};
use steadfast::time::Clock;

use crate::Result;

/// A fact. Times are milliseconds of the machine's clock, which all processes share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fact {
    Started,
    /// A part does without the engine, which lacks a capability.
    Without {
        part: String,
        why: String,
    },
    /// A part failed, and was started again.
    Failed {
        part: String,
        why: String,
    },
    /// The process stood still for so long: it was paused, or the machine was busy.
    Stalled {
        millis: u64,
    },
    /// The client of the order was told that it is accepted.
    Accepted {
        order: u32,
    },
    Began {
        order: u32,
        delivery: u32,
    },
    Done {
        order: u32,
        delivery: u32,
    },
    Elected {
        token: u64,
    },
    Deposed {
        token: u64,
    },
    /// The leader's write was accepted as this version, or refused for its token.
    Wrote {
        token: u64,
        version: u64,
    },
    Refused {
        token: u64,
    },
    /// The leader has read this write, which may have had no answer.
    Saw {
        token: u64,
        version: u64,
    },
    /// A call was admitted that had asked at this time.
    Permit {
        limit: Limit,
        asked: u64,
    },
    /// An invalidation was acknowledged: no older price is served after it.
    Invalidated {
        product: u64,
        price: u64,
        everywhere: bool,
    },
    /// A read that began at this time gave this price.
    Read {
        product: u64,
        price: u64,
        asked: u64,
    },
    /// The breaker opened by its own rules for so long, and the others were told.
    Reported {
        millis: u64,
    },
    /// The breaker changed its state.
    Breaker {
        open: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// Payments: each permit is taken from the store.
    Payments,
    /// Mails: permits are leased.
    Mails,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    at: u64,
    fact: Fact,
}

/// The log of this process.
#[derive(Debug, Clone)]
pub struct Log {
    file: Arc<Mutex<File>>,
    clock: Clock,
}

impl Log {
    pub fn open(folder: &Path, node: usize, life: u32) -> Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(folder.join(format!("{node}-{life}.log")))?;
        Ok(Self { file: Arc::new(Mutex::new(file)), clock: Clock::tokio() })
    }

    pub fn now(&self) -> u64 {
        self.clock.wall().as_millis()
    }

    /// Appends a fact. What was written survives the end of this process.
    pub fn say(&self, fact: Fact) {
        let Ok(mut line) = serde_json::to_vec(&Entry { at: self.now(), fact }) else { return };
        line.push(b'\n');
        // One write, so that no kill leaves half a line.
        let _ = self.file.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line);
    }
}

/// A fact in the log of a process.
#[derive(Debug, Clone)]
pub struct Told {
    pub at: u64,
    pub node: usize,
    /// Counts the processes that were started in the same place.
    pub life: u32,
    pub fact: Fact,
}

/// What all processes have told so far.
#[derive(Debug)]
pub struct Logs {
    folder: PathBuf,
    /// By process: the bytes that were read.
    read: BTreeMap<(usize, u32), u64>,
    told: Vec<Told>,
    accepted: HashSet<u32>,
    done: HashSet<u32>,
}

impl Logs {
    pub fn new(folder: PathBuf) -> Self {
        let (read, told) = (BTreeMap::new(), Vec::new());
        Self { folder, read, told, accepted: HashSet::new(), done: HashSet::new() }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Expects a log of this process.
    pub fn expect(&mut self, node: usize, life: u32) {
        self.read.insert((node, life), 0);
    }

    /// Reads what was added.
    pub fn read(&mut self) {
        let files: Vec<_> = self.read.iter().map(|(process, read)| (*process, *read)).collect();
        for ((node, life), read) in files {
            let Ok(mut file) = File::open(self.folder.join(format!("{node}-{life}.log"))) else { continue };
            let mut text = String::new();
            if file.seek(SeekFrom::Start(read)).and_then(|_| file.read_to_string(&mut text)).is_err() {
                continue;
            }
            // The last line may be unfinished.
            let end = text.rfind('\n').map_or(0, |end| end + 1);
            self.read.insert((node, life), read + end as u64);
            for line in text[..end].lines() {
                let Ok(Entry { at, fact }) = serde_json::from_str(line) else { continue };
                match fact {
                    Fact::Accepted { order } => _ = self.accepted.insert(order),
                    Fact::Done { order, .. } => _ = self.done.insert(order),
                    _ => {}
                }
                self.told.push(Told { at, node, life, fact });
            }
        }
    }

    /// Returns the facts, those of a process in their order.
    pub fn told(&self) -> &[Told] {
        &self.told
    }

    /// Returns the orders that were accepted.
    pub fn accepted(&self) -> &HashSet<u32> {
        &self.accepted
    }

    /// Returns the orders that were done.
    pub fn done(&self) -> &HashSet<u32> {
        &self.done
    }

    /// Returns the number of orders that were accepted and are not done.
    pub fn undone(&self) -> usize {
        self.accepted.difference(&self.done).count()
    }

    /// Returns the elections: time, process and token.
    pub fn leaders(&self) -> impl Iterator<Item = (u64, usize, u64)> + '_ {
        self.told.iter().filter_map(|told| match told.fact {
            Fact::Elected { token } => Some((told.at, told.node, token)),
            _ => None,
        })
    }

    /// Returns the process that was elected last.
    pub fn leader(&self) -> Option<usize> {
        self.leaders().max_by_key(|(_, _, token)| *token).map(|(_, node, _)| node)
    }
}
