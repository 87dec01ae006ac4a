//! Sharding: one data set in several stores with the same schema, and a map from each key to the
//! shard that owns it.
//!
//! Unlike the copies of a cache, each row has one home. All processes must agree on it, also while
//! it changes.
//!
//! # When, and when not
//!
//! Use sharding when one node's storage, processors, network or space do not suffice, or when too
//! many clients contend for it. Do not use it earlier: a larger node is simpler, and a query over
//! many shards costs more than on one node.
//!
//! | strategy | for | against |
//! |---|---|---|
//! | [`ShardMap::lookup`]: keys are listed | control; a tenant can move alone | a map to maintain |
//! | [`ShardMap::ranges`]: keys in order | range queries touch few shards | the growing end is hot |
//! | [`ShardMap::hashed`], [`routed`](ShardMap::routed): virtual shards | an even spread; any run of them can move | range queries touch all shards |
//! | [`jump`], [`Rendezvous`], [`Ring`], [`Maglev`] alone | no map to maintain | a change moves the keys of the formula, at once |
//!
//! Keys can be [pinned](ShardMap::pin) in each of the first three, for example to isolate a large
//! tenant, or to keep the keys of a region near its users.
//!
//! # Defaults
//!
//! | what | default | why |
//! |---|---|---|
//! | hash | XXH3 of 64 bits, seed 0, permanently | the same key belongs to the same shard on every machine and in every release |
//! | `retry_timeout` | 5 s | a frozen chunk is released once the changes since its copy are copied, too |
//! | `backoff` | 5 to 250 ms, full jitter | between retries, while a key is moved |
//! | `refresh_interval` | 30 s | the first call to a wrong shard detects a changed map in any case |
//! | `max_concurrency`, `timeout` of a [`FanOut`] | 16, 10 s | no more connections than a pool has, and no unlimited wait |
//!
//! You choose the number of virtual shards. Take 4,096 for a start, far more than there will ever
//! be shards: the number cannot change.
//!
//! # Example
//!
//! ```
//! use std::sync::Arc;
//! use steadfast::{
//!     sharding::{Routed, ShardDirectory, ShardDirectoryConfig, ShardError, ShardId, ShardMap},
//!     store::InMemoryStore,
//! };
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! let mut map = ShardMap::hashed(4_096, &[0, 1, 2, 3].map(ShardId)).unwrap();
//! map.pin("a large tenant", ShardId(9)).unwrap();
//! let store = Arc::new(InMemoryStore::new());
//! let config = ShardDirectoryConfig::default();
//! let directory = ShardDirectory::builder(store, "orders", config).create(&map).await.unwrap();
//!
//! let operation = |to: Routed| async move { Ok::<_, ShardError<String>>(to.shard) };
//! let shard = directory.route("a large tenant", operation).await.unwrap();
//! assert_eq!(shard, ShardId(9));
//!
//! // The plan for a fifth shard, before anything moves: it receives its share, and no more.
//! let five = [0, 1, 2, 3, 4].map(ShardId);
//! let plan = directory.map().plan(&five).unwrap();
//! assert!(plan.iter().any(|planned| planned.to == ShardId(4)));
//! # });
//! ```
//!
//! `examples/sharding` has four databases, a fifth that is added under load, and a mover that is
//! killed.
//!
//! # The five commonest uses
//!
//! ```
//! use std::sync::Arc;
//! use steadfast::sharding::{
//!     FanOut, FanOutConfig, Routed, ShardDirectory, ShardDirectoryConfig, ShardError, ShardId,
//!     ShardMap, ShardMeter,
//! };
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let store = Arc::new(steadfast::store::InMemoryStore::new());
//! # let config = ShardDirectoryConfig::default();
//! # let map = ShardMap::hashed(4_096, &[0, 1, 2, 3].map(ShardId))?;
//! # let (meter, later) = (ShardMeter::new(16), ShardId(4));
//! # let select = |_: ShardId, _: u64| async { Ok::<_, ShardError<String>>("order 42") };
//! # let count = |_: ShardId, _: u64| async { Ok::<_, ShardError<String>>(7) };
//! // 1. Create the map once; later processes `open` it.
//! let directory = ShardDirectory::builder(store, "orders", config)
//!     .meter(&meter)
//!     .create(&map)
//!     .await?;
//!
//! // 2. Route a call to the shard of its key. The version lets the shard refuse an old map.
//! directory.route("customer-9", |to: Routed| select(to.shard, to.version)).await?;
//!
//! // 3. Ask all shards, and learn which of them failed.
//! let fan_out = FanOut::new(FanOutConfig::default())?;
//! let answers = directory.query_all(&fan_out, |shard, map| count(shard, map.version())).await?;
//! let total: u32 = answers.complete()?.into_iter().map(|(_, count)| count).sum();
//!
//! // 4. Plan a further shard, before anything moves.
//! let plan = directory.map().plan(&[ShardId(0), ShardId(1), ShardId(2), ShardId(3), later])?;
//!
//! // 5. Find the hot keys.
//! let load = meter.load(5);
//! # Ok(())
//! # }
//! ```
//!
//! Keep rows together that are queried together: no transaction spans two shards. Copy reference
//! data to each shard. Take keys that need no counter, such as UUIDs of version 7. Begin with more
//! and smaller shards than you need, because rebalancing is expensive.
//!
//! # Moving
//!
//! [`ShardMap::plan`] and [`plan_to`](ShardMap::plan_to) list the chunks that have to move.
//! [`ShardDirectory::rebalance`] moves them with your [`Mover`]. Each step is recorded in the
//! store, then [installed at both shards](Mover::install), then carried out:
//!
//! | step | the source | the target | work |
//! |---|---|---|---|
//! | copying | reads, writes | | copy |
//! | frozen | reads | | copy the changes since |
//! | closed | | | nothing: the next step may be recorded |
//! | switched | | reads, writes | drop the source's rows |
//! | undoing | reads, writes | | drop the target's rows |
//!
//! Only a move changes the owner of a key. [`ShardDirectory::change`] refuses a change that would
//! take a key from its shard, also the pin of a key without rows
//! ([`NeedsMove`](ShardingError::NeedsMove)). No guard learns of a change, and a router with the
//! older map would continue to write at the old owner. Pin the key in a copy of the map instead,
//! and rebalance with [`plan_to`](ShardMap::plan_to) that copy.
//!
//! At each step at most one shard accepts requests for a key, and from *switched* on it is the
//! target. After a crash [`resume`](ShardDirectory::resume) continues from the recorded step.
//! [`roll_back`](ShardDirectory::roll_back) undoes a move until it has switched. A chunk that is
//! offline in its [`PlannedMove`] begins frozen, and is copied once.
//!
//! This depends on the shard's own check. Each request, and all work of a mover, holds a permit of
//! a [`ShardGuard`], and a step is carried out only after all earlier permits were dropped. A stale
//! router is refused. A mover that was paused finds that its step was
//! [superseded](Refused::Superseded). `tests/simulation` removes the check, and finds the lost
//! rows.
//!
//! # Composing
//!
//! - Run the operation of [`FanOut::run`] and [`ShardDirectory::route`] through a pipeline per
//!   shard, so that a failing shard opens only its own breaker. Classify by
//!   [`port::ByFailure`](crate::port::ByFailure) and end with `.await?`: a refusal of the shard is
//!   then no failure, and is routed again.
//! - [`ShardDirectory::query_all`] is a fan-out that reads each row once, also while some are
//!   moved.
//! - Rebalance under a [leader election](crate::leader_election), so that the work is done once.
//! - [`ShardDirectory::run`] beside the service, with a notifier, keeps the copies of the map
//!   fresh.
//! - For an index from another attribute to the shard key, look up the key first, then call `route`
//!   with it.
//!
//! # Guarantees
//!
//! 1. [`jump`] returns the results of the published jump hash.
//! 2. Growing [`jump`] from `n` to `n + 1` nodes moves one key in `n + 1`, and only to the new
//!    node.
//! 3. Removing a node of a [`Rendezvous`] moves only that node's keys. Each node receives keys in
//!    proportion to its weight.
//! 4. The balance of a [`Ring`] depends on its points. With 1,000 nodes, the standard error of the
//!    shares is about 10 % at 100 points a node, and 3 % at 1,000.
//! 5. A [`Maglev`] table of the default size gives each of 1,000 nodes at most 1.01 of the mean.
//!    Removing a node moves at most 0.6 % of the other nodes' slots. [`Ring::bounded`] loads no
//!    node above `ceil((1 + e) * m / n)`.
//! 6. Ranges never overlap, and a gap exists only where one is declared. The order of encoded keys
//!    is the order of their values.
//! 7. Pinning a key twice fails, and changes nothing.
//! 8. A router with a stale map is refused before anything is written. It refreshes the map once,
//!    and routes the call again. While the key is moved, it retries until `retry_timeout`.
//! 9. Each key has at most one shard that accepts writes, also if movers crash at any step, pause,
//!    or run concurrently. The next run finishes or undoes the move, and no row is lost or
//!    duplicated.
//! 10. A fan-out reports a result or a failure for each shard. It never exceeds its concurrency
//!     limit or its deadline.
//! 11. [`merge_sorted`] reads at most `limit` rows from each source.
//! 12. [`HotKeys`] never underestimates a count, and overestimates it at most by the length of the
//!     stream divided by the number of counters. [`ShardMeter`] counts each routed call.
//! 13. Routing a key allocates nothing.
//! 14. The hash and the routers never change: a key belongs to the same node on every machine and
//!     in every release.
//! 15. [`ShardDirectory::query_all`] reads each unchanged row exactly once while rows are moved, or
//!     fails with [`ShardingError::Moving`].
//!
//! # Cancel safety
//!
//! Dropping a move has the effect of a crash: the next run continues from the recorded step.
//! Dropping a [`ShardPermit`] releases it. Dropping a fan-out drops its running operations.
//! Otherwise only the operation's own work is lost.
//!
//! # Events
//!
//! [`ShardingEvent`] by [`ShardDirectory::events`] and to `tracing` (`steadfast::sharding`):
//! changed maps, failed refreshes, and each step of a move.
//!
//! # Pitfalls
//!
//! - Versions belong to a store: a moved record has another version at its new shard. After a
//!   conflict compare the record's content, not its version alone.
//! - While a chunk is moved, its rows are at two shards. A bare [`FanOut::run`] may read them
//!   twice, or not at all: use [`ShardDirectory::query_all`] instead.
//! - A [`ShardPermit`] blocks the next step of a move: hold it for one transaction, not for a
//!   session.
//! - A write that was sent to a database continues when its future is dropped. Run a request to its
//!   end inside the guard, in a task of its own, also if its client has disconnected.
//! - A shard that restarts must [open](ShardGuard::open) its guard from the store before it serves
//!   requests.
//! - Do not mix keys of different types in one map: their encodings have different orders.
//! - A pinned key belongs to no range: a plan moves it separately.
//! - After the record of a map was deleted, do not create a map with other owners: guards and
//!   routers keep the older map, which has the higher version.
//! - A ring with 100 points a node gives one of 1,000 nodes 1.3 to 1.45 times the mean. A table of
//!   virtual shards does not.
//!
//! # Source
//!
//! The Sharding pattern of the Azure Architecture Center. Lamping, Veach 2014 (jump); Thaler,
//! Ravishankar 1998, and Schindelhauer, Schomaker 2005 (rendezvous, weights); Karger and others
//! 1997 (ring); Eisenbud and others 2016 (Maglev); Mirrokni, Thorup, Zadimoghaddam 2018 (bounded
//! loads); Metwally, Agrawal, El Abbadi 2005 (Space-Saving); Collet (XXH3).
mod config;
mod directory; // the map in the store, and its changes
mod event;
mod fan_out;
mod guard; // refusals by the shard that holds the data
mod hash_routers; // from a hash to one of many nodes
mod key;
mod map; // keys to shards, and versions
mod meter;
mod move_steps; // the order of a move's steps
mod pins; // listed keys
mod plan; // what a change of the map moves
mod ranges; // shards by ranges of keys
mod rebalance; // drives a move through its steps
mod refresh;
mod routed; // a call with the map's version
mod sketch; // counts of hot keys
mod stored; // the map as text
mod whole; // reads over all shards during a move

pub use config::{FanOutConfig, ShardDirectoryConfig};
pub use directory::{ShardDirectory, ShardDirectoryBuilder, ShardingError};
pub use event::ShardingEvent;
pub use fan_out::{FanOut, FanOutResult, ShardFailure, ShardsFailed, merge_sorted};
pub use guard::{Access, Refused, ShardGuard, ShardPermit, StaleMap};
pub use hash_routers::{HashRouter, Jump, Maglev, Node, Rendezvous, Ring, jump};
pub use key::{KeyBytes, ShardKey, hash_bytes, hash_key};
pub use map::{ShardId, ShardMap};
pub use meter::{ShardLoad, ShardMeter};
pub use move_steps::{Chunk, Move, PlannedMove, Step};
pub use rebalance::Mover;
pub use routed::{RouteError, Routed, ShardError};
pub use sketch::{HotKey, HotKeys, skew};
