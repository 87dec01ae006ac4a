//! Queue listener: takes messages from a queue and passes them to a handler, polls less and less
//! while the queue is empty, and wakes at once when a message is sent.
//!
//! # When, and when not
//!
//! Use it where work splits into independent tasks, its volume varies, and results may come later:
//! competing consumers, any number of them in one process or many, on one queue. Do not use it
//! where tasks depend on each other, or where the caller has to wait for the result.
//!
//! # Defaults
//!
//! | setting | default | |
//! |---|---|---|
//! | `batch` | 32 | maximum messages of one poll; a poll asks only for messages that can begin soon |
//! | `min_tasks`, `max_tasks` | 1, 16 | tasks that poll when idle; messages handled at once |
//! | `visibility` | 30 s | length of a lease, which hides a message from others; renewed after a third |
//! | `margin` | a fifteenth of `visibility`, an hour at most: 2 s | time before the end of its lease at which a handler is asked to stop; it is dropped at the end |
//! | `call_timeout` | a sixth of `visibility`: 5 s | of one request |
//! | `idle` | 100 ms to 60 s | delays between polls that find nothing, or waits in a queue that wakes its receivers |
//! | `busy` | 100 ms to 20 s, full jitter | delays after requests that failed |
//! | `handler_timeout` | none | |
//! | `max_attempts` | 128 | attempts after which a failed message becomes a dead letter |
//! | `max_expiries` | 5 | deaths of its process, consecutive and with a recorded beginning except the first, after which a message becomes a dead letter |
//! | `retry` | 1 s to 60 s, equal jitter | delays before a failed message is delivered again |
//! | `rescale` | 5 s | interval between two requests for the depth while every poll is full |
//! | `drain_timeout`, `kill_timeout` | 25 s, 30 s | after a shutdown: when handlers are asked to stop, and when they are dropped |
//!
//! The default schedule of a message that fails; each delay is at least half of its maximum:
//!
//! | attempt | earliest | latest |
//! |---|---|---|
//! | 2 | 0.5 s | 1 s |
//! | 4 | 3.5 s | 7 s |
//! | 7 | 31.5 s | 63 s |
//! | 16 | 5 min | 10 min |
//! | 64 | 29 min | 58 min |
//! | 128, the last | 61 min | 2 h 2 min |
//!
//! A message therefore outlasts an hour in which its handler fails, and is handled within a minute
//! after that hour. A poisoned message costs 128 runs of its handler. Longer delays reduce that
//! cost, but a failed message then waits longer after an outage.
//!
//! Cost of an idle listener, in requests over 22 hours (a test prints it):
//!
//! | | requests |
//! |---|---|
//! | polling each second | 79,200 |
//! | adaptive, to 60 s (the default) | 1,329 |
//! | adaptive, to 300 s | 275 |
//! | waiting in a queue that wakes its receivers (the default) | 1,330 |
//! | with a notifier and `min_tasks` of 0, once the queue is empty | 0 |
//!
//! # Example
//!
//! ```
//! use std::{future::pending, sync::Arc, time::Duration};
//! use steadfast::{backend, queue::{Message, QueueExt}};
//! use steadfast::queue_listener::{QueueListener, QueueListenerConfig, Work};
//!
//! /// Pays one invoice. The bank recognises a repeated payment by its key.
//! async fn pay(invoice: &[u8], key: &str) -> std::io::Result<()> {
//! #   let _ = (invoice, key);
//!     Ok(())
//! }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let shutdown = tokio::time::sleep(Duration::from_secs(60));
//! // In a service, a URL such as `sqlite:state.db` or `postgres://..`.
//! let backend = backend::open("memory:").await?;
//! let invoices = backend.queue("invoices").await?;
//! invoices.send_one(Message::new("invoice 42")).await?;
//!
//! // In any number of processes, until `shutdown`. An error is repeated after a delay.
//! let listener = QueueListener::new(invoices, QueueListenerConfig::default())?;
//! listener.run(shutdown, async |work: Work| pay(&work.body, &work.id.to_string()).await).await?;
//! # assert_eq!(listener.state().handled, 1);
//! # Ok(())
//! # }
//! ```
//!
//! # The five commonest uses
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use steadfast::{backend, queue::{IdempotencyFilter, redrive}, standard::Standard};
//! use steadfast::queue_listener::{
//!     Disposition, Level, QueueControl, QueueListener, QueueListenerConfig, Work,
//! };
//!
//! # async fn pay(_invoice: &[u8]) -> std::io::Result<()> { Ok(()) }
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let backend = backend::open("memory:").await?;
//! # let (invoices, urgent) = (backend.queue("invoices").await?, backend.queue("urgent").await?);
//! # let config = QueueListenerConfig::default();
//! # let stop = || tokio::time::sleep(Duration::from_secs(60));
//! // 1. Call a service through a pipeline: what an open breaker refuses costs no attempt.
//! let bank = Standard::builder(Default::default()).name("bank").build()?.into_pipeline();
//! let listener = QueueListener::new(invoices.clone(), config)?;
//! listener.run(stop(), async |work: Work| {
//!     Disposition::of_call(bank.call(|| pay(&work.body)).await)
//! }).await?;
//!
//! // 2. Come back later, try again (three times in all), or give up.
//! let listener = QueueListener::new(invoices.clone(), config.max_attempts(3))?;
//! listener.run(stop(), async |work: Work| match &work.body[..] {
//!     b"tomorrow" => Disposition::snooze(Duration::from_secs(24 * 3600)),
//!     b"again" => Disposition::retry("the file is not there yet"),
//!     b"" => Disposition::dead_letter("empty"),
//!     _ => Disposition::Complete,
//! }).await?;
//!
//! // 3. Recognise messages that were handled before.
//! let filter = IdempotencyFilter::new(backend.store(), "paid", Duration::from_secs(86_400));
//! let once = QueueListener::builder(invoices.clone(), config).idempotency_filter(filter).build()?;
//!
//! // 4. A second queue that goes first, and a switch for operators that holds in all processes.
//! let control = QueueControl::new(backend.store())?;
//! let both = QueueListener::builder(invoices.clone(), config)
//!     .source(urgent, Level::default())
//!     .control(&control)
//!     .build()?;
//! control.pause(&*invoices).await?;
//!
//! // 5. Send the dead letters again, after the repair.
//! redrive(&*invoices, 1_000, |_| true).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # In a test
//!
//! ```
//! use std::{sync::{Arc, Mutex}, time::Duration};
//! use steadfast::{
//!     queue::{InMemoryQueue, Message, Queue, QueueExt},
//!     queue_listener::{QueueListener, QueueListenerConfig, Work},
//!     time::Clock,
//! };
//!
//! # let (clock, driver) = Clock::manual();
//! # driver.block_on(async {
//! let queue = Arc::new(InMemoryQueue::builder("invoices").clock(&clock).build());
//! queue.send((0..100).map(|i| Message::new(format!("invoice {i}"))).collect()).await?;
//!
//! let config = QueueListenerConfig::default();
//! let listener = QueueListener::builder(queue.clone(), config).clock(&clock).build()?;
//! let paid = Mutex::new(0);
//! let shutdown = clock.sleep(Duration::from_secs(60));
//! listener.run(shutdown, async |work: Work| {
//!     if work.body.ends_with(b"7") && work.deliveries == 1 {
//!         return Err("the bank is closed"); // delivered again, after a delay
//!     }
//!     *paid.lock().unwrap() += 1;
//!     Ok(())
//! }).await?;
//! assert_eq!(*paid.lock().unwrap(), 100);
//! assert_eq!((listener.state().handled, listener.state().failed), (100, 10));
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! # Delivery
//!
//! Each message is handled **at least once**. It is settled after its handler, so a killed process
//! never loses one. It is handled twice if a listener is killed between the two, or loses its
//! lease. The first delivery then has an event that explains the second, unless its process died.
//!
//! The listener counts a lease from the moment at which it sent the request for it. If a wait was
//! longer than half of the lease, it renews the lease before the handler begins. A handler is
//! asked to stop [`margin`](QueueListenerConfig::margin) before the lease ends, and is dropped at
//! its end: it never works on a message that another process may have. If a handler finished in
//! time but its message could not be settled, the queue refuses the late settlement once the
//! message was delivered again. The listener reports it as
//! [`LeaseLost`](QueueListenerEvent::LeaseLost).
//!
//! # Attempts and dead letters
//!
//! The listener counts attempts, not deliveries. A [released](crate::queue::Settle::Release)
//! message is returned as if it had not been delivered: the listener paused or stopped, its lease
//! could not be kept, its handler snoozed it ([`Disposition::Snooze`]), or a dependency of its
//! handler refused it ([`Disposition::Refused`]).
//!
//! **A snooze** ([`Disposition::snooze`]) is a handler's answer to a message that comes too early:
//! it is delivered again after the delay, seven days at most, and no attempt is counted. It may be
//! snoozed any number of times; the handler sees the number of its deliveries and the time at which
//! it was sent. Messages of its group wait behind it, since their order is kept. A snooze keeps the
//! count of deliveries without a settlement, so a message that was suspect stays so.
//!
//! **Results.** A handler that answers with [`Disposition::forward`] sends its results to other
//! queues of the same backend in the step that ends its message: after any crash they are sent
//! once. The queue needs [`Forward`](crate::port::Capability::Forward), and each target an
//! [address](crate::queue::Queue::address). While a target is full, the listener repeats the
//! settlement and does not run the handler again, until a third of the lease is left, or the
//! listener stops. Then the message is returned as if its handler had refused it: no attempt is
//! counted, and the handler runs again. A forward that is refused for good is a failed attempt.
//! Where the queues are of different backends, send the results in the handler, with a
//! de-duplication id of the message. A [filter](crate::pipes_and_filters) does that, and holds its
//! results while a target is full.
//!
//! **Errors** of failed attempts are kept with their message, by a queue with
//! [`ErrorHistory`](crate::port::Capability::ErrorHistory): the number, time and kind of each
//! attempt, and its text up to 1,024 bytes. The first error and the latest ten are kept. The
//! handler reads them as `work.errors`, an operator in [`peek`](crate::queue::Queue::peek) of the
//! dead letters. They are written with the settlement, so that they cost no request.
//!
//! **A refusal** (an open circuit breaker, a limit) costs a message only time. The message is
//! delivered again after the delay of the refusal, 30 s at most, and may be refused again. While
//! consecutive messages are refused, polls are [`IdleConfig::min`] apart, except after one that was
//! full. Messages for other services are still found, because refused messages are hidden
//! meanwhile: the more of them there are, the longer is a random delay that is added, 30 s at most.
//! And queues are polled in turn then, so that lower priorities are found. When the breaker admits
//! a probe and the probe fails, that is not an attempt either, if this listener refused the message
//! before in the same outage: a single message in the queue may be the probe of a whole night. A
//! run remembers 16,384 refused messages; a failure of another one is an attempt. A probe is then
//! delivered again after the delay of the [schedule](QueueListenerConfig::retry). An outage ends
//! when a message that was refused succeeds, and lasts six hours at most. A message that failed in
//! an outage and fails again in a later one fails by itself, so that attempt is counted. So a
//! poisoned message becomes a dead letter in the end. In each process it costs
//! [`max_attempts`](QueueListenerConfig::max_attempts) runs and one more where other messages
//! succeed, as behind a limit that refuses most calls. Behind a breaker of its own it costs those
//! and six hours of the schedule, about 500 by default.
//!
//! **A delivery that ended without a settlement** makes its message suspect: its handler may have
//! killed the process, or an answer of the queue was lost. Only a recorded beginning tells the two
//! apart. So before the handler of a suspect message begins, the listener records that in the queue
//! ([`mark_begun`](crate::queue::Queue::mark_begun)): one request more, for suspect messages alone.
//! If the delivery ends without a settlement again, that is a death. A message becomes a dead
//! letter after `max_expiries` deaths, of which the first, before it was suspect, is not recorded.
//! However often its deliveries are lost, a message whose handler did not begin is never a dead
//! letter, and they take none of its `max_attempts`.
//!
//! Suspect messages begin one at a time, so that a death has one cause, and each is alone for a
//! while, so that it takes no other message with it. The listener waits for the handlers that run,
//! for a third of `visibility` at most, and releases all messages that wait. After a further third
//! (10 s) other messages flow beside it, for at least as long as they were kept waiting. After a
//! whole `visibility` the next suspect message begins in its place. Each recorded death of a
//! message doubles these two times. The price: a message that kills its process affects others
//! once, or more often if it takes longer than it is alone; and while suspect messages wait, others
//! are handled half of the time.
//!
//! Several listeners of one process do not know of each other. A message that kills its process
//! also ends the deliveries of the other listeners of that process, and makes their messages
//! suspect. If a handler may kill its process, let one listener receive from all queues
//! ([`source`](QueueListener::builder)), or run each queue in its own process.
//!
//! **A settlement that fails** for longer than a lease lets the message be delivered again, as if
//! its handler had killed the process. The listener remembers the decisions on the latest 4,096
//! such messages. It completes the message, returns it or makes it a dead letter by that decision,
//! and no handler sees it twice. A message without a decision (refused, released) is not suspect
//! for this listener, and has lost no attempt. If it was suspect before, the listener withdraws the
//! record of its beginning. Other processes, and this one after a restart, do not know of it: there
//! it is suspect, and handled again.
//!
//! # Pause and cancellation from any process
//!
//! A [`QueueControl`] keeps records in a store that the processes share. An operator's tool pauses
//! or resumes a queue with it, or cancels a message by its id; listeners that were built with it
//! ([`control`](QueueListener::builder)) obey. [`pause`](QueueListener::pause) of one listener
//! uses the same mechanism within one process. The listener takes messages while neither applies.
//!
//! A listener reads the records when a run begins, when a notice of the control arrives, before a
//! poll, when messages arrive in a wait, and when it renews the lease of a running handler. Without
//! a notice, reads are at least [`poll`](QueueControl::builder) apart (10 s). An idle listener
//! therefore reads at most once per poll of its queue, and not at all while it does not poll. While
//! a queue is paused, the listener reads once per `poll`. If a read fails, the records that were
//! read last apply. A listener that could never read them takes no messages, because an operator
//! may have paused the queue before it started.
//!
//! A cancelled handler is asked to stop by the signal that it has already
//! ([`Work::cancelled`]). It may complete nevertheless: a completion always counts. With any other
//! result its message becomes a dead letter with the reason "cancelled". The same holds for a
//! cancellation that arrives while the handler ends: either the listener has read it before it
//! decides on the result, or the message is settled by that result. A message whose handler failed
//! in that moment is cancelled at its next delivery.
//!
//! # Polling and wake-ups
//!
//! Each empty poll lengthens the wait before the next one ([`IdleConfig`]). A task whose wait is
//! the maximum ends, except for the last `min_tasks`. When a poll finds messages again, the depth
//! of the queue decides how many tasks start (10 below 100 messages, 50 below 1,000, else 100, or a
//! [rule](QueueListener::builder) of your own), up to `max_tasks`. While all tasks wait for their
//! handlers, one more polls, up to the number for one message.
//!
//! With a [`Notifier`](crate::notify::Notifier) ([`notifier`](QueueListener::builder)) the
//! listener polls when a notice arrives. A notice is a hint and may be lost. With `min_tasks` of 1
//! a slow poll finds the announced message within the maximum wait. With 0 no task polls, and the
//! next notice finds it. While the subscription fails, one task polls in any case. Senders publish
//! notices through an [`AnnouncingQueue`](crate::queue::AnnouncingQueue).
//!
//! **A queue that wakes its receivers** ([`Push`](crate::port::Capability::Push): in memory, on
//! PostgreSQL, Redis and NATS) is not polled while a task is idle. The listener waits in it for the
//! delays of `idle`: one wait after the other, however many tasks are idle, and in several queues
//! at once. A handler begins milliseconds after another process has sent its message, and an idle
//! listener makes as many requests as one that polls. When the wait of a lower priority ends, its
//! messages are taken: at most those of one poll come before messages of higher priority. A pause,
//! a stop or a suspect message ends a wait within four times the time of the slowest recent answer,
//! 50 ms at least and `call_timeout` at most. A message that was taken meanwhile is released; if
//! the request for it is still under way, it returns after its visibility time-out.
//!
//! **A slow queue.** Each request that times out doubles the time limit of the next ones, up to
//! half of `visibility`; an answer within `call_timeout` resets it. So a queue whose answers take
//! longer than `call_timeout` is slow, but its messages are handled.
//!
//! # Prefetch
//!
//! Waiting messages belong to no task: the next free task takes the next message, so that none
//! waits behind another's handler, filter or settlement. A poll asks for as many messages as there
//! are free tasks, plus those that the tasks can begin within a second at the recent time per
//! message. Two listeners therefore share a queue evenly, and few messages wait. Leases of waiting
//! messages are renewed concurrently. A handler begins only if the margin plus twice the recent
//! time per message is left. A failed settlement request is retried in halves, until the settlement
//! that fails is alone.
//!
//! # Composing
//!
//! - **Load levelling.** Put a [pipeline](crate::Pipeline) into the handler, with a [rate
//!   limit](crate::throttling::RateLimiter) and an [adaptive concurrency
//!   limit](crate::throttling::AdaptiveLimiter) that let calls wait. Leases are renewed meanwhile,
//!   and the service behind sees an even load. [`Disposition::of_call`] returns a message after the
//!   delay of the rejection. Without a limit the listener only moves the peak on.
//! - **Priority.** [`source`](QueueListener::builder) adds queues, in strict order or by
//!   weight; [`max_wait`](Level::max_wait) bounds how long a queue is passed over. All levels share
//!   the tasks; for separate pools, build several listeners.
//! - **Duplicates** ([all ways to have an effect once](crate::_docs::once)).
//!   [`IdempotencyFilter`](crate::queue::IdempotencyFilter) records in a store which messages were
//!   handled. It does not record one whose results are forwarded: its end and
//!   its results are one step anyway.
//! - **Large bodies**: [`claim_check`](crate::claim_check). **More throughput**:
//!   [`PartitionedQueue`](crate::queue::PartitionedQueue).
//! - **Replies.** [`Requester`](crate::queue::Requester) sends a request and waits for the reply;
//!   the handler reads [`reply_to`](Work::reply_to).
//! - **Dead letters** are a queue: list them by `peek`, send them again by
//!   [`redrive`](crate::queue::redrive).
//! - **Operation**: [`QueueControl`] pauses a queue, and cancels messages, from any process.
//! - **CPU-bound handlers**: [`run_on`](QueueListener::run_on) passes each task to a spawner.
//!   [`run`](QueueListener::run) spawns nothing.
//!
//! # Guarantees
//!
//! 1. Idle polls back off to `idle.max` with random delays, and every task but `min_tasks` ends by
//!    itself.
//! 2. A message is found within 50 ms of its notice, and within `idle.max` if the notice is lost
//!    and a task still polls. In a queue that wakes its receivers it is found at once.
//! 3. The lease of a handled message is renewed from a third of its length on, for as long as the
//!    handler runs.
//! 4. A handler is asked to stop before its lease ends and is dropped at its end. A later
//!    settlement is reported as `LeaseLost`.
//! 5. Leases of waiting messages are renewed. No handler begins with less lease left than `margin`.
//! 6. A message becomes a dead letter after `max_attempts` failed attempts or `max_expiries` deaths
//!    of its process, and never if its handler did not begin. Lost deliveries are neither. A
//!    suspect message delays others, and other suspect ones, for a bounded time. A panic is a
//!    failure of its message alone.
//! 7. A crash while a message is moved to the dead letters leaves exactly one dead letter.
//! 8. A stop releases waiting messages at once, asks handlers to stop after `drain_timeout`, drops
//!    them after `kill_timeout`, and settles what was handled.
//! 9. Messages of one group key are handled one at a time and in order, over any number of
//!    listeners; different keys are handled in parallel.
//! 10. With `max_wait` a queue of low priority is polled within that bound under any load. By
//!     weight, each queue has its share.
//! 11. Each message of a batch is settled by its own disposition.
//! 12. Calls that wait for a limit in the handler keep their leases, so the service behind the
//!     handler sees an even load.
//! 13. Under a peak no accepted message is lost; a bounded queue refuses further sends with a typed
//!     error.
//! 14. A message that the idempotency filter knows is completed without its handler.
//! 15. Each message is completed or becomes a dead letter, whatever listeners and network do. An
//!     event explains each delivery after the first, unless its process died.
//! 16. A run that is dropped at any await point loses no message.
//! 17. A snoozed message is delivered again after its delay, within 100 ms and seven days. No
//!     attempt is counted. The messages of its group wait behind it.
//! 18. The handler and the dead letter have the errors of the failed attempts, the first and the
//!     latest ten, if the queue keeps them.
//! 19. A queue that a [`QueueControl`] paused is polled by no listener of any process, also after
//!     restarts: at once with its notice, within the control's `poll` and one request without it.
//!     A listener that never read the control's records polls nothing.
//! 20. No handler begins with a message whose cancellation the listener has read. A running handler
//!     is asked to stop, with the notice or after a renewal of its lease. Its message is not tried
//!     again, unless the handler completes it.
//! 21. A control adds no request to the queue, and reads of its records at most once per `poll`
//!     and notice, whatever the number of messages.
//! 22. The results that a handler forwards are sent in the step that ends its message: once,
//!     whatever fails and however often the handler runs. A full target delays them, and counts
//!     neither attempts nor expiries; a forward that is refused for good is a failed attempt.
//!
//! # Cancel safety
//!
//! A dropped run drops its handlers; their messages, and those that waited, are visible again after
//! their visibility time-out. None is lost. A dropped [`drain`](QueueListener::drain) leaves the
//! listener paused.
//!
//! # Events
//!
//! [`QueueListenerEvent`]: queue empty, work detected, scaled up and down, call failed, message
//! failed, refused, snoozed, cancelled, dead-lettered, queue paused and resumed, lease lost,
//! handler dropped, released, stopping.
//! [`state`](QueueListener::state) has counters, and the number of requests that a cloud queue
//! bills.
//!
//! # Pitfalls
//!
//! - An outage without a refusal counts attempts: if a handler fails for longer than the schedule
//!   lasts, its messages become dead letters. Put a circuit breaker into the handler's pipeline,
//!   and pass its result to [`Disposition::of_call`].
//! - A killed process leaves its messages suspect. Prefer `shutdown`: messages that it releases are
//!   not.
//! - A handler that blocks its thread does not see the signal to stop, and keeps the other handlers
//!   of the run from being polled. Use `run_on`, or `spawn_blocking` in the handler.
//! - A queue without dead letters (such as a queue of dead letters) keeps its poisoned messages,
//!   and delivers them with the maximum delay.
//! - A handler that snoozes its message without end keeps it for ever, and blocks its group.
//!   Compare [`sent_at`](crate::queue::Delivery::sent_at) with the longest time that makes sense.
//! - A listener that expects a snoozed message of its own keeps one task that polls, also with
//!   `min_tasks` of 0: no notice announces the return.
//! - A cancellation does not remove a waiting message: it is counted in the depth until it is
//!   delivered. The control forgets a cancellation after 14 days ([`keep`](QueueControl::builder)).
//! - Cancellations of messages that had ended already stay until then, too. While a listener knows
//!   of any, it compares each message with them, which makes quick handlers slower.
//! - Strict order starves the lower priorities under a flood, unless they have a `max_wait`.
//!
//! # Source
//!
//! The adaptive back-off, its delays and its numbers: Valery Mizonov, "Best Practices for
//! Maximizing Scalability and Cost Effectiveness of Queue-Based Messaging Solutions on Windows
//! Azure", 2010. "Competing Consumers", "Queue-Based Load Leveling", "Priority Queue" and
//! "Asynchronous Request-Reply", Azure Architecture Center. Weighted turns: the smooth weighted
//! round robin of nginx.
mod builder;
mod config;
mod control; // pause and cancellation across processes
mod counters;
mod event;
mod explain;
mod lease; // leases of received messages, as this process counts them
mod listener;
mod poll; // receiving, and waiting for messages
mod priority;
mod run; // tasks, their number and their work
mod settle; // what becomes of a handled message
#[cfg(all(test, not(steadfast_loom)))]
mod tests;
mod work; // a message as the handler sees it

pub use config::QueueListenerConfig;
pub use control::QueueControl;
pub use counters::ListenerState;
pub use event::{QueueCall, QueueListenerEvent};
pub use listener::QueueListener;
pub use priority::{Level, PriorityOrder};
pub use work::Work;

#[doc(inline)]
pub use crate::work::{Cancelled, Disposition, IdleConfig};
