//! Retry: repeats an operation after transient failures.
//!
//! # When, and when not
//!
//! For transient faults: a lost connection, a restarting server, a moment of overload. Not for
//! lasting faults, which are the task of a [circuit breaker](crate::circuit_breaker). Not for
//! errors of business logic, and not in place of scaling: frequent "busy" answers mean that
//! capacity is missing.
//!
//! # Defaults
//!
//! | setting | default | |
//! |---|---|---|
//! | `max_attempts` | 3 | attempts in total, the first included |
//! | `backoff` | exponential, 100 ms to 20 s, factor 2, full jitter | |
//! | `max_elapsed` | none | no attempt starts later than this after the first |
//! | `retry_on` | all kinds but `client`, `cancelled`, `panic` | |
//! | `max_hint` | 60 s | the longest wait that a server may ask for |
//! | `retry_rejections` | no | rejections by policies of this crate |
//! | `retry_nested` | no | inside an attempt of another retry |
//! | `idempotent` | no | if unmarked operations may run twice |
//! | budget | none; 20 % and 10 a second in the standard stack | |
//!
//! [`RetryConfig::interactive`] is for calls that a user waits for, [`RetryConfig::batch`] for
//! background work.
//!
//! # Example
//!
//! ```
//! use std::io;
//! use steadfast::{CallError, ConfigError, call::idempotent, retry::{Retry, RetryConfig}};
//!
//! struct Catalogue {
//!     retry: Retry,
//! }
//!
//! impl Catalogue {
//!     fn new() -> Result<Self, ConfigError> {
//!         Ok(Self { retry: Retry::new(RetryConfig::interactive())? }) // three attempts
//!     }
//!
//!     async fn title(&self, book: u64) -> Result<String, CallError<io::Error>> {
//!         // A read may run twice, so it is marked.
//!         self.retry.call(idempotent(|| fetch(book))).await
//!     }
//! }
//! # async fn fetch(book: u64) -> io::Result<String> { Ok(format!("book {book}")) }
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() { assert_eq!(Catalogue::new().unwrap().title(7).await.unwrap(), "book 7") }
//! ```
//!
//! # The five commonest uses
//!
//! ```
//! use std::{io::{Error, ErrorKind}, time::Duration};
//! use steadfast::{Pipeline, backoff::BackoffConfig, call::{idempotent, on_retry}};
//! use steadfast::retry::{Retry, RetryBudget, RetryBudgetConfig, RetryConfig};
//!
//! # async fn read() -> Result<u32, Error> { Ok(7) }
//! # async fn write(_key: &str) -> Result<(), Error> { Ok(()) }
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // 1. A read, or a write with an idempotency key: repeated after each transient failure.
//! let retry = Retry::new(RetryConfig::interactive())?;
//! retry.call(idempotent(|| read())).await?;
//! retry.call(idempotent(|| write("order-42"))).await?;
//!
//! // 2. A write without a key: repeated only if it was certainly not sent.
//! retry.call(|| write("")).await?;
//!
//! // 3. Say how often and how fast, and which errors are worth a repetition.
//! let (first, longest) = (Duration::from_millis(50), Duration::from_secs(2));
//! let delays = BackoffConfig::default().between(first, longest);
//! let retry = Retry::new(RetryConfig::default().max_attempts(5).backoff(delays))?;
//! let calls = Pipeline::new().then(retry).retry_if(|e: &Error| e.kind() != ErrorKind::NotFound);
//! calls.call(idempotent(|| read())).await?;
//!
//! // 4. Bound the load of all retries to one service: a fifth of its calls.
//! let budget = RetryBudget::new(RetryBudgetConfig::default())?;
//! let calls = Retry::builder(RetryConfig::interactive()).budget(&budget).build()?;
//!
//! // 5. Log each repetition.
//! calls.call(on_retry(idempotent(|| read()), |retrying| eprintln!("{retrying}"))).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Background work takes [`RetryConfig::batch`]: more attempts, longer delays. Inside a transaction
//! a failure means that the whole work is undone: allow more attempts there.
//!
//! # In a test
//!
//! ```
//! use steadfast::{call::idempotent, entropy::Entropy, retry::{Retry, RetryConfig}, time::Clock};
//!
//! let (clock, time) = Clock::manual(); // no delay takes real time
//! let retry = Retry::builder(RetryConfig::default())
//!     .clock(&clock)
//!     .entropy(&Entropy::from_seed(1))
//!     .build()
//!     .unwrap();
//!
//! let mut calls = 0;
//! let read = idempotent(|| {
//!     calls += 1;
//!     let answer = if calls < 3 { Err("busy") } else { Ok("done") };
//!     async move { answer }
//! });
//! assert_eq!(time.block_on(retry.call(read)).unwrap(), "done");
//! assert_eq!(calls, 3);
//! ```
//!
//! # Log each retry
//!
//! A hook sees the typed error, the delay and the number of the failed attempt, before the wait.
//! [`Pipeline::on_retry`](crate::Pipeline::on_retry) hooks all calls of a pipeline:
//!
//! ```
//! use std::io;
//! use steadfast::{Pipeline, call::{idempotent, on_retry}, outcome::Retrying};
//! use steadfast::{retry::{Retry, RetryConfig}, time::Clock};
//!
//! let (clock, time) = Clock::manual();
//! let retry = Retry::builder(RetryConfig::default()).clock(&clock).build().unwrap();
//! let pipeline = Pipeline::new()
//!     .then(retry)
//!     .on_retry(|retrying: &Retrying<'_, u64, io::Error>| eprintln!("{retrying}"));
//! // attempt 1 failed: connection refused; the next one starts in 73ms
//!
//! // The hook of one call needs no types, and may borrow.
//! let mut waits = Vec::new();
//! let read = || async { Err(io::Error::from(io::ErrorKind::ConnectionRefused)) };
//! let read = on_retry(idempotent(read), |retrying| {
//!     let kind = retrying.error().map(io::Error::kind);
//!     waits.push((retrying.attempt(), kind, retrying.delay()));
//! });
//! time.block_on(pipeline.call(read)).unwrap_err();
//! assert!(matches!(waits[..], [(1, Some(_), _), (2, Some(_), _)])); // none after the last attempt
//! ```
//!
//! [`Retrying`](crate::outcome::Retrying) has more: a value that was judged a failure, a rejection
//! or a time-out as the cause, the verdict with the server's hint, and the names of the retry and
//! of the operation. The hook is called for retries of the [standard stack](crate::standard), in
//! boxed and local calls, and behind the tower layer. It is a plain closure inside the call: it
//! must be quick, and its panic is the call's. To react in another task, or without types, use the
//! [events](#events).
//!
//! [`call::with_last_failure`](crate::call::with_last_failure) shows the failure to the next
//! attempt.
//!
//! # Which operations are repeated
//!
//! A failure seldom proves that nothing was sent: after a time-out, a reset or a 500 the other side
//! may have done its work. So the retry repeats an operation only if it may run twice:
//!
//! | operation | repeated after |
//! |---|---|
//! | [`idempotent(operation)`](crate::call::idempotent): a read, a write of a whole value, a request with an idempotency key | each failure in `retry_on` |
//! | [`not_idempotent(operation)`](crate::call::not_idempotent) | failures of kind `connect`, rejections by policies of this crate |
//! | without a mark, and [`RetryConfig::idempotent`] is off (the default) | the same |
//! | without a mark, and [`RetryConfig::idempotent`] is on: all calls through this retry may run twice | each failure in `retry_on` |
//!
//! A retry that gives up because the mark is missing reports
//! [`StopReason::NotIdempotent`](crate::outcome::StopReason::NotIdempotent) in the error's history,
//! in the event [`RetryEvent::GaveUp`], and in the log. [`explain`](crate::Pipeline::explain)
//! states the setting, and [`explain_for`](crate::Pipeline::explain_for) warns about an operation.
//! The tower layer's `HttpRequests` marks requests by their method and their `idempotency-key`. The
//! reasons are on the page [why it is as it is](crate::_docs::design).
//!
//! # Why a budget, and not only a limit of attempts?
//!
//! Three attempts per call are harmless while one call in a thousand fails, and triple the load
//! when all calls fail. A [`RetryBudget`] allows retries in proportion to first attempts, so the
//! worst case is `1 + ratio` calls per request. Share one budget between all policies that call the
//! same target.
//!
//! # Composing
//!
//! Put it outside the circuit breaker and the attempt's time-out, and inside the total time-out. A
//! rejection by an inner breaker or limiter means "stop asking", so it is not retried unless
//! configured. A retry inside an attempt of another one leaves the attempts to the outer one, since
//! three times three is nine calls. This holds in one pipeline, and in one that was entered by
//! [`Pipeline::call_within`](crate::Pipeline::call_within).
//!
//! Code that is not async has [`Retry::call_blocking`], which waits for a delay on its thread; see
//! [code that is not async](crate::call#code-that-is-not-async).
//!
//! A server's hint is honoured: the wait is never shorter, and jitter only adds to it. After a hint
//! above `max_hint` the retry gives up at once with the hint in the error. After "do not retry" it
//! gives up, too.
//!
//! # Guarantees
//!
//! 1. There are at most `max_attempts` attempts, counted from 1; a single attempt never waits. If
//!    the next delay exceeds the total time or the deadline, the last error returns at once.
//! 2. No delay, jitter included, exceeds `cap`, however many attempts there are. The same seed
//!    gives the same delays.
//! 3. The retry never waits less than the server asks for. After a hint above `max_hint`, or one
//!    not to retry, it gives up with the hint in the error.
//! 4. A rejection by a policy of this crate ends the retry, unless `retry_rejections` is on and the
//!    stated retry time fits.
//! 5. With a budget, retries never exceed its ratio of first attempts, plus its floor. If the
//!    budget is empty, the original outcome returns.
//! 6. An operation that may not run twice is repeated only after a failure that proves that nothing
//!    was sent.
//! 7. A retry inside an attempt of another retry does not multiply the attempts, unless
//!    `retry_nested` is on.
//! 8. The final error has the first and the last cause, the number of attempts, and the elapsed
//!    time.
//! 9. A hook is called once for each retry, before its wait, and not after the last attempt: first
//!    the call's, then the pipeline's. Its panic ends the call and returns all permits.
//! 10. An operation that asks for it sees the failure of the attempt before: the operation's error,
//!     the rejection, the time-out, or the verdict on a value.
//!
//! # Cancel safety
//!
//! If the call is dropped, the running attempt or the wait is dropped, and no other attempt starts.
//! Withdrawals from the budget are not refunded.
//!
//! # Changes while in use
//!
//! [`Retry::reconfigure`] changes the settings of all clones. A call in flight uses them from its
//! next failure on, with the delays that it began with. [`RetryBudget::reconfigure`] keeps earned
//! and spent retries, in proportion if the window becomes shorter. An invalid change is rejected as
//! a whole.
//!
//! # Events
//!
//! [`RetryEvent`]: every failure that led to another attempt, every recovery, and every call that
//! was given up, with the cause and the reason. A call that succeeds at once causes no event.
//!
//! # Pitfalls
//!
//! The classifier decides. With the default one every `Err` is a failure of kind `other`, and is
//! retried if the operation is idempotent. Define once, in
//! [`Pipeline::classify`](crate::Pipeline::classify), which errors are the client's own, and which
//! are of kind `connect`: these are repeated without a mark. If it is enough to tell errors that
//! are retried from others, [`Pipeline::retry_if`](crate::Pipeline::retry_if) takes a predicate;
//! the mark is still needed.
//!
//! # Source
//!
//! "Retry pattern", Azure Architecture Center. Jitter: Marc Brooker, "Exponential Backoff And
//! Jitter" (AWS Architecture Blog, 2015). Budget: Finagle's `RetryBudget`. Push-back: gRPC proposal
//! A6.
mod builder;
mod config;
mod decision; // whether and when a failed attempt is repeated
mod event;
mod live; // settings that change while in use
mod policy; // the attempts, budget and delays of one call

pub use crate::budget::{RetryBudget, RetryBudgetConfig};
pub use config::RetryConfig;
pub use event::RetryEvent;
pub use policy::Retry;
