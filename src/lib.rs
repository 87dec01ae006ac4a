//! The cloud design patterns for async services: wrap outbound calls in a pipeline, and they stand fast.
//!
//! ```
//! use std::time::Duration;
//! use steadfast::{
//!     Cause, Pipeline,
//!     call::idempotent,
//!     circuit_breaker::{CircuitBreaker, CircuitBreakerConfig},
//!     retry::{Retry, RetryBudget, RetryBudgetConfig, RetryConfig},
//!     timeout::Timeout,
//! };
//!
//! # async fn charge(_account: &str, _key: &str) -> Result<u32, std::io::Error> { Ok(7) }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), steadfast::ConfigError> {
//! let breaker = CircuitBreaker::new(CircuitBreakerConfig::default())?.named("payments");
//! let budget = RetryBudget::new(RetryBudgetConfig::default())?; // retries: a fifth of the calls, or ten a second
//! let payments = Pipeline::new()
//!     .then(Timeout::new(Duration::from_secs(3))) //          outermost: the whole call
//!     .then(Retry::new(RetryConfig::interactive())?.with_budget(&budget)) // 3 attempts, full jitter
//!     .then(breaker.clone()) //                               each attempt is counted
//!     .then(Timeout::new(Duration::from_secs(1))); //         innermost: one attempt
//! assert!(payments.explain().warnings().is_empty());
//!
//! // The bank knows a repeated charge by its idempotency key, so it may be sent twice. Without the mark a call is repeated
//! // only after a failure that proves that nothing was sent.
//! let (account, key) = (String::from("42"), String::from("order 8e03"));
//! match payments.call(idempotent(|| charge(&account, &key))).await {
//!     Ok(receipt) => assert_eq!(receipt, 7),
//!     Err(error) => match error.cause() {
//!         Cause::Operation(e) => eprintln!("failed {} times, last: {e}", error.attempts()),
//!         Cause::Rejected(r) => eprintln!("not sent: {r}; try again in {:?}", error.retry_after()),
//!         Cause::TimedOut(t) => eprintln!("{t}"),
//!     },
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Rooms
//!
//! | room | what is in it |
//! |---|---|
//! | [`call`] | [`Pipeline`], the operation, the policy trait, the context that travels |
//! | [`timeout`] | a bounded time |
//! | [`retry`] | again, when the failure passes; the retry budget |
//! | [`circuit_breaker`] | not asking a service that fails |
//! | [`throttling`] | how often, and how much at once; keyed by tenant; who goes first when not all can be served |
//! | [`hedge`] | a second attempt beside one that takes long |
//! | `chaos` | faults on purpose, to see that the others hold; by feature |
//! | [`fallback`] | a substitute for what failed, marked as one |
//! | [`coalesce`] | who asks for the same at the same time shares one call |
//! | [`cache_aside`] | copies of what a slower source holds, never served after they were invalidated |
//! | [`leader_election`] | one of many leads, for a term, with a fencing token |
//! | [`queue_listener`] | takes messages from a queue, goes quiet when there are none, wakes at once |
//! | [`journal`] | what was refused now is kept in a queue, and done when the other side is well again |
//! | [`sharding`] | one data set in several stores: who owns a key, asking all at once, moves that survive a crash |
//! | [`claim_check`] | large bodies in a store, claims to them in the queue |
//! | [`standard`] | the ready-made stack from one document |
//! | [`store`], [`queue`], [`lease`], [`notify`] | the ports behind which patterns keep their state, each with a real one in memory |
//! | [`backend`] | the ports on engines that outlive a process: SQLite, by feature |
//! | [`port`] | what the ports share: the error that says what to do, what a backend can do, the fencing token |
//! | [`outcome`] | the verdict that all policies read, and the one flat error |
//! | `http` | HTTP and gRPC at the edges: answers judged, hints read, refusals and deadlines as headers, by feature |
//! | `tower` | a pipeline as a layer around any service: axum, hyper, reqwest, tonic; by feature |
//! | `metrics` | the numbers of all policies for a dashboard, by feature |
//! | [`backoff`], [`entropy`], [`time`], [`config`], [`observe`] | delays, randomness, clocks, settings, events |
//!
//! # Pages
//!
//! [Which pattern when](_docs::choosing), [why it is as it is](_docs::design), [what a dropped future
//! loses](_docs::cancel_safety), [beside others](_docs::compare).
//!
//! # Features
//!
//! | feature | what it brings |
//! |---|---|
//! | `sqlite` | `backend::sqlite`: the ports in one file, SQLite compiled in |
//! | `http` | `http`: classifiers of HTTP and gRPC answers, hints, refusals as answers, deadlines as headers |
//! | `reqwest` | the same for `reqwest`'s answers and errors; it comes without TLS: choose yours in your own manifest |
//! | `tonic` | the same for `tonic::Status`, both ways |
//! | `tower` | `tower::PipelineLayer`: a pipeline around any `tower` service, with `http` also for servers |
//! | `metrics` | `metrics::Metrics`: counters, gauges and histograms of all policies through the `metrics` facade |
//! | `lz4` | claim checks compress large bodies |
//! | `chaos` | `chaos`: faults on purpose; a build without it cannot inject any |
//! | `testing` | the scripted service, the drop-at-every-await harness, conformance suites, a network that fails |
//! | `quanta` | `Clock::quanta`, which reads the time-stamp counter |
//!
//! None is on by default.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(doc)]
pub mod _docs;
pub mod call;
mod ground;
mod patterns;
mod ports;
mod roof;
mod wings;

#[cfg(feature = "chaos")]
pub use patterns::chaos;
#[cfg(feature = "http")]
pub use wings::http;
#[cfg(feature = "metrics")]
pub use wings::metrics;
#[cfg(feature = "testing")]
pub use wings::testing;
#[cfg(feature = "tower")]
pub use wings::tower;
pub use {
    ground::{backoff, config, entropy, observe, outcome, time},
    patterns::{
        cache_aside, circuit_breaker, claim_check, coalesce, fallback, hedge, leader_election, queue_listener, retry,
        sharding, throttling, timeout,
    },
    ports::{lease, notify, port, queue, store},
    roof::{journal, standard},
    wings::backend,
};
// Rooms without a public page.
use ground::{budget, flight, hash, race, striped, sync, window};

pub use call::{BoxedPipeline, Pipeline};
pub use config::{ConfigError, Name};
pub use outcome::{
    CallError, Cause, Class, Classify, FailureKind, Hint, KindSet, Outcome, PolicyKind, Priority, Reason, Rejected,
    Verdict,
};
