//! Supervisor: starts the long-lived tasks of a process in order, restarts those that fail, stops
//! them in reverse order, and meters each.
//!
//! # When, and when not
//!
//! Use it where tasks that are often idle share a process, to save what a process of its own costs
//! for each: listeners, refreshers, pollers, reports. One unit is one release, one security context
//! and one crash: keep apart what is critical, what needs rights of its own, and what scales in
//! another way. The meter shows which tasks may share a process. Short tasks belong to tokio's
//! `JoinSet`; an abort or an exhausted memory ends the process, and is the platform's to restart.
//! The supervisor of the scheduler-agent-supervisor pattern is another one:
//! `Scheduler::supervise`.
//!
//! # Defaults
//!
//! | setting | default | |
//! |---|---|---|
//! | `strategy` | `one_for_one` | children that are restarted with one that failed |
//! | `max_restarts` | 5 | restarts within `restart_window`; one more stops all children |
//! | `restart_window` | 60 s | time for which a restart counts |
//! | `backoff` | 100 ms to 30 s, full jitter | delay before a restart |
//! | `reset_after` | 60 s | time for which a child must have been ready, so that its delay begins anew |
//! | `start_timeout` | 30 s | time for a child that is waited for to be ready |
//! | `stop_timeout` | 10 s | time for a child to stop, before it is dropped |
//! | `shutdown_timeout` | 25 s | time for all children to stop |
//! | `slow_poll` | 100 ms | duration of a poll above which an event names the child |
//! | `call_timeout` | 5 s | time limit of one request for a checkpoint |
//!
//! | strategy | stopped in reverse, and started in order |
//! |---|---|
//! | `one_for_one` | the child that failed |
//! | `one_for_all` | all children |
//! | `rest_for_one` | the child that failed, and those that are started after it |
//!
//! | child | is started again |
//! |---|---|
//! | permanent | whenever it ends; an end without an error is a failure, too |
//! | transient | if it fails, or with a set; it may end |
//! | temporary | never; its failure stops no other child |
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//! use steadfast::supervisor::{
//!     Child, ChildContext, Restart, Strategy, Supervisor, SupervisorConfig,
//! };
//!
//! async fn refresh(cx: ChildContext) -> Result<(), std::io::Error> {
//!     // .. loads the first prices
//!     cx.ready();
//!     cx.stopping().await;
//!     Ok(())
//! }
//!
//! async fn import(_: ChildContext) -> Result<(), String> {
//!     Ok(())
//! }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let shutdown = tokio::time::sleep(Duration::from_secs(60));
//! let supervisor = Supervisor::builder(SupervisorConfig::default().strategy(Strategy::RestForOne))
//!     .name("worker")
//!     .child(Child::new("prices", refresh).waits_for_ready())
//!     .child(Child::new("import", import).restart(Restart::Transient).max_poll_share(0.25))
//!     .build()?;
//! let report = supervisor.run(shutdown).await?; // an error, if a child fails too often
//! assert!(report.unstopped.is_empty());
//! # Ok(())
//! # }
//! ```
//!
//! # The five commonest uses
//!
//! ```
//! use steadfast::supervisor::{
//!     Child, ChildContext, Supervisor, SupervisorConfig, SupervisorError,
//! };
//!
//! # async fn feed(cx: ChildContext) -> Result<(), String> { Ok(cx.stopping().await) }
//! # async fn report(_: ChildContext) -> Result<(), String> { Ok(()) }
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config = SupervisorConfig::default();
//! // 1. Stop when the platform or a key asks for it: `shutdown` is any future.
//! # #[cfg(unix)]
//! let shutdown = async {
//!     use tokio::signal::{ctrl_c, unix::{SignalKind, signal}};
//!     let mut terminate = signal(SignalKind::terminate())?;
//!     tokio::select! { _ = terminate.recv() => Ok(()), pressed = ctrl_c() => pressed }
//! };
//!
//! // 2. Children that are not needed: their failures stop nothing.
//! let report = Child::new("report", report).optional();
//!
//! // 3. A part with a strategy and a budget of its own, which is one child of the whole.
//! let feed = Child::new("feed", feed);
//! let feeds = Supervisor::builder(config).child(feed).build()?;
//! let feeds = Child::supervisor("feeds", feeds).waits_for_ready();
//!
//! // 4. Exit with a failure when a child fails too often, so that the platform acts.
//! let supervisor = Supervisor::builder(config.max_restarts(2)).name("worker");
//! let supervisor = supervisor.child(report).child(feeds).build()?;
//! let ended = supervisor.run(async { tokio::time::sleep(config.stop_timeout).await }).await;
//! if let Err(SupervisorError::Escalated { child, causes, .. }) = ended {
//!     eprintln!("{child} failed: {causes:?}");
//! }
//!
//! // 5. Which child takes the time of the thread?
//! for child in supervisor.state() {
//!     eprintln!("{}: {:?} in {} polls", child.name, child.poll_time, child.polls);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Checkpoints
//!
//! A child that works through a long list saves how far it is, and the next instance goes on from
//! there, also in another process. The instance that reads the checkpoint owns it: a save of an
//! earlier instance is [`Superseded`](CheckpointError::Superseded).
//!
//! ```
//! use steadfast::{
//!     backend,
//!     supervisor::{
//!         CheckpointError, Child, ChildContext, Restart, Supervisor, SupervisorConfig,
//!     },
//! };
//!
//! async fn pages(cx: ChildContext) -> Result<(), CheckpointError> {
//!     let last = cx.checkpoint().await?;
//!     let done = last.and_then(|bytes| Some(u32::from_be_bytes(bytes[..].try_into().ok()?)));
//!     for page in done.unwrap_or(0)..1000 {
//!         // .. does the page
//!         if (page + 1) % 100 == 0 {
//!             cx.save_checkpoint((page + 1).to_be_bytes().to_vec()).await?;
//!         }
//!     }
//!     Ok(())
//! }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let state = backend::open("memory:").await?; // in a service, `sqlite:state.db`
//! let supervisor = Supervisor::builder(SupervisorConfig::default())
//!     .name("worker")
//!     .checkpoints(state.store())
//!     .child(Child::new("pages", pages).restart(Restart::Transient))
//!     .build()?;
//! supervisor.run(std::future::pending()).await?; // ends with its last child
//! # Ok(())
//! # }
//! ```
//!
//! # Composing
//!
//! [`ChildContext::stopping`] is the `shutdown` of each `run` of this crate: of a queue listener, a
//! stream processor, a leader election. A supervisor is a child of another one by
//! [`Child::supervisor`], with a strategy and a budget of its own. Its
//! `spawner` (of [its builder](Supervisor::builder)) may be a second runtime, for children that
//! compute. A change of settings restarts one child by its [handle](Supervisor::handle). A child
//! that becomes too large moves to a process of its own with its supervisor, unchanged.
//!
//! # Guarantees
//!
//! 1. Children start in their order. The next one starts at once, or when the one before is ready
//!    if that is waited for; otherwise that one has failed after `start_timeout`. An optional child
//!    delays no other, and never escalates.
//! 2. A failure stops exactly the strategy's set in reverse order, and starts it in order, as OTP
//!    does. Siblings that are restarted with it use no budget.
//! 3. A failure is an error, a panic when the child is created, polled or dropped, or the end of a
//!    permanent child.
//! 4. One restart above the budget stops all children, and `run` returns the child with its last
//!    causes. Under another supervisor that is one failure of its child. Each restart waits for its
//!    back-off. With the defaults a child that fails at once is given up after 1.6 s on average,
//!    and after 3.1 s at most: raise `max_restarts` or `backoff` for outages that last longer. All
//!    children share the budget. A child that blocks its thread in the stop for a restart escalates
//!    at once, because it cannot be started again.
//! 5. A shutdown asks the children to stop, in reverse order, one after another; when half of the
//!    time is over, or one `stop_timeout` is left, it asks all that are left. Each is asked before
//!    it is dropped. A child is dropped after `stop_timeout`, all within `shutdown_timeout`, and
//!    the report names it. One that blocks its thread cannot be dropped: `run` still returns, and
//!    names it, if it does not share that thread. A shutdown interrupts back-offs and starts; an
//!    escalation in progress goes on, and keeps its error.
//! 6. A checkpoint is saved by compare-and-set. The instance that reads it last owns it, in any
//!    process: from then on a save or a read of an earlier owner is refused, and so is each of an
//!    instance that has ended. A child that saves every hundredth step repeats at most a
//!    hundred after a kill, and loses none.
//! 7. Each poll is metered. One above `slow_poll` is an event. A child with `max_poll_share` that
//!    always wants to run is polled for that share of the time; a stop ends the limit. One
//!    long poll cannot be bounded, only named. So is a drop that takes as long. A child may be
//!    [without a meter](Child::unmetered).
//! 8. Refused are: no children, a name twice, a share that is not above 0 and at most 1, a
//!    `stop_timeout` above `shutdown_timeout`, checkpoints without a name, in a store that is not
//!    [`Linearizable`](crate::port::Capability::Linearizable), or of two nested supervisors with
//!    one name.
//!    [`explain`](Supervisor::explain) warns of nested budgets that multiply to more than 25.
//! 9. [`ChildHandle::restart`] stops one child and starts it again, alone and without a use of the
//!    budget, and returns when the new instance is ready or has failed.
//!
//! # Cancel safety
//!
//! A dropped [`run`](Supervisor::run) drops all children, in no order: each in its own task, when
//! that runs next. A dropped [`save_checkpoint`](ChildContext::save_checkpoint) has saved or not.
//!
//! # Events
//!
//! The variants of [`SupervisorEvent`]: started, ready, finished, failed, restarting, dropped,
//! blocked, slow poll, restart requested, escalated, stopping. [`state`](Supervisor::state) and the
//! metrics have polls, poll time, longest poll and restarts of each child.
//!
//! # Pitfalls
//!
//! - A child that blocks its thread delays each child of the thread. The event of a slow poll names
//!   it when the poll ends, and not before.
//! - Two instances of a child never run at once. A run waits for the instances of an earlier one,
//!   and gives up after a second if one of them blocks its thread.
//! - `run` on the thread that a child blocks cannot go on either. Poll it by `block_on` of a
//!   runtime with several threads, or give the children a runtime of their own by `spawner`.
//! - Replicas with one name take each other's checkpoints over. Put the member into the name, or
//!   let a leader alone run the child.
//! - A failure within a shutdown, such as a last write that fails, is no error of `run`: look at
//!   [`failed`](StopReport::failed) of its report for the exit code.
//! - A nested supervisor whose children may all end ends, too: make its child
//!   [`Transient`](Restart::Transient). The `start_timeout` of its parent must hold its starts.
//! - The restart of a set takes the stop of its members: one that ignores the signal costs
//!   `stop_timeout` each time.
//! - With `one_for_all` and `rest_for_one` a transient child that had ended is started again with
//!   its set, as in OTP.
//! - A panic needs unwinding: with `panic = "abort"` it ends the process.
//! - A nested supervisor stops within the time of its parent's child. Give `stop_timeout` of the
//!   parent room for its children.
//! - A checkpoint that is saved more often than its step is long costs more than it saves.
//!
//! # Source
//!
//! Joe Armstrong, "Making reliable distributed systems in the presence of software errors", 2003,
//! and OTP's `supervisor`, whose strategies and child types these are. OTP restarts at once, and
//! has no optional children. The pattern: "Compute Resource Consolidation", Cloud Design Patterns.
mod checkpoint;
mod child;
mod component;
mod config;
mod context;
mod event;
mod handle;
mod lives;
mod meter;
mod run;
mod signal;
mod slots;
mod state;
mod task;

#[cfg(all(test, not(steadfast_loom)))]
mod tests;

pub use checkpoint::CheckpointError;
pub use child::{Child, Restart};
pub use component::{ChildState, Supervisor, UnstoppedChild};
pub use config::{Strategy, SupervisorConfig};
pub use context::ChildContext;
pub use event::{ChildFailure, SupervisorEvent};
pub use handle::{ChildHandle, RestartError};
pub use run::{FailedChild, StopReport, SupervisorError};
pub use state::{ChildPhase, Unstopped};
