//! Streams over servers: a member ends at each of its requests, and another one goes on; members are dropped again and
//! again.
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use steadfast::{
    leader_election::LeaderElectionConfig,
    lease::Lease,
    store::{PutOptions, Scan, Sequence, Store, StoreExt, Write},
    stream::{Delivered, Event, StoreTopic, StreamProcessor, StreamProcessorConfig, Topic},
    testing::{CrashingProcess, crash_at_every_write, fail_at_every_write},
    work::{EventDisposition, IdleConfig},
};
use tokio::{runtime::Runtime, sync::watch};

use crate::server::Watch;

const MS: fn(u64) -> Duration = Duration::from_millis;
const EVENTS: u64 = 6;

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Returns names that no other test uses.
fn number() -> u32 {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    NUMBER.fetch_add(1, Relaxed)
}

/// Settings in which nothing but the work makes requests.
fn calm() -> StreamProcessorConfig {
    let hour = Duration::from_secs(3600);
    StreamProcessorConfig::default()
        .rebalance_interval(hour)
        .checkpoint_every(2)
        .checkpoint_interval(hour)
        .max_in_flight(1)
        .idle(IdleConfig::between(hour, hour))
}

/// The process crashes in requests for the lease, the checkpoint and the topic.
fn one_member(
    runtime: &Runtime,
    store: &Arc<dyn Store>,
    lease: &Arc<dyn Lease>,
    process: &CrashingProcess,
    longest: &Mutex<Option<Duration>>,
) {
    runtime.block_on(async {
        let began = Watch::start();
        let name = format!("orders-{}", number());
        let topic = StoreTopic::open(store.clone(), &name, 1).await.unwrap();
        let events = (0..EVENTS).map(|i| Event::new(i.to_string()).key("a"));
        topic.append(0, events.collect()).await.unwrap();
        let (ended, all) = (Mutex::new(Vec::new()), watch::Sender::new(false));
        let run = async |store: Arc<dyn Store>, lease: Arc<dyn Lease>, config: StreamProcessorConfig| {
            let topic = loop {
                match StoreTopic::open(store.clone(), &name, 1).await {
                    Ok(topic) => break topic,
                    Err(_) => crate::server::pass(MS(1)).await,
                }
            };
            let member = StreamProcessor::new(topic, "dispatch", lease, store, config).unwrap();
            let mut done = all.subscribe();
            let handler = async |event: Delivered| {
                ended.lock().unwrap().push(event.position.offset);
                if event.position.offset == EVENTS {
                    // Long enough for the next announcement and the next read, so that each run makes them. A busy server
                    // takes as long for them as it took for the others.
                    crate::server::pass(MS(200).max(began.passed())).await;
                    all.send_replace(true);
                }
                EventDisposition::Complete
            };
            member.run(async { drop(done.wait_for(|done| *done).await) }, handler).await.unwrap();
        };
        let behind = (process.store(store.clone()), process.lease(lease.clone()));
        // After a fault nothing may be left to do for an hour. A whole life takes longer on a busy machine.
        let first = *longest.lock().unwrap();
        let limit = first.map_or(Duration::from_secs(300), |longest| Duration::from_secs(5).max(longest * 5));
        let lived = tokio::time::timeout(limit, process.run(run(behind.0, behind.1, calm()))).await;
        if let Ok(Some(())) = lived {
            let mut longest = longest.lock().unwrap();
            *longest = (*longest).max(Some(began.passed()));
        }
        let first = std::mem::take(&mut *ended.lock().unwrap());
        let before = watermark(&topic, store, lease).await;
        if before < EVENTS {
            // As if its term had ended, and its announcement were old.
            let rows = Scan::partition(format!("stream-group/dispatch/{name}")).prefix("m/");
            store.delete_scanned(rows).await.unwrap();
            let row = format!("stream-group/dispatch/{name}/0");
            if let Some(held) = lease.read(&row).await.unwrap() {
                let _ = lease.release(&row, &held.holder, held.token).await;
            }
            all.send_replace(false);
            // An announcement that was in flight at the crash may come after that.
            let config = calm().rebalance_interval(Duration::from_secs(2));
            run(store.clone(), lease.clone(), config).await;
        }
        assert_eq!(watermark(&topic, store, lease).await, EVENTS);
        let second = ended.into_inner().unwrap();
        assert!(first.is_sorted() && second.is_sorted());
        assert!(second.iter().all(|offset| *offset > before), "{second:?} above {before}");
        let seen: BTreeSet<u64> = first.into_iter().chain(second).collect();
        assert!(seen.into_iter().eq(1..=EVENTS));
    });
}

async fn watermark(topic: &StoreTopic, store: &Arc<dyn Store>, lease: &Arc<dyn Lease>) -> u64 {
    let reader = StreamProcessor::new(topic.clone(), "dispatch", lease.clone(), store.clone(), calm()).unwrap();
    reader.read_state().await.unwrap()[0].watermark
}

fn crashes(store: &Arc<dyn Store>, lease: &Arc<dyn Lease>, runtime: &Runtime) {
    let longest = Mutex::new(None);
    let one = |process: &CrashingProcess| one_member(runtime, store, lease, process, &longest);
    let requests = crash_at_every_write(one);
    println!("{requests} requests, each with a crash before and after it");
    assert!(requests >= 10, "{requests}");
    fail_at_every_write(one);
}

/// Members over one server, each of which is dropped again and again.
async fn lives(store: Arc<dyn Store>, lease: Arc<dyn Lease>) {
    const ALL: u64 = 1_200;
    const PARTITIONS: u16 = 4;
    let name = format!("lives-{}", number());
    let topic = StoreTopic::open(store.clone(), &name, PARTITIONS).await.unwrap();
    for i in 0..ALL {
        let partition = (i % u64::from(PARTITIONS)) as u16;
        let event = Event::new(i.to_string()).key(format!("key-{}", i % 20));
        topic.append(partition, vec![event]).await.unwrap();
    }
    let config = StreamProcessorConfig::default()
        .rebalance_interval(MS(300))
        .checkpoint_interval(MS(50))
        .max_crashes(100_000)
        .idle(IdleConfig::between(MS(10), MS(50)))
        .election(LeaderElectionConfig::of_term(MS(900)));
    let member = || StreamProcessor::new(topic.clone(), "dispatch", lease.clone(), store.clone(), config).unwrap();
    // Grows while nothing moves: on a busy machine a short life may not suffice for one event.
    let factor = AtomicU32::new(1);
    let kills = AtomicU32::new(0);
    let life = async || {
        loop {
            let handler = async |event: Delivered| {
                crate::server::pass(MS(40)).await;
                let owner = Write::put("owner", "x", PutOptions::new().fence(event.token()));
                let effect = Write::append("log/", format!("{} {}", event.position.offset, event.token()));
                let partition = format!("effects of {name}/{}", event.position.partition);
                store.batch(&partition, vec![owner, effect]).await.map(drop)
            };
            let span = MS(700 + u64::from(kills.load(Relaxed)) * 37 % 900);
            let span = span * factor.load(Relaxed);
            let _ = tokio::time::timeout(span, member().run(std::future::pending(), handler)).await;
            kills.fetch_add(1, Relaxed);
        }
    };
    let watch = async {
        let reader = member();
        let (mut least, mut at) = (u64::MAX, Watch::start());
        while least > 0 {
            // A busy server may not answer: it is asked again.
            if let Ok(states) = reader.read_state().await {
                let lag = states.iter().map(|state| state.lag).sum::<u64>();
                if lag < least {
                    (least, at) = (lag, Watch::start());
                }
            }
            let still = at.passed();
            assert!(still < MS(160_000), "{least} events are left, and nothing moves");
            factor.fetch_max((1 + still.as_secs() as u32 / 5).min(8), Relaxed);
            crate::server::pass(MS(50)).await;
        }
    };
    tokio::select! {
        () = watch => {}
        _ = async { tokio::join!(life(), life(), life()) } => {}
    }
    let mut repeated = 0;
    for partition in 0..PARTITIONS {
        let log = Scan::partition(format!("effects of {name}/{partition}")).sequence(Sequence::new("log/"), 0);
        let (mut seen, mut last) = (BTreeMap::<u64, u64>::new(), BTreeMap::<u64, u64>::new());
        for row in store.scan_all(log).await.unwrap() {
            let text = String::from_utf8_lossy(&row.value).into_owned();
            let (offset, token) = text.split_once(' ').unwrap();
            let (offset, token): (u64, u64) = (offset.parse().unwrap(), token.parse().unwrap());
            if let Some(before) = seen.insert(offset, token) {
                assert!(before < token, "it came again under one owner");
                repeated += 1;
                continue;
            }
            let number = (offset - 1) * u64::from(PARTITIONS) + u64::from(partition);
            let before = last.insert(number % 20, offset);
            assert!(before.is_none_or(|before| before < offset), "out of order");
        }
        assert_eq!(seen.len() as u64, ALL / u64::from(PARTITIONS));
    }
    let kills = kills.load(Relaxed);
    println!("{ALL} events, {kills} kills, {repeated} came again");
    assert!(kills >= 3, "{kills}");
}

#[cfg(feature = "postgres")]
mod postgres {
    use super::*;
    use crate::postgres::{connect, shared};

    #[test]
    fn a_member_that_ends_at_any_request_is_followed_by_one_that_goes_on_at_its_checkpoint() {
        let runtime = runtime();
        let postgres = runtime.block_on(connect(&shared()));
        crashes(&(Arc::new(postgres.store()) as _), &(Arc::new(postgres.lease()) as _), &runtime);
    }

    #[test]
    fn events_of_members_that_are_killed_take_effect_in_the_order_of_their_keys() {
        runtime().block_on(async {
            let postgres = connect(&shared()).await;
            lives(Arc::new(postgres.store()), Arc::new(postgres.lease())).await;
        });
    }
}

#[cfg(feature = "redis")]
mod redis {
    use steadfast::backend::redis::{Redis, RedisConfig};

    use super::*;
    use crate::server;

    async fn connect() -> Redis {
        Redis::connect(RedisConfig::at(server::Redis::shared().url()).prefix(format!("stream{}", number())))
            .await
            .unwrap()
    }

    #[test]
    fn a_member_that_ends_at_any_request_is_followed_by_one_that_goes_on_at_its_checkpoint() {
        let runtime = runtime();
        let redis = runtime.block_on(connect());
        crashes(&(Arc::new(redis.store()) as _), &(Arc::new(redis.lease()) as _), &runtime);
    }

    #[test]
    fn events_of_members_that_are_killed_take_effect_in_the_order_of_their_keys() {
        runtime().block_on(async {
            let redis = connect().await;
            lives(Arc::new(redis.store()), Arc::new(redis.lease())).await;
        });
    }
}

#[cfg(feature = "nats")]
mod nats {
    use steadfast::backend::nats::{Nats, NatsConfig};

    use super::*;
    use crate::server;

    async fn connect() -> Nats {
        let config = NatsConfig::at(server::Nats::shared().url()).prefix(format!("stream{}", number()));
        Nats::connect(config).await.unwrap()
    }

    #[test]
    fn a_member_that_ends_at_any_request_is_followed_by_one_that_goes_on_at_its_checkpoint() {
        let runtime = runtime();
        let nats = runtime.block_on(connect());
        crashes(&(Arc::new(nats.store()) as _), &(Arc::new(nats.lease()) as _), &runtime);
    }

    #[test]
    fn events_of_members_that_are_killed_take_effect_in_the_order_of_their_keys() {
        runtime().block_on(async {
            let nats = connect().await;
            lives(Arc::new(nats.store()), Arc::new(nats.lease())).await;
        });
    }
}
