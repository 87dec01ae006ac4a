//! Saga: a sequence of steps in several services that completes as a whole, or whose effects are
//! compensated, whatever process dies on the way.
//!
//! # When, and when not
//!
//! Use it where one piece of work changes several systems that share no transaction: book a seat, a
//! room and a car, and charge the card. Do not use it
//!
//! - if one local transaction can do the work ([`Store::batch`](crate::store::Store::batch)),
//! - if the steps cannot be undone, and do not have to be: a queue and an idempotent consumer
//!   ([`queue_listener`](crate::queue_listener)) repeat them until they succeed,
//! - if other work must not see the intermediate states: a saga has no isolation.
//!
//! The progress of a saga is one record, which is replaced after each step. Engines that replay
//! code (Temporal, Restate, DBOS, Durable Functions) keep a history of all results and run the
//! workflow's code again over it. They allow loops, branches and timers in plain code. Their price:
//! code must be deterministic, a changed workflow needs versions, and the history grows. Here steps
//! may use clocks and randomness, the record does not grow with attempts, and a saga keeps the plan
//! that it began with; but a plan is a list of steps, and no program.
//!
//! # Defaults
//!
//! | setting | default | |
//! |---|---|---|
//! | `max_attempts` | 8 | attempts of a step; an attempt counts when it begins |
//! | `retry` | 1 s to 60 s, full jitter | delays between them |
//! | `max_compensation_attempts` | 20 | attempts of a compensation |
//! | `compensation_retry` | 1 s to 5 min, full jitter | delays between them |
//! | `step_timeout` | 30 s | maximum duration of an attempt; its outcome is then unknown |
//! | `call_timeout` | 5 s | of one request to the store |
//! | `store_timeout` | 30 s | time for which requests to a failing store are repeated |
//! | `takeover_after` | 60 s | time without a change after which another executor takes a saga over |
//! | `scan_interval` | 30 s | interval between two scans of [`recover`](Saga::recover) |
//! | `retention` | 7 days | time for which the record of an ended saga is kept |
//!
//! # Example
//!
//! ```
//! use std::sync::Arc;
//! use serde::{Deserialize, Serialize};
//! use steadfast::{
//!     codec::Codec,
//!     saga::{Action, Compensation, Plan, Saga, SagaConfig, SagaOutcome, Step, StepOutcome},
//!     standard::{Standard, StandardPipeline},
//!     store::InMemoryStore,
//! };
//!
//! #[derive(Debug, PartialEq, Serialize, Deserialize)]
//! struct Trip { to: String, seat: Option<String>, paid: bool }
//!
//! # #[derive(Clone)]
//! # struct Airline;
//! # impl Airline {
//! #     async fn book(&self, _: &str, _: &str) -> std::io::Result<String> { Ok("12A".into()) }
//! #     async fn cancel(&self, _: &str) -> std::io::Result<()> { Ok(()) }
//! # }
//! # struct Bank;
//! # impl Bank { async fn charge(&self, _key: &str) -> std::io::Result<()> { Ok(()) } }
//! struct BookSeat { airline: Airline, calls: StandardPipeline }
//!
//! impl Action<Trip> for BookSeat {
//!     async fn execute(&self, step: &Step<Trip>) -> StepOutcome<Trip> {
//!         // The airline recognises a repeated request by the key.
//!         let booked = self.calls.call(|| self.airline.book(step.key(), &step.to)).await;
//!         step.of_call(booked, |trip, seat| trip.seat = Some(seat))
//!     }
//! }
//!
//! impl Compensation<Trip> for BookSeat {
//!     // It also runs if it is unknown whether the seat was booked.
//!     async fn compensate(&self, step: &Step<Trip>) -> StepOutcome<Trip> {
//!         let cancelled = self.calls.call(|| self.airline.cancel(step.action_key())).await;
//!         step.of_call(cancelled, |trip, ()| trip.seat = None)
//!     }
//! }
//!
//! struct Charge(Bank);
//!
//! impl Action<Trip> for Charge {
//!     async fn execute(&self, step: &Step<Trip>) -> StepOutcome<Trip> {
//!         match self.0.charge(step.key()).await {
//!             Ok(()) => StepOutcome::changed(|trip: &mut Trip| trip.paid = true),
//!             Err(error) => StepOutcome::unknown(error), // the bank is asked again
//!         }
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let calls = Standard::new(Default::default())?.into_pipeline();
//! let plan = Plan::new()
//!     .step("seat", BookSeat { airline: Airline, calls })
//!     .pivot("charge", Charge(Bank)); // from here on only forward
//! let codec = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
//! // In a service, a durable store.
//! let store = Arc::new(InMemoryStore::new());
//! let trips = Saga::new("trip", store, codec, plan, SagaConfig::default())?;
//!
//! let trip = Trip { to: "LHR".into(), seat: None, paid: false };
//! match trips.run("trip-42", trip).await? {
//!     SagaOutcome::Completed(trip) => assert_eq!(trip.seat.as_deref(), Some("12A")),
//!     SagaOutcome::Compensated { reason, .. } => println!("not booked: {reason}"),
//!     SagaOutcome::Stuck { step, reason } => println!("call an operator: {step}: {reason}"),
//!     _ => {}
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # The five commonest uses
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use steadfast::{codec::Codec, store::InMemoryStore};
//! use steadfast::saga::{Plan, Saga, SagaConfig, Step, StepOutcome};
//!
//! # type Order = String;
//! # async fn reserve(_key: &str) -> std::io::Result<()> { Ok(()) }
//! # async fn release(_key: &str) -> std::io::Result<()> { Ok(()) }
//! # async fn charge(_key: &str) -> std::io::Result<()> { Ok(()) }
//! /// An error leaves open what happened: the step is asked again, under the same key.
//! fn outcome(answer: std::io::Result<()>) -> StepOutcome<Order> {
//!     answer.map_or_else(StepOutcome::unknown, |()| StepOutcome::completed())
//! }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let store = Arc::new(InMemoryStore::new());
//! # let codec = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
//! // 1. A plan of closures: a step with its compensation, and a pivot, which is not undone.
//! let plan = Plan::<Order>::new()
//!     .step_fn(
//!         "reserve",
//!         |step| async move { outcome(reserve(step.key()).await) },
//!         |step| async move { outcome(release(step.action_key()).await) },
//!     )
//!     .pivot("charge", |step: Step<Order>| async move { outcome(charge(step.key()).await) });
//! let orders = Saga::new("order", store, codec, plan, SagaConfig::default())?;
//!
//! // 2. Run one and wait for its end. The id is the caller's: a repeated run returns the result.
//! orders.run("order-42", "two books".to_owned()).await?;
//!
//! // 3. Go on with the sagas of processes that died. Run this beside the service.
//! let others = orders.clone();
//! let stop = tokio::time::sleep(Duration::from_secs(60));
//! tokio::spawn(async move { others.recover(stop).await });
//!
//! // 4. Look at one.
//! if let Some(status) = orders.read("order-42").await? {
//!     eprintln!("{:?}: {}", status.phase, status.state);
//! }
//!
//! // 5. Intervene: cancel one, which is refused once its pivot took effect; or repeat the step of
//! //    a stuck one, after the repair.
//! let cancelled = orders.cancel("order-42", "the customer's wish").await;
//! for refused in [cancelled, orders.retry("order-41").await] {
//!     eprintln!("{refused:?}");
//! }
//! # Ok(())
//! # }
//! ```
//!
//! To hand a saga over and not wait for it, take a [`scheduler`](crate::scheduler).
//!
//! # Outcomes of an attempt
//!
//! | outcome | effect | then |
//! |---|---|---|
//! | [completed](StepOutcome::completed) | yes | the next step |
//! | [failed](StepOutcome::failed) | no | the saga is compensated |
//! | [abandoned](StepOutcome::abandoned) | perhaps | the saga is compensated, this step included |
//! | [not sent](StepOutcome::not_sent) | no | another attempt |
//! | [unknown](StepOutcome::unknown) | perhaps | another attempt |
//! | [refused](StepOutcome::refused) | no | another attempt; this one does not count |
//! | [pending](StepOutcome::pending) | in progress | the service is asked again; this one does not count |
//!
//! A panic, an attempt that takes longer than `step_timeout`, and the death of the process are
//! unknown. [`Step::of_call`] converts the result of a pipeline.
//!
//! An unknown attempt is never forgotten: if the saga fails later, its step is compensated although
//! a later attempt said "failed". A compensation therefore must accept that there is nothing to
//! undo. It must also make sure that a late attempt, which is still on its way, has no effect when
//! it arrives. [`Participant`] does both for the service that is called.
//!
//! # The pivot
//!
//! Up to the pivot a saga can go back, and each step has a compensation, by its type. Once the
//! pivot took effect, or may have, the saga only goes forward. If a step fails for good there, the
//! saga is stuck: an operator repairs the cause and calls [`retry`](Saga::retry), or does the work
//! and calls [`skip`](Saga::skip). The same holds for a compensation that fails. If a pivot is
//! stuck whose outcome was unknown, and the service says that it had no effect,
//! [`undo`](Saga::undo) lets the saga be compensated. A stuck saga is kept without a time limit,
//! and [`list_open`](Saga::list_open) lists it.
//!
//! Reserve before the pivot, and confirm after it: a reservation with a time limit holds the
//! resource shortly, and needs no perfect compensation.
//!
//! # Owners
//!
//! A saga has one owner at a time. The record has the number of the execution and an epoch, and is
//! replaced only if it has not changed (compare-and-set). Another executor takes a saga over by the
//! write that begins its next attempt, with a higher epoch, when it has seen the record unchanged
//! for `takeover_after` on its own clock. If the former executor was only slow, its next write is a
//! conflict. It then stops, and begins no step. One action that it was about to run may still run:
//! hence [`Step::key`], [`Step::token`] and [`Participant`].
//!
//! Run [`recover`](Saga::recover) beside the service in at least one process.
//!
//! Cost in requests to the store, without faults: a saga of n steps in sequence makes n + 1; one
//! that fails after j steps makes 2j + 2.
//!
//! # Composing
//!
//! - **Calls** of a step go through a [pipeline](crate::Pipeline), without a long retry: the saga
//!   repeats a step under its key, and survives the process. An open breaker costs no attempt.
//! - **Local writes** go with the step: [`Step::write`] commits rows together with its completion,
//!   exactly once, and [`run_with_rows`](Saga::run_with_rows) with the start.
//! - **Tests**: `testing::crash_at_every_write` crashes a saga at each request to the store, and
//!   `testing::repeated` runs each action several times under one key.
//!
//! # Guarantees
//!
//! 1. Before the pivot a step has a compensation, or says that it needs none. A plan without steps,
//!    with two steps of one name, or with more than 255 steps is refused.
//! 2. Steps are compensated in reverse order, those of a parallel group together, and those marked
//!    `compensate_first` before all others.
//! 3. A saga of n steps in sequence makes n + 1 requests to its store, and one that fails after j
//!    steps 2j + 2. A takeover adds none.
//! 4. Every completed step and every step with an unknown attempt is compensated, whatever later
//!    attempts returned.
//! 5. An attempt counts before it begins. A step that kills its process `max_attempts` times is
//!    compensated and not started again.
//! 6. A step that fails before the pivot, and a pivot without unknown attempts that fails, lead to
//!    compensation. Any other final failure makes the saga stuck, with an event. `retry`,
//!    `skip` and `undo` continue from there.
//! 7. `run` attaches to a saga that another executor runs, and takes it over only if its record
//!    stalls. `recover` takes over stalled sagas, never one that runs in its own component, and an
//!    unreadable record does not stop it.
//! 8. After a takeover the former executor writes nothing and begins no step. A lost reply of the
//!    store repeats no action, and a failing store fails no step.
//! 9. One id is one saga while its record is kept: a repeated `run` returns its result, and
//!    `InputMismatch` for another initial state.
//! 10. Rows of a step and of the start are written exactly once, together with the record.
//! 11. A saga keeps the plan that it began with. A process that does not know one of its steps, or
//!     cannot read its state, leaves it as it is.
//! 12. `cancel` compensates a running saga from the next step boundary, and a completed one while
//!     its record is kept; past the pivot it is refused. A state that cannot be stored compensates
//!     the saga, the step that made it included.
//! 13. A participant applies an action once per key, and its compensation once. An action that
//!     arrives after its compensation has no effect.
//!
//! # Cancel safety
//!
//! A dropped future of [`run`](Saga::run), [`resume`](Saga::resume), [`cancel`](Saga::cancel),
//! [`retry`](Saga::retry), [`skip`](Saga::skip) or [`undo`](Saga::undo) is a crash at that point:
//! the saga stays open, and the attempts that were under way have unknown outcomes. The same
//! component continues it at once when it is asked to, others after `takeover_after`.
//!
//! # Events
//!
//! [`SagaEvent`]: started, taken over, attempt failed, compensating, completed, compensated, stuck,
//! superseded, incompatible, store failed. Alert on stuck and incompatible.
//!
//! # Pitfalls
//!
//! - The same id must not be used again for other work, also after `retention`: services that
//!   remember keys for longer would treat its actions as duplicates.
//! - The initial state is compared by its bytes: encode it in a stable order, without a
//!   `HashMap` and without the time of the call.
//! - Others change the same data while a saga runs. A compensation decides by what it finds, and
//!   need not restore the first state.
//! - A step sees the state as of its start. In a parallel group compute changes from what `changed`
//!   passes, not from the step.
//! - The state is written after each step: keep it small, and large parts elsewhere. A state is
//!   refused that leaves no room for the progress beside it in one value of the store: 256 bytes,
//!   for each step its name and 80 bytes, and the reply address of a submission. Texts of errors
//!   are left out if they do not fit.
//! - A pipeline with many retries inside a step makes its outcome less certain: an error after a
//!   repeated call is unknown, also if the last attempt was not sent.
//! - A short delay (up to 5 s) counts its attempt before the delay: a process that dies meanwhile
//!   has used that attempt up.
//!
//! # Source
//!
//! Hector Garcia-Molina and Kenneth Salem, "Sagas", 1987. The pattern: "Compensating Transaction",
//! Cloud Design Patterns. The pivot: Chris Richardson, "Microservices Patterns", 2018. Epochs of
//! owners: Martin Kleppmann, "How to do distributed locking", 2016. A table of sagas with
//! compare-and-set on each step is also the design of steno (Oxide Computer).
mod action;
mod component;
mod config;
mod core; // starting, attaching, taking over
mod error;
mod event;
mod execution; // attempts and delays of one saga
mod next_steps; // the machine: the steps that follow
mod participant;
mod plan;
mod records; // the record in the store
mod recover;
mod signals; // the machine: requests of callers
mod state; // the machine: the table of transitions, and outcomes of attempts
mod status;
mod stored; // the stored form
mod turn; // on behalf of a request

#[cfg(all(test, not(steadfast_loom)))]
mod tests;

pub use action::{Action, Compensation, Step, StepOutcome, StepOutcomeKind};
pub use component::Saga;
pub use config::SagaConfig;
pub use error::{SagaError, SagaOutcome};
pub use event::SagaEvent;
pub use participant::{Compensated, Executed, Participant};
#[cfg(feature = "testing")]
pub(crate) use plan::StepCode;
pub use plan::{AfterPivot, BeforePivot, Plan};
pub use status::{SagaPhase, SagaStatus, StepState, StepStatus};
pub(crate) use {
    recover::AllSeen,
    state::Origin,
    turn::{Silent, Start, Turn, Turned},
};
