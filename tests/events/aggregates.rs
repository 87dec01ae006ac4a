//! Aggregates: each command once, on one state, in any number of processes.
use std::{
    sync::{Arc, Mutex, atomic::Ordering::SeqCst},
    time::Duration,
};

use futures::future::join_all;
use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use steadfast::{
    codec::Codec,
    entropy::Entropy,
    event_sourcing::{
        Aggregate, AggregateConfig, AggregateEvent, AggregateStore, Commit, EventCodec, EventStore, ExecuteError,
        Executed, Expected::*, NewEvent,
    },
    observe::Event,
    port::{PortError, PortErrorKind},
    store::{InMemoryStore, Store},
    time::Clock,
};

use crate::{log, unsteady::Unsteady};

/// The seats of a conference.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Seats {
    pub(crate) booked: u32,
    /// Events so far: a fold that misses one is found.
    events: u32,
}

pub(crate) const ALL: u32 = 50;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum SeatEvent {
    Booked { seats: u32 },
    Noted,
    Emptied,
}

#[derive(Debug, PartialEq, thiserror::Error)]
#[error("sold out")]
pub(crate) struct SoldOut;

/// Books so many seats; none means a note, 98 that all are free again, and 99 nothing at all.
pub(crate) struct Book(pub(crate) u32);

impl Aggregate for Seats {
    type Command = Book;
    type Event = SeatEvent;
    type Error = SoldOut;

    fn decide(&self, book: &Book) -> Result<Vec<SeatEvent>, SoldOut> {
        match book.0 {
            97 => Ok(vec![SeatEvent::Booked { seats: 97 }]),
            98 => Ok(vec![SeatEvent::Emptied]),
            998 => Ok(vec![SeatEvent::Noted; 998]),
            99 => Ok(Vec::new()),
            0 => Ok(vec![SeatEvent::Noted]),
            seats if self.booked + seats > ALL => Err(SoldOut),
            seats => Ok(vec![SeatEvent::Booked { seats }]),
        }
    }

    fn evolve(&mut self, event: &SeatEvent) {
        self.events += 1;
        match event {
            SeatEvent::Booked { seats: 97 } => panic!("no such conference"),
            SeatEvent::Booked { seats } => self.booked += seats,
            SeatEvent::Noted => {}
            SeatEvent::Emptied => self.booked = 0,
        }
    }
}

pub(crate) fn codec() -> EventCodec<SeatEvent> {
    let json = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
    EventCodec::new(json, |event: &SeatEvent| match event {
        SeatEvent::Booked { .. } => "Booked",
        SeatEvent::Noted => "Noted",
        SeatEvent::Emptied => "Emptied",
    })
}

pub(crate) fn states() -> Codec<Seats> {
    Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes))
}

pub(crate) fn seats(log: EventStore) -> AggregateStore<Seats> {
    AggregateStore::new(log, codec(), AggregateConfig::default()).unwrap()
}

fn memory() -> Arc<dyn Store> {
    Arc::new(InMemoryStore::new())
}

fn unsteady() -> (Arc<Unsteady>, Arc<dyn Store>) {
    let unsteady = Arc::new(Unsteady::default());
    (unsteady.clone(), unsteady)
}

type Done = Result<Executed, ExecuteError<SoldOut>>;

fn is_rejected(done: &Done) -> bool {
    matches!(done, Err(ExecuteError::Rejected(SoldOut)))
}

// Guarantee: event_sourcing 9.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn three_handles_sell_each_seat_once() {
    let store = memory();
    let mut calls = Vec::new();
    for handle in 0..3 {
        let seats = seats(log(&store).await);
        for caller in 0..60 {
            let seats = seats.clone();
            calls.push(tokio::spawn(async move {
                loop {
                    match seats.execute("conf", format!("{handle}.{caller}"), Book(1)).await {
                        Err(ExecuteError::Conflict { .. }) => {}
                        done => break done,
                    }
                }
            }));
        }
    }
    let done: Vec<Done> = join_all(calls).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(done.iter().filter(|done| done.is_ok()).count() as u32, ALL);
    assert_eq!(done.iter().filter(|done| is_rejected(done)).count() as u32, 180 - ALL);
    let (state, version) = seats(log(&store).await).load("conf").await.unwrap();
    assert_eq!((state.booked, version), (ALL, u64::from(ALL)));
}

// Guarantee: event_sourcing 10.
#[tokio::test(start_paused = true)]
async fn commands_of_one_aggregate_that_meet_are_committed_together_and_never_conflict() {
    let (unsteady, store) = unsteady();
    let seats = seats(log(&store).await);
    seats.execute("conf", "first", Book(1)).await.unwrap();
    unsteady.batches.store(0, SeqCst);
    // 16 callers of one, beside callers of another one.
    let calls = (0..16).map(|n| seats.execute("conf", format!("c{n}"), Book(1)));
    let others = (0..16).map(|n| seats.execute("other", format!("o{n}"), Book(1)));
    let (done, others) = futures::join!(join_all(calls), join_all(others));
    let mut versions: Vec<_> = done.iter().map(|done| done.as_ref().unwrap().version.unwrap()).collect();
    versions.sort_unstable();
    assert_eq!(versions, (2..18).collect::<Vec<_>>());
    assert!(done.iter().chain(&others).all(|done| done.as_ref().unwrap().conflicts == 0));
    let batches = unsteady.batches.load(SeqCst);
    assert!(batches <= 4, "{batches} requests for 32 commands");
}

// Guarantee: event_sourcing 10.
#[tokio::test(start_paused = true)]
async fn a_rejected_and_a_repeated_command_of_a_group_are_answered_by_themselves() {
    let (_, store) = unsteady();
    let seats = seats(log(&store).await);
    seats.execute("conf", "first", Book(10)).await.unwrap();
    let ids = ["a", "first", "b", "a", "much", "c", "nothing"];
    let books = [1, 10, 1, 1, 45, 1, 99];
    let done = join_all(ids.iter().zip(books).map(|(id, book)| seats.execute("conf", *id, Book(book)))).await;
    let repeated: Vec<_> = done.iter().map(|done| done.as_ref().is_ok_and(|done| done.is_repeated)).collect();
    assert_eq!(repeated, [false, true, false, true, false, false, false]);
    assert_eq!(done.iter().map(is_rejected).collect::<Vec<_>>(), [false, false, false, false, true, false, false]);
    assert_eq!(done[6].as_ref().unwrap().token, None);
    assert_eq!(seats.load("conf").await.unwrap().0.booked, 13);

    // A command that took effect is repeated, though its aggregate would reject it by now.
    seats.execute("conf", "rest", Book(37)).await.unwrap();
    assert!(is_rejected(&seats.execute("conf", "late", Book(1)).await));
    assert!(seats.execute("conf", "rest", Book(37)).await.unwrap().is_repeated);
    let reused = seats.execute("other", "rest", Book(1)).await.unwrap_err();
    assert!(matches!(reused, ExecuteError::Refused(_)), "{reused}");
}

// Guarantee: event_sourcing 10.
#[tokio::test(start_paused = true)]
async fn a_group_is_decided_anew_as_a_whole_after_a_conflict() {
    let (_, store) = unsteady();
    let (one, other) = (seats(log(&store).await), seats(log(&store).await));
    one.execute("conf", "1", Book(20)).await.unwrap();
    other.execute("conf", "2", Book(20)).await.unwrap();
    // The first handle knows of 20 seats only. Behind its first command there would be room for the second one.
    let calls = [("3", 8), ("4", 8)].map(|(id, book)| one.execute("conf", id, Book(book)));
    let done = join_all(calls).await;
    assert!(done[0].is_ok() && is_rejected(&done[1]), "{done:?}");
    assert_eq!(one.load("conf").await.unwrap().0.booked, 48);
}

// Guarantee: event_sourcing 10.
#[tokio::test(start_paused = true)]
async fn commands_of_one_process_never_conflict_though_no_state_fits_into_the_cache() {
    let (_, store) = unsteady();
    let config = AggregateConfig::default().cached_states(1);
    let seats = AggregateStore::<Seats>::new(log(&store).await, codec(), config).unwrap();
    let calls = (0..48).map(|n| {
        let seats = seats.clone();
        tokio::spawn(async move { seats.execute(&format!("conf{}", n % 3), n.to_string(), Book(1)).await })
    });
    for done in join_all(calls.collect::<Vec<_>>()).await {
        assert_eq!(done.unwrap().unwrap().conflicts, 0);
    }
}

// Guarantee: event_sourcing 10.
#[tokio::test(start_paused = true)]
async fn a_command_that_panics_or_breaks_a_rule_is_answered_by_itself() {
    let (unsteady, store) = unsteady();
    let seats = seats(log(&store).await);
    seats.execute("conf", "first", Book(1)).await.unwrap();
    // The event of 97 seats panics where it is applied.
    let books = [("1", 1), ("panics", 97), ("2", 1), ("", 1), ("3", 1)];
    let done = join_all(books.map(|(id, book)| seats.execute("conf", id, Book(book)))).await;
    let text = |n: usize| done[n].as_ref().unwrap_err().to_string();
    assert!([0, 2, 4].iter().all(|n| done[*n].is_ok()), "{done:?}");
    assert!(text(1).contains("panicked at the command \"panics\" of \"conf\": no such"), "{}", text(1));
    assert!(text(3).contains("`id`"), "{}", text(3));
    assert_eq!(seats.load("conf").await.unwrap().0.booked, 4);

    // A stored one is an error of each load, and no panic of it.
    let poison = codec().encode(&SeatEvent::Booked { seats: 97 }).unwrap();
    seats.log().commit(Commit::new("poison").append("bad", Any, [poison])).await.unwrap();
    assert!(seats.load("bad").await.unwrap_err().to_string().contains("panicked at event 1 of \"bad\""));
    assert!(seats.execute("bad", "x", Book(1)).await.is_err());

    // A request that the store refuses for good is tried command by command.
    unsteady.refuse_batches_with("books-7");
    let done = join_all(["4", "books-7", "5"].map(|id| seats.execute("conf", id, Book(1)))).await;
    assert_eq!(done.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
}

// Guarantee: event_sourcing 11.
#[tokio::test(start_paused = true)]
async fn a_state_that_is_ahead_of_a_store_that_lost_events_is_given_up() {
    for book in [1, 10] {
        // A backup, which lacks the last events.
        let backup = Arc::new(InMemoryStore::new());
        seats(log(&(backup.clone() as Arc<dyn Store>)).await).execute("conf", "1", Book(40)).await.unwrap();
        let (unsteady, store) = unsteady();
        let seats = seats(log(&store).await);
        seats.execute("conf", "1", Book(40)).await.unwrap();
        seats.execute("conf", "2", Book(9)).await.unwrap();
        seats.execute("conf", "3", Book(0)).await.unwrap();
        unsteady.restore(&backup);
        // By the state in memory one seat is left.
        assert_eq!(seats.execute("conf", "4", Book(book)).await.unwrap().version, Some(2));
        assert_eq!(seats.load("conf").await.unwrap().0.booked, 40 + book);
    }
}

// Guarantee: event_sourcing 12.
#[tokio::test(start_paused = true)]
async fn commands_of_a_group_share_one_snapshot_and_one_without_room_has_none() {
    let (unsteady, store) = unsteady();
    let (seats, _) = with_snapshots(log(&store).await, 1, 1);
    seats.execute("conf", "first", Book(1)).await.unwrap();
    unsteady.batches.store(0, SeqCst);
    let done = join_all((0..9).map(|n| seats.execute("conf", n.to_string(), Book(1)))).await;
    assert!(done.iter().all(Result::is_ok));
    assert_eq!(unsteady.batches.load(SeqCst), 2, "the first one, and the others together");
    let (other, _) = with_snapshots(log(&store).await, 1, 1);
    unsteady.rows.store(0, SeqCst);
    assert_eq!(other.load("conf").await.unwrap().0.booked, 10);
    assert_eq!(unsteady.rows.load(SeqCst), 0, "the snapshot is of the last version");
    // 998 events, the id and the commit fill a request.
    assert!(seats.execute("many", "many", Book(998)).await.is_ok());
}

// Guarantee: event_sourcing 11.
#[tokio::test(start_paused = true)]
async fn after_a_conflict_only_the_tail_is_read_and_without_one_nothing() {
    let (unsteady, store) = unsteady();
    let (one, other) = (seats(log(&store).await), seats(log(&store).await));
    for n in 0..20 {
        one.execute("conf", n.to_string(), Book(0)).await.unwrap();
    }
    unsteady.scans.store(0, SeqCst);
    one.execute("conf", "known", Book(1)).await.unwrap();
    assert_eq!(unsteady.scans.load(SeqCst), 0, "a known state was read");
    other.execute("conf", "between", Book(1)).await.unwrap();
    unsteady.scans.store(0, SeqCst);
    unsteady.rows.store(0, SeqCst);
    let done = one.execute("conf", "late", Book(1)).await.unwrap();
    assert_eq!((done.conflicts, done.version), (1, Some(23)));
    assert_eq!(
        (unsteady.scans.load(SeqCst), unsteady.rows.load(SeqCst)),
        (1, 2),
        "the last known event and the new one"
    );
    // A rejection is never of an old state.
    one.execute("conf", "all", Book(47)).await.unwrap();
    other.execute("conf", "empties", Book(98)).await.unwrap();
    assert_eq!(one.execute("conf", "again", Book(50)).await.unwrap().version, Some(26));
    assert!(is_rejected(&other.execute("conf", "too much", Book(1)).await));
}

// Guarantee: event_sourcing 11.
#[tokio::test(start_paused = true)]
async fn the_last_conflict_says_how_many_attempts_were_made() {
    /// Each decision is overtaken by another process.
    #[derive(Default, Clone)]
    struct Overtaken;
    static OTHER: Mutex<Option<EventStore>> = Mutex::new(None);
    impl Aggregate for Overtaken {
        type Command = ();
        type Event = SeatEvent;
        type Error = SoldOut;
        fn decide(&self, (): &()) -> Result<Vec<SeatEvent>, SoldOut> {
            let other = OTHER.lock().unwrap().clone().unwrap();
            let overtakes = Commit::unnamed().append("conf", Any, [codec().encode(&SeatEvent::Noted).unwrap()]);
            std::thread::scope(|scope| {
                let commits = || {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
                    runtime.block_on(other.commit(overtakes)).unwrap();
                };
                scope.spawn(commits).join().unwrap();
            });
            Ok(vec![SeatEvent::Noted])
        }
        fn evolve(&mut self, _: &SeatEvent) {}
    }
    let store = memory();
    *OTHER.lock().unwrap() = Some(log(&store).await);
    let config = AggregateConfig::default().max_attempts(3);
    let overtaken = AggregateStore::<Overtaken>::builder(log(&store).await, codec(), config);
    let overtaken = overtaken.entropy(&Entropy::from_seed(1)).build().unwrap();
    match overtaken.execute("conf", "1", ()).await {
        Err(ExecuteError::Conflict { stream, expected: 2, actual: 3, attempts: 3 }) => assert_eq!(stream, "conf"),
        other => panic!("{other:?}"),
    }
}

fn with_snapshots(
    log: EventStore,
    every: u32,
    schema: u32,
) -> (AggregateStore<Seats>, Arc<Mutex<Vec<AggregateEvent>>>) {
    let events = Arc::new(Mutex::new(Vec::new()));
    let seen = events.clone();
    let config = AggregateConfig::default().snapshot_every(every);
    let seats = AggregateStore::builder(log, codec(), config)
        .snapshots(states(), schema)
        .on_event(move |event: &Event<AggregateEvent>| seen.lock().unwrap().push(event.what.clone()));
    (seats.build().unwrap(), events)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    // Guarantee: event_sourcing 12.
    #[test]
    fn a_snapshot_and_the_tail_are_the_full_fold_of_each_prefix(
        books in proptest::collection::vec(0..3_u32, 1..30), every in 1..9_u32,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let store = memory();
            let (seats, _) = with_snapshots(log(&store).await, every, 1);
            let mut naive = Seats::default();
            for (n, book) in books.into_iter().enumerate() {
                let events = naive.decide(&Book(book)).unwrap_or_default();
                events.iter().for_each(|event| naive.evolve(event));
                drop(seats.execute("conf", n.to_string(), Book(book)).await);
                // Another process, which has no state in memory.
                let (other, _) = with_snapshots(log(&store).await, every, 1);
                let (state, version) = other.load("conf").await.unwrap();
                assert_eq!((&state, version), (&naive, u64::from(naive.events)));
                assert_eq!(other.load_at("conf", version).await.unwrap(), naive);
                assert!(other.verify("conf").await.unwrap());
            }
        });
    }
}

// Guarantee: event_sourcing 12.
#[tokio::test(start_paused = true)]
async fn a_snapshot_is_read_instead_of_its_events_and_one_of_another_schema_is_ignored_with_an_event() {
    let store = memory();
    let log = log(&store).await;
    let (seats, events) = with_snapshots(log.clone(), 10, 1);
    for n in 0..12 {
        seats.execute("conf", n.to_string(), Book(1)).await.unwrap();
    }
    let partition = "events/log";
    let snapshot = steadfast::store::Key::new(partition, "p/conf");
    let whole = store.get(snapshot).await.unwrap().unwrap().value;
    // A snapshot that is wrong is found by `verify`, and shows that loads read it.
    let wrong = String::from_utf8_lossy(&whole).replace("\"booked\":10", "\"booked\":33");
    store.put(snapshot, wrong.into(), Default::default()).await.unwrap();
    let (other, _) = with_snapshots(log.clone(), 10, 1);
    assert_eq!(other.load("conf").await.unwrap().0.booked, 35);
    assert!(!other.verify("conf").await.unwrap());

    for damage in [whole.slice(..3), "text".into()] {
        store.put(snapshot, damage, Default::default()).await.unwrap();
        assert_eq!(with_snapshots(log.clone(), 10, 1).0.load("conf").await.unwrap().0.booked, 12);
    }
    store.put(snapshot, whole, Default::default()).await.unwrap();
    let (newer, ignored) = with_snapshots(log.clone(), 10, 2);
    assert_eq!(newer.load("conf").await.unwrap().0.booked, 12);
    assert!(
        matches!(&ignored.lock().unwrap()[..], [AggregateEvent::SnapshotIgnored { stream, .. }] if stream == "conf")
    );
    assert_eq!(events.lock().unwrap()[..], []);
}

// Guarantee: event_sourcing 13.
#[tokio::test(start_paused = true)]
async fn a_load_of_more_than_a_thousand_events_without_a_snapshot_is_an_event() {
    let log = log(&memory()).await;
    let (seats, events) = with_snapshots(log.clone(), 100, 1);
    let noted = codec().encode(&SeatEvent::Noted).unwrap();
    for part in 0..3 {
        log.commit(Commit::unnamed().append("long", Version(part * 400), vec![noted.clone(); 400])).await.unwrap();
        assert_eq!(seats.load("long").await.unwrap().1, (part + 1) * 400);
    }
    let long = AggregateEvent::LongStream { stream: "long".into(), events: 1200 };
    assert_eq!(events.lock().unwrap()[..], [long]);
    assert_eq!(seats.history("long").await.unwrap().len(), 1200);
}

/// The codec of a release that knows two steps.
fn newer() -> EventCodec<SeatEvent> {
    let more = |by: u32| {
        move |body: &[u8]| -> Result<Vec<u8>, std::num::ParseIntError> {
            let seats: u32 = String::from_utf8_lossy(body).parse()?;
            let seats = seats * 10 + by;
            Ok(if by == 2 { format!("{{\"Booked\":{{\"seats\":{seats}}}}}") } else { seats.to_string() }.into_bytes())
        }
    };
    codec().schema("Booked", 3).upcast("Booked", 1, more(1)).upcast("Booked", 2, more(2)).ignore("Viewed")
}

// Guarantee: event_sourcing 13.
#[test]
fn upcasts_run_step_by_step_and_what_is_unknown_is_an_error_with_its_name() {
    let decode = |event: NewEvent| newer().decode(&event);
    let booked = |seats| Some(SeatEvent::Booked { seats });
    assert_eq!(decode(NewEvent::new("Booked", "3")).unwrap(), booked(312));
    assert_eq!(decode(NewEvent::new("Booked", "31").schema(2)).unwrap(), booked(312));
    assert_eq!(decode(newer().encode(&SeatEvent::Booked { seats: 7 }).unwrap()).unwrap(), booked(7));
    assert_eq!(decode(NewEvent::new("Viewed", "?").schema(9)).unwrap(), None);
    let error = |event| -> PortError { decode(event).unwrap_err() };
    let newest = error(NewEvent::new("Booked", "").schema(4));
    assert_eq!(newest.kind(), PortErrorKind::TooNew);
    assert_eq!(newest.to_string(), "events: \"Booked\" has schema 4, and this process knows 3");
    for (event, words) in [
        (NewEvent::new("Refunded", "{}"), "\"Refunded\" of schema 1"),
        (NewEvent::new("Refunded", "\"Noted\""), "decodes it as \"Noted\""),
        (NewEvent::new("Booked", "x"), "\"Booked\" of schema 1: invalid digit"),
        (NewEvent::new("Booked", "3").schema(0), "no step"),
    ] {
        let error = error(event);
        assert!(error.kind() == PortErrorKind::Corrupt && error.to_string().contains(words), "{error}");
    }
}

// Guarantee: event_sourcing 13.
#[tokio::test(start_paused = true)]
async fn a_process_that_does_not_know_an_event_stops_and_skips_nothing() {
    let store = memory();
    let log = log(&store).await;
    let old = seats(log.clone());
    old.execute("conf", "1", Book(1)).await.unwrap();
    let newer = NewEvent::new("Booked", "{}").schema(2);
    log.commit(Commit::new("2").append("conf", Version(1), [newer])).await.unwrap();
    for _ in 0..2 {
        match old.execute("conf", "3", Book(1)).await {
            Err(ExecuteError::Store(error)) => assert_eq!(error.kind(), PortErrorKind::TooNew),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(log.version("conf").await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn settings_that_break_a_rule_are_refused_by_name() {
    let log = log(&memory()).await;
    let wrong = [
        (AggregateConfig::default().max_attempts(0), codec(), "max_attempts"),
        (AggregateConfig::default().cached_states(0), codec(), "cached_states"),
        (AggregateConfig::default().max_group(0), codec(), "max_group"),
        (AggregateConfig::default().snapshot_every(0), codec(), "snapshot_every"),
        (AggregateConfig::default(), codec().schema("Booked", 0), "schema"),
        (AggregateConfig::default(), codec().schema("Booked", 2), "upcast"),
        (AggregateConfig::default(), newer().schema("Booked", 2), "upcast"),
    ];
    for (config, codec, field) in wrong {
        let error = AggregateStore::<Seats>::new(log.clone(), codec, config).unwrap_err();
        assert_eq!(error.field(), field);
    }
}

#[test]
fn outside_of_a_runtime_a_command_says_so() {
    steadfast::time::block_on(async {
        match seats(log(&memory()).await).execute("conf", "1", Book(1)).await {
            Err(ExecuteError::Store(error)) => assert_eq!(error.kind(), PortErrorKind::Closed),
            other => panic!("{other:?}"),
        }
    });
}

#[tokio::test(start_paused = true)]
async fn a_dropped_command_is_executed_or_not_and_disturbs_nobody() {
    for polls in 0..6 {
        let (_, store) = unsteady();
        let seats = seats(log(&store).await);
        {
            let mut dropped = Box::pin(seats.execute("conf", "dropped", Book(1)));
            for _ in 0..polls {
                if futures::poll!(&mut dropped).is_ready() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        seats.execute("conf", "next", Book(1)).await.unwrap();
        Clock::tokio().sleep(Duration::from_secs(1)).await;
        let booked = seats.load("conf").await.unwrap().0.booked;
        let again = seats.execute("conf", "dropped", Book(1)).await.unwrap();
        assert_eq!(again.is_repeated, booked == 2);
        assert_eq!(seats.load("conf").await.unwrap().0.booked, 2);
    }
}

// Guarantee: event_sourcing 10.
// A command that was accepted before was answered with the conflict of its group.
#[tokio::test(start_paused = true)]
async fn a_command_that_was_accepted_before_is_repeated_also_in_a_group_that_gives_up() {
    let (unsteady, store) = unsteady();
    let config = AggregateConfig::default().max_attempts(1);
    let seats = AggregateStore::<Seats>::new(log(&store).await, codec(), config).unwrap();
    seats.execute("conf", "before", Book(1)).await.unwrap();
    // Another process of the same log, whose events this one reads.
    let other = log(&(Arc::new(unsteady.store.clone()) as Arc<dyn Store>)).await;
    let noted = NewEvent::new("Noted", "\"Noted\"");
    other.commit(Commit::unnamed().append("conf", Any, [noted])).await.unwrap();
    let (new, before) = futures::join!(seats.execute("conf", "new", Book(1)), seats.execute("conf", "before", Book(1)));
    assert!(matches!(new, Err(ExecuteError::Conflict { attempts: 1, .. })), "{new:?}");
    assert!(before.unwrap().is_repeated);
}

// Guarantee: event_sourcing 12.
#[tokio::test(start_paused = true)]
async fn a_snapshot_in_the_middle_of_a_group_is_the_fold_up_to_its_version() {
    let (_, store) = unsteady();
    let config = AggregateConfig::default().snapshot_every(3);
    let open =
        async || AggregateStore::builder(log(&store).await, codec(), config).snapshots(states(), 1).build().unwrap();
    let seats = open().await;
    let done = join_all((0..8).map(|n| seats.execute("conf", n.to_string(), Book(1)))).await;
    assert!(done.iter().all(Result::is_ok), "{done:?}");
    let fresh = open().await;
    assert_eq!((fresh.load("conf").await.unwrap().1, fresh.verify("conf").await.unwrap()), (8, true));
}
