//! Redis.
mod changes;
mod limits;
mod setups;

use std::{
    future::Future,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use steadfast::{
    backend::redis::{Redis, RedisConfig},
    port::PortError,
    queue::{Delivery, Message, Queue, Receive},
};

use super::*;
use crate::server;

/// Returns settings with a prefix that no other test has.
fn config(url: String) -> RedisConfig {
    static LAST: AtomicU32 = AtomicU32::new(0);
    RedisConfig::at(url).prefix(format!("attack{}", LAST.fetch_add(1, Relaxed)))
}

async fn connect(config: RedisConfig) -> Redis {
    Redis::connect(config).await.unwrap_or_else(|error| panic!("{error}"))
}

async fn refused(config: RedisConfig) -> PortError {
    let debug = format!("{config:?}");
    assert!(!debug.contains("hunter2"), "{debug}");
    let Err(error) = ends("connecting", Redis::connect(config)).await else { panic!("{debug} was accepted") };
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    error
}

/// Runs a test on a runtime of its own.
fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(test);
}

async fn send(queue: &dyn Queue, body: impl Into<bytes::Bytes>) {
    queue.send(vec![Message::new(body)]).await.unwrap();
}

async fn take(queue: &dyn Queue, max: usize) -> Vec<Delivery> {
    queue.receive(Receive::new(max, Duration::from_secs(600))).await.unwrap()
}
