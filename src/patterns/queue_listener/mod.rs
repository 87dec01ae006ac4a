//! Queue listener: takes messages from a queue, hands them to a handler, goes quiet when there are none and wakes at once when one comes.
//!
//! # When, and when not
//!
//! Where work splits into independent tasks, its volume varies, and answers may come later: competing consumers, any number of them in one
//! process or many, on one queue. Not where tasks depend on each other, or where the caller has to wait.
//!
//! # Defaults
//!
//! | setting | default | |
//! |---|---|---|
//! | `batch` | 32 | messages of one poll, at most; a poll asks for no more than can be begun soon |
//! | `min_tasks`, `max_tasks` | 1, 16 | tasks that poll when idle; messages handled at once |
//! | `visibility` | 30 s | a message is hidden from others for so long at a time; renewed at a third |
//! | `margin` | a fifteenth of `visibility`, an hour at most: 2 s | before its lease ends a handler is told; it is dropped when it has |
//! | `call_timeout` | a sixth of `visibility`: 5 s | of one request |
//! | `receive_wait` | none | how long a poll waits in the queue |
//! | `idle` | 100 ms to 60 s | between polls that find nothing |
//! | `busy` | 100 ms to 20 s, full jitter | after requests that failed |
//! | `handler_timeout` | none | |
//! | `max_attempts` | 128 | then a message that failed is a dead letter |
//! | `max_expiries` | 5 | deliveries in a row without an end, as by a process that dies; then a message is a dead letter |
//! | `retry` | 1 s to 60 s, equal jitter | before a message that failed comes back |
//! | `rescale` | 5 s | between two looks at the depth while every poll is full |
//! | `soft_limit`, `hard_limit` | 25 s, 30 s | after a shutdown handlers are told, and dropped |
//!
//! When a message that fails is tried again, by the default schedule: each delay is at least half of its longest.
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
//! So a message outlasts an hour in which its handler fails, and is handled within a minute of the end; and a poisoned one costs 128 runs of
//! its handler. With longer delays it costs fewer, and a message that failed waits for longer after an outage.
//!
//! What an idle listener costs, in requests over 22 hours (a test prints it):
//!
//! | | requests |
//! |---|---|
//! | polling each second | 79,200 |
//! | adaptive, to 60 s (the default) | 1,329 |
//! | adaptive, to 300 s | 275 |
//! | with wake-ups and `min_tasks` of 0, once it is quiet | 0 |
//!
//! # Example
//!
//! ```
//! use std::{sync::{Arc, Mutex}, time::Duration};
//! use steadfast::{
//!     queue::{InMemoryQueue, Message, Queue, QueueExt},
//!     queue_listener::{QueueListener, Work},
//!     time::Clock,
//! };
//!
//! # let (clock, hand) = Clock::manual();
//! # hand.block_on(async {
//! let queue = Arc::new(InMemoryQueue::new("invoices").with_clock(&clock));
//! queue.send((0..100).map(|i| Message::new(format!("invoice {i}"))).collect()).await?;
//!
//! let listener = QueueListener::builder(queue.clone()).clock(&clock).build()?;
//! let paid = Mutex::new(0);
//! let shutdown = clock.sleep(Duration::from_secs(60));
//! listener.run(shutdown, async |work: Work| {
//!     if work.body.ends_with(b"7") && work.deliveries == 1 {
//!         return Err("the bank is closed"); // it comes back, after a while
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
//! # What is safe
//!
//! Each message is handled **at least once**. A message is settled after its handler, so whatever is killed, it comes back. It is handled twice where a
//! listener is killed between the two, or loses a lease; the second delivery is explained by an event of the first, unless its process died.
//!
//! A lease counts, on this side, from the moment at which it was asked for. A handler is told [`margin`](QueueListenerConfig::margin) before it ends, and
//! dropped when it has: it never acts on a message that another may have. What it finished with in time, and could not be settled, is
//! refused by the queue once the message was handed out again, and told as [`LeaseLost`](QueueListenerEvent::LeaseLost).
//!
//! # What counts as an attempt
//!
//! Attempts are counted, and not deliveries. A message that is [released](crate::queue::Settle::Release) is back as if it had not been handed out: the
//! listener paused or stopped, its lease could not be kept, or what its handler needs refused it ([`Handled::Refused`]).
//!
//! **A refusal** (an open circuit breaker, a limit) costs a message nothing but time. It comes back when the refusal says, after 30 s at the latest, and
//! is refused again if need be. While one message after another is refused, polls are paced by [`IdleConfig::min`]; messages for other services are
//! found all the same, as what is refused is hidden meanwhile. When the breaker lets a probe through and the probe fails, that is no attempt either,
//! where the message was refused before in the same outage: one message alone in the queue may be the probe of a whole night. An outage ends when a message
//! that was refused succeeds, and counts for six hours at most, so that poison behind a breaker of its own is set aside in the end.
//!
//! **A delivery that ended without a word** makes its message suspect, for its handler may have killed the process. A suspect message is handled
//! alone: all others in this listener's hands are finished or handed back before its handler begins, and nothing is taken beside it. So
//! a message that kills its process takes others with it once, is found by `max_expiries` deaths, and nothing but it is set aside. The price: after a crash
//! the messages that were in hand are handled one at a time by each listener, and a suspect message waits for the handlers that run.
//!
//! A listener stops for a suspect message what is its own, and nothing else: several listeners of one process do not know of each other. A message that
//! kills its process takes with it what the other listeners of that process have in hand, each time, and these messages are suspects then. Where a
//! handler may kill its process, let one listener take from all queues ([`also`](QueueListenerBuilder::also)), or give the queue a process of its own.
//!
//! **A settlement that fails** for longer than a lease has the message come back as if its handler had killed the process. The listener remembers what
//! the handler decided, of the latest 4,096 such messages: it completes the message, has it tried again or sets it aside by that decision, and no
//! handler sees it twice. One on which nothing was decided (refused, handed back) is no suspect for this listener. Other processes, and this one
//! after a restart, know nothing of it: there, a message with `max_expiries` of such deliveries is set aside.
//!
//! Messages of one group key are handled one at a time, in order, by the queue's own contract, over any number of listeners.
//!
//! # How it is quiet, and how it wakes
//!
//! A poll that finds nothing is followed by a longer and longer wait ([`IdleConfig`]). A task whose wait is the longest ends, but for the last
//! `min_tasks`. When work is found again, the depth decides how many begin ([`tasks_by_depth`], or a rule of yours), up to `max_tasks`.
//!
//! With a [`Notifier`](crate::notify::Notifier) ([`woken_by`](QueueListenerBuilder::woken_by)) it looks when a notice comes. A notice is a hint, and may be
//! lost: with `min_tasks` of 1 a slow poll finds what it announced, within the longest wait. With 0 nobody polls, and a lost notice is found by the
//! next one. While the subscription fails, one task goes on polling in any case. Send through an [`AnnouncingQueue`], which publishes.
//!
//! Where the queue can wait for messages by itself, [`receive_wait`](QueueListenerConfig::receive_wait) has each poll do that; the wait between polls is
//! shorter by as much. Of several queues each is waited in at once, beside the tasks, while a task is idle.
//!
//! # How much it takes
//!
//! Messages that wait belong to no task: whichever is free takes the next, so that none waits behind another's handler, filter or settlement. A poll asks
//! for as many as there are free tasks, and for what they begin within a second by the time that messages took lately. So two listeners
//! share a queue evenly, and few messages wait. Those that do have their leases renewed, side by side; a handler begins with the margin and twice the time of a
//! message left, or not at all. Settlements that fail are tried again apart, by halves, until the one that cannot be settled is alone.
//!
//! # Composing
//!
//! - **Load levelling.** Put a [pipeline](crate::Pipeline) into the handler, with a [rate limit](crate::throttling::RateLimiter) and an
//!   [adaptive concurrency limit](crate::throttling::AdaptiveLimiter) that have calls wait: leases are kept meanwhile, and the service behind sees an
//!   even load. [`Handled::of_call`] brings a message back when the refusal says. Without one the listener just moves the peak on.
//! - **Priority.** [`also`](QueueListenerBuilder::also) takes from more queues, in strict order or by weight; [`max_wait`](Level::max_wait) bounds how long one
//!   of them is passed over. Levels share the tasks; for a pool each, make a listener each.
//! - **Duplicates.** [`IdempotencyFilter`] remembers in a store what was handled.
//! - **Large bodies**: [`claim_check`](crate::claim_check). **More throughput**: [`PartitionedQueue`](crate::queue::PartitionedQueue).
//! - **Answers.** [`Requester`] asks and waits; the handler finds [`reply_to`](Work::reply_to).
//! - **Dead letters** are a queue: list them by `peek`, send them again by [`redrive`].
//! - **Handlers that compute**: [`run_on`](QueueListener::run_on) hands each task to a spawner. [`run`](QueueListener::run) spawns nothing.
//!
//! # Cancel safety
//!
//! A dropped run drops its handlers; their messages, and those that waited, are visible again after their visibility time-out. None is lost.
//! [`drain`](QueueListener::drain) dropped leaves the listener paused. A [`Requester`]'s question that is dropped may be answered to nobody.
//!
//! # Events
//!
//! [`QueueListenerEvent`]: queue empty, work detected, scaled up and down, call failed, message failed, refused, dead-lettered, lease lost, handler
//! dropped, handed back, stopping. [`state`](QueueListener::state) has counts, and the requests that the queue is paid for.
//!
//! # Considerations
//!
//! 1. Batch what is sent (`send` takes many), batch what is received (default).
//! 2. An idle queue is polled by one task at most (default).
//! 3. Scale in when empty for long, out by depth (default; `state()` is a vote for the host).
//! 4. Randomised exponential back-off for idle polls and for "busy" (default).
//! 5. Stay below a queue's limit of requests: several queues as one (option).
//! 6. Push for latency, with its own cost: wake-ups (option).
//! 7. Handlers are idempotent; order is not guaranteed: the filter, group keys (option).
//! 8. A crashed consumer's work comes back (default).
//! 9. Poison messages are kept aside, not returned; a handler that kills its process is counted too (default).
//! 10. Results go by a reply queue with a correlation id: `Requester` (option).
//! 11. Nothing accepted is lost (default).
//! 12. Levelling: the consumer controls its rate: a pipeline in the handler (option).
//!     [`explain_with`](QueueListener::explain_with) warns of a handler without a limit (warning).
//! 13. Scaling consumers may raise contention behind them: `max_tasks`, the adaptive limit.
//!     [`explain_with`](QueueListener::explain_with) warns of many handlers without one (warning).
//! 14. Priorities: few, defined by need; each queue that is polled costs a request (option).
//!
//! # Pitfalls
//!
//! - An outage without a refusal is counted: a handler that fails for longer than the schedule lasts loses its messages to the dead letters.
//!   Put a circuit breaker into the handler's pipeline, and give its result to [`Handled::of_call`].
//! - A process that is killed leaves its messages suspect. Prefer `shutdown`: what it hands back is not.
//! - A handler that blocks its thread is told nothing, and keeps the others of the run from being polled: `run_on`, or
//!   `spawn_blocking` in the handler.
//! - A queue without dead letters (a queue of dead letters) keeps its poison, and hands it out with the longest delay.
//! - Strict order starves the lower levels under a flood, unless they have a `max_wait`.
//!
//! # Source
//!
//! The adaptive back-off, its delays and its numbers: Valery Mizonov, "Best Practices for Maximizing Scalability and Cost Effectiveness of
//! Queue-Based Messaging Solutions on Windows Azure", 2010. "Competing Consumers", "Queue-Based Load Leveling", "Priority Queue" and
//! "Asynchronous Request-Reply", Azure Architecture Center. Weighted turns: the smooth weighted round robin of nginx.
mod builder;
mod config;
mod counters;
mod disposition;
mod event;
mod explain;
mod lease;
mod listener;
mod poll;
mod priority;
mod run;
mod settle;
#[cfg(all(test, not(steadfast_loom)))]
mod tests;
mod work;

pub use builder::QueueListenerBuilder;
pub use config::QueueListenerConfig;
pub use counters::ListenerState;
pub use disposition::Handled;
pub use event::{QueueCall, QueueListenerEvent};
pub use listener::QueueListener;
pub use poll::idle::IdleConfig;
pub use priority::{Level, PriorityOrder};
pub use run::scaler::tasks_by_depth;
pub use work::{Cancelled, Work};
