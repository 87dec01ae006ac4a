//! Claim check: large bodies lie in a store, and only a claim to them goes through the queue.
//!
//! # When, and when not
//!
//! Where messages may be larger than the queue takes, or large enough to cost its throughput: the body is stored, and the queue carries its key
//! and checksum. Not for small messages: each stored body is a write, a read and a delete more.
//!
//! # Defaults
//!
//! | setting | default | |
//! |---|---|---|
//! | `threshold` | 32 KiB | bodies above go to the store |
//! | `compress` | on | with the feature `lz4`, where that shrinks the body |
//! | `keep` | for ever | how long a stored body lasts at most |
//!
//! # Example
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use steadfast::{
//!     claim_check::{ClaimCheck, ClaimCheckConfig},
//!     queue::{InMemoryQueue, Message, Queue, QueueError, QueueExt},
//!     store::InMemoryStore,
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), QueueError> {
//! let plain = Arc::new(InMemoryQueue::new("scans"));
//! let queue = ClaimCheck::new(plain.clone(), Arc::new(InMemoryStore::new()), ClaimCheckConfig::default()).unwrap();
//! queue.send_one(Message::new(vec![7; 1_000_000])).await?;
//! assert!(plain.peek(1).await?[0].body.is_empty(), "only the claim went through");
//!
//! let delivery = queue.receive_one(Duration::from_secs(30)).await?.expect("it was sent");
//! assert_eq!(delivery.body.len(), 1_000_000);
//! queue.complete(&delivery.receipt).await?; // and the body is gone from the store
//! # Ok(())
//! # }
//! ```
//!
//! # Composing
//!
//! A [`ClaimCheck`] is a [`Queue`](crate::queue::Queue) around another: hand it to a listener, to a sender, to a set of partitions. Both ends need
//! the same store.
//!
//! # Cancel safety
//!
//! As the queue's. A dropped `send` may leave a body in the store that nothing claims; [`keep`](ClaimCheckConfig::keep) bounds its life.
//!
//! # Considerations
//!
//! 1. A body that is missing, or is not what was stored, can never be handled: its message is set aside with that reason. (default)
//! 2. Stored bodies are removed after completion; those of dead letters stay until the dead letter is completed. (default)
//! 3. What nothing claims has to be removed: `keep`. Set it well above the longest life of a message.
//! 4. The claim's key is random, and says nothing.
//!
//! # Pitfalls
//!
//! - Whoever reads the plain queue sees empty bodies. All senders may go on as they are: a message without a claim passes as it is.
//! - `purge` of the queue leaves the bodies.
//!
//! # Source
//!
//! "Claim-Check pattern", Azure Architecture Center; Gregor Hohpe and Bobby Woolf, "Enterprise Integration Patterns", 2003 ("Store in
//! Library").
mod body;
mod config;
mod queue;

pub use config::ClaimCheckConfig;
pub use queue::ClaimCheck;
