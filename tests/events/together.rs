//! Commands of several aggregates in one commit.
use std::sync::Arc;

use futures::future::join_all;
use steadfast::{
    event_sourcing::{
        AggregateConfig, AggregateStore, Commit, CommitError, Committed, EventStore, EventStoreConfig, ExecuteError,
    },
    port::PortErrorKind,
    queue::{InMemoryQueue, Message, Queue},
    store::{InMemoryStore, Store},
};

use crate::{
    aggregates::{ALL, Book, SoldOut, codec, seats},
    log,
};

fn memory() -> Arc<dyn Store> {
    Arc::new(InMemoryStore::new())
}

type Seats = AggregateStore<crate::aggregates::Seats>;

/// Books seats of two conferences, or of none.
async fn both(of: &Seats, id: &str, count: u32) -> Result<Committed, ExecuteError<SoldOut>> {
    loop {
        let commit = of.add(Commit::new(id), "one", &Book(count)).await?;
        let commit = of.add(commit, "two", &Book(count)).await?;
        match of.log().commit(commit).await {
            Err(CommitError::Conflict { .. }) => {}
            done => return Ok(done?),
        }
    }
}

async fn booked(of: &Seats) -> [u32; 2] {
    [of.load("one").await.unwrap().0.booked, of.load("two").await.unwrap().0.booked]
}

// Guarantee: event_sourcing 9.
#[tokio::test(start_paused = true)]
async fn commands_of_two_aggregates_take_effect_together_or_none_does() {
    let seats = seats(log(&memory()).await);
    seats.execute("two", "before", Book(45)).await.unwrap();
    let done = both(&seats, "b1", 5).await.unwrap();
    assert_eq!((done.versions["one"], done.versions["two"]), (1, 2));
    assert!(matches!(both(&seats, "b2", 1).await, Err(ExecuteError::Rejected(SoldOut))));
    assert_eq!(booked(&seats).await, [5, ALL]);
    let error = both(&seats, "b2", 1).await.unwrap_err();
    assert_eq!(error.to_string(), "the command was rejected: SoldOut");
}

// Guarantee: event_sourcing 9.
#[tokio::test(start_paused = true)]
async fn a_commit_of_commands_that_was_accepted_is_repeated_although_an_aggregate_would_reject_it() {
    let seats = seats(log(&memory()).await);
    seats.execute("two", "before", Book(45)).await.unwrap();
    assert!(!both(&seats, "b1", 5).await.unwrap().is_repeated);
    // The second aggregate has no seats, then the first one neither.
    let again = both(&seats, "b1", 5).await.unwrap();
    assert!(again.is_repeated && again.versions.is_empty(), "{again:?}");
    seats.execute("one", "rest", Book(45)).await.unwrap();
    assert!(both(&seats, "b1", 5).await.unwrap().is_repeated);
    assert_eq!(seats.log().state().repeated, 2);
    // The id of another command, of another aggregate, is no answer to this one.
    assert!(matches!(both(&seats, "before", 5).await, Err(ExecuteError::Rejected(SoldOut))));
    let unnamed = seats.add(Commit::unnamed(), "one", &Book(1)).await;
    assert!(matches!(unnamed, Err(ExecuteError::Rejected(SoldOut))));
}

// Guarantee: event_sourcing 9.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn commits_of_commands_beside_executed_ones_sell_each_seat_once() {
    let store = memory();
    let mut calls = Vec::new();
    for handle in 0..3 {
        let seats = seats(log(&store).await);
        for caller in 0..30 {
            let (seats, id) = (seats.clone(), format!("{handle}.{caller}"));
            calls.push(tokio::spawn(async move {
                if caller % 2 == 0 {
                    return both(&seats, &id, 1).await.map_or(0, |_| 2);
                }
                loop {
                    match seats.execute("two", id.clone(), Book(1)).await {
                        Err(ExecuteError::Conflict { .. }) => {}
                        done => break u32::from(done.is_ok()),
                    }
                }
            }));
        }
    }
    let sold: u32 = join_all(calls).await.into_iter().map(Result::unwrap).sum();
    let [one, two] = booked(&seats(log(&store).await)).await;
    assert_eq!((one + two, two), (sold, ALL));
}

// Guarantee: event_sourcing 14.
#[tokio::test(start_paused = true)]
async fn commands_of_one_commit_send_their_messages_and_hold_a_claim() {
    let mails: Arc<dyn Queue> = Arc::new(InMemoryQueue::new("mails"));
    let log = EventStore::builder(memory(), "log", EventStoreConfig::default()).outbox("mails", mails.capabilities());
    let log = log.build().await.unwrap();
    let seats = Seats::builder(log.clone(), codec(), AggregateConfig::default())
        .messages(|stream, _| vec![("mails".to_owned(), Message::new(stream.to_owned()))])
        .build()
        .unwrap();
    let commit = seats.add(Commit::new("b1"), "one", &Book(1)).await.unwrap();
    let commit = seats.add(commit, "two", &Book(1)).await.unwrap();
    log.commit(commit.claim("badge/1")).await.unwrap();
    assert_eq!(log.holder("badge/1").await.unwrap().as_deref(), Some("one"));
    let bodies: Vec<_> =
        log.commits(0, 9).await.unwrap()[0].messages.iter().map(|(_, mail)| mail.body.clone()).collect();
    assert_eq!(bodies, ["one", "two"]);
}

// Guarantee: event_sourcing 9.
#[tokio::test(start_paused = true)]
async fn a_command_without_events_lets_the_commit_require_the_version_on_which_it_was_decided() {
    let seats = seats(log(&memory()).await);
    seats.execute("two", "before", Book(1)).await.unwrap();
    let add = async || {
        let commit = seats.add(Commit::new("b1"), "one", &Book(1)).await.unwrap();
        seats.add(commit, "two", &Book(99)).await.unwrap()
    };
    let late = add().await;
    seats.execute("two", "meanwhile", Book(1)).await.unwrap();
    let conflict = seats.log().commit(late).await.unwrap_err();
    assert!(matches!(conflict, CommitError::Conflict { expected: 1, actual: 2, .. }), "{conflict}");
    assert_eq!(seats.log().commit(add().await).await.unwrap().versions["one"], 1);
}

// Guarantee: event_sourcing 8.
#[tokio::test(start_paused = true)]
async fn a_command_that_panics_or_has_a_bad_name_is_an_error_of_its_own() {
    let seats = seats(log(&memory()).await);
    let empty = seats.add(Commit::new("b1"), "", &Book(1)).await.unwrap_err();
    assert!(empty.to_string().contains("`stream`"), "{empty}");
    // A stream with an event that the fold does not bear.
    seats.log().commit(crate::append("e", "bad", steadfast::event_sourcing::Expected::Any, "Unknown")).await.unwrap();
    let unknown = seats.add(Commit::new("b1"), "bad", &Book(1)).await.unwrap_err();
    assert!(matches!(&unknown, ExecuteError::Store(error) if error.kind() != PortErrorKind::Invalid), "{unknown}");
}
