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
//! The file is in WAL mode, so readers wait for nobody. A writer thread takes all writes that wait and commits them together: they
//! share one sync, and each has its own answer. If the group fails as a whole, each is tried by itself. With relaxed durability a
//! write is done in place where nobody else is writing, for then a hop to another thread would cost more than the write.
//!
//! Reads are done in place, on a few connections of their own: they are of microseconds, where a hop costs ten. A page of a scan ends at a
//! mebibyte, so that none is long.
//!
//! Between processes, an advisory lock of a file beside the database (`...-lock`) is held around each group: who waits for it is
//! woken in turn, where SQLite's own lock is polled with growing pauses. Programs that do not take it (SQLite's shell) only
//! make everybody wait longer.
//!
//! **Time** (of records that end, of messages that are hidden) is the file's own: it goes on with the machine's clock since its
//! start, which all processes share and no hand sets, and over a restart of the machine with what the wall clock says has passed,
//! never back.
//!
//! # Cancel safety
//!
//! A write whose future is dropped is applied whole or not at all. A dropped `receive` leaves what it took hidden for its visibility
//! time-out at most.
//!
//! # Pitfalls
//!
//! - Not on network file systems: WAL needs memory that all processes share.
//! - One machine. For several, take a server.
//! - Copy a database with SQLite's backup, or with all processes stopped: the `-wal` file belongs to it.
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
