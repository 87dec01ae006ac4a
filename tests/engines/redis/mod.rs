//! Redis.
mod clock;
mod expiry;
mod queue;
mod replicas;
mod rights;
mod safety;
mod sentinels;
mod setups;
mod suites;
mod wire;

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use steadfast::backend::redis::{Redis, RedisConfig};

use crate::faults::again;

/// Returns a prefix that no other test of this process uses.
fn prefix() -> String {
    static LAST: AtomicU32 = AtomicU32::new(0);
    format!("t{}", LAST.fetch_add(1, Relaxed))
}

/// Connects with default settings but for the prefix. A busy machine may exceed the time limits: it tries again.
async fn connect(url: String, prefix: &str) -> Redis {
    let config = RedisConfig::at(url).prefix(prefix);
    again("connect", || Redis::connect(config.clone())).await.0
}

/// Runs a test on a runtime of its own.
fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(test);
}
