//! A default stands in code. The documentation of its field and the table of its page repeat it: both are compared
//! with the code as far as they can be read.
use std::{fs, path::Path, time::Duration};

use serde_json::Value;
use steadfast::{
    backend::sqlite::SqliteConfig,
    backoff::BackoffConfig,
    cache_aside::{CacheAsideConfig, RemoteConfig},
    chaos::ChaosConfig,
    circuit_breaker::{
        CircuitBreakerConfig, HalfOpenConfig, KeyedBreakersConfig, OpenConfig, SharedCircuitBreakerConfig,
        SlowStartConfig,
    },
    claim_check::ClaimCheckConfig,
    fallback::FallbackConfig,
    hedge::{HedgeConfig, PercentileConfig},
    journal::JournalConfig,
    leader_election::{LeaderElectionConfig, by_message::MessageElectionConfig},
    queue_listener::{IdleConfig, QueueListenerConfig},
    retry::{RetryBudgetConfig, RetryConfig},
    saga::SagaConfig,
    scheduler::SchedulerConfig,
    sharding::{FanOutConfig, ShardDirectoryConfig},
    standard::StandardConfig,
    stream::{ProducerConfig, StreamProcessorConfig},
    throttling::{
        AdaptiveLimitConfig, ClientThrottleConfig, ConcurrencyLimitConfig, DegradationConfig, KeyedRateLimitConfig,
        PriorityShares, RateLimitConfig, SharedRateLimitConfig, ShedderConfig,
    },
};

/// A configuration: its type, the file of its type, the file of its page, and its defaults.
struct Config {
    name: &'static str,
    file: String,
    page: String,
    defaults: Value,
}

fn all() -> Vec<Config> {
    macro_rules! config {
        ($config:ty, $folder:literal, $file:literal) => {
            config!($config, $folder, $file, <$config>::default())
        };
        ($config:ty, $folder:literal, $file:literal, $defaults:expr) => {
            Config {
                name: stringify!($config),
                file: format!("src/{}/{}", $folder, $file),
                page: format!("src/{}/mod.rs", $folder),
                defaults: serde_json::to_value($defaults).unwrap(),
            }
        };
    }
    vec![
        config!(BackoffConfig, "ground", "backoff.rs"),
        config!(RetryBudgetConfig, "ground", "budget.rs"),
        config!(RetryConfig, "patterns/retry", "config.rs"),
        config!(CircuitBreakerConfig, "patterns/circuit_breaker", "config.rs"),
        config!(KeyedBreakersConfig, "patterns/circuit_breaker", "keyed_config.rs"),
        config!(OpenConfig, "patterns/circuit_breaker", "config_parts.rs"),
        config!(HalfOpenConfig, "patterns/circuit_breaker", "config_parts.rs"),
        config!(SlowStartConfig, "patterns/circuit_breaker", "config_parts.rs"),
        config!(SharedCircuitBreakerConfig, "patterns/circuit_breaker/shared", "config.rs"),
        config!(RateLimitConfig, "patterns/throttling", "rate/config.rs"),
        config!(KeyedRateLimitConfig, "patterns/throttling", "keyed/config.rs"),
        config!(ConcurrencyLimitConfig, "patterns/throttling", "concurrency/config.rs"),
        config!(AdaptiveLimitConfig, "patterns/throttling", "adaptive/config.rs"),
        config!(PriorityShares, "patterns/throttling", "adaptive/shares.rs"),
        config!(ClientThrottleConfig, "patterns/throttling", "client/config.rs"),
        config!(ShedderConfig, "patterns/throttling", "shed/shedder_config.rs"),
        config!(DegradationConfig, "patterns/throttling", "shed/degradation_config.rs"),
        config!(SharedRateLimitConfig, "patterns/throttling/shared", "config.rs"),
        config!(HedgeConfig, "patterns/hedge", "config.rs"),
        config!(PercentileConfig, "patterns/hedge", "config.rs"),
        config!(FallbackConfig, "patterns/fallback", "config.rs"),
        config!(ChaosConfig, "patterns/chaos", "config.rs"),
        config!(CacheAsideConfig, "patterns/cache_aside", "config.rs"),
        config!(RemoteConfig, "patterns/cache_aside", "config.rs"),
        config!(QueueListenerConfig, "patterns/queue_listener", "config.rs"),
        config!(IdleConfig, "work", "idle.rs"),
        config!(ClaimCheckConfig, "patterns/claim_check", "config.rs"),
        config!(LeaderElectionConfig, "patterns/leader_election", "config.rs"),
        config!(MessageElectionConfig, "patterns/leader_election/by_message", "config.rs"),
        config!(ShardDirectoryConfig, "patterns/sharding", "config.rs"),
        config!(FanOutConfig, "patterns/sharding", "config.rs"),
        config!(SagaConfig, "patterns/saga", "config.rs"),
        config!(JournalConfig, "roof/journal", "config.rs"),
        config!(SchedulerConfig, "roof/scheduler", "config.rs"),
        config!(ProducerConfig, "roof/stream", "producer.rs"),
        config!(StreamProcessorConfig, "roof/stream", "processor/config.rs"),
        config!(StandardConfig, "roof/standard", "config.rs"),
        config!(SqliteConfig, "wings/backend/sqlite", "config.rs", SqliteConfig::at("x")),
    ]
}

fn text(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}

/// A default as documentation states it.
#[derive(Debug, PartialEq)]
enum Stated {
    /// An optional setting is absent.
    Absent,
    Switch(bool),
    Number(f64),
    Time(Duration),
}

/// Reads a stated default; `None` if it is a phrase.
fn read(stated: &str) -> Option<Stated> {
    let stated = stated.trim().trim_start_matches('`').trim_end_matches('`').to_lowercase();
    match stated.as_str() {
        "none" | "no limit" | "no bound" | "unlimited" | "without limit" => return Some(Stated::Absent),
        "off" | "no" => return Some(Stated::Switch(false)),
        "on" | "yes" => return Some(Stated::Switch(true)),
        "zero" => return Some(Stated::Number(0.0)),
        _ => {}
    }
    if let Ok(number) = stated.replace(',', "").parse() {
        return Some(Stated::Number(number));
    }
    if let Some(kib) = stated.strip_suffix(" kib") {
        return kib.parse::<f64>().ok().map(|kib| Stated::Number(kib * 1024.0));
    }
    let time = stated.replace("five ", "5 ").replace(' ', "");
    humantime::parse_duration(&time).ok().map(Stated::Time)
}

/// Returns `true` if the code's default is the stated one.
fn is(code: &Value, stated: &Stated) -> bool {
    let time = code.as_str().and_then(|text| humantime::parse_duration(text).ok());
    match stated {
        Stated::Absent => {
            code.is_null() || code == &Value::Array(Vec::new()) || time == Some(Duration::ZERO) || {
                matches!(code, Value::Object(entries) if entries.is_empty())
            }
        }
        Stated::Switch(false) => code.is_null() || code == &Value::Bool(false),
        Stated::Switch(true) => code.is_object() || code == &Value::Bool(true),
        Stated::Number(number) => {
            code.as_f64().is_some_and(|code| code == *number) || (*number == 0.0 && time == Some(Duration::ZERO))
        }
        Stated::Time(stated) => time == Some(*stated),
    }
}

/// The fields of a struct, each with its documentation on one line.
fn fields(source: &str, name: &str) -> Vec<(String, String)> {
    let body = source.split(&format!("pub struct {name} {{\n")).nth(1).unwrap_or_else(|| panic!("no struct {name}"));
    let (mut fields, mut documentation) = (Vec::new(), String::new());
    for line in body.split("\n}").next().unwrap().lines().map(str::trim) {
        if let Some(more) = line.strip_prefix("///") {
            documentation += more;
        } else if let Some(field) = line.strip_prefix("pub ").and_then(|field| field.split_once(':')) {
            fields.push((field.0.to_owned(), std::mem::take(&mut documentation)));
        }
    }
    fields
}

#[test]
fn the_documentation_of_a_field_states_the_default_of_the_code() {
    let (mut compared, mut wrong) = (0, Vec::new());
    for Config { name, file, defaults, .. } in all() {
        for (field, documentation) in fields(&text(&file), name) {
            let Some((before, _)) = documentation.split_once(" by default") else { continue };
            let stated = before.trim_end_matches(',').rsplit([';', ':']).next().unwrap();
            let stated = stated.rsplit(". ").next().unwrap();
            let stated = stated.split(", ").next().unwrap();
            let Some(stated) = read(stated) else { continue };
            compared += 1;
            let code = defaults.get(&field).unwrap_or(&Value::Null);
            if !is(code, &stated) {
                wrong.push(format!("{name}::{field}: {code} in code, {stated:?} in its documentation"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // The other defaults are phrases.
    assert!(compared >= 150, "only {compared} defaults can be read");
}

/// The rows of the tables in the chapter "Defaults" of a page: settings, and their defaults.
fn rows(page: &str) -> Vec<(Vec<String>, String)> {
    let Some(chapter) = page.split("//! # Defaults\n").nth(1) else { return Vec::new() };
    // A table without this head lists something else.
    let (mut lists, mut lines) = (false, Vec::new());
    for line in chapter.split("//! # ").next().unwrap().lines() {
        lists = line.starts_with("//! | setting |") || line.starts_with("//! | what |") || lists && line != "//!";
        lines.extend(line.strip_prefix("//! |").filter(|_| lists));
    }
    let row = |line: &str| {
        let mut cells = line.split(" | ");
        let names: Option<Vec<String>> = cells
            .next()?
            .split(',')
            .map(|name| Some(name.trim().strip_prefix('`')?.strip_suffix('`')?.to_owned()))
            .collect();
        Some((names?, cells.next()?.to_owned()))
    };
    lines.into_iter().filter_map(row).collect()
}

#[test]
fn the_table_of_a_page_states_the_defaults_of_the_code() {
    let (mut compared, mut wrong) = (0, Vec::new());
    let all = all();
    let mut pages: Vec<&str> = all.iter().map(|config| config.page.as_str()).collect();
    pages.dedup();
    for page in pages.into_iter().filter(|page| Path::new(env!("CARGO_MANIFEST_DIR")).join(page).exists()) {
        for (names, defaults) in rows(&text(page)) {
            // A number may have commas of its own: they have no space.
            let defaults: Vec<_> = defaults.split(", ").collect();
            if names.len() != defaults.len() {
                continue;
            }
            for (name, stated) in names.iter().zip(defaults) {
                let pointer = format!("/{}", name.replace('.', "/"));
                let codes: Vec<_> = all
                    .iter()
                    .filter(|config| config.page == page)
                    .filter(|config| {
                        let head = name.split('.').next().unwrap();
                        fields(&text(&config.file), config.name).iter().any(|(field, _)| field == head)
                    })
                    .map(|config| config.defaults.pointer(&pointer).unwrap_or(&Value::Null).clone())
                    .collect();
                if codes.is_empty() {
                    wrong.push(format!("{page}: no setting `{name}`"));
                }
                let Some(stated) = read(stated) else { continue };
                compared += 1;
                if !codes.iter().any(|code| is(code, &stated)) {
                    wrong.push(format!("{page}: `{name}`: {codes:?} in code, {stated:?} in the table"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(compared >= 60, "only {compared} defaults can be read");
}

#[test]
fn a_wrong_default_is_found() {
    assert_eq!(read("1,048,576"), Some(Stated::Number(1_048_576.0)));
    assert_eq!(read("15 min"), Some(Stated::Time(Duration::from_secs(900))));
    assert_eq!(read("the last 100 calls"), None);
    assert!(is(&Value::from("15m"), &Stated::Time(Duration::from_secs(900))));
    assert!(!is(&Value::from("15m"), &Stated::Time(Duration::from_secs(901))));
    assert!(!is(&Value::from(3), &Stated::Number(4.0)) && !is(&Value::from(3), &Stated::Absent));
    assert!(!is(&Value::Null, &Stated::Switch(true)) && !is(&Value::Bool(true), &Stated::Switch(false)));
}
