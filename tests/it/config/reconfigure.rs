//! The one way to reconfigure, over all components that can be reconfigured.
use std::{collections::BTreeSet, fmt::Debug, sync::Arc, thread, time::Duration};

use serde::de::DeserializeOwned;
use steadfast::{
    ConfigError,
    cache_aside::{CacheAside, CacheAsideConfig},
    chaos::{Chaos, ChaosConfig},
    circuit_breaker::{
        CircuitBreaker, CircuitBreakerConfig, KeyedBreakers, KeyedBreakersConfig, SharedCircuitBreaker,
        SharedCircuitBreakerConfig,
    },
    codec::Codec,
    config::{Effect, Reconfigure},
    fallback::{Fallback, FallbackConfig},
    health::{Health, HealthConfig},
    hedge::{Hedge, HedgeConfig},
    journal::{Journal, JournalConfig},
    lease::StoreLease,
    queue::InMemoryQueue,
    queue_listener::{QueueListener, QueueListenerConfig},
    retry::{Retry, RetryBudget, RetryBudgetConfig, RetryConfig},
    saga::{Action, Compensation, Plan, Saga, SagaConfig, Step, StepOutcome},
    scheduler::{Scheduler, SchedulerConfig},
    standard::{Standard, StandardConfig, StandardRegistry, StandardRegistryConfig},
    store::InMemoryStore,
    stream::{StoreTopic, StreamProcessor, StreamProcessorConfig},
    throttling::{
        AdaptiveLimitConfig, AdaptiveLimiter, ClientThrottle, ClientThrottleConfig, ConcurrencyLimitConfig,
        ConcurrencyLimiter, Degradation, DegradationConfig, Gauge, KeyedRateLimitConfig, KeyedRateLimiter,
        RateLimitConfig, RateLimiter, SharedRateLimitConfig, SharedRateLimiter, Shedder, ShedderConfig,
    },
    time::block_on,
    timeout::Timeout,
};

#[path = "../../sources/mod.rs"]
mod sources;

fn read<C: DeserializeOwned>(text: &str) -> C {
    toml::from_str(text).unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// Applies each valid configuration, and after each one tries all invalid ones, each with the field that is refused.
fn holds<C: PartialEq + Clone + Debug>(
    component: &dyn Reconfigure<C>,
    valid: impl IntoIterator<Item = C>,
    invalid: &[(C, &str)],
) {
    let first = component.config();
    for next in valid.into_iter().chain([first.clone()]) {
        let before = component.config();
        assert_eq!(component.validate(&next), Ok(Effect::InPlace), "{next:?}");
        assert_eq!(component.config(), before, "a validation changes nothing");
        component.apply(next.clone()).unwrap();
        assert_eq!(component.config(), next, "the applied configuration is read back");
        assert_eq!(component.validate(&next), Ok(Effect::Unchanged));
        for (bad, field) in invalid {
            let (validated, applied) = (component.validate(bad).unwrap_err(), component.apply(bad.clone()));
            assert_eq!(validated.field(), *field, "{validated}");
            assert_eq!(applied, Err(validated));
            assert_eq!(component.config(), next, "an invalid configuration changes nothing");
        }
    }
    component.apply(first.clone()).unwrap();
    assert_eq!(component.config(), first, "an unchanged configuration may be applied");
}

/// The same, with documents.
fn documents<C: DeserializeOwned + PartialEq + Clone + Debug>(
    component: &dyn Reconfigure<C>,
    valid: &[&str],
    invalid: &[(&str, &str)],
) {
    let invalid: Vec<_> = invalid.iter().map(|(text, field)| (read(text), *field)).collect();
    holds(component, valid.iter().map(|text| read(text)), &invalid);
}

/// Tries configurations that are valid, and that the component cannot take while it is in use, each with the field.
fn restarts<C: DeserializeOwned + PartialEq + Clone + Debug>(component: &dyn Reconfigure<C>, next: &[(&str, &str)]) {
    let before = component.config();
    for (text, field) in next {
        let next: C = read(text);
        match component.validate(&next) {
            Ok(Effect::Restart(error)) => {
                assert_eq!(error.field(), *field, "{error}");
                assert!(error.rule().starts_with("must stay as it is while the "), "{error}");
                assert_eq!(component.apply(next), Err(error));
            }
            other => panic!("{text}: {other:?}"),
        }
        assert_eq!(component.config(), before);
    }
}

fn sagas() -> Saga<u8> {
    let codec = Codec::new(|n: &u8| Ok::<_, String>(vec![*n]), |bytes| Ok::<_, String>(bytes[0]));
    let plan = Plan::new().step("seat", Nothing);
    Saga::new("trip", Arc::new(InMemoryStore::new()), codec, plan, SagaConfig::default()).unwrap()
}

struct Nothing;

impl Action<u8> for Nothing {
    async fn execute(&self, _: &Step<u8>) -> StepOutcome<u8> {
        StepOutcome::completed()
    }
}

impl Compensation<u8> for Nothing {
    async fn compensate(&self, _: &Step<u8>) -> StepOutcome<u8> {
        StepOutcome::completed()
    }
}

/// A component's type, and its test.
type Row = (&'static str, fn());

const LIMITS: &str = "limits = { cpu = { soft = 0.7, hard = 0.9 } }\n";
const UNKNOWN: &str = "limits = { disk = { soft = 0.7, hard = 0.9 } }\n";

fn with(config: &str, rest: &str) -> String {
    format!("{config}{rest}")
}

const COMPONENTS: &[Row] = &[
    ("Chaos", || {
        let chaos = Chaos::new(ChaosConfig::default()).unwrap();
        let rule = "rules = [{ inject = \"outcome\", rate = 2.0 }]";
        documents::<ChaosConfig>(&chaos, &["enabled = true"], &[(rule, "rules.0.rate")]);
    }),
    ("Retry", || {
        let retry = Retry::new(RetryConfig::default()).unwrap();
        let invalid = [("max_attempts = 0", "max_attempts"), ("retry_on = []", "retry_on")];
        documents::<RetryConfig>(&retry, &["max_attempts = 7", "max_elapsed = \"1m\""], &invalid);
    }),
    ("RetryBudget", || {
        let budget = RetryBudget::new(RetryBudgetConfig::default()).unwrap();
        documents::<RetryBudgetConfig>(&budget, &["ratio = 0.5"], &[("ratio = -1.0", "ratio")]);
    }),
    ("Fallback", || {
        let fallback = Fallback::new(FallbackConfig::default()).unwrap();
        documents::<FallbackConfig>(&fallback, &["timeout = \"7s\""], &[("timeout = \"0s\"", "timeout")]);
    }),
    ("Hedge", || {
        let hedge = Hedge::new(read("delay = \"50ms\"")).unwrap();
        let valid = ["delay = \"1s\"", "delay = { percentile = 0.9 }"];
        documents::<HedgeConfig>(&hedge, &valid, &[("delay = \"1s\"\nmax_attempts = 0", "max_attempts")]);
    }),
    ("Timeout", || {
        let timeout = Timeout::new(Duration::from_secs(1));
        holds(&timeout, [Duration::ZERO, Duration::MAX, Duration::from_secs(2)], &[]);
    }),
    ("CircuitBreaker", || {
        let breaker = CircuitBreaker::new(CircuitBreakerConfig::default()).unwrap();
        let invalid = [("min_calls = 0", "min_calls"), ("trip = {}", "trip.failure_rate")];
        documents::<CircuitBreakerConfig>(&breaker, &["min_calls = 2", "window = { time = \"10s\" }"], &invalid);
    }),
    ("KeyedBreakers", || {
        let breakers = KeyedBreakers::<u32>::new(KeyedBreakersConfig::default()).unwrap();
        let invalid = [("max_open = 2.0", "max_open"), ("breaker = { min_calls = 0 }", "breaker.min_calls")];
        documents::<KeyedBreakersConfig>(&breakers, &["max_open = 0.5", "breaker = { min_calls = 2 }"], &invalid);
        // A breaker of a registry shares its configuration.
        let one = breakers.get(&1);
        assert_eq!(one.validate(&CircuitBreakerConfig::default()).unwrap_err().field(), "circuit_breaker");
    }),
    ("SharedCircuitBreaker", || {
        let breaker = CircuitBreaker::new(CircuitBreakerConfig::default()).unwrap();
        let store = Arc::new(InMemoryStore::new());
        let shared = SharedCircuitBreaker::new(breaker, store, "x", SharedCircuitBreakerConfig::default()).unwrap();
        let invalid = [("poll = \"1ms\"", "poll"), ("agreement = { quorum = 0 }", "agreement.quorum")];
        documents::<SharedCircuitBreakerConfig>(&shared, &["agreement = { quorum = 3 }"], &invalid);
    }),
    ("RateLimiter", || {
        let limiter = RateLimiter::new(RateLimitConfig::default()).unwrap();
        let valid =
            ["permits = 7\nper = \"3s\"", "mode = \"strict\"", "burst = 2\nmax_wait = \"1s\"\nmax_hint = \"0s\""];
        documents::<RateLimitConfig>(&limiter, &valid, &[("permits = 0", "permits"), ("burst = 0", "burst")]);
    }),
    ("KeyedRateLimiter", || {
        let limiter = KeyedRateLimiter::<u32>::new(KeyedRateLimitConfig::default()).unwrap();
        let valid = ["limit = { permits = 7 }\nmax_keys = 9", "tiers = [{ permits = 3, per = \"1s\" }]"];
        let invalid = [("max_keys = 0", "max_keys"), ("limit = { permits = 0 }", "limit.permits")];
        documents::<KeyedRateLimitConfig>(&limiter, &valid, &invalid);
    }),
    ("SharedRateLimiter", || {
        let store = Arc::new(InMemoryStore::new());
        let limiter = SharedRateLimiter::new(store, "x", SharedRateLimitConfig::default()).unwrap();
        let invalid = [("permits = 0", "permits"), ("call_timeout = \"0s\"", "call_timeout")];
        documents::<SharedRateLimitConfig>(&limiter, &["permits = 7", "when_down = \"fail_open\""], &invalid);
    }),
    ("ConcurrencyLimiter", || {
        let limiter = ConcurrencyLimiter::new(ConcurrencyLimitConfig::default()).unwrap();
        let valid = ["capacity = 7", "queue = 3\nmax_wait = \"1s\"\norder = \"newest_first\""];
        documents::<ConcurrencyLimitConfig>(&limiter, &valid, &[("capacity = 0", "capacity")]);
    }),
    ("AdaptiveLimiter", || {
        let limiter = AdaptiveLimiter::new(AdaptiveLimitConfig::default()).unwrap();
        let valid = ["by = \"aimd\"", "max = 100\nshares = { low = 0.5 }"];
        documents::<AdaptiveLimitConfig>(&limiter, &valid, &[("min = 0", "min"), ("smoothing = 0.0", "smoothing")]);
    }),
    ("ClientThrottle", || {
        let throttle = ClientThrottle::new(ClientThrottleConfig::default()).unwrap();
        documents::<ClientThrottleConfig>(&throttle, &["k = 3.0", "window = \"7s\""], &[("k = 0.5", "k")]);
    }),
    ("Shedder", || {
        let shedder = Shedder::builder(read(LIMITS)).gauge("cpu", Gauge::new()).build().unwrap();
        let (valid, invalid) = (with(LIMITS, "sustain = \"7s\""), with(LIMITS, "sample_every = \"0s\""));
        // Also a gauge that the shedder watches, and that has no limits.
        documents::<ShedderConfig>(&shedder, &[&valid], &[(&invalid, "sample_every"), (UNKNOWN, "limits.cpu")]);
    }),
    ("Degradation", || {
        let (one, two) = (with(LIMITS, "features = [\"a\"]"), with(LIMITS, "features = [\"b\", \"a\"]"));
        let degradation = Degradation::builder(read(&one)).gauge("cpu", Gauge::new()).build().unwrap();
        let (twice, unknown) = (with(LIMITS, "features = [\"a\", \"a\"]"), with(UNKNOWN, "features = [\"a\"]"));
        documents::<DegradationConfig>(&degradation, &[&two], &[(&twice, "features"), (&unknown, "limits.cpu")]);
    }),
    ("Journal", || {
        let journal = Journal::new(Arc::new(InMemoryQueue::new("x")), JournalConfig::default()).unwrap();
        let invalid = [("per_second = 0", "per_second"), ("visibility = \"0s\"", "visibility")];
        documents::<JournalConfig>(&journal, &["per_second = 7", "concurrency = 3"], &invalid);
    }),
    ("CacheAside", || {
        let cache = CacheAside::<u32, u32>::new(CacheAsideConfig::default()).unwrap();
        let valid = ["capacity = 5\nttl = \"1h\"", "stale = { max_age = \"2h\" }\nremote = { rest = \"3s\" }"];
        let invalid = [
            ("ttl = \"0s\"", "ttl"),
            ("remote = { rest = \"0s\" }", "remote.rest"),
            ("unattended = \"finish\"", "unattended"),
        ];
        documents::<CacheAsideConfig>(&cache, &valid, &invalid[..2]);
        restarts::<CacheAsideConfig>(&cache, &invalid[2..]);
    }),
    ("QueueListener", || {
        let listener = QueueListener::new(Arc::new(InMemoryQueue::new("x")), QueueListenerConfig::default()).unwrap();
        let valid = ["batch = 5\nmax_tasks = 3", "handler_timeout = \"7s\"\nretry = { cap = \"9s\" }"];
        let invalid = [("batch = 0", "batch"), ("min_tasks = 0", "min_tasks"), ("min_tasks = 17", "min_tasks")];
        documents::<QueueListenerConfig>(&listener, &valid, &invalid);
        let (longer, wider) = (("visibility = \"60s\"", "visibility"), ("margin = \"3s\"", "margin"));
        restarts::<QueueListenerConfig>(&listener, &[longer, wider]);
    }),
    ("Saga", || {
        let invalid = [("max_attempts = 0", "max_attempts"), ("step_timeout = \"1h\"", "takeover_after")];
        let valid = ["max_attempts = 3", "step_timeout = \"1h\"\ntakeover_after = \"2h\""];
        documents::<SagaConfig>(&sagas(), &valid, &invalid);
    }),
    ("Scheduler", || {
        let queue = Arc::new(InMemoryQueue::new("x"));
        let scheduler = Scheduler::new(sagas(), queue, SchedulerConfig::default()).unwrap();
        let invalid = [("concurrency = 0", "concurrency"), ("max_failures = 0", "max_failures")];
        documents::<SchedulerConfig>(&scheduler, &["concurrency = 3", "idle = { max = \"9s\" }"], &invalid);
        restarts::<SchedulerConfig>(&scheduler, &[("visibility = \"60s\"", "visibility")]);
    }),
    ("StreamProcessor", || {
        let store = Arc::new(InMemoryStore::new());
        let topic = block_on(StoreTopic::open(store.clone(), "orders", 2)).unwrap();
        let leases = Arc::new(StoreLease::new(store.clone()).unwrap());
        let processor = StreamProcessor::new(topic, "billing", leases, store, Default::default()).unwrap();
        let valid = ["max_in_flight = 3", "checkpoint_interval = \"9s\"\nretry = { cap = \"40s\" }"];
        let invalid = [("max_in_flight = 0", "max_in_flight"), ("checkpoint_every = 0", "checkpoint_every")];
        documents::<StreamProcessorConfig>(&processor, &valid, &invalid);
        let fixed = [
            ("max_ahead = 9", "max_ahead"),
            ("rebalance_interval = \"9s\"", "rebalance_interval"),
            ("election = { poll = \"9s\" }", "election"),
        ];
        restarts::<StreamProcessorConfig>(&processor, &fixed);
    }),
    ("Health", || {
        let health = Health::builder(HealthConfig::default()).build().unwrap();
        let valid = ["failure_threshold = 2\nmax_ejected = 0.3", "timeout = \"300ms\""];
        let invalid = [("failure_threshold = 0", "failure_threshold"), ("max_ejected = 1.5", "max_ejected")];
        documents::<HealthConfig>(&health, &valid, &invalid);
    }),
    ("Standard", || {
        let stack = Standard::new(StandardConfig::default()).unwrap();
        let valid = ["retry = { max_attempts = 7 }", "hedge = { delay = \"1s\" }\ncircuit_breaker = false"];
        let invalid = [("retry = { max_attempts = 0 }", "retry.max_attempts"), ("timeout = \"0s\"", "timeout")];
        documents::<StandardConfig>(&stack, &valid, &invalid);
    }),
    ("StandardRegistry", || {
        let registry = StandardRegistry::new(StandardRegistryConfig::default()).unwrap();
        let search = registry.get("search");
        let valid = ["base = { timeout = \"5s\" }", "services.search = { retry = { max_attempts = 7 } }"];
        let invalid = [
            ("base = { retry = { max_attempts = 0 } }", "base.retry.max_attempts"),
            ("services.search = { timeout = \"0s\" }", "services.search.timeout"),
        ];
        documents::<StandardRegistryConfig>(&registry, &valid, &invalid);
        assert_eq!(search.config(), StandardConfig::default());
    }),
];

#[test]
fn each_component_applies_valid_configurations_and_refuses_invalid_ones_by_field() {
    for (name, test) in COMPONENTS {
        println!("{name}"); // shown if the test fails
        test();
    }
}

/// Two tasks apply their configurations, and each reads whole ones back.
fn never_mixes<C: DeserializeOwned + PartialEq + Clone + Debug + Sync>(
    component: &(impl Reconfigure<C> + Sync),
    documents: [&str; 2],
) {
    let configs = documents.map(read::<C>);
    component.apply(configs[0].clone()).unwrap();
    thread::scope(|scope| {
        for own in &configs {
            let configs = &configs;
            scope.spawn(move || {
                for _ in 0..10_000 {
                    component.apply(own.clone()).unwrap();
                    let read = component.config();
                    assert!(configs.contains(&read), "{read:?}");
                }
            });
        }
    });
}

#[test]
fn concurrent_changes_do_not_mix_their_settings() {
    let limits = ["permits = 1\nmax_wait = \"1s\"", "permits = 2\nmax_wait = \"2s\""];
    never_mixes::<RateLimitConfig>(&RateLimiter::new(RateLimitConfig::default()).unwrap(), limits);
    let keyed = ["limit = { permits = 1 }\nmax_keys = 1", "limit = { permits = 2 }\nmax_keys = 2"];
    let limiter = KeyedRateLimiter::<u32>::new(KeyedRateLimitConfig::default()).unwrap();
    never_mixes::<KeyedRateLimitConfig>(&limiter, keyed);
    let limits = ["capacity = 1\nmax_wait = \"1s\"", "capacity = 2\nmax_wait = \"2s\""];
    never_mixes::<ConcurrencyLimitConfig>(&ConcurrencyLimiter::new(ConcurrencyLimitConfig::default()).unwrap(), limits);
    let limits = ["max = 1\nqueue = 1", "max = 2\nqueue = 2"].map(|text| with("min = 1\ninitial = 1\n", text));
    let limiter = AdaptiveLimiter::new(AdaptiveLimitConfig::default()).unwrap();
    never_mixes::<AdaptiveLimitConfig>(&limiter, [&limits[0], &limits[1]]);
    let budgets = ["ratio = 0.1\nmin_per_second = 1", "ratio = 0.2\nmin_per_second = 2"];
    never_mixes::<RetryBudgetConfig>(&RetryBudget::new(RetryBudgetConfig::default()).unwrap(), budgets);
    let windows = ["k = 2.0\nwindow = \"1s\"", "k = 3.0\nwindow = \"2s\""];
    never_mixes::<ClientThrottleConfig>(&ClientThrottle::new(ClientThrottleConfig::default()).unwrap(), windows);
    let caches = ["capacity = 1\nttl = \"10s\"", "capacity = 2\nttl = \"20s\""];
    never_mixes::<CacheAsideConfig>(&CacheAside::<u32, u32>::new(CacheAsideConfig::default()).unwrap(), caches);
    let faults = ["enabled = true", "rules = [{ inject = \"hang\", rate = 0.5 }]"];
    never_mixes::<ChaosConfig>(&Chaos::new(ChaosConfig::default()).unwrap(), faults);
}

#[test]
fn every_component_with_a_method_reconfigure_has_the_trait() {
    let mut found = BTreeSet::new();
    for (path, text) in sources::texts() {
        let Some((before, _)) = text.split_once("\n    pub fn reconfigure(") else { continue };
        let owner = before.lines().rfind(|line| line.starts_with("impl")).unwrap_or_else(|| panic!("{path}"));
        // `impl X {`, `impl<..> X<..> {`.
        let owner = owner.trim_start_matches("impl").trim_end_matches(" {");
        let owner = if owner.starts_with('<') { owner.split_once("> ").unwrap().1 } else { owner };
        found.insert(owner.trim().split('<').next().unwrap().to_owned());
    }
    // A component without the trait cannot be listed there. That of feature `jwt` is not compiled here: `tests/edge` has it.
    let listed = COMPONENTS.iter().map(|(name, _)| *name).chain(["TokenVerifier"]);
    let listed: BTreeSet<_> = listed.map(str::to_owned).collect();
    assert_eq!(found, listed);
}

#[test]
fn a_setting_that_cannot_change_in_use_needs_a_restart() {
    let limiter = KeyedRateLimiter::<u32>::new(KeyedRateLimitConfig::default()).unwrap();
    let next: KeyedRateLimitConfig = read("limit = { mode = \"strict\" }");
    let error = ConfigError::new("limit.mode", "must stay as it is while the limiter is in use");
    assert_eq!(limiter.validate(&next), Ok(Effect::Restart(error.clone())));
    assert_eq!(limiter.apply(next), Err(error));
    assert_eq!(limiter.config(), KeyedRateLimitConfig::default());
}

#[test]
fn a_part_is_reconfigured_behind_a_pointer_without_its_type() {
    let retry = Retry::new(RetryConfig::default()).unwrap();
    let part: Arc<dyn Reconfigure<RetryConfig>> = Arc::new(retry.clone());
    holds(&part, [RetryConfig::default().max_attempts(7)], &[(RetryConfig::default().max_attempts(0), "max_attempts")]);
    part.apply(RetryConfig::default().max_attempts(9)).unwrap();
    assert_eq!(retry.config().max_attempts, 9);
}
