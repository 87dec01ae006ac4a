//! Leader election: of many identical instances one leads, and its writes can be told from those of the one before.
//!
//! # When, and when not
//!
//! Where identical instances need one co-ordinator: to run a nightly job once, to assign shards, to aggregate. Not where a natural
//! leader exists; not to guard one resource (compare-and-set on its record, [`StoreExt::update`](crate::store::StoreExt::update),
//! is lighter); not where the platform elects already.
//!
//! # Defaults
//!
//! | setting | default | |
//! |---|---|---|
//! | `term` | 15 s | for how long leadership is granted at a time |
//! | `renew_every` | 5 s | after the last renewal |
//! | `call_timeout` | 3 s | of one call of the lease, clipped to what is left of the term |
//! | `grace` | 1 s | for the task to end by itself |
//! | `margin` | 1 s | before the end of the term: the longest pause that does no harm |
//! | `clock_drift` | 0.001 | between the rates of two nodes' clocks |
//! | `poll` | 2 s | between two looks of a candidate, less 10 to 30 % at random |
//! | `health_tolerance` | 5 s | beyond the term, before [`health`](LeaderElection::health) is bad |
//!
//! A configuration is refused unless `renew_every + call_timeout + grace + margin` fits into the term, less what clocks drift:
//! else one slow call would end a term.
//!
//! How soon a dead leader is noticed is the term's choice:
//!
//! | `LeaderElectionConfig::of_term` | a successor leads, at the latest, after a crash | calls of a leader a minute |
//! |---|---|---|
//! | 3 s | 3.4 s | 60 |
//! | 15 s | 17 s | 12 |
//! | 60 s | 68 s | 3 |
//!
//! After an orderly resignation (a shutdown, a deployment) it leads at once, with a notifier; within one poll without.
//!
//! # Example
//!
//! ```
//! use std::{sync::{Arc, Mutex}, time::Duration};
//! use steadfast::{leader_election::LeaderElection, lease::StoreLease, store::InMemoryStore, time::Clock};
//!
//! # let (clock, hand) = Clock::manual();
//! # hand.block_on(async {
//! // One store; in a service, behind SQLite, Redis, PostgreSQL or NATS.
//! let leases = StoreLease::new(Arc::new(InMemoryStore::new())).unwrap().with_clock(&clock);
//! let election = LeaderElection::builder(Arc::new(leases), "nightly-report")
//!     .candidate("node-1")
//!     .clock(&clock)
//!     .build()?;
//!
//! let terms = Mutex::new(Vec::new());
//! let shutdown = clock.sleep(Duration::from_secs(60));
//! election.run(shutdown, async |term| {
//!     // Work until told to end; write under the term's token.
//!     terms.lock().unwrap().push(term.token());
//!     term.lost().await;
//! }).await?;
//! assert_eq!(terms.lock().unwrap().len(), 1);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! # What is safe
//!
//! Let `L` be the term, `s` the holder's monotonic time at the START of its last successful acquire or renew, and `r` the largest
//! relative error of clock rates. The holder acts only until `s + L * (1 - r) - margin`. A challenger takes over only after it has
//! seen the SAME version of the record for `L` on its own monotonic clock (or by the store's own clock). Wall clocks are
//! compared nowhere. Then two terms never overlap for actions that complete at once.
//!
//! No local check suffices for a process that is paused in the middle of an action. So each term carries a fencing token,
//! strictly increasing, and the resource refuses a lower one: [`Fenced`] in this process,
//! [`put_fenced`](crate::store::StoreExt::put_fenced) in a store, a column compared in your database. A lease whose backend cannot
//! give such tokens, or whose writes are not linearizable, is refused when the election is built.
//!
//! # Three ways to use it
//!
//! - [`run`](LeaderElection::run): a task that runs while this node leads, ended and waited for before the lease is given up.
//! - [`campaign`](LeaderElection::campaign), then [`Leadership`]: the same by hand. No task is spawned for you, so the term is renewed while
//!   [`Leadership::lost`] is polled, beside your work. That is on purpose: renewing is tied to the task that leads, so one that hangs as
//!   a whole stops to renew, and another leads. A task of its own would go on renewing for a leader that is no longer there.
//! - [`observe`](LeaderElection::observe): every change of leader, in order.
//!
//! The classical algorithms without a store, which are not safe under partition, are in [`by_message`]; [`Elector`] is what they and the
//! lease have in common.
//!
//! # Composing
//!
//! The lease is asked with its own time-outs and polls: put no retry around it. The work under a term calls out through
//! [pipelines](crate::Pipeline) as anywhere, with time-outs shorter than [`grace`](LeaderElectionConfig::grace) where it should end in
//! time.
//!
//! # Cancel safety
//!
//! A dropped [`campaign`](LeaderElection::campaign) may have been granted: this candidate is granted anew at once when it asks
//! again, others when the term has passed. A dropped [`Leadership`] ends here at once, for others when the term has passed. A dropped
//! [`run`](LeaderElection::run) is both, and drops its task first.
//!
//! # Events
//!
//! [`LeaderElectionEvent`]: elected, following, call failed, ending, task stalled, task dropped, ended.
//!
//! # Considerations
//!
//! 1. Survives faults, passing and lasting: failed calls are repeated within what is left of the term (default).
//! 2. How fast a dead leader must be noticed: the term (table above; default).
//! 3. Scaling in may end the leader: `run` resigns on shutdown (default).
//! 4. The lease's store is a single point of failure: without it nobody leads. Each failed call is an event (warning).
//! 5. A leader that stalls may go on renewing: [`health_check`](LeaderElectionBuilder::health_check) ends its term (default, once it is
//!    given).
//! 6. Who wins is not determined: do not build on it (advice).
//! 7. The leader must not become the bottleneck: let it assign work, not do it (advice).
//! 8. The lease record serves nothing else: a record that is no lease is refused, and left as it is (refusal).
//!
//! # Pitfalls
//!
//! - A record that is deleted through the store, behind the lease, leaves two that believe to lead:
//!   a successor is elected at once, and the leader before it hears of that at its next renewal
//!   ([`renew_every`](LeaderElectionConfig::renew_every)), or, cut off from the store, believes in
//!   its term until that is over. Their tokens still differ, and grow: a fenced resource refuses
//!   the older. To end a term, [ask the leader to resign](LeaderElection::request_resign).
//! - A task that blocks its thread cannot be told anything, nor dropped. Its late writes are what fencing is for.
//! - `is_leader()` is true at the moment of the call. Ask before each action, not once.
//! - A term shorter than the pauses of your machines changes leaders for nothing.
//! - A clone of an election is the same candidate: elected anew, it ends the term that it was in. Two candidates in one process are two
//!   elections, each built.
//! - An [`Observer`] keeps what it was told until it is read: one that is never read grows by some hundred bytes with each term.
//! - A notifier is a hint, never a need: a line to it that breaks again and again leaves polling.
//!
//! # Source
//!
//! Cary Gray and David Cheriton, "Leases: an efficient fault-tolerant mechanism for distributed file cache consistency", 1989; Mike
//! Burrows, "The Chubby lock service", 2006 (sequencers); Martin Kleppmann, "How to do distributed locking", 2016 (fencing). The pattern:
//! "Leader Election", Cloud Design Patterns. Kubernetes' client-go observes versions in the same way, and has no fencing token.
mod builder;
pub mod by_message;
mod config;
mod election;
mod elector;
mod event;
mod fenced;
mod hints;
mod leadership;
mod run;
mod state;
mod term;
mod transitions;

#[cfg(all(test, not(steadfast_loom)))]
mod tests;

pub use builder::LeaderElectionBuilder;
pub use config::LeaderElectionConfig;
pub use election::{ElectionHealth, LeaderElection};
pub use elector::Elector;
pub use event::{Call, LeaderElectionEvent, TermEnd};
pub use fenced::{Fenced, TooLow};
pub use leadership::Leadership;
pub use term::Term;
pub use transitions::{Leader, Observer};
