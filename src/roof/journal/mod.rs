//! Journal: keeps rejected calls in a queue and replays them when the service has recovered.
//!
//! # When, and when not
//!
//! Use it if a rejected call (by an open circuit breaker, or because other work has priority) must
//! be made and may be made later: the caller is told "accepted". Do not use it if the caller needs
//! the result; return a degraded one instead. Do not use it if a late call is wrong, such as a
//! query whose result nobody reads any more.
//!
//! # Defaults
//!
//! | setting | default | |
//! |---|---|---|
//! | `per_second` | 10 | replays a second, by each process |
//! | `concurrency` | 4 | replays at once |
//! | `max_attempts` | 10 | attempts after which an entry becomes a dead letter |
//! | `retry` | 1 s to 60 s, full jitter | delays before a failed entry is tried again |
//! | `idle` | 100 ms to 5 s | delays between polls of an empty journal |
//! | `visibility` | 30 s | length of a lease, which hides an entry; renewed after a third |
//!
//! # Example
//!
//! A shop whose payments are accepted while the bank is closed, and made when it opens:
//!
//! ```
//! use std::{io, sync::Arc};
//! use steadfast::{BoxedPipeline, CallError, Pipeline, port::PortError};
//! use steadfast::circuit_breaker::{CircuitBreaker, CircuitBreakerConfig};
//! use steadfast::journal::{Entry, Gate, Journal, Replay, Replayed, Served};
//!
//! struct Shop {
//!     breaker: CircuitBreaker,
//!     bank: BoxedPipeline<(), io::Error>,
//!     journal: Journal,
//! }
//!
//! impl Shop {
//!     async fn pay(&self, order: &str) -> Result<&'static str, CallError<io::Error>> {
//!         let result = self.bank.call(|| charge(order)).await;
//!         match self.journal.or_defer(result, || Entry::new(order, "10 euro")).await? {
//!             Served::Now(()) => Ok("paid"),
//!             Served::Later => Ok("accepted"),
//!         }
//!     }
//!
//!     /// Runs beside the service, in any number of processes.
//!     async fn replay(&self, shutdown: impl Future<Output = ()>) -> Result<(), PortError> {
//!         let gate = || Gate::of(&self.breaker);
//!         self.journal.run(shutdown, gate, async |entry: Replay| {
//!             Replayed::of_call(self.bank.call(|| charge(&entry.key)).await)
//!         }).await
//!     }
//! }
//! # async fn charge(_order: &str) -> io::Result<()> { Ok(()) }
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use std::time::Duration;
//! # use steadfast::{journal::JournalConfig, queue::{InMemoryQueue, Queue}};
//! # let breaker = CircuitBreaker::new(CircuitBreakerConfig::default())?;
//! # let bank = Pipeline::new().then(breaker.clone()).boxed();
//! # let queue = Arc::new(InMemoryQueue::new("payments"));
//! # let journal = Journal::new(queue, JournalConfig::default())?;
//! # let shop = Shop { breaker, bank, journal };
//! # assert_eq!(shop.pay("order-41").await?, "paid");
//! # shop.breaker.force_open(Duration::from_secs(30));
//! # assert_eq!(shop.pay("order-42").await?, "accepted");
//! # shop.replay(tokio::time::sleep(Duration::from_secs(60))).await?;
//! # assert_eq!(shop.journal.queue().depth().await?.total(), 0);
//! # Ok(())
//! # }
//! ```
//!
//! # The five commonest uses
//!
//! ```
//! use std::{future::pending, io, time::Duration};
//! use steadfast::{Pipeline, backend, circuit_breaker::CircuitBreaker, queue::redrive};
//! use steadfast::journal::{Entry, Gate, Journal, JournalConfig, Replay, Replayed};
//!
//! # async fn charge(_order: &str) -> io::Result<()> { Ok(()) }
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let backend = backend::open("memory:").await?;
//! # let breaker = CircuitBreaker::new(Default::default())?;
//! # let bank = Pipeline::new().then(breaker.clone());
//! # let stop = || tokio::time::sleep(Duration::from_secs(60));
//! let journal = Journal::new(backend.queue("payments").await?, JournalConfig::default())?;
//! // 1. Keep a call that a breaker or a limit rejected.
//! let result = bank.call(|| charge("order-42")).await;
//! journal.or_defer(result, || Entry::new("order-42", "10 euro")).await?;
//!
//! // 2. Keep work that needs no answer, without a first try.
//! journal.defer("order-43", "10 euro").await?;
//!
//! // 3. In the order of each customer.
//! journal.defer_entry(Entry::new("order-44", "10 euro").in_order_of("customer-7")).await?;
//!
//! // 4. Replay, in any number of processes, at ten calls a second each.
//! journal.run(stop(), || Gate::of(&breaker), async |entry: Replay| {
//!     Replayed::of_call(bank.call(|| charge(&entry.key)).await)
//! }).await?;
//!
//! // 5. After a repair, replay the entries that were given up.
//! redrive(&**journal.queue(), 1_000, |_| true).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Delivery
//!
//! If the queue is durable, each entry for which [`defer`](Journal::defer) returned is replayed
//! **at least once**, whatever process is killed. It is replayed twice if a process is killed
//! between the call and its settlement. Every entry therefore has an **idempotency key**. Send it
//! to the service (the header [`Idempotency-Key`](IDEMPOTENCY_KEY) is usual), which then performs
//! the call once. If the service does not support keys,
//! [`remembering`](Journal::builder) makes a repetition rare. Its records belong to the
//! journal's queue, whatever else the store holds. A key that is deferred twice within the queue's
//! deduplication window is kept once.
//!
//! Entries of one [order key](Entry::in_order_of) are replayed one at a time, in the order in which
//! they were deferred, over any number of processes.
//!
//! # How it works
//!
//! A journal is a [queue listener](crate::queue_listener) with a gate and a rate limit in front of
//! the handler. While the gate is shut, at most twice `concurrency` entries wait in memory, with
//! their leases renewed; the others wait in the queue. An outage of any length therefore uses up no
//! deliveries. An entry becomes a dead letter by its own failures while others succeed, and by
//! processes that die during its replay, not during its wait: an entry whose process died returns
//! to the queue for up to 10 s if it finds the gate shut. When the gate opens, entries are replayed
//! at an even pace.
//! An entry whose call is rejected while the gate is open also waits in memory: for the delay of
//! the rejection, for [30 s](crate::queue_listener::Disposition::LONGEST_REFUSAL) at most, or until
//! a gate that shut meanwhile opens again.
//!
//! An open breaker without calls never closes, because it needs a probe. [`Gate::of`] opens when
//! the breaker admits probes, and the breaker admits as many entries as it needs.
//!
//! # Composing
//!
//! - **Circuit breaker**: [`or_defer`](Journal::or_defer) around the pipeline, [`Gate::of`] the
//!   breaker.
//! - **Throttling, low priority**: a [`Shedder`](crate::throttling::Shedder) or
//!   [`Degradation`](crate::throttling::Degradation) in the pipeline; the gate is shut while
//!   [`shed_share`](crate::throttling::Shedder::shed_share) of that priority is above zero.
//! - **Outermost**: it sees the final error of the call, after the retry.
//! - **Dead letters** are those of the queue: [`redrive`](crate::queue::redrive) sends them again.
//!
//! # Guarantees
//!
//! 1. Each deferred entry is replayed at least once, whatever process is killed or future is
//!    dropped.
//! 2. Entries of one order key are replayed one at a time, in the order in which they were
//!    deferred.
//! 3. Each entry has an idempotency key, which is the same for every attempt.
//! 4. An outage of any length, and an orderly stop, use up no attempt of an entry.
//! 5. Replays never exceed `per_second`, also when the gate opens.
//! 6. A rejected entry is tried again after 30 s at most, or when a gate that shut meanwhile opens.
//! 7. An entry that can never be replayed becomes a dead letter and delays no other entry.
//! 8. If the queue does not take an entry, the caller receives the rejection of its call.
//!
//! # Cancel safety
//!
//! A dropped [`defer`](Journal::defer) may have deferred the entry: do it again. Entries of a
//! dropped [`run`](Journal::run) are replayed after their visibility time-out.
//!
//! # Events
//!
//! [`JournalEvent`]: deferred, defer failed, replayed, failed, poisoned, waiting for the gate,
//! replaying, config changed. Failures of the queue during replay have no event here; its depth is
//! the number of pending entries.
//!
//! # Pitfalls
//!
//! - A direct call overtakes waiting entries of its order key. If order matters beyond the journal,
//!   defer all calls of that key until its entries are replayed.
//! - A handler that calls without the breaker sees no rejection: its failures count as attempts
//!   while the gate is open.
//! - The rate limit applies to each process. With many processes reduce it, or put a
//!   [`SharedRateLimiter`](crate::throttling::SharedRateLimiter) into the handler's pipeline.
//! - A process that is killed during an outage makes each entry in its memory suspect, at most
//!   twice `concurrency`: they are then replayed one at a time. An orderly stop, as in a
//!   deployment, makes none so.
//!
//! # Source
//!
//! "Circuit Breaker pattern", Azure Architecture Center: "record the details of each request to a
//! journal". "Store and forward", Hohpe and Woolf, "Enterprise Integration Patterns", 2003:
//! guaranteed delivery, idempotent receiver.
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
