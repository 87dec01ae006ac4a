//! SQLite: the embedded backend. One file, several processes of one machine, nothing to install.
//!
//! ```
//! use steadfast::{backend::sqlite::{Sqlite, SqliteConfig}, queue::{Message, QueueExt}, store::{Key, StoreExt}};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("state.db");
//! let sqlite = Sqlite::open(SqliteConfig::at(path))?;
//! sqlite.store().insert(Key::new("orders", "42"), "placed").await?;
//! sqlite.queue("invoices")?.send_one(Message::new("pay 42")).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Leases are a [`StoreLease`](crate::lease::StoreLease) over [`Sqlite::store`].
//!
//! # Durability
//!
//! | | [`Full`](Durability::Full), the default | [`Relaxed`](Durability::Relaxed) |
//! |---|---|---|
//! | `PRAGMA synchronous` | `FULL` | `NORMAL` |
//! | a killed process loses | nothing that was answered | nothing that was answered |
//! | a power cut, a crash of the system loses | nothing that was answered | the last writes, in order: those since the last checkpoint |
//! | a write costs | a sync, shared by all who write at that time | no sync, but at checkpoints |
//!
//! After either the file opens without repair.
//!
//! # How it works
//!
//! The file is in WAL mode, so readers wait for nobody. A writer thread takes all writes that wait
//! and commits them together: they share one sync, and each has its own answer. If the group fails
//! with an error that one write can cause (too large, a full disk), each is tried by itself; where
//! a lock is held or the disk fails, the group fails together. With relaxed durability a write is
//! done in place where nobody else is writing, for then a hop to another thread would cost more
//! than the write.
//!
//! Reads are done in place, on a few connections of their own: they are of microseconds, where a
//! hop costs ten. A page of a scan ends at a mebibyte, so that none is long.
//! [`depth`](crate::queue::Queue::depth) and [`peek`](crate::queue::Queue::peek) walk the queue's
//! index, and are done on a second thread. **No lock is waited for on the caller's thread**, but by
//! [`Sqlite::open`] and [`Sqlite::queue`]: what meets one is handed to a thread.
//!
//! A write that meets the lock of another program is tried again for
//! [`lock_wait`](SqliteConfig::lock_wait) in all, together with all that wait with it; then it
//! fails as throttled. The time of a write is read once it has the lock, so that a message is
//! hidden for its whole visibility time-out.
//!
//! Between processes, an advisory lock of a file beside the database (`...-lock`) is held around each group: who waits for it is
//! woken in turn, where SQLite's own lock is polled with growing pauses. Programs that do not take it (SQLite's shell) only
//! make everybody wait longer.
//!
//! **Time** (of records that end, of messages that are hidden) is the file's own: it goes on with
//! the machine's clock since its start, which all processes share and no hand sets, and over a
//! restart of the machine with what the wall clock says has passed, never back. A process in a
//! Linux time namespace has the machine's time, not its namespace's. (One that left its namespace's
//! offsets untold, by `unshare` without a child of its own, is not told apart.)
//!
//! **The file** is found once, when it is opened: the path is made absolute, symbolic links are
//! followed. Its identity is compared with its path's at each read and each group of writes; that of
//! the log before each group of writes. A handle whose file was deleted, moved or replaced, or
//! whose log was, fails as
//! [`Closed`](crate::port::PortErrorKind::Closed); one whose file was emptied as
//! [`Corrupt`](crate::port::PortErrorKind::Corrupt). Versions, and so the tokens of leases, never
//! repeat: neither after a row was deleted, by whatever program, nor in a new file at the same
//! path, whose versions begin above the wall clock's microseconds.
//!
//! **What has ended** (records, de-duplication ids, notices) is deleted by those who write: after
//! each 64 rows up to twice as many, so that it becomes less while others write. What is left over
//! is deleted by the thread when nobody waits for it. The file does not shrink: its pages are used
//! again. Fences stay, and one row of each topic and queue.
//!
//! **Bounds**: a `receive` or a `peek` ends at 16 MiB of bodies and headers, with one message at
//! least.
//!
//! # Errors
//!
//! An error is permanent only where trying again cannot help.
//!
//! | cause | kind | class |
//! |---|---|---|
//! | another program holds the database's lock | `Throttled` | throttled |
//! | no space on the disk, a quota, the bound of [`limit_pages`](Sqlite::limit_pages) | `Full` | throttled |
//! | no file descriptors, no memory, an interrupted call, a failure of the disk | `Unavailable` | transient |
//! | no permission for the file or its folder, a read-only file system, no such folder | `Denied` | permanent |
//! | a file that is no database, is damaged, cut short, in UTF-16, or another program's | `Corrupt` | permanent |
//! | the file is no longer at its path | `Closed` | permanent |
//! | a newer release's schema | `TooNew` | permanent |
//! | a value or a setting that breaks a rule, a path that names no file | `Invalid` | permanent |
//!
//! # Cancel safety
//!
//! A write whose future is dropped is applied whole or not at all. A `receive` that is dropped
//! before it is begun takes nothing; later it leaves what it took hidden for its visibility
//! time-out at most.
//!
//! # Pitfalls
//!
//! - Not on network file systems: WAL needs memory that all processes share.
//! - One machine. For several, take a server.
//! - Copy a database with SQLite's backup, or with all processes stopped: the `-wal` file belongs
//!   to it. A copy written over the open file in place is the same file to the system, and is not
//!   noticed; nor are tokens of a backup above those given since.
//! - A file with a second hard link is refused: each name would have a log of its own.
//! - A process that is stopped (`SIGSTOP`, a debugger, a frozen container) in the middle of a write holds the file's lock for as long: others
//!   wait with their writes until it goes on or is killed. Nothing is lost, and reads go on.
//! - The thread that opens a file does so in place, and waits for its locks: open it at start-up.
//!
//! # Source
//!
//! "Write-Ahead Logging", sqlite.org/wal.html; group commit: DeWitt et al., "Implementation techniques for main memory database
//! systems", 1984.
mod clock;
mod config;
mod failure;
mod handle;
mod identity;
mod job;
mod notifier;
mod queue;
mod queue_sql;
mod reader;
mod schema;
mod store;
mod store_sql;
mod sweep;
mod transaction;
mod writer;

pub use config::{Durability, SqliteConfig};
pub use handle::Sqlite;
pub use notifier::SqliteNotifier;
pub use queue::SqliteQueue;
pub use store::SqliteStore;
