//! Chains of filters over servers: processes end in the middle of their work, and others go on. On PostgreSQL and Redis
//! results are forwarded; on NATS they are sent before their message ends.
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use steadfast::{
    backoff::BackoffConfig,
    pipes_and_filters::{Emit, Filter, LINEAGE},
    port::Capability,
    queue::{Message, Queue, QueueExt, Receive},
    queue_listener::{IdleConfig, QueueListenerConfig, Work},
};

const MS: fn(u64) -> Duration = Duration::from_millis;
const MESSAGES: u32 = 60;
const GROUPS: u32 = 5;

/// Returns names that no other test uses.
fn number() -> u32 {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    NUMBER.fetch_add(1, Relaxed)
}

fn config() -> QueueListenerConfig {
    QueueListenerConfig::default()
        .visibility(MS(600))
        .idle(IdleConfig::between(MS(5), MS(50)))
        .retry(BackoffConfig::default().between(MS(10), MS(100)))
        .handler_timeout(MS(2_000))
        // Killed processes use them up.
        .max_attempts(80)
        .max_expiries(80)
}

/// Four queues, of which the last receives each message once, although all processes are killed again and again; in the order of
/// its group, where they have groups.
async fn chain(queues: [Arc<dyn Queue>; 4], forwards: bool) {
    let process = || {
        let filter = |at: usize| {
            let filter = Filter::builder(format!("f{at}"), queues[at].clone(), config()).output(queues[at + 1].clone());
            let filter = filter.build().unwrap();
            let words = filter.explain().to_string();
            assert_eq!(words.contains("in the step that ends the message"), forwards, "{words}");
            filter
        };
        [0, 1, 2].map(filter)
    };
    let handler = async |work: Work| {
        crate::server::pass(MS(3)).await;
        Emit::one(Message::new(work.body.clone()))
    };
    let has_groups = queues[0].capabilities().has(Capability::Groups);
    for i in 0..MESSAGES {
        let message = Message::new(i.to_string());
        let message = if has_groups { message.group(format!("g{}", i % GROUPS)) } else { message };
        queues[0].send_one(message).await.unwrap();
    }
    let kills = AtomicU32::new(0);
    // Grows while nothing moves: on a busy machine a short life may not suffice for one message.
    let factor = AtomicU32::new(1);
    let lives = async |seed: u32| {
        loop {
            let filters = process();
            let runs = filters.iter().map(|filter| filter.run(std::future::pending(), handler));
            // Dropped in the middle of its work.
            let life = MS(u64::from(40 + (kills.fetch_add(1, Relaxed) * 37 + seed * 53) % 260));
            let life = life * factor.load(Relaxed);
            let _ = tokio::time::timeout(life, futures::future::try_join_all(runs)).await;
        }
    };
    // Number of steps that the messages have before them.
    let left = async || {
        let mut left = 0;
        for (queue, steps) in queues[..3].iter().zip([3, 2, 1]) {
            left += crate::faults::again("depth", || queue.depth()).await.0.total() * steps;
        }
        left
    };
    let done = async {
        let (mut least, mut looks) = (left().await, 0);
        while least > 0 {
            crate::server::pass(MS(50)).await;
            let now = left().await;
            if now < least {
                (least, looks) = (now, 0);
                factor.store(1, Relaxed);
                continue;
            }
            looks += 1;
            if looks > 100 * factor.load(Relaxed) {
                assert!(factor.fetch_add(1, Relaxed) < 8, "{now} steps are left, and nothing moves");
            }
        }
    };
    tokio::select! { () = done => {}, _ = async { tokio::join!(lives(1), lives(2)) } => {} }
    let mut groups: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    loop {
        let taken = queues[3].receive(Receive::new(32, MS(600_000))).await.unwrap();
        if taken.is_empty() {
            break;
        }
        for taken in taken {
            queues[3].complete(&taken.receipt).await.unwrap();
            assert!(taken.headers[LINEAGE].ends_with("/f0.0/f1.0/f2.0"), "{:?}", taken.headers);
            groups
                .entry(taken.group.unwrap_or_default())
                .or_default()
                .push(String::from_utf8_lossy(&taken.body).parse().unwrap());
        }
    }
    if !has_groups {
        let all = groups.entry(String::new()).or_default();
        all.sort_unstable();
        assert_eq!(*all, (0..MESSAGES).collect::<Vec<_>>());
    }
    for group in (0..GROUPS).filter(|_| has_groups) {
        let expected: Vec<_> = (0..MESSAGES).filter(|i| i % GROUPS == group).collect();
        assert_eq!(groups.get(&format!("g{group}")), Some(&expected));
    }
    println!("{MESSAGES} messages over three filters, {} lives of processes", kills.load(Relaxed));
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(test);
}

#[cfg(feature = "postgres")]
#[test]
fn a_chain_over_postgres_delivers_each_message_once_and_in_order() {
    use crate::postgres::{connect, shared};
    run(async {
        let postgres = connect(&shared()).await;
        let mut queues = Vec::new();
        for name in ["a", "b", "c", "d"] {
            queues
                .push(Arc::new(postgres.queue(&format!("pipes-{}-{name}", number())).await.unwrap()) as Arc<dyn Queue>);
        }
        chain(queues.try_into().unwrap(), true).await;
    });
}

#[cfg(feature = "redis")]
#[test]
fn a_chain_over_redis_delivers_each_message_once_and_in_order() {
    use steadfast::backend::redis::{Redis, RedisConfig};
    run(async {
        let config = RedisConfig::at(crate::server::Redis::shared().url()).prefix(format!("pipes{}", number()));
        let redis = Redis::connect(config).await.unwrap();
        chain(["a", "b", "c", "d"].map(|name| Arc::new(redis.queue(name).unwrap()) as _), true).await;
    });
}

#[cfg(feature = "nats")]
#[test]
fn a_chain_over_nats_delivers_each_message_once() {
    use steadfast::backend::nats::{Nats, NatsConfig};
    run(async {
        let config = NatsConfig::at(crate::server::Nats::shared().url()).prefix(format!("pipes{}", number()));
        let nats = Nats::connect(config).await.unwrap();
        let mut queues = Vec::new();
        for name in ["a", "b", "c", "d"] {
            queues.push(Arc::new(nats.queue(name).await.unwrap()) as Arc<dyn Queue>);
        }
        chain(queues.try_into().unwrap(), false).await;
    });
}

/// Each result leaves its server, and comes once by its id.
#[cfg(all(feature = "postgres", feature = "redis"))]
#[test]
fn a_chain_from_postgres_to_redis_and_back_delivers_each_message_once_and_in_order() {
    use steadfast::backend::redis::{Redis, RedisConfig};
    run(async {
        let config = RedisConfig::at(crate::server::Redis::shared().url()).prefix(format!("pipes{}", number()));
        let redis = Redis::connect(config).await.unwrap();
        let postgres = crate::postgres::connect(&crate::postgres::shared()).await;
        let of_postgres = async |name: &str| {
            Arc::new(postgres.queue(&format!("pipes-{}-{name}", number())).await.unwrap()) as Arc<dyn Queue>
        };
        let of_redis = |name: &str| Arc::new(redis.queue(name).unwrap()) as Arc<dyn Queue>;
        chain([of_postgres("a").await, of_redis("b"), of_postgres("c").await, of_redis("d")], false).await;
    });
}
