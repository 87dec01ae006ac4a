//! Journal: keeps in a queue what could not be done now, and does it when the other side is well again.
//!
//! # When, and when not
//!
//! Where a call that was refused (by an open circuit breaker, or because other work matters more now) must be made all the same, and may be made later:
//! the caller is told "accepted". Not where the caller needs the answer; give it a degraded one. Not where what is done late is wrong: a price of
//! an hour ago, a question that nobody waits for any more.
//!
//! # Defaults
//!
//! | setting | default | |
//! |---|---|---|
//! | `per_second` | 10 | replays, by each process |
//! | `concurrency` | 4 | replays at once |
//! | `max_attempts` | 10 | so many attempts, then an entry is a dead letter |
//! | `retry` | 1 s to 60 s, full jitter | before an entry that failed is tried again |
//! | `idle` | 100 ms to 5 s | between looks at an empty journal |
//! | `visibility` | 30 s | an entry is hidden for so long at a time; renewed at a third |
//!
//! # Example
//!
//! ```
//! use std::{sync::{Arc, Mutex}, time::Duration};
//! use steadfast::{
//!     Pipeline,
//!     circuit_breaker::{CircuitBreaker, CircuitBreakerConfig},
//!     journal::{Entry, Gate, Journal, JournalConfig, Replay, Replayed, Served},
//!     queue::InMemoryQueue,
//!     time::Clock,
//! };
//!
//! # let (clock, hand) = Clock::manual();
//! # hand.block_on(async {
//! let breaker = CircuitBreaker::new(CircuitBreakerConfig::default())?.with_clock(&clock);
//! let payments = Pipeline::new().then(breaker.clone());
//! let queue = Arc::new(InMemoryQueue::new("payments").with_clock(&clock)); // or one that outlives the process
//! let journal = Journal::new(queue, JournalConfig::default())?.with_clock(&clock);
//!
//! let charged = Mutex::new(Vec::new());
//! let charge = async |order: &str| -> Result<(), std::io::Error> { Ok(charged.lock().unwrap().push(order.to_owned())) };
//!
//! breaker.force_open(Duration::from_secs(30)); // say, the bank is down
//! let result = payments.call(|| charge("order-42")).await;
//! let served = journal.or_defer(result, || Entry::new("order-42", "charge 10 euro")).await?;
//! assert_eq!(served, Served::Later); // the customer is told: accepted
//!
//! // Beside the service:
//! let gate = || Gate::of(&breaker);
//! journal.run(clock.sleep(Duration::from_secs(60)), gate, async |entry: Replay| {
//!     Replayed::of_call(payments.call(|| charge(&entry.key)).await)
//! }).await?;
//! assert_eq!(*charged.lock().unwrap(), ["order-42"]);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! # What is safe
//!
//! What [`defer`](Journal::defer) returned for is replayed **at least once**, whatever is killed, by a queue that is durable. It is done twice where a process is
//! killed between the work and its settlement. So every entry has an **idempotency key**: send it to the other side (the header
//! [`Idempotency-Key`](IDEMPOTENCY_KEY) is usual), which does nothing twice for one key; where it cannot,
//! [`remembering`](Journal::remembering) makes that rare: its memory is that of the journal's queue, whatever else the store holds. A key that is deferred twice within the queue's window is kept once.
//!
//! Entries of one [order key](Entry::in_order_of) are replayed one at a time, in the order in which they were deferred, over any number of processes.
//!
//! # How it works
//!
//! It is a [queue listener](crate::queue_listener) with a gate and a pace in front of the handler. While the gate is shut the entries in hand, at most
//! twice `concurrency`, wait where they are, with their leases renewed; the others wait in the queue. So an outage, however long, uses up no
//! deliveries: an entry becomes a dead letter by its own failures while others pass, and by processes that die with it in their hands. As the
//! gate opens entries go at an even pace. An entry whose call is refused while the gate is open waits in hand, too: for as long as the refusal says, for
//! [30 s](crate::queue_listener::Handled::LONGEST_REFUSAL) at most, or until a gate that shut meanwhile opens again.
//!
//! A breaker that nobody calls never closes: it needs a probe. [`Gate::of`] opens when its time is over, and the breaker lets as many
//! entries through as it needs.
//!
//! # Composing
//!
//! - **Circuit breaker**: [`or_defer`](Journal::or_defer) around the pipeline, [`Gate::of`] the breaker.
//! - **Throttling, low priority**: a [`Shedder`](crate::throttling::Shedder) or [`Degradation`](crate::throttling::Degradation) in the pipeline; the gate
//!   is shut while [`shed_share`](crate::throttling::Shedder::shed_share) of that priority is above zero.
//! - **Outermost**: it sees the call's final error, after the retry.
//! - **Dead letters** are in the queue's: [`redrive`](crate::queue::redrive) sends them again.
//!
//! # Cancel safety
//!
//! A dropped [`defer`](Journal::defer) has kept the entry or not: do it again. A dropped [`run`](Journal::run) leaves its entries to be replayed
//! after their visibility time-out.
//!
//! # Events
//!
//! [`JournalEvent`]: deferred, defer failed, replayed, failed, poisoned, waiting for the gate, replaying, config changed. What the queue does is told by
//! no event here; its depth is what is to be done.
//!
//! # Considerations
//!
//! 1. Rejected requests may be journalled and replayed: this. (circuit breaker, 10)
//! 2. Low-priority work may be deferred: this. (throttling, 7)
//! 3. What has just recovered is not flooded: an even pace, and the breaker's own probes. (default)
//! 4. Retried work is idempotent: every entry has a key. (refused without one)
//!
//! # Pitfalls
//!
//! - A call that is made directly overtakes those of its order key that wait. Where order matters beyond the journal, defer everything of that key until its
//!   entries are done.
//! - A handler that calls without the breaker knows no refusal: its failures are the entries' own as long as the gate is open.
//! - The pace is each process's: with many of them, less for each, or a [`SharedRateLimiter`](crate::throttling::SharedRateLimiter) in the handler's
//!   pipeline.
//! - A process that is killed in the middle of an outage uses up an attempt of each entry that it had in hand, at most twice
//!   `concurrency`. An orderly stop, as of a deployment, uses up none.
//!
//! # Source
//!
//! "Circuit Breaker pattern", Azure Architecture Center: "record the details of each request to a journal". "Store and forward", Hohpe and Woolf, "Enterprise
//! Integration Patterns", 2003: guaranteed delivery, idempotent receiver.
mod config;
mod defer;
mod entry;
mod event;
mod outcome;
mod replay;

pub use config::JournalConfig;
pub use defer::Journal;
pub use entry::{Entry, IDEMPOTENCY_KEY, Replay};
pub use event::JournalEvent;
pub use outcome::{Gate, Replayed, Served};
