//! A circuit breaker whose openings processes tell each other through a [`Store`](crate::store::Store): off the way of every call.
//!
//! # When, and when not
//!
//! Where many processes call one other side, and each would have to find out by itself that it fails: a hundred processes with `min_calls` of
//! 20 spend two thousand calls on a service that is down. Not where what one process sees is not what others would see (its own network, its
//! own shard); there take a [quorum](Agreement::Quorum), or nothing. And not in place of the breaker's own rules: they go on, and a store that
//! is down changes nothing but that nobody hears of others.
//!
//! # Defaults
//!
//! | setting | default | |
//! |---|---|---|
//! | `agreement` | `advisory` | or `{ quorum = 3 }` |
//! | `poll` | 1 s | a read, and a write while it is open; with a [notifier](SharedCircuitBreaker::with_notifier) others hear at once |
//! | `stale_after` | 5 s | a report that nobody renews ends |
//! | `call_timeout` | 1 s | of one request to the store |
//!
//! # Example
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use steadfast::{
//!     circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, SharedCircuitBreaker, SharedCircuitBreakerConfig, State},
//!     store::InMemoryStore,
//!     time::Clock,
//! };
//!
//! # let (clock, hand) = Clock::manual();
//! # hand.block_on(async {
//! let store = Arc::new(InMemoryStore::new().with_clock(&clock)); // or one that other processes see
//! let process = || {
//!     let breaker = CircuitBreaker::new(CircuitBreakerConfig::default())?.with_clock(&clock);
//!     SharedCircuitBreaker::new(breaker, store.clone(), "payments", SharedCircuitBreakerConfig::default())
//! };
//! let (here, there) = (process()?, process()?);
//!
//! // Here calls fail, so that this breaker opens. It goes into pipelines as ever.
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
//! While a process's breaker is open by its own judgement the process keeps a row in the store, which says for how long yet, is renewed each
//! `poll`, and ends with the opening, or `stale_after` its process is gone. All processes read all rows. Where as many others are open as
//! [`agreement`](SharedCircuitBreakerConfig::agreement) asks for, a breaker that is closed opens with them, for as long as so many of them stay open. Rows have
//! durations and no times, and end by the store's own clock: processes' clocks may differ. So an opening reaches the others
//! within one `poll`, or as soon as a hint does, and ends there later than in its own process by as much at most.
//!
//! One look opens a breaker for no longer than its own settings would (`open.max_delay`, or `open.max_hint` where that is longer): a damaged
//! report does no more. While the report stands each look prolongs the opening; once it does not, say because somebody closed that
//! breaker by hand, the opening ends here at the next look.
//!
//! An opening that came from others is told to nobody: it is no vote, and no echo. Each opening opens another breaker once: who
//! [closes](super::CircuitBreaker::close) that one by hand is not overruled, until a process opens anew. A breaker that is open by itself, or is
//! probing, judges for itself. When the open time is over each probes for itself.
//!
//! # Composing
//!
//! The [breaker](SharedCircuitBreaker::breaker) is the policy; this runs beside it. Rejections have the rule
//! [`TripRule::Shared`](crate::outcome::TripRule::Shared). Jitter of the open time spreads the probes of processes only by their own openings: where
//! many follow one, they probe within one `poll`.
//!
//! # Cancel safety
//!
//! A dropped [`run`](SharedCircuitBreaker::run) leaves the breaker as it is, and a row for `stale_after` at most.
//!
//! # Events
//!
//! [`SharedCircuitBreakerEvent`]: reported, opened with others, the store failed and is back, the notifier failed, sharing changed.
//!
//! # Considerations
//!
//! 1. Many callers, little overhead: nothing of this is on the way of a call. (default)
//! 2. What the store is for must not hang on the store: without it each breaker has its own state. (default)
//! 3. One breaker for one other side, here too: the name stands for it. (said here)
//!
//! # Pitfalls
//!
//! - A process whose own network is broken opens all others, where one is enough. Take a quorum where that is likelier than the service's failure.
//! - [`isolate`](super::CircuitBreaker::isolate), [`close`](super::CircuitBreaker::close) and [shadow mode](super::CircuitBreaker::set_shadow) are each process's
//!   own: nothing of them is told. [`force_open`](super::CircuitBreaker::force_open) is told, as an opening.
//! - A report that is under way for long arrives as a late hint, and opens others for what it says.
//!
//! # Source
//!
//! "Circuit Breaker pattern", Azure Architecture Center: state that instances share. A quorum of judgements: SWIM's suspicion, Das, Gupta
//! and Motivala, 2002.
mod config;
mod event;
mod report;
mod run;
mod sharing;

pub use config::{Agreement, SharedCircuitBreakerConfig};
pub use event::SharedCircuitBreakerEvent;
pub use sharing::{CircuitReport, SharedCircuitBreaker};
