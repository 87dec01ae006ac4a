//! eventcore's part of `benches/events`: events in a SQLite file, whose writes are synced.
//!
//! Arguments: the file, the work and two numbers (`append EVENTS CALLERS`, `fill EVENTS 1`, `load STREAMS LOADS`,
//! `replay EVENTS 1`). Prints seconds.
use std::{sync::Arc, time::Instant};

use eventcore_sqlite::{SqliteEventStore, rusqlite::Connection};
use eventcore_types::{
    BatchSize, Event, EventFilter, EventPage, EventReader, EventStore, StreamId, StreamVersion, StreamWrites,
    collect_events,
};
use futures::future::join_all;
use serde::{Deserialize, Serialize};

const PER_STREAM: usize = 100;

/// An event of 100 bytes as JSON, beside its stream.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Booked {
    stream: StreamId,
    seats: u64,
    by: String,
}

impl Event for Booked {
    fn stream_id(&self) -> &StreamId {
        &self.stream
    }

    fn event_type_name() -> &'static str {
        "Booked"
    }
}

fn stream(n: usize) -> StreamId {
    StreamId::try_new(format!("stream-{n:06}")).expect("a name")
}

async fn append(events: &SqliteEventStore, stream: StreamId, version: usize, count: usize) {
    let mut writes =
        StreamWrites::new().register_stream(stream.clone(), StreamVersion::new(version)).expect("a stream");
    for _ in 0..count {
        let event = Booked { stream: stream.clone(), seats: 2, by: "x".repeat(81) };
        writes = writes.append(event).expect("an event");
    }
    events.append_events(writes).await.expect("an append");
}

#[tokio::main(worker_threads = 2)]
async fn main() {
    let words: Vec<String> = std::env::args().collect();
    let [_, file, work, first, second] = &*words else { panic!("wants a file, a work and two numbers") };
    let (first, second): (usize, usize) = (first.parse().expect("a number"), second.parse().expect("a number"));
    let connection = Connection::open(file).expect("it opens");
    let synchronous = if work == "fill" { "OFF" } else { "FULL" };
    let pragmas = format!("PRAGMA journal_mode = WAL; PRAGMA synchronous = {synchronous}");
    connection.execute_batch(&pragmas).expect("its settings");
    let events = Arc::new(SqliteEventStore::from_connection(connection));
    events.migrate().await.expect("the schema");
    let start = Instant::now();
    match work.as_str() {
        "append" => {
            let of_caller = |caller: usize| {
                let events = events.clone();
                tokio::spawn(async move {
                    for n in 0..first / second {
                        let stream = StreamId::try_new(format!("stream-{caller}-{}", n / PER_STREAM)).expect("a name");
                        append(&events, stream, n % PER_STREAM, 1).await;
                    }
                })
            };
            for task in join_all((0..second).map(of_caller)).await {
                task.expect("no panic");
            }
        }
        "fill" => {
            for n in 0..first / PER_STREAM {
                append(&events, stream(n), 0, PER_STREAM).await;
            }
        }
        "load" => {
            for n in 0..second {
                let read = events.read_stream::<Booked>(stream(n * 61 % first)).await.expect("a load");
                let read = collect_events(read).await.expect("events");
                assert_eq!(read.iter().map(|event| event.seats).sum::<u64>(), 2 * PER_STREAM as u64);
            }
        }
        "replay" => {
            let (mut page, mut seats) = (EventPage::first(BatchSize::new(500)), 0);
            loop {
                let read = events.read_events::<Booked>(EventFilter::all(), page).await.expect("a page");
                let Some((_, last)) = read.last() else { break };
                page = EventPage::after(*last, BatchSize::new(500));
                seats += read.iter().map(|(event, _)| event.seats).sum::<u64>();
            }
            assert_eq!(seats, 2 * first as u64);
        }
        other => panic!("unknown work {other}"),
    }
    println!("{}", start.elapsed().as_secs_f64());
}
