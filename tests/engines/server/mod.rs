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
pub(crate) use proxy::{Lane, Proxy};
pub(crate) use redis::Redis;

use std::time::{Duration, Instant};

/// Longest wait for a server of a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until the condition holds.
///
/// # Panics
/// If it does not hold within a minute, with `what` as the subject.
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
