//! cqrs-es's part of `benches/events`: events in a SQLite file, whose writes are synced.
//!
//! Arguments: the file, the work and two numbers (`append EVENTS CALLERS`, `fill EVENTS 1`, `load STREAMS LOADS`,
//! `replay EVENTS 1`). Prints seconds.
use std::{sync::Arc, time::Instant};

use cqrs_es::{
    Aggregate, DomainEvent,
    event_sink::EventSink,
    persist::{PersistedEventRepository, SerializedEvent},
};
use futures::future::join_all;
use serde::{Deserialize, Serialize};
use sqlite_es::SqliteEventRepository;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};

const PER_STREAM: usize = 100;

/// An event of 100 bytes as JSON, beside the tag that serde adds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Booked {
    seats: u64,
    by: String,
}

impl DomainEvent for Booked {
    fn event_type(&self) -> String {
        "Booked".to_owned()
    }

    fn event_version(&self) -> String {
        "1".to_owned()
    }
}

#[derive(Default, Serialize, Deserialize)]
struct Seats {
    booked: u64,
}

impl Aggregate for Seats {
    const TYPE: &'static str = "seats";
    type Command = ();
    type Event = Booked;
    type Error = std::convert::Infallible;
    type Services = ();

    async fn handle(&mut self, (): (), (): &(), _: &EventSink<Self>) -> Result<(), Self::Error> {
        Ok(())
    }

    fn apply(&mut self, event: Booked) {
        self.booked += event.seats;
    }
}

fn event(stream: &str, sequence: usize) -> SerializedEvent {
    let booked = Booked { seats: 2, by: "x".repeat(81) };
    let payload = serde_json::to_value(booked).expect("JSON");
    let metadata = serde_json::json!({});
    SerializedEvent::new(
        stream.to_owned(),
        sequence,
        Seats::TYPE.to_owned(),
        "Booked".to_owned(),
        "1".to_owned(),
        payload,
        metadata,
    )
}

fn stream(n: usize) -> String {
    format!("stream-{n:06}")
}

async fn open(file: &str, synchronous: SqliteSynchronous) -> Arc<SqliteEventRepository> {
    // As `default_sqlite_pool`, but synced, and with one connection: more of them wait for each other's lock.
    let options = SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(synchronous);
    let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await.expect("a pool");
    // The table of its own migration.
    let schema = "CREATE TABLE IF NOT EXISTS events (aggregate_type text NOT NULL, aggregate_id text NOT NULL,
        sequence integer CHECK (sequence >= 0) NOT NULL, event_type text NOT NULL, event_version text NOT NULL,
        payload text NOT NULL, metadata text NOT NULL, PRIMARY KEY (aggregate_type, aggregate_id, sequence)) STRICT";
    sqlx::query(schema).execute(&pool).await.expect("the schema");
    Arc::new(SqliteEventRepository::new(pool))
}

#[tokio::main(worker_threads = 2)]
async fn main() {
    let words: Vec<String> = std::env::args().collect();
    let [_, file, work, first, second] = &*words else { panic!("wants a file, a work and two numbers") };
    let (first, second): (usize, usize) = (first.parse().expect("a number"), second.parse().expect("a number"));
    let durability = if work == "fill" { SqliteSynchronous::Off } else { SqliteSynchronous::Full };
    let events = open(file, durability).await;
    let start = Instant::now();
    match work.as_str() {
        "append" => append(&events, first, second).await,
        "fill" => {
            for n in 0..first / PER_STREAM {
                let batch: Vec<_> = (1..=PER_STREAM).map(|sequence| event(&stream(n), sequence)).collect();
                events.persist::<Seats>(&batch, None).await.expect("events");
            }
        }
        "load" => {
            for n in 0..second {
                let mut seats = Seats::default();
                for stored in events.get_events::<Seats>(&stream(n * 61 % first)).await.expect("a load") {
                    seats.apply(serde_json::from_value(stored.payload).expect("JSON"));
                }
                assert_eq!(seats.booked, 2 * PER_STREAM as u64);
            }
        }
        "replay" => {
            let (mut all, mut seats) = (events.stream_all_events::<Seats>().await.expect("a stream"), Seats::default());
            while let Some(stored) = all.next::<Seats>(&[]).await {
                seats.apply(stored.expect("an event").payload);
            }
            assert_eq!(seats.booked, 2 * first as u64);
        }
        other => panic!("unknown work {other}"),
    }
    println!("{}", start.elapsed().as_secs_f64());
}

async fn append(events: &Arc<SqliteEventRepository>, count: usize, callers: usize) {
    let of_caller = |caller: usize| {
        let events = events.clone();
        tokio::spawn(async move {
            for n in 0..count / callers {
                let event = event(&format!("stream-{caller}-{}", n / PER_STREAM), n % PER_STREAM + 1);
                events.persist::<Seats>(&[event], None).await.expect("an event");
            }
        })
    };
    for task in join_all((0..callers).map(of_caller)).await {
        task.expect("no panic");
    }
}
