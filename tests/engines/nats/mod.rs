//! NATS JetStream.
mod attacks;
mod backlog;
mod batches;
mod fail_over;
mod operators;
mod queue;
mod server_facts;
mod setups;
mod suites;
mod wire;

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use steadfast::backend::nats::{Nats, NatsConfig};

use crate::faults::again;

/// Returns a prefix that no other test of this process uses.
fn prefix() -> String {
    static LAST: AtomicU32 = AtomicU32::new(0);
    format!("t{}", LAST.fetch_add(1, Relaxed))
}

/// Connects with default settings but for the prefix. A busy machine may exceed the time limits: it tries again.
async fn connect(url: String, prefix: &str) -> Nats {
    let config = NatsConfig::at(url).prefix(prefix);
    again("connect", || Nats::connect(config.clone())).await.0
}

/// Runs a test on a runtime of its own.
fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap().block_on(test);
}
