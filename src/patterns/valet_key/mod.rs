//! Valet key: a key with which its holder may do one thing to one path, or below one folder, for
//! some minutes.
//!
//! Enabled by feature `jwt`. [`ValetKeys`] are for bytes that this service serves itself. With
//! feature `object_store`, `Uploads` hand out signed URLs of a cloud's store, and complete what
//! clients wrote with them.
//!
//! # When, and when not
//!
//! Use it where many or large transfers should not pass through the code that knows the user: the
//! process that serves the bytes needs the keys of a ring, and neither users nor rights. Do not use
//! it where each transfer must be judged by itself, or where the content must be processed first.
//! Signed URLs to read from a cloud's store are those of the crate `object_store`.
//!
//! # Defaults
//!
//! | setting | default | |
//! |---|---|---|
//! | `lifetime` | 15 min | of a key whose grant names none |
//! | `max_lifetime` | 7 d, at most | longest time for which a key may be valid |
//! | `early` | 5 min | a key is valid so long before its issue, since clocks differ |
//! | `on_store_failure` | deny | answer while it is not known whether a key was revoked |
//! | `call_timeout` | 3 s | time limit of the requests of a check or a revocation to the store |
//! | `retry_after` | 1 s | time after which callers return while the store is away |
//!
//! Of uploads:
//!
//! | setting | default | |
//! |---|---|---|
//! | `kind` | S3 | the headers that the URLs of this store can bind |
//! | `url_lifetime` | 15 min | a URL ends with the credentials that sign it |
//! | `credentials_lifetime` | 1 h | longest `url_lifetime` |
//! | `max_bytes` | 10 MiB | of one upload; at most 5 GiB |
//! | `max_outstanding` | 1 GiB | declared by a tag's uploads, until each and its URL have ended; at most 1,000 |
//! | `grace` | 1 h | after its end a URL's upload may run on; then a sweep ends it |
//! | `keep_results` | 7 d | after that, for repeated completions |
//! | `sweep_interval` | 1 min | |
//! | `call_timeout` | 30 s | of each request to either store |
//! | `inspect_timeout` | 5 min | of each inspection |
//! | `retry_after` | 1 s | time after which callers return while a store is away |
//!
//! Refused: a grant for everything, one for a single use without a store, and a store without times
//! to live, or that is not linearizable. For uploads it must be durable as well.
//!
//! # Example
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use futures_util::{StreamExt, stream};
//! use steadfast::{
//!     store::InMemoryStore,
//!     token::{Key, KeyRing},
//!     valet_key::{Grant, KeyRefused, LimitedError, Operation, ValetKeyConfig, ValetKeys},
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let ring = KeyRing::new([Key::generate("2027-01")?])?; // in a service, `Key::private` of a file
//! let store = Arc::new(InMemoryStore::new());
//! let config = ValetKeyConfig::default();
//! let keys = ValetKeys::builder("files", ring, config).revocable(store).build()?;
//!
//! // For the holder "ada": one upload below a folder, of at most 9 bytes.
//! let grant = Grant::put("t7/in/").max_bytes(9).single_use().tag("ada");
//! let key = keys.issue(grant.expires_in(Duration::from_secs(600)))?;
//!
//! // The request with the key.
//! let pass = keys.check(Operation::Put, "/t7/in/scan.pdf", key.as_str()).await?;
//! assert_eq!(pass.path(), "t7/in/scan.pdf");
//! let body = stream::iter([Ok::<_, std::io::Error>("%PDF-1.7"), Ok("more")]);
//! let read: Vec<_> = pass.limit(body).collect().await;
//! assert!(matches!(read[..], [Ok("%PDF-1.7"), Err(LimitedError::TooLarge)]));
//!
//! let again = keys.check(Operation::Put, "/t7/in/scan.pdf", key.as_str()).await;
//! assert!(matches!(again, Err(KeyRefused::Used)));
//! # Ok(())
//! # }
//! ```
//!
//! `Uploads` has an example of an upload, and the example `valet_key` of the repository runs some.
//!
//! # The five commonest uses
//!
//! ```
//! use std::sync::Arc;
//! use steadfast::{
//!     observe::Event,
//!     store::InMemoryStore,
//!     token::{Key, KeyRing},
//!     valet_key::{Grant, HEADERS, Operation, ValetKeyConfig, ValetKeyEvent, ValetKeys},
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let ring = KeyRing::new([Key::secret("2027-01", &[7; 32])?])?;
//! # let (store, config) = (Arc::new(InMemoryStore::new()), ValetKeyConfig::default());
//! // 1. Reading one path, without a store: valid until it expires.
//! let keys = ValetKeys::new("files", ring.clone(), config)?;
//! let key = keys.issue(Grant::get("t7/out/report.pdf"))?;
//! let pass = keys.check(Operation::Get, "/t7/out/report.pdf", key.as_str()).await?;
//!
//! // 2. The operation of a request, and the headers of each answer.
//! let operation = Operation::of_method("GET").ok_or("not allowed")?;
//! for (name, value) in HEADERS {
//!     println!("{name}: {value}");
//! }
//!
//! // 3. Revocation of one key, and of all of a holder.
//! let keys = ValetKeys::builder("files", ring.clone(), config).revocable(store).build()?;
//! let key = keys.issue(Grant::list("t7/").tag("ada"))?;
//! keys.revoke_key(key.id()).await?;
//! keys.revoke_tag("ada").await?;
//! let refused = keys.check(Operation::List, "/t7/in/", key.as_str()).await.unwrap_err();
//! assert_eq!((refused.as_str(), refused.status()), ("revoked", 403));
//!
//! // 4. A holder who goes on.
//! let other = keys.issue(Grant::get("t7/out/").tag("bob"))?;
//! let renewed = keys.renew(other.as_str()).await?;
//! assert_eq!(renewed.id(), other.id());
//!
//! // 5. An account of bytes and uses.
//! let counted = ValetKeys::builder("files", ring, config)
//!     .on_event(|event: &Event<ValetKeyEvent>| {
//!         if let ValetKeyEvent::Transferred { tag, bytes, .. } = &event.what {
//!             println!("{tag:?} has moved {bytes} bytes");
//!         }
//!     })
//!     .build()?;
//! # let _ = (operation, pass, counted);
//! # Ok(())
//! # }
//! ```
//!
//! # How it works
//!
//! A key is a signed token (`valet+jwt`) with the grant, an id and the time of its issue. A check
//! compares signature, end, operation and path, and needs no request to anything. With a store it
//! then looks for a revocation of the id and of the tag, both at once; a key for one use is
//! inserted instead, so that of many requests one succeeds.
//!
//! A path is compared as it was sent, behind the rules of `http::strict_path`: two programs that
//! decode it differently would not agree on what the key is for.
//!
//! An upload is one row. The client writes a random name below `incoming/`. A completion records
//! the name of a copy, copies the object there, and checks size, type and digest and inspects the
//! copy, which no URL can write; the result is recorded, and only then is the rest deleted. Any
//! number of completions may do this at once, each with a copy of its own: the first result that is
//! recorded holds. The row stays until the URL has ended and nothing can arrive any more.
//!
//! # Composing
//!
//! Issue keys behind [`federated_identity`](crate::federated_identity), with the tenant in the path
//! and the subject as the tag. Send them in a header where that is possible: addresses are logged
//! by all that they pass. In a browser the answers of the serving process need CORS headers.
//!
//! # Guarantees
//!
//! 1. A key grants one of get, put, list and delete, on one path or below one folder by whole
//!    segments: `t7/in/` is not for `t7/inbox`. An ambiguous path is refused.
//! 2. The bytes of a body are counted while it streams: the first one beyond the limit ends it,
//!    whatever length was declared.
//! 3. A key for one use is used up when its request is let in, before the first byte of a body: of
//!    many requests at once, in any number of processes, one is let in, even if it then fails.
//! 4. A revocation of a key or of a tag holds from the next check on in each process, for the keys
//!    that were issued before it, and for those into which they were renewed, by clocks that differ
//!    by `early` at most. A renewal keeps rights, id and length of life.
//! 5. Issue, use, transfer, refusal and revocation are events, and none contains a key.
//! 6. An upload's URL writes one random name. It binds type, checksum and absence on S3, type,
//!    length and absence on GCS, and nothing else on Azure; `explain` tells what is not bound. The
//!    declared bytes of a tag's uploads are limited, over all processes, until each and its URL
//!    have ended.
//! 7. An upload is accepted once or never. What was checked is what is accepted. After the death of
//!    a process at any step, with parallel completions, and with clients that lie, write again or
//!    never report, there is one accepted object or none, and what else was written is deleted.
//!
//! # Cancel safety
//!
//! A dropped [`check`](ValetKeys::check) may have used up a key for one use. A dropped completion
//! of an upload goes on with the next one, or with a sweep.
//!
//! # Events
//!
//! The variants of [`ValetKeyEvent`]: issued, used, transferred, refused, revoked, store away. The
//! metrics count the same. Of `UploadEvent`: begun, limited, accepted, rejected, sweep failed. An
//! event is sent after its row was written, and is lost with its process.
//!
//! # Pitfalls
//!
//! - A process that checks without the store lets revoked keys in, and refuses those for one use.
//! - A key for one use is not given back if its request fails: issue another.
//! - Who has a key has its rights. TLS, and logs without addresses, are yours.
//! - A key can be renewed as long as it is valid: offer that to holders whom you know.
//! - Grant and tag are readable in the key.
//! - A revocation of a tag holds for what is issued in the next 5 min (`early`) as well, and longer
//!   if the revoker's clock is ahead.
//! - A store that forgets, such as one in memory after a restart, forgets uses and revocations.
//! - On S3 a URL without a declared digest does not bind the length, since `object_store` signs no
//!   `content-length`: what is larger costs space until it is rejected.
//! - Credentials for uploads need to list, or an S3 answers 403 instead of 404 for an object that
//!   is not there yet. Give nobody else rights to write below `copies/`.
//! - Below `copies/` lie copies that are not judged yet, or were rejected: only the path of an
//!   `Accepted` is accepted. Serve no listing of it, and let no notification of the bucket start
//!   work with it.
//! - Uploads need a process with `run`: without it bytes stay outstanding. A URL that is used again
//!   after a completion adds as much again, and on S3 without a digest any number of bytes: declare
//!   one. It is deleted when the URL has ended.
//! - A row that is damaged, or of a newer release, stays outstanding, and each sweep tells it:
//!   delete it in the store if it is damaged.
//! - An upload that is slower than `grace` arrives when its row is forgotten: give the bucket a
//!   rule that deletes what lies below `incoming/` for a day.
//! - A client may have uploads of one part alone: at most 5 GiB, and no forms of S3.
//! - `content-encoding`, `content-disposition` and `cache-control` that a client adds to its upload
//!   are neither bound nor compared, and stores copy them: set your own when you serve a copy.
//! - A path of a [`Pass`] is percent-encoded as it was sent: decode it once, and let the system's
//!   own rules for names judge the result.
//! - [`Pass::limit`] counts one body: each call begins with the whole limit.
//! - An event of an end that was recorded, but whose answer was lost, is missing.
//! - [`HEADERS`] keep an answer out of caches, and its address out of what it links to.
//!
//! # Source
//!
//! "Valet Key", Cloud Design Patterns. RFC 8725, section 3.11 (explicit types of tokens).
mod claims; // the content of a key, and the checks that need no store
mod config;
mod event;
mod grant;
mod keys;
mod limited; // a body that ends at its limit
mod refused;
#[cfg(all(test, not(steadfast_loom)))]
mod tests;
#[cfg(feature = "object_store")]
mod uploads;

pub use config::{OnStoreFailure, ValetKeyConfig};
pub use event::ValetKeyEvent;
pub use grant::{Grant, Operation};
pub use keys::{IssueError, Pass, ValetKey, ValetKeys};
pub use limited::{Limited, LimitedError};
pub use refused::KeyRefused;
#[cfg(feature = "object_store")]
pub use uploads::{
    Accepted, Candidate, Declared, Inspection, RejectReason, StoreKind, Ticket, UploadConfig, UploadError, UploadEvent,
    Uploads,
};

/// Headers of each answer to a request with a key.
pub const HEADERS: [(&str, &str); 2] = [("cache-control", "no-store"), ("referrer-policy", "no-referrer")];
