//! Sharding: one data set in several stores of the same schema, and a map that says which of them owns a key.
//!
//! Unlike a cache's copies, each row has one home: what matters is that everybody agrees on it, also while it changes.
//!
//! # When, and when not
//!
//! When one node's storage, processors, network or place is not enough, or too many contend for it. Not before: a larger node is simpler, and
//! a query over many shards costs more than it did on one.
//!
//! | strategy | for | against |
//! |---|---|---|
//! | [`ShardMap::lookup`]: keys are listed | control; a tenant moves by itself | a map to keep |
//! | [`ShardMap::ranges`]: keys in order | range queries ask few shards | the end that grows is hot |
//! | [`ShardMap::hashed`], [`routed`](ShardMap::routed): virtual shards | an even spread; any run of them moves | range queries ask all |
//! | [`jump`], [`Rendezvous`], [`Ring`], [`Maglev`] alone | no map to keep | a change moves what the formula says, at once |
//!
//! Keys can be [pinned](ShardMap::pin) over each of the first three: a large tenant apart, a region's keys near its users.
//!
//! # Defaults
//!
//! | what | default | why |
//! |---|---|---|
//! | hash | XXH3 of 64 bits, seed 0, for ever | the same key goes to the same shard on every machine and in every release |
//! | `patience` | 5 s | a frozen part thaws when what changed since its copy is copied, too |
//! | `backoff` | 5 to 250 ms, full jitter | between asking again, while a key is moved |
//! | `refresh_every` | 30 s | a map that changed is noticed by the first call to a wrong shard in any case |
//! | `at_once`, `timeout` of a [`FanOut`] | 16, 10 s | no more connections than a pool has; nobody waits for ever |
//!
//! How many virtual shards is yours to say: 4,096 for a start, far more than there will ever be shards. Their number cannot change.
//!
//! # Example
//!
//! ```
//! use std::sync::Arc;
//! use steadfast::{sharding::{ShardDirectory, ShardError, ShardId, ShardMap}, store::InMemoryStore};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! let mut map = ShardMap::hashed(4_096, &[0, 1, 2, 3].map(ShardId)).unwrap();
//! map.pin("a large tenant", ShardId(9)).unwrap();
//! let directory = ShardDirectory::builder(Arc::new(InMemoryStore::new()), "orders").create(&map).await.unwrap();
//!
//! let shard = directory.route("a large tenant", |to| async move { Ok::<_, ShardError<String>>(to.shard) }).await.unwrap();
//! assert_eq!(shard, ShardId(9));
//!
//! // What a fifth shard takes, before anything moves: its share of the virtual shards, and no more.
//! let five = [0, 1, 2, 3, 4].map(ShardId);
//! let plan = directory.map().plan(&five).unwrap();
//! assert!(plan.iter().any(|planned| planned.to == ShardId(4)));
//! # });
//! ```
//!
//! `examples/sharding` has four databases, a fifth that comes in under load, and a mover that is killed.
//!
//! # Moving
//!
//! [`ShardMap::plan`] and [`plan_to`](ShardMap::plan_to) say what has to move; [`ShardDirectory::rebalance`] moves it, by a [`Mover`] of yours.
//! Each step is recorded in the store, then [told to both shards](Mover::install), then done:
//!
//! | step | the source | the target | what is done |
//! |---|---|---|---|
//! | copying | reads, writes | | copy |
//! | frozen | reads | | copy what changed since |
//! | closed | | | nothing: the next step may be recorded |
//! | switched | | reads, writes | drop the source's rows |
//! | undoing | reads, writes | | drop the target's rows |
//!
//! Only a move changes the owner of a key. [`ShardDirectory::change`] refuses what would take a key
//! from its shard, also a pin of a key that has no rows yet
//! ([`NeedsMove`](ShardingError::NeedsMove)): no guard hears of a change, and a router on the older
//! map would go on to write at the old owner. Pin the key in a copy of the map instead, and
//! rebalance by [`plan_to`](ShardMap::plan_to) that copy.
//!
//! At each step at most one shard answers for a key, and from *switched* on it is the target. After a crash
//! [`resume`](ShardDirectory::resume) goes on from the step that was recorded; [`give_up`](ShardDirectory::give_up) undoes a move until
//! it has switched. A part that is offline in its [`Planned`] begins frozen, and is copied once.
//!
//! What makes it true is the shard's own check: every request, and all of a mover's work, goes in by a [`ShardGuard`], and a step is done only
//! when everybody who was let in before it has left. A stale router is refused, not believed; a mover that was paused finds that
//! it was [overtaken](Refused::Overtaken). `tests/simulation` takes the check out, and finds the rows that are lost.
//!
//! # Composing
//!
//! - Put the operation of [`FanOut::run`] and [`ShardDirectory::route`] into a pipeline of its own for each shard: a bad shard then opens its
//!   breaker alone. Judge by [`port::ByFailure`](crate::port::ByFailure) and end with `.await?`: what the shard refused is then no failure of
//!   the shard, and is routed again.
//! - [`ShardDirectory::ask_all`] is a fan-out that meets each row once, also while some are moved.
//! - Rebalance under a [leader election](crate::leader_election), so that the work is done once.
//! - [`ShardDirectory::run`] beside the service, with a notifier, keeps the copies fresh.
//! - An index, from another attribute to the shard key, stands in front of `route`: look the key up there, then route by it.
//!
//! # Cancel safety
//!
//! A dropped move is as a crash: the next run goes on from the step that was recorded. A dropped [`Entered`] has left. A dropped fan-out drops the
//! operations under way. Elsewhere nothing is lost but the operation's own.
//!
//! # Events
//!
//! [`ShardingEvent`] by [`ShardDirectory::events`] and to `tracing` (`steadfast::sharding`): maps that changed, refreshes that failed, each step of a move.
//!
//! # Pitfalls
//!
//! - Versions are each store's own: a record that was moved has another one there. After a conflict compare what it says, not its version alone.
//! - While something is moved its rows lie at two shards, and a bare [`FanOut::run`] may meet them twice, or never: count by
//!   [`ShardDirectory::ask_all`].
//! - Whoever is inside a guard holds up the next step of a move: enter for one transaction, not for a session.
//! - A write that was sent to a database goes on when its future is dropped. Let a request run to its end inside the guard, in a task of its own,
//!   also where its client has hung up.
//! - A shard that restarts must [open](ShardGuard::open) its guard from the store before it serves anybody.
//! - Keys of different types must not meet in one map: their bytes have orders of their own.
//! - A pinned key belongs to no range: a plan moves it by itself.
//! - A map whose record was deleted must not be created anew with other owners: guards and routers
//!   keep the older map of the higher version.
//! - A ring with 100 points a node gives one of 1,000 nodes 1.3 to 1.45 times the mean. A table of virtual shards does not.
//!
//! # Considerations
//!
//! 1. Balance, and room to grow: virtual shards, [`ShardMap::plan`] (default). More and smaller shards than you need: rebalancing is dear.
//! 2. The shard key is stable: there is no call that changes one (refusal). A key that must change is a row that is moved by hand.
//! 3. Keys are unique across shards: take UUIDs of version 7 (RFC 9562), which need no counter; a
//!    key's first part may name the shard's tenant (advice).
//! 4. A query that the key does not fit: an index in front of `route`, or a fan-out (advice).
//! 5. One shard a query is the aim. Keep together what is asked together: a tuple's first part, `(tenant, order)`, in a map of ranges. A
//!    reference to a row elsewhere carries that row's shard key (option).
//! 6. Fan-out is parallel, bounded, and says which shards are missing (default).
//! 7. Copy reference data to every shard (advice).
//! 8. Consistency across shards is eventual: there is no transaction over two of them. Design for
//!    it (advice).
//! 9. Many shards to watch, back up, repair: [`ShardMap::shards`] and [`parts`](ShardMap::parts) list them all (default).
//! 10. Geography: ranges by `(region, key)`, so that a region's rows lie near its users (option).
//! 11. Which strategy: the table above (advice).
//! 12. Moving: lookup by key, on- or off-line; ranges by splitting and merging; hashes by runs of virtual shards (default).
//! 13. A hot tenant apart, an isolated one on its own server: pinned keys (default); [`ShardMeter`] names the hot ones.
//!
//! # Source
//!
//! The Sharding pattern of the Azure Architecture Center. Lamping, Veach 2014 (jump); Thaler, Ravishankar 1998, and Schindelhauer, Schomaker
//! 2005 (rendezvous, weights); Karger and others 1997 (ring); Eisenbud and others 2016 (Maglev); Mirrokni, Thorup, Zadimoghaddam 2018 (bounded
//! loads); Metwally, Agrawal, El Abbadi 2005 (Space-Saving); Collet (XXH3).
mod config;
mod directory;
mod event;
mod fan_out;
mod guard;
mod key;
mod map;
mod meter;
mod pins;
mod plan;
mod ranges;
mod rebalance;
mod route;
mod routed;
mod run;
mod sketch;
mod step;
mod whole;
mod wire;

pub use config::{FanOutConfig, ShardDirectoryConfig};
pub use directory::{ShardDirectory, ShardDirectoryBuilder, ShardingError};
pub use event::ShardingEvent;
pub use fan_out::{FanOut, FannedOut, ShardFailure, ShardsFailed, merge_sorted};
pub use guard::{Access, Entered, Refused, ShardGuard, StaleMap};
pub use key::{KeyBytes, ShardKey, hash_bytes, hash_key};
pub use map::{ShardId, ShardMap};
pub use meter::{ShardLoad, ShardMeter};
pub use rebalance::Mover;
pub use route::{HashRouter, Jump, Maglev, Node, Rendezvous, Ring, jump};
pub use routed::{RouteError, Routed, ShardError};
pub use sketch::{HotKey, HotKeys, skew};
pub use step::{Move, Part, Planned, Step};
