//! A view of a log, ours and by hand, and the time from a commit to a view that has it.
use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use rusqlite::{Connection, OptionalExtension, params};
use serde::{Deserialize, Serialize};
use steadfast::{
    backend::sqlite::{Durability, Sqlite, SqliteConfig},
    codec::Codec,
    event_sourcing::{Commit, EventStore, Expected, NewEvent},
    materialized_view::{Projection, Sourced, View, ViewConfig},
};
use tokio::sync::oneshot;

use crate::{Booked, PER_STREAM, ours, timed, timed_here};

/// The seats of a stream.
#[derive(Default, Serialize, Deserialize)]
struct Seats {
    booked: u64,
}

struct ByStream;

impl Projection for ByStream {
    type Event = Booked;
    type Row = Seats;

    fn keys(&self, event: &Sourced<Booked>) -> Vec<String> {
        event.stream.iter().cloned().collect()
    }

    fn fold(&self, _key: &str, row: Option<Seats>, event: &Sourced<Booked>) -> Option<Seats> {
        Some(Seats { booked: row.unwrap_or_default().booked + event.event.seats })
    }
}

fn view(log: &EventStore, file: &Path) -> View<ByStream> {
    let store = Sqlite::open(SqliteConfig::at(file).durability(Durability::Full)).expect("a file").store();
    let rows = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
    let built = View::builder(Arc::new(store), "seats", ByStream, rows, ViewConfig::default());
    built.source(log.topic(), ours::codec()).build().expect("a view")
}

/// Runs a projector while something is done.
async fn projected<T>(view: &View<ByStream>, done: impl Future<Output = T>) -> T {
    let (stop, stopped) = oneshot::channel::<()>();
    let projector = view.clone();
    let runs = tokio::spawn(async move { projector.run(async move { drop(stopped.await) }).await });
    let result = done.await;
    drop(stop);
    runs.await.expect("no panic").expect("it projects");
    result
}

/// Folds all events of a filled log into a row for each stream.
pub async fn fold(log: &str, file: &Path, events: usize) -> Duration {
    let view = view(&ours::log(log, Durability::Full).await, file);
    projected(&view, async {
        let took = timed(async { view.ready().await.expect("it catches up") }).await;
        let last = view.get(&crate::stream(events / PER_STREAM - 1)).await.expect("a read");
        assert_eq!(last.row.expect("a row").booked, 2 * PER_STREAM as u64);
        took
    })
    .await
}

/// The same by hand: a page of 500 events in one transaction, with the place behind it.
pub fn fold_by_hand(log: &Path, file: &Path, events: usize) -> Duration {
    let (source, mut rows) = (Connection::open(log).expect("a log"), Connection::open(file).expect("a file"));
    let schema = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
         CREATE TABLE seats (stream TEXT PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID;
         CREATE TABLE place (id INTEGER PRIMARY KEY, position INTEGER NOT NULL)";
    rows.execute_batch(schema).expect("the schema");
    let took = timed_here(|| {
        let mut after = 0;
        loop {
            let page = "SELECT position, stream, body FROM events WHERE position > ? ORDER BY position LIMIT 500";
            let mut page = source.prepare_cached(page).expect("a statement");
            let mut page = page.query([after]).expect("rows");
            let (mut changed, before) = (BTreeMap::<String, u64>::new(), after);
            while let Some(event) = page.next().expect("a row") {
                let booked: Booked =
                    serde_json::from_slice(event.get_ref(2).expect("a body").as_blob().expect("bytes")).expect("JSON");
                *changed.entry(event.get(1).expect("a stream")).or_default() += booked.seats;
                after = event.get(0).expect("a position");
            }
            if after == before {
                break;
            }
            let transaction = rows.transaction().expect("a transaction");
            for (stream, seats) in changed {
                let old = "SELECT body FROM seats WHERE stream = ?";
                let mut old = transaction.prepare_cached(old).expect("a statement");
                let old: Option<Vec<u8>> = old.query_row([&stream], |row| row.get(0)).optional().expect("a read");
                let old: Seats = old.map(|body| serde_json::from_slice(&body).expect("JSON")).unwrap_or_default();
                let body = serde_json::to_vec(&Seats { booked: old.booked + seats }).expect("JSON");
                let put = "INSERT INTO seats VALUES (?, ?) ON CONFLICT (stream) DO UPDATE SET body = excluded.body";
                transaction.prepare_cached(put).expect("a statement").execute(params![stream, body]).expect("a row");
            }
            transaction.execute("INSERT OR REPLACE INTO place VALUES (1, ?)", [after]).expect("the place");
            transaction.commit().expect("a commit");
        }
    });
    let all: i64 = rows.query_row("SELECT count(*) FROM seats", [], |row| row.get(0)).expect("a count");
    assert_eq!(all as usize, events / PER_STREAM);
    took
}

/// Commits so often, one after the other, and returns how long each took until a view had it.
pub async fn lags(folder: &Path, commits: usize) -> Vec<Duration> {
    let log = ours::log(&folder.join("lag.db").display().to_string(), Durability::Full).await;
    let view = view(&log, &folder.join("lag-view.db"));
    projected(&view, async {
        view.ready().await.expect("it catches up");
        let mut lags = Vec::new();
        for n in 0..commits {
            let event = NewEvent::new("Booked", Booked::json());
            let commit = Commit::new(n.to_string()).append("conference", Expected::Any, [event]);
            let done = log.commit(commit).await.expect("a commit");
            lags.push(
                timed(async {
                    let read = view.get_after("conference", &done.token, Duration::from_secs(60)).await;
                    assert_eq!(read.expect("a read").row.expect("a row").booked, 2 * (n as u64 + 1));
                })
                .await,
            );
        }
        lags
    })
    .await
}
