//! Requests of a topic to its store: their number, lost replies, competition.
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use steadfast::{
    port::{PortError, PortErrorKind},
    store::{InMemoryStore, Page, Scan, Store, StoreError, StoreFuture, Version, Write},
    stream::{Event, Read, StoreTopic, Topic},
    testing::drop_at_every_await,
    time::Clock,
};

/// A store that counts its requests, and disturbs batches.
#[derive(Debug)]
pub(super) struct Disturbed {
    store: InMemoryStore,
    clock: Clock,
    batches: AtomicUsize,
    scans: AtomicUsize,
    /// What becomes of the next batches.
    fates: Mutex<Vec<Fate>>,
    /// Appends two requests before the next scan of ascending rows.
    intruder: Mutex<Option<StoreTopic>>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Fate {
    /// It is applied, and its reply is lost.
    LosesReply,
    /// It fails, and may have been applied, but was not.
    Unknown,
    /// It is applied after so many seconds, and its reply is lost at once.
    Late(u64),
    /// It fails without an effect.
    Fails,
    /// It is never answered.
    Hangs,
    /// As usual.
    Well,
}

impl Disturbed {
    pub(super) fn new(clock: &Clock) -> Arc<Self> {
        Arc::new(Self {
            store: InMemoryStore::builder().clock(clock).build(),
            clock: clock.clone(),
            batches: AtomicUsize::new(0),
            scans: AtomicUsize::new(0),
            fates: Mutex::default(),
            intruder: Mutex::default(),
        })
    }

    pub(super) fn will(&self, fates: &[Fate]) {
        *self.fates.lock().unwrap() = fates.iter().rev().copied().collect();
    }
}

fn lost() -> StoreError {
    PortError::new(PortErrorKind::Unavailable, "the reply is lost").outcome_unknown().into()
}

impl Store for Disturbed {
    forward_store! { store: capabilities, get, put, delete }

    fn scan<'a>(&'a self, scan: &'a Scan) -> StoreFuture<'a, Page> {
        self.scans.fetch_add(1, SeqCst);
        let is_ascending = scan.order == steadfast::store::Order::Ascending;
        let intruder = if is_ascending { self.intruder.lock().unwrap().take() } else { None };
        Box::pin(async move {
            if let Some(topic) = intruder {
                for size in [5, 2] {
                    topic.append(0, (0..size).map(|n| Event::new(n.to_string())).collect()).await.unwrap();
                }
            }
            self.store.scan(scan).await
        })
    }

    fn batch<'a>(&'a self, partition: &'a str, writes: Vec<Write>) -> StoreFuture<'a, Vec<Option<Version>>> {
        self.batches.fetch_add(1, SeqCst);
        let fate = self.fates.lock().unwrap().pop().unwrap_or(Fate::Well);
        Box::pin(async move {
            match fate {
                Fate::Well => self.store.batch(partition, writes).await,
                Fate::LosesReply => self.store.batch(partition, writes).await.and(Err(lost())),
                Fate::Unknown => Err(lost()),
                Fate::Late(seconds) => {
                    let (store, clock, partition) = (self.store.clone(), self.clock.clone(), partition.to_owned());
                    tokio::spawn(async move {
                        clock.sleep(Duration::from_secs(seconds)).await;
                        let _ = store.batch(&partition, writes).await;
                    });
                    Err(lost())
                }
                Fate::Fails => Err(PortError::new(PortErrorKind::Unavailable, "away").into()),
                Fate::Hangs => std::future::pending().await,
            }
        })
    }
}

pub(super) async fn open(store: &Arc<Disturbed>) -> StoreTopic {
    StoreTopic::builder(store.clone(), "t", 1).clock(&store.clock).build().await.unwrap()
}

pub(super) async fn bodies(topic: &StoreTopic) -> Vec<String> {
    let mut all: Vec<steadfast::stream::Recorded> = Vec::new();
    loop {
        let next = all.last().map_or(1, |last| last.position.offset + 1);
        let page = topic.read(0, Read::from(next)).await.unwrap();
        if page.is_empty() {
            return all.iter().map(|recorded| String::from_utf8(recorded.event.body.to_vec()).unwrap()).collect();
        }
        all.extend(page);
    }
}

pub(super) fn event(body: &str) -> Vec<Event> {
    vec![Event::new(body.to_owned())]
}

/// Runs a test on manual time, which passes whenever all tasks wait.
pub(super) fn run<T>(test: impl AsyncFnOnce(Arc<Disturbed>) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async { test(Disturbed::new(&Clock::tokio())).await })
}

// Guarantee: stream 16.
#[test]
fn an_append_whose_reply_is_lost_is_applied_once() {
    use Fate::*;
    for fates in [
        &[LosesReply][..],
        &[Unknown],
        &[Unknown, Unknown, LosesReply],
        &[LosesReply, Unknown, Fails],
        &[Hangs, Unknown],
        &[Late(1)],
        &[Late(0), Late(1), Late(2)],
        &[Late(3), Unknown, Unknown],
    ] {
        for before in [0, 2] {
            run(async |store| {
                let topic = open(&store).await;
                for n in 0..before {
                    topic.append(0, event(&format!("before {n}"))).await.unwrap();
                }
                store.will(fates);
                let appended = topic.append(0, event("a")).await.unwrap();
                assert_eq!(appended[0].position.offset, before + 1, "{fates:?}");
                Clock::tokio().sleep(Duration::from_secs(20)).await;
                let all = bodies(&topic).await;
                assert_eq!(all.iter().filter(|body| *body == "a").count(), 1, "{fates:?}: {all:?}");
                topic.append(0, event("behind")).await.unwrap();
                assert_eq!(bodies(&topic).await.len() as u64, before + 2);
            });
        }
    }
}

// Guarantee: stream 16.
#[test]
fn an_append_whose_reply_is_lost_is_found_behind_those_of_others() {
    for others in [0, 1, 5] {
        run(async |store| {
            let (topic, other) = (open(&store).await, open(&store).await);
            topic.append(0, event("first")).await.unwrap();
            store.will(&[Fate::LosesReply]);
            let append = topic.append(0, vec![Event::new("a"), Event::new("b")]);
            // While the first waits for its second attempt, the other one appends.
            let appends = async {
                tokio::task::yield_now().await;
                for n in 0..others {
                    other.append(0, event(&format!("other {n}"))).await.unwrap();
                }
            };
            let (appended, ()) = futures::join!(append, appends);
            let offsets: Vec<_> = appended.unwrap().iter().map(|appended| appended.position.offset).collect();
            assert_eq!(offsets, [2, 3]);
            let all = bodies(&topic).await;
            assert_eq!((all.len(), &all[1..3]), (3 + others, &["a".to_owned(), "b".to_owned()][..]));
        });
    }
}

// Guarantee: stream 16.
#[test]
fn an_append_that_was_not_applied_takes_the_next_place_behind_those_of_others() {
    run(async |store| {
        let (topic, other) = (open(&store).await, open(&store).await);
        topic.append(0, event("first")).await.unwrap();
        store.will(&[Fate::Unknown]);
        let appends = async {
            tokio::task::yield_now().await;
            other.append(0, event("other")).await.unwrap();
        };
        let (appended, ()) = futures::join!(topic.append(0, event("a")), appends);
        assert_eq!(appended.unwrap()[0].position.offset, 3);
        assert_eq!(bodies(&topic).await, ["first", "other", "a"]);
    });
}

#[test]
fn an_outcome_that_cannot_be_learned_is_an_error_that_says_so() {
    run(async |store| {
        let (topic, other) = (open(&store).await, open(&store).await);
        topic.append(0, event("first")).await.unwrap();
        store.will(&[Fate::LosesReply]);
        // The row that would tell is trimmed, behind the append of another process.
        let trims = async {
            tokio::task::yield_now().await;
            other.append(0, event("other")).await.unwrap();
            other.trim(0, 4).await.unwrap();
        };
        let (appended, ()) = futures::join!(topic.append(0, event("a")), trims);
        assert!(appended.unwrap_err().may_have_been_applied());
        // The store is away for longer than the append tries.
        store.will(&[Fate::Unknown; 1000]);
        let begun = Clock::tokio().now();
        assert!(topic.append(0, event("b")).await.unwrap_err().may_have_been_applied());
        let tried = Clock::tokio().now() - begun;
        assert!((Duration::from_secs(15)..Duration::from_secs(22)).contains(&tried), "{tried:?}");
    });
}

#[test]
fn a_failure_without_an_effect_is_returned_at_once() {
    run(async |store| {
        let topic = open(&store).await;
        topic.append(0, event("first")).await.unwrap();
        store.will(&[Fate::Fails]);
        let error = topic.append(0, event("a")).await.unwrap_err();
        assert_eq!((error.kind(), error.may_have_been_applied()), (PortErrorKind::Unavailable, false));
        assert_eq!(bodies(&topic).await, ["first"]);
        assert_eq!(topic.append(0, event("a")).await.unwrap()[0].position.offset, 2);
    });
}

// Guarantee: stream 17.
#[test]
fn an_append_is_one_request_and_a_conflict_adds_two() {
    run(async |store| {
        let (topic, other) = (open(&store).await, open(&store).await);
        for size in [1, 100, 500] {
            let before = store.batches.load(SeqCst);
            topic.append(0, (0..size).map(|n| Event::new(n.to_string())).collect()).await.unwrap();
            assert_eq!(store.batches.load(SeqCst) - before, 1);
        }
        other.append(0, event("a")).await.unwrap();
        let before = store.batches.load(SeqCst);
        topic.append(0, event("b")).await.unwrap();
        assert_eq!(store.batches.load(SeqCst) - before, 2);
    });
}

// Guarantee: stream 17.
#[test]
fn a_reader_that_follows_a_partition_makes_one_request_for_each_page() {
    run(async |store| {
        let topic = open(&store).await;
        for _ in 0..20 {
            topic.append(0, (0..400).map(|n| Event::new(n.to_string())).collect()).await.unwrap();
        }
        let reader = open(&store).await;
        let (mut next, mut reads) = (1, 0);
        while next <= 8000 {
            let events = reader.read(0, Read::from(next).max(100)).await.unwrap();
            (next, reads) = (next + events.len() as u64, reads + 1);
        }
        let scans = store.scans.load(SeqCst);
        assert!(reads == 80 && scans <= 20, "{reads} reads of 100 events, {scans} requests for 20 rows");
        // At the end each read is one request.
        reader.read(0, Read::from(next)).await.unwrap();
        assert_eq!(store.scans.load(SeqCst) - scans, 1);
    });
}

#[test]
fn a_read_within_a_row_that_is_appended_meanwhile_misses_no_event() {
    run(async |store| {
        let (reader, writer) = (open(&store).await, open(&store).await);
        writer.append(0, vec![Event::new("a"), Event::new("b")]).await.unwrap();
        // No row has the position when the read begins; then 3 to 7 and 8 to 9 are appended.
        *store.intruder.lock().unwrap() = Some(writer);
        let found = reader.read(0, Read::from(4)).await.unwrap();
        let offsets: Vec<_> = found.iter().map(|recorded| recorded.position.offset).collect();
        assert_eq!(offsets.first(), Some(&4), "{offsets:?}");
    });
}

#[test]
fn many_writers_of_one_partition_all_get_through() {
    run(async |store| {
        let writers = (0..20).map(|writer| {
            let store = store.clone();
            async move {
                let topic = open(&store).await;
                for n in 0..10 {
                    topic.append(0, event(&format!("{writer}.{n}"))).await.unwrap();
                }
            }
        });
        futures::future::join_all(writers).await;
        assert_eq!(bodies(&open(&store).await).await.len(), 200);
    });
}

// Guarantee: stream 16.
#[test]
fn every_future_of_a_topic_may_be_dropped_at_each_await() {
    let (clock, time) = Clock::manual();
    let slow = |disturbs: &[Fate]| {
        let store = Disturbed::new(&clock);
        store.will(disturbs);
        store
    };
    for fates in [&[][..], &[Fate::LosesReply], &[Fate::Unknown, Fate::Unknown]] {
        let mut last: Option<Arc<Disturbed>> = None;
        let polls = drop_at_every_await(
            &time,
            || {
                let store = slow(&[]);
                last = Some(store.clone());
                let fates = fates.to_vec();
                async move {
                    let topic = open(&store).await;
                    topic.append(0, vec![Event::new("a").id("1"), Event::new("b")]).await.unwrap();
                    store.will(&fates);
                    topic.append(0, vec![Event::new("c"), Event::new("a").id("1"), Event::new("d")]).await.unwrap();
                    topic.trim(0, 2).await.unwrap();
                    topic.read(0, Read::from(5).wait(Duration::from_secs(3))).await.unwrap();
                }
            },
            |_| {},
        );
        assert!(polls > 3, "{polls}");
        let store = last.unwrap();
        time.block_on(async {
            let topic = open(&store).await;
            assert_eq!(bodies(&topic).await, ["b", "c", "d"]);
        });
    }
}
