//! Group commit: one writer commits all pending writes together.

// Locks, in the order in which they are taken: `connection`, then the lock file, then `pending`.
//
// A write is first appended to `pending.jobs`. With full durability only the thread commits. With
// relaxed durability each caller tries to lock `connection` and to commit the whole list.
//
// No write is left behind: a caller that finds `connection` locked returns, because the holder
// checks `pending` after it has released `connection`. A holder that stops early (another process
// writes, or too many groups) sets `delegated`, and the thread takes over.
//
// No wake-up is lost: the thread checks for work and sets `idle` under the mutex of `pending`, and
// `delegate_to_thread` locks that mutex after its reason was stored. So either the thread sees the
// reason (`sweep_requested`, the counters of `Transactions`), or the delegating caller sees `idle`
// and notifies it. The mutex publishes these values, therefore their atomics are `Relaxed`.
use std::{
    collections::VecDeque,
    fs::File,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::{
    config::SqliteConfig,
    failure::file_failure,
    job::{JobOf, PendingWrite},
    machine,
    transaction::{Failed, Transactions},
};
use crate::{
    port::{PortError, PortErrorKind},
    sync::{Condvar, Mutex},
    time::from_thread,
};

/// The writing side of an open file.
pub(super) struct Writer {
    core: Arc<WriterCore>,
    thread: Option<JoinHandle<()>>,
}

struct WriterCore {
    connection: Mutex<Connection>,
    pending: Mutex<PendingWrites>,
    work_available: Condvar,
    lock: File,
    lock_path: std::path::PathBuf,
    lock_wait: Duration,
    transactions: Transactions,
    /// If set, callers may commit in place of the thread.
    in_place: bool,
    /// Set when a scan skipped many expired rows.
    sweep_requested: AtomicBool,
}

#[derive(Default)]
struct PendingWrites {
    jobs: VecDeque<PendingWrite>,
    /// Set when callers in place leave their writes to the thread.
    delegated: bool,
    /// Set while the thread sleeps and was not yet notified. It is guarded by the mutex of the
    /// condition variable, so that no notification falls between the thread's check and its sleep.
    idle: bool,
    closed: bool,
}

/// Maximum number of writes in a commit.
const MAX_GROUP: usize = 1024;

/// Number of commits between checkpoints of the log. A checkpoint syncs, so callers in place leave
/// it to the thread.
const CHECKPOINT_EVERY: u32 = 400;

/// Time for which the thread looks for the next write before it sleeps or commits without it. It
/// grows with each write that comes, up to four times.
const PATIENCE: Duration = Duration::from_micros(50);

/// Maximum number of groups that a caller commits for others before it leaves the rest to the
/// thread.
const MAX_GROUPS_IN_PLACE: usize = 4;

/// First and longest pause between two attempts while another program holds the database's lock.
/// The pause doubles each time.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

impl Writer {
    pub(super) fn start(
        connection: Connection,
        lock: File,
        lock_path: std::path::PathBuf,
        config: &SqliteConfig,
        transactions: Transactions,
    ) -> Result<Self, PortError> {
        let core = Arc::new(WriterCore {
            connection: Mutex::new(connection),
            pending: Mutex::default(),
            work_available: Condvar::new(),
            lock,
            lock_path,
            lock_wait: config.lock_wait,
            transactions,
            in_place: config.durability == super::Durability::Relaxed,
            sweep_requested: AtomicBool::new(false),
        });
        let of_thread = core.clone();
        let thread = std::thread::Builder::new().name("steadfast-sqlite".to_owned()).spawn(move || of_thread.serve());
        let thread = thread.map_err(|error| file_failure(&core.lock_path, error))?;
        Ok(Self { core, thread: Some(thread) })
    }

    /// Runs the work in a transaction, and returns its result once that is committed.
    pub(super) async fn write<T: Send + 'static, E: From<PortError> + Send + 'static>(
        &self,
        work: impl FnMut(&Connection, i64) -> rusqlite::Result<Result<T, E>> + Send + 'static,
    ) -> Result<T, E> {
        self.submit(work, self.core.in_place, false).await
    }

    /// Runs the work as [`write`](Self::write) does, but skips it if the future is dropped before
    /// it begins, because no caller would receive the result.
    pub(super) async fn write_if_awaited<T: Send + 'static, E: From<PortError> + Send + 'static>(
        &self,
        work: impl FnMut(&Connection, i64) -> rusqlite::Result<Result<T, E>> + Send + 'static,
    ) -> Result<T, E> {
        self.submit(work, self.core.in_place, true).await
    }

    /// Runs the work as [`write`](Self::write) does, but never in place, for work of more than a
    /// few rows.
    pub(super) async fn write_on_thread<T: Send + 'static, E: From<PortError> + Send + 'static>(
        &self,
        work: impl FnMut(&Connection, i64) -> rusqlite::Result<Result<T, E>> + Send + 'static,
    ) -> Result<T, E> {
        self.submit(work, false, false).await
    }

    async fn submit<T: Send + 'static, E: From<PortError> + Send + 'static>(
        &self,
        work: impl FnMut(&Connection, i64) -> rusqlite::Result<Result<T, E>> + Send + 'static,
        in_place: bool,
        only_if_awaited: bool,
    ) -> Result<T, E> {
        let (reply, answer) = oneshot::channel();
        let job = Box::new(JobOf::new(Box::new(work), only_if_awaited, reply));
        self.core.submit(PendingWrite { job, deadline: None }, in_place);
        let gone = || PortError::new(PortErrorKind::Closed, "sqlite: the file was closed").outcome_unknown();
        // A write in place is answered by now, unless the thread holds the connection.
        from_thread(answer, !in_place).await.unwrap_or_else(|_| Err(gone().into()))
    }

    /// Requests a sweep of expired rows on the thread.
    pub(super) fn sweep(&self) {
        if !self.core.sweep_requested.swap(true, Ordering::Relaxed) {
            self.core.delegate_to_thread();
        }
    }

    /// Returns the number of transactions that were committed through this handle.
    pub(super) fn commits(&self) -> u64 {
        self.core.transactions.commits()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.core.pending.lock().closed = true;
        self.core.work_available.notify_all();
        if let Some(thread) = self.thread.take() {
            // The thread ends when all pending work is done. If it panicked, its writes were
            // answered already.
            let _ = thread.join();
        }
    }
}

impl WriterCore {
    fn submit(&self, waiting: PendingWrite, in_place: bool) {
        self.pending.lock().jobs.push_back(waiting);
        if in_place {
            // A holder of the connection checks the list again after releasing it, so no write is
            // left behind.
            let mut rounds = 0;
            while rounds < MAX_GROUPS_IN_PLACE && !self.pending.lock().jobs.is_empty() {
                let Some(connection) = self.connection.try_lock() else { return };
                if self.lock.try_lock().is_err() {
                    break; // another process writes, and only the thread may wait for it
                }
                let committed = self.commit_waiting(&connection);
                let _ = self.lock.unlock();
                if committed.is_err() {
                    break; // another program writes, likewise
                }
                rounds += 1;
            }
            if self.pending.lock().jobs.is_empty() && !self.is_housekeeping_due() {
                return;
            }
        }
        self.delegate_to_thread();
    }

    /// Leaves the pending writes to the thread, and wakes it.
    fn delegate_to_thread(&self) {
        let sleeps = {
            let mut pending = self.pending.lock();
            pending.delegated = true;
            std::mem::take(&mut pending.idle)
        };
        if sleeps {
            self.work_available.notify_one();
        }
    }

    /// The thread's loop: commits pending writes until the file is closed.
    fn serve(&self) {
        let mut pause = PAUSES.0;
        let mut expected = 0;
        loop {
            if !self.in_place {
                self.gather(expected);
            }
            {
                let mut pending = self.pending.lock();
                while !self.has_work(&pending) {
                    if pending.closed {
                        return;
                    }
                    pending.idle = true;
                    pending = self.work_available.wait(pending);
                }
                pending.idle = false;
            }
            let connection = self.connection.lock();
            if self.is_checkpoint_due() {
                self.transactions.checkpoint(&connection);
            }
            if self.sweep_requested.swap(false, Ordering::Relaxed) {
                self.transactions.set_sweep_pending(true);
            }
            let committed = match self.lock.lock() {
                Ok(()) => {
                    let committed = self.commit_waiting(&connection);
                    let _ = self.lock.unlock();
                    committed
                }
                Err(error) => {
                    let failed = file_failure(&self.lock_path, error);
                    self.transactions.set_sweep_pending(false);
                    self.take_group().into_iter().for_each(|waiting| waiting.job.answer(Err(failed.clone())));
                    Ok(0)
                }
            };
            drop(connection);
            expected = *committed.as_ref().unwrap_or(&0);
            match committed {
                Ok(_) => pause = PAUSES.0,
                // The lock file is released meanwhile, so that each process makes its own attempts.
                Err(busy) => {
                    self.transactions.set_sweep_pending(false);
                    self.fail_expired_writes(&busy);
                    let pending = self.pending.lock();
                    if !pending.jobs.is_empty() {
                        drop(self.work_available.wait_timeout(pending, pause));
                        pause = (pause * 2).min(PAUSES.1);
                    }
                }
            }
            // A caller that found the connection taken relies on this check by the last holder.
            let mut pending = self.pending.lock();
            pending.delegated = !pending.jobs.is_empty();
        }
    }

    /// Returns `true` if the thread has work. Writes in place count only once they were left to it.
    fn has_work(&self, pending: &PendingWrites) -> bool {
        let its_own = !self.in_place || pending.delegated || pending.closed;
        (its_own && !pending.jobs.is_empty()) || (!pending.closed && self.is_housekeeping_due())
    }

    fn is_housekeeping_due(&self) -> bool {
        self.is_checkpoint_due() || self.transactions.is_sweep_pending() || self.sweep_requested.load(Ordering::Relaxed)
    }

    fn is_checkpoint_due(&self) -> bool {
        self.in_place && self.transactions.since_checkpoint() >= CHECKPOINT_EVERY
    }

    /// Looks for more work for a moment, until `expected` writes are pending: callers that were
    /// just answered usually write again at once. A single writer is not delayed.
    fn gather(&self, expected: usize) {
        let pending = || self.pending.lock().jobs.len();
        let (begun, first) = (machine::since_boot(), pending());
        loop {
            let now = pending();
            let patience = [1, 2, 3, 4][now.saturating_sub(first).min(3)] * PATIENCE;
            if now >= expected.max(1) || machine::since_boot().saturating_sub(begun) > patience {
                return;
            }
            std::thread::yield_now();
        }
    }

    fn take_group(&self) -> VecDeque<PendingWrite> {
        let mut pending = self.pending.lock();
        let group = pending.jobs.len().min(MAX_GROUP);
        let rest = pending.jobs.split_off(group);
        std::mem::replace(&mut pending.jobs, rest)
    }

    /// Puts writes back in front of those that arrived meanwhile.
    fn put_back(&self, mut jobs: VecDeque<PendingWrite>) {
        let mut pending = self.pending.lock();
        jobs.append(&mut pending.jobs);
        pending.jobs = jobs;
    }

    /// Fails the writes whose time to wait for another program's lock is over.
    fn fail_expired_writes(&self, busy: &PortError) {
        let now = machine::since_boot();
        let late = |waiting: &mut PendingWrite| {
            let deadline = *waiting.deadline.get_or_insert(now.saturating_add(self.lock_wait));
            deadline <= now
        };
        let (mut given_up, mut pending) = (Vec::new(), self.pending.lock());
        for mut waiting in std::mem::take(&mut pending.jobs) {
            if late(&mut waiting) {
                given_up.push(waiting);
            } else {
                pending.jobs.push_back(waiting);
            }
        }
        drop(pending);
        given_up.into_iter().for_each(|waiting| waiting.job.answer(Err(busy.clone())));
    }

    /// Commits pending writes and due housekeeping, and never waits. The caller holds the
    /// connection and the lock file. Returns the number of writes to expect before the next commit.
    ///
    /// # Errors
    /// Another program holds the database's lock: the writes are pending again.
    fn commit_waiting(&self, connection: &Connection) -> Result<usize, PortError> {
        let mut jobs = self.take_group();
        if jobs.is_empty() && !self.transactions.is_sweep_pending() {
            return Ok(0);
        }
        let committed = match self.transactions.file.check_all() {
            Ok(()) => self.transactions.commit(connection, jobs.make_contiguous(), true),
            Err(gone) => {
                self.transactions.set_sweep_pending(false);
                Err(Failed::All(gone))
            }
        };
        // Counted before the answers: a caller may write again while others are still answered.
        let expected = jobs.len() + self.pending.lock().jobs.len();
        match committed {
            Ok(()) => jobs.into_iter().for_each(|waiting| waiting.job.answer(Ok(()))),
            Err(Failed::All(error)) => {
                self.transactions.set_sweep_pending(false);
                jobs.into_iter().for_each(|waiting| waiting.job.answer(Err(error.clone())));
            }
            Err(Failed::Busy(error)) => {
                self.put_back(jobs);
                return Err(error);
            }
            Err(Failed::One(_)) => {
                self.transactions.set_sweep_pending(false);
                self.commit_singly(connection, jobs)?;
            }
        }
        Ok(expected)
    }

    /// Commits each write alone, after one of a group failed, so that it does not fail the others.
    fn commit_singly(&self, connection: &Connection, mut jobs: VecDeque<PendingWrite>) -> Result<(), PortError> {
        while let Some(waiting) = jobs.pop_front() {
            let mut alone = [waiting];
            let committed = self.transactions.commit(connection, &mut alone, false);
            let [waiting] = alone;
            match committed {
                Ok(()) => waiting.job.answer(Ok(())),
                Err(Failed::One(error)) => waiting.job.answer(Err(error)),
                Err(Failed::All(error)) => {
                    waiting.job.answer(Err(error.clone()));
                    jobs.drain(..).for_each(|waiting| waiting.job.answer(Err(error.clone())));
                }
                Err(Failed::Busy(error)) => {
                    jobs.push_front(waiting);
                    self.put_back(jobs);
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}
