//! Gatekeeper: an exposed process checks requests and seals what it read; a trusted process opens
//! each seal once.
//!
//! Enabled by feature `jwt`. The checks are a layer, `tower::GateLayer` (features `tower` and
//! `http`), which can be used without the hand-over, as the hand-over can without the layer.
//!
//! # When, and when not
//!
//! Use it where a process that faces callers must not hold the rights, the keys or the data of the
//! one that does the work. Do not use it where the further hop costs more than it protects, as in a
//! service without sensitive data. It is no firewall, no proxy, and does not authenticate: see
//! [`federated_identity`](crate::federated_identity).
//!
//! # Defaults
//!
//! | setting | default | |
//! |---|---|---|
//! | `HandOverConfig::call_lifetime` | 30 s | time for which a seal for a call is valid |
//! | `HandOverConfig::queue_lifetime` | 1 h | the same for one in a message |
//! | `TrustedHostConfig::max_lifetime` | 1 h | longest time for which a seal may be valid when it comes |
//! | `TrustedHostConfig::call_timeout` | 3 s | time limit of a request to the store of used seals |
//! | `TrustedHostConfig::retry_after` | 1 s | time after which callers return while the store is away |
//!
//! The settings of the layer are on [the page of its room](crate::tower). Refused: a gate whose
//! newest key is no private key of Ed25519, a host with a key that signs, and a store without times
//! to live, or that is not linearizable.
//!
//! # Example
//!
//! ```
//! use std::sync::Arc;
//! use steadfast::{
//!     codec::Codec,
//!     gatekeeper::{HandOver, HandOverConfig, OpenError, TrustedHost, TrustedHostConfig},
//!     store::InMemoryStore,
//!     token::{Key, KeyRing},
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let codec: Codec<u32> = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
//! let key = Key::generate("gate-1")?; // in a service, `Key::private` of a file
//! let public = key.to_public().unwrap();
//!
//! // The exposed process: it signs, and cannot open.
//! let ring = KeyRing::new([key])?;
//! let gate = HandOver::new("orders", ring, codec.clone(), HandOverConfig::default())?;
//! let sealed = gate.seal(&42)?; // the parsed value, never the bytes of the caller
//!
//! // The trusted process: it opens, and cannot sign.
//! let (keys, store) = (KeyRing::new([public])?, Arc::new(InMemoryStore::new()));
//! let host = TrustedHost::new("orders", keys, store, codec, TrustedHostConfig::default())?;
//! assert_eq!(host.open(&sealed).await?, 42);
//! assert!(matches!(host.open(&sealed).await, Err(OpenError::Used)));
//! # Ok(())
//! # }
//! ```
//!
//! # The five commonest uses
//!
//! ```
//! use std::sync::Arc;
//! use steadfast::{
//!     codec::Codec,
//!     gatekeeper::{HandOver, HandOverConfig, OpenError, TrustedHost, TrustedHostConfig},
//!     queue::{InMemoryQueue, SendOnly},
//!     queue_listener::{Disposition, Work},
//!     store::InMemoryStore,
//!     token::{Key, KeyRing},
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let codec: Codec<u32> = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
//! # let (old, new) = (Key::generate("gate-1")?, Key::generate("gate-2")?);
//! # let public = |key: &Key| key.to_public().ok_or("no public half");
//! # let (ring, keys) = (KeyRing::new([old.clone()])?, KeyRing::new([public(&old)?])?);
//! # let (queue, store) = (Arc::new(InMemoryQueue::new("orders")), Arc::new(InMemoryStore::new()));
//! // 1. By call: the sealed value is the body of a request to the host.
//! let gate = HandOver::new("orders", ring.clone(), codec.clone(), HandOverConfig::default())?;
//! let body = gate.seal(&42)?;
//!
//! // 2. By queue, into which the gate can only send. The host may be away.
//! gate.send(&SendOnly::new(queue), &42).await?;
//!
//! // 3. The host opens a call.
//! let config = TrustedHostConfig::default();
//! let host = TrustedHost::new("orders", keys.clone(), store, codec, config)?;
//! assert_eq!(host.open(&body).await?, 42);
//!
//! // 4. The handler of its queue listener.
//! async fn handle(host: &TrustedHost<u32>, work: Work) -> Disposition {
//!     match host.open_message(&work).await {
//!         Ok(_order) => Disposition::Complete, // after the work
//!         Err(error @ OpenError::Unavailable { .. }) => Disposition::retry(error),
//!         Err(error) => Disposition::dead_letter(error),
//!     }
//! }
//!
//! // 5. Rotation: first the hosts learn the new key, then the gates sign with it.
//! keys.replace([public(&new)?, public(&old)?])?;
//! ring.replace([new])?; // and when the last old seal has expired, the hosts forget the old key
//! # Ok(())
//! # }
//! ```
//!
//! # How it works
//!
//! The gate parses a request into a value, checks the value, and encodes it again: a byte that its
//! parser did not understand goes no further. The seal is a signed token in front of the content.
//! It names the host, its end, 128 random bits and the SHA-256 of the content.
//!
//! The host checks the seal before it decodes anything, and then writes one record with a time to
//! live for those random bits. The write demands that there is none, so of two hosts one succeeds.
//! By queue the record has the id of the message, by which a redelivery is recognized.
//!
//! The content is signed, not encrypted. Who can read the way between the two processes reads it:
//! TLS is the platform's, as are the network around the host and the rights at the queue.
//!
//! # Composing
//!
//! In front: `tower::GateLayer` and inside it a [`PipelineLayer`](crate::tower) with throttling by
//! tenant. Behind: a [`queue_listener`](crate::queue_listener) with
//! [`open_message`](TrustedHost::open_message). Run several gates; they have no state.
//!
//! # Guarantees
//!
//! 1. A host refuses a seal for another host, and one that has expired, before it decodes the
//!    content; as it does if a byte of seal or content was altered.
//! 2. By call a seal is accepted once, by one of any number of hosts that share a store which
//!    forgets nothing. Its use is remembered for as long as it is valid.
//! 3. By queue a seal is accepted for one message, the first that is opened, in each of its
//!    deliveries and as a dead letter, and in no other one. No message is lost if the host is
//!    killed, or its future is dropped, at any point.
//! 4. A gate holds a key that signs and has no method to open or to receive; a host holds public
//!    keys. A rotation in the order of the fifth use loses no message.
//! 5. While the store of used seals is away nothing is opened, and the error has a time to return.
//!    By call the gate then seals anew, since the seal may be used up; by queue the next delivery
//!    is opened.
//!
//! # Cancel safety
//!
//! A dropped [`open`](TrustedHost::open) may have used up its seal: the gate seals anew. A dropped
//! [`open_message`](TrustedHost::open_message) loses nothing: the next delivery is accepted.
//!
//! # Events
//!
//! The variants of [`TrustedHostEvent`]: refused, replayed, undecodable, store away. They have the
//! reason, and never a part of the content. The metrics count the same.
//!
//! # Pitfalls
//!
//! - A call whose answer was lost cannot be repeated with the same seal. The gate seals anew, and
//!   the value needs an idempotency key of its own if it must have its effect once.
//! - A message that waits longer than `queue_lifetime` is refused as expired. A longer lifetime
//!   must be allowed by `max_lifetime` of the hosts, which refuse such a seal as not yet valid.
//! - A message that was opened is another message after a redrive from the dead letters, and then
//!   refused: let a listener of the dead letters open it where it is.
//! - A forwarded message is another message: open it where it is received first. Who can read and
//!   send to the queue can have a copy opened in the place of the original, which then is a dead
//!   letter; the value has its effect once in any case.
//! - The clocks of gates and hosts may differ by 30 s.
//! - The name of a host stands for one type of content. Give another type another name.
//! - A store that forgets, such as one in memory after a restart, forgets which seals were used.
//!
//! # Source
//!
//! "Gatekeeper", Cloud Design Patterns. RFC 8725, section 3.11 (explicit types of tokens).
mod config;
mod event;
mod hand_over; // the side of the gate
mod host; // the side of the trusted host
mod seal; // the form of what is handed over

pub use config::{HandOverConfig, TrustedHostConfig};
pub use event::TrustedHostEvent;
pub use hand_over::{HandOver, HandOverError};
pub use host::{OpenError, TrustedHost};
