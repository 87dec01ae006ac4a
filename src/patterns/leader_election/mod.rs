//! Leader election: of many identical instances one leads, and resources can refuse the late writes
//! of an earlier leader.
//!
//! # When, and when not
//!
//! Use it where identical instances need one co-ordinator: to run a nightly job once, to assign
//! shards, to aggregate. Do not use it where a natural leader exists, or where the platform elects
//! one already. To guard a single resource, compare-and-set on its record is lighter
//! ([`StoreExt::update`](crate::store::StoreExt::update)).
//!
//! # Defaults
//!
//! | setting | default | |
//! |---|---|---|
//! | `term` | 15 s | time for which leadership is granted at a time |
//! | `renew_every` | 5 s | time between two renewals |
//! | `call_timeout` | 3 s | time limit of one call of the lease, clipped to what is left of the term |
//! | `grace` | 1 s | time for the task to end by itself |
//! | `margin` | 1 s | time kept free before the end of the term: the longest pause that does no harm |
//! | `clock_drift` | 0.001 | largest difference between the rates of two nodes' clocks |
//! | `poll` | 2 s | time between two attempts of a candidate, less 10 to 30 % at random |
//! | `health_tolerance` | 5 s | time beyond the term before [`health`](LeaderElection::health) is bad |
//!
//! A configuration is refused unless `renew_every + call_timeout + grace + margin` is shorter than
//! the term less the clock drift: otherwise one slow call would end a term.
//!
//! The term decides how soon a dead leader is noticed:
//!
//! | `LeaderElectionConfig::of_term` | a successor leads, at the latest, after a crash | calls of a leader a minute |
//! |---|---|---|
//! | 3 s | 3.4 s | 60 |
//! | 15 s | 17 s | 12 |
//! | 60 s | 68 s | 3 |
//!
//! After an orderly resignation (a shutdown, a deployment) a successor leads at once with a
//! notifier, and within one poll without.
//!
//! # Example
//!
//! A service of several processes, of which one makes the report of each night:
//!
//! ```
//! use std::time::Duration;
//! use steadfast::{backend, leader_election::{LeaderElection, LeaderElectionConfig, Term}};
//! use steadfast::store::{Key, Store, StoreError, StoreExt};
//!
//! async fn report(store: &dyn Store, term: &Term) -> Result<(), StoreError> {
//!     // The store refuses this write if another process leads by now.
//!     store.put_fenced(Key::new("reports", "today"), "all is well", term.token()).await?;
//!     Ok(())
//! }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let shutdown = tokio::time::sleep(Duration::from_secs(60));
//! // In a service, a URL such as `sqlite:state.db` or `postgres://..`.
//! let backend = backend::open("memory:").await?;
//! let (store, config) = (backend.store(), LeaderElectionConfig::default());
//! let election = LeaderElection::builder(backend.lease(), "nightly-report", config)
//!     .candidate("node-1")
//!     .build()?;
//!
//! election.run(shutdown, async |term| {
//!     if let Err(error) = report(&*store, &term).await {
//!         eprintln!("no report: {error}");
//!     }
//!     term.lost().await; // leads until another process does, or this one stops
//! }).await?;
//! # assert!(store.get(Key::new("reports", "today")).await?.is_some());
//! # Ok(())
//! # }
//! ```
//!
//! # The five commonest uses
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use steadfast::{leader_election::{LeaderElection, LeaderElectionConfig}, time::Clock};
//! use steadfast::{lease::StoreLease, notify::InMemoryNotifier, store::InMemoryStore};
//!
//! # async fn clean_up() {}
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let leases = Arc::new(StoreLease::builder(Arc::new(InMemoryStore::new())).build()?);
//! # let (config, clock) = (LeaderElectionConfig::default(), Clock::tokio());
//! # let stop = || tokio::time::sleep(Duration::from_secs(60));
//! let election = LeaderElection::new(leases.clone(), "cleaner", config)?;
//! // 1. A periodic job, in one process at a time.
//! election.run(stop(), async |term| {
//!     while !term.is_ending() {
//!         clean_up().await;
//!         let minute = clock.sleep(Duration::from_secs(60));
//!         tokio::select! { () = term.lost() => {}, () = minute => {} }
//!     }
//! }).await?;
//!
//! // 2. Only ask: participate in the background, and look before each action.
//! let candidate = election.clone();
//! tokio::spawn(async move { candidate.run(stop(), async |term| term.lost().await).await });
//! if election.is_leader() { clean_up().await }
//!
//! // 3. Follow the changes of the leader, for a log or for requests that only the leader answers.
//! let mut leaders = election.observe();
//! eprintln!("{:?}", leaders.recv().await);
//!
//! // 4. Ask the leader of whichever process to resign, for a deployment.
//! election.request_resign().await?;
//!
//! // 5. End the term of a leader that is not well, and tell others at once when it ends.
//! let watched = LeaderElection::builder(leases, "cleaner", config)
//!     .health_check(|| true)
//!     .notifier(Arc::new(InMemoryNotifier::new()))
//!     .build()?;
//! # Ok(())
//! # }
//! ```
//!
//! Which candidate wins is not determined. A leader that does the work of all becomes the
//! bottleneck: let it assign work.
//!
//! # What is safe
//!
//! Let `L` be the term, `s` the holder's monotonic time at the START of its last successful acquire
//! or renew, and `r` the largest relative error of clock rates. The holder acts only until
//! `s + L * (1 - r) - margin`. A challenger takes over only after it has seen the SAME version of
//! the record for `L` on its own monotonic clock (or by the store's own clock). Wall clocks are
//! never compared. Then two terms never overlap for actions that complete at once.
//!
//! No local check suffices for a process that is paused in the middle of an action. So each term
//! carries a fencing token, strictly increasing, and the resource refuses a lower one: [`Fenced`]
//! in this process, [`put_fenced`](crate::store::StoreExt::put_fenced) in a store, a column
//! compared in your database. An election refuses to be built over a lease whose backend cannot
//! give such tokens.
//!
//! A server that replicates without waiting, such as a Redis primary with replicas, may forget the
//! last grants in a fail-over, and one that does not sync its writes in a crash. Its leases are not
//! [`Linearizable`](crate::port::Capability::Linearizable), or not
//! [`Durable`](crate::port::Capability::Durable), and each campaign over them begins with the event
//! [`GrantsMayBeForgotten`](LeaderElectionEvent::GrantsMayBeForgotten). Afterwards two nodes may
//! lead until the earlier one renews. A fenced resource outside that server refuses the older as
//! long as tokens grow, which the page of the backend states.
//!
//! # Three ways to use it
//!
//! - [`run`](LeaderElection::run) runs a task while this node leads. The task is told to end and
//!   waited for before the lease is released.
//! - [`campaign`](LeaderElection::campaign) returns a [`Leadership`] to be managed by the caller.
//!   No task is spawned: the term is renewed while [`Leadership::lost`] is polled, beside your
//!   work. This is on purpose. Renewing is tied to the task that leads, so if that task hangs as a
//!   whole, it stops renewing and another node leads. A separate task would go on renewing for a
//!   leader that hangs.
//! - [`observe`](LeaderElection::observe) returns every change of leader, in order.
//!
//! The classical algorithms without a store, which are not safe under partition, are in
//! [`by_message`]. [`Elector`] is the interface that they and the lease share.
//!
//! # Composing
//!
//! Calls of the lease have their own time-outs and are polled: put no retry around them. The work
//! under a term calls out through [pipelines](crate::Pipeline) as usual. Its time-outs should be
//! shorter than [`grace`](LeaderElectionConfig::grace) if it must end in time.
//!
//! # Guarantees
//!
//! 1. No two nodes return `true` from [`is_leader`](LeaderElection::is_leader) at the same time
//!    while pauses stay below the margin. After longer pauses, no fenced write of an old term is
//!    accepted after one of a newer term.
//! 2. A term counts from the start of the call that granted or renewed it. A reply that arrives too
//!    late does not make its node the leader.
//! 3. The time-out of a renewal is clipped to what is left of the term.
//! 4. If the store is unreachable, [`Term::lost`] resolves and the leader's task has ended at least
//!    the margin before the term is over.
//! 5. A configuration whose renewals do not fit into the term is refused, and the message names the
//!    rule.
//! 6. A holder that was paused beyond its term finds `is_leader()` false at its first call, and its
//!    next fenced write is refused.
//! 7. Changes of a wall clock have no effect.
//! 8. Tokens grow across terms, resignations, restarts and the deletion of the record.
//! 9. After a write with an unknown outcome the node asks again. It adopts its own record, or
//!    waits; it never assumes.
//! 10. An expired record of the node itself is acquired anew with a new token, never renewed.
//! 11. After a resignation a successor leads within 100 ms with a notifier, and within one poll
//!     without. Resigning an old term changes nothing.
//! 12. After a leader's death each of many candidates makes no more than about one write per poll
//!     interval, spread at random.
//! 13. If the task ignores its cancellation, the lease is not released early, and an event says so.
//! 14. Elections by message send no more messages than the table of [`by_message`] states.
//! 15. Elections behave the same over every backend that offers leases.
//!
//! # Cancel safety
//!
//! A dropped [`campaign`](LeaderElection::campaign) may have been granted the lease. This candidate
//! is granted it at once when it asks again, others when the term has passed. A dropped
//! [`Leadership`] ends the term on this node at once, and for others when it has passed. A dropped
//! [`run`](LeaderElection::run) is both, and drops its task first.
//!
//! # Events
//!
//! The variants of [`LeaderElectionEvent`]: elected, granted too late, following, call failed,
//! ending, task stalled, task dropped, ended, grants may be forgotten.
//!
//! # Pitfalls
//!
//! - Deleting the record through the store, behind the lease, leaves two nodes that believe to
//!   lead. A successor is elected at once. The earlier leader learns of it at its next renewal
//!   ([`renew_every`](LeaderElectionConfig::renew_every)), or, if it cannot reach the store, when
//!   its term is over. Their tokens still differ and grow: a fenced resource refuses the older. To
//!   end a term, [ask the leader to resign](LeaderElection::request_resign).
//! - A task that blocks its thread can be neither told to end nor dropped. Fencing refuses its late
//!   writes.
//! - `is_leader()` is true at the moment of the call. Ask before each action, not once.
//! - A term shorter than the pauses of your machines changes leaders for nothing.
//! - A clone of an election is the same candidate: when it is elected anew, the term that it was in
//!   ends. Two candidates in one process are two elections, each built.
//! - An [`Observer`] keeps changes until they are read: one that is never read grows by some
//!   hundred bytes with each term.
//! - A notifier is a hint and never required: if its connection breaks repeatedly, candidates poll.
//!
//! # Source
//!
//! Cary Gray and David Cheriton, "Leases: an efficient fault-tolerant mechanism for distributed
//! file cache consistency", 1989; Mike Burrows, "The Chubby lock service", 2006 (sequencers);
//! Martin Kleppmann, "How to do distributed locking", 2016 (fencing). The pattern: "Leader
//! Election", Cloud Design Patterns. Kubernetes' client-go observes versions in the same way, and
//! has no fencing token.
mod builder;
pub mod by_message;
mod config;
mod election; // campaigning, and a node's view of the leader
mod elector;
mod event;
mod fenced; // refuses writes under an old token
mod hints; // wakes waiting candidates
mod leadership; // what the leader holds, and stepping down
mod observers;
mod renewal; // renews the term while it is polled
mod run; // campaign, lead, repeat
mod term; // a term as its task sees it
mod term_times; // deadline, warning, next renewal // changes of leader, for observers

#[cfg(all(test, not(steadfast_loom)))]
mod tests;

pub use config::LeaderElectionConfig;
pub use election::{ElectionHealth, LeaderElection};
pub use elector::Elector;
pub use event::{Call, LeaderElectionEvent, TermEnd};
pub use fenced::{Fenced, StaleToken};
pub use leadership::Leadership;
pub use observers::{Leader, Observer};
pub use term::Term;
