//! Topics over servers: processes end at each of their requests, and compete for partitions.
use std::{collections::BTreeMap, sync::Arc, time::Duration};

use steadfast::{
    entropy::Entropy,
    store::Store,
    stream::{Event, Read, Recorded, StoreTopic, Topic},
    testing::{CrashingProcess, crash_at_every_write, fail_at_every_write},
};
use tokio::runtime::{Handle, Runtime};

/// Opens a topic of three partitions within a runtime.
pub(crate) fn open(store: Arc<dyn Store>) -> Arc<dyn Topic> {
    let opened = StoreTopic::open(store, "events", 3);
    Arc::new(tokio::task::block_in_place(|| Handle::current().block_on(opened)).unwrap())
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// A name that no other topic of this test process has.
fn new_name() -> String {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    static LAST: AtomicU32 = AtomicU32::new(0);
    format!("t{}", LAST.fetch_add(1, Relaxed))
}

async fn read_all(topic: &dyn Topic, partition: u16) -> Vec<Recorded> {
    let mut all: Vec<Recorded> = Vec::new();
    loop {
        let next = all.last().map_or(1, |last| last.position.offset + 1);
        let page = topic.read(partition, Read::from(next)).await.unwrap();
        if page.is_empty() {
            return all;
        }
        all.extend(page);
    }
}

fn request(name: &str) -> Vec<Event> {
    (0..3).map(|n| Event::new(format!("{name}.{n}")).id(format!("{name}.{n}"))).collect()
}

/// A process appends and trims; after its end another one appends what was not accepted.
fn ends_at_any_request(runtime: &Runtime, store: &Arc<dyn Store>, process: &CrashingProcess) {
    let (name, crashing) = (new_name(), process.store(store.clone()));
    runtime.block_on(process.run(async {
        let topic = loop {
            if let Ok(topic) = StoreTopic::open(crashing.clone(), &name, 1).await {
                break topic;
            }
        };
        for request_of in ["a", "b"] {
            while topic.append(0, request(request_of)).await.is_err() {}
        }
        while topic.trim(0, 3).await.is_err() {}
        while topic.append(0, request("c")).await.is_err() {}
    }));
    runtime.block_on(async {
        let topic = StoreTopic::open(store.clone(), &name, 1).await.unwrap();
        for request_of in ["a", "b", "c"] {
            topic.append(0, request(request_of)).await.unwrap();
        }
        topic.trim(0, 3).await.unwrap();
        let all: Vec<_> = read_all(&topic, 0).await.into_iter().map(|recorded| recorded.event.body).collect();
        let expected = ["a", "b", "c"].iter().flat_map(|name| request(name)).map(|event| event.body);
        assert_eq!(all, expected.skip(2).collect::<Vec<_>>());
    });
}

/// Tasks of four handles append to one partition, and some are aborted: what was accepted is there once, where it was said.
async fn competes(stores: [Arc<dyn Store>; 4]) {
    let (name, entropy) = (new_name(), Entropy::from_seed(7));
    let mut tasks = Vec::new();
    for (process, store) in stores.iter().enumerate() {
        for task in 0..4 {
            let topic = StoreTopic::open(store.clone(), &name, 1).await.unwrap();
            tasks.push(tokio::spawn(async move {
                let mut accepted = Vec::new();
                for n in 0..40 {
                    let bodies: Vec<_> = (0..1 + n % 4).map(|i| format!("{process}.{task}.{n}.{i}")).collect();
                    let events = bodies.iter().map(|body| Event::new(body.clone())).collect();
                    let appended = topic.append(0, events).await.unwrap();
                    accepted.extend(appended.into_iter().map(|appended| appended.position.offset).zip(bodies));
                }
                accepted
            }));
        }
    }
    crate::server::pass(Duration::from_millis(entropy.up_to(60))).await;
    tasks.iter().step_by(5).for_each(tokio::task::JoinHandle::abort);
    let mut accepted = BTreeMap::new();
    for task in tasks {
        for (offset, body) in task.await.unwrap_or_default() {
            assert_eq!(accepted.insert(offset, body), None, "the position {offset} was given twice");
        }
    }
    let topic = StoreTopic::open(stores[0].clone(), &name, 1).await.unwrap();
    let all = read_all(&topic, 0).await;
    let mut bodies = std::collections::BTreeSet::new();
    for (recorded, expected) in all.into_iter().zip(1..) {
        let body = String::from_utf8(recorded.event.body.to_vec()).unwrap();
        assert_eq!(recorded.position.offset, expected);
        if let Some(accepted) = accepted.remove(&expected) {
            assert_eq!(accepted, body);
        }
        assert!(bodies.insert(body.clone()), "{body} is there twice");
    }
    assert!(accepted.is_empty(), "{accepted:?}: accepted and not there");
}

#[cfg(feature = "postgres")]
mod on_postgres {
    use super::*;
    use crate::postgres::{connect, shared};

    #[test]
    fn appends_of_a_process_that_ends_at_any_request_are_whole_and_none_is_doubled() {
        let runtime = runtime();
        let store: Arc<dyn Store> = Arc::new(runtime.block_on(connect(&shared())).store());
        assert!(crash_at_every_write(|process| ends_at_any_request(&runtime, &store, process)) >= 7);
        fail_at_every_write(|process| ends_at_any_request(&runtime, &store, process));
    }

    #[test]
    fn writers_of_four_handles_compete_for_a_partition_and_lose_nothing() {
        runtime().block_on(async {
            let config = shared();
            let mut stores: Vec<Arc<dyn Store>> = Vec::new();
            for _ in 0..4 {
                stores.push(Arc::new(connect(&config).await.store()));
            }
            competes(stores.try_into().unwrap()).await;
        });
    }
}

#[cfg(feature = "redis")]
mod on_redis {
    use super::*;
    use crate::server;
    use steadfast::backend::redis::{Redis, RedisConfig};

    async fn connect(prefix: &str) -> Arc<dyn Store> {
        let config = RedisConfig::at(server::Redis::shared().url()).prefix(format!("topics{prefix}"));
        Arc::new(Redis::connect(config).await.unwrap().store())
    }

    #[test]
    fn appends_of_a_process_that_ends_at_any_request_are_whole_and_none_is_doubled() {
        let runtime = runtime();
        let store = runtime.block_on(connect("crashes"));
        assert!(crash_at_every_write(|process| ends_at_any_request(&runtime, &store, process)) >= 7);
        fail_at_every_write(|process| ends_at_any_request(&runtime, &store, process));
    }

    #[test]
    fn writers_of_four_handles_compete_for_a_partition_and_lose_nothing() {
        runtime().block_on(async {
            let mut stores = Vec::new();
            for _ in 0..4 {
                stores.push(connect("competition").await);
            }
            competes(stores.try_into().unwrap()).await;
        });
    }
}

#[cfg(feature = "nats")]
mod on_nats {
    use super::*;
    use crate::server;
    use steadfast::backend::nats::{Nats, NatsConfig};

    async fn connect(url: String, prefix: &str) -> Arc<dyn Store> {
        Arc::new(Nats::connect(NatsConfig::at(url).prefix(format!("topics_{prefix}"))).await.unwrap().store())
    }

    #[test]
    fn appends_of_a_process_that_ends_at_any_request_are_whole_and_none_is_doubled() {
        let runtime = runtime();
        let store = runtime.block_on(connect(server::Nats::shared().url(), "crashes"));
        assert!(crash_at_every_write(|process| ends_at_any_request(&runtime, &store, process)) >= 7);
        fail_at_every_write(|process| ends_at_any_request(&runtime, &store, process));
    }

    #[test]
    fn writers_of_four_handles_compete_for_a_partition_and_lose_nothing() {
        runtime().block_on(async {
            let mut stores = Vec::new();
            for _ in 0..4 {
                stores.push(connect(server::Nats::shared().url(), "competition").await);
            }
            competes(stores.try_into().unwrap()).await;
        });
    }
}
