//! Settings outside of the release: documents in a store, with a number, an audit, and a trial in
//! each process.
//!
//! # When, and when not
//!
//! Use it for settings that applications or instances share, that change without a release, or that
//! need an audit. One instance reads a file: [`watch_file`]. Settings that change with the release
//! belong to the release, and secrets to a store of secrets.
//!
//! # Defaults
//!
//! | setting | default | |
//! |---|---|---|
//! | `poll_interval` | 30 s ± 20 % | without a notice a change is looked for after 36 s at most |
//! | `call_timeout` | 5 s | of one request to a store |
//! | `max_document` | 1 MiB | larger ones are refused by publishers and processes |
//! | `history` | 100 | revisions for rollbacks and the audit |
//! | `on_start_failure` | `last_known_good` with a local store, else `fail` | start without a usable revision |
//! | `trial` | 60 s with a local store, else none | time in which a revision must prove itself |
//! | `max_trial_starts` | 2 | lives that a revision on trial may end |
//!
//! # Example
//!
//! ```
//! use std::sync::Arc;
//! use serde::Deserialize;
//! use steadfast::{
//!     config_store::{
//!         Change, ConfigPublisher, ConfigStore, ConfigStoreConfig, Documents, PublishError,
//!         PublisherConfig, Veto,
//!     },
//!     store::InMemoryStore,
//! };
//!
//! #[derive(Deserialize)]
//! struct Settings { retries: u32 }
//!
//! type BoxError = Box<dyn std::error::Error + Send + Sync>;
//!
//! fn load(documents: &Documents) -> Result<Settings, BoxError> {
//!     Ok(toml::from_str(documents.text("billing")?)?)
//! }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), BoxError> {
//! let store = Arc::new(InMemoryStore::new()); // in a service, one that all processes share
//!
//! // The publisher knows the loaders of all programs that read the configuration.
//! let publisher = ConfigPublisher::builder(store.clone(), "shop", PublisherConfig::default())
//!     .reader(["billing"], load)
//!     .build()?;
//! let first = Change::to("billing", "retries = 3").by("ada").because("launch");
//! assert_eq!(publisher.publish(first).await?, 1);
//!
//! let settings = ConfigStore::builder(store, "shop", load, ConfigStoreConfig::default())
//!     .layers(["billing"])
//!     .build()
//!     .await?;
//! let now = settings.current(); // an atomic load
//! assert_eq!((now.number(), now.retries), (1, 3));
//!
//! // A document that a reader refuses is not published.
//! let error = publisher.publish(Change::to("billing", "retries = -1")).await.unwrap_err();
//! assert!(matches!(error, PublishError::Invalid { .. }));
//!
//! publisher.publish(Change::to("billing", "retries = 5").by("ada").expecting(1)).await?;
//! settings.refresh().await?; // `run` does it at each notice and poll
//! assert_eq!((settings.current().number(), settings.current().retries), (2, 5));
//! assert_eq!(now.retries, 3); // a revision never changes
//!
//! assert_eq!(publisher.rollback(1, "ada", "too many errors").await?, 3);
//! settings.refresh().await?;
//! assert_eq!((settings.current().number(), settings.current().retries), (3, 3));
//!
//! // In a service, until its shutdown. `Err` vetoes a revision.
//! # let shutdown = tokio::time::sleep(std::time::Duration::from_secs(90));
//! settings
//!     .run(shutdown, |next| async move {
//!         if next.retries > 9 { Err(Veto::new("too many retries")) } else { Ok(()) }
//!     })
//!     .await;
//! # Ok(())
//! # }
//! ```
//!
//! # The five commonest uses
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use steadfast::{
//!     config_store::{
//!         Change, ConfigPublisher, ConfigStore, ConfigStoreConfig, Documents, PublisherConfig,
//!         Veto,
//!     },
//!     notify::InMemoryNotifier,
//!     store::InMemoryStore,
//! };
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (store, notifier) = (Arc::new(InMemoryStore::new()), Arc::new(InMemoryNotifier::new()));
//! # let load = |d: &Documents| Ok::<_, std::io::Error>(d.names().count());
//! // 1. Several programs read parts of one configuration, and all of them are asked.
//! let publisher = ConfigPublisher::builder(store.clone(), "shop", PublisherConfig::default())
//!     .reader(["org", "billing"], load)
//!     .reader(["org", "orders"], load)
//!     .notifier(notifier.clone())
//!     .build()?;
//!
//! // 2. Two documents change at the same moment.
//! let both = Change::to("org", "currency = 'EUR'").and(Change::to("billing", "vat = 19"));
//! publisher.publish(both.by("ada").because("move to the euro")).await?;
//!
//! // 3. Layers: the loader lays `billing` over `org`, and refuses fields that are closed.
//! let settings = ConfigStore::builder(store, "shop", load, ConfigStoreConfig::default())
//!     .layers(["org", "billing"])
//!     .notifier(notifier) // changes arrive at once
//!     .member("eu-1")
//!     .build()
//!     .await?;
//!
//! // 4. Follow the changes, and tell a part of the program of its own.
//! let following = settings.clone();
//! let follow = async move {
//!     let stop = tokio::time::sleep(Duration::from_secs(60));
//!     following.run(stop, |_next| async { Ok::<_, Veto>(()) }).await;
//! };
//! # follow.await;
//!
//! // 5. A health check: how long ago was the store read?
//! let is_fresh = settings.state().age.is_some_and(|age| age < Duration::from_secs(300));
//! # assert!(is_fresh);
//! # Ok(())
//! # }
//! ```
//!
//! # Trials
//!
//! With a [local store](ConfigStoreBuilder::local), such as an SQLite file, a process records the
//! number of a revision there before it parses anything of it. After `trial` of healthy running the
//! revision is good, and its documents are kept. If the process dies instead, the next start counts
//! a death. After `max_trial_starts` of them the process starts with the last good revision, and
//! says [`Quarantined`](RejectReason::Quarantined) until a higher number comes. A process that has
//! no good one yet tries again: it has nothing better. An orderly end of
//! [`run`](ConfigStore::run) is no death. A program that reads and ends calls it with a shutdown
//! that is ready at once. The time is the monotonic one of a run: a loop of crashes never adds up
//! to a trial.
//!
//! | moment of the death | next start |
//! |---|---|
//! | before the number is recorded | parses it, first life |
//! | after that, while it is parsed or runs | parses it, second life |
//! | in the second life | the last good revision, if there is one; the number is quarantined |
//! | after the trial | parses it: it is good, once it is in effect for all processes |
//!
//! # Composing
//!
//! A function of [`run`](ConfigStore::run) applies a revision to the parts of a program; its `Err`
//! keeps the one before. [`Health::is_fit`](crate::health::Health::is_fit) is the
//! [health check](ConfigStoreBuilder::health_check) of a trial, and `state().age` a check of
//! [`health`](crate::health). A store of your own on a named cloud service implements
//! [`Store`](crate::store::Store); encryption is such a store around another one.
//!
//! # Guarantees
//!
//! 1. A change is published only if the loaders of all readers accept the documents as they would
//!    be. Of two publishers that expect the same number one wins. After a crash a change is
//!    published as a whole or not at all.
//! 2. One number covers all documents: no revision mixes moments. A revision that changes none of a
//!    program's layers is taken without parsing.
//! 3. A revision that is damaged or too large, that the loader refuses or panics on, or that the
//!    program vetoes, is not taken: the one before stays, one event has the reason, and later ones
//!    are taken. With a local store and a good revision a start does not take what was vetoed, and
//!    `run` asks again. Else it does: check in the loader what must hold at a start.
//! 4. A change arrives with its notice, or within 1.2 of `poll_interval`, and is applied once.
//!    [`refresh`](ConfigStore::refresh) looks at once. While the store is away the revision stays.
//!    A start follows `on_start_failure`, also if the local store can be read and not written. A
//!    lower number, from a backup, is taken, with an event. A number that is given again after
//!    that is another revision.
//! 5. With a local store and a good revision, a number that has ended `max_trial_starts` lives on
//!    trial is not parsed again in that process until it has seen a higher one. The process starts
//!    with the good one, or not at all, by `on_start_failure`.
//! 6. [`rollback`](ConfigPublisher::rollback) publishes the documents of an earlier number as a new
//!    one. Only revisions beyond `history` are deleted.
//! 7. Each revision has author, reason, time, digest, and the source of a rollback. The number that
//!    each of up to 500 members runs is listed, on a store with times to live. No event and no text
//!    of an error has a value of a document, except for what a loader says of a change to its
//!    publisher.
//! 8. [`watch_file`] yields the text of a file whenever it differs: by a link to another file, too.
//!
//! Refused: a store that is not linearizable, a local one that is not durable, no layers or more
//! than 16, a `poll_interval` below 1 s, a `trial` or `last_known_good` without a local store.
//!
//! # Cancel safety
//!
//! A dropped [`publish`](ConfigPublisher::publish) or [`rollback`](ConfigPublisher::rollback) is
//! made as a whole or not at all. A dropped [`refresh`](ConfigStore::refresh) or
//! [`run`](ConfigStore::run) leaves the revision in effect; during a trial it counts as a death. A
//! dropped [`changed`](FileWatch::changed) loses no change.
//!
//! # Events
//!
//! The variants of [`ConfigStoreEvent`]: applied, rejected, refresh failed, trial began, trial
//! passed, started from local, local failed. Those of [`PublisherEvent`]: published, refused.
//!
//! # Pitfalls
//!
//! - Processes differ for a while: up to 1.2 of `poll_interval` without notices, and longer if one
//!   cannot reach the store. [`members`](ConfigPublisher::members) shows the number of each.
//! - Errors of parsers often quote the text. A log that shows
//!   [`Invalid`](PublishError::Invalid)'s source shows values.
//! - All documents of a configuration are read together. What changes each minute, or is large,
//!   deserves a configuration of its own.
//! - A store limits the size of a revision, which has all documents: NATS allows 1 MiB by default.
//! - A function of `run` that awaits [`refresh`](ConfigStore::refresh) waits for itself, forever.
//! - The local store has documents in clear text. A local row that cannot be read ends the start.
//! - A release with other layers has no good revision of its own yet, and no trials.
//! - A revision that is refused is not read again before a restart, even if its cause is gone:
//!   publish anew, by [`force`](Change::force).
//! - Loaders run on the thread of the runtime. A reason without a field is that of a parser: let
//!   the loader name the field, by a [`ConfigError`](crate::ConfigError).
//! - If the revision in effect is damaged, [`publish`](ConfigPublisher::publish) fails, and
//!   [`rollback`](ConfigPublisher::rollback) to an intact one is the way out.
//! - A publisher without readers refuses nothing, and nobody is told of a name that no one reads.
//! - Caches of derived values need to be thrown away: keep them beside the revision they belong to.
//! - A backup, and the end of a roll-out that was aborted, make numbers lower: compare for
//!   equality.
//! - Reads are logged by the store, if it logs them. Writes are in the audit.
//!
//! # Source
//!
//! "External Configuration Store", Cloud Design Patterns. Numbered revisions, validation before
//! publishing and the return to an earlier one are known from AWS AppConfig.
mod change;
mod component;
mod config;
mod documents;
mod event;
mod file;
mod local;
mod members;
mod publisher;
mod revision;
mod run;
mod state;

#[cfg(all(test, not(steadfast_loom)))]
mod tests;

pub use change::Change;
pub use component::{ConfigState, ConfigStore, ConfigStoreBuilder, ConfigStoreError};
pub use config::{ConfigStoreConfig, OnStartFailure, PublisherConfig};
pub use documents::{DocumentError, Documents, RevisionInfo};
pub use event::{ConfigStoreEvent, PublisherEvent, RejectReason};
pub use file::{FileWatch, watch_file};
pub use members::MemberReport;
pub(crate) use publisher::Found;
pub use publisher::{ConfigPublisher, PublishError, RolloutStep, RolloutStepKind};
pub use revision::{Revision, Veto};
