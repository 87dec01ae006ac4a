//! The rooms whose processes know of each other: one process of each, at rest and under load.
use std::{future::pending, time::Duration};

use futures::future::join;
use steadfast::{
    Builder,
    cache_aside::{CacheAside, CacheAsideConfig},
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, SharedCircuitBreaker, SharedCircuitBreakerConfig},
    codec::Codec,
    leader_election::{LeaderElection, LeaderElectionConfig},
    queue::{Message, QueueExt},
    queue_listener::{QueueListener, QueueListenerConfig, Work},
    saga::{Plan, Saga, SagaConfig, Step, StepOutcome},
    sharding::{ShardDirectory, ShardDirectoryConfig, ShardId, ShardMap},
    stream::{Delivered, Event, Producer, ProducerConfig, StoreTopic, StreamProcessor, StreamProcessorConfig},
    throttling::{Quota, SharedRateLimitConfig, SharedRateLimiter},
    work::EventDisposition,
};

use crate::world::{MS, Process, S, Task};

/// A room of the crate, and its form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    Election,
    Listener,
    Cache,
    LimitExact,
    LimitLeased,
    Breaker,
    Saga,
    Stream(u16),
    Shards,
}

impl Room {
    pub const ALL: [Self; 10] = [
        Self::Election,
        Self::Listener,
        Self::Cache,
        Self::LimitExact,
        Self::LimitLeased,
        Self::Breaker,
        Self::Saga,
        Self::Stream(32),
        Self::Stream(1024),
        Self::Shards,
    ];

    pub fn name(self) -> String {
        match self {
            Self::Election => "election".into(),
            Self::Listener => "listener".into(),
            Self::Cache => "cache with backplane".into(),
            Self::LimitExact => "shared limit, exact".into(),
            Self::LimitLeased => "shared limit, leased".into(),
            Self::Breaker => "shared breaker".into(),
            Self::Saga => "saga supervisor".into(),
            Self::Stream(partitions) => format!("stream group, {partitions} partitions"),
            Self::Shards => "shard map".into(),
        }
    }

    /// The work of each process under load.
    pub fn load(self) -> &'static str {
        match self {
            Self::Election => "the leader resigns each minute",
            Self::Listener => "a message each second",
            Self::Cache => "a get each second, an update each 10 s",
            Self::LimitExact => "a call each 20 s",
            Self::LimitLeased => "a call each second, leases of 20 s",
            Self::Breaker => "all have opened by their own rules",
            Self::Saga => "one open saga, two steps of 10 s",
            Self::Stream(_) => "an event each second",
            Self::Shards => "the map changes each minute",
        }
    }

    /// At most so many bytes an hour for each pair of processes, since each hears of each other one, beside what is linear.
    pub fn bytes_of_a_pair(self, load: bool) -> f64 {
        match (self, load) {
            (Self::Cache, true) => 40_000.0,
            // Each reads the reports of all each second, of 64 bytes and a version.
            (Self::Breaker, true) => 260_000.0,
            (Self::Saga, true) => 30_000.0,
            (Self::Stream(_), _) => 60_000.0,
            _ => 0.0,
        }
    }

    /// The same of requests.
    pub fn requests_of_a_pair(self, load: bool) -> f64 {
        match self {
            // Each reads the open sagas of all, 120 times an hour: two requests for each hundred.
            Self::Saga if load => 120.0 * 2.0 / 100.0,
            _ => 0.0,
        }
    }

    /// The time until its processes have found each other.
    pub fn settles_in(self) -> Duration {
        match self {
            Self::Stream(_) => S(90),
            Self::Listener => S(180),
            _ => S(60),
        }
    }

    /// Runs a process of the room for ever.
    pub fn process(self, process: Process, load: bool) -> Task {
        match self {
            Self::Election => Box::pin(election(process, load)),
            Self::Listener => Box::pin(listener(process, load)),
            Self::Cache => Box::pin(cache(process, load)),
            Self::LimitExact => Box::pin(limit(process, load, false)),
            Self::LimitLeased => Box::pin(limit(process, load, true)),
            Self::Breaker => Box::pin(breaker(process, load)),
            Self::Saga => Box::pin(saga(process, load)),
            Self::Stream(partitions) => Box::pin(stream(process, load, partitions)),
            Self::Shards => Box::pin(shards(process, load)),
        }
    }
}

/// A codec of text.
pub fn text() -> Codec<String> {
    Codec::new(
        |text: &String| Ok::<_, std::io::Error>(text.clone().into_bytes()),
        |bytes| String::from_utf8(bytes.to_vec()),
    )
}

pub fn elector(process: &Process) -> LeaderElection {
    LeaderElection::builder(process.lease(), "nightly-report", LeaderElectionConfig::default())
        .candidate(format!("node-{}", process.number))
        .clock(&process.clock)
        .entropy(&process.entropy)
        .notifier(process.notifier())
        .build()
        .expect("valid settings")
}

async fn election(process: Process, load: bool) {
    let election = elector(&process);
    let clock = process.clock.clone();
    let ran = election.run(pending(), |term| {
        let clock = clock.clone();
        async move {
            if load {
                clock.sleep(S(60)).await;
            } else {
                term.lost().await;
            }
        }
    });
    ran.await.expect("no permanent failure");
}

async fn listener(process: Process, load: bool) {
    let listener = QueueListener::builder(process.queue(), QueueListenerConfig::default())
        .clock(&process.clock)
        .entropy(&process.entropy)
        .build()
        .expect("valid settings");
    let clock = &process.clock;
    let handles = listener.run(pending(), |_: Work| async {
        clock.sleep(MS(10)).await;
    });
    let queue = process.queue();
    let sends = async {
        if load {
            let queue = &queue;
            process
                .often(S(1), || async move {
                    queue.send_one(Message::new(vec![b'x'; 100])).await.expect("accepted");
                })
                .await;
        }
    };
    join(async { handles.await.expect("no permanent failure") }, sends).await;
}

pub fn prices(process: &Process) -> CacheAside<u64, String> {
    CacheAside::builder(CacheAsideConfig::default())
        .name("prices")
        .clock(&process.clock)
        .entropy(&process.entropy)
        .remote(process.store(), text())
        .backplane(process.notifier())
        .spawner(process.spawner())
        .build()
        .expect("valid settings")
}

async fn cache(process: Process, load: bool) {
    let cache = prices(&process);
    let hears = cache.clone();
    let hears = async move {
        hears.run(pending()).await;
    };
    let (entropy, cache) = (&process.entropy, &cache);
    let clock = || process.clock.clone();
    let clock = &clock;
    let reads = async {
        if load {
            process
                .often(S(1), || async move {
                    // A load may outlive the caller that began it.
                    let clock = clock();
                    let loads = || async move {
                        clock.sleep(MS(5)).await;
                        Ok::<_, std::io::Error>("x".repeat(100))
                    };
                    cache.get_or_load(&entropy.up_to(999), loads).await.expect("a value");
                })
                .await;
        }
    };
    let writes = async {
        if load {
            process
                .often(S(10), || async move {
                    let write = async { Ok::<_, std::io::Error>(()) };
                    cache.update(&entropy.up_to(999), write).await.expect("written");
                })
                .await;
        }
    };
    futures::future::join3(hears, reads, writes).await;
}

async fn limit(process: Process, load: bool, leased: bool) {
    let mut config = SharedRateLimitConfig::from(Quota::per_second(10 * process.of as u32));
    if leased {
        config = config.leased(S(60));
    }
    let limit = SharedRateLimiter::builder(process.store(), "payments", config)
        .clock(&process.clock)
        .build()
        .expect("valid settings");
    let leases = async {
        if leased {
            limit.run(pending()).await;
        }
    };
    let limit = &limit;
    let calls = async {
        if load {
            // Beyond some hundred changes of the row a second, processes lose to each other: see the page.
            let every = if leased { S(1) } else { S(20) };
            process.often(every, || async move { limit.acquire().await.unwrap_or_default() }).await;
        }
    };
    join(leases, calls).await;
}

pub fn shared_breaker(process: &Process) -> SharedCircuitBreaker {
    let breaker = CircuitBreaker::builder(CircuitBreakerConfig::default())
        .clock(&process.clock)
        .entropy(&process.entropy)
        .build()
        .expect("valid settings");
    SharedCircuitBreaker::builder(breaker, process.store(), "payments", SharedCircuitBreakerConfig::default())
        .notifier(process.notifier())
        .process(format!("process-{}", process.number))
        .build()
        .expect("valid settings")
}

async fn breaker(process: Process, load: bool) {
    let shared = shared_breaker(&process);
    if load {
        let pause = process.entropy.up_to(1000);
        process.clock.sleep(MS(pause)).await;
        shared.breaker().force_open(S(24 * 3600));
    }
    shared.run(pending()).await;
}

/// A saga of two steps, each of which takes 10 s.
pub fn trips(process: &Process) -> Builder<Saga<String>> {
    let step = |process: &Process| {
        let clock = process.clock.clone();
        move |_: Step<String>| {
            let clock = clock.clone();
            async move {
                clock.sleep(S(10)).await;
                StepOutcome::completed()
            }
        }
    };
    let undo = |_: Step<String>| async { StepOutcome::completed() };
    let plan = Plan::<String>::new().step_fn("seat", step(process), undo).pivot("charge", step(process));
    Saga::builder("trip", process.store(), text(), plan, SagaConfig::default())
        .clock(&process.clock)
        .entropy(&process.entropy)
}

async fn saga(process: Process, load: bool) {
    let trips = trips(&process).build().expect("valid settings");
    // Supervisors do not begin at once.
    process.clock.sleep(MS(process.entropy.up_to(30_000))).await;
    let runs = async {
        if load {
            for trip in 0_u64.. {
                trips.run(&format!("{}-{trip}", process.number), "to London".into()).await.expect("its end");
            }
        }
    };
    join(async { trips.recover(pending()).await.expect("no permanent failure") }, runs).await;
}

/// Opens the topic of a process.
pub async fn topic(process: &Process, partitions: u16) -> StoreTopic {
    StoreTopic::builder(process.store(), "readings", partitions)
        .clock(&process.clock)
        .entropy(&process.entropy)
        .spawner(process.spawner())
        .build()
        .await
        .expect("a topic")
}

pub fn member(process: &Process, topic: &StoreTopic) -> Builder<StreamProcessor> {
    StreamProcessor::builder(topic.clone(), "board", process.lease(), process.store(), StreamProcessorConfig::default())
        .member(format!("node-{}", process.number))
        .clock(&process.clock)
        .entropy(&process.entropy)
}

async fn stream(process: Process, load: bool, partitions: u16) {
    let topic = topic(&process, partitions).await;
    let member = member(&process, &topic).build().expect("valid settings");
    let handles = async {
        let ran = member.run(pending(), |_: Delivered| async { EventDisposition::Complete });
        ran.await.expect("no permanent failure");
    };
    let producer = Producer::builder(topic, ProducerConfig::default())
        .clock(&process.clock)
        .entropy(&process.entropy)
        .spawner(process.spawner())
        .build()
        .expect("valid settings");
    let producer = &producer;
    let sends = async {
        if load {
            process
                .often(S(1), || async move {
                    producer.append(Event::new(vec![b'x'; 100])).await.expect("appended");
                })
                .await;
        }
    };
    join(handles, sends).await;
}

async fn shards(process: Process, load: bool) {
    let builder = || {
        ShardDirectory::builder(process.store(), "orders", ShardDirectoryConfig::default())
            .clock(&process.clock)
            .entropy(&process.entropy)
            .notifier(process.notifier())
    };
    let map = ShardMap::hashed(4096, &[0, 1, 2, 3].map(ShardId)).expect("valid");
    let directory = match builder().create(&map).await {
        Ok(directory) => directory,
        Err(_) => builder().open().await.expect("a map"),
    };
    let changes = async {
        if load && process.number == 0 {
            let directory = &directory;
            for change in 0_u64.. {
                process.clock.sleep(S(60)).await;
                let key = format!("tenant-{change}");
                // A key stays at its shard.
                directory.change(|map| map.pin(&key, map.shard_of(&key).unwrap_or(ShardId(0)))).await.expect("changed");
            }
        }
    };
    join(directory.run(pending()), changes).await;
}
