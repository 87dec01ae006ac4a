//! The log as a topic: the reading cases of the public suite, and a processor that follows it.
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use steadfast::{
    event_sourcing::{Commit, EventStore, EventStoreConfig, Expected::*, LogTopic, NewEvent, StoredCommit},
    lease::StoreLease,
    notify::InMemoryNotifier,
    port::{Capabilities, PortErrorKind, PortFuture},
    queue::InMemoryQueue,
    queue_listener::IdleConfig,
    store::{InMemoryStore, Key, PutOptions, Sequence, Store},
    stream::{
        Appended, Bounds, Delivered, Event, Position, Read, Recorded, StreamProcessor, StreamProcessorConfig, Topic,
    },
    testing::conformance::{Fixture, topic},
    time::Clock,
    work::EventDisposition,
};

use crate::{append, event, log};

/// A topic whose partitions are logs, and whose appends are commits: the suite needs both.
#[derive(Debug)]
struct Logs(Vec<(EventStore, LogTopic)>);

impl Logs {
    async fn open(store: Arc<dyn Store>, clock: &Clock) -> Arc<dyn Topic> {
        let mut logs = Vec::new();
        for name in ["one", "two"] {
            let log = EventStore::builder(store.clone(), name, EventStoreConfig::default()).clock(clock);
            let log = log.build().await.unwrap();
            logs.push((log.clone(), log.topic()));
        }
        Arc::new(Self(logs))
    }

    fn at(&self, partition: u16) -> &(EventStore, LogTopic) {
        &self.0[usize::from(partition)]
    }
}

impl Topic for Logs {
    fn capabilities(&self) -> Capabilities {
        self.0[0].1.capabilities()
    }
    fn identity(&self) -> String {
        self.0[0].1.identity()
    }
    fn name(&self) -> &str {
        self.0[0].1.name()
    }
    fn partitions(&self) -> u16 {
        2
    }
    fn append(&self, partition: u16, events: Vec<Event>) -> PortFuture<'_, Vec<Appended>> {
        Box::pin(async move {
            let mut appended = Vec::new();
            for event in events {
                let commit = Commit::unnamed().append("stream", Any, [NewEvent::new("A", event.body)]);
                let done = self.at(partition).0.commit(commit).await.unwrap();
                appended.push(Appended::new(Position::new(partition, done.token.number())));
            }
            Ok(appended)
        })
    }
    fn read(&self, partition: u16, read: Read) -> PortFuture<'_, Vec<Recorded>> {
        Box::pin(async move {
            let found = self.at(partition).1.read(0, read).await?;
            let plain = found.into_iter().map(|recorded| {
                let commit = StoredCommit::open(&recorded)?;
                let event = Event::new(commit.events[0].event.body.clone());
                Ok(Recorded::new(Position::new(partition, recorded.position.offset), event))
            });
            plain.collect()
        })
    }
    fn bounds(&self, partition: u16) -> PortFuture<'_, Bounds> {
        self.at(partition).1.bounds(0)
    }
    fn trim(&self, partition: u16, before: u64) -> PortFuture<'_, u64> {
        self.at(partition).1.trim(0, before)
    }
}

// Guarantee: event_sourcing 7.
#[test]
fn the_reading_cases_of_the_public_suite_pass() {
    const READING: [&str; 10] = [
        "positions_begin_at_one_and_have_no_hole",
        "partitions_are_apart",
        "an_accepted_event_is_seen_through_each_handle",
        "the_identity_is_short_and_that_of_each_handle",
        "a_read_begins_anywhere_and_returns_at_most_the_maximum",
        "a_read_beyond_the_end_is_empty",
        "a_reader_misses_no_event_while_others_append",
        "several_readers_do_not_disturb_each_other",
        "a_waiting_read_is_woken_by_an_append",
        "a_waiting_read_ends_with_its_time",
    ];
    let cases: Vec<_> = topic::cases().into_iter().filter(|case| READING.contains(&case.name())).collect();
    assert_eq!(cases.len(), READING.len());
    for case in cases {
        let ended = case.run(Duration::from_secs(60), async || {
            let (clock, time) = Clock::manual();
            let store: Arc<dyn Store> = Arc::new(InMemoryStore::builder().clock(&clock).build());
            let (port, other) = (Logs::open(store.clone(), &clock).await, Logs::open(store, &clock).await);
            Fixture::new(port).with_second_handle(other).on_manual_time(&time)
        });
        assert_eq!(ended, Ok(()), "{}", case.name());
    }
}

// Guarantee: event_sourcing 7.
#[tokio::test(start_paused = true)]
async fn an_event_of_the_topic_is_a_commit_with_its_events_and_nothing_can_be_appended() {
    let store: Arc<dyn Store> = Arc::new(InMemoryStore::new());
    let log = log(&store).await;
    let commit = append("cmd", "a", Version(0), "A").append("b", Any, [event("B").schema(3)]);
    log.commit(commit).await.unwrap();
    let topic = log.topic();
    let [found] = <[Recorded; 1]>::try_from(topic.read(0, Read::from(1)).await.unwrap()).unwrap();
    assert_eq!((found.event.key.as_deref(), found.event.id.as_deref()), (Some("a"), Some("cmd")));
    let commit = StoredCommit::open(&found).unwrap();
    assert_eq!((commit.number, commit.command.as_str()), (1, "cmd"));
    let events: Vec<_> =
        commit.events.iter().map(|e| (&*e.stream, e.version, &*e.event.kind, e.event.schema)).collect();
    assert_eq!(events, [("a", Some(1), "A", 1), ("b", None, "B", 3)]);

    for refused in [topic.append(0, vec![Event::new("")]).await.map(drop), topic.trim(0, 9).await.map(drop)] {
        assert_eq!(refused.unwrap_err().kind(), PortErrorKind::Unsupported);
    }
    for refused in [topic.read(1, Read::from(1)).await.map(drop), topic.bounds(1).await.map(drop)] {
        assert_eq!(refused.unwrap_err().kind(), PortErrorKind::Invalid);
    }
    // Damaged at its end, or of a newer release: none is passed over.
    let row = Sequence::new("c/").row(1);
    let key = Key::new("events/log", &row);
    let whole = store.get(key).await.unwrap().unwrap().value;
    let newer = [&[2], &whole[1..]].concat();
    let unread = [(whole.slice(..whole.len() - 1), PortErrorKind::Corrupt), (newer.into(), PortErrorKind::TooNew)];
    for (value, kind) in unread {
        store.put(key, value, PutOptions::new()).await.unwrap();
        assert_eq!(topic.read(0, Read::from(1)).await.unwrap_err().kind(), kind);
    }
    let foreign = Recorded::new(Position::new(0, 1), Event::new("\u{1}text"));
    assert_eq!(StoredCommit::open(&foreign).unwrap_err().kind(), PortErrorKind::Corrupt);
}

// Guarantee: event_sourcing 7.
#[tokio::test(start_paused = true)]
async fn a_waiting_reader_of_another_process_is_woken_by_a_notice_and_without_one_polls() {
    for has_notifier in [true, false] {
        let store: Arc<dyn Store> = Arc::new(InMemoryStore::new());
        let notifier = Arc::new(InMemoryNotifier::new());
        let open = async || {
            let log = EventStore::builder(store.clone(), "log", EventStoreConfig::default());
            if has_notifier { log.notifier(notifier.clone()).build().await } else { log.build().await }.unwrap()
        };
        let (reader, writer) = (open().await, open().await);
        let waits = tokio::spawn(async move {
            let read = Read::from(1).wait(Duration::from_secs(600));
            let (clock, begun) = (Clock::tokio(), Clock::tokio().now());
            reader.topic().read(0, read).await.unwrap();
            clock.now() - begun
        });
        Clock::tokio().sleep(Duration::from_millis(10_200)).await;
        writer.commit(append("1", "a", Any, "A")).await.unwrap();
        let waited = waits.await.unwrap();
        let polls_at = Duration::from_millis(10_200)..=Duration::from_millis(11_300);
        assert!(polls_at.contains(&waited), "{waited:?}");
        assert_eq!(waited == Duration::from_millis(10_200), has_notifier, "{waited:?}");
    }
}

// Guarantee: event_sourcing 7.
#[tokio::test(start_paused = true)]
async fn a_processor_follows_the_log() {
    let store: Arc<dyn Store> = Arc::new(InMemoryStore::new());
    let log = log(&store).await;
    for n in 0..20 {
        log.commit(append(&n.to_string(), &format!("s{}", n % 3), Any, "A")).await.unwrap();
    }
    let leases = Arc::new(StoreLease::builder(store.clone()).build().unwrap());
    let config = StreamProcessorConfig::default();
    let dead = Arc::new(InMemoryQueue::new("dead"));
    let processor =
        StreamProcessor::builder(log.topic(), "view", leases, store, config).dead_letters(dead).build().unwrap();
    let seen = Mutex::new(Vec::new());
    let clock = Clock::tokio();
    let shutdown = clock.sleep(Duration::from_secs(10));
    let handler = async |event: Delivered| {
        seen.lock().unwrap().push(event.position.offset);
        EventDisposition::Complete
    };
    processor.run(shutdown, handler).await.unwrap();
    let mut seen = seen.into_inner().unwrap();
    seen.sort_unstable();
    assert_eq!(seen, (1..=20).collect::<Vec<_>>());
}

// Guarantee: event_sourcing 7.
#[tokio::test(start_paused = true)]
async fn a_processor_that_is_idle_is_woken_by_the_notice_of_a_commit() {
    let store: Arc<dyn Store> = Arc::new(InMemoryStore::new());
    let notifier = Arc::new(InMemoryNotifier::new());
    let log = EventStore::builder(store.clone(), "log", EventStoreConfig::default()).notifier(notifier.clone());
    let log = log.build().await.unwrap();
    let leases = Arc::new(StoreLease::builder(store.clone()).build().unwrap());
    let hour = Duration::from_secs(3600);
    let config = StreamProcessorConfig::default().idle(IdleConfig::between(Duration::from_secs(1), hour));
    let processor = StreamProcessor::builder(log.topic(), "view", leases, store, config)
        .notifier(notifier)
        .dead_letters(Arc::new(InMemoryQueue::new("dead")))
        .build()
        .unwrap();
    let clock = Clock::tokio();
    let seen = Mutex::new(None);
    let handler = async |_: Delivered| {
        *seen.lock().unwrap() = Some(Clock::tokio().now());
        EventDisposition::Complete
    };
    let commits = async {
        clock.sleep(hour * 5).await;
        log.commit(append("1", "a", Any, "A")).await.unwrap();
        clock.now()
    };
    let (ran, committed) = futures::join!(processor.run(clock.sleep(hour * 6), handler), commits);
    ran.unwrap();
    let waited = seen.into_inner().unwrap().unwrap() - committed;
    assert!(waited < Duration::from_secs(1), "{waited:?}");
}

// Guarantee: event_sourcing 7.
#[tokio::test(start_paused = true)]
async fn the_topic_of_a_trimmed_log_begins_with_the_first_commit_that_is_kept() {
    let store: Arc<dyn Store> = Arc::new(InMemoryStore::new());
    let log = log(&store).await;
    let topic = log.topic();
    assert_eq!(topic.bounds(0).await.unwrap(), Bounds::new(1, 1));
    for n in 0..6 {
        log.commit(append(&n.to_string(), "a", Any, "A")).await.unwrap();
    }
    log.trim(4).await.unwrap();
    assert_eq!(topic.bounds(0).await.unwrap(), Bounds::new(4, 7));
    for from in 1..5 {
        assert_eq!(topic.read(0, Read::from(from)).await.unwrap()[0].position.offset, 4);
    }
}

// Guarantee: event_sourcing 7.
#[tokio::test(start_paused = true)]
async fn a_reader_that_receives_for_others_and_is_dropped_leaves_that_to_the_next_one() {
    let store: Arc<dyn Store> = Arc::new(InMemoryStore::new());
    let notifier = Arc::new(InMemoryNotifier::new());
    let open = async || {
        let log = EventStore::builder(store.clone(), "log", EventStoreConfig::default());
        log.notifier(notifier.clone()).build().await.unwrap()
    };
    let (reader, writer, clock) = (open().await, open().await, Clock::tokio());
    let waits = || {
        let (topic, clock) = (reader.topic(), clock.clone());
        tokio::spawn(async move {
            topic.read(0, Read::from(1).wait(Duration::from_secs(600))).await.unwrap();
            clock.now()
        })
    };
    let first = waits();
    clock.sleep(Duration::from_millis(5)).await;
    let second = waits();
    clock.sleep(Duration::from_secs(5)).await;
    first.abort();
    clock.sleep(Duration::from_millis(5_195)).await;
    let committed = clock.now();
    writer.commit(append("1", "a", Any, "A")).await.unwrap();
    assert_eq!(second.await.unwrap(), committed, "it polled");
}
