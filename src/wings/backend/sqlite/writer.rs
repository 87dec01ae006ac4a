//! One writer: all that wait are committed together.
use std::{
    collections::VecDeque,
    fs::File,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError,
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
    job::{JobOf, Waiting},
    transaction::{Failed, Transactions},
};
use crate::{
    port::{PortError, PortErrorKind},
    time::machine,
};

/// The writing side of an open file.
pub(super) struct Writer {
    core: Arc<Core>,
    thread: Option<JoinHandle<()>>,
}

struct Core {
    connection: Mutex<Connection>,
    queue: Mutex<Queue>,
    came: Condvar,
    lock: File,
    lock_path: std::path::PathBuf,
    lock_wait: Duration,
    transactions: Transactions,
    /// Whether writes may be done in place of the thread.
    in_place: bool,
    /// A scan met much that has ended.
    asked_to_sweep: AtomicBool,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Waiting>,
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

/// Pauses between two tries where another program holds the database's lock: doubled from one to
/// the other.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

impl Writer {
    pub(super) fn start(
        connection: Connection,
        lock: File,
        lock_path: std::path::PathBuf,
        config: &SqliteConfig,
        transactions: Transactions,
    ) -> Result<Self, PortError> {
        let core = Arc::new(Core {
            connection: Mutex::new(connection),
            queue: Mutex::default(),
            came: Condvar::new(),
            lock,
            lock_path,
            lock_wait: config.lock_wait,
            transactions,
            in_place: config.durability == super::Durability::Relaxed,
            asked_to_sweep: AtomicBool::new(false),
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
        self.submit(work, self.core.in_place, false).await
    }

    /// The same, left undone where the future is dropped before it is begun: nobody would have what
    /// it takes.
    pub(super) async fn write_if_awaited<T: Send + 'static, E: From<PortError> + Send + 'static>(
        &self,
        work: impl FnMut(&Connection, i64) -> rusqlite::Result<Result<T, E>> + Send + 'static,
    ) -> Result<T, E> {
        self.submit(work, self.core.in_place, true).await
    }

    /// As [`write`](Self::write), never in place: for work of more than a few rows.
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
        self.core.submit(Waiting { job, deadline: None }, in_place);
        let gone = || PortError::new(PortErrorKind::Closed, "sqlite: the file was closed").outcome_unknown();
        answer.await.unwrap_or_else(|_| Err(gone().into()))
    }

    /// Has the thread sweep what has ended.
    pub(super) fn sweep(&self) {
        if !self.core.asked_to_sweep.swap(true, Ordering::Relaxed) {
            self.core.hand_over();
        }
    }

    /// How many transactions were committed through this handle.
    pub(super) fn commits(&self) -> u64 {
        self.core.transactions.commits()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        lock(&self.core.queue).closed = true;
        self.core.came.notify_all();
        if let Some(thread) = self.thread.take() {
            // It ends when it has done what was asked for. A panic there was answered already.
            let _ = thread.join();
        }
    }
}

impl Core {
    fn submit(&self, waiting: Waiting, in_place: bool) {
        lock(&self.queue).jobs.push_back(waiting);
        if in_place {
            // Who holds the connection looks once more after it has let go of it: nothing is left behind.
            let mut rounds = 0;
            while rounds < ROUNDS && !lock(&self.queue).jobs.is_empty() {
                let connection = match self.connection.try_lock() {
                    Ok(connection) => connection,
                    Err(TryLockError::Poisoned(panicked)) => panicked.into_inner(),
                    Err(TryLockError::WouldBlock) => return,
                };
                if self.lock.try_lock().is_err() {
                    break; // another process writes: waiting for it is the thread's
                }
                let committed = self.commit_waiting(&connection);
                let _ = self.lock.unlock();
                if committed.is_err() {
                    break; // another program writes: the same
                }
                rounds += 1;
            }
            if lock(&self.queue).jobs.is_empty() && !self.is_housekeeping_due() {
                return;
            }
        }
        self.hand_over();
    }

    /// Leaves to the thread what waits, and wakes it.
    fn hand_over(&self) {
        let sleeps = {
            let mut queue = lock(&self.queue);
            queue.handed_over = true;
            std::mem::take(&mut queue.idle)
        };
        if sleeps {
            self.came.notify_one();
        }
    }

    /// The thread: commits whatever waits, until the file is closed.
    fn serve(&self) {
        let mut pause = PAUSES.0;
        loop {
            if !self.in_place {
                self.linger();
            }
            {
                let mut queue = lock(&self.queue);
                while !self.has_work(&queue) {
                    if queue.closed {
                        return;
                    }
                    queue.idle = true;
                    queue = self.came.wait(queue).unwrap_or_else(PoisonError::into_inner);
                }
                queue.idle = false;
            }
            let connection = lock(&self.connection);
            if self.is_checkpoint_due() {
                self.transactions.checkpoint(&connection);
            }
            if self.asked_to_sweep.swap(false, Ordering::Relaxed) {
                self.transactions.sweep_soon(true);
            }
            let committed = match self.lock.lock() {
                Ok(()) => {
                    let committed = self.commit_waiting(&connection);
                    let _ = self.lock.unlock();
                    committed
                }
                Err(error) => {
                    let failed = file_failure(&self.lock_path, error);
                    self.transactions.sweep_soon(false);
                    self.take().into_iter().for_each(|waiting| waiting.job.answer(Err(failed.clone())));
                    Ok(())
                }
            };
            drop(connection);
            match committed {
                Ok(()) => pause = PAUSES.0,
                // Without the lock of the file, so that each process has its own tries.
                Err(busy) => {
                    self.transactions.sweep_soon(false);
                    self.give_up_late_ones(&busy);
                    let queue = lock(&self.queue);
                    if !queue.jobs.is_empty() {
                        drop(self.came.wait_timeout(queue, pause));
                        pause = (pause * 2).min(PAUSES.1);
                    }
                }
            }
            // Who found the connection taken meanwhile relies on who had it to look again.
            let mut queue = lock(&self.queue);
            queue.handed_over = !queue.jobs.is_empty();
        }
    }

    /// Whether there is something for the thread to do. Writes in place are not, until they are left to it.
    fn has_work(&self, queue: &Queue) -> bool {
        let its_own = !self.in_place || queue.handed_over || queue.closed;
        (its_own && !queue.jobs.is_empty()) || (!queue.closed && self.is_housekeeping_due())
    }

    fn is_housekeeping_due(&self) -> bool {
        self.is_checkpoint_due() || self.transactions.is_behind() || self.asked_to_sweep.load(Ordering::Relaxed)
    }

    fn is_checkpoint_due(&self) -> bool {
        self.in_place && self.transactions.unchecked() >= CHECKPOINT_EVERY
    }

    /// Who writes one after the other comes back soon: to be woken for each costs more than to look a few times.
    fn linger(&self) {
        for _ in 0..LOOKS {
            if !lock(&self.queue).jobs.is_empty() {
                return;
            }
            std::thread::yield_now();
        }
    }

    fn take(&self) -> VecDeque<Waiting> {
        let mut queue = lock(&self.queue);
        let group = queue.jobs.len().min(GROUP);
        let rest = queue.jobs.split_off(group);
        std::mem::replace(&mut queue.jobs, rest)
    }

    /// Puts writes back before those that came meanwhile.
    fn put_back(&self, mut jobs: VecDeque<Waiting>) {
        let mut queue = lock(&self.queue);
        jobs.append(&mut queue.jobs);
        queue.jobs = jobs;
    }

    /// Answers the writes that have waited for another program's lock for as long as they may.
    fn give_up_late_ones(&self, busy: &PortError) {
        let now = machine::since_boot();
        let late = |waiting: &mut Waiting| {
            let deadline = *waiting.deadline.get_or_insert(now.saturating_add(self.lock_wait));
            deadline <= now
        };
        let (mut given_up, mut queue) = (Vec::new(), lock(&self.queue));
        for mut waiting in std::mem::take(&mut queue.jobs) {
            if late(&mut waiting) {
                given_up.push(waiting);
            } else {
                queue.jobs.push_back(waiting);
            }
        }
        drop(queue);
        given_up.into_iter().for_each(|waiting| waiting.job.answer(Err(busy.clone())));
    }

    /// Commits what waits, and what housekeeping is due. Called with the connection and the lock of
    /// the file; never waits.
    ///
    /// # Errors
    /// Where another program holds the database's lock: the writes wait again.
    fn commit_waiting(&self, connection: &Connection) -> Result<(), PortError> {
        let mut jobs = self.take();
        if jobs.is_empty() && !self.transactions.is_behind() {
            return Ok(());
        }
        let committed = match self.transactions.file.check_all() {
            Ok(()) => self.transactions.commit(connection, jobs.make_contiguous(), true),
            Err(gone) => {
                self.transactions.sweep_soon(false);
                Err(Failed::All(gone))
            }
        };
        match committed {
            Ok(()) => jobs.into_iter().for_each(|waiting| waiting.job.answer(Ok(()))),
            Err(Failed::All(error)) => {
                self.transactions.sweep_soon(false);
                jobs.into_iter().for_each(|waiting| waiting.job.answer(Err(error.clone())));
            }
            Err(Failed::Busy(error)) => {
                self.put_back(jobs);
                return Err(error);
            }
            Err(Failed::One(_)) => {
                self.transactions.sweep_soon(false);
                return self.commit_singly(connection, jobs);
            }
        }
        Ok(())
    }

    /// One of the writes failed, and takes no other with it: each by itself.
    fn commit_singly(&self, connection: &Connection, mut jobs: VecDeque<Waiting>) -> Result<(), PortError> {
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
