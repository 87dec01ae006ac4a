//! Backends: implementations of the ports on engines that outlive a process. Each one is behind a
//! feature of its name.
//!
//! A backend implements [ports](crate::port) and knows no pattern. A pattern works on each backend
//! that has the capabilities it needs. [`open`] chooses a backend by a URL, so that configuration
//! alone decides where the state is.
//!
//! ```
//! use steadfast::{backend, queue::{Message, QueueExt}, store::{Key, StoreExt}};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Or `sqlite:state.db`, `postgres://..`, `redis://..`, `nats://..`, each by feature.
//! let backend = backend::open("memory:").await?;
//! let (leases, notices) = (backend.lease(), backend.notifier());
//! let store = backend.store();
//! store.insert(Key::new("orders", "42"), "placed").await?;
//! assert_eq!(store.get(Key::new("orders", "42")).await?.unwrap().value, "placed");
//! backend.queue("invoices").await?.send_one(Message::new("pay 42")).await?;
//! # Ok(())
//! # }
//! ```
#[cfg(any(feature = "nats", feature = "postgres", feature = "redis"))]
#[allow(dead_code, reason = "an engine alone does not use all of it")]
mod common;
#[cfg(feature = "nats")]
pub mod nats;
mod open;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "sqlite")]
pub mod sqlite;

#[cfg(any(feature = "nats", feature = "postgres", feature = "redis"))]
pub use common::{ConnectionEvent, ConnectionRole, TlsConfig};
pub use open::{Backend, open};

/// Limits of the name of a queue, over every backend: 1 to 1,024 bytes.
const QUEUE_NAME: crate::port::Capabilities = crate::port::Capabilities::of("backend", &[]).largest_key(1024);
