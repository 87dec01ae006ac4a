//! Invalid configurations: each field at each invalid edge is refused with the field's name, from code and from TOML.
mod defaults;
mod extremes;
mod extremes_subjects;
mod in_code;
mod reconfigure;

use std::{collections::BTreeSet, time::Duration};

use serde::{Serialize, de::DeserializeOwned};
use steadfast::{
    ConfigError,
    backoff::{Backoff, BackoffConfig},
    circuit_breaker::{
        CircuitBreaker, CircuitBreakerConfig, KeyedBreakers, KeyedBreakersConfig, SlowStartConfig, TripConfig,
    },
    entropy::Entropy,
    fallback::FallbackConfig,
    hedge::HedgeConfig,
    retry::{Retry, RetryBudget, RetryBudgetConfig, RetryConfig},
    standard::{Standard, StandardConfig},
    throttling::{
        AdaptiveLimitConfig, AdaptiveLimiter, ClientThrottle, ClientThrottleConfig, ConcurrencyLimitConfig,
        ConcurrencyLimiter, Degradation, DegradationConfig, KeyedRateLimitConfig, KeyedRateLimiter, PriorityShares,
        Quota, RateLimitConfig, RateLimiter, Shedder, ShedderConfig,
    },
};

/// Reads a document and builds its component; returns the refusal, if any.
fn refusal<C: DeserializeOwned>(text: &str, build: impl Fn(C) -> Option<ConfigError>) -> Option<String> {
    match toml::from_str::<C>(text) {
        Ok(config) => build(config).map(|e| e.to_string()),
        Err(e) => Some(e.to_string()),
    }
}

/// One kind of configuration: its parser and constructor, all its fields, and valid and invalid values of each.
struct Kind {
    name: &'static str,
    refusal: fn(&str) -> Option<String>,
    /// A document with every optional part, whose keys are all fields.
    full: fn() -> toml::Table,
    /// Path of a field; invalid values; values at its valid edges. A value may be followed by further lines that it needs.
    fields: &'static [(&'static str, &'static [&'static str], &'static [&'static str])],
}

fn full<C: Serialize>(config: C) -> toml::Table {
    toml::from_str(&toml::to_string(&config).unwrap()).unwrap()
}

const NOT_A_TIME: &[&str] = &["1", "-1", "nan", "true", "\"\"", "\"5\"", "\"-1s\"", "\"5 parsecs\"", "[]"];

macro_rules! kind {
    ($config:ty, $new:expr, $full:expr, $fields:expr) => {
        Kind {
            name: stringify!($config),
            refusal: |text| refusal::<$config>(text, |config| $new(config).err()),
            full: || full($full),
            fields: $fields,
        }
    };
}

fn kinds() -> Vec<Kind> {
    vec![
        kind!(
            RetryConfig,
            Retry::new,
            RetryConfig::default().max_elapsed(Duration::from_secs(1)),
            &[
                ("max_attempts", &["0", "-1", "1.5", "\"3\"", "4294967296", "nan"], &["1", "4294967295"]),
                ("backoff", &["1", "true", "\"1s\""], &["{}"]),
                ("max_elapsed", &["\"0s\""], &["\"1ns\""]),
                (
                    "retry_on",
                    &["[]", "[\"gremlins\"]", "\"timeout\"", "1"],
                    &["[\"other\"]", "[\"timeout\", \"timeout\"]"]
                ),
                ("max_hint", &[], &["\"0s\"", "\"1000years\""]),
                ("retry_rejections", &["1", "\"yes\""], &["true"]),
                ("retry_nested", &["1", "\"yes\""], &["true"]),
                ("idempotent", &["1", "\"yes\""], &["false"]),
            ]
        ),
        kind!(
            BackoffConfig,
            (|config| Backoff::new(config, &Entropy::from_seed(1))),
            BackoffConfig::default(),
            &[
                (
                    "curve",
                    &["\"steep\"", "1", "true"],
                    &["\"constant\"", "\"linear\"", "\"exponential\"", "\"fibonacci\""]
                ),
                ("base", &["\"0s\"", "\"21s\""], &["\"1ns\"", "\"20s\""]),
                ("factor", &["0", "0.999", "-2", "nan", "inf", "-inf", "\"2\""], &["1", "1.0", "1e300"]),
                ("cap", &["\"0s\"", "\"99ms\""], &["\"100ms\"", "\"1000years\""]),
                ("jitter", &["\"some\"", "0.5", "true"], &["\"none\"", "\"full\"", "\"equal\"", "\"decorrelated\""]),
                ("immediate_first", &["1", "\"yes\""], &["true"]),
            ]
        ),
        kind!(
            RetryBudgetConfig,
            RetryBudget::new,
            RetryBudgetConfig::default(),
            &[
                ("ratio", &["-0.1", "1000.1", "nan", "inf", "\"1\"", "0\nmin_per_second = 0"], &["0", "1000", "0.2"]),
                ("window", &["\"0s\"", "\"1h 1ns\""], &["\"1ns\"", "\"1h\""]),
                ("min_per_second", &["-1", "0.5", "4294967296", "nan"], &["0", "4294967295"]),
                ("cost", &["0", "-1", "1.5", "4294967296"], &["1", "4294967295"]),
                ("timeout_cost", &["0", "-1", "1.5", "4294967296"], &["1", "4294967295"]),
            ]
        ),
        kind!(
            CircuitBreakerConfig,
            CircuitBreaker::new,
            everything_of_a_breaker(),
            &[
                (
                    "window",
                    &["{}", "{ calls = 10, time = \"1s\" }", "10", "\"10s\"", "{ calls = -1 }", "{ call = 1 }"],
                    &[]
                ),
                ("window.calls", &["0", "1000001"], &["1\n[top]\nmin_calls = 1", "1000000"]),
                ("min_calls", &["0", "101", "-1", "1.5", "nan"], &["1", "100"]),
                ("trip", &["1", "true", "{}"], &[]),
                ("failures", &["[]", "[\"gremlins\"]", "1"], &["[\"other\"]"]),
                ("open", &["1", "true"], &["{}"]),
                ("half_open", &["1", "true"], &["{}"]),
                ("count_cancelled_after", &["\"0s\""], &["\"1ns\""]),
                ("slow_start", &["1", "true", "\"1s\""], &["{}"]),
                ("slow_start.window", &["\"0s\"", "\"25h\""], &["\"1ns\"", "\"1day\""]),
                ("slow_start.min_share", &["0", "-0.1", "1.1", "nan", "inf", "\"1\""], &["0.001", "1"]),
                ("slow_start.steps", &["-1", "1000001", "1.5"], &["0", "1000000"]),
                ("trip.failure_rate", &["0", "-0.5", "1.001", "nan", "inf", "\"1\""], &["0.001", "1", "1.0"]),
                (
                    "trip.slow_call_rate",
                    &["0\nslow_call = \"1s\"", "1.1\nslow_call = \"1s\"", "nan\nslow_call = \"1s\"", "\"1\"",],
                    &["1\nslow_call = \"1s\""]
                ),
                ("trip.slow_call", &["\"0s\"\nslow_call_rate = 0.5"], &["\"1ns\"\nslow_call_rate = 0.5"]),
                ("trip.consecutive_failures", &["0", "-1", "1.5", "4294967296"], &["1", "4294967295"]),
                ("trip.weight", &["0\nweight_period = \"1s\"", "-1", "1.5"], &["1\nweight_period = \"1s\""]),
                ("trip.weight_period", &["\"9ms\"\nweight = 5"], &["\"10ms\"\nweight = 5"]),
                ("open.initial_delay", &["\"0s\"", "\"61s\""], &["\"1ns\"", "\"60s\""]),
                ("open.factor", &["0.99", "-1", "nan", "inf", "\"2\""], &["1", "1e300"]),
                ("open.max_delay", &["\"4s\""], &["\"5s\"", "\"1000years\""]),
                ("open.jitter", &["-0.1", "1.1", "nan", "inf", "\"1\""], &["0", "1"]),
                ("open.reset_after", &["\"0s\""], &["\"1ns\""]),
                ("open.max_hint", &[], &["\"0s\"", "\"1000years\""]),
                ("half_open.permitted_calls", &["0", "-1", "1000001", "1.5"], &["1", "1000000"]),
                ("half_open.success_rate", &["0", "-1", "1.1", "nan", "inf", "\"1\""], &["0.001", "1"]),
                ("half_open.max_duration", &["\"0s\""], &["\"1ns\""]),
                ("half_open.on_timeout", &["\"perhaps\"", "true", "1"], &["\"open\"", "\"close\""]),
            ]
        ),
        kind!(
            KeyedBreakersConfig,
            KeyedBreakers::<u32>::new,
            KeyedBreakersConfig::default(),
            &[
                ("breaker", &["1", "true"], &["{}"]),
                ("max_open", &["0", "-1", "1.1", "nan", "inf", "\"1\""], &["0.001", "1"]),
                ("idle", &["\"0s\""], &["\"1ns\""]),
                ("max_keys", &["0", "-1", "1.5", "4294967296"], &["1", "4294967295"]),
            ]
        ),
        kind!(
            RateLimitConfig,
            RateLimiter::new,
            everything_of_a_rate_limit(),
            &[
                (
                    "permits",
                    &["0", "-1", "1.5", "nan", "4294967296", "\"9\"", "2\nper = \"1ns\"", "1000001\nmode = \"strict\""],
                    &["1", "1000000000", "1000000\nmode = \"strict\""]
                ),
                ("per", &["\"0s\"", "\"367days\""], &["\"100ns\"", "\"366days\""]),
                (
                    "burst",
                    &["0", "-1", "1.5", "5\nmode = \"strict\"", "100000\nper = \"366days\"\npermits = 1"],
                    &["1", "4294967295", "100\nper = \"366days\"\npermits = 1"]
                ),
                ("mode", &["\"loose\"", "true", "1"], &["\"smooth\"", "\"strict\""]),
                ("max_wait", &[], &["\"0s\"", "\"1000years\""]),
                ("max_hint", &[], &["\"0s\"", "\"1000years\""]),
            ]
        ),
        kind!(
            Quota,
            KeyedRateLimiter::<u8>::new,
            Quota::per_second(5).burst(5),
            &[
                ("permits", &["0\nper = \"1s\"", "-1", "1.5", "2\nper = \"1ns\""], &["1\nper = \"1s\""]),
                ("per", &["\"0s\"\npermits = 1", "\"367days\"\npermits = 1"], &["\"1ns\"\npermits = 1"]),
                ("burst", &["0\npermits = 1\nper = \"1s\"", "-1"], &["1\npermits = 1\nper = \"1s\""]),
            ]
        ),
        kind!(
            KeyedRateLimitConfig,
            KeyedRateLimiter::<u8>::new,
            KeyedRateLimitConfig::default(),
            &[
                ("limit", &["1", "true", "{ permits = 0 }"], &["{}", "{ mode = \"strict\" }"]),
                (
                    "tiers",
                    &[
                        "1",
                        "[1]",
                        "[{ permits = 0, per = \"1s\" }]",
                        "[{ permits = 1, per = \"1s\", burst = 1 }]\nlimit = { mode = \"strict\" }"
                    ],
                    &["[]", "[{ permits = 1, per = \"1s\", burst = 1 }]"]
                ),
                ("max_keys", &["0", "-1", "1.5", "4294967296"], &["1", "4294967295"]),
            ]
        ),
        kind!(
            ConcurrencyLimitConfig,
            ConcurrencyLimiter::new,
            ConcurrencyLimitConfig::default(),
            &[
                ("capacity", &["0", "-1", "1.5", "nan", "4294967296", "\"9\""], &["1", "4294967295"]),
                ("queue", &["-1", "1.5", "nan", "4294967296"], &["0", "4294967295"]),
                ("max_wait", &["\"0s\""], &["\"1ns\"", "\"0s\"\nqueue = 0", "\"1000years\""]),
                ("order", &["\"lifo\"", "true", "1"], &["\"fifo\"", "\"newest_first\""]),
            ]
        ),
        kind!(
            AdaptiveLimitConfig,
            AdaptiveLimiter::new,
            AdaptiveLimitConfig::default().shares(PriorityShares::default()),
            &[
                ("by", &["\"pid\"", "1"], &["\"gradient\"", "\"aimd\""]),
                ("initial", &["0", "201", "-1", "1.5"], &["1", "200"]),
                ("min", &["0", "21", "-1"], &["1", "20"]),
                ("max", &["19", "-1", "4294967296"], &["20", "4294967295"]),
                ("window", &["\"0s\""], &["\"1ns\""]),
                ("min_calls", &["0", "-1"], &["1"]),
                ("tolerance", &["0.999", "nan", "inf", "\"2\""], &["1", "100.0"]),
                ("remeasure", &["\"0s\""], &["\"1ns\"", "\"1000years\""]),
                ("headroom", &["-1", "1.5"], &["0"]),
                ("smoothing", &["0", "1.001", "nan"], &["0.001", "1"]),
                ("decrease", &["0", "1", "nan"], &["0.001", "0.999"]),
                ("queue", &["-1", "1.5", "1\nmax_wait = \"0s\""], &["0", "0\nmax_wait = \"0s\""]),
                ("max_wait", &["\"0s\""], &["\"1ns\"", "\"0s\"\nqueue = 0"]),
                ("max_hint", &[], &["\"0s\"", "\"1000years\""]),
                (
                    "shares",
                    &["1", "{ low = 0 }", "{ high = 1.1 }", "{ low = 0.9, normal = 0.5 }", "{ urgent = 1 }"],
                    &["{}", "{ low = 0.8 }", "{ low = 1, normal = 1 }"]
                ),
            ]
        ),
        kind!(
            ClientThrottleConfig,
            ClientThrottle::new,
            ClientThrottleConfig::default(),
            &[
                ("k", &["0.999", "1000.1", "nan", "inf", "\"2\""], &["1", "1000"]),
                ("window", &["\"0s\"", "\"3601s\""], &["\"1ns\"", "\"3600s\""]),
                ("aggression", &["0", "-1", "nan", "inf"], &["0.001", "1000"]),
                ("min_rps", &["-0.1", "nan", "inf"], &["0", "1e9"]),
                ("max_rejection", &["0", "1.001", "nan"], &["0.001", "1"]),
                ("refusals", &["[]", "[\"gremlins\"]", "1"], &["[\"other\"]", "[\"throttled\", \"server\"]"]),
            ]
        ),
        kind!(
            ShedderConfig,
            Shedder::new,
            ShedderConfig::default().limit("cpu", 0.7, 0.9),
            &[
                (
                    "limits",
                    &[
                        "1",
                        "{ cpu = 1 }",
                        "{ cpu = { soft = 1 } }",
                        "{ cpu = { soft = 1, hard = 1 } }",
                        "{ cpu = { soft = nan, hard = 1 } }",
                        "{ cpu = { soft = 0, hard = inf } }",
                    ],
                    &["{}", "{ cpu = { soft = -1, hard = -0.5 } }"]
                ),
                ("sample_every", &["\"0s\""], &["\"1ns\""]),
                ("sustain", &[], &["\"0s\"", "\"1000years\""]),
                ("recovery", &["\"0s\""], &["\"1ns\""]),
                ("min_priority", &["\"low\"", "\"urgent\"", "1"], &["\"normal\"", "\"critical\""]),
            ]
        ),
        kind!(
            DegradationConfig,
            Degradation::new,
            DegradationConfig::of(["a"]).limit("cpu", 0.7, 0.9),
            &[
                ("features", &["[]", "[\"a\", \"a\"]", "\"a\"", "1"], &["[\"a\"]", "[\"a\", \"b\"]"]),
                (
                    "limits",
                    &["1", "{ cpu = { soft = 1, hard = 0.5 } }\nfeatures = [\"a\"]"],
                    &["{}\nfeatures = [\"a\"]"]
                ),
                ("sample_every", &["\"0s\"\nfeatures = [\"a\"]"], &["\"1ns\"\nfeatures = [\"a\"]"]),
                ("step", &["1"], &["\"0s\"\nfeatures = [\"a\"]"]),
                ("hold", &["\"0s\"\nfeatures = [\"a\"]"], &["\"1ns\"\nfeatures = [\"a\"]"]),
                (
                    "margin",
                    &["-0.1\nfeatures = [\"a\"]", "nan\nfeatures = [\"a\"]", "inf\nfeatures = [\"a\"]"],
                    &["0\nfeatures = [\"a\"]"]
                ),
            ]
        ),
        kind!(
            StandardConfig,
            Standard::new,
            everything(),
            &[
                ("timeout", &["\"0s\"", "true", "1"], &["\"1ns\"", "false"]),
                ("rate_limit", &["1", "\"1s\"", "[]", "{ permit = 1 }"], &["true", "false", "{}"]),
                ("concurrency_limit", &["1", "\"1s\"", "[]", "{ size = 1 }"], &["true", "false", "{}"]),
                ("retry", &["1", "\"1s\"", "[]", "{ attempts = 1 }"], &["true", "false", "{}"]),
                ("retry_budget", &["1", "\"1s\"", "[]", "{ share = 1 }"], &["true", "false", "{}"]),
                ("circuit_breaker", &["1", "\"1s\"", "[]", "{ trips = 1 }"], &["true", "false", "{}"]),
                ("attempt_timeout", &["\"0s\"", "true", "1"], &["\"1ns\"", "false"]),
                ("shed", &["1", "\"1s\"", "[]", "{ limit = 1 }"], &["true", "false", "{}"]),
                (
                    "adaptive_limit",
                    &["1", "\"1s\"", "[]", "{ maximum = 1 }", "true\nconcurrency_limit = true"],
                    &["true", "false", "{}", "true\nconcurrency_limit = false"]
                ),
                ("hedge", &["1", "\"1s\"", "[]", "{ attempts = 1 }"], &["true", "false", "{}"]),
                ("fallback", &["1", "\"1s\"", "[]", "{ kinds = 1 }"], &["true", "false", "{}"]),
                ("client_throttle", &["1", "\"1s\"", "[]", "{ ratio = 1 }"], &["true", "false", "{}"]),
            ]
        ),
    ]
}

fn everything_of_a_breaker() -> CircuitBreakerConfig {
    let rules = TripConfig::default()
        .failure_rate(0.5)
        .slow_calls(0.5, Duration::from_secs(1))
        .consecutive_failures(5)
        .weighted_failures(5, Duration::from_secs(1));
    let ramp = SlowStartConfig::linear(Duration::from_secs(1), 0.5);
    CircuitBreakerConfig::default().trip(rules).slow_start(ramp).count_cancelled_after(Duration::from_secs(1))
}

fn everything_of_a_rate_limit() -> RateLimitConfig {
    RateLimitConfig::from(Quota::per_second(100).burst(10)).max_wait(Duration::from_secs(1))
}

fn everything() -> StandardConfig {
    StandardConfig::default()
        .rate_limit(everything_of_a_rate_limit())
        .concurrency_limit(ConcurrencyLimitConfig::default())
        .circuit_breaker(everything_of_a_breaker())
        .shed(ShedderConfig::default())
        .hedge(HedgeConfig::default())
        .fallback(FallbackConfig::default())
        .adaptive_limit(AdaptiveLimitConfig::default())
        .client_throttle(ClientThrottleConfig::default())
}

/// Returns a document with `value` (and the lines that it needs) at `path`.
fn document(path: &str, value: &str) -> String {
    match path.split_once('.') {
        None => format!("{path} = {value}\n"),
        Some((table, field)) => match value.split_once("\n[top]\n") {
            Some((value, top)) => format!("{top}\n[{table}]\n{field} = {value}\n"),
            None => format!("[{table}]\n{field} = {value}\n"),
        },
    }
}

#[test]
fn each_field_at_each_invalid_edge_is_refused_by_name() {
    let mut wrong = Vec::new();
    for kind in kinds() {
        for (path, bad, good) in kind.fields {
            let is_time = good.iter().any(|value| value.ends_with("s\"") && value.as_bytes()[1].is_ascii_digit());
            let no_times = if is_time { NOT_A_TIME } else { &[] };
            let bad = bad.iter().chain(no_times).map(|value| document(path, value));
            for text in bad.chain([document(&format!("{path}_"), "1")]) {
                // If the value conflicts with another field, either may be named.
                let field = path.rsplit('.').next().unwrap();
                match (kind.refusal)(&text) {
                    None => wrong.push(format!("{} accepts {text}", kind.name)),
                    Some(refusal) if refusal.contains(field) => {}
                    Some(refusal) => wrong.push(format!("{} does not name {field}: {refusal}", kind.name)),
                }
            }
            for text in good.iter().map(|value| document(path, value)) {
                wrong.extend((kind.refusal)(&text).map(|refusal| format!("{} refuses {text}: {refusal}", kind.name)));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Every key of a full document is in the table above.
#[test]
fn every_field_is_in_the_table() {
    for kind in kinds() {
        let (full, mut keys) = ((kind.full)(), BTreeSet::new());
        for (key, value) in &full {
            keys.insert(key.clone());
            // Parts that are kinds of their own are checked there.
            if let toml::Value::Table(inner) = value
                && kind.name == "CircuitBreakerConfig"
            {
                keys.extend(inner.keys().map(|inner| format!("{key}.{inner}")));
            }
        }
        let table: BTreeSet<String> = kind.fields.iter().map(|(path, ..)| (*path).to_owned()).collect();
        assert_eq!(keys, table, "{}", kind.name);
    }
}

/// A time window is the other variant of the same field.
#[test]
fn a_time_window_at_its_edges() {
    let refusal = kinds().into_iter().find(|kind| kind.name == "CircuitBreakerConfig").unwrap().refusal;
    for (window, field) in [
        ("{ time = \"0s\" }", Some("window.time")),
        ("{ time = \"9ms\" }", Some("window.time")),
        ("{ time = \"10ms\" }", None),
        ("{ time = \"1day\" }", None),
        ("{ time = \"1day 1ns\" }", Some("window.time")),
        ("{ time = \"1s\", buckets = 0 }", Some("window.buckets")),
        ("{ time = \"1s\", buckets = 1000 }", None),
        ("{ time = \"10s\", buckets = 1001 }", Some("window.buckets")),
        ("{ time = \"10s\", buckets = -1 }", Some("window")),
        ("{ time = 10 }", Some("window")),
    ] {
        let answer = refusal(&format!("window = {window}"));
        assert_eq!(answer.is_none(), field.is_none(), "{window}: {answer:?}");
        assert!(answer.is_none_or(|text| text.contains(field.unwrap())), "{window}");
    }
    for (rules, field) in [
        ("{}", "trip.failure_rate"),
        ("{ slow_call_rate = 0.5 }", "trip.slow_call"),
        ("{ slow_call = \"1s\", failure_rate = 0.5 }", "trip.slow_call_rate"),
        ("{ weight = 5 }", "trip.weight_period"),
        ("{ weight_period = \"1s\" }", "trip.weight"),
    ] {
        assert!(refusal(&format!("trip = {rules}")).unwrap().contains(&format!("`{field}`")), "{rules}");
    }
}

#[test]
fn an_unknown_field_is_refused_in_every_section() {
    let sections = [
        "",
        "[rate_limit]",
        "[concurrency_limit]",
        "[retry]",
        "[retry.backoff]",
        "[retry_budget]",
        "[circuit_breaker]",
        "[circuit_breaker.trip]",
        "[circuit_breaker.open]",
        "[circuit_breaker.half_open]",
        "[circuit_breaker.slow_start]",
    ];
    for section in sections {
        let told = toml::from_str::<StandardConfig>(&format!("{section}\nmax_atempts = 3\n")).unwrap_err().to_string();
        assert!(told.contains("unknown field `max_atempts`"), "{section}: {told}");
    }
}
