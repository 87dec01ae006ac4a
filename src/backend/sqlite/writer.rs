//! One writer: all that wait are committed together.
use std::{
    fs::File,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::{
    clock::{FileTime, RECORD_EVERY},
    failure::{failure, file_failure},
    store_sql::sweep,
};
use crate::port::{PortError, PortErrorKind};

/// What is done within a transaction, at the file's time: the outer error is SQLite's, the inner one a refusal that wrote nothing.
/// It may be done more than once, if the transaction comes to nothing.
pub(super) type Work<T, E> = dyn FnMut(&Connection, i64) -> rusqlite::Result<Result<T, E>> + Send;

/// A write, whatever it answers.
trait Job: Send {
    fn run(&mut self, connection: &Connection, now: i64) -> rusqlite::Result<()>;
    fn answer(self: Box<Self>, committed: Result<(), PortError>);
}

struct JobOf<T, E> {
    work: Box<Work<T, E>>,
    result: Option<Result<T, E>>,
    reply: oneshot::Sender<Result<T, E>>,
}

impl<T: Send, E: From<PortError> + Send> Job for JobOf<T, E> {
    fn run(&mut self, connection: &Connection, now: i64) -> rusqlite::Result<()> {
        self.result = Some((self.work)(connection, now)?);
        Ok(())
    }

    fn answer(self: Box<Self>, committed: Result<(), PortError>) {
        let answer = match (committed, self.result) {
            // A refusal, too, stands on what is committed: it may have seen what a neighbour wrote.
            (Err(error), _) => Err(error.into()),
            (Ok(()), Some(result)) => result,
            (Ok(()), None) => Err(PortError::new(PortErrorKind::Closed, "sqlite: the write was not done").into()),
        };
        // Whoever asked may be gone.
        let _ = self.reply.send(answer);
    }
}

/// The writing side of an open file.
pub(super) struct Writer {
    core: Arc<Core>,
    thread: Option<JoinHandle<()>>,
}

struct Core {
    connection: Mutex<Connection>,
    waiting: Mutex<Waiting>,
    came: Condvar,
    lock: File,
    lock_path: std::path::PathBuf,
    time: Arc<FileTime>,
    /// Whether writes may be done in place of the thread.
    in_place: bool,
    recorded: AtomicI64,
    commits: AtomicU64,
    /// Commits since the thread last brought the log's pages into the file.
    unchecked: AtomicU32,
}

#[derive(Default)]
struct Waiting {
    jobs: Vec<Box<dyn Job>>,
    /// Of writes in place: whoever asked for them leaves them to the thread.
    handed_over: bool,
    /// The thread sleeps, and nobody has told it yet. Under this lock, for else it could be told just before it sleeps, and never again.
    idle: bool,
    closed: bool,
}

/// How many writes share a commit, at most.
const GROUP: usize = 1024;

/// After so many commits the log's pages are brought into the file. That syncs, so where writes are done in place it is left to the thread.
const CHECKPOINT_EVERY: u32 = 400;

/// How often the thread looks for more work before it sleeps: some tens of microseconds.
const LOOKS: usize = 100;

/// How many groups one caller commits for others before it hands over to the thread.
const ROUNDS: usize = 4;

impl Writer {
    pub(super) fn start(
        connection: Connection,
        lock: File,
        lock_path: std::path::PathBuf,
        time: Arc<FileTime>,
        in_place: bool,
    ) -> Result<Self, PortError> {
        let core = Arc::new(Core {
            connection: Mutex::new(connection),
            waiting: Mutex::default(),
            came: Condvar::new(),
            lock,
            lock_path,
            time,
            in_place,
            recorded: AtomicI64::new(0),
            commits: AtomicU64::new(0),
            unchecked: AtomicU32::new(0),
        });
        let of_thread = core.clone();
        let thread = std::thread::Builder::new().name("steadfast-sqlite".to_owned()).spawn(move || of_thread.serve());
        let thread = thread.map_err(|error| file_failure(&core.lock_path, error))?;
        Ok(Self { core, thread: Some(thread) })
    }

    /// Has the work done in a transaction, and gives its answer once that is committed.
    pub(super) async fn write<T: Send + 'static, E: From<PortError> + Send + 'static>(
        &self,
        work: impl FnMut(&Connection, i64) -> rusqlite::Result<Result<T, E>> + Send + 'static,
    ) -> Result<T, E> {
        let (reply, answer) = oneshot::channel();
        self.core.submit(Box::new(JobOf { work: Box::new(work), result: None, reply }));
        let gone = || PortError::new(PortErrorKind::Closed, "sqlite: the file was closed").outcome_unknown();
        answer.await.unwrap_or_else(|_| Err(gone().into()))
    }

    /// How many transactions were committed through this handle.
    pub(super) fn commits(&self) -> u64 {
        self.core.commits.load(Ordering::Relaxed)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        lock(&self.core.waiting).closed = true;
        self.core.came.notify_all();
        if let Some(thread) = self.thread.take() {
            // It ends when it has done what was asked for. A panic there was answered already.
            let _ = thread.join();
        }
    }
}

impl Core {
    fn submit(&self, job: Box<dyn Job>) {
        lock(&self.waiting).jobs.push(job);
        if self.in_place {
            // Who holds the connection looks once more after it has let go of it: nothing is left behind.
            let mut rounds = 0;
            while rounds < ROUNDS && !lock(&self.waiting).jobs.is_empty() {
                let mut connection = match self.connection.try_lock() {
                    Ok(connection) => connection,
                    Err(TryLockError::Poisoned(panicked)) => panicked.into_inner(),
                    Err(TryLockError::WouldBlock) => return,
                };
                if self.lock.try_lock().is_err() {
                    break; // another process writes: waiting for it is the thread's
                }
                self.commit_waiting(&mut connection);
                let _ = self.lock.unlock();
                rounds += 1;
            }
            if lock(&self.waiting).jobs.is_empty() && !self.is_checkpoint_due() {
                return;
            }
        }
        let sleeps = {
            let mut waiting = lock(&self.waiting);
            waiting.handed_over = true;
            std::mem::take(&mut waiting.idle)
        };
        if sleeps {
            self.came.notify_one();
        }
    }

    /// The thread: commits whatever waits, until the file is closed.
    fn serve(&self) {
        loop {
            if !self.in_place {
                self.linger();
            }
            {
                let mut waiting = lock(&self.waiting);
                while !self.has_work(&waiting) {
                    if waiting.closed {
                        return;
                    }
                    waiting.idle = true;
                    waiting = self.came.wait(waiting).unwrap_or_else(PoisonError::into_inner);
                }
                waiting.idle = false;
            }
            let mut connection = lock(&self.connection);
            if self.is_checkpoint_due() {
                self.unchecked.store(0, Ordering::Relaxed);
                // Where others read or write just then it does less, and the next one more.
                let _ = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
            }
            match self.lock.lock() {
                Ok(()) => {
                    self.commit_waiting(&mut connection);
                    let _ = self.lock.unlock();
                }
                Err(error) => {
                    let failed = file_failure(&self.lock_path, error);
                    self.take().into_iter().for_each(|job| job.answer(Err(failed.clone())));
                }
            }
            drop(connection);
            // Who found the connection taken meanwhile relies on who had it to look again.
            let mut waiting = lock(&self.waiting);
            waiting.handed_over = !waiting.jobs.is_empty();
        }
    }

    /// Whether there is something for the thread to do. Writes in place are not, until they are left to it.
    fn has_work(&self, waiting: &Waiting) -> bool {
        let its_own = !self.in_place || waiting.handed_over || waiting.closed;
        (its_own && !waiting.jobs.is_empty()) || self.is_checkpoint_due()
    }

    fn is_checkpoint_due(&self) -> bool {
        self.in_place && self.unchecked.load(Ordering::Relaxed) >= CHECKPOINT_EVERY
    }

    /// Who writes one after the other comes back soon: to be woken for each costs more than to look a few times.
    fn linger(&self) {
        for _ in 0..LOOKS {
            if !lock(&self.waiting).jobs.is_empty() {
                return;
            }
            std::thread::yield_now();
        }
    }

    fn take(&self) -> Vec<Box<dyn Job>> {
        let mut waiting = lock(&self.waiting);
        let group = waiting.jobs.len().min(GROUP);
        let rest = waiting.jobs.split_off(group);
        std::mem::replace(&mut waiting.jobs, rest)
    }

    /// Commits what waits. Called with the connection and the lock of the file.
    fn commit_waiting(&self, connection: &mut Connection) {
        let mut jobs = self.take();
        if jobs.is_empty() {
            return;
        }
        let committed = self.transaction(connection, &mut jobs);
        match committed {
            // Perhaps one of them is to blame: each by itself.
            Err(error) if jobs.len() > 1 && !error.may_have_been_applied() => {
                for job in jobs {
                    let mut alone = [job];
                    let committed = self.transaction(connection, &mut alone);
                    let [job] = alone;
                    job.answer(committed);
                }
            }
            committed => jobs.into_iter().for_each(|job| job.answer(committed.clone())),
        }
    }

    fn transaction(&self, connection: &mut Connection, jobs: &mut [Box<dyn Job>]) -> Result<(), PortError> {
        let now = self.time.now();
        let run = || {
            connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
            for job in jobs {
                job.run(connection, now)?;
            }
            if now.saturating_sub(self.recorded.load(Ordering::Relaxed)) >= RECORD_EVERY {
                self.recorded.store(now, Ordering::Relaxed);
                self.time.record(connection, now)?;
                sweep(connection, now)?;
            }
            Ok(())
        };
        let committed = run().map_err(failure).and_then(|()| {
            let committed = connection.prepare_cached("COMMIT").and_then(|mut commit| commit.execute([]));
            committed.map(drop).map_err(|error| {
                let rolls_back = matches!(
                    error.sqlite_error_code(),
                    Some(rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DiskFull)
                );
                let failed = failure(error);
                // A sync that failed may have been of use all the same.
                if rolls_back { failed } else { failed.outcome_unknown() }
            })
        });
        match committed {
            Ok(()) => {
                self.commits.fetch_add(1, Ordering::Relaxed);
                self.unchecked.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(error) => {
                // Where there is nothing to roll back that is as well.
                if !connection.is_autocommit() {
                    let _ = connection.execute_batch("ROLLBACK");
                }
                Err(error)
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
