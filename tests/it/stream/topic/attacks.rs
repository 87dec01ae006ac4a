//! Notices behind the last one, trims beside appends, and requests and rows at the limits.
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::FutureExt;
use steadfast::{
    notify::{InMemoryNotifier, Notice, Notifier},
    port::{BoxFuture, PortErrorKind},
    store::{InMemoryStore, Key, PutOptions, Row, Scan, Store, StoreExt},
    stream::{Event, Producer, ProducerConfig, Read, StoreTopic, Topic},
    testing::ScriptedPort,
    time::{Clock, block_on},
};

use super::{
    opening::limited,
    requests::{Fate, bodies, event, open, run},
};

const MS: fn(u64) -> Duration = Duration::from_millis;
const S: fn(u64) -> Duration = Duration::from_secs;

/// Appends three events 5 ms apart, and returns the wait of a reader behind the last one.
async fn wait_for_the_last(topic: impl AsyncFn() -> StoreTopic, clock: &Clock) -> Duration {
    let (reader, writer) = (topic().await, topic().await);
    let reads = async {
        assert_eq!(reader.read(0, Read::from(3).wait(S(600))).await.unwrap().len(), 1);
        clock.now()
    };
    let appends = async {
        // Polls are far apart by then.
        clock.sleep(S(60) + MS(321)).await;
        for _ in 0..3 {
            clock.sleep(MS(5)).await;
            writer.append(0, event("a")).await.unwrap();
        }
        clock.now()
    };
    let (read, appended) = futures::join!(reads, appends);
    read - appended
}

// Guarantee: stream 15.
#[test]
fn the_last_append_of_a_burst_is_announced_as_the_first() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let (clock, notifier) = (Clock::tokio(), Arc::new(InMemoryNotifier::new()));
    let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
    let open = async || {
        StoreTopic::builder(store.clone(), "t", 1).clock(&clock).notifier(notifier.clone()).build().await.unwrap()
    };
    let waited = runtime.block_on(wait_for_the_last(open, &clock));
    assert!(waited <= MS(20), "{waited:?}");
    // Without a runtime.
    let (clock, time) = Clock::manual();
    let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
    let open = async || {
        StoreTopic::builder(store.clone(), "t", 1).clock(&clock).notifier(notifier.clone()).build().await.unwrap()
    };
    let waited = time.block_on(wait_for_the_last(open, &clock));
    assert!(waited <= MS(20), "{waited:?}");
}

#[test]
fn a_burst_of_appends_makes_few_notices() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let (clock, notifier) = (Clock::tokio(), Arc::new(InMemoryNotifier::new()));
        let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
        let spawned = Arc::new(Mutex::new(0));
        let counts = spawned.clone();
        let topic = StoreTopic::builder(store, "t", 8).clock(&clock).notifier(notifier.clone());
        let topic = topic.spawner(move |work: BoxFuture<'static, ()>| {
            *counts.lock().unwrap() += 1;
            tokio::spawn(work);
        });
        let topic = topic.build().await.unwrap();
        let mut notices = notifier.subscribe(&format!("stream/{}", topic.identity())).await.unwrap();
        for n in 0..1_000 {
            topic.append(n % 8, event("a")).await.unwrap();
            clock.sleep(MS(1)).await;
        }
        clock.sleep(S(1)).await;
        let mut told = 0;
        while let Some(Notice::Message(_)) = notices.recv().now_or_never() {
            told += 1;
        }
        assert!((45..=52).contains(&told), "{told} notices in a second");
        assert!(*spawned.lock().unwrap() <= 51, "a task for each notice at most");
    });
}

// Guarantee: stream 16.
#[test]
fn an_append_that_a_trim_came_before_is_appended_and_not_left_open() {
    for trims_to in [2, 3] {
        run(async |store| {
            let (topic, other) = (open(&store).await, open(&store).await);
            for n in 0..2 {
                topic.append(0, event(&format!("before {n}"))).await.unwrap();
            }
            store.will(&[Fate::Unknown]);
            let trims = async {
                // While the append waits for its second attempt.
                tokio::task::yield_now().await;
                other.trim(0, trims_to).await.unwrap();
            };
            let (appended, ()) = futures::join!(topic.append(0, event("a")), trims);
            assert_eq!(appended.unwrap()[0].position.offset, 3);
            assert_eq!(bodies(&topic).await.last().map(String::as_str), Some("a"));
        });
    }
}

// Guarantee: stream 19.
#[test]
fn an_event_with_many_headers_disturbs_no_other_one() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let can = InMemoryStore::new().capabilities().largest_value(8_192);
        let topic = StoreTopic::open(limited(can), "t", 1).await.unwrap();
        let most = topic.capabilities().max_value();
        let producer = Producer::new(topic, ProducerConfig::default()).unwrap();
        let body = Event::new(vec![7; most - 300 * 5]);
        let hostile = (0..300).fold(body, |event, n| event.header(format!("{n:04}"), "1"));
        let (one, refused, other) = futures::join!(
            producer.append(Event::new("a")),
            producer.append(hostile),
            producer.append(Event::new("b"))
        );
        assert_eq!(refused.unwrap_err().kind(), PortErrorKind::Invalid);
        assert_eq!((one.unwrap().position.offset, other.unwrap().position.offset), (1, 2));
    });
}

#[test]
fn a_damaged_head_at_the_end_of_all_numbers_is_corrupt() {
    let store = Arc::new(InMemoryStore::new());
    block_on(async {
        let topic = StoreTopic::open(store.clone(), "t", 1).await.unwrap();
        let mut head = vec![1, 1];
        // u64::MAX as a number of variable length, then the request and its offset.
        head.extend([0xff; 9]);
        head.extend([1, 1, 1, 1]);
        store.put(Key::new("stream/00000/t", "h"), head.into(), PutOptions::new()).await.unwrap();
        let refused = topic.append(0, vec![Event::new("a"), Event::new("b")]).await.unwrap_err();
        assert_eq!(refused.kind(), PortErrorKind::Corrupt);
    });
}

#[test]
fn a_window_without_end_remembers_ids() {
    block_on(async {
        let store = Arc::new(InMemoryStore::new());
        let topic = StoreTopic::builder(store, "t", 1).window(Duration::MAX).build().await.unwrap();
        for is_duplicate in [false, true] {
            let appended = topic.append(0, vec![Event::new("a").id("\0/日本")]).await.unwrap();
            assert_eq!(appended[0].is_duplicate, is_duplicate);
        }
    });
}

/// The rows of the topic, as a backup has them.
async fn backup(store: &InMemoryStore) -> Vec<Row> {
    store.scan_all(Scan::partition("stream/00000/t")).await.unwrap()
}

async fn restore(store: &InMemoryStore, backup: Vec<Row>) {
    store.delete_scanned(Scan::partition("stream/00000/t")).await.unwrap();
    for row in backup {
        store.put(Key::new("stream/00000/t", &row.row), row.value, PutOptions::new()).await.unwrap();
    }
}

// Guarantee: stream 1.
#[test]
fn a_writer_of_a_topic_that_was_restored_meets_one_conflict() {
    let (clock, time) = Clock::manual();
    let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
    let port = ScriptedPort::new(&clock);
    time.block_on(async {
        let topic = StoreTopic::builder(port.store(store.clone()), "t", 1).clock(&clock).build().await.unwrap();
        topic.append(0, event("a")).await.unwrap();
        let kept = backup(&store).await;
        for _ in 0..5 {
            topic.append(0, event("b")).await.unwrap();
        }
        restore(&store, kept).await;
        let mut requests = Vec::new();
        for _ in 0..3 {
            port.forget();
            topic.append(0, event("c")).await.unwrap();
            requests.push(port.calls("").len());
        }
        assert_eq!(requests, [3, 1, 1], "of each append behind the restore");
        assert_eq!(bodies(&topic).await, ["a", "c", "c", "c"]);
    });
}

// Guarantee: stream 6.
#[test]
fn a_large_row_that_a_restore_has_replaced_is_read_anew_with_the_page_behind_it() {
    let (clock, time) = Clock::manual();
    let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
    let open = async || StoreTopic::builder(store.clone(), "t", 1).clock(&clock).build().await.unwrap();
    let large = |text: &str| vec![Event::new(text.repeat(5_000))];
    time.block_on(async {
        let (reader, writer) = (open().await, open().await);
        writer.append(0, large("a")).await.unwrap();
        let kept = backup(&store).await;
        writer.append(0, large("b")).await.unwrap();
        // A look in vain reads the large row again; for the next minute others do not.
        assert_eq!(reader.read(0, Read::from(1)).await.unwrap().len(), 2);
        assert!(reader.read(0, Read::from(3)).await.unwrap().is_empty());
        restore(&store, kept).await;
        let writer = open().await;
        for text in ["c", "d"] {
            writer.append(0, large(text)).await.unwrap();
        }
        let page = reader.read(0, Read::from(3)).await.unwrap();
        assert_eq!(page[0].event.body[..1], *b"d");
        let before = reader.read(0, Read::from(2)).await.unwrap();
        assert_eq!(before[0].event.body[..1], *b"c", "the event that the restore has lost");
    });
}
