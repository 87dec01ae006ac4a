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
//! # A store that is slow or away
//!
//! A receive fetches its bodies side by side, 32 at once, and takes at most an eighth of the visibility time-out for that. It
//! returns the messages whose bodies came. The others are [released](crate::queue::Settle::Release): they come back uncounted, those
//! whose fetch failed or took too long after a tenth of the visibility time-out, the rest at once. While fetches take too long, fewer go
//! on at once, down to one: bodies that share a narrow line come all the same. One body must come within a twelfth of the
//! visibility time-out, 2.5 s of the listener's 30 s, or its message waits for ever.
//!
//! A receive that could return no message for this reason fails with a transient error, `TimedOut` or the store's own kind, so that a
//! listener backs off and its [`CallFailed`](crate::queue_listener::QueueListenerEvent::CallFailed) says why. A failure of the store
//! sets no message aside and ends no listener, whatever its kind.
//!
//! These bounds are on [a clock](ClaimCheck::with_clock). A settlement waits for the removal of bodies for a second at most; what
//! could not be removed by then stays until `keep` ends it.
//!
//! # Cancel safety
//!
//! As the queue's. A dropped `send` may leave a body in the store that nothing claims; [`keep`](ClaimCheckConfig::keep) bounds its life. What
//! a dropped `receive` had taken is released by the next one, or comes back after its visibility time-out.
//!
//! # Considerations
//!
//! 1. A body that is missing, or is not what was stored, can never be handled: its message is set aside with that reason. (default)
//! 2. Stored bodies are removed after completion; those of dead letters stay until the dead letter is completed. (default)
//! 3. What nothing claims, and what was not removed because the store was away, has to be removed: `keep`. Set it well above the longest life of a message.
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
mod fetch;
mod queue;

pub use config::ClaimCheckConfig;
pub use queue::ClaimCheck;
