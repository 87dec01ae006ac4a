//! The configuration types of the crate, each with documents that contain all its fields, and with calls through its
//! component.
use std::{
    cell::Cell,
    future::{pending, ready},
    sync::Arc,
    time::Duration,
};

use serde::{Serialize, de::DeserializeOwned};
use steadfast::{
    ConfigError, Pipeline, Priority,
    backend::sqlite::{Sqlite, SqliteConfig},
    backoff::{Backoff, BackoffConfig},
    cache_aside::CacheAsideConfig,
    call::Policy,
    chaos::{Chaos, ChaosConfig},
    circuit_breaker::{
        CircuitBreaker, CircuitBreakerConfig, KeyedBreakers, KeyedBreakersConfig, SharedCircuitBreaker,
        SharedCircuitBreakerConfig,
    },
    claim_check::{ClaimCheck, ClaimCheckConfig},
    codec::Codec,
    config_store::{
        Change, ConfigPublisher, ConfigStore, ConfigStoreConfig, ConfigStoreError, Documents, PublisherConfig, Veto,
    },
    entropy::Entropy,
    event_sourcing::{
        Aggregate, AggregateConfig, AggregateStore, Commit, EventCodec, EventStore, EventStoreConfig, Expected,
        NewEvent, Outbox, OutboxConfig,
    },
    fallback::{Fallback, FallbackConfig},
    health::{Check, Group, Health, HealthConfig},
    hedge::{Hedge, HedgeConfig},
    index_table::{IndexTable, IndexTableConfig},
    journal::{Entry, Gate, Journal, JournalConfig, Replayed},
    leader_election::{
        LeaderElection, LeaderElectionConfig,
        by_message::{InMemoryNetwork, MessageElection, MessageElectionConfig, NodeId},
    },
    lease::{InMemoryLease, StoreLease},
    materialized_view::{Projection, Sourced, View, ViewConfig},
    port::{PortError, PortErrorKind},
    queue::{InMemoryQueue, Message, Queue, QueueExt, Receive},
    queue_listener::{QueueListener, QueueListenerConfig},
    reconfiguration::{Reconfigurer, ReconfigurerConfig, Rollout, RolloutConfig},
    retry::{Retry, RetryBudget, RetryBudgetConfig, RetryConfig},
    saga::{Action, Compensation, Plan, Saga, SagaConfig, Step, StepOutcome},
    scheduler::{Scheduler, SchedulerConfig, Submission},
    sharding::{FanOut, FanOutConfig, ShardDirectory, ShardDirectoryConfig, ShardId, ShardMap, ShardingError},
    standard::{Standard, StandardConfig},
    store::{InMemoryStore, Key, Precondition, Store},
    stream::{Event, Producer, ProducerConfig, StoreTopic, StreamProcessor, StreamProcessorConfig, Topic},
    supervisor::{Child, ChildContext, Supervisor, SupervisorConfig},
    testing::{
        ScriptedService,
        faults::{FaultConfig, FaultNetwork},
    },
    throttling::{
        AdaptiveLimitConfig, AdaptiveLimiter, ClientThrottle, ClientThrottleConfig, ConcurrencyLimitConfig,
        ConcurrencyLimiter, Degradation, DegradationConfig, Gauge, KeyedRateLimitConfig, KeyedRateLimiter, Quota,
        RateLimitConfig, RateLimiter, SharedRateLimitConfig, SharedRateLimiter, Shedder, ShedderConfig,
    },
    time::{Clock, ManualClock, block_on},
};

use crate::{
    cache_aside::world::World,
    config::extremes::{Subject, drive, subject},
};

const S: fn(u64) -> Duration = Duration::from_secs;

type Built = Result<(), ConfigError>;

/// A step that fails now and then.
struct Fails;

impl Action<()> for Fails {
    async fn execute(&self, step: &Step<()>) -> StepOutcome<()> {
        match step.attempt() {
            1 => StepOutcome::not_sent("no connection"),
            _ if step.name() == "never" => StepOutcome::failed("no"),
            _ => StepOutcome::completed(),
        }
    }
}

impl Compensation<()> for Fails {
    async fn compensate(&self, step: &Step<()>) -> StepOutcome<()> {
        if step.attempt() < 3 { StepOutcome::unknown("no reply") } else { StepOutcome::completed() }
    }
}

/// A number that grows with each event.
#[derive(Clone, Default)]
struct Count(u32);

impl Aggregate for Count {
    type Command = u8;
    type Event = u8;
    type Error = std::fmt::Error;

    fn decide(&self, command: &u8) -> Result<Vec<u8>, std::fmt::Error> {
        Ok(vec![*command; 3])
    }

    fn evolve(&mut self, event: &u8) {
        self.0 += u32::from(*event);
    }
}

impl Projection for Count {
    type Event = u8;
    type Row = u8;

    fn keys(&self, _: &Sourced<u8>) -> Vec<String> {
        vec!["all".to_owned()]
    }

    fn fold(&self, _: &str, row: Option<u8>, event: &Sourced<u8>) -> Option<u8> {
        Some(row.unwrap_or_default().wrapping_add(event.event))
    }
}

/// Opens a log, each of whose requests ends within the call that makes it.
fn log(config: EventStoreConfig) -> Result<EventStore, ConfigError> {
    let log = EventStore::builder(Arc::new(InMemoryStore::new()), "log", config);
    by_name(block_on(log.spawner(block_on).build()))
}

/// Returns the refusal of a setting that the error of a port names.
fn by_name<T>(opened: Result<T, PortError>) -> Result<T, ConfigError> {
    opened.map_err(|refused| {
        let told = refused.to_string();
        assert_eq!(refused.kind(), PortErrorKind::Invalid, "{told}");
        ConfigError::new(told.split('`').nth(1).unwrap_or_default().to_owned(), told)
    })
}

fn of<C: DeserializeOwned + Serialize>(
    name: &'static str,
    documents: &[&str],
    uses: impl Fn(C) -> Built + Send + 'static,
) -> Subject {
    let documents = documents.iter().map(|text| toml::from_str(text).unwrap_or_else(|e| panic!("{name}: {e}")));
    subject::<C>(name, documents.collect(), uses)
}

/// Makes calls through the policy: some succeed, some fail, some are slow; seconds and days pass between them.
fn calls<P: Policy + Clone>(policy: &P, clock: &Clock, time: &ManualClock) {
    let service = ScriptedService::new("ok, 503, 429, ok in 50ms, 500, ok in 2s, 503 in 1ms, ok", clock).unwrap();
    let pipeline = Pipeline::new().then(policy.clone()).classify(ScriptedService::classify);
    let _ = pipeline.explain().to_string();
    for pause in [S(0), S(0), S(1), S(0), S(86_400), S(0), S(400 * 86_400), S(0)] {
        drive(time, pipeline.call(|| service.call()));
        drive(time, async {
            let _ = futures::join!(pipeline.call(|| service.call()), pipeline.call(|| service.call()));
        });
        time.advance(pause);
    }
}

/// Builds a keyed limiter, all of whose keys are of the first tier, and uses it.
fn keyed(config: KeyedRateLimitConfig) -> Result<KeyedRateLimiter<u32>, ConfigError> {
    let (clock, time) = Clock::manual();
    let limiter = KeyedRateLimiter::<u32>::builder(config).tier_of(|_| Some(0)).clock(&clock).build()?;
    for key in 0..100 {
        let _ =
            (limiter.try_acquire(&key), limiter.try_acquire_n(&(key % 3), 2), limiter.try_acquire_n(&key, u32::MAX));
        time.advance(Duration::from_millis(200));
    }
    limiter.forget_idle();
    Ok(limiter)
}

const BREAKER: &str = r#"
    count_cancelled_after = "1s"
    trip = { failure_rate = 0.5, slow_call_rate = 0.5, slow_call = "1s", consecutive_failures = 2, weight = 5, weight_period = "1s" }
    slow_start = { window = "1m", min_share = 0.1, steps = 4 }
"#;

const ADAPTIVE: &str = "shares = { low = 0.3, normal = 0.7, high = 1.0, critical = 1.0 }";

pub(crate) fn subjects() -> Vec<Subject> {
    let mut all = protected_calls();
    all.extend(limits());
    all.extend(others());
    all
}

fn protected_calls() -> Vec<Subject> {
    vec![
        of("RetryConfig", &["max_elapsed = \"1m\""], |config: RetryConfig| {
            let (clock, time) = Clock::manual();
            let retry = Retry::builder(config).clock(&clock).entropy(&Entropy::from_seed(1)).build()?;
            calls(&retry, &clock, &time);
            retry.reconfigure(config)
        }),
        of("BackoffConfig", &[""], |config: BackoffConfig| {
            let delays = Backoff::new(config, &Entropy::from_seed(1))?;
            delays.take(200).fold(Duration::ZERO, Duration::saturating_add);
            Ok(())
        }),
        of("RetryBudgetConfig", &[""], |config: RetryBudgetConfig| {
            let (clock, time) = Clock::manual();
            let budget = RetryBudget::new(config)?;
            let retry = Retry::builder(RetryConfig::default()).clock(&clock).budget(&budget).build()?;
            calls(&retry, &clock, &time);
            budget.balance(clock.now());
            budget.reconfigure(config)
        }),
        of(
            "CircuitBreakerConfig",
            &[BREAKER, &format!("{BREAKER}\n min_calls = 2\n window = {{ time = \"10s\", buckets = 10 }}")],
            |config: CircuitBreakerConfig| {
                let (clock, time) = Clock::manual();
                let breaker = CircuitBreaker::builder(config).clock(&clock).entropy(&Entropy::from_seed(1)).build()?;
                calls(&breaker, &clock, &time);
                breaker.reconfigure(config)?;
                calls(&breaker, &clock, &time);
                Ok(())
            },
        ),
        of("KeyedBreakersConfig", &[BREAKER_WITHIN], |config: KeyedBreakersConfig| {
            let (clock, time) = Clock::manual();
            let breakers = KeyedBreakers::<u32>::builder(config).clock(&clock).build()?;
            for key in 0..3 {
                calls(&breakers.get(&key), &clock, &time);
            }
            breakers.forget_idle();
            breakers.reconfigure(config)
        }),
        of("SharedCircuitBreakerConfig", &["", "agreement = { quorum = 2 }"], |config: SharedCircuitBreakerConfig| {
            let (clock, time) = Clock::manual();
            let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
            let rules = toml::from_str::<CircuitBreakerConfig>("trip = { consecutive_failures = 1 }").unwrap();
            let breaker = CircuitBreaker::builder(rules).clock(&clock).build()?;
            let shared = SharedCircuitBreaker::new(breaker.clone(), store, "x", config)?;
            drive(&time, shared.run(pending()));
            calls(&breaker, &clock, &time);
            drive(&time, shared.run(pending()));
            shared.reconfigure(config)
        }),
        of("FallbackConfig", &[""], |config: FallbackConfig| {
            let (clock, time) = Clock::manual();
            let fallback = Fallback::builder(config).clock(&clock).build()?;
            let service = ScriptedService::new("503, ok, hang", &clock).unwrap();
            let pipeline = Pipeline::new().then(fallback.clone()).classify(ScriptedService::classify);
            for _ in 0..3 {
                drive(&time, pipeline.call_or(|| service.call(), |_| ready(Ok(7))));
                let late = || clock.sleep(S(5));
                drive(
                    &time,
                    pipeline.call_or(
                        || service.call(),
                        |_| async {
                            late().await;
                            Ok(7)
                        },
                    ),
                );
            }
            fallback.reconfigure(config)
        }),
        of(
            "HedgeConfig",
            &["delay = \"50ms\"", "delay = { percentile = 0.9, min_samples = 2 }"],
            |config: HedgeConfig| {
                let (clock, time) = Clock::manual();
                let hedge = Hedge::builder(config).clock(&clock).build()?;
                let service = ScriptedService::new("ok, ok in 50ms, 503, ok in 2s, 500", &clock).unwrap();
                for pause in [0, 1, 0, 86_400, 0, 0, 0, 0] {
                    drive(&time, hedge.call(|| service.call()));
                    time.advance(S(pause));
                }
                hedge.delay();
                hedge.reconfigure(config)
            },
        ),
        of(
            "ChaosConfig",
            &[
                "enabled = true\nrules = [{ inject = { latency = { min = \"1s\", max = \"2s\" } }, rate = 0.5, operations = [\"a\"], attempts = [1] }]",
                "enabled = true\nrules = [{ inject = { fault = { kind = \"throttled\", retry_after = \"1s\" } }, rate = 1.0 }, { inject = \"outcome\", rate = 0.5 }]",
            ],
            |config: ChaosConfig| {
                // An injected panic is intended.
                if config.rules.iter().any(|rule| rule.inject == steadfast::chaos::Injection::Panic) {
                    return Chaos::new(config).map(drop);
                }
                let (clock, time) = Clock::manual();
                let chaos = Chaos::builder(config).clock(&clock).entropy(&Entropy::from_seed(1)).build()?;
                calls(&chaos, &clock, &time);
                Ok(())
            },
        ),
        of(
            "StandardConfig",
            &[&format!("{STANDARD}\nadaptive_limit = {{ {ADAPTIVE} }}\n[circuit_breaker]\n{BREAKER}"), STANDARD_PLAIN],
            |config| {
                let (clock, time) = Clock::manual();
                let stack = Standard::builder(StandardConfig::clone(&config))
                    .clock(&clock)
                    .entropy(&Entropy::from_seed(1))
                    .build()?;
                let service = ScriptedService::new("ok, 503, ok in 2s, 500, 429", &clock).unwrap();
                let pipeline = stack.clone().into_pipeline().classify(ScriptedService::classify);
                let _ = stack.explain().to_string();
                for pause in [0, 1, 0, 86_400] {
                    drive(&time, pipeline.call(|| service.call()));
                    time.advance(S(pause));
                }
                stack.reconfigure(config)
            },
        ),
    ]
}

const BREAKER_WITHIN: &str = r#"
    max_open = 0.5
    [breaker]
    count_cancelled_after = "1s"
    trip = { failure_rate = 0.5, slow_call_rate = 0.5, slow_call = "1s", consecutive_failures = 2, weight = 5, weight_period = "1s" }
    slow_start = { window = "1m", min_share = 0.1, steps = 4 }
"#;

const STANDARD: &str = r#"
    fallback = true
    timeout = "30s"
    shed = { limits = { cpu = { soft = 0.7, hard = 0.9 } } }
    rate_limit = { burst = 5 }
    retry = { max_elapsed = "1m" }
    retry_budget = true
    hedge = { delay = "50ms" }
    client_throttle = true
    attempt_timeout = "10s"
"#;

const STANDARD_PLAIN: &str = "concurrency_limit = true";

fn limits() -> Vec<Subject> {
    vec![
        of("RateLimitConfig", &["burst = 5", "mode = \"strict\""], |config: RateLimitConfig| {
            let (clock, time) = Clock::manual();
            let limiter = RateLimiter::builder(config).clock(&clock).build()?;
            calls(&limiter, &clock, &time);
            let _ = (
                limiter.try_acquire(),
                limiter.try_acquire_n(0),
                limiter.try_acquire_n(3),
                limiter.try_acquire_n(u32::MAX),
            );
            for wait in [Duration::ZERO, S(1), Duration::MAX] {
                let turns = || [limiter.acquire_n(1, wait), limiter.acquire_n(2, wait), limiter.acquire_n(1, wait)];
                drive(&time, futures::future::join_all(turns()));
            }
            limiter.reconfigure(config)?;
            calls(&limiter, &clock, &time);
            Ok(())
        }),
        of("Quota", &["permits = 5\nper = \"1s\"\nburst = 2"], |quota: Quota| {
            // Also of a tier.
            keyed(KeyedRateLimitConfig::from(quota))?;
            keyed(KeyedRateLimitConfig::default().tiers([quota])).map(drop)
        }),
        of("KeyedRateLimitConfig", &["limit = { burst = 2 }"], |config: KeyedRateLimitConfig| {
            let limiter = keyed(config.clone())?;
            limiter.reconfigure(config)
        }),
        of("ConcurrencyLimitConfig", &[""], |config: ConcurrencyLimitConfig| {
            let (clock, time) = Clock::manual();
            let limiter = ConcurrencyLimiter::builder(config).clock(&clock).build()?;
            calls(&limiter, &clock, &time);
            drop(limiter.weighing(u32::MAX).try_acquire());
            drive(&time, futures::future::join(limiter.acquire(), limiter.acquire()));
            limiter.reconfigure(config)
        }),
        of("AdaptiveLimitConfig", &[ADAPTIVE, "by = \"aimd\""], |config: AdaptiveLimitConfig| {
            let (clock, time) = Clock::manual();
            let limiter = AdaptiveLimiter::builder(config).clock(&clock).build()?;
            calls(&limiter, &clock, &time);
            limiter.reconfigure(config)?;
            calls(&limiter, &clock, &time);
            let _ = (limiter.load(), limiter.base_latency(), limiter.in_flight());
            Ok(())
        }),
        of("ClientThrottleConfig", &[""], |config: ClientThrottleConfig| {
            let (clock, time) = Clock::manual();
            let throttle = ClientThrottle::builder(config).clock(&clock).entropy(&Entropy::from_seed(1)).build()?;
            calls(&throttle, &clock, &time);
            throttle.reconfigure(config)?;
            calls(&throttle, &clock, &time);
            Ok(())
        }),
        of("ShedderConfig", &["limits = { cpu = { soft = 0.7, hard = 0.9 } }"], |config: ShedderConfig| {
            let (clock, time) = Clock::manual();
            let gauge = Gauge::new();
            let mut shedder = Shedder::builder(config.clone()).clock(&clock);
            if config.limits.contains_key("cpu") {
                shedder = shedder.gauge("cpu", gauge.clone());
            }
            let shedder = shedder.build()?;
            for value in GAUGE {
                gauge.set(value);
                Priority::ALL.iter().for_each(|priority| _ = shedder.try_acquire(*priority));
                time.advance(S(1));
                drive(&time, shedder.run(pending()));
            }
            calls(&shedder, &clock, &time);
            shedder.reconfigure(config)
        }),
        of(
            "DegradationConfig",
            &["features = [\"a\", \"b\"]\nlimits = { cpu = { soft = 0.7, hard = 0.9 } }"],
            |config: DegradationConfig| {
                let (clock, time) = Clock::manual();
                let gauge = Gauge::new();
                let mut degradation = Degradation::builder(config.clone()).clock(&clock);
                if config.limits.contains_key("cpu") {
                    degradation = degradation.gauge("cpu", gauge.clone());
                }
                let degradation = degradation.build()?;
                let feature = degradation.feature(&config.features[0]).unwrap();
                for value in GAUGE {
                    gauge.set(value);
                    feature.is_enabled();
                    time.advance(S(1));
                    drive(&time, degradation.run(pending()));
                }
                calls(&feature, &clock, &time);
                degradation.reconfigure(config)
            },
        ),
        of(
            "SharedRateLimitConfig",
            &[
                "burst = 5\nwhen_down = { local_share = 0.5 }",
                "sharing = { leased = { every = \"100ms\" } }\nwhen_down = \"fail_open\"",
            ],
            |config: SharedRateLimitConfig| {
                // Also with settings that no limiter accepts.
                for skew in [Duration::ZERO, Duration::MAX] {
                    config.slack(skew);
                }
                let (clock, time) = Clock::manual();
                let network = FaultNetwork::new(FaultConfig::default(), 1, &clock)?;
                let client = network.client("here");
                let store = client.store(Arc::new(InMemoryStore::builder().clock(&clock).build()));
                let limiter = SharedRateLimiter::builder(store, "x", config).clock(&clock).build()?;
                calls(&limiter, &clock, &time);
                drive(&time, limiter.run(pending()));
                client.cut();
                calls(&limiter, &clock, &time);
                drive(&time, limiter.acquire_n(3));
                limiter.reconfigure(config)
            },
        ),
    ]
}

const GAUGE: [f64; 6] = [0.0, 0.8, f64::MAX, f64::NAN, f64::NEG_INFINITY, 0.8];

fn others() -> Vec<Subject> {
    let mut all = vec![
        of("CacheAsideConfig", &[CACHE], |config: CacheAsideConfig| {
            let world = World::new();
            let cache = world.builder(config).remote(world.store.clone(), crate::cache_aside::world::codec());
            let cache = cache.name("numbers").backplane(world.notifier.clone()).build()?;
            for pause in [S(0), S(1), S(3_600), S(86_400), S(400 * 86_400)] {
                for key in 0..3 {
                    drive(&world.time, cache.get_or_load(&key, || world.source.load()));
                }
                world.source.fails.store(pause == S(3_600), std::sync::atomic::Ordering::SeqCst);
                world.turn();
                world.time.advance(pause);
            }
            drive(&world.time, cache.run(pending()));
            Ok(())
        }),
        of(
            "QueueListenerConfig",
            &["handler_timeout = \"1m\"\nmargin = \"2s\"\ncall_timeout = \"5s\"", ""],
            |config: QueueListenerConfig| {
                let (clock, time) = Clock::manual();
                let queue = Arc::new(InMemoryQueue::builder("jobs").clock(&clock).build());
                let listener = QueueListener::builder(queue.clone(), config).clock(&clock).build()?;
                let messages = (0..5).map(|i| Message::new(vec![i])).collect();
                time.block_on(queue.send(messages)).unwrap();
                let handled = Cell::new(0);
                let handler = |_work| async {
                    handled.set(handled.get() + 1);
                    clock.sleep(S(handled.get())).await;
                    if handled.get().is_multiple_of(2) { Err("no") } else { Ok(()) }
                };
                drive(&time, listener.run(clock.sleep(S(20)), handler));
                drive(&time, listener.run(ready(()), handler));
                Ok(())
            },
        ),
        of("JournalConfig", &[""], |config: JournalConfig| {
            let (clock, time) = Clock::manual();
            let queue = Arc::new(InMemoryQueue::builder("jobs").clock(&clock).build());
            let journal = Journal::builder(queue, config).clock(&clock).build()?;
            for i in 0..4 {
                drive(&time, journal.defer_entry(Entry::new(format!("{i}"), "x")));
            }
            let replayed =
                |_| ready(if clock.now().as_nanos() % 2 == 0 { Replayed::Done } else { Replayed::failed("no") });
            drive(&time, journal.run(clock.sleep(S(20)), || Gate::Open, replayed));
            journal.reconfigure(config)
        }),
        of("SagaConfig", &[""], |config: SagaConfig| {
            let (clock, time) = Clock::manual();
            let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
            let codec = Codec::new(|_: &()| Ok::<_, std::fmt::Error>(vec![]), |_| Ok::<_, std::fmt::Error>(()));
            let plan = Plan::new().step("fails", Fails).pivot("never", Fails);
            let saga = Saga::builder("trip", store, codec, plan, config).clock(&clock).build()?;
            drive(&time, saga.run("1", ()));
            drive(&time, saga.recover(clock.sleep(S(20))));
            drive(&time, saga.retry("1"));
            Ok(())
        }),
        of("SchedulerConfig", &[""], |config: SchedulerConfig| {
            let (clock, time) = Clock::manual();
            let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
            let queue = Arc::new(InMemoryQueue::builder("jobs").clock(&clock).build());
            let codec = Codec::new(|_: &()| Ok::<_, std::fmt::Error>(vec![]), |_| Ok::<_, std::fmt::Error>(()));
            let saga = Saga::builder("trip", store, codec, Plan::new().step("fails", Fails), SagaConfig::default());
            let scheduler = Scheduler::builder(saga.clock(&clock).build()?, queue, config).clock(&clock).build()?;
            drive(&time, scheduler.submit(Submission::new("1", ())));
            drive(&time, scheduler.run(clock.sleep(S(20))));
            drive(&time, scheduler.supervise(clock.sleep(S(20))));
            Ok(())
        }),
        of("EventStoreConfig", &[""], |config: EventStoreConfig| {
            let log = log(config)?;
            for id in ["1", "2", "1"] {
                let commit = Commit::new(id).append("a", Expected::Any, [NewEvent::new("Counted", "1")]);
                drop(block_on(log.commit(commit)));
            }
            Ok(())
        }),
        of("AggregateConfig", &[""], |config: AggregateConfig| {
            let bytes = Codec::new(
                |event: &u8| Ok::<_, std::fmt::Error>(vec![*event]),
                |bytes| bytes.first().copied().ok_or(std::fmt::Error),
            );
            let codec = EventCodec::new(bytes, |_| "Counted");
            let counts = AggregateStore::<Count>::new(log(EventStoreConfig::default())?, codec, config)?;
            for id in ["1", "2", "1"] {
                drop(block_on(counts.execute("a", id, 1)));
            }
            Ok(())
        }),
        of("OutboxConfig", &[""], |config: OutboxConfig| {
            let (clock, time) = Clock::manual();
            let mails = Arc::new(InMemoryQueue::builder("mails").clock(&clock).build());
            let log = EventStore::builder(Arc::new(InMemoryStore::new()), "log", EventStoreConfig::default());
            let log = log.outbox("mails", mails.capabilities()).clock(&clock).spawner(block_on).build();
            let log = by_name(drive(&time, log).expect("a log in memory opens"))?;
            drop(drive(&time, log.commit(Commit::new("1").send("mails", Message::new("1")))));
            let outbox = Outbox::builder(&log, "mails", mails, config).clock(&clock).build()?;
            drop(drive(&time, outbox.run(clock.sleep(S(20)))));
            Ok(())
        }),
        of("ViewConfig", &[""], |config: ViewConfig| {
            let (clock, time) = Clock::manual();
            let log = EventStore::builder(Arc::new(InMemoryStore::new()), "log", EventStoreConfig::default());
            let log =
                by_name(drive(&time, log.clock(&clock).spawner(block_on).build()).expect("a log in memory opens"))?;
            let event = NewEvent::new("Counted", "1");
            drop(drive(&time, log.commit(Commit::new("1").append("a", Expected::Any, [event]))));
            let one = || {
                Codec::new(
                    |event: &u8| Ok::<_, std::fmt::Error>(vec![*event]),
                    |bytes| bytes.first().copied().ok_or(std::fmt::Error),
                )
            };
            let view = View::builder(Arc::new(InMemoryStore::new()), "counts", Count::default(), one(), config);
            let view = view.source(log.topic(), EventCodec::new(one(), |_| "Counted")).clock(&clock).build()?;
            drop(drive(&time, view.run(clock.sleep(S(20)))));
            drop(drive(&time, view.rebuild()));
            Ok(())
        }),
        of("IndexTableConfig", &[""], |config: IndexTableConfig| {
            let (clock, time) = Clock::manual();
            let store = || Arc::new(InMemoryStore::builder().clock(&clock).build());
            let one = Codec::new(
                |row: &u8| Ok::<_, std::fmt::Error>(vec![*row]),
                |bytes| bytes.first().copied().ok_or(std::fmt::Error),
            );
            let table = IndexTable::builder(store(), one, config);
            let table = table.unique("by-row", store(), |row: &u8| Some(row.to_string())).clock(&clock).build()?;
            drop(drive(&time, table.put(Key::new("a", "1"), &1, Precondition::Any)));
            drop(drive(&time, table.delete(Key::new("a", "1"), Precondition::Any)));
            drop(drive(&time, table.build_indexes(["a"])));
            drop(drive(&time, table.lookup("by-row", "1").rows()));
            Ok(())
        }),
        of("SupervisorConfig", &[""], |config: SupervisorConfig| {
            let (clock, time) = Clock::manual();
            let child = |name| Child::new(name, |_: ChildContext| pending::<Result<(), String>>());
            // A runtime that drops each task: its child fails.
            let supervisor = Supervisor::builder(config).child(child("a")).child(child("b")).spawner(drop);
            let supervisor = supervisor.clock(&clock).build()?;
            let _ = supervisor.explain().to_string();
            drop(drive(&time, supervisor.run(clock.sleep(S(20)))));
            Ok(())
        }),
        of("ConfigStoreConfig", &["", "on_start_failure = 'fail'\ntrial = '1m'"], |config: ConfigStoreConfig| {
            let (clock, time) = Clock::manual();
            let store: Arc<dyn Store> = Arc::new(InMemoryStore::builder().clock(&clock).build());
            let publisher = ConfigPublisher::builder(store.clone(), "shop", PublisherConfig::default());
            let publisher = publisher.clock(&clock).build()?;
            let _ = drive(&time, publisher.publish(Change::to("a", "1")));
            let load = |_: &Documents| Ok::<_, std::io::Error>(());
            let settings = ConfigStore::builder(store, "shop", load, config).layers(["a"]);
            let settings = settings.local(Arc::new(Disk(InMemoryStore::builder().clock(&clock).build())));
            let settings = match drive(&time, settings.clock(&clock).build()) {
                Some(Err(ConfigStoreError::Config(error))) => return Err(error),
                Some(Ok(settings)) => settings,
                _ => return Ok(()),
            };
            let _ = drive(&time, settings.run(clock.sleep(S(20)), |_| async { Ok::<_, Veto>(()) }));
            Ok(())
        }),
        of("PublisherConfig", &[""], |config: PublisherConfig| {
            let (clock, time) = Clock::manual();
            let store: Arc<dyn Store> = Arc::new(InMemoryStore::builder().clock(&clock).build());
            let publisher = ConfigPublisher::builder(store, "shop", config).clock(&clock).build()?;
            let _ = drive(&time, publisher.publish(Change::to("a", "1")));
            let _ = drive(&time, publisher.rollback(1, "ada", ""));
            Ok(())
        }),
        of("ReconfigurerConfig", &["", "bake = '1m'"], |config: ReconfigurerConfig| {
            let (clock, time) = Clock::manual();
            let health = Health::builder(HealthConfig::default()).clock(&clock).build()?;
            let retry = Retry::new(RetryConfig::default())?;
            let changes = Reconfigurer::builder(RetryConfig::default(), config).clock(&clock).health(&health);
            let changes = changes.part("retry", |config: &mut RetryConfig| config, retry).build()?;
            let _ = drive(&time, changes.submit(RetryConfig::default().max_attempts(5)));
            Ok(())
        }),
        of("RolloutConfig", &[""], |config: RolloutConfig| {
            let (clock, time) = Clock::manual();
            let store: Arc<dyn Store> = Arc::new(InMemoryStore::builder().clock(&clock).build());
            let publisher =
                ConfigPublisher::builder(store, "shop", PublisherConfig::default()).clock(&clock).build()?;
            let rollout = Rollout::builder(&publisher, config).clock(&clock).build()?;
            let _ = drive(&time, rollout.run(Change::to("a", "1").staged([1.0])));
            Ok(())
        }),
        of("HealthConfig", &["", "secret = 'open-sesame'", "previous_secret = 'barley'"], |config: HealthConfig| {
            let (clock, time) = Clock::manual();
            let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
            let check = Check::dependency("db", || async { Err::<(), _>("away") }).required();
            let built = Health::builder(config).name("shop").check(check).fleet(store, "1").spawner(drop);
            let health = built.clock(&clock).build()?;
            drop(drive(&time, health.report(&Group::Readiness)));
            let _ = drive(&time, health.run(clock.sleep(S(20))));
            Ok(())
        }),
        of("ProducerConfig", &[""], |config: ProducerConfig| {
            let topic = block_on(StoreTopic::open(Arc::new(InMemoryStore::new()), "orders", 2)).unwrap();
            // A request ends within the call that makes it.
            let producer = Producer::builder(topic, config).spawner(block_on).build()?;
            for key in ["a", "b"] {
                drop(block_on(producer.append(Event::new("1").key(key))));
            }
            Ok(())
        }),
        of("StreamProcessorConfig", &[""], |config: StreamProcessorConfig| {
            let (clock, time) = Clock::manual();
            let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
            let topic = time.block_on(StoreTopic::builder(store.clone(), "orders", 2).clock(&clock).build()).unwrap();
            let events = (0..5).map(|i| Event::new(format!("{i}")).key("a"));
            time.block_on(topic.append(0, events.collect())).unwrap();
            let leases = Arc::new(StoreLease::builder(store.clone()).clock(&clock).build()?);
            let processor = StreamProcessor::builder(topic, "dispatch", leases, store, config).clock(&clock).build()?;
            let handler = async |_| if clock.now().as_nanos() % 2 == 0 { Ok(()) } else { Err("no") };
            drive(&time, processor.run(clock.sleep(S(20)), handler));
            Ok(())
        }),
        of("ClaimCheckConfig", &["keep = \"1h\""], |config: ClaimCheckConfig| {
            let (clock, time) = Clock::manual();
            let queue = Arc::new(InMemoryQueue::builder("jobs").clock(&clock).build());
            let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
            let checked = ClaimCheck::new(queue, store, config)?;
            for size in [0, 1, 300_000] {
                drive(&time, checked.send_one(Message::new(vec![7; size])));
            }
            drive(&time, checked.receive(Receive::new(10, S(30))));
            Ok(())
        }),
        of("ShardDirectoryConfig", &[""], |config: ShardDirectoryConfig| {
            let (clock, time) = Clock::manual();
            let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
            let builder = ShardDirectory::builder(store, "orders", config).clock(&clock);
            let map = ShardMap::hashed(16, &[ShardId(0), ShardId(1)]).unwrap();
            match drive(&time, builder.create(&map)) {
                Some(Err(ShardingError::Change(refused))) => return Err(refused),
                Some(Ok(directory)) => _ = drive(&time, directory.run(pending())),
                _ => {}
            }
            Ok(())
        }),
        of("FanOutConfig", &[""], |config: FanOutConfig| {
            let (clock, time) = Clock::manual();
            let fan_out = FanOut::builder(config).clock(&clock).build()?;
            let shards: Vec<_> = (0..5).map(ShardId).collect();
            let answer = |shard: ShardId| {
                let clock = clock.clone();
                async move {
                    clock.sleep(S(shard.0.into())).await;
                    Ok::<_, ()>(shard)
                }
            };
            drive(&time, fan_out.run(&shards, answer));
            Ok(())
        }),
        of("LeaderElectionConfig", &[""], |config: LeaderElectionConfig| {
            let (clock, time) = Clock::manual();
            let leases = Arc::new(InMemoryLease::builder().clock(&clock).build());
            let builder =
                |who: &str| LeaderElection::builder(leases.clone(), "job", config).candidate(who).clock(&clock).build();
            let (one, other) = (builder("a")?, builder("b")?);
            drive(&time, async {
                let mut leadership = one.campaign().await.unwrap();
                let _ = futures::join!(leadership.lost(), other.campaign());
            });
            Ok(())
        }),
        of("MessageElectionConfig", &[""], |config: MessageElectionConfig| {
            for ring in [false, true] {
                let (clock, time) = Clock::manual();
                let network = InMemoryNetwork::new();
                let ids = [NodeId(1), NodeId(2), NodeId(3)];
                let nodes = ids.map(|id| {
                    let net = network.join(id);
                    let node = if ring {
                        MessageElection::ring(id, ids, net, config)
                    } else {
                        MessageElection::bully(id, ids, net, config)
                    };
                    node.clock(&clock).build()
                });
                let [one, two, three] = nodes;
                let (one, two, three) = (one?, two?, three?);
                drive(&time, async { futures::join!(one.run(), two.run(), three.run()) });
            }
            Ok(())
        }),
        of(
            "FaultConfig",
            &[
                "errors = 0.1\nlost_replies = 0.1\ndoubled = 0.1\nlate = 0.1\nmin_latency = \"1ms\"\nmax_latency = \"1s\"",
            ],
            |config: FaultConfig| {
                let (clock, time) = Clock::manual();
                let network = FaultNetwork::new(config, 1, &clock)?;
                let store = network.client("here").store(Arc::new(InMemoryStore::builder().clock(&clock).build()));
                for i in 0..20_u8 {
                    drive(&time, store.get(steadfast::store::Key::new("p", &i.to_string())));
                }
                Ok(())
            },
        ),
    ];
    let folder = tempfile::tempdir().unwrap();
    let document = format!("path = \"{}\"", folder.path().join("x.db").display());
    let mut sqlite = of("SqliteConfig", &[&document], move |config: SqliteConfig| {
        // Only paths in the temporary folder are opened.
        if !config.path.starts_with(folder.path()) && config.path.file_name().is_some() {
            return Ok(());
        }
        let (clock, time) = Clock::manual();
        let sqlite = by_name(Sqlite::open_with_clock(config, &clock))?;
        let queue = sqlite.queue("jobs").unwrap();
        drive(&time, queue.send_one(Message::new("x").deduplicate("one")));
        drive(&time, queue.receive(Receive::new(1, S(30)).wait(S(5))));
        drive(&time, sqlite.store().get(steadfast::store::Key::new("p", "r")));
        Ok(())
    });
    // Each opens a file.
    sqlite.pairs = 150;
    all.push(sqlite);
    all
}

const CACHE: &str = r#"
    sliding = "1m"
    negative_ttl = "1m"
    stale = { max_age = "1h", throttle = "10s" }
    soft_timeout = "100ms"
    hard_timeout = "10s"
    refresh_ahead = 0.8
    xfetch = 1.0
    remote = { local_ttl = "1m" }
"#;

/// A store in memory that says that it outlives its process.
#[derive(Debug)]
struct Disk(InMemoryStore);

impl Store for Disk {
    forward_store! { 0: get, put, delete, scan, batch }

    fn capabilities(&self) -> steadfast::port::Capabilities {
        self.0.capabilities().with(steadfast::port::Capability::Durable)
    }
}
