//! Event sourcing over the stores in memory and in a file; with the features of engines, over servers.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "tests")]
mod aggregates;
mod commits;
mod crashes;
mod drops;
#[cfg(any(feature = "nats", feature = "postgres", feature = "redis"))]
#[allow(clippy::disallowed_methods, reason = "real servers take real time")]
mod engines;
mod handle;
mod index_table;
mod outbox;
mod replies;
mod together;
mod topic;
mod unsteady;
mod views;

use std::sync::Arc;

use steadfast::{
    event_sourcing::{Commit, EventStore, Expected, NewEvent, StoredEvent},
    store::Store,
};

/// Opens the log of a test.
async fn log(store: &Arc<dyn Store>) -> EventStore {
    EventStore::open(store.clone(), "log").await.unwrap()
}

/// An event of this type without a body.
fn event(kind: &str) -> NewEvent {
    NewEvent::new(kind, "")
}

/// A commit of one event of this type.
fn append(id: &str, stream: &str, expected: Expected, kind: &str) -> Commit {
    Commit::new(id).append(stream, expected, [event(kind)])
}

fn kinds(events: &[StoredEvent]) -> Vec<&str> {
    events.iter().map(|event| event.event.kind.as_str()).collect()
}
