//! PostgreSQL: state that outlives a machine, shared by many processes.
mod base64;
mod config;
mod connection;
mod failure;
mod gather;
mod handle;
mod lease;
mod lease_schema;
mod link;
mod listen;
mod notifier;
mod pool;
mod queue_schema;
mod schema;
mod server;
mod store;
mod store_schema;
mod store_sql;
mod sweep;
mod wake;

pub use config::PostgresConfig;
pub use handle::Postgres;
pub use lease::PostgresLease;
pub use notifier::PostgresNotifier;
pub use store::PostgresStore;
