//! Scheduler: runs sagas from a queue, in any number of processes, with deadlines, replies, order
//! by key, and a supervisor.
//!
//! # When, and when not
//!
//! Use it where a caller hands over work of several steps and does not wait for it: an order, a
//! delivery, a booking of hours. Each submission becomes a [saga](crate::saga), which survives the
//! death of any process. Do not use it
//!
//! - if the caller waits for the result: run the saga ([`Saga::run`](crate::saga::Saga::run)),
//! - for work of one step: a [`queue_listener`](crate::queue_listener) is enough,
//! - for tasks without remote calls, which one process can finish by itself.
//!
//! The pattern has three roles. The *scheduler* is a queue listener that resumes the saga of each
//! message. An *agent* is a step with its pipeline, which calls one service. The *supervisor*
//! watches the stored states. The state store is the record of each saga:
//!
//! | field of the pattern | here |
//! |---|---|
//! | `LockedBy` | executor and epoch of the record |
//! | `CompleteBy` | the lease of the message for one try, and [`deadline`](Submission::deadline) for the whole, in the record too |
//! | `ProcessState` | in the queue, [`SagaPhase`](crate::saga::SagaPhase): forward, compensating, completed, compensated, stuck |
//! | `FailureCount` | attempts of each step; [`failures`](crate::saga::SagaStatus::failures) |
//!
//! # Defaults
//!
//! | setting | default | |
//! |---|---|---|
//! | `concurrency` | 16 | sagas that each process runs at once |
//! | `visibility` | 30 s | length of a lease, which hides a submission; renewed after a third. After a crash the saga goes on that much later |
//! | `idle` | 100 ms to 5 s | delays between polls of an empty queue, or waits in one that wakes its receivers |
//! | `max_deliveries` | 5 | deaths of processes before they claim the saga, after which its message becomes a dead letter |
//! | `max_failures` | 3 | times that the supervisor resumes a saga, before it is compensated; stuck after twice as many |
//!
//! The interval of the supervisor is `scan_interval` of the saga. It costs two requests for each
//! hundred open sagas, and delays the recovery of a lost message:
//!
//! | `scan_interval`, with `takeover_after` of 60 s | requests an hour, up to 100 open sagas | recovery of a lost message, at the latest |
//! |---|---|---|
//! | 10 s | 720 | 80 s |
//! | 30 s | 240 | 2 min |
//! | 5 min | 24 | 10 min |
//!
//! # Example
//!
//! A shop that accepts orders at once and ships them later, in any number of processes:
//!
//! ```
//! use std::time::Duration;
//! use steadfast::{ConfigError, backend, codec::Codec, port::PortError};
//! use steadfast::saga::{Action, Plan, Saga, SagaConfig, SagaPhase, Step, StepOutcome};
//! use steadfast::scheduler::{Scheduler, SchedulerConfig, Submission};
//!
//! struct Ship;
//!
//! impl Action<String> for Ship {
//!     async fn execute(&self, _step: &Step<String>) -> StepOutcome<String> {
//!         // Calls a service, through a pipeline.
//!         StepOutcome::changed(|order: &mut String| order.push_str(", shipped"))
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let stop = || tokio::time::sleep(Duration::from_secs(60));
//! // In a service, a URL such as `sqlite:state.db` or `postgres://..`.
//! let backend = backend::open("memory:").await?;
//! let (store, queue) = (backend.store(), backend.queue("orders").await?);
//! let codec = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
//! let plan = Plan::new().pivot("ship", Ship);
//! let saga = Saga::new("order", store, codec, plan, SagaConfig::default())?;
//! let orders = Scheduler::new(saga, queue, SchedulerConfig::default())?;
//!
//! // The handler of a request:
//! orders.submit(Submission::new("order-42", "two books".to_owned())).await?;
//!
//! // Beside it, in each process. One process at least supervises.
//! let (ran, supervised) = tokio::join!(orders.run(stop()), orders.supervise(stop()));
//! (ran?, supervised?);
//!
//! let status = orders.read("order-42").await?.expect("it was started");
//! assert_eq!((status.phase, &*status.state), (SagaPhase::Completed, "two books, shipped"));
//! # Ok(())
//! # }
//! ```
//!
//! # The five commonest uses
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use steadfast::{backend, codec::Codec, queue::redrive};
//! use steadfast::saga::{Action, Plan, Saga, SagaConfig, Step, StepOutcome};
//! use steadfast::scheduler::{Scheduler, SchedulerConfig, Submission};
//!
//! # struct Ship;
//! # impl Action<String> for Ship {
//! #     async fn execute(&self, _: &Step<String>) -> StepOutcome<String> {
//! #         StepOutcome::completed()
//! #     }
//! # }
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let backend = backend::open("memory:").await?;
//! # let codec = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
//! # let plan = Plan::new().pivot("ship", Ship);
//! # let saga = Saga::new("order", backend.store(), codec, plan, SagaConfig::default())?;
//! # let order = || Submission::new("order-42", "two books".to_owned());
//! let (queue, replies) = (backend.queue("orders").await?, backend.queue("web-1").await?);
//! let orders = Scheduler::builder(saga, queue.clone(), SchedulerConfig::default())
//!     .replies(move |name| (name == "web-1").then(|| replies.clone()))
//!     .build()?;
//!
//! // 1. Hand an order over. A second submission of the id has no effect.
//! orders.submit(order()).await?;
//!
//! // 2. With a deadline: before its pivot it is compensated when the time is over.
//! orders.submit(order().deadline(Duration::from_secs(3600))).await?;
//!
//! // 3. With a message to this process when it ends.
//! orders.submit(order().reply_to("web-1", "request-7")).await?;
//!
//! // 4. One after the other for each customer.
//! orders.submit(order().ordering_key("customer-9")).await?;
//!
//! // 5. After a repair, submit the dead letters again.
//! redrive(&*queue, 1_000, |_| true).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # In a test
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use steadfast::{
//!     codec::Codec,
//!     queue::{InMemoryQueue, QueueExt},
//!     saga::{Action, Plan, Saga, SagaConfig, Step, StepOutcome},
//!     scheduler::{STATUS, Scheduler, SchedulerConfig, Submission},
//!     store::InMemoryStore,
//!     time::Clock,
//! };
//!
//! # struct Ship;
//! # impl Action<String> for Ship {
//! #     async fn execute(&self, _: &Step<String>) -> StepOutcome<String> {
//! #         StepOutcome::completed()
//! #     }
//! # }
//! # let (clock, driver) = Clock::manual();
//! # driver.block_on(async {
//! let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
//! let queue = |name| Arc::new(InMemoryQueue::builder(name).clock(&clock).build());
//! let (replies, plan) = (queue("web-1"), Plan::new().pivot("ship", Ship));
//! let codec = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
//! let config = SagaConfig::default();
//! let saga = Saga::builder("order", store, codec, plan, config).clock(&clock).build()?;
//! let found = replies.clone();
//! let orders = Scheduler::builder(saga, queue("orders"), SchedulerConfig::default())
//!     .clock(&clock)
//!     .replies(move |name| (name == "web-1").then(|| found.clone() as _))
//!     .build()?;
//!
//! let order = Submission::new("order-42", "two books".to_owned());
//! orders.submit(order.reply_to("web-1", "request-7")).await?;
//! orders.run(clock.sleep(Duration::from_secs(60))).await?;
//!
//! let reply = replies.receive_one(Duration::from_secs(30)).await?.expect("a status message");
//! assert_eq!(reply.headers[STATUS], "received");
//! assert_eq!(reply.headers["correlation-id"], "request-7");
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! # One message, one saga
//!
//! A submission is one message, which exists until its saga ends. Its lease is renewed while the
//! saga runs here. If the process dies, the message is delivered to another one, which takes the
//! saga over at once: no time-out beyond the lease is waited for. The record names the message on
//! whose behalf it runs, so that a second message for the same saga does not disturb it.
//!
//! A saga that waits for longer than 5 s for its next attempt is released. Its message is
//! [snoozed](crate::queue_listener::Disposition::snooze): it takes no task, no attempt is counted,
//! and it keeps its place in its group. [`wake`](Scheduler::wake) ends the wait: its message
//! carries the saga on, and tells its end. When the snoozed one comes back, it may tell it again.
//!
//! After `shutdown` each saga is released at its next step, and another process goes on at once.
//!
//! # Status messages
//!
//! With [`reply_to`](Submission::reply_to) the queue of that name receives `received` and then
//! `completed`, `compensated` or `stuck` ([`STATUS`]), each with the correlation id. The body of
//! `completed` is the encoded state, that of the last two the reason. They are sent in the step
//! that completes the submission where both queues are of one backend
//! ([`Forward`](crate::port::Capability::Forward)), otherwise before it, with a de-duplication id.
//!
//! # Composing
//!
//! - **Commands of operators** are those of the saga: [`cancel`](crate::saga::Saga::cancel),
//!   [`retry`](crate::saga::Saga::retry), [`skip`](crate::saga::Saga::skip),
//!   [`undo`](crate::saga::Saga::undo).
//! - **Dead letters** are those of the queue: [`redrive`](crate::queue::redrive) submits them
//!   again.
//! - **Headers** of a submission reach each of its steps
//!   ([`Step::headers`](crate::saga::Step::headers)), so that a trace goes on in any process:
//!   [`observe`](crate::observe#one-trace-over-processes) has the lines.
//! - **Agents behind a queue**: a step sends a request through a
//!   [`Requester`](crate::queue::Requester), and an [`Agent`] answers it while the step waits.
//!
//! # Guarantees
//!
//! 1. A submission that was accepted is started once, however often it is submitted or delivered. A
//!    second message for a saga that runs has no effect.
//! 2. Rows of the start and the record are written together. A body that cannot be decoded becomes
//!    a dead letter at once, with the reason.
//! 3. A saga that waits is no failed attempt of its message. A message whose process dies
//!    repeatedly before it claims the saga becomes a dead letter.
//! 4. When the deadline has passed, a saga before its pivot is compensated, also one that waits.
//!    Sagas of one ordering key run one at a time, in order. A wake is not lost.
//! 5. A saga whose message is lost is resumed by the supervisor; one that nothing can carry on is
//!    compensated, and at last stuck, with an event. Its status messages are sent as before, unless
//!    it ended while its message was being lost (see "Pitfalls").
//! 6. An agent drops the handler of a request for which no step waits any more, and sends no reply.
//! 7. Status messages are sent at least once, in order.
//! 8. Each attempt of a step has the headers of the submission, also in another process and when
//!    the submission's message is lost.
//!
//! # Cancel safety
//!
//! A dropped [`submit`](Scheduler::submit) may have submitted: do it again. A dropped
//! [`run`](Scheduler::run) is a crash of its sagas: they go on after the visibility time-out of
//! their messages.
//!
//! # Events
//!
//! [`SchedulerEvent`]: resent, stranded, dead-lettered, reply failed. Alert on stranded, on
//! dead-lettered, and on the stuck sagas of [`SagaEvent`](crate::saga::SagaEvent).
//!
//! # Pitfalls
//!
//! - The queue and the store must both be durable: the queue has the submissions that were not
//!   started, the store all others.
//! - A second submission is recognised by the queue for its de-duplication window, then by the
//!   record for `retention`. Later it is a new saga, whose keys the services may remember.
//! - The record of a saga keeps the deadline, the reply address, the ordering key and the headers
//!   of its submission. The supervisor's message takes them up, and that of a wake all but the
//!   ordering key. For that message the deadline counts anew: no clocks are compared.
//! - The message of a submission carries the status message of its end. If it is deleted while its
//!   saga runs, the saga ends, the supervisor has nothing to resume, and the caller is not told:
//!   it reads the status ([`read`](Scheduler::read)).
//! - A status message that its queue refuses for good, such as a state that is too large for a
//!   message, makes the submission a dead letter when its saga has ended.
//! - A message of an ordering key holds up those behind it while its saga waits, however long.
//!
//! # Source
//!
//! "Scheduler Agent Supervisor", Cloud Design Patterns; Clemens Vasters, "Cloud Architecture: The
//! Scheduler-Agent-Supervisor Pattern", 2010.
mod agent; // agents behind a queue
mod config;
mod event;
mod reply;
mod run;
#[expect(clippy::module_inception, reason = "the room and its component have one name")]
mod scheduler;
mod submission;
mod supervise;

pub use agent::{Agent, AgentCall};
pub use config::SchedulerConfig;
pub use event::SchedulerEvent;
pub use scheduler::Scheduler;
pub use submission::{SAGA_ID, STATUS, Submission};
