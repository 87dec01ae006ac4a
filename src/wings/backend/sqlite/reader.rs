//! Reads on connections of their own: in place, or on a thread if they may take long.
use std::{
    path::Path,
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::{
    config::SqliteConfig,
    failure::{failure, file_failure},
    identity::Identity,
    schema::open_for_reading,
};
use crate::{
    port::{PortError, PortErrorKind},
    sync::Mutex,
    time::from_thread,
};

/// Connections for reading, and a thread for reads that may take long. Both are created on first
/// use.
pub(super) struct Readers {
    pool: Arc<Pool>,
    thread: Mutex<Option<ReadThread>>,
}

struct Pool {
    config: SqliteConfig,
    file: Arc<Identity>,
    idle: Mutex<Vec<Connection>>,
}

struct ReadThread {
    reads: mpsc::Sender<Box<dyn FnOnce() + Send>>,
    handle: JoinHandle<()>,
}

/// Number of idle connections that are kept; others are closed after their read.
const KEPT: usize = 8;

impl Readers {
    pub(super) fn new(config: SqliteConfig, file: Arc<Identity>) -> Self {
        Self { pool: Arc::new(Pool { config, file, idle: Mutex::default() }), thread: Mutex::default() }
    }

    /// Reads in place without waiting. If a lock is held, the thread waits for it.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        read: impl Fn(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, PortError> {
        match self.pool.read(Duration::ZERO, &read) {
            Err(error) if error.kind() == PortErrorKind::Throttled => self.read_on_thread(read).await,
            done => done,
        }
    }

    /// Reads in place, and waits there for locks.
    pub(super) fn read_blocking<T>(&self, read: impl Fn(&Connection) -> rusqlite::Result<T>) -> Result<T, PortError> {
        self.pool.read(self.pool.config.lock_wait, &read)
    }

    /// Reads on the thread, for reads of more than a page.
    pub(super) async fn read_on_thread<T: Send + 'static>(
        &self,
        read: impl Fn(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, PortError> {
        let (reply, answer) = oneshot::channel();
        let pool = self.pool.clone();
        self.submit(Box::new(move || {
            // The caller's future may have been dropped.
            let _ = reply.send(pool.read(pool.config.lock_wait, &read));
        }))?;
        let gone = || PortError::new(PortErrorKind::Closed, "sqlite: the file was closed");
        from_thread(answer, true).await.unwrap_or_else(|_| Err(gone()))
    }

    fn submit(&self, read: Box<dyn FnOnce() + Send>) -> Result<(), PortError> {
        let mut thread = self.thread.lock();
        let thread = match &mut *thread {
            Some(thread) => thread,
            none => none.insert(ReadThread::start(&self.pool.config.path)?),
        };
        let gone = |_| PortError::new(PortErrorKind::Closed, "sqlite: the thread for reads has ended");
        thread.reads.send(read).map_err(gone)
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        if let Some(ReadThread { reads, handle }) = self.thread.lock().take() {
            drop(reads);
            // The thread ends after the read in progress.
            let _ = handle.join();
        }
    }
}

impl ReadThread {
    fn start(path: &Path) -> Result<Self, PortError> {
        let (reads, asked) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        let serve = move || asked.into_iter().for_each(|read| read());
        let handle = std::thread::Builder::new().name("steadfast-sqlite-reads".to_owned()).spawn(serve);
        Ok(Self { reads, handle: handle.map_err(|error| file_failure(path, error))? })
    }
}

impl Pool {
    /// Reads, and waits at most `wait` for a lock.
    fn read<T>(&self, wait: Duration, read: &impl Fn(&Connection) -> rusqlite::Result<T>) -> Result<T, PortError> {
        let path = &self.config.path;
        let idle = self.idle.lock().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => open_for_reading(path).map_err(|error| self.file.check().err().unwrap_or(error))?,
        };
        // Checked after opening, so that a file that replaced this one is never read.
        self.file.check()?;
        connection.busy_timeout(wait).map_err(|error| failure(path, error))?;
        let result = read(&connection).map_err(|error| failure(path, error));
        let mut idle = self.idle.lock();
        if idle.len() < KEPT {
            idle.push(connection);
        }
        result
    }
}
