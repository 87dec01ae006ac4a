//! An open file.
use std::{
    collections::HashMap,
    fmt,
    fs::{File, OpenOptions},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

use super::{
    SqliteNotifier, SqliteQueue, SqliteStore,
    clock::FileTime,
    config::SqliteConfig,
    failure::{failure, file_failure},
    identity::{self, Identity},
    queue_sql,
    reader::Readers,
    schema,
    transaction::Transactions,
    writer::Writer,
};
use crate::{
    port::{Capabilities, PortError, PortErrorKind, check_part},
    time::Clock,
};

/// An open SQLite file: the ports on it. The [module's page](super) says what it survives.
///
/// A clone shares it. With the last one, and the last port, its thread ends and the file is closed.
#[derive(Clone)]
pub struct Sqlite(pub(super) Arc<Shared>);

pub(super) struct Shared {
    // Dropped first, so that the writer's connection is the last: SQLite tidies up its files with the last one.
    pub(super) readers: Readers,
    pub(super) writer: Writer,
    pub(super) config: SqliteConfig,
    /// The file's own name.
    pub(super) identity: String,
    pub(super) time: Arc<FileTime>,
    /// Waits are on this one.
    pub(super) clock: Clock,
    /// Tells those who wait in this process, by queue.
    queues: Mutex<HashMap<i64, Arc<Notify>>>,
    /// Tells this process's subscribers, by topic.
    topics: Mutex<HashMap<String, Arc<Notify>>>,
    lock_path: PathBuf,
}

impl Sqlite {
    /// Opens the file, or makes it. Does so in place, and may wait for other processes' locks.
    ///
    /// # Errors
    /// `Invalid` for a setting that breaks a rule, and for a path that names no file: empty,
    /// `:memory:`, a URI, a device, a file with two hard links; `Denied` for a directory, and where
    /// the file or its folder cannot be written to; `Corrupt` where the file is no database, in
    /// UTF-16, or another program's; `TooNew` where a newer release made it; `Full` where there is
    /// no space; `Unavailable` where the system has no file descriptors or memory just now.
    pub fn open(config: SqliteConfig) -> Result<Self, PortError> {
        Self::make(config, None)
    }

    /// The same, with its time read from this clock: for tests. All handles of the file must be given it.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with_clock(config: SqliteConfig, clock: &Clock) -> Result<Self, PortError> {
        Self::make(config, Some(clock.clone()))
    }

    fn make(config: SqliteConfig, clock: Option<Clock>) -> Result<Self, PortError> {
        config.check().map_err(|error| PortError::new(PortErrorKind::Invalid, error.to_string()))?;
        let located = identity::locate(&config.path)?;
        let config = SqliteConfig { path: located.real.clone(), ..config };
        let mut lock_path = config.path.clone().into_os_string();
        lock_path.push("-lock");
        let lock_path = std::path::PathBuf::from(lock_path);
        let lock = locked(&lock_path)?;
        let opened = schema::open(&config, clock.clone());
        // While the connection has them open, and before another process may be the last to close
        // them.
        let file = Identity::of(&located);
        lock.unlock().map_err(|error| file_failure(&lock_path, error))?;
        let (connection, time) = opened?;
        let identity = schema::name_of(&connection, &config.path)?;
        let (file, time) = (Arc::new(file?), Arc::new(time));
        let transactions = Transactions::new(config.path.clone(), file.clone(), time.clone());
        Ok(Self(Arc::new(Shared {
            writer: Writer::start(connection, lock, lock_path.clone(), &config, transactions)?,
            readers: Readers::new(config.clone(), file),
            lock_path,
            config,
            identity,
            time,
            clock: clock.unwrap_or_default(),
            queues: Mutex::default(),
            topics: Mutex::default(),
        })))
    }

    /// The store in this file.
    pub fn store(&self) -> SqliteStore {
        SqliteStore(self.0.clone())
    }

    /// A queue in this file, by its name. It is made if it is not there.
    ///
    /// # Errors
    /// `Invalid` where the name is empty or longer than 1,024 bytes; else those of a write.
    ///
    /// Reads, and writes the name of a new queue, in place: waits for other writers' locks as
    /// [`open`](Self::open) does.
    pub fn queue(&self, name: &str) -> Result<SqliteQueue, PortError> {
        check_part("name", name, &CAN_NAME)?;
        let id = match self.0.readers.read_blocking(|c| queue_sql::find(c, name))? {
            Some(id) => id,
            None => self.0.make_queue(name)?,
        };
        Ok(SqliteQueue::new(self.0.clone(), name, id))
    }

    /// The notifier in this file.
    pub fn notifier(&self) -> SqliteNotifier {
        SqliteNotifier(self.0.clone())
    }

    /// Bounds the file to so many pages of 4 KiB, for this handle's writes: beyond it they fail as on a full disk. Gives the bound in
    /// force: never below what the file has already.
    ///
    /// # Errors
    /// Those of a write.
    ///
    /// # Cancel safety
    /// Dropped, the bound is set or not.
    pub async fn limit_pages(&self, pages: u32) -> Result<u32, PortError> {
        let set = self.0.writer.write(move |c, _| {
            Ok(Ok::<u32, PortError>(c.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |row| row.get(0))?))
        });
        set.await
    }

    /// How many transactions this handle has committed: fewer than writes, where many write at once.
    pub fn commits(&self) -> u64 {
        self.0.writer.commits()
    }
}

const CAN_NAME: Capabilities = Capabilities::of("sqlite", &[]).largest_key(1024);

impl Shared {
    /// A connection of its own, for once: the writer's answers come by a future.
    fn make_queue(&self, name: &str) -> Result<i64, PortError> {
        let connection = schema::open_for_reading(&self.config.path)?;
        // Its turn among the writers of all processes: without it, SQLite's lock may be taken at
        // every look.
        let _turn = locked(&self.lock_path)?;
        let made = || {
            connection.busy_timeout(self.config.lock_wait)?;
            connection.pragma_update(None, "query_only", false)?;
            connection.execute("INSERT OR IGNORE INTO queues (name) VALUES (?)", [name])?;
            queue_sql::find(&connection, name)
        };
        let made = made().map_err(|error| failure(&self.config.path, error))?;
        made.ok_or_else(|| PortError::new(PortErrorKind::Corrupt, "sqlite: a queue that was made is not there"))
    }

    /// Who waits for this queue in this process.
    pub(super) fn waiters(&self, queue: i64) -> Arc<Notify> {
        lock(&self.queues).entry(queue).or_default().clone()
    }

    /// Adds a subscriber of this process to a topic.
    pub(super) fn join_topic(&self, topic: &str) -> Arc<Notify> {
        lock(&self.topics).entry(topic.to_owned()).or_default().clone()
    }

    /// Takes a subscriber away, which gives back what it was told by.
    pub(super) fn leave_topic(&self, topic: &str, told: &mut Arc<Notify>) {
        let mut topics = lock(&self.topics);
        // The map's and this one: nobody else subscribes.
        if Arc::strong_count(told) <= 2 {
            topics.remove(topic);
        }
        *told = Arc::default();
    }

    /// Wakes the subscribers of a topic in this process.
    pub(super) fn tell_topic(&self, topic: &str) {
        if let Some(told) = lock(&self.topics).get(topic) {
            told.notify_waiters();
        }
    }
}

/// Opens the file whose lock the writers of all processes take in turn, and waits for it.
fn locked(path: &Path) -> Result<File, PortError> {
    let at = |error| file_failure(path, error);
    let lock = OpenOptions::new().create(true).truncate(false).write(true).open(path).map_err(at)?;
    lock.lock().map_err(at)?;
    Ok(lock)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sqlite").field("path", &self.0.config.path).finish_non_exhaustive()
    }
}
