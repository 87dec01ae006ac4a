//! NATS JetStream.
mod attacks;
mod backlog;
mod batches;
mod fail_over;
mod queue;
mod server_facts;
mod setups;
mod suites;
mod wire;

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use steadfast::backend::nats::{Nats, NatsConfig};

/// Returns a prefix that no other test of this process uses.
fn prefix() -> String {
    static LAST: AtomicU32 = AtomicU32::new(0);
    format!("t{}", LAST.fetch_add(1, Relaxed))
}

/// Connects with default settings but for the prefix.
async fn connect(url: String, prefix: &str) -> Nats {
    Nats::connect(NatsConfig::at(url).prefix(prefix)).await.unwrap()
}

/// Runs a test on a runtime of its own.
fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap().block_on(test);
}
