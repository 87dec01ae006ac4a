//! SQLite: a handle keeps its file, and detects that the file is no longer at its path.
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use bytes::Bytes;
use rusqlite::Connection;
use steadfast::{
    backend::sqlite::{Durability, Sqlite, SqliteConfig},
    lease::{Acquired, Lease, StoreLease},
    notify::Notifier,
    port::{ErrorClass, Failure, PortError, PortErrorKind},
    queue::{Message, Queue, QueueExt},
    store::{Key, PutOptions, Scan, Store, StoreExt, Write},
    testing::conformance::run,
};

const KEY: Key<'static> = Key::new("p", "r");
const MINUTE: Duration = Duration::from_secs(60);

/// Returns a path for a database in a new folder.
fn new_path() -> (PathBuf, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    (folder.path().join("state.db"), folder)
}

fn open(path: &Path, durability: Durability) -> Sqlite {
    Sqlite::open(SqliteConfig::at(path).durability(durability)).unwrap()
}

/// Returns the error of opening the path.
fn refused(path: impl Into<PathBuf>) -> PortError {
    Sqlite::open(SqliteConfig::at(path)).expect_err("it must not open")
}

/// Returns the token of a lease that this holder acquires.
async fn granted(sqlite: &Sqlite, holder: &str) -> u64 {
    let lease = StoreLease::new(std::sync::Arc::new(sqlite.store())).unwrap();
    match lease.acquire("leader", holder, MINUTE).await.unwrap() {
        Acquired::Granted(token) => token.as_u64(),
        Acquired::Held(held) => panic!("it is held: {held:?}"),
    }
}

const CHILD: &str = "STEADFAST_TEST_RELATIVE";

/// Runs in a process of its own, because the working directory belongs to the whole process.
#[test]
fn a_relative_path_names_the_same_file_after_a_change_of_directory() {
    if std::env::var(CHILD).is_err() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("elsewhere")).unwrap();
        let name = "sqlite_identity::a_relative_path_names_the_same_file_after_a_change_of_directory";
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(CHILD, "1")
            .current_dir(folder.path())
            .status();
        assert!(child.unwrap().success());
        assert!(!folder.path().join("elsewhere/state.db").exists());
        return;
    }
    run(async {
        for durability in [Durability::Full, Durability::Relaxed] {
            let sqlite = open(Path::new("state.db"), durability);
            std::env::set_current_dir("elsewhere").unwrap();
            let queue = sqlite.queue("jobs").unwrap();
            sqlite.store().put(KEY, "kept".into(), PutOptions::new()).await.unwrap();
            assert_eq!(sqlite.store().get(KEY).await.unwrap().unwrap().value, "kept");
            queue.send_one(Message::new("a")).await.unwrap();
            assert_eq!(queue.receive_one(MINUTE).await.unwrap().unwrap().body, "a");
            assert_eq!(sqlite.queue("jobs").unwrap().depth().await.unwrap().total(), 1);
            queue.purge().await.unwrap();
            std::env::set_current_dir("..").unwrap();
        }
    });
}

/// Asserts that each operation of the handle fails as closed, and names the file.
async fn all_fail_as_closed(sqlite: &Sqlite, queue: &dyn Queue, what: &str) {
    fn closed<T>(result: Result<T, impl Failure>, operation: &str) {
        let Err(error) = result else { panic!("{operation} works on a file that is gone") };
        let backend = error.backend().unwrap_or_else(|| panic!("{operation}: {error}"));
        assert_eq!(backend.kind(), PortErrorKind::Closed, "{operation}: {error}");
        assert_eq!(backend.class(), ErrorClass::Permanent);
        assert!(error.to_string().contains("state.db"), "{operation}: {error}");
    }
    let store = sqlite.store();
    closed(store.put(KEY, "lost".into(), PutOptions::new()).await, &format!("put, {what}"));
    closed(store.batch("p", vec![Write::put("x", "lost", PutOptions::new())]).await, "batch");
    closed(store.get(KEY).await, &format!("get, {what}"));
    closed(store.scan(&Scan::partition("p")).await, "scan");
    closed(queue.send(vec![Message::new("lost")]).await, "send");
    closed(queue.receive(steadfast::queue::Receive::new(1, MINUTE)).await, "receive");
    closed(queue.depth().await, "depth");
    closed(queue.peek(1).await, "peek");
    closed(sqlite.notifier().publish("t", Bytes::new()).await, "publish");
    closed(sqlite.notifier().subscribe("t").await, "subscribe");
    closed(sqlite.queue("another"), "queue");
}

#[test]
fn a_handle_whose_file_is_deleted_moved_or_replaced_fails_as_closed() {
    run(async {
        for durability in [Durability::Full, Durability::Relaxed] {
            for what in ["deleted", "all deleted", "moved", "replaced"] {
                let (path, folder) = new_path();
                let sqlite = open(&path, durability);
                let queue = sqlite.queue("jobs").unwrap();
                sqlite.store().put(KEY, "old".into(), PutOptions::new()).await.unwrap();
                sqlite.store().get(KEY).await.unwrap();
                match what {
                    "deleted" => fs::remove_file(&path).unwrap(),
                    "all deleted" => {
                        for file in fs::read_dir(folder.path()).unwrap() {
                            fs::remove_file(file.unwrap().path()).unwrap();
                        }
                    }
                    "moved" => fs::rename(&path, folder.path().join("moved.db")).unwrap(),
                    _ => {
                        let other = folder.path().join("other.db");
                        drop(open(&other, durability));
                        fs::rename(&other, &path).unwrap();
                    }
                }
                all_fail_as_closed(&sqlite, &queue, what).await;
                if what == "moved" {
                    fs::rename(folder.path().join("moved.db"), &path).unwrap();
                    assert_eq!(sqlite.store().get(KEY).await.unwrap().unwrap().value, "old");
                    sqlite.store().put(KEY, "new".into(), PutOptions::new()).await.unwrap();
                }
            }
        }
    });
}

#[test]
fn a_handle_whose_log_is_deleted_writes_no_more() {
    run(async {
        for file in ["state.db-wal", "state.db-shm"] {
            let (path, folder) = new_path();
            let sqlite = open(&path, Durability::Full);
            sqlite.store().put(KEY, "old".into(), PutOptions::new()).await.unwrap();
            fs::remove_file(folder.path().join(file)).unwrap();
            let error = sqlite.store().put(KEY, "lost".into(), PutOptions::new()).await.expect_err(file);
            assert_eq!(error.backend().unwrap().kind(), PortErrorKind::Closed, "{error}");
            assert!(error.to_string().contains(file), "{error}");
        }
    });
}

#[test]
fn a_file_that_is_emptied_while_open_is_corrupt() {
    run(async {
        for durability in [Durability::Full, Durability::Relaxed] {
            let (path, _folder) = new_path();
            let sqlite = open(&path, durability);
            sqlite.store().put(KEY, "old".into(), PutOptions::new()).await.unwrap();
            fs::write(&path, "").unwrap();
            let error = sqlite.store().put(KEY, "lost".into(), PutOptions::new()).await.expect_err("a put");
            assert_eq!(error.backend().unwrap().kind(), PortErrorKind::Corrupt, "{error}");
            let error = sqlite.store().get(KEY).await.expect_err("a get");
            assert_eq!(error.backend().unwrap().kind(), PortErrorKind::Corrupt, "{error}");
        }
    });
}

/// A process that opens the path again has a new file. It must not issue the tokens of the old one.
#[test]
fn tokens_do_not_repeat_after_the_file_was_deleted_and_created_again() {
    run(async {
        let (path, folder) = new_path();
        let first = open(&path, Durability::Full);
        let before = granted(&first, "a").await;
        for file in fs::read_dir(folder.path()).unwrap() {
            fs::remove_file(file.unwrap().path()).unwrap();
        }
        let second = open(&path, Durability::Full);
        assert!(granted(&second, "b").await > before);
        let lease = StoreLease::new(std::sync::Arc::new(first.store())).unwrap();
        assert!(lease.acquire("leader", "c", MINUTE).await.is_err(), "the first handle has no file");
    });
}

// Guarantee: store 2.
#[test]
fn versions_do_not_restart_after_another_program_deleted_a_row() {
    run(async {
        for sql in ["DELETE FROM records", "DELETE FROM records WHERE row LIKE 'lease %'"] {
            let (path, _folder) = new_path();
            let sqlite = open(&path, Durability::Full);
            let before = granted(&sqlite, "a").await;
            assert!(Connection::open(&path).unwrap().execute(sql, []).unwrap() > 0);
            let after = granted(&sqlite, "b").await;
            assert!(after > before, "{after} after {before}");
        }
    });
}

#[test]
fn paths_that_name_no_file_of_a_disk_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let uri = format!("file:{}", folder.path().join("state.db").display());
    for path in ["", ":memory:", "file::memory:", "file:state.db?mode=memory", &uri, "/dev/null", "nul\0.db"] {
        let error = refused(path);
        assert_eq!(error.kind(), PortErrorKind::Invalid, "{path:?}: {error}");
        assert!(error.to_string().contains("path"), "{error}");
    }
    let error = refused(folder.path());
    assert_eq!(error.kind(), PortErrorKind::Denied);
    assert!(error.to_string().contains("directory"), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was made");
}

/// SQLite keeps a log for each name of a file, so two names would have two logs.
#[cfg(unix)]
#[test]
fn a_file_with_two_names_is_refused_and_a_symbolic_link_is_followed() {
    let (path, folder) = new_path();
    let sqlite = open(&path, Durability::Full);
    let link = folder.path().join("link.db");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    run(async {
        let other = open(&link, Durability::Full);
        other.store().put(KEY, "through the link".into(), PutOptions::new()).await.unwrap();
        assert_eq!(sqlite.store().get(KEY).await.unwrap().unwrap().value, "through the link");
        fs::remove_file(&link).unwrap();
        let error = other.store().put(KEY, "lost".into(), PutOptions::new()).await.expect_err("its link is gone");
        assert_eq!(error.backend().unwrap().kind(), PortErrorKind::Closed);
    });
    drop(sqlite);
    fs::hard_link(&path, folder.path().join("second.db")).unwrap();
    let error = refused(&path);
    assert_eq!(error.kind(), PortErrorKind::Invalid);
    assert!(error.to_string().contains("hard link"), "{error}");
}

#[test]
fn a_file_in_utf_16_is_refused_and_left_alone() {
    let (path, _folder) = new_path();
    for setup in ["", "PRAGMA application_id = 0x73746466; PRAGMA user_version = 1;"] {
        let _ = fs::remove_file(&path);
        let file = Connection::open(&path).unwrap();
        file.execute_batch(&format!("PRAGMA encoding = 'UTF-16le'; {setup} VACUUM; BEGIN IMMEDIATE; COMMIT;")).unwrap();
        file.execute_batch("CREATE TABLE t (a); DROP TABLE t;").unwrap();
        drop(file);
        let before = fs::read(&path).unwrap();
        let error = refused(&path);
        assert_eq!(error.kind(), PortErrorKind::Corrupt);
        assert!(error.to_string().contains("UTF-16"), "{error}");
        assert!(fs::read(&path).unwrap() == before, "the file was changed");
    }
}

#[test]
fn two_processes_that_create_the_file_at_the_same_time_share_it() {
    run(async {
        let (path, _folder) = new_path();
        let openers: Vec<_> = (0..8)
            .map(|i: u8| {
                let path = path.clone();
                std::thread::spawn(move || {
                    let sqlite = open(&path, Durability::Full);
                    run(async { sqlite.store().insert(Key::new("p", &i.to_string()), "x").await.unwrap() })
                })
            })
            .collect();
        for opener in openers {
            opener.join().unwrap();
        }
        let rows = open(&path, Durability::Full).store().scan_all(Scan::partition("p")).await.unwrap();
        assert_eq!(rows.len(), 8);
    });
}

// Guarantee: queue 10.
#[test]
fn the_identity_of_a_queue_is_the_same_in_every_handle_and_after_each_restart_and_unique() {
    let ((path, _folder), (other, _other_folder)) = (new_path(), new_path());
    let identity = |path: &Path, name: &str| open(path, Durability::Full).queue(name).unwrap().identity();
    let jobs = identity(&path, "jobs");
    let sqlite = open(&path, Durability::Full);
    assert_eq!((sqlite.queue("jobs").unwrap().identity(), identity(&path, "jobs")), (jobs.clone(), jobs.clone()));
    let others = [
        sqlite.queue("more jobs").unwrap().identity(),
        sqlite.queue("jobs").unwrap().dead_letters().unwrap().identity(),
        sqlite.queue(&"j".repeat(1024)).unwrap().identity(),
        identity(&other, "jobs"),
    ];
    assert!(others.iter().all(|other| *other != jobs && other.len() <= 128), "{jobs} {others:?}");
    drop(sqlite);
    // The file's generated name stays with the file.
    let moved = path.with_file_name("moved.db");
    std::fs::rename(&path, &moved).unwrap();
    assert_eq!(identity(&moved, "jobs"), jobs);
}
