//! SQLite: invalid files, and files of older releases.
use std::{fs, path::Path, time::Duration};

use rusqlite::Connection;
use steadfast::{
    backend::sqlite::{Durability, Sqlite, SqliteConfig},
    port::{Failure, PortError, PortErrorKind},
    queue::{Delivery, Message, Queue, QueueExt, Receive},
    store::{Key, PutOptions, Store, StoreExt},
    time::{Clock, ManualClock},
};

const KEY: Key<'static> = Key::new("p", "r");

/// Returns the error of opening the file.
fn refused(path: &Path) -> PortError {
    Sqlite::open(SqliteConfig::at(path)).expect_err("it must not open")
}

fn block<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

async fn read(sqlite: &Sqlite) -> Option<String> {
    sqlite.store().get(KEY).await.unwrap().map(|record| String::from_utf8(record.value.to_vec()).unwrap())
}

#[test]
fn written_data_is_there_after_reopening_and_no_thread_or_file_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    for durability in [Durability::Full, Durability::Relaxed] {
        let config = SqliteConfig::at(&path).durability(durability);
        let sqlite = Sqlite::open(config.clone()).unwrap();
        block(sqlite.store().put(KEY, format!("{durability:?}").into(), PutOptions::new())).unwrap();
        drop(sqlite);
        let files: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|f| f.unwrap().file_name()).collect();
        assert!(!files.iter().any(|name| name.to_string_lossy().ends_with("-wal")), "{files:?}");
        let again = Sqlite::open(config).unwrap();
        assert_eq!(block(read(&again)).as_deref(), Some(format!("{durability:?}").as_str()));
    }
}

#[test]
fn a_file_that_is_not_a_database_is_refused_and_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("letter.txt");
    let text = "Dear reader, ".repeat(1000);
    fs::write(&path, &text).unwrap();
    let error = refused(&path);
    assert_eq!(error.kind(), PortErrorKind::Corrupt);
    assert!(error.to_string().contains("letter.txt"), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
}

#[test]
fn a_damaged_database_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    drop(Sqlite::open(SqliteConfig::at(&path)).unwrap());
    let mut bytes = fs::read(&path).unwrap();
    bytes[100..4000].fill(0xaa);
    fs::write(&path, bytes).unwrap();
    assert_eq!(refused(&path).kind(), PortErrorKind::Corrupt);
}

#[test]
fn the_database_of_another_program_is_refused_and_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    for setup in ["CREATE TABLE accounts (id)", "PRAGMA application_id = 7", "PRAGMA user_version = 2"] {
        let path = folder.path().join(format!("{}.db", setup.len()));
        Connection::open(&path).unwrap().execute_batch(setup).unwrap();
        let before = fs::read(&path).unwrap();
        let error = refused(&path);
        assert_eq!(error.kind(), PortErrorKind::Corrupt);
        assert!(error.to_string().contains("another program"), "{error}");
        // Byte for byte, because the journal mode is stored in the file, too.
        assert!(fs::read(&path).unwrap() == before, "{setup}: the file was changed");
    }
}

#[test]
fn a_newer_schema_is_refused_by_its_number() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    drop(Sqlite::open(SqliteConfig::at(&path)).unwrap());
    Connection::open(&path).unwrap().pragma_update(None, "user_version", 99).unwrap();
    let error = refused(&path);
    assert_eq!(error.kind(), PortErrorKind::TooNew);
    assert!(error.to_string().contains("99"), "{error}");
}

/// A file of the first release, which had the store alone.
#[test]
fn a_file_of_an_older_schema_is_migrated_with_its_data() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let old = Connection::open(&path).unwrap();
    old.execute_batch(
        "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
         CREATE TABLE records (partition TEXT NOT NULL, row TEXT NOT NULL, value BLOB NOT NULL, version INTEGER NOT NULL,
             ends INTEGER, PRIMARY KEY (partition, row)) WITHOUT ROWID;
         CREATE INDEX records_by_end ON records (ends) WHERE ends IS NOT NULL;
         CREATE TABLE fences (partition TEXT NOT NULL, row TEXT NOT NULL, token INTEGER NOT NULL,
             PRIMARY KEY (partition, row)) WITHOUT ROWID;
         INSERT INTO records VALUES ('p', 'r', CAST('kept' AS BLOB), 7, NULL);
         PRAGMA application_id = 0x73746466;
         PRAGMA user_version = 1;",
    )
    .unwrap();
    drop(old);
    let sqlite = Sqlite::open(SqliteConfig::at(&path)).unwrap();
    block(async {
        assert_eq!(read(&sqlite).await.as_deref(), Some("kept"));
        assert_eq!(sqlite.store().replace(KEY, "new", steadfast::store::Version::new(7)).await.unwrap().as_u64(), 8);
        sqlite.queue("jobs").unwrap().send_one(Message::new("a")).await.unwrap();
    });
}

/// A file of the release before attempts were counted, with four messages: one delivered and
/// returned twice, one in flight for the second time, one never delivered, and one dead letter.
#[test]
fn messages_of_an_older_schema_have_their_deliveries_as_attempts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let (clock, time) = Clock::manual();
    let open = || Sqlite::open_with_clock(SqliteConfig::at(&path), &clock).unwrap();
    drop(open().queue("jobs").unwrap());
    let old = Connection::open(&path).unwrap();
    old.execute_batch(
        "DROP TABLE sequences;
         DROP TRIGGER records_deleted;
         DROP TABLE topics;
         DROP TABLE notices;
         CREATE TABLE notices (number INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT NOT NULL, body BLOB NOT NULL,
             sent_at INTEGER NOT NULL);
         INSERT INTO notices (topic, body, sent_at) VALUES ('t', 'x', 0);
         ALTER TABLE messages DROP COLUMN attempts;
         ALTER TABLE messages DROP COLUMN expiries;
         ALTER TABLE messages DROP COLUMN errors;
         ALTER TABLE messages DROP COLUMN accepted_at;
         INSERT INTO messages (queue, visible_at, deliveries, receipt, due, sent_at, body, reason) VALUES
             (1, 0, 2, 0, 0, 0, CAST('returned' AS BLOB), NULL),
             (1, 0, 2, 2, 0, 0, CAST('taken' AS BLOB), NULL),
             (1, 0, 0, 0, 0, 0, CAST('new' AS BLOB), NULL),
             (-1, 0, 5, 0, 0, 0, CAST('dead' AS BLOB), 'no');
         PRAGMA user_version = 3;",
    )
    .unwrap();
    drop(old);
    time.advance(Duration::from_secs(1));
    let queue = open().queue("jobs").unwrap();
    let counts = |taken: Vec<Delivery>| {
        let counts = |d: Delivery| (String::from_utf8(d.body.to_vec()).unwrap(), d.deliveries, d.attempts, d.expiries);
        taken.into_iter().map(counts).collect::<Vec<_>>()
    };
    let receive = Receive::new(10, Duration::from_secs(30));
    let taken = counts(block(queue.receive(receive)).unwrap());
    let expected = [("returned", 3, 2, 0), ("taken", 3, 2, 1), ("new", 1, 0, 0)];
    assert_eq!(taken, expected.map(|(body, d, a, e)| (body.to_owned(), d, a, e)));
    let dead = counts(block(queue.dead_letters().unwrap().receive(receive)).unwrap());
    assert_eq!(dead, [("dead".to_owned(), 6, 5, 0)]);
}

/// A file of the release before ages has only the wall time at which a message was accepted.
// Guarantee: queue 14.
#[test]
fn messages_of_an_older_schema_have_the_age_of_their_wall_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let (clock, time) = Clock::manual();
    let queue = || Sqlite::open_with_clock(SqliteConfig::at(&path), &clock).unwrap().queue("jobs").unwrap();
    block(queue().send_one(Message::new("a"))).unwrap();
    Connection::open(&path).unwrap().execute_batch(crate::TO_SCHEMA_6).unwrap();
    time.advance(Duration::from_secs(10));
    drop(queue());
    time.advance(Duration::from_secs(5));
    let taken = block(queue().receive(Receive::new(1, Duration::from_secs(30)))).unwrap();
    assert_eq!(taken[0].age, Duration::from_secs(15));
}

/// A program of the release before ages may have the file open while a newer one migrates it.
// Guarantee: queue 14.
#[test]
fn messages_of_an_older_program_have_the_age_since_they_were_due() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let (clock, time) = Clock::manual();
    time.advance(Duration::from_secs(1000));
    let queue = Sqlite::open_with_clock(SqliteConfig::at(&path), &clock).unwrap().queue("jobs").unwrap();
    let now = i64::try_from(clock.now().as_nanos() / 1000).unwrap();
    let older = "INSERT INTO messages (queue, visible_at, deliveries, receipt, due, sent_at, body)
        VALUES (1, ?1, 0, 0, ?1, 0, x'61')";
    Connection::open(&path).unwrap().execute(older, [now]).unwrap();
    time.advance(Duration::from_secs(15));
    let receive = Receive::new(1, Duration::from_secs(30));
    let taken = block(queue.receive(receive)).unwrap();
    assert_eq!(taken[0].age, Duration::from_secs(15));
    block(queue.dead_letter(&taken[0].receipt, "no")).unwrap();
    time.advance(Duration::from_secs(15));
    let letters = block(queue.dead_letters().unwrap().receive(receive)).unwrap();
    assert_eq!(letters[0].age, Duration::from_secs(30));
}

#[test]
fn a_folder_that_is_missing_or_read_only_is_denied() {
    let folder = tempfile::tempdir().unwrap();
    let error = refused(&folder.path().join("nowhere/state.db"));
    assert_eq!(error.kind(), PortErrorKind::Denied);
    assert!(error.to_string().contains("nowhere"), "{error}");
    assert_eq!(refused(folder.path()).kind(), PortErrorKind::Denied, "it is a folder");
    // The system's read-only tree, which not even its owner can write.
    #[cfg(target_os = "linux")]
    assert_eq!(refused(Path::new("/proc/state.db")).kind(), PortErrorKind::Denied);
    assert_eq!(refused(Path::new("/")).kind(), PortErrorKind::Invalid);
}

#[test]
fn a_full_disk_is_an_error_and_earlier_data_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let sqlite = Sqlite::open(SqliteConfig::at(&path)).unwrap();
    block(async {
        let store = sqlite.store();
        store.insert(KEY, "kept").await.unwrap();
        let bound = sqlite.limit_pages(200).await.unwrap();
        assert_eq!(bound, 200);
        // A write that does not fit and one that does may share a group, but not a result.
        let large = store.put(Key::new("p", "large"), vec![1; 2 << 20].into(), PutOptions::new());
        let small = store.put(Key::new("p", "small"), "s".into(), PutOptions::new());
        let (large, small) = tokio::join!(large, small);
        let error = large.expect_err("it does not fit");
        assert_eq!(error.backend().map(PortError::kind), Some(PortErrorKind::Full), "{error}");
        assert!(!error.may_have_been_applied());
        small.unwrap();
        assert_eq!(read(&sqlite).await.as_deref(), Some("kept"));
        assert_eq!(store.get(Key::new("p", "large")).await.unwrap(), None);
    });
}

/// The file's time continues after a reopening, and never goes back, also after a reboot of the
/// machine.
#[test]
fn the_files_time_never_goes_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let time = || {
        let file = Connection::open(&path).unwrap();
        file.query_row("SELECT value FROM meta WHERE name = 'time'", [], |r| r.get::<_, String>(0))
            .unwrap()
            .parse::<i64>()
            .unwrap()
    };
    drop(Sqlite::open(SqliteConfig::at(&path)).unwrap());
    let first = time();
    drop(Sqlite::open(SqliteConfig::at(&path)).unwrap());
    let second = time();
    assert!(second >= first);
    let another_boot = "UPDATE meta SET value = 'another' WHERE name = 'boot';
                        UPDATE meta SET value = CAST(CAST(value AS INTEGER) - 3600000000 AS TEXT) WHERE name = 'wall';";
    Connection::open(&path).unwrap().execute_batch(another_boot).unwrap();
    drop(Sqlite::open(SqliteConfig::at(&path)).unwrap());
    assert!(time() - second >= 3_600_000_000, "the hour that it was away has passed");
    let wall_set_back = "UPDATE meta SET value = 'a third' WHERE name = 'boot';
                         UPDATE meta SET value = CAST(CAST(value AS INTEGER) + 3600000000 AS TEXT) WHERE name = 'wall';";
    let third = time();
    Connection::open(&path).unwrap().execute_batch(wall_set_back).unwrap();
    drop(Sqlite::open(SqliteConfig::at(&path)).unwrap());
    assert!(time() > third);
}

#[test]
fn expired_records_are_deleted_along_with_writes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let (clock, time): (Clock, ManualClock) = Clock::manual();
    let sqlite = Sqlite::open_with_clock(SqliteConfig::at(&path).durability(Durability::Relaxed), &clock).unwrap();
    let second = std::time::Duration::from_secs(1);
    block(async {
        for i in 0..2000 {
            let options = PutOptions::new().ttl(second);
            sqlite.store().put(Key::new("p", &i.to_string()), "x".into(), options).await.unwrap();
        }
        for _ in 0..10 {
            time.advance(second * 2);
            sqlite.store().put(KEY, "x".into(), PutOptions::new()).await.unwrap();
        }
    });
    drop(sqlite);
    let left: i64 =
        Connection::open(&path).unwrap().query_row("SELECT count(*) FROM records", [], |r| r.get(0)).unwrap();
    assert_eq!(left, 1);
}

#[test]
fn settings_are_read_from_a_document_and_refused_by_name() {
    let config: SqliteConfig = toml::from_str("path = 'state.db'\ndurability = 'relaxed'\npoll = '10ms'").unwrap();
    assert_eq!(
        config,
        SqliteConfig::at("state.db").durability(Durability::Relaxed).poll(std::time::Duration::from_millis(10))
    );
    assert!(toml::from_str::<SqliteConfig>("path = 'a'\nduration = 'full'").is_err());
    let error = Sqlite::open(SqliteConfig::at("state.db").poll(std::time::Duration::ZERO)).unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        (PortErrorKind::Invalid, "invalid `poll`: must be longer than zero")
    );
}
