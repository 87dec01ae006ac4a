//! PostgreSQL.
#![allow(clippy::disallowed_methods, reason = "real servers take real time")]
#![allow(clippy::print_stdout, reason = "figures of a run")]
mod batches;
mod connections;
mod damage;
mod outbox;
mod pool;
mod pooler;
mod prepared;
mod queue;
mod queue_backlog;
mod queue_crashes;
mod queue_receivers;
mod queue_transactions;
mod safety;
mod setups;
mod suites;
mod time;
mod wire;
mod within;

use std::{
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    time::Duration,
};

use steadfast::backend::postgres::{Postgres, PostgresConfig};

use crate::{faults::again, server};

const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the name of a schema that no other test uses.
pub(crate) fn new_schema() -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    format!("test {}", NUMBER.fetch_add(1, SeqCst))
}

/// Returns the settings for a new schema of the shared server, with time limits that a busy machine keeps.
pub(crate) fn shared() -> PostgresConfig {
    patient(server::Postgres::shared().url()).schema(new_schema())
}

/// Returns settings with time limits that a busy machine keeps.
pub(crate) fn patient(url: String) -> PostgresConfig {
    PostgresConfig::at(url).request_timeout(PATIENCE).connect_timeout(PATIENCE)
}

/// Connects with short time limits to a schema that is there: a busy machine may exceed them while it makes one, or at first.
pub(crate) async fn connect_in_haste(config: &PostgresConfig) -> Postgres {
    drop(connect(&config.clone().request_timeout(PATIENCE).connect_timeout(PATIENCE)).await);
    again("connect", || Postgres::connect(config.clone())).await.0
}

pub(crate) async fn connect(config: &PostgresConfig) -> Postgres {
    Postgres::connect(config.clone()).await.unwrap_or_else(|error| panic!("{error}"))
}
