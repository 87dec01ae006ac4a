//! Redis, a server in memory: one server, or a primary with replicas.
mod check;
mod config;
mod connection;
mod failure;
mod handle;
mod keys;
mod lease;
mod link;
mod notifier;
mod pubsub;
mod queue;
mod script;
mod store;
mod store_calls;

pub use config::RedisConfig;
pub use handle::Redis;
pub use lease::RedisLease;
pub use notifier::RedisNotifier;
pub use queue::RedisQueue;
pub use store::RedisStore;
