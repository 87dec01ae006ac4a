//! Circuit breaker whose openings processes share through a [`Store`](crate::store::Store), off the
//! path of the calls.
//!
//! # When, and when not
//!
//! Where many processes call one dependency, and each would have to detect its failure by itself: a
//! hundred processes with a `min_calls` of 20 spend two thousand calls on a service that is down.
//! Not where one process sees what the others would not (its own network, its own shard); there
//! take a [quorum](Agreement::Quorum), or none of this. And not in place of the breaker's own
//! rules: they keep working, and if the store is down, each process acts by its own rules alone.
//!
//! # Defaults
//!
//! | setting | default | |
//! |---|---|---|
//! | `agreement` | `advisory` | or `{ quorum = 3 }` |
//! | `poll` | 1 s | one read, and one write while open; with a [notifier](SharedCircuitBreaker::builder) others react at once |
//! | `stale_after` | 5 s | a report that is not renewed expires |
//! | `call_timeout` | 1 s | for one request to the store |
//!
//! # Example
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use steadfast::{
//!     circuit_breaker::{
//!         CircuitBreaker, CircuitBreakerConfig, SharedCircuitBreaker, SharedCircuitBreakerConfig,
//!         State,
//!     },
//!     store::InMemoryStore,
//!     time::Clock,
//! };
//!
//! # let (clock, time) = Clock::manual();
//! # time.block_on(async {
//! // Or a store that other processes see.
//! let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
//! let process = || {
//!     let rules = CircuitBreakerConfig::default();
//!     let breaker = CircuitBreaker::builder(rules).clock(&clock).build()?;
//!     let config = SharedCircuitBreakerConfig::default();
//!     SharedCircuitBreaker::new(breaker, store.clone(), "payments", config)
//! };
//! let (here, there) = (process()?, process()?);
//!
//! // Calls fail here, so that this breaker opens. It is used in pipelines as any other.
//! here.breaker().force_open(Duration::from_secs(30));
//!
//! let two_seconds = || clock.sleep(Duration::from_secs(2));
//! futures::join!(here.run(two_seconds()), there.run(two_seconds()));
//! assert_eq!(there.breaker().state(), State::Open);
//! # Ok::<_, steadfast::ConfigError>(())
//! # }).unwrap();
//! ```
//!
//! # How it works
//!
//! While a process's breaker is open by its own rules, the process keeps a row in the store with
//! the remaining open time. The row is renewed at each `poll`. It ends with the opening, or
//! `stale_after` the process is gone. All processes read all rows. If as many others are open as
//! [`agreement`](SharedCircuitBreakerConfig::agreement) asks for, a closed breaker opens with them,
//! for as long as so many of them stay open.
//!
//! Rows hold durations and no times of day, and expire by the store's own clock, so the processes'
//! clocks may differ. An opening reaches the others within one `poll`, or as soon as a hint does,
//! and ends there later than in its own process by as much at most.
//!
//! One poll opens a breaker for no longer than its own settings would (`open.max_delay`, or
//! `open.max_hint` if that is longer), which bounds the effect of a damaged report. While the
//! report stands, each poll prolongs the opening. When the report is gone, for example after a
//! manual close of that breaker, the opening ends here at the next poll.
//!
//! An opening that came from others is not reported: it is no vote, and no echo. Each opening opens
//! another breaker once: a manual [close](super::CircuitBreaker::close) holds until a process opens
//! anew. A breaker that is open by its own rules, or is probing, is left unchanged. When the open
//! time is over, each process probes for itself.
//!
//! # Composing
//!
//! The [breaker](SharedCircuitBreaker::breaker) is the policy; this type runs beside it. Rejections
//! have the rule [`TripRule::Shared`](crate::outcome::TripRule::Shared). The jitter of the open
//! time spreads the probes only of processes that opened by their own rules: where many follow one,
//! they probe within one `poll`.
//!
//! # Cancel safety
//!
//! A dropped [`run`](SharedCircuitBreaker::run) leaves the breaker unchanged, and its row for
//! `stale_after` at most.
//!
//! # Events
//!
//! [`SharedCircuitBreakerEvent`]: reported, opened with others, the store failed and is back, the
//! notifier failed, configuration changed.
//!
//! # Pitfalls
//!
//! - A process whose own network is broken opens all others, if one report is enough. Use a quorum
//!   where that is likelier than a failure of the service.
//! - [`isolate`](super::CircuitBreaker::isolate), [`close`](super::CircuitBreaker::close) and
//!   [shadow mode](super::CircuitBreaker::set_shadow) are local to each process and not reported.
//!   [`force_open`](super::CircuitBreaker::force_open) is reported, as an opening.
//! - A report that is delayed arrives like a late hint, and opens others for the time that it says.
//!
//! # Source
//!
//! "Circuit Breaker pattern", Azure Architecture Center: state that instances share. A quorum of
//! judgements: SWIM's suspicion, Das, Gupta and Motivala, 2002.
mod config;
mod event;
mod report;
mod run;
mod sharing;

pub use config::{Agreement, SharedCircuitBreakerConfig};
pub use event::SharedCircuitBreakerEvent;
pub use sharing::{CircuitReport, SharedCircuitBreaker};
