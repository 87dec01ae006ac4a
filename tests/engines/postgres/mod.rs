//! PostgreSQL.
#![allow(clippy::disallowed_methods, reason = "real servers take real time")]
#![allow(clippy::print_stdout, reason = "figures of a run")]
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

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use steadfast::backend::postgres::{Postgres, PostgresConfig};

use crate::server;

/// Returns the name of a schema that no other test uses.
pub(crate) fn new_schema() -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    format!("test {}", NUMBER.fetch_add(1, SeqCst))
}

/// Returns the settings for a new schema of the shared server.
pub(crate) fn shared() -> PostgresConfig {
    PostgresConfig::at(server::Postgres::shared().url()).schema(new_schema())
}

pub(crate) async fn connect(config: &PostgresConfig) -> Postgres {
    Postgres::connect(config.clone()).await.unwrap_or_else(|error| panic!("{error}"))
}
