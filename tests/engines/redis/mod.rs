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

/// Returns a prefix that no other test of this process uses.
fn prefix() -> String {
    static LAST: AtomicU32 = AtomicU32::new(0);
    format!("t{}", LAST.fetch_add(1, Relaxed))
}

/// Connects with default settings but for the prefix.
async fn connect(url: String, prefix: &str) -> Redis {
    Redis::connect(RedisConfig::at(url).prefix(prefix)).await.unwrap()
}

/// Runs a test on a runtime of its own.
fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(test);
}
