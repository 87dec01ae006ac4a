//! The creation of a topic, its limits, and its notices.
use std::{sync::Arc, time::Duration};

use steadfast::{
    backend::sqlite::{Sqlite, SqliteConfig},
    notify::InMemoryNotifier,
    port::{Capabilities, Capability, PortErrorKind},
    store::{InMemoryStore, Key, Precondition, PutOptions, Store, Write},
    stream::{Event, Read, StoreTopic, Topic},
    testing::ScriptedPort,
    time::{Clock, block_on},
};

const S: fn(u64) -> Duration = Duration::from_secs;

async fn open(store: &InMemoryStore, partitions: u16) -> Result<StoreTopic, steadfast::port::PortError> {
    StoreTopic::open(Arc::new(store.clone()), "deliveries", partitions).await
}

/// Returns a store that lacks some capabilities, or has others.
pub(super) fn limited(can: Capabilities) -> Arc<dyn Store> {
    ScriptedPort::changing(&Clock::tokio(), move |_| can).store(Arc::new(InMemoryStore::new()))
}

// Guarantee: stream 13.
#[test]
fn a_topic_keeps_the_number_of_partitions_with_which_it_was_created() {
    let store = InMemoryStore::new();
    block_on(async {
        let topic = open(&store, 32).await.unwrap();
        topic.append(31, vec![Event::new("a")]).await.unwrap();
        let again = open(&store, 32).await.unwrap();
        assert_eq!((again.identity(), again.partitions(), again.name()), (topic.identity(), 32, "deliveries"));
        assert_eq!(again.bounds(31).await.unwrap().next, 2);
        for other in [1, 31, 33, 1024] {
            let refused = open(&store, other).await.unwrap_err();
            let expected = format!(
                "invalid `partitions`: must be 32, the number with which the topic \"deliveries\" was created, is {other}"
            );
            assert_eq!(refused.to_string(), expected);
        }
    });
}

#[test]
fn the_number_of_partitions_and_the_name_have_limits() {
    block_on(async {
        for partitions in [0, 1025, u16::MAX] {
            let refused = open(&InMemoryStore::new(), partitions).await.unwrap_err();
            assert!(refused.to_string().starts_with("invalid `partitions`: must lie between 1 and 1024"), "{refused}");
        }
        assert_eq!(open(&InMemoryStore::new(), 1024).await.unwrap().partitions(), 1024);
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(Sqlite::open(SqliteConfig::at(folder.path().join("state.db"))).unwrap().store());
        for name in [String::new(), "x".repeat(2000)] {
            let refused = StoreTopic::open(store.clone(), &name, 1).await.unwrap_err();
            assert!(refused.to_string().starts_with("invalid `name`"), "{refused}");
        }
    });
}

#[test]
fn topics_of_one_store_are_apart_whatever_their_names() {
    let store = Arc::new(InMemoryStore::new());
    block_on(async {
        let mut identities = std::collections::BTreeSet::new();
        for name in ["a", "a/00000", "00000/a", "topic/a", "A", "日本"] {
            let topic = StoreTopic::open(store.clone(), name, 2).await.unwrap();
            assert_eq!(topic.append(0, vec![Event::new(name.to_owned())]).await.unwrap()[0].position.offset, 1);
            assert!(identities.insert(topic.identity()));
        }
    });
}

#[test]
fn a_store_must_have_batches_and_see_its_own_writes() {
    let can = InMemoryStore::new().capabilities();
    for lacks in [Capability::AtomicBatch, Capability::Linearizable] {
        let refused = block_on(StoreTopic::open(limited(can.without(lacks)), "t", 1)).unwrap_err();
        assert_eq!(refused.kind(), PortErrorKind::Unsupported);
        assert!(refused.to_string().contains(lacks.as_str()), "{refused}");
    }
    let store = limited(can.largest_batch(4));
    assert!(block_on(StoreTopic::open(store, "t", 1)).unwrap_err().to_string().contains("batches of 5"));
}

#[test]
fn a_store_without_a_time_to_live_takes_no_ids() {
    let can = InMemoryStore::new().capabilities().without(Capability::TimeToLive);
    block_on(async {
        let topic = StoreTopic::open(limited(can), "t", 1).await.unwrap();
        assert_eq!(topic.capabilities().deduplicates_for(), None);
        let refused = topic.append(0, vec![Event::new("a"), Event::new("b").id("1")]).await.unwrap_err();
        assert_eq!(refused.kind(), PortErrorKind::Unsupported);
        topic.append(0, vec![Event::new("a")]).await.unwrap();
    });
}

// Guarantee: stream 14.
#[test]
fn an_id_is_forgotten_behind_the_window() {
    let (clock, time) = Clock::manual();
    let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
    time.block_on(async {
        let topic = StoreTopic::builder(store, "t", 1).clock(&clock).window(S(60)).build().await.unwrap();
        assert_eq!(topic.capabilities().deduplicates_for(), Some(S(60)));
        let append = async || topic.append(0, vec![Event::new("a").id("1")]).await.unwrap()[0];
        assert!(!append().await.is_duplicate);
        clock.sleep(S(59)).await;
        assert!(append().await.is_duplicate);
        clock.sleep(S(1)).await;
        let again = append().await;
        assert_eq!((again.is_duplicate, again.position.offset), (false, 2));
    });
}

// Guarantee: stream 15.
#[test]
fn a_notice_wakes_readers_of_another_handle_and_a_poll_does_without_one() {
    for (with_notices, expected) in [(true, Duration::ZERO), (false, S(1))] {
        let (clock, time) = Clock::manual();
        let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
        let notifier = Arc::new(InMemoryNotifier::new());
        let open = async || {
            let topic = StoreTopic::builder(store.clone(), "t", 2).clock(&clock);
            let topic = if with_notices { topic.notifier(notifier.clone()) } else { topic };
            topic.build().await.unwrap()
        };
        time.block_on(async {
            let (reader, writer) = (open().await, open().await);
            let started = clock.now();
            let reads = async {
                // Two readers share the subscription.
                let (one, other) = futures::join!(
                    reader.read(0, Read::from(1).wait(S(100))),
                    reader.read(1, Read::from(1).wait(S(200)))
                );
                assert_eq!((one.unwrap().len(), other.unwrap().len()), (1, 1));
                clock.now() - started
            };
            let appends = async {
                clock.sleep(S(60)).await;
                for partition in [0, 1] {
                    writer.append(partition, vec![Event::new("a")]).await.unwrap();
                    clock.sleep(S(10)).await;
                }
            };
            let (waited, ()) = futures::join!(reads, appends);
            let late = waited - S(70);
            assert!(late <= expected, "{late:?} behind the append, with notices: {with_notices}");
        });
    }
}

#[test]
fn rows_that_another_program_damaged_are_corrupt_and_not_skipped() {
    let store = Arc::new(InMemoryStore::new());
    block_on(async {
        let topic = StoreTopic::open(store.clone(), "t", 3).await.unwrap();
        for partition in 0..3 {
            for n in 0..3 {
                topic.append(partition, vec![Event::new(format!("{n}a")), Event::new(format!("{n}b"))]).await.unwrap();
            }
        }
        let row = |offset: u64| format!("e/{offset:016x}");
        // Cut short, of another form, of a newer release.
        let whole = store.get(Key::new("stream/00000/t", &row(3))).await.unwrap().unwrap().value;
        for damaged in [whole.slice(..whole.len() - 1), "\0".into(), [&whole[..], b"x"].concat().into(), "".into()] {
            let put = Write::put(row(3), damaged, Precondition::Any);
            store.batch("stream/00000/t", vec![put]).await.unwrap();
            let handle = StoreTopic::open(store.clone(), "t", 3).await.unwrap();
            let read = handle.read(0, Read::from(3)).await;
            assert_eq!(read.unwrap_err().kind(), PortErrorKind::Corrupt);
        }
        let third = row(3);
        store.put(Key::new("stream/00000/t", &third), "\u{2}".into(), PutOptions::new()).await.unwrap();
        assert_eq!(topic.read(0, Read::from(3)).await.unwrap_err().kind(), PortErrorKind::TooNew);
        // A hole.
        store.batch("stream/00001/t", vec![Write::delete(row(3), Precondition::Any)]).await.unwrap();
        assert_eq!(topic.read(1, Read::from(1)).await.unwrap_err().kind(), PortErrorKind::Corrupt);
        // The head.
        for damaged in ["", "\0", "\u{1}\u{1}"] {
            store.put(Key::new("stream/00002/t", "h"), damaged.into(), PutOptions::new()).await.unwrap();
            let handle = StoreTopic::open(store.clone(), "t", 3).await.unwrap();
            assert_eq!(handle.bounds(2).await.unwrap_err().kind(), PortErrorKind::Corrupt);
            assert_eq!(handle.append(2, vec![Event::new("a")]).await.unwrap_err().kind(), PortErrorKind::Corrupt);
        }
        // The topic itself.
        store.put(Key::new("stream/topic/t", "topic"), "\0".into(), PutOptions::new()).await.unwrap();
        assert_eq!(StoreTopic::open(store, "t", 3).await.unwrap_err().kind(), PortErrorKind::Corrupt);
    });
}
