//! Materialized views: rows that are computed from events, and read by key.
//!
//! A [`View`] follows topics, such as a log of [`event_sourcing`](crate::event_sourcing). A
//! [`Projection`] says which rows an event changes, and how. Each answer has the place up to which
//! it is computed.
//!
//! # When, and when not
//!
//! Use it where a question is hard or slow to answer from the data as they are stored: totals, a
//! list for one page of a service, data of several logs. Use it to show others a part without the
//! form or the secrets of the source. Do not use it
//!
//! - where the source answers as well: a stream that is read by its name needs no view,
//! - where an answer must be exact at once, and not only for who brings a token,
//! - where the source changes far more often than the view is read.
//!
//! # Defaults
//!
//! | setting | default | |
//! |---|---|---|
//! | `version` | 1 | number of the projection: a new one is built beside the old one |
//! | `page` | 500 | events that are folded at a time, at most |
//! | `idle` | 50 ms to 5 s | delays between polls that find nothing |
//! | `standby` | 5 s | time for which a projector waits after another one has moved the checkpoint |
//! | `undecodable` | stop | treatment of an event that does not decode: stop, or park its stream |
//!
//! # Example
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use serde::{Deserialize, Serialize};
//! use steadfast::{
//!     codec::Codec,
//!     event_sourcing::{Commit, EventCodec, EventStore, Expected},
//!     materialized_view::{Projection, Sourced, View, ViewConfig},
//!     store::InMemoryStore,
//! };
//!
//! #[derive(Serialize, Deserialize)]
//! struct Sold { product: String, cents: u64 }
//!
//! #[derive(Serialize, Deserialize, Default)]
//! struct Total { cents: u64 }
//!
//! struct Sales;
//!
//! impl Projection for Sales {
//!     type Event = Sold;
//!     type Row = Total;
//!
//!     fn keys(&self, sold: &Sourced<Sold>) -> Vec<String> {
//!         vec![sold.event.product.clone()]
//!     }
//!
//!     fn fold(&self, _key: &str, row: Option<Total>, sold: &Sourced<Sold>) -> Option<Total> {
//!         Some(Total { cents: row.unwrap_or_default().cents + sold.event.cents })
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // In a service, a durable store, such as a SQLite file or a PostgreSQL server.
//! let store = Arc::new(InMemoryStore::new());
//! let log = EventStore::open(store.clone(), "orders").await?;
//! let json = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
//! let codec = EventCodec::new(json, |_: &Sold| "Sold");
//! let totals = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
//! let view = View::builder(store, "sales", Sales, totals, ViewConfig::default())
//!     .source(log.topic(), codec.clone())
//!     .build()?;
//!
//! // Each process runs it: one folds, the others stand by. It ends with an error if an event
//! // cannot be decoded, and then reads say no more than that the view is behind.
//! let projector = view.clone();
//! tokio::spawn(async move {
//!     if let Err(error) = projector.run(std::future::pending()).await {
//!         eprintln!("the view has stopped: {error}");
//!     }
//! });
//!
//! let sold = codec.encode(&Sold { product: "tv-42".into(), cents: 700 })?;
//! let commit = Commit::new("order-1").append("order-1", Expected::Version(0), [sold]);
//! let done = log.commit(commit).await?;
//!
//! // A client that sends the token of its command reads its own write.
//! let read = view.get_after("tv-42", &done.token, Duration::from_secs(2)).await?;
//! assert_eq!(read.row.unwrap().cents, 700);
//! assert_eq!(read.as_of.to_string(), "orders@1");
//! # Ok(())
//! # }
//! ```
//!
//! # The five commonest uses
//!
//! ```
//! use std::time::Duration;
//! use steadfast::{
//!     backend,
//!     codec::Codec,
//!     materialized_view::{Projection, SourceCodec, Sourced, View, ViewConfig, ViewError},
//!     stream::{Event, StoreTopic, Topic},
//! };
//!
//! struct Clicks;
//!
//! impl Projection for Clicks {
//!     type Event = String;
//!     type Row = u64;
//!
//!     fn keys(&self, page: &Sourced<String>) -> Vec<String> {
//!         vec![page.event.clone()]
//!     }
//!
//!     fn fold(&self, _key: &str, row: Option<u64>, _: &Sourced<String>) -> Option<u64> {
//!         Some(row.unwrap_or_default() + 1)
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let backend = backend::open("memory:").await?;
//! # let shutdown = || tokio::time::sleep(Duration::from_secs(1));
//! let clicks = StoreTopic::open(backend.store(), "clicks", 4).await?;
//! clicks.append(0, vec![Event::new("/news")]).await?;
//! let text = || Codec::new(
//!     |page: &String| Ok::<_, std::fmt::Error>(page.clone().into_bytes()),
//!     |bytes| String::from_utf8(bytes.to_vec()),
//! );
//! let numbers = || Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
//!
//! // 1. Follow any topic, with all of its partitions.
//! let config = ViewConfig::default();
//! let one = View::builder(backend.store(), "clicks", Clicks, numbers(), config)
//!     .source(clicks.clone(), text())
//!     .build()?;
//! one.run(shutdown()).await?;
//! assert_eq!(one.get("/news").await?.row, Some(1));
//!
//! // 2. Build a new version beside the old one, which is served until it is retired.
//! let lower = SourceCodec::from(text()).map(|page| page.to_lowercase());
//! let two = View::builder(backend.store(), "clicks", Clicks, numbers(), config.version(2))
//!     .source(clicks.clone(), lower)
//!     .build()?;
//! assert!(matches!(two.get("/news").await, Err(ViewError::Building { .. })));
//! two.run(shutdown()).await?;
//! two.ready().await?;
//! two.retire(1).await?;
//!
//! // 3. Fold all events anew, while readers are served.
//! two.rebuild().await?;
//!
//! // 4. Load the rows from elsewhere, say each night.
//! two.regenerate(async |page| Ok::<_, std::io::Error>(match page {
//!     0 => vec![("/news".to_owned(), 12)],
//!     _ => Vec::new(),
//! })).await?;
//! assert_eq!(two.get("/news").await?.row, Some(12));
//!
//! // 5. Watch how far it is behind, and what it costs.
//! let state = two.state().await?;
//! assert_eq!((state.as_of.events_to(&state.head), state.rows, state.parked), (0, 1, 0));
//! # Ok(())
//! # }
//! ```
//!
//! # The view in a store
//!
//! A view is one partition of a store. A *generation* is the fold of the sources up to its
//! checkpoint: one row with the place of each partition of each source. A page of events is one
//! batch with the checkpoint and the rows as they are behind the page, and it requires the version
//! of the checkpoint on which it was computed. A read asks for the number of the served generation,
//! its checkpoint and the row in one scan of [named rows](crate::store::Rows::Named), which are of
//! one moment.
//!
//! # Projectors
//!
//! Each process may [run](View::run) a projector. There is no lease. If two fold the same page, one
//! of the batches is refused, and its projector stands by. It takes over once the sources had more
//! and the checkpoint stood still for `standby`, at most three times `standby` after the last page.
//!
//! # Generations
//!
//! A [rebuild](View::rebuild) folds a generation of its own, from the first event on. The served
//! one goes on meanwhile. They change places in one batch that requires both checkpoints as they
//! were compared: the new one is nowhere behind the old one. The rows of the old one are deleted
//! last, between pages of events. A rebuild whose process died is resumed by the projectors. If it
//! cannot succeed, they leave it alone and go on with the served generation; the next call of
//! `rebuild` gives it up. Each
//! [version](ViewConfig::version) has generations of its own, so that processes of two releases run
//! beside each other. The first generation of a version is served once it has all events that the
//! sources had when it was at most a page behind: they need not rest.
//!
//! # A source that was restored
//!
//! The checkpoint has a hash of the last event of each partition, and each page reads that event
//! again. If it is another one, or gone from the end, the source was restored from a backup, and
//! rows have events that no longer exist. A log that was lost and made anew has another identity:
//! it is another source. The view is
//! [`Diverged`](ViewError::Diverged): its projectors stop, and reads fail.
//!
//! Projectors may run while a source is restored. A [`StoreTopic`](crate::stream::StoreTopic)
//! compares what it has in memory with its store at each page, and at least each minute. If a topic
//! of another kind answers from memory without that, stop the projectors before, and start them
//! behind it. A rebuild that has folded lost events stops itself alone, if the served rows have
//! none of them.
//!
//! Once a view is `Diverged`, an operator
//!
//! 1. finds out whether the restored source is the one to keep: the error names topic and place,
//! 2. calls [`rebuild`](View::rebuild), which folds the events that exist; only here a place may go
//!    back,
//! 3. starts the projectors again, and tells clients to forget the tokens from before.
//!
//! # Composing
//!
//! - **Reads of one's own writes**: the [`Token`](crate::event_sourcing::Token) of a commit travels
//!   with the answer, say as a header, and comes back with the next read.
//! - **Commands**: a decision belongs to an [aggregate](crate::event_sourcing::Aggregate). A form
//!   that was filled in from a view sends what its user saw, for the aggregate to compare.
//! - **A projector that ended**: `run` returns at an error that stays. Let a
//!   [`supervisor`](crate::supervisor) run it, or alert once it has returned.
//! - **Another question to the same rows**: another view, or rows under more keys. A list that is
//!   read as one is one row.
//! - **A store of another kind**: the view's store need not be that of its sources. In memory, each
//!   process has a view of its own, which is built again at each start.
//! - **Idempotency** ([all ways](crate::_docs::once)): a page takes effect with its checkpoint.
//!
//! # Guarantees
//!
//! 1. An answer is of one moment: the row is the fold of exactly the events up to its place.
//! 2. Each event is folded once, by any number of projectors, of which each may die at any request.
//!    One folds, the others stand by, and one of them takes over.
//! 3. A token is answered once the view has all that it covers, and never before. Events that
//!    change no row count, too. A token of another log is refused. No order is promised between
//!    sources, or between partitions.
//! 4. During a rebuild readers are served the old rows, up to the switch. No reader sees an earlier
//!    place after a later one, a mixture, or an empty view. A rebuild whose process died is
//!    resumed. One that cannot succeed stops itself alone.
//! 5. A version that has not caught up once says that it is being built, and how far. It does not
//!    disturb other versions. A retired one is deleted, and its processes are told.
//! 6. An event that does not decode stops the projector before it, or parks its stream. That is
//!    named until a rebuild. One of a newer schema, or without a stream, always stops it. An event
//!    with a key that is too long for the store, or has a zero byte, counts as one that does not
//!    decode.
//! 7. A record that changes more rows than a batch holds stops the projector, and so does a source
//!    that was trimmed too far. The error has the place, and the rows stay.
//! 8. If a source has another event than the one that was folded last, the view says so until a
//!    rebuild.
//! 9. Rows of a loader are served once all are there. A load that fails, or returns a key twice or
//!    one that no event may have, leaves the old ones.
//! 10. A setting, a source or a store that breaks a rule is refused by its name. Another set of
//!     sources needs another version: projectors, rebuilds and loads of it are refused.
//! 11. A lost checkpoint, and a lost store, are built again.
//!
//! # Cancel safety
//!
//! A dropped [`run`](View::run), [`rebuild`](View::rebuild) or [`retire`](View::retire) left its
//! last request in effect as a whole, or not at all; projectors go on with a rebuild. A dropped
//! [`regenerate`](View::regenerate) leaves the old rows; if there are none, projectors build them
//! from events a minute later. Dropped reads lose nothing.
//!
//! # Events
//!
//! [`ViewEvent`]: projected, switched, stands by, parked, rebuild stopped, stopped, failed. Alert
//! on both kinds of stopped, on parked, and on a distance of [`state`](View::state) between `as_of`
//! and `head` that grows.
//!
//! # Pitfalls
//!
//! - `keys` and `fold` are pure functions of the event: a clock, a random number or another row in
//!   them makes a rebuild differ.
//! - A changed projection needs another `version`. Without it, rows are a mixture of both.
//! - A view needs all events from the first on. Trim a log behind the slowest view, and give a new
//!   version its rows by [`regenerate`](View::regenerate) if earlier events are gone.
//! - Each row of a page is read and written as a whole. A key that all events change limits the
//!   rate to the batches of one row, and a row that grows without end costs more with each event.
//! - The versions of a view are followed apart. A client that goes from a process of one to a
//!   process of the other sends its token.
//! - A parked stream is wrong until a rebuild. Alert on it. A codec that reads more than before is
//!   another `version`: processes with the old one may fold a rebuild, too, and park the stream
//!   again.
//! - Rows, or a row `v/VERSION`, that another program deletes from the store are not missed.
//! - A row above the store's limit for values stops the projector. The error has its key, and not
//!   the place of the event.
//! - A retired version does not come back: a release that is rolled back takes a new number.
//! - What a loader reads is as consistent as its source. Events that came during the load may be in
//!   its rows, and are folded into them again: load from a source that stands still, or into a view
//!   that never had a source.
//! - Each version and each view costs storage. [`state`](View::state) has the rows and the bytes.
//!
//! # Source
//!
//! "Materialized View", in: "Cloud Design Patterns" of Microsoft patterns & practices, 2014.
//! Checkpoints in the transaction of the rows: Marten's asynchronous daemon. Versions of a
//! projection side by side: Marten 7.
mod as_of;
mod config;
mod error;
mod event;
mod projection;
mod rebuild; // generations beside the served one
mod run; // the projector
mod source;
mod state; // generations, checkpoints, the cut of a page
mod stored;
#[cfg(all(test, not(steadfast_loom)))]
mod tests;
mod view; // the component, and reads

pub use as_of::AsOf;
pub use config::{Undecodable, ViewConfig};
pub use error::ViewError;
pub use event::ViewEvent;
pub use projection::{Projection, Sourced};
pub use source::SourceCodec;
pub use view::{ParkedStream, View, ViewRow, ViewState};
