//! The metrics of all policies, as a recorder receives them.
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use ::metrics::{Counter, Gauge, Histogram, Key, KeyName, Recorder, SharedString, Unit};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use proptest::prelude::*;
use steadfast::{
    ConfigError, FailureKind, Pipeline, PolicyKind, Priority, Reason, Rejected, Verdict,
    backoff::{BackoffConfig, Curve, Jitter},
    cache_aside::{CacheAside, CacheAsideConfig},
    chaos::{Chaos, ChaosConfig},
    circuit_breaker::{
        CircuitBreaker, CircuitBreakerConfig, KeyedBreakers, SharedCircuitBreaker, SharedCircuitBreakerConfig,
    },
    coalesce::Coalesce,
    codec::Codec,
    config_store::{Change, ConfigPublisher, ConfigStore, Documents},
    event_sourcing::{
        Aggregate, AggregateConfig, AggregateStore, EventCodec, EventStore, EventStoreConfig, Outbox, OutboxConfig,
    },
    fallback::{Fallback, FallbackConfig},
    health::{Check, Health},
    hedge::{Hedge, HedgeConfig},
    index_table::IndexTable,
    journal::{Journal, JournalConfig},
    leader_election::LeaderElection,
    lease::StoreLease,
    materialized_view::{Projection, Sourced, View},
    metrics::{Measured, MetricKind, Metrics, Sample, Scope, series},
    pipes_and_filters::Filter,
    queue::{InMemoryQueue, Queue},
    queue_listener::QueueListener,
    reconfiguration::{Reconfigurer, Rollout},
    retry::{Retry, RetryBudget, RetryBudgetConfig, RetryConfig},
    saga::{Action, Compensation, Plan, Saga, SagaConfig, Step, StepOutcome, StepOutcomeKind},
    scheduler::{Scheduler, SchedulerConfig},
    sharding::{ShardDirectory, ShardId, ShardMap, ShardMeter},
    standard::{Standard, StandardConfig, StandardRegistry},
    store::InMemoryStore,
    stream::{StoreTopic, StreamProcessor},
    supervisor::{Child, Supervisor},
    testing::{ScriptedService, drop_at_every_await},
    throttling::{
        AdaptiveLimitConfig, AdaptiveLimiter, ClientThrottle, ClientThrottleConfig, ConcurrencyLimitConfig,
        ConcurrencyLimiter, Degradation, DegradationConfig, Gauge as Level, KeyedRateLimiter, Quota, RateLimiter,
        SharedRateLimiter, Shedder, ShedderConfig,
    },
    time::{Clock, ManualClock},
    timeout::Timeout,
};

const MS: fn(u64) -> Duration = Duration::from_millis;

/// A projection without rows.
struct Nothing;

impl Projection for Nothing {
    type Event = u8;
    type Row = u8;

    fn keys(&self, _: &Sourced<u8>) -> Vec<String> {
        Vec::new()
    }

    fn fold(&self, _: &str, row: Option<u8>, _: &Sourced<u8>) -> Option<u8> {
        row
    }
}

/// Returns metrics on a recorder of their own, and the page that `/metrics` would return.
fn page() -> (Metrics, PrometheusHandle, Clock, ManualClock) {
    let recorder = PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    let (clock, time) = Clock::manual();
    (Metrics::builder().recorder(recorder).clock(&clock).build(), page, clock, time)
}

/// Returns the value of a series on the page; `series` is the text up to the space.
fn read(page: &str, series: &str) -> Option<f64> {
    page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

fn sum(page: &str, family: &str) -> f64 {
    let values = page.lines().filter(|line| line.starts_with(&format!("{family}{{")));
    values.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

fn states(page: &str) -> Vec<f64> {
    let of = |state| read(page, &format!("steadfast_circuit_breaker_state{{name=\"b\",state=\"{state}\"}}")).unwrap();
    ["closed", "open", "half_open", "isolated"].map(of).to_vec()
}

// Guarantee: circuit_breaker 13.
#[test]
fn exactly_one_state_s_gauge_reads_1() {
    let (metrics, page, clock, time) = page();
    let breaker = CircuitBreaker::builder(CircuitBreakerConfig::default()).clock(&clock).build().unwrap();
    metrics.watch("b", &breaker).unwrap();
    let now = || states(&metrics.scrape(|| page.render()));
    assert_eq!(states(&page.render()), [1.0, 0.0, 0.0, 0.0], "from the moment it is watched");
    breaker.force_open(MS(10));
    assert_eq!(now(), [0.0, 1.0, 0.0, 0.0]);
    time.advance(MS(10));
    let probe = breaker.try_acquire().unwrap();
    assert_eq!(now(), [0.0, 0.0, 1.0, 0.0]);
    drop(probe);
    breaker.isolate();
    assert_eq!(now(), [0.0, 0.0, 0.0, 1.0]);
    breaker.close();
    assert_eq!(now(), [1.0, 0.0, 0.0, 0.0]);
    let text = page.render();
    for (to, n) in [("open", 1.0), ("half_open", 1.0), ("isolated", 1.0), ("closed", 1.0)] {
        let series = format!("steadfast_circuit_breaker_transitions_total{{name=\"b\",to=\"{to}\"}}");
        assert_eq!(read(&text, &series), Some(n), "{to}");
    }
    assert_eq!(read(&text, "steadfast_circuit_breaker_openings_total{name=\"b\",rule=\"manual\"}"), Some(1.0));
    let open = "steadfast_circuit_breaker_state_duration_seconds_sum{name=\"b\",state=\"open\"}";
    assert_eq!(read(&text, open), Some(0.01));
}

// Guarantee: circuit_breaker 13.
/// Regression: such an opening was counted as a manual one.
#[test]
fn an_opening_that_follows_other_processes_is_counted_under_its_own_rule() {
    let (metrics, page, clock, time) = page();
    let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
    let process = || {
        let breaker = CircuitBreaker::builder(CircuitBreakerConfig::default()).clock(&clock).build().unwrap();
        SharedCircuitBreaker::new(breaker, store.clone(), "db", SharedCircuitBreakerConfig::default()).unwrap()
    };
    let (here, there) = (process(), process());
    metrics.watch("b", there.breaker()).unwrap();
    here.breaker().force_open(MS(30_000));
    let two_polls = || clock.sleep(MS(2_000));
    time.block_on(async { futures::join!(here.run(two_polls()), there.run(two_polls())) });
    let text = page.render();
    let openings =
        |rule| read(&text, &format!("steadfast_circuit_breaker_openings_total{{name=\"b\",rule=\"{rule}\"}}"));
    assert_eq!((openings("shared"), openings("manual")), (Some(1.0), Some(0.0)));
}

// Guarantee: circuit_breaker 13.
#[test]
fn a_registry_s_gauges_count_the_keys_in_each_state() {
    let (metrics, page, clock, _) = page();
    let registry = KeyedBreakers::builder(CircuitBreakerConfig::default()).clock(&clock).build().unwrap();
    metrics.watch("hosts", &registry).unwrap();
    let held = [1, 2, 3].map(|key| registry.get(&key));
    held[0].isolate();
    held[1].force_open(MS(10));
    let text = metrics.scrape(|| page.render());
    for (state, n) in [("closed", 1.0), ("open", 1.0), ("half_open", 0.0), ("isolated", 1.0)] {
        let series = format!("steadfast_circuit_breaker_keys{{name=\"hosts\",state=\"{state}\"}}");
        assert_eq!(read(&text, &series), Some(n), "{state}");
    }
    assert_eq!(read(&text, "steadfast_circuit_breaker_transitions_total{name=\"hosts\",to=\"open\"}"), Some(1.0));
}

// Guarantee: circuit_breaker 13.
#[test]
fn exactly_one_state_reads_1_while_the_state_changes_and_others_record() {
    let (metrics, page, ..) = page();
    let breaker = CircuitBreaker::new(CircuitBreakerConfig::default()).unwrap();
    metrics.watch("b", &breaker).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(SeqCst) {
                breaker.isolate();
                breaker.close();
                breaker.force_open(MS(1000));
                breaker.reset();
            }
        });
        scope.spawn(|| {
            while !stop.load(SeqCst) {
                metrics.record();
            }
        });
        for _ in 0..500 {
            let states = states(&metrics.scrape(|| page.render()));
            assert_eq!(states.iter().sum::<f64>(), 1.0, "{states:?}");
        }
        stop.store(true, SeqCst);
    });
}

// Guarantee: circuit_breaker 13.
#[test]
fn no_other_task_records_between_the_reading_and_the_page() {
    let (metrics, page, ..) = page();
    let breaker = CircuitBreaker::new(CircuitBreakerConfig::default()).unwrap();
    metrics.watch("b", &breaker).unwrap();
    std::thread::scope(|scope| {
        let recorded = Arc::new(AtomicBool::new(false));
        let text = metrics.scrape(|| {
            breaker.isolate();
            let done = recorded.clone();
            let metrics = &metrics;
            scope.spawn(move || {
                metrics.record();
                done.store(true, SeqCst);
            });
            for _ in 0..2_000 {
                std::thread::yield_now();
                assert!(!recorded.load(SeqCst), "recorded before the page was made");
            }
            page.render()
        });
        assert_eq!(states(&text), [1.0, 0.0, 0.0, 0.0]);
    });
    assert_eq!(states(&page.render()), [0.0, 0.0, 0.0, 1.0]);
}

fn judged(result: &Result<&str, &str>) -> Verdict {
    match result {
        Ok("odd") => Verdict::ignore(),
        Ok(_) => Verdict::success(),
        Err(_) => Verdict::failure(FailureKind::Server),
    }
}

#[test]
fn calls_are_timed_and_counted_by_their_outcome() {
    let (metrics, page, clock, time) = page();
    let limiter = RateLimiter::builder(Quota::per_minute(5)).clock(&clock).build().unwrap();
    let pipeline = Pipeline::new().then(metrics.calls("c")).then(limiter).classify(judged);
    let call = |answer: Result<&'static str, &'static str>| {
        let clock = clock.clone();
        pipeline.call(move || {
            let clock = clock.clone();
            async move {
                clock.sleep(MS(250)).await;
                answer
            }
        })
    };
    for answer in [Ok("yes"), Ok("yes"), Ok("odd"), Err("no"), Ok("yes"), Ok("refused")] {
        let _ = time.block_on(call(answer));
    }
    let text = page.render();
    for (outcome, n) in [("success", 3.0), ("ignored", 1.0), ("failure", 1.0), ("rejected", 1.0), ("cancelled", 0.0)] {
        assert_eq!(read(&text, &format!("steadfast_calls_total{{name=\"c\",outcome=\"{outcome}\"}}")), Some(n));
    }
    assert_eq!(read(&text, "steadfast_call_failures_total{name=\"c\",kind=\"server\"}"), Some(1.0));
    assert_eq!(read(&text, "steadfast_call_rejections_total{name=\"c\",reason=\"rate_limited\"}"), Some(1.0));
    assert_eq!(read(&text, "steadfast_call_duration_seconds_sum{name=\"c\",outcome=\"success\"}"), Some(0.75));
    assert_eq!(read(&text, "steadfast_call_duration_seconds_sum{name=\"c\",outcome=\"rejected\"}"), Some(0.0));
    assert_eq!(read(&text, "steadfast_calls_in_flight{name=\"c\"}"), Some(0.0));
    // Each family has its description and kind.
    assert!(text.contains("# HELP steadfast_calls_total calls by outcome"));
    assert!(text.contains("# TYPE steadfast_calls_total counter"));
}

#[test]
fn dropped_and_panicked_calls_are_counted_and_no_longer_in_flight() {
    let (metrics, page, clock, time) = page();
    let meter = metrics.calls("c");
    let pipeline = Pipeline::new().then(meter.clone()).then(Timeout::builder(MS(500)).clock(&clock).build());
    let service = ScriptedService::new("ok in 1s", &clock).unwrap();
    let polls = drop_at_every_await(
        &time,
        || pipeline.call(|| service.call()),
        |_| assert_eq!(read(&page.render(), "steadfast_calls_in_flight{name=\"c\"}"), Some(0.0)),
    );
    let text = page.render();
    assert_eq!(
        read(&text, "steadfast_calls_total{name=\"c\",outcome=\"cancelled\"}"),
        Some(polls as f64 - 1.0),
        "all except the call that was never polled and the one that completed"
    );
    assert_eq!(read(&text, "steadfast_call_failures_total{name=\"c\",kind=\"timeout\"}"), Some(1.0));

    let service = ScriptedService::new("panic", &clock).unwrap();
    let call = std::panic::AssertUnwindSafe(|| time.block_on(pipeline.call(|| service.call())));
    assert!(std::panic::catch_unwind(call).is_err());
    let text = page.render();
    assert_eq!(read(&text, "steadfast_call_failures_total{name=\"c\",kind=\"panic\"}"), Some(1.0));
    assert_eq!(read(&text, "steadfast_calls_in_flight{name=\"c\"}"), Some(0.0));
    // Another future of the same task panics while this call waits.
    let waiting = pipeline.call(std::future::pending::<Result<(), ()>>);
    let other = async { panic!("the other future") };
    let both = std::panic::AssertUnwindSafe(|| time.block_on(async { futures::join!(waiting, other) }));
    assert!(std::panic::catch_unwind(both).is_err());
    let text = page.render();
    assert_eq!(read(&text, "steadfast_call_failures_total{name=\"c\",kind=\"panic\"}"), Some(1.0));
    assert_eq!(read(&text, "steadfast_calls_total{name=\"c\",outcome=\"cancelled\"}"), Some(polls as f64));
    // A rejection outside of a pipeline.
    meter.count_rejection(&Rejected::new(PolicyKind::RateLimit, Reason::RateLimited));
    assert_eq!(read(&page.render(), "steadfast_call_rejections_total{name=\"c\",reason=\"rate_limited\"}"), Some(1.0));
}

#[test]
fn a_flood_of_events_is_counted_exactly() {
    let (metrics, page, clock, time) = page();
    let limiter = RateLimiter::builder(Quota::per_minute(1)).clock(&clock).build().unwrap();
    metrics.watch("l", &limiter).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..5_000).for_each(|_| drop(limiter.try_acquire())));
        }
    });
    let series = "steadfast_throttling_rejected_total{name=\"l\",policy=\"rate_limit\",reason=\"rate_limited\"}";
    assert_eq!(read(&page.render(), series), Some(19_999.0));
    // Subscribers of the limiter still receive its events.
    let mut events = limiter.events();
    drop(limiter.try_acquire());
    assert!(events.try_recv().unwrap().is_some());
    time.advance(MS(60_000));
    limiter.try_acquire().unwrap();
    assert_eq!(read(&page.render(), series), Some(20_000.0));
}

#[test]
fn retries_are_counted_by_kind_and_ends_by_reason() {
    let (metrics, page, clock, time) = page();
    let every = BackoffConfig::default().curve(Curve::Constant).between(MS(100), MS(100)).jitter(Jitter::None);
    let budget = RetryBudget::new(RetryBudgetConfig::default()).unwrap();
    let retry = Retry::builder(RetryConfig::default().idempotent(true).backoff(every))
        .clock(&clock)
        .budget(&budget)
        .build()
        .unwrap();
    metrics.watch("r", &retry).unwrap();
    metrics.watch("r", &budget).unwrap();
    let service = ScriptedService::new("503, ok, 500 x3, 404", &clock).unwrap();
    let pipeline = Pipeline::new().then(retry).classify(ScriptedService::classify);
    for _ in 0..3 {
        let _ = time.block_on(pipeline.call(|| service.call()));
    }
    let text = metrics.scrape(|| page.render());
    for (series, n) in [
        ("steadfast_retry_retries_total{name=\"r\",kind=\"overloaded\"}", 1.0),
        ("steadfast_retry_retries_total{name=\"r\",kind=\"server\"}", 2.0),
        ("steadfast_retry_recovered_total{name=\"r\"}", 1.0),
        ("steadfast_retry_gave_up_total{name=\"r\",reason=\"attempts\"}", 1.0),
        ("steadfast_retry_gave_up_total{name=\"r\",reason=\"not_retryable\"}", 1.0),
        ("steadfast_retry_delay_seconds_count{name=\"r\"}", 3.0),
    ] {
        assert_eq!(read(&text, series), Some(n), "{series}\n{text}");
    }
    let balance = read(&text, "steadfast_retry_budget_balance{name=\"r\"}").unwrap();
    assert_eq!(balance, budget.balance(time.now()) as f64);
}

/// A step with this outcome in its first attempt; it completes in the second.
struct Once(StepOutcomeKind);

impl Action<u8> for Once {
    async fn execute(&self, step: &Step<u8>) -> StepOutcome<u8> {
        match self.0 {
            _ if step.attempt() > 1 => StepOutcome::completed(),
            StepOutcomeKind::Failed => StepOutcome::failed("no"),
            StepOutcomeKind::Unknown => StepOutcome::unknown("lost"),
            _ => StepOutcome::completed(),
        }
    }
}

impl Compensation<u8> for Once {
    async fn compensate(&self, _: &Step<u8>) -> StepOutcome<u8> {
        StepOutcome::completed()
    }
}

fn trips(clock: &Clock, second: StepOutcomeKind) -> Saga<u8> {
    let store = Arc::new(InMemoryStore::builder().clock(clock).build());
    let codec = Codec::new(|n: &u8| Ok::<_, String>(vec![*n]), |bytes| Ok::<_, String>(bytes[0]));
    let plan = Plan::new().step("seat", Once(StepOutcomeKind::Unknown)).step("room", Once(second));
    Saga::builder("trip", store, codec, plan, SagaConfig::default()).clock(clock).build().unwrap()
}

#[test]
fn sagas_are_counted_by_their_ends_and_attempts_by_their_outcomes() {
    let (metrics, page, clock, time) = page();
    for (name, second) in [("a", StepOutcomeKind::Completed), ("b", StepOutcomeKind::Failed)] {
        let sagas = trips(&clock, second);
        metrics.watch(name, &sagas).unwrap();
        time.block_on(sagas.run("1", 7)).unwrap();
    }
    let text = metrics.scrape(|| page.render());
    for (series, n) in [
        ("steadfast_saga_events_total{name=\"a\",event=\"started\"}", 1.0),
        ("steadfast_saga_events_total{name=\"a\",event=\"completed\"}", 1.0),
        ("steadfast_saga_events_total{name=\"a\",event=\"compensated\"}", 0.0),
        ("steadfast_saga_attempts_total{name=\"a\",outcome=\"unknown\"}", 1.0),
        ("steadfast_saga_events_total{name=\"b\",event=\"compensating\"}", 1.0),
        ("steadfast_saga_events_total{name=\"b\",event=\"compensated\"}", 1.0),
        ("steadfast_saga_attempts_total{name=\"b\",outcome=\"failed\"}", 1.0),
        ("steadfast_saga_running{name=\"b\"}", 0.0),
    ] {
        assert_eq!(read(&text, series), Some(n), "{series}\n{text}");
    }
}

#[test]
fn gauges_are_read_at_each_record() {
    let (metrics, page, clock, _) = page();
    let limiter = ConcurrencyLimiter::builder(ConcurrencyLimitConfig::of(4)).clock(&clock).build().unwrap();
    metrics.watch("l", &limiter).unwrap();
    let held = [limiter.try_acquire().unwrap(), limiter.try_acquire().unwrap()];
    let in_use = || read(&page.render(), "steadfast_concurrency_limit_in_use{name=\"l\"}");
    assert_eq!(in_use(), Some(0.0), "as it was");
    metrics.record();
    assert_eq!(in_use(), Some(2.0));
    drop(held);
    limiter.reconfigure(limiter.config().capacity(9)).unwrap();
    metrics.record();
    assert_eq!(in_use(), Some(0.0));
    assert_eq!(read(&page.render(), "steadfast_concurrency_limit_capacity{name=\"l\"}"), Some(9.0));
}

#[test]
fn a_run_records_once_per_interval_and_once_at_the_end() {
    let (metrics, page, clock, time) = page();
    let level = Level::new();
    let config = ShedderConfig::default().limit("queue", 10.0, 20.0).sample_every(MS(1)).sustain(MS(0)).recovery(MS(1));
    let shedder = Shedder::builder(config).clock(&clock).gauge("queue", level.clone()).build().unwrap();
    metrics.watch("s", &shedder).unwrap();
    let (all, shed) = (page.clone(), "steadfast_shed_ratio{name=\"s\",priority=\"low\"}");
    let look = clock.clone();
    time.block_on(metrics.run(MS(1000), async {
        level.set(30.0);
        for _ in 0..20 {
            look.sleep(MS(10)).await;
            let _ = shedder.try_acquire(Priority::Low);
        }
        assert_eq!(read(&all.render(), shed), Some(0.0), "not yet");
        look.sleep(MS(850)).await;
        assert!(read(&all.render(), shed).unwrap() > 0.0);
        level.set(0.0);
        for _ in 0..20 {
            look.sleep(MS(10)).await;
            let _ = shedder.try_acquire(Priority::Low);
        }
    }));
    assert_eq!(read(&page.render(), shed), Some(shedder.shed_share(Priority::Low)));
}

/// They shared their series, in which each wrote over the gauges of the other.
#[test]
fn the_names_of_a_registry_s_stacks_are_taken_before_there_are_any() {
    let registry = || StandardRegistry::new(Default::default()).unwrap();
    let stack = || Standard::new(StandardConfig::default()).unwrap();
    let retry = Retry::new(RetryConfig::default()).unwrap();
    let refused = |metrics: &Metrics, name: &str, component: &dyn Fn(&Metrics, &str) -> Result<(), ConfigError>| {
        component(metrics, name).unwrap_err().to_string()
    };
    let (metrics, ..) = page();
    metrics.watch("services", &registry()).unwrap();
    for (name, rule) in [("services.search", "standard: services.search"), ("services.a.b", "standard: services.a.b")] {
        let error = refused(&metrics, name, &|metrics, name| metrics.watch(name, &stack()));
        assert_eq!(error, format!("invalid `name`: is taken by another {rule}"));
    }
    refused(&metrics, "services.search.retry", &|metrics, name| metrics.watch(name, &retry));
    refused(&metrics, "services.search", &|metrics, name| metrics.watch(name, &registry()));
    // No stack of the registry has these.
    metrics.watch("services", &stack()).unwrap();
    metrics.watch("services2.search", &stack()).unwrap();
    metrics.watch("services.retries", &retry).unwrap();

    let (metrics, ..) = page();
    metrics.watch("services.search", &stack()).unwrap();
    refused(&metrics, "services", &|metrics, name| metrics.watch(name, &registry()));
    metrics.watch("others", &registry()).unwrap();
}

#[test]
fn a_name_belongs_to_one_component_of_a_kind() {
    let (metrics, page, ..) = page();
    let timeout = Timeout::new(MS(1));
    metrics.watch("a", &timeout).unwrap();
    let refused = metrics.watch("a", &Timeout::new(MS(2))).unwrap_err();
    assert_eq!(refused.to_string(), "invalid `name`: is taken by another timeout: a");
    metrics.watch("a", &RateLimiter::new(Quota::per_second(1)).unwrap()).unwrap();
    // Two `Metrics` that watch the same policy are independent.
    let (other, second, ..) = self::page();
    other.watch("b", &timeout).unwrap();
    let (_, time) = Clock::manual();
    let _ = time.block_on(Timeout::new(MS(0)).call(async || Ok::<_, ()>(())));
    drop(timeout);
    assert!(page.render().contains("steadfast_timeout_timed_out_total{name=\"a\"} 0"));
    assert!(second.render().contains("steadfast_timeout_timed_out_total{name=\"b\"} 0"));
}

/// Regression: a stack could not be watched, and its parts only while they were on.
#[test]
fn a_part_that_a_document_switches_on_later_is_measured_from_its_first_call() {
    let (metrics, page, clock, time) = page();
    let stack = Standard::builder(StandardConfig::default()).name("shop").clock(&clock).build().unwrap();
    metrics.watch("shop", &stack).unwrap();
    let refused =
        "steadfast_throttling_rejected_total{name=\"shop.rate_limit\",policy=\"rate_limit\",reason=\"rate_limited\"}";
    let on = "steadfast_standard_part_on{name=\"shop\",part=\"rate_limit\"}";
    let text = metrics.scrape(|| page.render());
    assert_eq!((read(&text, refused), read(&text, on)), (Some(0.0), Some(0.0)));

    let document = "rate_limit = { permits = 1, per = '1h' }\nretry = false";
    stack.reconfigure(toml::from_str(document).unwrap()).unwrap();
    for _ in 0..3 {
        let _ = time.block_on(stack.clone().into_pipeline().call(async || Ok::<_, ()>(())));
    }
    let text = metrics.scrape(|| page.render());
    assert_eq!((read(&text, refused), read(&text, on)), (Some(2.0), Some(1.0)));
    for (part, is_on) in [("circuit_breaker", 1.0), ("retry", 0.0), ("retry_budget", 1.0), ("hedge", 0.0)] {
        let series = format!("steadfast_standard_part_on{{name=\"shop\",part=\"{part}\"}}");
        assert_eq!(read(&text, &series), Some(is_on), "{part}");
    }
    let state = "steadfast_circuit_breaker_state{name=\"shop.circuit_breaker\",state=\"closed\"}";
    assert_eq!(read(&text, state), Some(1.0));

    // The names of the parts are taken.
    let retry = Retry::new(RetryConfig::default()).unwrap();
    let taken = metrics.watch("shop.retry", &retry).unwrap_err();
    assert_eq!(taken.to_string(), "invalid `name`: is taken by another retry: shop.retry");
    metrics.watch("shop.rate_limit", &retry).unwrap();
}

#[test]
fn each_stack_of_a_registry_is_measured_also_one_that_is_created_later() {
    let (metrics, page, clock, time) = page();
    let document = "base = { attempt_timeout = '1s' }\nservices.search = { attempt_timeout = '2s' }";
    let registry = StandardRegistry::builder(toml::from_str(document).unwrap()).clock(&clock).build().unwrap();
    let before = registry.get("search");
    metrics.watch("services", &registry).unwrap();
    let later = registry.get("payments");
    for stack in [&before, &later, &later] {
        let hang = || std::future::pending::<Result<(), ()>>();
        assert!(time.block_on(stack.clone().into_pipeline().call(hang)).is_err());
    }
    let text = metrics.scrape(|| page.render());
    for (service, n) in [("search", 1.0), ("payments", 2.0)] {
        let series = format!("steadfast_timeout_timed_out_total{{name=\"services.{service}.attempt_timeout\"}}");
        assert_eq!(read(&text, &series), Some(n), "{text}");
        let on = format!("steadfast_standard_part_on{{name=\"services.{service}\",part=\"timeout\"}}");
        assert_eq!(read(&text, &on), Some(1.0));
    }
}

#[test]
fn a_custom_component_is_watched() {
    struct Door(Arc<AtomicBool>);
    impl Measured for Door {
        const KIND: &'static str = "door";
        fn measure(&self, scope: &Scope) -> Sample {
            let (open, gauge) = (self.0.clone(), scope.gauge("doors_open", &[("side", "north")]));
            Box::new(move || gauge.set(if open.load(SeqCst) { 1.0 } else { 0.0 }))
        }
    }
    let (metrics, page, ..) = page();
    let door = Door(Arc::new(AtomicBool::new(true)));
    metrics.watch("front", &door).unwrap();
    assert!(page.render().contains("doors_open{name=\"front\",side=\"north\"} 1"));
}

proptest! {
    /// The sum of the counts is the number of calls.
    #[test]
    fn counts_of_calls_equal_those_of_a_model(ends in proptest::collection::vec(0usize..4, 0..60)) {
        let (metrics, page, _, time) = page();
        let pipeline = Pipeline::new().then(metrics.calls("c")).classify(judged);
        let mut model = [0.0; 4];
        for end in &ends {
            model[*end] += 1.0;
            let answer = [Ok("yes"), Ok("odd"), Err("no")].get(*end).copied();
            match answer {
                Some(answer) => drop(time.block_on(pipeline.call(|| std::future::ready(answer)))),
                None => {
                    let mut call = Box::pin(pipeline.call(std::future::pending::<Result<&str, &str>>));
                    let mut task = std::task::Context::from_waker(std::task::Waker::noop());
                    prop_assert!(call.as_mut().poll(&mut task).is_pending());
                }
            }
        }
        let text = page.render();
        for (outcome, n) in ["success", "ignored", "failure", "cancelled"].into_iter().zip(model) {
            prop_assert_eq!(read(&text, &format!("steadfast_calls_total{{name=\"c\",outcome=\"{outcome}\"}}")), Some(n));
        }
        prop_assert_eq!(sum(&text, "steadfast_calls_total"), ends.len() as f64);
    }
}

/// A recorder that keeps the kind and the labels of each registered metric.
#[derive(Clone, Default)]
struct Register(Arc<Mutex<BTreeMap<String, Shape>>>);

type Shape = (String, BTreeSet<String>);

impl Register {
    fn add(&self, key: &Key, kind: &str) {
        let labels = key.labels().map(|label| label.key().to_owned()).collect();
        let one = (kind.to_owned(), labels);
        let before = self.0.lock().unwrap().insert(key.name().to_owned(), one.clone());
        assert!(before.is_none_or(|before| before == one), "{key}: two shapes of one name");
    }
}

impl Recorder for Register {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, key: &Key, _: &::metrics::Metadata<'_>) -> Counter {
        self.add(key, "counter");
        Counter::noop()
    }
    fn register_gauge(&self, key: &Key, _: &::metrics::Metadata<'_>) -> Gauge {
        self.add(key, "gauge");
        Gauge::noop()
    }
    fn register_histogram(&self, key: &Key, _: &::metrics::Metadata<'_>) -> Histogram {
        self.add(key, "histogram");
        Histogram::noop()
    }
}

#[derive(Default, Clone)]
struct Seats;

impl Aggregate for Seats {
    type Command = u32;
    type Event = u32;
    type Error = ();

    fn decide(&self, seats: &u32) -> Result<Vec<u32>, ()> {
        Ok(vec![*seats])
    }

    fn evolve(&mut self, _: &u32) {}
}

#[test]
fn the_table_of_the_page_matches_what_is_registered() {
    let page = include_str!("../../src/wings/metrics/table.md");
    let table: Vec<_> = series().collect();
    assert_eq!(table.len(), page.lines().count() - 2, "a row is not read");
    for series in &table {
        // The conventions of Prometheus.
        assert_eq!(series.kind == MetricKind::Counter, series.name.ends_with("_total"), "{}", series.name);
        assert_eq!(series.unit == Some(Unit::Seconds), series.name.ends_with("_seconds"), "{}", series.name);
    }

    // The watchable components together register exactly the table.
    let (register, (clock, time)) = (Register::default(), Clock::manual());
    let metrics = Metrics::builder().recorder(register.clone()).clock(&clock).build();
    let _ = metrics.calls("x");
    metrics.watch("x", &Timeout::new(MS(1))).unwrap();
    metrics.watch("x", &Standard::new(StandardConfig::default()).unwrap()).unwrap();
    metrics.watch("x", &Retry::new(RetryConfig::default()).unwrap()).unwrap();
    metrics.watch("x", &RetryBudget::new(RetryBudgetConfig::default()).unwrap()).unwrap();
    metrics.watch("x", &CircuitBreaker::new(CircuitBreakerConfig::default()).unwrap()).unwrap();
    metrics.watch("x", &KeyedBreakers::<u8>::new(CircuitBreakerConfig::default()).unwrap()).unwrap();
    metrics.watch("x", &Hedge::new(HedgeConfig::default()).unwrap()).unwrap();
    metrics.watch("x", &Fallback::new(FallbackConfig::default()).unwrap()).unwrap();
    metrics.watch("x", &Chaos::new(ChaosConfig::default()).unwrap()).unwrap();
    metrics.watch("x", &Coalesce::<u8, u8>::new()).unwrap();
    metrics.watch("x", &RateLimiter::new(Quota::per_second(1)).unwrap()).unwrap();
    metrics.watch("x", &KeyedRateLimiter::<u8>::new(Quota::per_second(1)).unwrap()).unwrap();
    metrics.watch("x", &ConcurrencyLimiter::new(ConcurrencyLimitConfig::of(1)).unwrap()).unwrap();
    metrics.watch("x", &AdaptiveLimiter::new(AdaptiveLimitConfig::default()).unwrap()).unwrap();
    metrics.watch("x", &ClientThrottle::new(ClientThrottleConfig::default()).unwrap()).unwrap();
    let config = ShedderConfig::default().limit("queue", 1.0, 2.0);
    metrics.watch("x", &Shedder::new(config).unwrap()).unwrap();
    let level = Level::new();
    let config = DegradationConfig::of(["thumbnails"]).limit("queue", 1.0, 2.0).step(MS(1)).hold(MS(1));
    let degradation = Degradation::builder(config).clock(&clock).gauge("queue", level.clone()).build().unwrap();
    metrics.watch("x", &degradation).unwrap();
    level.set(9.0);
    while degradation.feature("thumbnails").unwrap().is_enabled() {
        time.advance(MS(1000));
    }
    let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
    metrics.watch("x", &SharedRateLimiter::new(store.clone(), "x", Quota::per_second(1)).unwrap()).unwrap();
    metrics.watch("x", &CacheAside::<u8, u8>::new(CacheAsideConfig::default()).unwrap()).unwrap();
    let leases = Arc::new(StoreLease::new(store.clone()).unwrap());
    metrics
        .watch("x", &LeaderElection::builder(leases, "x", Default::default()).candidate("a").build().unwrap())
        .unwrap();
    metrics
        .watch("x", &QueueListener::builder(Arc::new(InMemoryQueue::new("x")), Default::default()).build().unwrap())
        .unwrap();
    let journal = Journal::new(Arc::new(InMemoryQueue::new("x")), JournalConfig::default()).unwrap();
    metrics.watch("x", &journal).unwrap();
    let breaker = CircuitBreaker::new(CircuitBreakerConfig::default()).unwrap();
    let config = SharedCircuitBreakerConfig::default();
    metrics.watch("x", &SharedCircuitBreaker::new(breaker, store.clone(), "x", config).unwrap()).unwrap();
    let map = ShardMap::hashed(16, &[ShardId(0), ShardId(1)]).unwrap();
    let directory = time
        .block_on(ShardDirectory::builder(store.clone(), "x", Default::default()).clock(&clock).create(&map))
        .unwrap();
    metrics.watch("x", &directory).unwrap();
    let sagas = trips(&clock, StepOutcomeKind::Completed);
    metrics.watch("x", &sagas).unwrap();
    let queue = Arc::new(InMemoryQueue::new("x"));
    let topic = time.block_on(StoreTopic::open(store.clone(), "x", 1)).unwrap();
    let leases = Arc::new(StoreLease::new(store.clone()).unwrap());
    let processor = StreamProcessor::new(topic, "x", leases, store.clone(), Default::default()).unwrap();
    metrics.watch("x", &processor).unwrap();
    metrics.watch("x", &Scheduler::new(sagas, queue, SchedulerConfig::default()).unwrap()).unwrap();
    let [input, output] = ["x", "y"].map(|name| Arc::new(InMemoryQueue::new(name)));
    let filter = Filter::builder("x", input, Default::default()).output(output).build().unwrap();
    metrics.watch("x", &filter).unwrap();
    let bookings = InMemoryQueue::new("bookings");
    let log = EventStore::builder(Arc::new(InMemoryStore::new()), "x", EventStoreConfig::default());
    let log = time.block_on(log.outbox("x", bookings.capabilities()).clock(&clock).build()).unwrap();
    metrics.watch("x", &log).unwrap();
    let codec =
        EventCodec::new(Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes)), |_: &u32| "Booked");
    let seats = AggregateStore::<Seats>::new(log.clone(), codec, AggregateConfig::default()).unwrap();
    metrics.watch("x", &seats).unwrap();
    metrics.watch("x", &Outbox::new(&log, "x", Arc::new(bookings), OutboxConfig::default()).unwrap()).unwrap();
    let rows = Codec::new(|_: &u8| Ok::<_, std::fmt::Error>(Vec::new()), |_| Ok::<_, std::fmt::Error>(0));
    metrics.watch("x", &View::builder(store.clone(), "x", Nothing, rows, Default::default()).build().unwrap()).unwrap();
    let rows = Codec::new(|_: &u8| Ok::<_, std::fmt::Error>(Vec::new()), |_| Ok::<_, std::fmt::Error>(0));
    let indexed =
        IndexTable::builder(store.clone(), rows, Default::default()).index("x", store.clone(), |_| Vec::new());
    metrics.watch("x", &indexed.build().unwrap()).unwrap();
    let check = Check::local("a", || async { Ok::<_, String>(()) });
    let store: Arc<dyn steadfast::store::Store> = Arc::new(InMemoryStore::new());
    let publisher = ConfigPublisher::builder(store.clone(), "shop", Default::default()).build().unwrap();
    steadfast::time::block_on(publisher.publish(Change::to("a", "1"))).unwrap();
    let load = |_: &Documents| Ok::<_, std::io::Error>(());
    let settings = ConfigStore::builder(store, "shop", load, Default::default()).layers(["a"]).build();
    metrics.watch("x", &steadfast::time::block_on(settings).unwrap()).unwrap();
    let retry = Retry::new(RetryConfig::default()).unwrap();
    let changes = Reconfigurer::builder(RetryConfig::default(), Default::default());
    let changes = changes.part("retry", |config: &mut RetryConfig| config, retry).build().unwrap();
    metrics.watch("x", &changes).unwrap();
    metrics.watch("x", &Rollout::new(&publisher, Default::default()).unwrap()).unwrap();
    metrics.watch("x", &Health::builder(Default::default()).check(check).build().unwrap()).unwrap();
    let child = Child::new("a", |_| std::future::pending::<Result<(), String>>());
    metrics.watch("x", &Supervisor::builder(Default::default()).child(child).build().unwrap()).unwrap();
    let meter = ShardMeter::new(1);
    meter.record(ShardId(1), b"key");
    metrics.watch("x", &meter).unwrap();

    let registered = register.0.lock().unwrap();
    // Those of the rooms behind features `jwt` and `object_store` are held to the table by targets `edge` and `operations`.
    let of_edge = |name: &str| {
        ["token_verifier", "trusted_host", "valet_keys", "uploads", "gate", "static_site"].iter().any(|kind| {
            name.strip_prefix("steadfast_")
                .and_then(|rest| rest.strip_prefix(kind))
                .is_some_and(|rest| rest.starts_with('_'))
        })
    };
    for series in table.iter().filter(|series| !of_edge(series.name)) {
        let (kind, labels) = registered.get(series.name).unwrap_or_else(|| panic!("{} is not registered", series.name));
        let mut expected: BTreeSet<String> =
            series.labels.split(['`', ',', ' ']).filter(|l| !l.is_empty()).map(str::to_owned).collect();
        expected.insert("name".to_owned());
        assert_eq!((kind, labels), (&format!("{:?}", series.kind).to_lowercase(), &expected), "{}", series.name);
    }
    let known: BTreeSet<&str> = table.iter().map(|series| series.name).collect();
    let unknown: Vec<_> = registered.keys().filter(|name| !known.contains(name.as_str())).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}
