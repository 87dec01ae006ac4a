//! Our log and our aggregates.
use std::{path::Path, sync::Arc, time::Duration};

use futures::future::join_all;
use steadfast::{
    backend::{
        postgres::{Postgres, PostgresConfig},
        sqlite::{Durability, Sqlite, SqliteConfig},
    },
    codec::Codec,
    event_sourcing::{
        Aggregate, AggregateConfig, AggregateStore, Commit, EventCodec, EventStore, EventStoreConfig, Expected,
        NewEvent,
    },
    store::Store,
};

use crate::{Booked, PER_STREAM, timed};

/// Opens the log in a file, or on a server.
pub async fn log(place: &str, durability: Durability) -> EventStore {
    let store: Arc<dyn Store> = if place.starts_with("postgres") {
        Arc::new(Postgres::connect(PostgresConfig::at(place)).await.expect("a server").store())
    } else {
        Arc::new(Sqlite::open(SqliteConfig::at(place).durability(durability)).expect("a file").store())
    };
    // For as long as the longest run: rows of commands are there to the end.
    let config = EventStoreConfig::default().remember(Duration::from_secs(3600));
    EventStore::builder(store, "bench", config).build().await.expect("a log")
}

/// Appends events one by one, each caller to streams of its own.
pub async fn append(log: EventStore, events: usize, callers: usize) -> Duration {
    let of_caller = |caller: usize| {
        let log = log.clone();
        tokio::spawn(async move {
            for n in 0..events / callers {
                let stream = format!("stream-{caller}-{}", n / PER_STREAM);
                let event = NewEvent::new("Booked", Booked::json());
                let commit = Commit::new(format!("{caller}/{n}"));
                let commit = commit.append(stream, Expected::Version((n % PER_STREAM) as u64), [event]);
                log.commit(commit).await.expect("a commit");
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

/// Writes so many events, each in a commit of its own.
pub async fn fill(place: &str, events: usize) {
    const CALLERS: usize = 256;
    let streams = events / PER_STREAM;
    let log = log(place, Durability::Relaxed).await;
    let of_caller = |caller: usize| {
        let log = log.clone();
        tokio::spawn(async move {
            for stream in (caller..streams).step_by(CALLERS) {
                for version in 0..PER_STREAM {
                    let event = NewEvent::new("Booked", Booked::json());
                    let commit = Commit::new(format!("{stream}/{version}"));
                    let commit = commit.append(crate::stream(stream), Expected::Version(version as u64), [event]);
                    log.commit(commit).await.expect("a commit");
                }
            }
        })
    };
    for task in join_all((0..CALLERS).map(of_caller)).await {
        task.expect("no panic");
    }
}

#[derive(Default, Clone)]
struct Seats {
    booked: u64,
}

impl Aggregate for Seats {
    type Command = ();
    type Event = Booked;
    type Error = ();

    fn decide(&self, (): &()) -> Result<Vec<Booked>, ()> {
        Ok(vec![Booked::of_100_bytes()])
    }

    fn evolve(&mut self, event: &Booked) {
        self.booked += event.seats;
    }
}

pub fn codec() -> EventCodec<Booked> {
    EventCodec::new(Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes)), |_: &Booked| "Booked")
}

fn seats(log: EventStore) -> AggregateStore<Seats> {
    AggregateStore::new(log, codec(), AggregateConfig::default()).expect("aggregates")
}

/// Loads streams, and folds their events.
pub async fn load(place: &str, streams: usize, loads: usize) -> Duration {
    let seats = seats(log(place, Durability::Full).await);
    timed(async {
        for n in 0..loads {
            let (state, version) = seats.load(&crate::stream(n * 61 % streams)).await.expect("a load");
            assert_eq!((state.booked, version), (2 * PER_STREAM as u64, PER_STREAM as u64));
        }
    })
    .await
}

/// Reads and decodes all events in the order of the log.
pub async fn replay(place: &str, events: usize) -> Duration {
    let (log, codec) = (log(place, Durability::Full).await, codec());
    timed(async {
        let (mut seen, mut after) = (0, 0);
        loop {
            let commits = log.commits(after, 500).await.expect("a read");
            let Some(last) = commits.last() else { break };
            after = last.number;
            for event in commits.iter().flat_map(|commit| &commit.events) {
                seen += codec.decode(&event.event).expect("it decodes").expect("it is known").seats;
            }
        }
        assert_eq!(seen, 2 * events as u64);
    })
    .await
}

/// Executes commands of one aggregate.
pub async fn aggregate(log: EventStore, commands: usize, callers: usize) -> Duration {
    let seats = seats(log);
    let of_caller = |caller: usize| {
        let seats = seats.clone();
        tokio::spawn(async move {
            for n in 0..commands / callers {
                seats.execute("conference", format!("{caller}/{n}"), ()).await.expect("a booking");
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

/// Returns the bytes of a file in which each event is in a commit of its own.
pub async fn size(folder: &Path, events: usize) -> u64 {
    let file = folder.join("ours.db");
    fill(&file.display().to_string(), events).await;
    crate::by_hand::size_of(&file)
}
