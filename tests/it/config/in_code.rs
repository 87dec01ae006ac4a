//! Configuration from code: each setter at each invalid edge is refused by name; a written configuration is read
//! back unchanged.
use std::{fmt::Debug, time::Duration};

use proptest::prelude::*;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use steadfast::{
    ConfigError, FailureKind, KindSet,
    backoff::{Backoff, BackoffConfig, Curve, Jitter},
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, HalfOpenConfig, OnTimeout, OpenConfig, TripConfig},
    config::human,
    entropy::Entropy,
    retry::{Retry, RetryBudget, RetryBudgetConfig, RetryConfig},
    standard::{Standard, StandardConfig},
    throttling::{
        ConcurrencyLimitConfig, ConcurrencyLimiter, KeyedRateLimiter, QueueOrder, Quota, RateLimitConfig, RateLimiter,
    },
};

const ZERO: Duration = Duration::ZERO;
const NS: Duration = Duration::from_nanos(1);
const S: fn(u64) -> Duration = Duration::from_secs;

fn retry(config: RetryConfig) -> Option<ConfigError> {
    Retry::new(config).err()
}

fn backoff(config: BackoffConfig) -> Option<ConfigError> {
    Backoff::new(config, &Entropy::from_seed(1)).err()
}

fn budget(config: RetryBudgetConfig) -> Option<ConfigError> {
    RetryBudget::new(config).err()
}

fn breaker(change: impl Fn(&mut CircuitBreakerConfig)) -> Option<ConfigError> {
    let mut config = CircuitBreakerConfig::default();
    change(&mut config);
    CircuitBreaker::new(config).err()
}

fn trip(rules: TripConfig) -> Option<ConfigError> {
    CircuitBreaker::new(CircuitBreakerConfig::default().trip(rules)).err()
}

fn open(change: impl Fn(&mut OpenConfig)) -> Option<ConfigError> {
    breaker(|config| change(&mut config.open))
}

fn half_open(change: impl Fn(&mut HalfOpenConfig)) -> Option<ConfigError> {
    breaker(|config| change(&mut config.half_open))
}

fn rate(config: impl Into<RateLimitConfig>) -> Option<ConfigError> {
    RateLimiter::new(config).err()
}

fn standard(change: impl Fn(&mut StandardConfig)) -> Option<ConfigError> {
    let mut config = StandardConfig::default();
    change(&mut config);
    Standard::new(config).err()
}

/// Asserts that all refusals name the field.
fn refused(field: &str, refusals: impl IntoIterator<Item = Option<ConfigError>>) {
    for (i, refusal) in refusals.into_iter().enumerate() {
        assert_eq!(refusal.as_ref().map(ConfigError::field), Some(field), "number {i}: {refusal:?}");
        assert!(!refusal.unwrap().rule().is_empty());
    }
}

fn accepted(refusals: impl IntoIterator<Item = Option<ConfigError>>) {
    for (i, refusal) in refusals.into_iter().enumerate() {
        assert_eq!(refusal, None, "number {i}");
    }
}

#[test]
fn a_retry_s_setters_at_their_edges() {
    let (config, delays) = (RetryConfig::default(), BackoffConfig::default());
    refused("max_attempts", [retry(config.max_attempts(0))]);
    refused("max_elapsed", [retry(config.max_elapsed(ZERO))]);
    refused("retry_on", [retry(config.retry_on(KindSet::NONE))]);
    refused("backoff.base", [retry(config.backoff(delays.between(ZERO, S(1))))]);
    refused("backoff.factor", [retry(config.backoff(delays.factor(f64::NAN)))]);
    accepted([
        retry(config.max_attempts(1)),
        retry(config.max_attempts(u32::MAX)),
        retry(config.max_elapsed(NS)),
        retry(config.max_elapsed(Duration::MAX).max_hint(Duration::MAX)),
        retry(config.max_hint(ZERO).retry_on(KindSet::ALL).retry_nested(true).retry_rejections(true).idempotent(false)),
        retry(RetryConfig::interactive()),
        retry(RetryConfig::batch()),
    ]);
    refused("base", [(ZERO, S(1)), (S(2), S(1)), (NS, ZERO)].map(|(a, b)| backoff(delays.between(a, b))));
    refused(
        "factor",
        [0.0, 0.999, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY].map(|f| backoff(delays.factor(f))),
    );
    accepted([
        backoff(delays.between(NS, NS)),
        backoff(delays.between(NS, Duration::MAX)),
        backoff(delays.factor(1.0)),
        backoff(delays.factor(f64::MAX)),
    ]);
}

#[test]
fn a_budget_s_setters_at_their_edges() {
    let config = RetryBudgetConfig::default();
    refused("ratio", [-0.1, 1000.1, f64::NAN, f64::INFINITY].map(|r| budget(config.ratio(r))));
    refused("ratio", [budget(config.ratio(0.0).min_per_second(0))]);
    refused("window", [ZERO, S(3600) + NS, Duration::MAX].map(|w| budget(config.window(w))));
    refused("cost", [budget(config.cost(0).timeout_cost(1))]);
    refused("timeout_cost", [budget(config.cost(1).timeout_cost(0))]);
    accepted([
        budget(config.ratio(0.0)),
        budget(config.ratio(1000.0).min_per_second(0)),
        budget(config.min_per_second(u32::MAX).cost(u32::MAX).timeout_cost(u32::MAX)),
        budget(config.window(NS)),
        budget(config.window(S(3600))),
    ]);
}

#[test]
fn a_breaker_s_setters_at_their_edges() {
    let config = CircuitBreakerConfig::default();
    let made = |config| CircuitBreaker::new(config).err();
    let rules = TripConfig::default();
    refused("window.calls", [0, 1_000_001].map(|n| made(config.count_window(n, 1))));
    refused("min_calls", [made(config.count_window(10, 0)), made(config.count_window(10, 11))]);
    refused("min_calls", [made(config.time_window(S(1), 10, 0))]);
    refused("window.buckets", [0, 1001].map(|n| made(config.time_window(S(10), n, 1))));
    refused("window.time", [ZERO, Duration::from_micros(9_999), S(86_401)].map(|t| made(config.time_window(t, 10, 1))));
    refused("failures", [made(config.failures(KindSet::NONE))]);
    refused("count_cancelled_after", [made(config.count_cancelled_after(ZERO))]);
    let no_shares = [0.0, -0.5, 1.001, f64::NAN, f64::INFINITY];
    refused("trip.failure_rate", no_shares.map(|share| trip(rules.failure_rate(share))));
    refused("trip.failure_rate", [trip(rules)]); // no rule at all
    refused("trip.slow_call_rate", no_shares.map(|share| trip(rules.slow_calls(share, S(1)))));
    refused("trip.slow_call", [trip(rules.slow_calls(0.5, ZERO))]);
    refused("trip.consecutive_failures", [trip(rules.consecutive_failures(0))]);
    refused("trip.weight", [trip(rules.weighted_failures(0, S(1)))]);
    refused("trip.weight_period", [ZERO, Duration::from_micros(9_999)].map(|d| trip(rules.weighted_failures(1, d))));
    refused("open.initial_delay", [made(config.open_for(ZERO, S(1))), made(config.open_for(S(2), S(1)))]);
    refused("open.factor", [0.9, f64::NAN, f64::INFINITY].map(|f| open(|o| o.factor = f)));
    refused("open.jitter", [-0.1, 1.1, f64::NAN, f64::INFINITY].map(|j| open(|o| o.jitter = j)));
    refused("open.reset_after", [open(|o| o.reset_after = ZERO)]);
    refused("half_open.permitted_calls", [0, 1_000_001, u32::MAX].map(|n| made(config.half_open_calls(n, 1.0))));
    refused("half_open.success_rate", no_shares.map(|share| made(config.half_open_calls(1, share))));
    refused("half_open.max_duration", [half_open(|h| h.max_duration = ZERO)]);
    accepted([
        made(config.count_window(1, 1)),
        made(config.count_window(1_000_000, 1_000_000)),
        made(config.time_window(Duration::from_millis(1), 1, u32::MAX)),
        made(config.time_window(S(86_400), 1000, 1)),
        trip(rules.consecutive_failures(u32::MAX)),
        trip(rules.weighted_failures(u32::MAX, Duration::MAX)),
        trip(rules.slow_calls(1.0, Duration::MAX)),
        made(config.open_for(NS, Duration::MAX)),
        made(config.half_open_calls(1_000_000, 1e-300)),
        open(|o| (o.jitter, o.factor, o.max_hint) = (1.0, f64::MAX, ZERO)),
        half_open(|h| (h.max_duration, h.on_timeout) = (Duration::MAX, OnTimeout::Close)),
    ]);
}

#[test]
fn a_limit_s_setters_at_their_edges() {
    let year = S(366 * 24 * 3600);
    refused("permits", [rate(Quota::per_second(0)), rate(Quota::new(2, NS)), rate(Quota::new(u32::MAX, S(4)))]);
    refused("per", [ZERO, year + NS, Duration::MAX].map(|per| rate(Quota::new(1, per))));
    refused("burst", [rate(Quota::per_second(1).burst(0)), rate(Quota::new(1, year).burst(101))]);
    refused("burst", [rate(RateLimitConfig::from(Quota::per_second(5).burst(5)).strict())]);
    refused("permits", [rate(RateLimitConfig::from(Quota::per_second(1_000_001)).strict())]);
    accepted([
        rate(Quota::new(1, NS)),
        rate(Quota::new(1, year)),
        rate(Quota::new(1, year).burst(100)),
        rate(Quota::new(u32::MAX, S(5)).burst(u32::MAX)),
        rate(RateLimitConfig::from(Quota::per_minute(1_000_000)).strict().max_wait(Duration::MAX)),
    ]);
    let limiter = RateLimiter::new(Quota::per_second(5)).unwrap();
    refused("permits", [limiter.reconfigure(limiter.config().with_quota(Quota::per_second(0))).err()]);
    assert_eq!(limiter.config().permits, 5);
    refused("limit.per", [KeyedRateLimiter::<u8>::new(Quota::new(1, ZERO)).err()]);

    let made = |config| ConcurrencyLimiter::new(config).err();
    refused("capacity", [made(ConcurrencyLimitConfig::of(0))]);
    refused("capacity", [ConcurrencyLimiter::new(ConcurrencyLimitConfig::of(0)).err()]);
    refused("max_wait", [made(ConcurrencyLimitConfig::of(1).queue(1).max_wait(ZERO))]);
    accepted([
        made(ConcurrencyLimitConfig::of(u32::MAX).queue(u32::MAX).max_wait(Duration::MAX)),
        made(ConcurrencyLimitConfig::of(1).queue(0).max_wait(ZERO).order(QueueOrder::NewestFirst)),
    ]);
}

/// The stack's errors name the part. Every part is checked, also one that no other part uses.
#[test]
fn the_standard_stack_names_the_part_and_its_field() {
    refused("timeout", [standard(|c| c.timeout = Some(ZERO))]);
    refused("attempt_timeout", [standard(|c| c.attempt_timeout = Some(ZERO))]);
    refused("rate_limit.permits", [standard(|c| c.rate_limit = Some(Quota::per_second(0).into()))]);
    refused("concurrency_limit.capacity", [standard(|c| c.concurrency_limit = Some(ConcurrencyLimitConfig::of(0)))]);
    refused(
        "retry.backoff.factor",
        [standard(|c| {
            c.retry = Some(RetryConfig::default().backoff(BackoffConfig::default().factor(0.5)));
        })],
    );
    refused(
        "retry_budget.window",
        [standard(|c| {
            c.retry = None;
            c.retry_budget = Some(RetryBudgetConfig::default().window(ZERO));
        })],
    );
    refused(
        "circuit_breaker.trip.failure_rate",
        [standard(|c| {
            c.circuit_breaker = Some(CircuitBreakerConfig::default().trip(TripConfig::default()));
        })],
    );
    accepted([standard(|c| *c = StandardConfig::none()), standard(|c| c.timeout = Some(Duration::MAX))]);
}

fn round_trips<C: Serialize + DeserializeOwned + PartialEq + Debug>(config: C) {
    let text = toml::to_string(&config).unwrap();
    assert_eq!(toml::from_str::<C>(&text).unwrap(), config, "{text}");
    assert_eq!(toml::from_str::<C>(&toml::to_string_pretty(&config).unwrap()).unwrap(), config);
    let text = serde_json::to_string(&config).unwrap();
    assert_eq!(serde_json::from_str::<C>(&text).unwrap(), config, "{text}");
    let value = serde_json::to_value(&config).unwrap();
    assert_eq!(serde_json::from_value::<C>(value).unwrap(), config);
}

#[test]
fn a_configuration_that_is_written_is_read_back_unchanged() {
    let delays = BackoffConfig::default().curve(Curve::Fibonacci).jitter(Jitter::Decorrelated).immediate_first(true);
    let retry = RetryConfig::batch()
        .backoff(delays)
        .max_elapsed(Duration::new(5, 1))
        .retry_on(KindSet::of(&[FailureKind::Other]));
    let rules = TripConfig::default().slow_calls(1.0 / 3.0, S(1)).weighted_failures(7, S(9)).consecutive_failures(3);
    let breaker = CircuitBreakerConfig::default().trip(rules).time_window(S(10), 7, 3).count_cancelled_after(NS);
    let rate = RateLimitConfig::from(Quota::per_minute(7).burst(3)).max_wait(S(2));
    let places = ConcurrencyLimitConfig::of(5).queue(9).max_wait(S(3)).order(QueueOrder::NewestFirst);
    round_trips(StandardConfig::none());
    let all = StandardConfig::none().timeout(S(1)).rate_limit(rate).concurrency_limit(places).retry(retry);
    let all = all.retry_budget(RetryBudgetConfig::default().ratio(0.1 + 0.2));
    round_trips(all.circuit_breaker(breaker).attempt_timeout(NS));
    round_trips(StandardConfig::default());
    round_trips((retry, RetryConfig::default(), RetryConfig::interactive()).0);
    round_trips(RetryConfig::default());
    round_trips(RetryConfig::interactive());
    round_trips(delays);
    round_trips(RetryBudgetConfig::default());
    round_trips(breaker);
    round_trips(CircuitBreakerConfig::default());
    round_trips(rate.strict());
    round_trips(RateLimitConfig::default());
    round_trips(Quota::per_second(3));
    round_trips(Quota::new(3, Duration::MAX).burst(4));
    round_trips(places);
}

/// An absent part is no error: optional fields may be omitted, or null.
#[test]
fn optional_fields_may_be_null() {
    let config: RetryConfig = serde_json::from_str(r#"{ "max_elapsed": null }"#).unwrap();
    assert_eq!(config, RetryConfig::default());
    let config: StandardConfig = serde_json::from_str(r#"{ "retry": null, "timeout": null }"#).unwrap();
    assert_eq!((config.retry, config.timeout), (None, None));
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Times {
    #[serde(with = "human")]
    always: Duration,
    #[serde(with = "human::option", default, skip_serializing_if = "Option::is_none")]
    sometimes: Option<Duration>,
}

proptest! {
    /// Holds to the nanosecond for every duration.
    #[test]
    fn durations_round_trip_exactly(
        secs in prop_oneof![any::<u64>(), 0u64..100_000, Just(u64::MAX)],
        nanos in prop_oneof![0u32..1_000_000_000, Just(0), Just(999_999_999)],
        sometimes: bool,
    ) {
        let always = Duration::new(secs, nanos);
        round_trips(Times { always, sometimes: sometimes.then_some(always) });
    }
}
