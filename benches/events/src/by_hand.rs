//! The same by hand: a table with a unique stream and version, through rusqlite and tokio-postgres.
//!
//! Nothing of what the log adds: no ids of commands, no claims or checks, no outcome of a lost reply, no order that readers
//! of other processes can rely on.
use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::future::join_all;
use rusqlite::{Connection, ErrorCode, TransactionBehavior, params};
use tokio_postgres::NoTls;

use crate::{Booked, PER_STREAM, timed};

fn open(file: &Path, synchronous: &str) -> Connection {
    let connection = Connection::open(file).expect("it opens");
    connection.busy_timeout(Duration::from_secs(60)).expect("a time limit");
    let schema = format!(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = {synchronous};
         CREATE TABLE IF NOT EXISTS events (position INTEGER PRIMARY KEY AUTOINCREMENT, stream TEXT NOT NULL,
             version INTEGER NOT NULL, kind TEXT NOT NULL, body BLOB NOT NULL, UNIQUE (stream, version))"
    );
    connection.execute_batch(&schema).expect("the schema");
    connection
}

fn insert(connection: &mut Connection, stream: &str, versions: std::ops::Range<usize>) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for version in versions {
        insert_one(&transaction, stream, version)?;
    }
    transaction.commit()
}

fn insert_one(connection: &Connection, stream: &str, version: usize) -> rusqlite::Result<()> {
    let insert = "INSERT INTO events (stream, version, kind, body) VALUES (?, ?, 'Booked', ?)";
    connection.prepare_cached(insert)?.execute(params![stream, version as i64, Booked::json()])?;
    Ok(())
}

/// Appends events one by one: one connection behind a mutex, called in place.
pub async fn append(file: &Path, events: usize, callers: usize) -> Duration {
    let connection = Arc::new(Mutex::new(open(file, "FULL")));
    let of_caller = |caller: usize| {
        let connection = connection.clone();
        tokio::spawn(async move {
            for n in 0..events / callers {
                let stream = format!("stream-{caller}-{}", n / PER_STREAM);
                let version = n % PER_STREAM;
                insert(&mut connection.lock().expect("no panic"), &stream, version..version + 1).expect("an event");
                // A service's other tasks have their turn.
                tokio::task::yield_now().await;
            }
        })
    };
    timed(async {
        for task in join_all((0..callers).map(of_caller)).await {
            task.expect("no panic");
        }
    })
    .await
}

/// The same on PostgreSQL: a connection for each caller.
pub async fn append_postgres(url: &str, events: usize, callers: usize) -> Duration {
    let connect = async || {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("it connects");
        tokio::spawn(connection);
        client
    };
    let schema =
        "DROP TABLE IF EXISTS by_hand_events; CREATE TABLE by_hand_events (position bigint GENERATED ALWAYS AS IDENTITY
        PRIMARY KEY, stream text NOT NULL, version bigint NOT NULL, kind text NOT NULL, body bytea NOT NULL,
        UNIQUE (stream, version))";
    connect().await.batch_execute(schema).await.expect("the schema");
    let mut clients = Vec::new();
    for _ in 0..callers {
        let client = connect().await;
        let insert = "INSERT INTO by_hand_events (stream, version, kind, body) VALUES ($1, $2, 'Booked', $3)";
        let insert = client.prepare(insert).await.expect("a statement");
        clients.push((client, insert));
    }
    let of_caller = |(caller, (client, insert)): (usize, (tokio_postgres::Client, tokio_postgres::Statement))| {
        tokio::spawn(async move {
            for n in 0..events / callers {
                let stream = format!("stream-{caller}-{}", n / PER_STREAM);
                let version = (n % PER_STREAM) as i64;
                client.execute(&insert, &[&stream, &version, &Booked::json()]).await.expect("an event");
            }
        })
    };
    timed(async {
        for task in join_all(clients.into_iter().enumerate().map(of_caller)).await {
            task.expect("no panic");
        }
    })
    .await
}

/// Writes so many events, those of 256 streams in turns, as the other log has them.
pub fn fill(file: &Path, events: usize) {
    let (mut connection, streams) = (open(file, "OFF"), events / PER_STREAM);
    for first in (0..streams).step_by(256) {
        let transaction = connection.transaction().expect("a transaction");
        for version in 0..PER_STREAM {
            for stream in first..streams.min(first + 256) {
                insert_one(&transaction, &crate::stream(stream), version).expect("an event");
            }
        }
        transaction.commit().expect("a commit");
    }
}

/// Loads streams, and folds their events.
pub fn load(file: &Path, streams: usize, loads: usize) -> Duration {
    let connection = open(file, "FULL");
    crate::timed_here(|| {
        for n in 0..loads {
            let load = "SELECT kind, body FROM events WHERE stream = ? ORDER BY version";
            let mut load = connection.prepare_cached(load).expect("a statement");
            let mut rows = load.query([crate::stream(n * 61 % streams)]).expect("rows");
            assert_eq!(fold(&mut rows), 2 * PER_STREAM as u64);
        }
    })
}

/// Reads and decodes all events in their order, in pages of 500: a statement over all of them would keep the log from being
/// emptied until its end.
pub fn replay(file: &Path, events: usize) -> Duration {
    let connection = open(file, "FULL");
    crate::timed_here(|| {
        let (mut seats, mut after) = (0, 0);
        loop {
            let page = "SELECT kind, body, position FROM events WHERE position > ? ORDER BY position LIMIT 500";
            let mut page = connection.prepare_cached(page).expect("a statement");
            let (mut page, before) = (page.query([after]).expect("rows"), after);
            while let Some(event) = page.next().expect("a row") {
                seats += seats_of(event);
                after = event.get(2).expect("a position");
            }
            if after == before {
                break;
            }
        }
        assert_eq!(seats, 2 * events as u64);
    })
}

fn fold(rows: &mut rusqlite::Rows<'_>) -> u64 {
    let mut seats = 0;
    while let Some(row) = rows.next().expect("a row") {
        seats += seats_of(row);
    }
    seats
}

fn seats_of(event: &rusqlite::Row<'_>) -> u64 {
    assert_eq!(event.get_ref(0).expect("a kind").as_str().expect("text"), "Booked");
    let body = event.get_ref(1).expect("a body").as_blob().expect("bytes");
    serde_json::from_slice::<Booked>(body).expect("JSON").seats
}

/// Decides on what it knows, and inserts; reads the tail and tries again if another caller was faster. A connection for each.
pub fn aggregate(file: &Path, commands: usize, callers: usize) -> Duration {
    drop(open(file, "FULL"));
    crate::timed_here(|| {
        std::thread::scope(|scope| {
            for _ in 0..callers {
                scope.spawn(|| {
                    let (mut connection, mut version, mut booked) = (open(file, "FULL"), 0, 0);
                    for _ in 0..commands / callers {
                        loop {
                            match insert(&mut connection, "conference", version..version + 1) {
                                Ok(()) => break (version, booked) = (version + 1, booked + 2),
                                Err(error) if error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) => {
                                    let tail = "SELECT kind, body FROM events WHERE stream = ? AND version >= ? ORDER BY version";
                                    let mut tail = connection.prepare_cached(tail).expect("a statement");
                                    let seats = fold(&mut tail.query(params!["conference", version as i64]).expect("rows"));
                                    (version, booked) = (version + seats as usize / 2, booked + seats);
                                }
                                Err(error) => panic!("{error}"),
                            }
                        }
                    }
                    assert_eq!(booked, 2 * version as u64);
                });
            }
        });
    })
}

/// Returns the bytes of a file with so many events.
pub fn size(folder: &Path, events: usize) -> u64 {
    let file = folder.join("by_hand.db");
    fill(&file, events);
    size_of(&file)
}

/// Returns the bytes of a file once its log is empty.
pub fn size_of(file: &Path) -> u64 {
    let connection = Connection::open(file).expect("it opens");
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).expect("a checkpoint");
    std::fs::metadata(file).expect("a file").len()
}
