//! SQLite: processes that append to a topic through producers are killed. What was accepted is there once, where it was
//! said, and the offsets have no hole.
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::Child,
    sync::{Arc, mpsc},
};

use steadfast::{
    backend::sqlite::{Sqlite, SqliteConfig},
    entropy::Entropy,
    stream::{Event, Position, Producer, ProducerConfig, Read, StoreTopic, Topic},
    testing::conformance::run,
};

use crate::children::{kill, say, start, told};

/// The test that a child process runs.
const CHILD: &str = "sqlite_topic::child_that_appends_to_a_topic_until_it_is_killed";
const PARTITIONS: u16 = 3;
const KILLS: usize = 50;

async fn open(path: &Path) -> StoreTopic {
    let store = Arc::new(Sqlite::open(SqliteConfig::at(path)).unwrap().store());
    StoreTopic::open(store, "events", PARTITIONS).await.unwrap()
}

/// Appends as one of eight tasks. Each event has an id, and each fourth is appended twice.
async fn append_on_and_on(producer: Producer, name: String) {
    for n in 0.. {
        let id = format!("{name}.{n}");
        let event = Event::new(id.clone()).key(format!("{name}.{}", n % 5)).id(id.clone());
        let first = producer.append(event.clone()).await.unwrap();
        assert!(!first.is_duplicate);
        say(&format!("accepted {} {id}", first.position));
        if n % 4 == 0 {
            let again = producer.append(event).await.unwrap();
            assert_eq!((again.position, again.is_duplicate), (first.position, true));
        }
    }
}

#[test]
fn child_that_appends_to_a_topic_until_it_is_killed() {
    let Some((name, path)) = told() else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let producer = Producer::new(open(Path::new(&path)).await, ProducerConfig::default()).unwrap();
        let tasks: Vec<_> =
            (0..8).map(|task| tokio::spawn(append_on_and_on(producer.clone(), format!("{name}.{task}")))).collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

// Guarantee: stream 16.
#[test]
fn events_of_processes_that_are_killed_fifty_times_are_there_once_and_without_a_hole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    run(async { drop(open(&path).await) });
    let (sender, lines) = mpsc::channel();
    let (entropy, mut accepted) = (Entropy::from_seed(50), BTreeMap::new());
    let mut children: Vec<Child> = (0..2).map(|n| start(CHILD, &format!("first{n}"), &path, &sender)).collect();
    let mut note = |line: &str| {
        let [_, position, id] = line.splitn(3, ' ').collect::<Vec<_>>().try_into().unwrap();
        let before = accepted.insert(position.to_owned(), id.to_owned());
        assert_eq!(before, None, "{line}: the place was given twice");
    };
    for killed in 0..KILLS {
        // Some events, then a kill at some place of a request.
        for _ in 0..20 + entropy.up_to(40) {
            note(&lines.recv().unwrap());
        }
        kill(children.swap_remove(entropy.up_to(1) as usize));
        children.push(start(CHILD, &format!("{killed}"), &path, &sender));
    }
    children.into_iter().for_each(kill);
    drop(sender);
    lines.iter().for_each(|line| note(&line));
    run(async {
        let topic = open(&path).await;
        let mut ids = BTreeSet::new();
        for partition in 0..PARTITIONS {
            let mut next = 1;
            loop {
                let page = topic.read(partition, Read::from(next)).await.unwrap();
                if page.is_empty() {
                    break;
                }
                for recorded in page {
                    assert_eq!(recorded.position, Position::new(partition, next), "a hole");
                    let id = recorded.event.id.unwrap();
                    if let Some(said) = accepted.remove(&recorded.position.to_string()) {
                        assert_eq!(said, id);
                    }
                    assert!(ids.insert(id.clone()), "{id} is there twice");
                    next += 1;
                }
            }
            assert_eq!(topic.bounds(partition).await.unwrap().next, next);
        }
        assert!(accepted.is_empty(), "accepted, and not there: {accepted:?}");
        assert!(ids.len() >= KILLS * 20);
    });
}
