//! Stacks of several services over shared base settings.
use std::time::Duration;

use steadfast::{
    CallError,
    call::idempotent,
    circuit_breaker::State,
    standard::{StandardConfig, StandardRegistry, StandardRegistryConfig},
    testing::{ScriptedError, ScriptedService},
    throttling::Gauge,
    time::Clock,
};

const DOCUMENT: &str = r#"
    [base]
    timeout = "5s"
    attempt_timeout = "2s"
    rate_limit = { permits = 10, per = "1s", burst = 3 }

    [base.retry]
    max_attempts = 4
    backoff = { base = "1ms", cap = "2ms", jitter = "none" }

    [base.circuit_breaker]
    window = { time = "10s", buckets = 10 }
    trip = { failure_rate = 0.4, consecutive_failures = 7 }

    [services.payments]
    rate_limit = false
    retry = { max_attempts = 2 }

    [services.payments.circuit_breaker]
    window = { calls = 30 }
    trip = { failure_rate = 0.3 }

    [services.search]
    timeout = "1s"
    retry = true
    hedge = true
"#;

fn config() -> StandardRegistryConfig {
    toml::from_str(DOCUMENT).unwrap()
}

fn refused(document: &str) -> String {
    toml::from_str::<StandardRegistryConfig>(document).unwrap_err().to_string()
}

fn same(document: &str) -> StandardConfig {
    toml::from_str(document).unwrap()
}

// Guarantee: standard 7.
#[test]
fn the_settings_of_a_service_are_laid_over_the_base_setting_by_setting() {
    let expected = same(
        r#"
            timeout = "5s"
            attempt_timeout = "2s"
            retry = { max_attempts = 2, backoff = { base = "1ms", cap = "2ms", jitter = "none" } }
            circuit_breaker = { window = { calls = 30 }, trip = { failure_rate = 0.3 } }
        "#,
    );
    assert_eq!(config().services["payments"], expected);
    // A part that is switched on keeps the base's settings, or has the defaults if the base has none.
    let base = config().base;
    let search = config().services["search"].clone();
    assert_eq!(search, base.timeout(Duration::from_secs(1)).hedge(search.hedge));
    assert_eq!(search.hedge, same("hedge = true").hedge);
}

#[test]
fn a_registry_without_services_or_base_has_the_defaults() {
    assert_eq!(toml::from_str::<StandardRegistryConfig>("").unwrap(), StandardRegistryConfig::default());
    let services: StandardRegistryConfig = toml::from_str("services.search = {}").unwrap();
    assert_eq!(services.services["search"], StandardConfig::default());
    let from_json: StandardRegistryConfig =
        serde_json::from_str(r#"{ "base": { "timeout": "3s" }, "services": { "search": null } }"#).unwrap();
    assert_eq!(from_json.services["search"], same("timeout = '3s'"));
}

#[test]
fn a_document_that_cannot_be_read_is_refused_with_the_path() {
    let within = "services.search.retry";
    assert!(refused("services.search.retry = { max_atempts = 3 }").contains(&format!("in `{within}`: unknown field")));
    let wrong = refused("services.search.retry = { max_attempts = 'three' }");
    assert!(wrong.contains("in `services.search.retry.max_attempts`: invalid type: string \"three\""), "{wrong}");
    let negative = refused("base.retry.max_attempts = -1");
    assert!(negative.contains("in `base.retry.max_attempts`: invalid value: integer `-1`"), "{negative}");
    assert!(refused("base.retrry = true").contains("in `base`: unknown field `retrry`"));
    // A mistake in the base is not one of a service that is laid over it.
    let base = refused("base.retry.max_attempts = -1\nservices.search.timeout = '1s'");
    assert!(base.contains("in `base.retry.max_attempts`: invalid value: integer `-1`"), "{base}");
    assert!(refused("defaults = {}").contains("unknown field `defaults`"));
    assert!(refused("services.search = true").contains("in `services.search`: invalid type: boolean `true`"));
    assert!(refused("services.search.retry = 3").contains("in `services.search.retry`: invalid type: integer `3`"));
}

#[test]
fn an_invalid_setting_is_refused_with_the_path_before_anything_changes() {
    let services = StandardRegistry::new(config()).unwrap();
    let payments = services.get("payments");
    let refused = |document: &str| {
        let config: StandardRegistryConfig = toml::from_str(document).unwrap();
        let error = services.reconfigure(config.clone()).unwrap_err();
        assert_eq!(StandardRegistry::new(config).unwrap_err(), error);
        error.to_string()
    };
    assert_eq!(
        refused("base.timeout = '9s'\nservices.search.retry.max_attempts = 0"),
        "invalid `services.search.retry.max_attempts`: must be at least 1"
    );
    assert_eq!(refused("base.timeout = '0s'"), "invalid `base.timeout`: must be longer than zero");
    assert_eq!(services.config(), config());
    assert_eq!(payments.config().timeout, Some(Duration::from_secs(5)));
}

// Guarantee: standard 7.
#[test]
fn a_new_document_changes_all_services_and_their_parts_keep_their_state() {
    let services = StandardRegistry::new(config()).unwrap();
    let (payments, mail) = (services.get("payments"), services.get("mail"));
    assert_eq!(mail.retry().unwrap().config().max_attempts, 4, "a service that is not listed has the base's settings");
    payments.circuit_breaker().unwrap().isolate();

    services
        .reconfigure(toml::from_str("base.retry.max_attempts = 6\nservices.mail.retry.max_attempts = 9").unwrap())
        .unwrap();
    assert_eq!(payments.retry().unwrap().config().max_attempts, 6);
    assert_eq!(mail.retry().unwrap().config().max_attempts, 9);
    assert_eq!(services.get("later").retry().unwrap().config().max_attempts, 6);
    assert_eq!(services.get("payments").circuit_breaker().unwrap().state(), State::Isolated);
}

#[test]
fn services_have_states_and_names_of_their_own() {
    let (clock, time) = Clock::manual();
    let config = toml::from_str("base.circuit_breaker.trip = { consecutive_failures = 1 }").unwrap();
    let services = StandardRegistry::builder(config).clock(&clock).build().unwrap();
    let failing = ScriptedService::new("500", &clock).unwrap();
    let call = |name: &str| -> Result<_, CallError<ScriptedError>> {
        let pipeline = services.get(name).into_pipeline().classify(ScriptedService::classify);
        time.block_on(pipeline.call(idempotent(|| failing.call())))
    };
    call("payments").unwrap_err();
    let rejected = call("payments").unwrap_err();
    assert!(rejected.is_rejected() && rejected.to_string().contains("payments"), "{rejected}");
    assert_eq!(services.get("search").circuit_breaker().unwrap().state(), State::Closed);
}

#[test]
fn the_shedders_of_all_services_watch_the_gauges_of_the_registry() {
    let load = Gauge::new();
    let document = "base.shed.limits.load = { soft = 0.5, hard = 0.9 }";
    let config: StandardRegistryConfig = toml::from_str(document).unwrap();
    let services = StandardRegistry::builder(config).gauge("load", load).build().unwrap();
    assert!(services.get("search").shed().is_some());
    assert_eq!(
        services.reconfigure(StandardRegistryConfig::default().base(same("shed = true"))).unwrap_err().field(),
        "base.shed.limits.load"
    );
}
