//! Transactions for groups of writes, with housekeeping.

// Commits run under the mutex of the writer's connection, which orders all accesses to `recorded`
// and `written`; these are atomics only because a commit takes `&self`. The other fields are also
// read without that mutex:
//
// - `commits` is a statistic, and publishes nothing.
// - `sweep_pending` and `since_checkpoint` are read by the writer's thread before it sleeps, under
//   the mutex of pending writes. A caller that has made housekeeping due locks that mutex later, in
//   `delegate_to_thread`, which publishes the new values. A stale read delays housekeeping until
//   the next commit, nothing else.
//
// `sweep_pending` is also cleared without the connection, after the database was found locked. That
// may overwrite `true` from a concurrent commit; the next sweep sets it again.
//
// Therefore `Relaxed` suffices for all of them.
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
    job::PendingWrite,
    sweep,
};
use crate::port::{PortError, PortErrorKind};

/// Commits groups of writes, and counts them.
pub(super) struct Transactions {
    pub(super) path: PathBuf,
    pub(super) file: Arc<Identity>,
    pub(super) time: Arc<FileTime>,
    recorded: AtomicI64,
    /// Number of rows written since the last sweep.
    written: AtomicU64,
    /// `true` if more rows have expired than the last sweep deleted.
    sweep_pending: AtomicBool,
    commits: AtomicU64,
    /// Number of commits since the last checkpoint of the log.
    since_checkpoint: AtomicU32,
}

/// Reason for which a transaction was rolled back.
pub(super) enum Failed {
    /// Another program holds the database's lock; nothing was begun.
    Busy(PortError),
    /// One of the writes may have caused the error, or the housekeeping.
    One(PortError),
    /// Each write alone would fail in the same way.
    All(PortError),
}

/// Number of written rows after which expired rows are swept.
const SWEEP_EVERY: u64 = 64;

/// Number of rows that a sweep deletes from each table: the minimum if it is due by time, and the
/// maximum.
const SWEPT: std::ops::RangeInclusive<u64> = 500..=4000;

impl Transactions {
    pub(super) fn new(path: PathBuf, file: Arc<Identity>, time: Arc<FileTime>) -> Self {
        Self {
            path,
            file,
            time,
            recorded: AtomicI64::new(0),
            written: AtomicU64::new(0),
            sweep_pending: AtomicBool::new(false),
            commits: AtomicU64::new(0),
            since_checkpoint: AtomicU32::new(0),
        }
    }

    /// Runs the writes and commits them. With `tidy`, also sweeps and records the time if due.
    pub(super) fn commit(&self, connection: &Connection, group: &mut [PendingWrite], tidy: bool) -> Result<(), Failed> {
        let committed = self.run(connection, group, tidy);
        if committed.is_err() && !connection.is_autocommit() {
            // A failure means that there is nothing to roll back.
            let _ = connection.execute_batch("ROLLBACK");
        }
        committed
    }

    fn run(&self, connection: &Connection, group: &mut [PendingWrite], tidy: bool) -> Result<(), Failed> {
        let step = |sql| connection.prepare_cached(sql).and_then(|mut statement| statement.execute([]));
        step("BEGIN IMMEDIATE").map_err(|error| self.failed(error))?;
        // Read after the lock was acquired, because the wait may have been long.
        let (now, before, is_idle) = (self.time.now(), connection.total_changes(), group.is_empty());
        for waiting in group {
            waiting.job.run(connection, now).map_err(|error| self.failed(error))?;
        }
        let written = self.written.load(Ordering::Relaxed) + connection.total_changes().saturating_sub(before);
        let is_due = now.saturating_sub(self.recorded.load(Ordering::Relaxed)) >= RECORD_EVERY;
        // An empty group is committed only for the sweep.
        let sweeps = tidy && (is_due || is_idle || written >= SWEEP_EVERY);
        let mut more = false;
        if sweeps {
            let least = if is_due || is_idle { *SWEPT.start() } else { 0 };
            let tidied = || {
                if is_due {
                    self.time.record(connection, now)?;
                }
                // Twice the number of written rows, so that the number of expired ones falls.
                sweep::sweep(connection, now, (2 * written).clamp(least, *SWEPT.end()))
            };
            more = tidied().map_err(|error| Failed::One(failure(&self.path, error)))?;
        }
        step("COMMIT").map_err(|error| {
            let rolls_back = matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DiskFull));
            match self.failed(error) {
                // After a failed sync the writes may still be durable.
                Failed::One(error) | Failed::All(error) if !rolls_back => Failed::All(error.outcome_unknown()),
                failed => failed,
            }
        })?;
        if sweeps {
            self.sweep_pending.store(more, Ordering::Relaxed);
        }
        if sweeps && is_due {
            self.recorded.store(now, Ordering::Relaxed);
        }
        self.written.store(if sweeps { 0 } else { written }, Ordering::Relaxed);
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.since_checkpoint.fetch_add(1, Ordering::Relaxed);
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

    /// Sets whether the thread continues to sweep while no write is pending.
    pub(super) fn set_sweep_pending(&self, soon: bool) {
        self.sweep_pending.store(soon, Ordering::Relaxed);
    }

    /// Returns `true` if more rows have expired than the last sweep deleted.
    pub(super) fn is_sweep_pending(&self) -> bool {
        self.sweep_pending.load(Ordering::Relaxed)
    }

    pub(super) fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    /// Returns the number of commits since the last checkpoint.
    pub(super) fn since_checkpoint(&self) -> u32 {
        self.since_checkpoint.load(Ordering::Relaxed)
    }

    /// Copies the log's pages into the file.
    pub(super) fn checkpoint(&self, connection: &Connection) {
        self.since_checkpoint.store(0, Ordering::Relaxed);
        // If other processes are reading or writing, this copies fewer pages, and the next one
        // more.
        let _ = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
    }
}
