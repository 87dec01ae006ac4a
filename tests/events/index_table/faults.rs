//! Processes that end at each of their requests, and requests that fail.
use steadfast::{
    backend::sqlite::{Sqlite, SqliteConfig},
    testing::{CrashingProcess, crash_at_every_write, fail_at_every_write},
};
use tokio::runtime::Runtime;

use super::*;
use crate::crashes::{new_name, runtime};

fn open(store: &Arc<dyn Store>, name: &str) -> IndexTable<Movie> {
    // Of real time: the other process is gone in all of these tests.
    let config = IndexTableConfig::default().patience(Duration::from_millis(1));
    IndexTable::builder(store.clone(), json(), config)
        .index(format!("{name}-by-actor"), store.clone(), by_actor)
        .unique(format!("{name}-by-isan"), store.clone(), |movie: &Movie| movie.isan.clone())
        .beside(format!("{name}-by-cast"), by_actor)
        .copying(format!("{name}-by-cast"), |movie: &Movie| movie.isan.clone().unwrap_or_default())
        .build()
        .unwrap()
}

/// The rows at the end.
fn last() -> [Movie; 2] {
    let of = |title, cast: &[&str], isan: &str| Movie { isan: Some(isan.to_owned()), ..movie(title, cast) };
    [of("Alien", &["Weaver", "Holm"], "2"), of("Heat", &["Pacino"], "1")]
}

/// Indexes a row that is there, writes, changes and deletes rows, hands a number on, and repairs.
async fn does_all(store: Arc<dyn Store>, name: &str) {
    let table = open(&store, name);
    let put = async |movie: &Movie| {
        let key = Key::new(name, &movie.title);
        // Where all is done again, the number was handed on before.
        let is_done = |put: Result<_, _>| put.is_ok() || is_duplicate(&put);
        while !is_done(table.put(key, movie, Precondition::Any).await) {}
    };
    while table.build_indexes([name]).await.is_err() {}
    put(&Movie { isan: Some("1".to_owned()), ..movie("Alien", &["Weaver", "Hurt"]) }).await;
    let [alien, heat] = last();
    put(&alien).await;
    put(&heat).await;
    while table.delete(Key::new(name, "Old"), Precondition::Any).await.is_err() {}
    while table.repair(name).await.is_err() {}
}

/// Each row that was written by the table has all of its entries, at any moment, and none but those beside it. Of the row that
/// was there before, they are there after a repair.
async fn assert_whole(store: &Arc<dyn Store>, name: &str) {
    let mut entries = Vec::new();
    for nth in 0..32 {
        let index = if nth < 16 { "by-actor" } else { "by-isan" };
        let scan = Scan::partition(format!("index/{name}-{index}/{:02}", nth % 16));
        entries.extend(store.scan_all(scan).await.unwrap().into_iter().map(|entry| entry.row));
    }
    let rows = store.scan_all(Scan::partition(name)).await.unwrap();
    let (mut beside, rows): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.row.starts_with("index/"));
    beside.retain(|entry| !entry.row.ends_with("\u{1}Old"));
    let mut wanted_beside = Vec::new();
    for row in rows {
        let Ok(movie) = json::<Movie>().decode(&row.value) else { continue };
        if movie.title == "Old" {
            continue;
        }
        let (title, isan) = (&movie.title, movie.isan.clone().unwrap_or_default());
        for actor in &movie.cast {
            let of_cast = format!("index/{name}-by-cast\u{1}\u{1}{actor}\u{1}\u{1}{title}\u{1}\u{1}{title}");
            wanted_beside.push((of_cast, [&[1, u8::try_from(isan.len()).unwrap()], isan.as_bytes()].concat()));
        }
        let of_cast =
            movie.cast.iter().map(|actor| format!("{actor}\u{1}\u{1}{title}\u{1}\u{1}{name}\u{1}\u{1}{title}"));
        for entry in of_cast.chain(movie.isan.iter().map(|isan| format!("{isan}\u{1}\u{1}"))) {
            assert!(entries.contains(&entry), "{movie:?} lacks {entry:?}");
        }
    }
    wanted_beside.sort();
    let beside: Vec<_> = beside.into_iter().map(|entry| (entry.row, entry.value.to_vec())).collect();
    assert_eq!(beside, wanted_beside);
}

/// A process that ends or fails at a request; another one does all again.
fn ends_at_any_request(runtime: &Runtime, store: &Arc<dyn Store>, process: &CrashingProcess) {
    let (name, crashing) = (new_name(), process.store(store.clone()));
    runtime.block_on(async {
        let old = json::<Movie>().encode(&movie("Old", &["Weaver"])).unwrap();
        store.put(Key::new(&name, "Old"), old.into(), Precondition::Any.into()).await.unwrap();
        process.run(does_all(crashing, &name)).await;
        assert_whole(store, &name).await;
        does_all(store.clone(), &name).await;
        assert_whole(store, &name).await;
        let (table, [alien, heat]) = (open(store, &name), last());
        for (index, first, wanted) in [
            ("by-actor", "Weaver", Some(&alien)),
            ("by-actor", "Holm", Some(&alien)),
            ("by-actor", "Hurt", None),
            ("by-actor", "Pacino", Some(&heat)),
            ("by-isan", "2", Some(&alien)),
            ("by-isan", "1", Some(&heat)),
        ] {
            let page = table.lookup(format!("{name}-{index}"), first).rows().await.unwrap();
            let found: Vec<_> = page.rows.iter().map(|row| &row.value).collect();
            assert_eq!((found, page.stale), (wanted.into_iter().collect(), 0), "{index}: {first}");
            if index == "by-actor" {
                let beside = table.lookup(format!("{name}-by-cast"), first).within(&name);
                assert_eq!(beside.rows().await.unwrap(), page, "{first}");
            }
        }
        let of_old = store.scan_all(Scan::partition(&name)).await.unwrap();
        assert!(!of_old.iter().any(|entry| entry.row.ends_with("\u{1}Old")), "{of_old:?}");
        let report = table.repair(&name).await.unwrap();
        assert_eq!((report.added, report.removed, report.copied, report.duplicates.len()), (0, 0, 0, 0));
    });
}

pub(crate) fn ends_at_any(runtime: &Runtime, store: &Arc<dyn Store>) {
    let run = |process: &CrashingProcess| ends_at_any_request(runtime, store, process);
    assert!(crash_at_every_write(run) >= 15);
    assert!(fail_at_every_write(run) >= 15);
}

// Guarantee: index_table 3, 9.
#[test]
fn a_process_in_memory_that_ends_or_fails_at_any_request_leaves_stale_entries_at_most() {
    ends_at_any(&runtime(), &(Arc::new(InMemoryStore::new()) as Arc<dyn Store>));
}

// Guarantee: index_table 3, 9.
#[test]
fn a_process_on_a_file_that_ends_or_fails_at_any_request_leaves_stale_entries_at_most() {
    let folder = tempfile::tempdir().unwrap();
    let store = Sqlite::open(SqliteConfig::at(folder.path().join("index.db"))).unwrap().store();
    ends_at_any(&runtime(), &(Arc::new(store) as Arc<dyn Store>));
}
