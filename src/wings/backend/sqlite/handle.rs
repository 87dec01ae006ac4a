//! Handle on an open file.
use std::{
    collections::HashMap,
    fmt,
    fs::{File, OpenOptions},
    path::{Path, PathBuf},
    sync::Arc,
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
    backend::QUEUE_NAME,
    port::{PortError, PortErrorKind},
    sync::Mutex,
    time::Clock,
};

/// An open SQLite file with the ports on it. The [module's page](super) describes its durability.
///
/// A clone shares the file. Dropping the last clone and the last port ends its thread and closes
/// the file.
#[derive(Clone)]
pub struct Sqlite(pub(super) Arc<SqliteCore>);

pub(super) struct SqliteCore {
    // Field order: the readers are dropped first, so that the writer's connection is the last one.
    // SQLite cleans up its files when the last connection closes.
    pub(super) readers: Readers,
    pub(super) writer: Writer,
    pub(super) config: SqliteConfig,
    /// The file's generated name.
    pub(super) identity: String,
    pub(super) time: Arc<FileTime>,
    /// Clock for waits.
    pub(super) clock: Clock,
    /// Notifiers of this process's waiting receivers, by queue.
    queues: Mutex<HashMap<i64, Arc<Notify>>>,
    /// Notifiers of this process's subscribers, by topic.
    topics: Mutex<HashMap<String, Arc<Notify>>>,
    lock_path: PathBuf,
}

impl Sqlite {
    /// Opens the file, or creates it. Runs on the calling thread, and may wait there for locks of
    /// other processes.
    ///
    /// # Errors
    /// - `Invalid`: a setting violates a rule, or the path names no file (empty, `:memory:`, a URI,
    ///   a device, a file with two hard links).
    /// - `Denied`: the path is a directory, or the file or its folder cannot be written.
    /// - `Corrupt`: the file is not a database, is in UTF-16, or belongs to another program.
    /// - `TooNew`: a newer release created it.
    /// - `Full`: there is no space.
    /// - `Unavailable`: the system currently has no file descriptors or memory.
    pub fn open(config: SqliteConfig) -> Result<Self, PortError> {
        Self::make(config, None)
    }

    /// Opens the file with its time read from this clock, for tests. All handles of the file must
    /// use the same clock.
    ///
    /// # Errors
    /// Same as [`open`](Self::open).
    pub fn open_with_clock(config: SqliteConfig, clock: &Clock) -> Result<Self, PortError> {
        Self::make(config, Some(clock.clone()))
    }

    fn make(config: SqliteConfig, clock: Option<Clock>) -> Result<Self, PortError> {
        config.check()?;
        let located = identity::locate(&config.path)?;
        let config = SqliteConfig { path: located.real.clone(), ..config };
        let mut lock_path = config.path.clone().into_os_string();
        lock_path.push("-lock");
        let lock_path = std::path::PathBuf::from(lock_path);
        let lock = locked(&lock_path)?;
        let opened = schema::open(&config, clock.clone());
        // Read while the connection has the files open, and before another process may be the last
        // to close them.
        let file = Identity::of(&located);
        lock.unlock().map_err(|error| file_failure(&lock_path, error))?;
        let (connection, time) = opened?;
        let identity = schema::name_of(&connection, &config.path)?;
        let (file, time) = (Arc::new(file?), Arc::new(time));
        let transactions = Transactions::new(config.path.clone(), file.clone(), time.clone());
        Ok(Self(Arc::new(SqliteCore {
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

    /// Returns the store in this file.
    pub fn store(&self) -> SqliteStore {
        SqliteStore(self.0.clone())
    }

    /// Returns the queue with this name in this file; creates it if it does not exist.
    ///
    /// This reads, and writes the name of a new queue, on the calling thread: it waits for the
    /// locks of other writers as [`open`](Self::open) does.
    ///
    /// # Errors
    /// `Invalid` if the name is empty or longer than 1,024 bytes; otherwise those of a write.
    pub fn queue(&self, name: &str) -> Result<SqliteQueue, PortError> {
        QUEUE_NAME.check_key("name", name)?;
        let id = match self.0.readers.read_blocking(|c| queue_sql::find(c, name))? {
            Some(id) => id,
            None => self.0.make_queue(name)?,
        };
        Ok(SqliteQueue::new(self.0.clone(), name, id))
    }

    /// Returns the notifier in this file.
    pub fn notifier(&self) -> SqliteNotifier {
        SqliteNotifier(self.0.clone())
    }

    /// Limits the file to `pages` pages of 4 KiB, for writes of this handle. Writes beyond the
    /// limit fail as on a full disk. Returns the effective limit, which is never below the file's
    /// current size.
    ///
    /// # Errors
    /// Those of a write.
    ///
    /// # Cancel safety
    /// If the future is dropped, the limit is set or not.
    pub async fn limit_pages(&self, pages: u32) -> Result<u32, PortError> {
        let set = self.0.writer.write(move |c, _| {
            Ok(Ok::<u32, PortError>(c.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |row| row.get(0))?))
        });
        set.await
    }

    /// Returns the number of transactions that this handle committed. Concurrent writes share
    /// transactions.
    pub fn commits(&self) -> u64 {
        self.0.writer.commits()
    }
}

impl SqliteCore {
    /// Inserts the queue on a connection of its own, because results of the writer arrive by a
    /// future.
    fn make_queue(&self, name: &str) -> Result<i64, PortError> {
        let connection = schema::open_for_reading(&self.config.path)?;
        // Takes the file lock of all writers first: without it, other processes might hold SQLite's
        // lock at each attempt.
        let _write_lock = locked(&self.lock_path)?;
        let insert = || {
            connection.busy_timeout(self.config.lock_wait)?;
            connection.pragma_update(None, "query_only", false)?;
            connection.execute("INSERT OR IGNORE INTO queues (name) VALUES (?)", [name])?;
            queue_sql::find(&connection, name)
        };
        let made = insert().map_err(|error| failure(&self.config.path, error))?;
        made.ok_or_else(|| PortError::new(PortErrorKind::Corrupt, "sqlite: a queue that was just created is missing"))
    }

    /// Returns the notifier of this queue's waiting receivers in this process.
    pub(super) fn waiters(&self, queue: i64) -> Arc<Notify> {
        self.queues.lock().entry(queue).or_default().clone()
    }

    /// Adds a subscriber of this process to a topic.
    pub(super) fn subscribe_topic(&self, topic: &str) -> Arc<Notify> {
        self.topics.lock().entry(topic.to_owned()).or_default().clone()
    }

    /// Removes a subscriber of a topic, and drops its reference to the notifier.
    pub(super) fn unsubscribe_topic(&self, topic: &str, notifier: &mut Arc<Notify>) {
        let mut topics = self.topics.lock();
        // Two references remain, the map's and this one, so there is no other subscriber.
        if Arc::strong_count(notifier) <= 2 {
            topics.remove(topic);
        }
        *notifier = Arc::default();
    }

    /// Wakes this process's subscribers of a topic.
    pub(super) fn notify_topic(&self, topic: &str) {
        if let Some(notifier) = self.topics.lock().get(topic) {
            notifier.notify_waiters();
        }
    }
}

/// Opens the lock file, which serializes the writers of all processes, and waits for its lock.
fn locked(path: &Path) -> Result<File, PortError> {
    let at = |error| file_failure(path, error);
    let lock = OpenOptions::new().create(true).truncate(false).write(true).open(path).map_err(at)?;
    lock.lock().map_err(at)?;
    Ok(lock)
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sqlite").field("path", &self.0.config.path).finish_non_exhaustive()
    }
}
