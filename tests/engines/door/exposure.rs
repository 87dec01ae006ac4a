//! A connection that leaves the machine without protection is told when it is made, and explained.
use steadfast::backend;

use super::traces::Traces;
use crate::server::ends;

/// A name of loopback that a resolver knows, and that is not its address.
const NAME: &str = "127.1";

/// Connects, and returns the warnings that were traced, and the explanation.
fn connected(url: &str) -> (Vec<String>, String) {
    let (traces, _guard) = Traces::begin();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let explained = runtime.block_on(async {
        let backend = ends(backend::open(url)).await.unwrap_or_else(|error| panic!("{error}"));
        backend.explain()
    });
    let warnings = traces.take();
    (warnings.lines().filter(|line| line.contains("can be read or changed")).map(str::to_owned).collect(), explained)
}

/// Asserts that loopback is silent, and that another address is told with this advice.
fn is_told(engine: &str, url: &str, advice: &str) {
    let (warnings, explained) = connected(url);
    assert!(warnings.is_empty(), "{warnings:?}");
    assert!(explained.starts_with(engine) && explained.contains("does not leave this machine"), "{explained}");
    // A name for this machine that does not tell it.
    let (warnings, explained) = connected(&url.replace("127.0.0.1", NAME));
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    for text in [&warnings[0], &explained] {
        assert!(text.contains(NAME) && text.contains("not encrypted") && text.contains(advice), "{text}");
    }
    assert!(warnings[0].starts_with("WARN"), "{warnings:?}");
}

#[cfg(feature = "postgres")]
#[test]
fn a_plain_connection_of_postgres_that_leaves_the_machine_is_told() {
    use crate::server::{Certificates, Postgres};

    is_told("postgres", &Postgres::shared().url(), "`sslmode=verify-full`");
    // Encrypted for whoever answers.
    let encrypted = Postgres::with_tls(&Certificates::new(), &[]);
    let (warnings, explained) = connected(&encrypted.url().replace("127.0.0.1", NAME));
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(explained.contains("certificate is not verified") && explained.contains("verify-full"), "{explained}");
    assert!(warnings[0].contains("certificate is not verified"), "{warnings:?}");
}

#[cfg(feature = "redis")]
#[test]
fn a_plain_connection_of_redis_that_leaves_the_machine_is_told() {
    is_told("redis", &crate::server::Redis::shared().url(), "`rediss:`");
}

/// The server that gets the password counts, and not the sentinel that names it.
#[cfg(feature = "redis")]
#[test]
fn a_plain_connection_to_a_server_elsewhere_that_a_local_sentinel_names_is_told() {
    let server = crate::server::Redis::start();
    let named = format!("sentinel monitor named {NAME} {} 2", server.port());
    let names = ["sentinel resolve-hostnames yes", "sentinel announce-hostnames yes", &named];
    let sentinel = server.sentinel(&[]);
    let (warnings, explained) = connected(&format!("redis+sentinel://127.0.0.1:{}/jobs", sentinel.port()));
    assert!(warnings.is_empty() && explained.contains("does not leave this machine"), "{warnings:?} {explained}");
    let sentinel = server.sentinel(&names);
    let (warnings, explained) = connected(&format!("redis+sentinel://127.0.0.1:{}/named", sentinel.port()));
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    for text in [&warnings[0], &explained] {
        assert!(text.contains(NAME) && text.contains("not encrypted") && text.contains("`rediss:`"), "{text}");
    }
}

#[cfg(feature = "nats")]
#[test]
fn a_plain_connection_of_nats_that_leaves_the_machine_is_told() {
    is_told("nats", &crate::server::Nats::shared().url(), "`tls:`");
}

#[test]
fn an_engine_without_a_server_is_explained() {
    assert_eq!(connected("memory:").1, "memory: ends with this process");
}
