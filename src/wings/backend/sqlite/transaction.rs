//! One transaction for a group of writes, and the housekeeping that goes with it.
use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering},
    },
};

use rusqlite::{Connection, ErrorCode};

use super::{
    clock::{FileTime, RECORD_EVERY},
    failure::{failure, may_be_of_one_write},
    identity::Identity,
    job::Waiting,
    sweep,
};
use crate::port::{PortError, PortErrorKind};

/// Commits groups of writes, and counts.
pub(super) struct Transactions {
    pub(super) path: PathBuf,
    pub(super) file: Arc<Identity>,
    pub(super) time: Arc<FileTime>,
    recorded: AtomicI64,
    /// Rows that were written since the last sweep.
    written: AtomicU64,
    /// More has ended than the last sweep took.
    behind: AtomicBool,
    commits: AtomicU64,
    /// Commits since the log's pages were last brought into the file.
    unchecked: AtomicU32,
}

/// Reason for which a transaction was rolled back.
pub(super) enum Failed {
    /// Another program holds the database's lock: nothing was begun.
    Busy(PortError),
    /// One of the writes may be to blame, or the housekeeping beside them.
    One(PortError),
    /// Each of the writes alone would meet the same.
    All(PortError),
}

/// Number of written rows after which ended rows are swept.
const SWEEP_EVERY: u64 = 64;

/// Rows that a sweep deletes of each table: at least, where it is due by time, and at most.
const SWEPT: std::ops::RangeInclusive<u64> = 500..=4000;

impl Transactions {
    pub(super) fn new(path: PathBuf, file: Arc<Identity>, time: Arc<FileTime>) -> Self {
        Self {
            path,
            file,
            time,
            recorded: AtomicI64::new(0),
            written: AtomicU64::new(0),
            behind: AtomicBool::new(false),
            commits: AtomicU64::new(0),
            unchecked: AtomicU32::new(0),
        }
    }

    /// Does the writes and commits them. With `tidy`, also sweeps and records the time where due.
    pub(super) fn commit(&self, connection: &Connection, group: &mut [Waiting], tidy: bool) -> Result<(), Failed> {
        let committed = self.run(connection, group, tidy);
        if committed.is_err() && !connection.is_autocommit() {
            // Where there is nothing to roll back that is as well.
            let _ = connection.execute_batch("ROLLBACK");
        }
        committed
    }

    fn run(&self, connection: &Connection, group: &mut [Waiting], tidy: bool) -> Result<(), Failed> {
        let step = |sql| connection.prepare_cached(sql).and_then(|mut statement| statement.execute([]));
        step("BEGIN IMMEDIATE").map_err(|error| self.failed(error))?;
        // Only now: the lock may have been waited for.
        let (now, before, is_idle) = (self.time.now(), connection.total_changes(), group.is_empty());
        for waiting in group {
            waiting.job.run(connection, now).map_err(|error| self.failed(error))?;
        }
        let written = self.written.load(Ordering::Relaxed) + connection.total_changes().saturating_sub(before);
        let is_due = now.saturating_sub(self.recorded.load(Ordering::Relaxed)) >= RECORD_EVERY;
        // Where nobody waits, it is done for the sake of the sweep.
        let sweeps = tidy && (is_due || is_idle || written >= SWEEP_EVERY);
        let mut more = false;
        if sweeps {
            let least = if is_due || is_idle { *SWEPT.start() } else { 0 };
            let tidied = || {
                if is_due {
                    self.time.record(connection, now)?;
                }
                // Twice what was written: what has ended becomes less.
                sweep::sweep(connection, now, (2 * written).clamp(least, *SWEPT.end()))
            };
            more = tidied().map_err(|error| Failed::One(failure(&self.path, error)))?;
        }
        step("COMMIT").map_err(|error| {
            let rolls_back = matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DiskFull));
            match self.failed(error) {
                // A sync that failed may have been of use all the same.
                Failed::One(error) | Failed::All(error) if !rolls_back => Failed::All(error.outcome_unknown()),
                failed => failed,
            }
        })?;
        if sweeps {
            self.behind.store(more, Ordering::Relaxed);
        }
        if sweeps && is_due {
            self.recorded.store(now, Ordering::Relaxed);
        }
        self.written.store(if sweeps { 0 } else { written }, Ordering::Relaxed);
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.unchecked.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn failed(&self, error: rusqlite::Error) -> Failed {
        let of_one = may_be_of_one_write(&error);
        let error = failure(&self.path, error);
        match error.kind() {
            PortErrorKind::Throttled => Failed::Busy(error),
            _ if of_one => Failed::One(error),
            _ => Failed::All(error),
        }
    }

    /// Sets whether the thread goes on to sweep while no write waits.
    pub(super) fn sweep_soon(&self, soon: bool) {
        self.behind.store(soon, Ordering::Relaxed);
    }

    /// Returns true where more ended rows remain than the last sweep took.
    pub(super) fn is_behind(&self) -> bool {
        self.behind.load(Ordering::Relaxed)
    }

    pub(super) fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    /// Returns the number of commits since the last checkpoint.
    pub(super) fn unchecked(&self) -> u32 {
        self.unchecked.load(Ordering::Relaxed)
    }

    /// Brings the log's pages into the file.
    pub(super) fn checkpoint(&self, connection: &Connection) {
        self.unchecked.store(0, Ordering::Relaxed);
        // Where others read or write just then it does less, and the next one more.
        let _ = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
    }
}
