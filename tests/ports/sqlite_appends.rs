//! SQLite: sequences that several processes append to, some killed while they do; and files of
//! releases that had none.
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{Arc, mpsc},
};

use rusqlite::Connection;
use steadfast::{
    backend::sqlite::{Durability, Sqlite, SqliteConfig, SqliteStore},
    entropy::Entropy,
    port::{Failure, PortError, PortErrorKind},
    store::{DeleteOptions, Key, Precondition, Scan, Sequence, Store, StoreError, StoreExt, Version, Write},
    testing::conformance::run,
};

use crate::children::{kill, say, start, told};

const LOG: Sequence<'static> = Sequence::new("log/");

/// The test that a child process runs.
const CHILD: &str = "sqlite_appends::child_that_appends_or_reads_until_it_is_killed";

fn open(path: &Path) -> SqliteStore {
    Sqlite::open(SqliteConfig::at(path)).unwrap().store()
}

/// Appends as one of sixteen tasks: alone, in pairs, behind the last number, and in batches that
/// are refused. Reports each number.
async fn append_on_and_on(store: SqliteStore, name: String) {
    let mut last = 0;
    for n in 0.. {
        let value = |part: &str| format!("{name}.{n}{part}");
        let writes = match n % 4 {
            0 => vec![Write::append("log/", value("a")), Write::append("log/", value("b"))],
            1 => vec![Write::append_after("log/", value(""), last)],
            2 => vec![
                Write::append("log/", value("refused")),
                Write::check_row("absent", Precondition::Version(Version::new(1))),
            ],
            _ => vec![Write::append("log/", value(""))],
        };
        let values = if n % 4 == 0 { vec![value("a"), value("b")] } else { vec![value("")] };
        match store.batch("p", writes).await {
            Ok(done) => {
                assert_ne!(n % 4, 2);
                for (version, value) in done.iter().zip(values) {
                    last = version.unwrap().as_u64();
                    say(&format!("appended {last} {value}"));
                }
            }
            Err(StoreError::Conflict { write: 0, current: Some(now) }) if n % 4 == 1 => last = now.as_u64(),
            Err(StoreError::Conflict { write: 1, current: None }) if n % 4 == 2 => {}
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// Reads behind the last number that it saw, in small pages. A hole ends it.
async fn tail(store: SqliteStore) {
    let mut seen = 0;
    loop {
        let page = store.scan(&Scan::partition("p").sequence(LOG, seen).limit(20)).await.unwrap();
        if page.rows.is_empty() {
            crate::wait_for_a_real_thread(1);
        }
        for row in page.rows {
            assert_eq!(LOG.number(&row.row), Some(seen + 1), "the reader has seen {seen}");
            seen += 1;
            say(&format!("read {seen} {}", std::str::from_utf8(&row.value).unwrap()));
        }
    }
}

#[test]
fn child_that_appends_or_reads_until_it_is_killed() {
    let Some((part, path)) = told() else { return };
    let store = open(Path::new(&path));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        if part == "reader" {
            return tail(store).await;
        }
        let tasks = (0..16).map(|task| tokio::spawn(append_on_and_on(store.clone(), format!("{part}.{task}"))));
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
    });
}

/// Lines of the processes so far: values by number.
#[derive(Default)]
struct Said {
    appended: BTreeMap<u64, String>,
    read: BTreeMap<u64, String>,
}

impl Said {
    fn note(&mut self, line: &str) {
        let [what, number, value] = line.splitn(3, ' ').collect::<Vec<_>>().try_into().unwrap();
        let of = if what == "read" { &mut self.read } else { &mut self.appended };
        let before = of.insert(number.parse().unwrap(), value.to_owned());
        assert_eq!(before, None, "{line}: the number came twice");
    }
}

// Guarantee: store 10.
// Guarantee: store 11.
#[test]
fn sixty_four_appenders_in_four_processes_leave_no_hole_when_some_are_killed() {
    const KILLS: usize = 12;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    drop(open(&path));
    let (sender, lines) = mpsc::channel();
    let (entropy, mut said) = (Entropy::from_seed(64), Said::default());
    let reader = start(CHILD, "reader", &path, &sender);
    let mut appenders: Vec<_> = (0..4).map(|i| start(CHILD, &i.to_string(), &path, &sender)).collect();
    for round in 0..KILLS {
        let until = said.appended.len() + 1 + entropy.up_to(150) as usize;
        while said.appended.len() < until {
            said.note(&lines.recv().unwrap());
        }
        let killed = entropy.up_to(3) as usize;
        kill(std::mem::replace(&mut appenders[killed], start(CHILD, &(4 + round).to_string(), &path, &sender)));
    }
    appenders.into_iter().for_each(kill);
    // A reader that ended closes the channel.
    drop(sender);
    let rows: BTreeMap<u64, String> = run(async {
        let rows = open(&path).scan_all(Scan::partition("p").sequence(LOG, 0)).await.unwrap();
        let numbered = |row: steadfast::store::Row| {
            assert_eq!(LOG.number(&row.row), Some(row.version.as_u64()));
            (row.version.as_u64(), String::from_utf8(row.value.to_vec()).unwrap())
        };
        rows.into_iter().map(numbered).collect()
    });
    // The reader goes on to the end, without a hole.
    while said.read.len() < rows.len() {
        said.note(&lines.recv().unwrap());
    }
    kill(reader);
    assert!(rows.keys().copied().eq(1..=rows.len() as u64), "a hole in the numbers");
    assert_eq!(said.read, rows);
    for (number, value) in &said.appended {
        assert_eq!(rows.get(number), Some(value), "number {number} was answered");
    }
    let values: BTreeSet<_> = rows.values().collect();
    assert_eq!(values.len(), rows.len(), "a value came twice");
    assert!(!values.iter().any(|value| value.ends_with("refused")));
    let file = Connection::open(&path).unwrap();
    assert_eq!(file.query_row("PRAGMA integrity_check", [], |row| row.get::<_, String>(0)).unwrap(), "ok");
    println!("{KILLS} kills: {} appended, {} answered", rows.len(), said.appended.len());
    assert!(rows.len() > 200);
}

#[test]
fn concurrent_appends_share_commits() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let config = SqliteConfig::at(folder.path().join("state.db")).durability(Durability::Full);
        let sqlite = Sqlite::open(config).unwrap();
        let (store, before) = (Arc::new(sqlite.store()), sqlite.commits());
        let appends: Vec<_> = (0..256)
            .map(|i: usize| {
                let store = store.clone();
                tokio::spawn(async move { store.batch("p", vec![Write::append("log/", i.to_string())]).await })
            })
            .collect();
        let mut numbers = BTreeSet::new();
        for append in appends {
            numbers.insert(append.await.unwrap().unwrap()[0].unwrap().as_u64());
        }
        assert!(numbers.into_iter().eq(1..=256));
        let commits = sqlite.commits() - before;
        assert!(commits < 200, "256 appends took {commits} commits");
    });
}

/// A file of the release before sequences, with a row that a put created.
#[test]
fn a_file_without_sequences_is_migrated_and_its_rows_of_their_form_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    drop(open(&path));
    let old = Connection::open(&path).unwrap();
    let put = "INSERT INTO records (partition, row, value, version) VALUES ('p', ?, x'', 7)";
    old.execute(put, [LOG.row(2)]).unwrap();
    old.execute_batch(crate::TO_SCHEMA_6).unwrap();
    drop(old);
    let store = open(&path);
    run(async {
        let append = || store.batch("p", vec![Write::append("log/", "x")]);
        let refused = append().await.unwrap_err();
        assert_eq!(refused.backend().map(PortError::kind), Some(PortErrorKind::Invalid));
        assert_eq!(
            refused.to_string(),
            "invalid `sequence`: must not be \"log/\": a put created \"log/00000000000000000002\", which has the form \
             of its rows; delete such rows before the first append"
        );
        let replaced = store.replace(Key::new("p", &LOG.row(2)), "kept", Version::new(7)).await.unwrap();
        assert_eq!(replaced.as_u64(), 8);
        assert!(store.delete(Key::new("p", &LOG.row(2)), DeleteOptions::new()).await.unwrap());
        assert_eq!(append().await.unwrap(), [Some(Version::new(1))]);
    });
    drop(store);
    let file = Connection::open(&path).unwrap();
    assert_eq!(file.query_row("PRAGMA user_version", [], |row| row.get::<_, i64>(0)).unwrap(), 8);
}

#[test]
fn an_append_behind_the_last_number_is_refused_and_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    drop(open(&path));
    let insert = "INSERT INTO sequences VALUES ('p', 'log/', 9223372036854775806)";
    Connection::open(&path).unwrap().execute(insert, []).unwrap();
    let store = open(&path);
    run(async {
        let append = |n: usize| (0..n).map(|_| Write::append("log/", "x")).collect::<Vec<_>>();
        let full = store.batch("p", append(2)).await.unwrap_err();
        assert_eq!(full.backend().map(PortError::kind), Some(PortErrorKind::Full));
        assert_eq!(store.batch("p", append(1)).await.unwrap(), [Some(Version::new(Sequence::LAST))]);
        assert!(store.batch("p", append(1)).await.is_err());
        let late = store.batch("p", vec![Write::append_after("log/", "x", u64::MAX)]).await;
        assert!(
            matches!(late, Err(StoreError::Conflict { current: Some(last), .. }) if last.as_u64() == Sequence::LAST)
        );
        let rows = store.scan_all(Scan::partition("p").sequence(LOG, Sequence::LAST - 1)).await.unwrap();
        assert_eq!(rows.iter().map(|row| &row.row[..]).collect::<Vec<_>>(), ["log/09223372036854775807"]);
    });
}

/// Another program wrote the row that the next append takes.
#[test]
fn an_append_never_replaces_a_row_of_another_program() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path);
    run(async {
        assert_eq!(store.batch("p", vec![Write::append("log/", "x")]).await.unwrap(), [Some(Version::new(1))]);
        let put = "INSERT INTO records (partition, row, value, version) VALUES ('p', ?, CAST('theirs' AS BLOB), 7)";
        Connection::open(&path).unwrap().execute(put, [LOG.row(2)]).unwrap();
        // A write that shares its commit is not affected.
        let append = store.batch("p", vec![Write::put("beside", "x", Precondition::Any), Write::append("log/", "y")]);
        let other = store.insert(Key::new("p", "other"), "x");
        let (append, other) = tokio::join!(append, other);
        assert!(append.is_err());
        other.unwrap();
        let rows = store.scan_all(Scan::partition("p")).await.unwrap();
        let rows: Vec<_> = rows.iter().map(|row| (&row.row[..], &row.value[..])).collect();
        let expected = [(&LOG.row(1)[..], &b"x"[..]), (&LOG.row(2), b"theirs"), ("other", b"x")];
        assert_eq!(rows, expected);
    });
}
