//! NATS JetStream 2.10 or later: one server, or a cluster.
mod api;
mod config;
mod failure;
mod handle;
mod link;
mod names;
mod notifier;
mod queue;
mod reader;
mod scan;
mod setup;
mod store;

pub use config::NatsConfig;
pub use handle::Nats;
pub use notifier::NatsNotifier;
pub use queue::NatsQueue;
pub use store::NatsStore;
