//! Configuration: each field at each wrong edge is refused by its name, from a document and from code.
use std::{collections::BTreeSet, time::Duration};

use proptest::prelude::*;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use steadfast::{
    ConfigError, KindSet,
    backoff::BackoffConfig,
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, TripConfig},
    config::human,
    retry::{Retry, RetryBudget, RetryBudgetConfig, RetryConfig},
    standard::{Standard, StandardConfig},
    throttling::{ConcurrencyLimitConfig, ConcurrencyLimiter, Quota, RateLimitConfig, RateLimiter},
};

/// What a whole document of the standard stack is answered: nothing, or the refusal in words.
fn refusal(document: &str) -> String {
    match toml::from_str::<StandardConfig>(document) {
        Err(e) => e.to_string(),
        Ok(config) => Standard::new(config).map_or_else(|e| e.to_string(), |_| String::new()),
    }
}

/// Documents of one line that break a rule, by section: the field's path, its value, and words of the rule.
const WRONG: &[(&str, &str, &str, &str)] = &[
    ("", "timeout", "\"0s\"", "must be longer than zero"),
    ("", "timeout", "5", "expected a duration with its unit"),
    ("", "timeout", "\"5 parsecs\"", "is not a duration"),
    ("", "timeout", "true", "expected a duration"),
    ("", "attempt_timeout", "\"0ms\"", "must be longer than zero"),
    ("", "retry", "3", "expected a table of settings"),
    ("rate_limit", "permits", "0", "must be at least 1"),
    ("rate_limit", "permits", "-1", "invalid value"),
    ("rate_limit", "per", "\"0s\"", "must be longer than zero"),
    ("rate_limit", "per", "\"400days\"", "must be at most 366days"),
    ("rate_limit", "per", "\"10ns\"", "must be at most one for each nanosecond"),
    ("rate_limit", "burst", "0", "must be at least 1"),
    ("rate_limit", "mode", "\"strictly\"", "unknown variant"),
    ("rate_limit", "mode", "\"strict\"\nburst = 3", "must be absent in strict mode"),
    ("rate_limit", "mode", "\"strict\"\npermits = 1000001", "must be at most 1000000"),
    ("rate_limit", "max_wait", "1", "expected a duration with its unit"),
    ("concurrency_limit", "capacity", "0", "must be at least 1"),
    ("concurrency_limit", "queue", "-1", "invalid value"),
    ("concurrency_limit", "max_wait", "\"0s\"", "must be longer than zero"),
    ("concurrency_limit", "order", "\"lifo\"", "unknown variant"),
    ("retry", "max_attempts", "0", "must be at least 1"),
    ("retry", "max_attempts", "4294967296", "invalid value"),
    ("retry", "max_elapsed", "\"0s\"", "must be longer than zero"),
    ("retry", "retry_on", "[]", "must name at least one"),
    ("retry", "retry_on", "[\"weather\"]", "unknown variant"),
    ("retry", "max_hint", "\"soon\"", "is not a duration"),
    ("retry", "retry_rejections", "1", "invalid type"),
    ("retry", "retry_nested", "\"no\"", "invalid type"),
    ("retry", "idempotent", "\"yes\"", "invalid type"),
    ("retry", "backoff", "1", "invalid type"),
    ("retry.backoff", "curve", "\"steep\"", "unknown variant"),
    ("retry.backoff", "base", "\"0s\"", "must be longer than zero"),
    ("retry.backoff", "base", "\"30s\"", "must not be longer than `cap`"),
    ("retry.backoff", "factor", "0.99", "must be a finite number, at least 1"),
    ("retry.backoff", "factor", "nan", "must be a finite number, at least 1"),
    ("retry.backoff", "factor", "inf", "must be a finite number, at least 1"),
    ("retry.backoff", "cap", "\"99ms\"", "must not be longer than `cap`"),
    ("retry.backoff", "jitter", "0.5", "wanted string or table"),
    ("retry.backoff", "immediate_first", "1", "invalid type"),
    ("retry_budget", "ratio", "-0.1", "must lie between 0 and 1000"),
    ("retry_budget", "ratio", "nan", "must lie between 0 and 1000"),
    ("retry_budget", "ratio", "0.0\nmin_per_second = 0", "never allows a retry"),
    ("retry_budget", "window", "\"0s\"", "must be longer than zero"),
    ("retry_budget", "window", "\"61m\"", "must be at most 1h"),
    ("retry_budget", "min_per_second", "-1", "invalid value"),
    ("retry_budget", "cost", "0", "must be at least 1"),
    ("retry_budget", "timeout_cost", "0", "must be at least 1"),
    ("circuit_breaker", "window", "{ calls = 0 }", "must lie between 1 and 1000000"),
    ("circuit_breaker", "window", "{ calls = 1000001 }", "must lie between 1 and 1000000"),
    ("circuit_breaker", "window", "{ time = \"10s\", buckets = 0 }", "must lie between 1 and 1000"),
    ("circuit_breaker", "window", "{ time = \"10s\", buckets = 1001 }", "must lie between 1 and 1000"),
    ("circuit_breaker", "window", "{ time = \"9ms\" }", "must be at least 1ms for each bucket"),
    ("circuit_breaker", "window", "{ time = \"25h\" }", "must be at most 1day"),
    ("circuit_breaker", "window", "{ call = 5 }", "`{ calls = 100 }` or `{ time = \"10s\", buckets = 10 }`"),
    ("circuit_breaker", "min_calls", "0", "must be at least 1"),
    ("circuit_breaker", "min_calls", "101", "must be at most the window's calls"),
    ("circuit_breaker", "failures", "[]", "must name at least one"),
    ("circuit_breaker", "count_drop_after", "\"0s\"", "must be longer than zero"),
    ("circuit_breaker", "trip", "{}", "at least one rule must be given"),
    ("circuit_breaker", "open", "1", "invalid type"),
    ("circuit_breaker", "half_open", "1", "invalid type"),
    ("circuit_breaker.trip", "failure_rate", "0.0", "must be above 0 and at most 1"),
    ("circuit_breaker.trip", "failure_rate", "1.01", "must be above 0 and at most 1"),
    ("circuit_breaker.trip", "failure_rate", "nan", "must be above 0 and at most 1"),
    ("circuit_breaker.trip", "slow_call_rate", "0.5", "go together"),
    ("circuit_breaker.trip", "slow_call_rate", "0.0\nslow_call = \"1s\"", "must be above 0 and at most 1"),
    ("circuit_breaker.trip", "slow_call", "\"1s\"\nfailure_rate = 0.5", "go together"),
    ("circuit_breaker.trip", "slow_call", "\"0s\"\nslow_call_rate = 0.5", "must be longer than zero"),
    ("circuit_breaker.trip", "consecutive_failures", "0", "must be at least 1"),
    ("circuit_breaker.trip", "weight", "5", "go together"),
    ("circuit_breaker.trip", "weight", "0\nweight_period = \"1s\"", "must be at least 1"),
    ("circuit_breaker.trip", "weight_period", "\"1s\"\nfailure_rate = 0.5", "go together"),
    ("circuit_breaker.trip", "weight_period", "\"9ms\"\nweight = 5", "must be at least 10ms"),
    ("circuit_breaker.open", "base", "\"0s\"", "must be longer than zero"),
    ("circuit_breaker.open", "base", "\"61s\"", "must not be longer than `cap`"),
    ("circuit_breaker.open", "factor", "0.5", "must be a finite number, at least 1"),
    ("circuit_breaker.open", "cap", "\"4s\"", "must not be longer than `cap`"),
    ("circuit_breaker.open", "jitter", "-0.1", "must lie between 0 and 1"),
    ("circuit_breaker.open", "jitter", "1.1", "must lie between 0 and 1"),
    ("circuit_breaker.open", "stable_for", "\"0s\"", "must be longer than zero"),
    ("circuit_breaker.open", "max_hint", "1", "expected a duration with its unit"),
    ("circuit_breaker.half_open", "probes", "0", "must lie between 1 and 1000000"),
    ("circuit_breaker.half_open", "probes", "1000001", "must lie between 1 and 1000000"),
    ("circuit_breaker.half_open", "success_rate", "0.0", "must be above 0 and at most 1"),
    ("circuit_breaker.half_open", "success_rate", "1.1", "must be above 0 and at most 1"),
    ("circuit_breaker.half_open", "max", "\"0s\"", "must be longer than zero"),
    ("circuit_breaker.half_open", "undecided", "\"wait\"", "unknown variant"),
];

#[test]
fn each_field_at_each_wrong_edge_is_refused_by_name_from_a_document() {
    for (section, field, value, rule) in WRONG {
        let head = if section.is_empty() { String::new() } else { format!("[{section}]\n") };
        let told = refusal(&format!("{head}{field} = {value}\n"));
        assert!(told.contains(field), "{section} {field} = {value}: {told:?} does not name the field");
        assert!(told.contains(rule), "{section} {field} = {value}: {told:?} lacks {rule:?}");
    }
}

#[test]
fn an_unknown_field_is_refused_in_every_section() {
    let sections = [
        "",
        "rate_limit",
        "concurrency_limit",
        "retry",
        "retry.backoff",
        "retry_budget",
        "circuit_breaker",
        "circuit_breaker.trip",
        "circuit_breaker.open",
        "circuit_breaker.half_open",
    ];
    for section in sections {
        let head = if section.is_empty() { String::new() } else { format!("[{section}]\n") };
        let told = refusal(&format!("{head}max_atempts = 3\n"));
        assert!(told.contains("unknown field `max_atempts`"), "{section}: {told}");
    }
}

/// The paths of all fields that a document can have.
fn paths(of: &Value, at: &str, into: &mut BTreeSet<String>) {
    let Value::Object(fields) = of else { return };
    for (name, value) in fields {
        let path = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
        into.insert(path.clone());
        // A window is one value, whatever its form.
        if name != "window" {
            paths(value, &path, into);
        }
    }
}

#[test]
fn no_field_is_forgotten_above() {
    let mut config = StandardConfig::default();
    config.rate_limit = Some(RateLimitConfig::from(Quota::per_second(1).burst(1)));
    config.concurrency_limit = Some(ConcurrencyLimitConfig::default());
    config.retry = Some(RetryConfig::default().max_elapsed(Duration::from_secs(1)));
    let rules = TripConfig::default().failure_rate(0.5).slow_call_rate(0.5, Duration::from_secs(1));
    let rules = rules.consecutive_failures(1).weighted_failures(1, Duration::from_secs(1));
    config.circuit_breaker = Some(CircuitBreakerConfig::default().trip(rules).count_drop_after(Duration::from_secs(1)));
    let mut fields = BTreeSet::new();
    paths(&serde_json::to_value(config).unwrap(), "", &mut fields);
    let sections = ["rate_limit", "concurrency_limit", "retry_budget", "circuit_breaker"];
    for field in &fields {
        let tested =
            WRONG.iter().any(
                |(section, name, ..)| {
                    if section.is_empty() { field == name } else { *field == format!("{section}.{name}") }
                },
            );
        assert!(tested || sections.contains(&field.as_str()), "no wrong value of `{field}` is tested");
    }
    assert!(fields.len() > 40, "{fields:?}");
}

#[test]
fn the_same_rules_hold_from_code_and_name_the_same_fields() {
    fn field<T>(made: Result<T, ConfigError>) -> String {
        made.err().expect("refused").field().to_owned()
    }
    let second = Duration::from_secs(1);
    let retry = RetryConfig::default();
    assert_eq!(field(Retry::new(retry.max_attempts(0))), "max_attempts");
    assert_eq!(field(Retry::new(retry.max_elapsed(Duration::ZERO))), "max_elapsed");
    assert_eq!(field(Retry::new(retry.retry_on(KindSet::NONE))), "retry_on");
    let backoff = BackoffConfig::default();
    assert_eq!(field(Retry::new(retry.backoff(backoff.between(Duration::ZERO, second)))), "backoff.base");
    assert_eq!(field(Retry::new(retry.backoff(backoff.between(second * 2, second)))), "backoff.base");
    for factor in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert_eq!(field(Retry::new(retry.backoff(backoff.factor(factor)))), "backoff.factor");
    }
    let budget = RetryBudgetConfig::default();
    assert_eq!(field(RetryBudget::new(budget.ratio(f64::INFINITY))), "ratio");
    assert_eq!(field(RetryBudget::new(budget.window(Duration::MAX))), "window");
    assert_eq!(field(RetryBudget::new(budget.costs(0, 1))), "cost");
    assert_eq!(field(RetryBudget::new(budget.costs(1, 0))), "timeout_cost");
    let breaker = CircuitBreakerConfig::default();
    assert_eq!(field(CircuitBreaker::new(breaker.count_window(10, 11))), "min_calls");
    assert_eq!(field(CircuitBreaker::new(breaker.count_window(10, 0))), "min_calls");
    assert_eq!(field(CircuitBreaker::new(breaker.time_window(second, 0, 1))), "window.buckets");
    assert_eq!(field(CircuitBreaker::new(breaker.trip(TripConfig::default()))), "trip.failure_rate");
    assert_eq!(
        field(CircuitBreaker::new(breaker.trip(TripConfig::default().failure_rate(f64::NAN)))),
        "trip.failure_rate"
    );
    assert_eq!(field(CircuitBreaker::new(breaker.failures(KindSet::NONE))), "failures");
    assert_eq!(field(CircuitBreaker::new(breaker.open_for(second * 2, second))), "open.base");
    assert_eq!(field(CircuitBreaker::new(breaker.probes(0, 0.5))), "half_open.probes");
    assert_eq!(field(CircuitBreaker::new(breaker.probes(1, 0.0))), "half_open.success_rate");
    assert_eq!(field(CircuitBreaker::new(breaker.count_drop_after(Duration::ZERO))), "count_drop_after");
    assert_eq!(field(RateLimiter::new(Quota::per_second(0))), "permits");
    assert_eq!(field(RateLimiter::new(Quota::new(1, Duration::ZERO))), "per");
    assert_eq!(field(RateLimiter::new(Quota::per_second(1).burst(0))), "burst");
    assert_eq!(field(RateLimiter::new(Quota::new(1, second * 86_400 * 300).burst(u32::MAX))), "burst");
    assert_eq!(field(RateLimiter::new(RateLimitConfig::from(Quota::per_second(5).burst(1)).strict())), "burst");
    assert_eq!(field(ConcurrencyLimiter::new(ConcurrencyLimitConfig::of(0))), "capacity");
    assert_eq!(field(ConcurrencyLimiter::new(ConcurrencyLimitConfig::of(1).queue(1, Duration::ZERO))), "max_wait");
    let mut standard = StandardConfig::default();
    standard.retry = Some(retry.max_attempts(0));
    assert_eq!(field(Standard::new(standard)), "retry.max_attempts");
}

#[test]
fn the_right_edges_are_accepted() {
    for document in [
        "",
        "timeout = \"1ns\"\nattempt_timeout = false\nretry = false\nretry_budget = false\ncircuit_breaker = false",
        "rate_limit = true\nconcurrency_limit = true\nretry = true\nretry_budget = true\ncircuit_breaker = true",
        "[rate_limit]\npermits = 4294967295\nper = \"5s\"",
        "[concurrency_limit]\ncapacity = 4294967295\nqueue = 0\nmax_wait = \"0s\"",
        "[retry]\nmax_attempts = 1\nmax_hint = \"0s\"\n[retry.backoff]\nbase = \"1s\"\ncap = \"1s\"\nfactor = 1.0",
        "[retry_budget]\nratio = 0.0\nwindow = \"1h\"\nmin_per_second = 1",
        "[circuit_breaker]\nwindow = { time = \"1ms\", buckets = 1 }\nmin_calls = 1",
        "[circuit_breaker]\nwindow = { calls = 1 }\nmin_calls = 1\n[circuit_breaker.trip]\nfailure_rate = 1.0",
    ] {
        assert_eq!(refusal(document), "", "{document}");
    }
}

fn round_trips<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(config: T) {
    let toml = toml::to_string(&config).unwrap();
    assert_eq!(toml::from_str::<T>(&toml).unwrap(), config, "{toml}");
    let json = serde_json::to_string(&config).unwrap();
    assert_eq!(serde_json::from_str::<T>(&json).unwrap(), config, "{json}");
}

#[test]
fn what_is_written_is_read_back_the_same() {
    let mut most = StandardConfig::default();
    most.rate_limit = Some(RateLimitConfig::from(Quota::per_minute(7).burst(3)).max_wait(Duration::from_micros(1500)));
    most.concurrency_limit = Some(ConcurrencyLimitConfig::of(9));
    most.circuit_breaker = Some(CircuitBreakerConfig::default().time_window(Duration::from_secs(90), 6, 3));
    for config in [StandardConfig::default(), StandardConfig::none(), most] {
        round_trips(config);
    }
    round_trips(RetryConfig::interactive());
    round_trips(RetryConfig::batch());
    round_trips(RetryBudgetConfig::default());
    round_trips(CircuitBreakerConfig::default());
    round_trips(Quota::per_second(3));
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Holder {
    #[serde(with = "human")]
    d: Duration,
    #[serde(default, with = "human::option")]
    maybe: Option<Duration>,
}

proptest! {
    #[test]
    fn durations_round_trip_to_the_nanosecond(nanos: u64, seconds in 0u64..1_000_000_000_000, some: bool) {
        let d = Duration::from_secs(seconds) + Duration::from_nanos(nanos);
        let holder = Holder { d, maybe: some.then_some(d) };
        let json = serde_json::to_string(&holder).unwrap();
        prop_assert_eq!(serde_json::from_str::<Holder>(&json).unwrap(), holder);
    }
}
