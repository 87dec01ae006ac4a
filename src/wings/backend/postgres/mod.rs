//! PostgreSQL: state that outlives a machine, shared by many processes.
mod config;
mod connection;
mod failure;
mod gather;
mod handle;
mod lease_schema;
mod link;
mod listen;
mod pool;
mod queue;
mod queue_receive;
mod queue_schema;
mod queue_send;
mod queue_settle;
mod queue_views;
mod schema;
mod server;
mod store_schema;
mod wake;

pub use config::PostgresConfig;
pub use handle::Postgres;
pub use queue::PostgresQueue;
