//! Private servers for tests and examples, each in a temporary folder and on a free port of loopback.
//!
//! A server ends with its value. Those that live as long as the process, and those of a process that is killed, are ended by
//! a small watcher process, which deletes the folders, too.
#![allow(dead_code, unused_imports, reason = "no user needs all of it")]
#![allow(clippy::disallowed_methods, reason = "real servers take real time")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a server that does not start fails the test")]
mod certificates;
mod clock;
mod nats;
mod pgbouncer;
mod postgres;
mod process;
mod proxy;
mod redis;

pub(crate) use certificates::Certificates;
pub(crate) use clock::ServerClock;
pub(crate) use nats::{Nats, NatsCluster};
pub(crate) use pgbouncer::Pgbouncer;
pub(crate) use postgres::Postgres;
pub(crate) use process::free_port;
pub(crate) use proxy::{Lane, Proxy};
pub(crate) use redis::Redis;

use std::time::{Duration, Instant};

/// Longest wait for a server of a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until the condition holds.
///
/// # Panics
/// If it does not hold within two minutes, with `what` as the subject.
#[track_caller]
pub(crate) fn wait_until(what: &str, holds: impl FnMut() -> bool) {
    assert!(holds_within(PATIENCE, holds), "{what}: not within {PATIENCE:?}");
}

/// Waits until the condition holds; returns `false` if it does not within this time.
pub(crate) fn holds_within(patience: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + patience;
    while !holds() {
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(3));
    }
    true
}

/// Lets the time of a real server or process pass: until a record expires, a lease ends, or a process has had time
/// to do what a test says that it does not do. No clock of ours moves those.
pub(crate) async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Waits before the next look at a condition.
pub(crate) async fn look_again() {
    pass(Duration::from_millis(20)).await;
}

/// Tells how much real time has passed: for bounds on the time in which nothing moves, and for what a server does with time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Watch(Instant);

impl Watch {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn passed(self) -> Duration {
        self.0.elapsed()
    }
}

/// Returns the output of a future that ends.
///
/// # Panics
/// If it does not end within two minutes: it waits for something that never happens.
#[track_caller]
pub(crate) fn ends<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let caller = std::panic::Location::caller();
    async move {
        let ended = tokio::time::timeout(PATIENCE, future).await;
        ended.unwrap_or_else(|_| panic!("{caller}: not within {PATIENCE:?}"))
    }
}
