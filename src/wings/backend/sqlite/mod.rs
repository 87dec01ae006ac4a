//! SQLite, the embedded backend: one file, several processes on one machine, nothing to install.
//!
//! ```
//! use steadfast::{
//!     backend::sqlite::{Sqlite, SqliteConfig},
//!     queue::{Message, QueueExt},
//!     store::{Key, StoreExt},
//! };
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
//! | a killed process loses | no acknowledged write | no acknowledged write |
//! | a power cut or a system crash loses | no acknowledged write | the last writes, in order: those since the last checkpoint |
//! | cost of a write | a sync, shared by all concurrent writes | no sync, except at checkpoints |
//!
//! With either setting the file opens without repair.
//!
//! # How it works
//!
//! The file is in WAL mode, so that readers never wait. A writer thread takes all pending writes
//! and commits them as a group: they share one sync, and each has its own result. If the group
//! fails with an error that one write can cause (too large, a full disk), each write is tried
//! alone. If a lock is held or the disk fails, the whole group fails. With relaxed durability the
//! caller commits in place if no other write is running, because a switch to another thread would
//! cost more than the write.
//!
//! Reads run in place, on a few connections of their own: they take microseconds, while a thread
//! switch takes ten. A page of a scan ends at a mebibyte, so that none takes long; one of named
//! rows does not. [`depth`](crate::queue::Queue::depth) and [`peek`](crate::queue::Queue::peek)
//! walk the queue's index, and run on a second thread. **The caller's thread never waits for a
//! lock**, except in [`Sqlite::open`] and [`Sqlite::queue`]: an operation that meets a lock moves
//! to a thread.
//!
//! A write that meets the lock of another program is retried for
//! [`lock_wait`](SqliteConfig::lock_wait) in all, together with all pending writes. Then it fails
//! as throttled. The time of a write is read once it has the lock, so that a message is hidden for
//! its whole visibility time-out.
//!
//! Between processes, the writer holds an advisory lock on a file beside the database (`...-lock`)
//! around each group. The operating system wakes the waiters of that lock in order, while SQLite's
//! own lock is polled with growing pauses. Programs that do not take the lock (SQLite's shell) only
//! make all writers wait longer.
//!
//! **Time** (for records that expire and hidden messages) belongs to the file. While the machine
//! runs, it follows the clock since boot, which all processes share and which cannot be set. Over a
//! restart it advances by the time that passed on the wall clock, and never goes back. A process in
//! a Linux time namespace uses the machine's time, not that of its namespace. One exception is a
//! process that left its namespace by `unshare` without a child: its offsets cannot be read.
//!
//! **The file** is resolved once, when it is opened: the path becomes absolute, and symbolic links
//! are followed. Its identity is compared with that of its path at each read and before each group
//! of writes; the log's identity before each group of writes. If the file or its log was deleted,
//! moved or replaced, operations fail as [`Closed`](crate::port::PortErrorKind::Closed). If the
//! file was emptied, they fail as [`Corrupt`](crate::port::PortErrorKind::Corrupt). Versions, and
//! so the tokens of leases, never repeat: neither after a program deleted a row, nor in a new file
//! at the same path, whose versions begin above the wall clock's microseconds.
//!
//! **Expired rows** (records, de-duplication ids, notices) are deleted along with writes: after
//! each 64 rows up to twice as many, so that their number falls while others write. The thread
//! deletes the rest when it is idle. The file does not shrink; its pages are reused. Fencing tokens
//! stay, and one row of each topic, queue and sequence.
//!
//! **Limits**: a `receive` or a `peek` ends at 16 MiB of bodies and headers, with at least one
//! message.
//!
//! # Errors
//!
//! An error is permanent only if a retry cannot help.
//!
//! | cause | kind | class |
//! |---|---|---|
//! | another program holds the database's lock | `Throttled` | throttled |
//! | no space on the disk, a quota, the limit of [`limit_pages`](Sqlite::limit_pages) | `Full` | throttled |
//! | no file descriptors, no memory, an interrupted call, a failure of the disk | `Unavailable` | transient |
//! | no permission for the file or its folder, a read-only file system, no such folder | `Denied` | permanent |
//! | a file that is no database, is damaged, cut short, in UTF-16, or another program's | `Corrupt` | permanent |
//! | the file is no longer at its path | `Closed` | permanent |
//! | a newer release's schema | `TooNew` | permanent |
//! | a value or a setting that violates a rule, a path that names no file | `Invalid` | permanent |
//!
//! # Cancel safety
//!
//! A write whose future is dropped is applied as a whole or not at all. A `receive` that is dropped
//! before it begins takes nothing. Dropped later, it leaves the taken messages hidden for at most
//! their visibility time-out.
//!
//! # Pitfalls
//!
//! - Not on network file systems: WAL needs memory that all processes share.
//! - One machine only. For several, use a server.
//! - Copy a database with SQLite's backup, or with all processes stopped: the `-wal` file belongs
//!   to it. A copy that is written over the open file in place is the same file to the system, and
//!   is not detected. Nor does a restored backup know tokens that were issued since.
//! - A file with a second hard link is refused, because each name would have a log of its own.
//! - A process that is stopped (`SIGSTOP`, a debugger, a frozen container) in the middle of a write
//!   holds the file's lock. Other writers wait until it continues or is killed. Nothing is lost,
//!   and reads continue.
//! - [`Sqlite::open`] runs on the calling thread and waits for locks there: call it at start-up.
//!
//! # Source
//!
//! "Write-Ahead Logging", sqlite.org/wal.html; group commit: DeWitt et al., "Implementation
//! techniques for main memory database systems", 1984.
mod clock;
mod config;
mod failure;
mod handle;
mod identity;
mod job;
mod machine;
mod notifier;
mod queue;
mod queue_sql;
mod reader;
mod schema;
mod send_sql;
mod sequence_sql;
mod store;
mod store_sql;
mod sweep;
mod transaction;
mod within;
mod writer;

pub use config::{Durability, SqliteConfig};
pub use handle::Sqlite;
pub use notifier::SqliteNotifier;
pub use queue::SqliteQueue;
pub use store::SqliteStore;
