//! Keeps an async service answering while the things that it calls are down: retries, circuit
//! breakers, rate limits and caches for calls; queues, sagas, event streams, sharding and leader
//! election on PostgreSQL, Redis, NATS or SQLite.
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
//! let rules = CircuitBreakerConfig::default();
//! let breaker = CircuitBreaker::builder(rules).name("payments").build()?;
//! // Retries: at most a fifth of the calls, or ten a second.
//! let budget = RetryBudget::new(RetryBudgetConfig::default())?;
//! let payments = Pipeline::new()
//!     .then(Timeout::new(Duration::from_secs(3))) //          outermost: the whole call
//!     // 3 attempts, with jitter:
//!     .then(Retry::builder(RetryConfig::interactive()).budget(&budget).build()?)
//!     .then(breaker.clone()) //                               counts each attempt
//!     .then(Timeout::new(Duration::from_secs(1))); //         innermost: one attempt
//! assert!(payments.explain().warnings().is_empty());
//!
//! // The bank recognises a repeated charge by its idempotency key. Without the mark a call is
//! // retried only after a failure that proves that nothing was sent.
//! let (account, key) = (String::from("42"), String::from("order 8e03"));
//! match payments.call(idempotent(|| charge(&account, &key))).await {
//!     Ok(receipt) => assert_eq!(receipt, 7),
//!     Err(error) => match error.cause() {
//!         Cause::Operation(e) => eprintln!("failed {} times, last: {e}", error.attempts()),
//!         Cause::Rejected(r) => eprintln!("not sent: {r}; retry after {:?}", error.retry_after()),
//!         other => eprintln!("{other}"),
//!     },
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The type of a pipeline names its policies. A field has the type [`BoxedPipeline`], whose
//! parameters are those of the calls' results:
//!
//! ```
//! use std::{io, time::Duration};
//! use steadfast::{BoxedPipeline, CallError, Pipeline, timeout::Timeout};
//!
//! struct Bank { calls: BoxedPipeline<u32, io::Error> }
//!
//! impl Bank {
//!     fn new() -> Self {
//!         Self { calls: Pipeline::new().then(Timeout::new(Duration::from_secs(3))).boxed() }
//!     }
//!
//!     async fn balance(&self, account: &str) -> Result<u32, CallError<io::Error>> {
//!         self.calls.call(async || Ok(account.len() as u32)).await
//!     }
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! assert_eq!(Bank::new().balance("42").await.unwrap(), 2);
//! # });
//! ```
//!
//! A service converts every [`CallError`] to its own error with one implementation of [`From`], and
//! then uses `?`: [the page of errors](outcome) shows it.
//!
//! # Rooms
//!
//! | module | contents |
//! |---|---|
//! | [`call`] | [`Pipeline`], operations, the policy trait, the context of a call |
//! | [`timeout`] | time limits |
//! | [`retry`] | retries of transient failures; the retry budget |
//! | [`circuit_breaker`] | rejection of calls to a failing service |
//! | [`throttling`] | rate limits, concurrency limits, load shedding, degradation; by tenant, by priority |
//! | [`hedge`] | further attempts beside a slow one |
//! | `chaos` | fault injection; by feature |
//! | [`fallback`] | substitutes for failed calls, with a mark on request |
//! | [`coalesce`] | one execution for concurrent callers with the same key |
//! | [`cache_aside`] | copies of a slower source's values, never served after an invalidation |
//! | [`index_table`] | rows that are found by other keys than their own, and unique values |
//! | [`leader_election`] | one leader at a time, by terms with fencing tokens |
//! | [`queue_listener`] | message consumers: quiet when idle, scaled by depth, with retries and dead letters |
//! | [`work`] | what handlers of messages and events return, and the signal that asks them to stop |
//! | [`saga`] | steps in several services that complete as a whole, or are compensated |
//! | [`pipes_and_filters`] | a chain of steps with queues between them, through which each message comes once |
//! | [`scheduler`] | sagas from a queue, with deadlines, replies and a supervisor |
//! | [`stream`] | a partitioned log of events: producers, and processors that share its partitions |
//! | `federated_identity` | tokens of other issuers, verified also while an issuer is away or flooded; by feature |
//! | `valet_key` | keys for single paths or folders of bytes; signed URLs and checked completion of uploads; by feature |
//! | `gatekeeper` | an exposed process that checks, and a trusted one that opens what it sealed; by feature |
//! | `static_content` | releases of a site in a bucket: upload, then switch; rollback, safe pruning; by feature |
//! | [`event_sourcing`] | changes as events: commits in one order, aggregates, each command once |
//! | [`materialized_view`] | rows that are computed from events, and read by key |
//! | [`supervisor`] | the long-lived tasks of a process: started in order, restarted within a budget, metered |
//! | [`config_store`] | settings from documents in a store: numbered, validated, rolled back, tried in each process |
//! | [`reconfiguration`] | changes of a running process, in all of its parts or in none |
//! | [`health`] | what load balancers and platforms are told, by checks that run once for all of them |
//! | [`journal`] | rejected work, kept in a queue and replayed later |
//! | [`sharding`] | one data set in several stores: shard maps, fan-out, moves that survive a crash |
//! | [`claim_check`] | large message bodies in a store, references to them in the queue |
//! | [`standard`] | the ready-made stack, from one document |
//! | [`store`], [`queue`], [`lease`], [`notify`] | the ports for the patterns' state, each with an in-memory implementation |
//! | [`backend`] | the ports on engines, chosen by a URL: SQLite, PostgreSQL, Redis, NATS, each by feature |
//! | [`port`] | types that the ports share: errors, capabilities, the fencing token |
//! | [`outcome`] | the verdict that all policies read, and the call's error |
//! | `token` | this service's own signed tokens, and the reasons of refused ones; by feature |
//! | `http` | HTTP and gRPC: classifiers, hints, rejections as responses, deadlines as headers; by feature |
//! | `tower` | a pipeline as a layer for any service: axum, hyper, reqwest, tonic; by feature |
//! | `metrics` | metrics of all policies; by feature |
//! | `console` | one page for the people who run a service: what is wrong, and what they can do; by feature |
//! | `testing` | a scripted service, conformance suites, a faulty network; by feature |
//! | [`backoff`], [`entropy`], [`time`], [`config`], [`observe`] | delays, randomness, clocks, settings, events |
//! | [`codec`] | values as bytes, by two functions of yours |
//!
//! # Pages
//!
//! | page | contents |
//! |---|---|
//! | [first steps](_docs::first_steps) | the next five minutes: a struct, a document, shared state |
//! | [patterns](_docs::patterns) | each pattern with what it can do |
//! | [once](_docs::once) | five ways to have an effect once |
//! | [CQRS](_docs::cqrs) | commands and queries apart: which rooms, and when |
//! | [examples](_docs::examples) | programs to run, with their flags |
//! | [words](_docs::words) | the terms of the field, and their places here |
//! | [choosing](_docs::choosing) | a pattern for each problem |
//! | [when not](_docs::when_not) | what to take instead of this crate |
//! | [coming from](_docs::coming_from) | backon, tokio-retry, tower, governor, failsafe, moka, apalis, Polly, resilience4j |
//! | [testing your service](_docs::testing_your_service) | a clock, scripts, faults, and what to assert |
//! | [design](_docs::design) | reasons for the design |
//! | [cancel safety](_docs::cancel_safety) | effects of a dropped future |
//! | [compare](_docs::compare) | speed beside other crates |
//! | [scaling](_docs::scaling) | what many processes cost, and where one server ends |
//! | [stability](_docs::stability) | versions, and what may change |
//!
//! # Features
//!
//! Groups of rooms, all on by default. They add no dependency, and without them less is compiled:
//! with `default-features = false` there are the rooms of the first row, and the groups that you
//! name.
//!
//! | feature | rooms |
//! |---|---|
//! | always there | [`call`] and the policies, [`standard`], the ports and their engines, what all rooms share |
//! | `data` | [`cache_aside`], [`index_table`], [`sharding`] |
//! | `work` | [`work`], [`queue_listener`], [`journal`], [`claim_check`], [`pipes_and_filters`], [`leader_election`] |
//! | `workflow` | [`saga`], [`scheduler`], and without `work` also [`work`] and [`queue_listener`] |
//! | `operations` | [`supervisor`], [`config_store`], [`reconfiguration`], [`health`] |
//! | `stream` | [`stream`], and without `work` also [`work`] and [`leader_election`] |
//! | `events` | [`event_sourcing`], [`materialized_view`], and the group `stream` |
//!
//! ```toml
//! [dependencies]
//! steadfast = { version = "0.1", default-features = false, features = ["data"] }
//! ```
//!
//! The other features are off by default. Each adds a dependency, or something that a build should
//! not contain by accident.
//!
//! | feature | contents |
//! |---|---|
//! | `sqlite` | `backend::sqlite`: the ports in one file, SQLite compiled in |
//! | `nats` | `backend::nats`: the ports on NATS JetStream, one server or a cluster; TLS by rustls with aws-lc |
//! | `postgres` | `backend::postgres`: the ports on a PostgreSQL server; TLS by rustls with aws-lc |
//! | `redis` | `backend::redis`: the ports on a Redis server; TLS by rustls with aws-lc |
//! | `http` | `http`: classifiers for HTTP and gRPC, hints, rejections as responses, deadlines as headers |
//! | `jwt` | `federated_identity`, `gatekeeper`, `valet_key`, `token`; with `http` also bearer tokens of requests; cryptography by aws-lc |
//! | `object_store` | `static_content`; with `jwt` also `valet_key::Uploads`; the clouds are features of `object_store` in your manifest |
//! | `reqwest` | the same for `reqwest`'s responses and errors; without TLS: choose it in your manifest |
//! | `prober` | `health::Prober`: status, text, latency, name and certificate of services, seen from outside; TLS by rustls with aws-lc |
//! | `tonic` | the same for `tonic::Status`, in both directions |
//! | `tower` | `tower::PipelineLayer`: a pipeline around any `tower` service, with `http` also for servers, and `tower::GateLayer` |
//! | `metrics` | `metrics::Metrics`: counters, gauges and histograms of all policies for the `metrics` facade |
//! | `console` | `console::Console`: a page with the state of all components, live, with the actions of operators; a tower service |
//! | `lz4` | compression of large bodies in claim checks |
//! | `chaos` | `chaos`: fault injection; a build without the feature cannot inject faults |
//! | `testing` | the scripted service, the drop-at-every-await harness, conformance suites, a faulty network |
//! | `quanta` | `Clock::quanta`, which reads the time-stamp counter |
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

// The example of README, compiled as it stands there.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

// Also for the tests of the documentation, which compile the examples of the pages.
#[cfg(any(doc, doctest))]
pub mod _docs;
pub mod call;
// These floors serve all groups, and hold no gates: code that only another group uses is no mistake. `events` includes `stream`.
#[cfg_attr(
    not(all(feature = "data", feature = "events", feature = "operations", feature = "work", feature = "workflow")),
    allow(dead_code, unreachable_pub, unused_imports)
)]
mod ground;
mod patterns;
// The heads of revisions are fenced for `static_content` alone.
#[cfg_attr(
    not(all(feature = "data", feature = "events", feature = "operations", feature = "work", feature = "workflow")),
    allow(dead_code, unreachable_pub, unused_imports)
)]
#[cfg_attr(not(feature = "object_store"), allow(dead_code))]
mod ports;
mod roof;
mod wings;
#[cfg(any(feature = "stream", feature = "work", feature = "workflow"))]
#[cfg_attr(
    not(all(feature = "data", feature = "events", feature = "operations", feature = "work", feature = "workflow")),
    allow(dead_code, unused_imports)
)]
pub mod work;

#[cfg(any(feature = "jwt", feature = "object_store"))]
use ground::address;
#[cfg(any(feature = "console", feature = "object_store"))]
use ground::sha256;
#[cfg(any(feature = "http", feature = "jwt"))]
use ground::strict_path;
#[cfg(feature = "jwt")]
pub use ground::token;
#[cfg(feature = "chaos")]
pub use patterns::chaos;
#[cfg(feature = "work")]
pub use patterns::claim_check;
#[cfg(any(feature = "stream", feature = "work"))]
pub use patterns::leader_election;
#[cfg(any(feature = "work", feature = "workflow"))]
pub use patterns::queue_listener;
#[cfg(feature = "workflow")]
pub use patterns::saga;
#[cfg(feature = "object_store")]
pub use patterns::static_content;
#[cfg(feature = "data")]
pub use patterns::{cache_aside, index_table, sharding};
#[cfg(feature = "operations")]
pub use patterns::{config_store, health, supervisor};
#[cfg(feature = "jwt")]
pub use patterns::{federated_identity, gatekeeper, valet_key};
#[cfg(feature = "operations")]
pub use roof::reconfiguration;
#[cfg(feature = "workflow")]
pub use roof::scheduler;
#[cfg(feature = "stream")]
pub use roof::stream;
#[cfg(feature = "events")]
pub use roof::{event_sourcing, materialized_view};
#[cfg(feature = "work")]
pub use roof::{journal, pipes_and_filters};
#[cfg(feature = "console")]
pub use wings::console;
#[cfg(feature = "http")]
pub use wings::http;
#[cfg(feature = "metrics")]
pub use wings::metrics;
#[cfg(feature = "testing")]
pub use wings::testing;
#[cfg(feature = "tower")]
pub use wings::tower;
pub use {
    ground::{backoff, codec, config, entropy, observe, outcome, time},
    patterns::{circuit_breaker, coalesce, fallback, hedge, retry, throttling, timeout},
    ports::{lease, notify, port, queue, store},
    roof::standard,
    wings::backend,
};
// Internal rooms, by their short paths. The last of them serve only some groups.
use ground::{budget, build, flight, hash, in_progress, key_ref, race, record, sharded, spawn, striped, sync, window};
#[cfg_attr(
    not(all(feature = "data", feature = "events", feature = "operations", feature = "work", feature = "workflow")),
    allow(unused_imports)
)]
use {
    ground::{caught, validator, wire},
    ports::{gather, presence, revisions},
};

pub use build::{Builder, Component, HasEntropy, HasEvents, HasName};
pub use call::{BoxedPipeline, Pipeline};
pub use config::{ConfigError, Name};
pub use key_ref::KeyRef;
pub use outcome::{
    CallError, Cause, Class, Classify, FailureKind, Hint, KindSet, Outcome, PolicyError, PolicyKind, Priority, Reason,
    Rejected, Verdict,
};
