//! Queues on Redis.
mod clock;
mod cost;
mod crashes;
mod damage;
mod limits;
mod suites;
mod waits;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use steadfast::{
    backend::redis::{Redis, RedisConfig},
    queue::{Delivery, Message, Queue, QueueError, Receive},
};

use crate::server;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const S: fn(u64) -> Duration = Duration::from_secs;
const MS: fn(u64) -> Duration = Duration::from_millis;

/// Returns settings for a server at this port, with a prefix that no other test has. A lost notice costs an hour, and a busy
/// machine keeps the time limit.
fn config(port: u16) -> RedisConfig {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let prefix = format!("queue-test-{}", NEXT.fetch_add(1, Relaxed));
    RedisConfig::at(format!("redis://127.0.0.1:{port}")).prefix(prefix).poll(HOUR).request_timeout(MINUTE)
}

async fn connect(server: &server::Redis) -> Redis {
    Redis::connect(config(server.port())).await.unwrap()
}

fn queue(redis: &Redis, name: &str) -> Arc<dyn Queue> {
    Arc::new(redis.queue(name).unwrap())
}

fn block_on<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(test)
}

async fn send(queue: &dyn Queue, messages: impl IntoIterator<Item = Message>) {
    queue.send(messages.into_iter().collect()).await.unwrap();
}

async fn take(queue: &dyn Queue, max: usize, visibility: Duration) -> Vec<Delivery> {
    queue.receive(Receive::new(max, visibility)).await.unwrap()
}

fn bodies(deliveries: &[Delivery]) -> Vec<String> {
    deliveries.iter().map(|delivery| String::from_utf8_lossy(&delivery.body).into_owned()).collect()
}

fn is_lost(result: Result<(), QueueError>) -> bool {
    result.is_err_and(|error| error.is_lease_lost())
}

/// Returns the number of calls of a command that the server has counted.
fn calls(server: &server::Redis, command: &str) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]);
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
}
