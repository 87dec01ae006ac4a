//! Opening, checking and migrating a file.
use std::{path::Path, time::Duration};

use rusqlite::{Connection, OpenFlags, TransactionBehavior, config::DbConfig};

use super::{
    clock::{self, FileTime},
    config::{Durability, SqliteConfig},
    failure::failure,
};
use crate::{
    port::{PortError, PortErrorKind},
    time::Clock,
};

/// Application id of our files ("stdf").
const APPLICATION: i32 = 0x7374_6466;

/// Oldest safe version of SQLite. Earlier ones may damage a WAL that several processes write and
/// checkpoint at once.
const OLDEST: i32 = 3_051_003;

/// Migrations from each version of the schema to the next. Existing files depend on them: append
/// only, never change one.
const MIGRATIONS: &[&str] = &[
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
     CREATE TABLE records (partition TEXT NOT NULL, row TEXT NOT NULL, value BLOB NOT NULL, version INTEGER NOT NULL,
         ends INTEGER, PRIMARY KEY (partition, row)) WITHOUT ROWID;
     CREATE INDEX records_by_end ON records (ends) WHERE ends IS NOT NULL;
     CREATE TABLE fences (partition TEXT NOT NULL, row TEXT NOT NULL, token INTEGER NOT NULL,
         PRIMARY KEY (partition, row)) WITHOUT ROWID;",
    "CREATE TABLE queues (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
     CREATE TABLE messages (id INTEGER PRIMARY KEY AUTOINCREMENT, queue INTEGER NOT NULL, visible_at INTEGER NOT NULL,
         deliveries INTEGER NOT NULL, receipt INTEGER NOT NULL, due INTEGER NOT NULL, sent_at INTEGER NOT NULL,
         body BLOB NOT NULL, headers TEXT, grp TEXT, reason TEXT);
     CREATE INDEX messages_by_time ON messages (queue, visible_at, id);
     CREATE INDEX messages_by_group ON messages (queue, grp, id) WHERE grp IS NOT NULL;
     CREATE TABLE sent (queue INTEGER NOT NULL, deduplication TEXT NOT NULL, message INTEGER NOT NULL,
         ends INTEGER NOT NULL, PRIMARY KEY (queue, deduplication)) WITHOUT ROWID;
     CREATE INDEX sent_by_end ON sent (ends);",
    "CREATE TABLE notices (number INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT NOT NULL, body BLOB NOT NULL,
         sent_at INTEGER NOT NULL);
     CREATE INDEX notices_by_topic ON notices (topic, number);",
    // Each earlier delivery was an attempt, except one in flight.
    "ALTER TABLE messages ADD COLUMN attempts INTEGER NOT NULL DEFAULT 0;
     ALTER TABLE messages ADD COLUMN expiries INTEGER NOT NULL DEFAULT 0;
     UPDATE messages SET attempts = deliveries - (receipt <> 0) WHERE deliveries > 0;",
    // Versions of a deleted record never repeat, whichever program deleted it. Notices are numbered
    // by topic, so that a missing one is detected.
    "INSERT OR IGNORE INTO meta (name, value) VALUES ('floor', '0');
     CREATE TRIGGER records_deleted AFTER DELETE ON records
         WHEN OLD.version > (SELECT CAST(value AS INTEGER) FROM meta WHERE name = 'floor')
         BEGIN UPDATE meta SET value = OLD.version WHERE name = 'floor'; END;
     DROP TABLE notices;
     DELETE FROM meta WHERE name = 'notices_deleted';
     CREATE TABLE topics (id INTEGER PRIMARY KEY, topic TEXT NOT NULL UNIQUE, newest INTEGER NOT NULL);
     CREATE TABLE notices (topic INTEGER NOT NULL, number INTEGER NOT NULL, sent_at INTEGER NOT NULL, body BLOB NOT NULL,
         PRIMARY KEY (topic, number)) WITHOUT ROWID;
     CREATE INDEX notices_by_time ON notices (sent_at);",
    "ALTER TABLE messages ADD COLUMN errors TEXT;",
    // No row of `sequences` is ever deleted: numbers never repeat. `accepted_at` is by the file's time; `ACCEPTED` sets
    // it for the messages that are there. A program of an older release that has the file open sends messages without
    // it: they count from `due`.
    "CREATE TABLE sequences (partition TEXT NOT NULL, name TEXT NOT NULL, last INTEGER NOT NULL,
         PRIMARY KEY (partition, name)) WITHOUT ROWID;
     ALTER TABLE messages ADD COLUMN accepted_at INTEGER;",
    // `expiries` has the form of `Unexplained`: earlier releases would read a crash as 131072 expired deliveries.
    "",
];

/// Converts the wall time at which messages were sent into the file's time, with the current file's
/// and wall time in microseconds. Schema 7 adds the column.
const ACCEPTED: &str = "UPDATE messages SET accepted_at = ?1 - max(0, ?2 - sent_at * 1000)";

/// A new file's versions begin above the wall clock's microseconds, so that they differ from those
/// of an earlier file at the path.
const FIRST_FLOOR: &str = "UPDATE meta SET value = ? WHERE name = 'floor'";

/// The file's generated name, which distinguishes its queues from those of other files. It stays
/// with the rows when the file is moved or copied.
const NAME: &str = "INSERT OR IGNORE INTO meta (name, value) VALUES ('identity', lower(hex(randomblob(16))))";

/// Opens the file for writing, creates or migrates it, and reads its time.
pub(super) fn open(config: &SqliteConfig, clock: Option<Clock>) -> Result<(Connection, FileTime), PortError> {
    if rusqlite::version_number() < OLDEST {
        let found = rusqlite::version();
        let message =
            format!("sqlite: {found} may damage files that several processes write: 3.51.3 or later is required");
        return Err(PortError::new(PortErrorKind::Unsupported, message));
    }
    let path = &config.path;
    // URIs are off: the path is a plain path.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let at = |error| failure(path, error);
    let mut connection = Connection::open_with_flags(path, flags).map_err(at)?;
    connection.busy_timeout(config.lock_wait).map_err(at)?;
    // Checked before anything changes, because the journal mode is stored in the file. This also
    // fails if the file is not a database.
    version_of(&connection, path)?;
    prepare(&connection, config).map_err(at)?;
    let time = migrate(&mut connection, path, clock)?;
    // From here on the writer waits for locks itself, on its own thread.
    connection.busy_timeout(Duration::ZERO).map_err(at)?;
    Ok((connection, time))
}

/// Reads the file's generated name.
pub(super) fn name_of(connection: &Connection, path: &Path) -> Result<String, PortError> {
    let name = connection.query_row("SELECT value FROM meta WHERE name = 'identity'", [], |row| row.get(0));
    name.map_err(|error| failure(path, error))
}

/// Opens another connection, for reading.
pub(super) fn open_for_reading(path: &Path) -> Result<Connection, PortError> {
    // Not read-only: the first reader after a crash may have to recover the WAL.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(|error| failure(path, error))?;
    let set = || {
        keep_statements(&connection)?;
        connection.pragma_update(None, "query_only", true)
    };
    set().map_err(|error| failure(path, error))?;
    Ok(connection)
}

/// Keeps each statement compiled for the life of the connection.
fn keep_statements(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_prepared_statement_cache_capacity(64);
    // Without this setting, SQLite recompiles a statement with `LIMIT ?`, or with a bound that its
    // plan may depend on, each time it is bound. All plans here are the same for all values,
    // because nothing is ANALYZEd.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}

fn prepare(connection: &Connection, config: &SqliteConfig) -> rusqlite::Result<()> {
    keep_statements(connection)?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    let synchronous = match config.durability {
        Durability::Full => "full",
        Durability::Relaxed => "normal",
    };
    connection.pragma_update(None, "synchronous", synchronous)?;
    if config.durability == Durability::Relaxed {
        // The writer's thread checkpoints long before this: a commit in place must not sync.
        connection.pragma_update(None, "wal_autocheckpoint", 16_384)?;
    }
    Ok(())
}

/// Returns the version of the file's schema. Rejects a file of another program or a newer release,
/// and changes nothing.
fn version_of(connection: &Connection, path: &Path) -> Result<usize, PortError> {
    let number =
        |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0)).map_err(|error| failure(path, error));
    let application = number("PRAGMA application_id")?;
    let version = number("PRAGMA user_version")?;
    let tables = number("SELECT count(*) FROM sqlite_schema")?;
    if application != i64::from(APPLICATION) && (application != 0 || version != 0 || tables != 0) {
        let message = format!("sqlite: {} belongs to another program; it was not changed", path.display());
        return Err(PortError::new(PortErrorKind::Corrupt, message));
    }
    let encoding = connection.query_row("PRAGMA encoding", [], |row| row.get::<_, String>(0));
    let encoding = encoding.map_err(|error| failure(path, error))?;
    if encoding != "UTF-8" {
        let message =
            format!("sqlite: {} is in {encoding}, which sorts rows differently; it was not changed", path.display());
        return Err(PortError::new(PortErrorKind::Corrupt, message));
    }
    let newest = MIGRATIONS.len();
    match usize::try_from(version) {
        Ok(version) if version <= newest => Ok(version),
        _ => {
            let message = format!(
                "sqlite: {} has schema {version} of a newer release; this release supports up to {newest}; it was not changed",
                path.display()
            );
            Err(PortError::new(PortErrorKind::TooNew, message))
        }
    }
}

fn migrate(connection: &mut Connection, path: &Path, clock: Option<Clock>) -> Result<FileTime, PortError> {
    let at = |error| failure(path, error);
    let begun = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(at)?;
    // Checked again under the lock, when no other process can change it.
    let version = version_of(&begun, path)?;
    let done = || {
        for step in MIGRATIONS.iter().skip(version) {
            begun.execute_batch(step)?;
        }
        if version == 0 {
            begun.execute(FIRST_FLOOR, [clock::wall()])?;
        }
        begun.execute(NAME, [])?;
        begun.pragma_update(None, "application_id", APPLICATION)?;
        begun.execute_batch(&format!("PRAGMA user_version = {}", MIGRATIONS.len()))?;
        let time = match clock {
            Some(clock) => FileTime::Given(clock),
            None => FileTime::of_machine(&begun)?,
        };
        if version < 7 {
            let wall = i64::try_from(time.wall().as_millis()).unwrap_or(i64::MAX).saturating_mul(1000);
            begun.execute(ACCEPTED, [time.now(), wall])?;
        }
        Ok(time)
    };
    let time = done().map_err(at)?;
    begun.commit().map_err(at)?;
    Ok(time)
}
