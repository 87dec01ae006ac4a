//! Claim check: keeps large bodies in a store, so that only a claim to them goes through the queue.
//!
//! # When, and when not
//!
//! Use it where messages may be larger than the queue accepts, or large enough to reduce its
//! throughput: the body is stored, and the queue carries its key and checksum. Do not use it for
//! small messages: each stored body costs an additional write, read and delete.
//!
//! # Defaults
//!
//! | setting | default | |
//! |---|---|---|
//! | `threshold` | 32 KiB | bodies above go to the store |
//! | `compress` | on | with the feature `lz4`, if that shrinks the body |
//! | `keep` | unlimited | maximum lifetime of a stored body |
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
//! let bodies = Arc::new(InMemoryStore::new());
//! let queue = ClaimCheck::new(plain.clone(), bodies, ClaimCheckConfig::default()).unwrap();
//! queue.send_one(Message::new(vec![7; 1_000_000])).await?;
//! assert!(plain.peek(1).await?[0].body.is_empty(), "the queue carries only the claim");
//!
//! let delivery = queue.receive_one(Duration::from_secs(30)).await?.expect("it was sent");
//! assert_eq!(delivery.body.len(), 1_000_000);
//! queue.complete(&delivery.receipt).await?; // removes the body from the store
//! # Ok(())
//! # }
//! ```
//!
//! # The five commonest uses
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use steadfast::{backend, queue::{Message, QueueExt}, queue_listener::{QueueListener, Work}};
//! use steadfast::claim_check::{ClaimCheck, ClaimCheckConfig};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let backend = backend::open("memory:").await?;
//! # let stop = || tokio::time::sleep(Duration::from_secs(60));
//! let (scans, bodies) = (backend.queue("scans").await?, backend.store());
//! // 1. A queue for bodies of any size. Small ones go through the queue itself.
//! let keep = Duration::from_secs(30 * 24 * 3600); // above the longest life of a message
//! let config = ClaimCheckConfig::default().keep(keep);
//! let queue = Arc::new(ClaimCheck::new(scans, bodies.clone(), config.clone())?);
//!
//! // 2. Send as to any other queue.
//! queue.send_one(Message::new(vec![7; 1_000_000])).await?;
//!
//! // 3. Handle with a listener.
//! let listener = QueueListener::new(queue.clone(), Default::default())?;
//! listener.run(stop(), async |scan: Work| println!("{} bytes", scan.body.len())).await?;
//!
//! // 4. Another limit, for a queue that bills each 64 KiB.
//! let config = config.threshold(60 * 1024);
//!
//! // 5. Bodies of several queues in one store, apart from each other.
//! let mails = ClaimCheck::new(backend.queue("mails").await?, bodies, config.partition("mails"))?;
//! # Ok(())
//! # }
//! ```
//!
//! # Composing
//!
//! A [`ClaimCheck`] is a [`Queue`](crate::queue::Queue) around another: pass it to a listener, to a
//! sender, or to a set of partitions. Both ends need the same store.
//!
//! # A slow or unavailable store
//!
//! A receive fetches its bodies concurrently, 32 at once, and takes at most an eighth of the
//! visibility time-out for that. It returns the messages whose bodies arrived. The others are
//! [released](crate::queue::Settle::Release) without a counted attempt: those whose fetch failed or
//! timed out after a tenth of the visibility time-out, the rest at once. While fetches time out,
//! fewer run at once, down to one, so that bodies that share a slow connection still arrive. A
//! single body must arrive within a twelfth of the visibility time-out, 2.5 s of the listener's 30
//! s. Otherwise its message is never handled.
//!
//! If a receive could return no message for this reason, it fails with a transient error,
//! `TimedOut` or the store's own kind. A listener then backs off and reports it in
//! [`CallFailed`](crate::queue_listener::QueueListenerEvent::CallFailed). No failure of the store,
//! of whatever kind, makes a dead letter or ends a listener.
//!
//! The same holds for a claim in the form of a newer release: it is released until a process of
//! that release takes it.
//!
//! These time limits are measured on [a clock](ClaimCheck::builder). A settlement waits at most
//! a second for the removal of bodies. A body that is not removed by then stays until `keep` ends
//! it.
//!
//! # Guarantees
//!
//! 1. A message whose body is missing, or differs from the original, becomes a dead letter with
//!    that reason.
//! 2. A body is removed only after its message is completed; a message that may be delivered again
//!    has its body.
//! 3. A failed send leaves no body behind, unless the message may have been sent. Other orphans end
//!    after `keep`.
//! 4. A slow or failing store costs no message an attempt. Messages whose bodies arrive are
//!    returned within the time limit.
//! 5. A `receive` that is dropped at any await point releases what it had received.
//!
//! # Cancel safety
//!
//! As for the queue inside. A dropped `send` may leave a body in the store that no message claims;
//! [`keep`](ClaimCheckConfig::keep) bounds its life. Messages of a dropped `receive` are released
//! by the next one, or are visible again after their visibility time-out.
//!
//! # Pitfalls
//!
//! - A receiver on the inner queue sees empty bodies. Senders may use the inner queue: a message
//!   without a claim passes unchanged.
//! - `purge` of the queue leaves the bodies in the store.
//!
//! # Source
//!
//! "Claim-Check pattern", Azure Architecture Center; Gregor Hohpe and Bobby Woolf, "Enterprise
//! Integration Patterns", 2003 ("Store in Library").
mod body; // the form of a stored body
mod config;
mod fetch; // receiving: bodies from the store
mod queue; // sending and settling

pub use config::ClaimCheckConfig;
pub use queue::ClaimCheck;
