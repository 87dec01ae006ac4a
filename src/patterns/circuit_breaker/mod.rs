//! Circuit breaker: rejects calls to a service that fails, and probes it until it has recovered.
//!
//! # When, and when not
//!
//! For a remote service or a shared resource that may fail for long. Repeated calls would hold the
//! caller's threads and connections, and would keep the service from recovering. Not for private
//! resources in memory, and not in place of handling errors of business logic.
//!
//! # Defaults
//!
//! | setting | default | |
//! |---|---|---|
//! | `window` | the last 100 calls | or `{ time = "10s", buckets = 10 }` |
//! | `min_calls` | 20 | no rate is judged over fewer |
//! | `trip` | `failure_rate = 0.5` | also `slow_call_rate`, `consecutive_failures`, `weight`; joined by "or" |
//! | `failures` | all kinds but `client`, `cancelled` | the others count as successes |
//! | `open` | `initial_delay` 5 s, doubled with each consecutive opening, `max_delay` 60 s, `jitter` 10 %, `reset_after` 60 s closed | |
//! | `half_open` | `permitted_calls` 5, 80 % must succeed, `max_duration` 30 s, `on_timeout` open | |
//! | `slow_start` | none: after closing, all calls pass | or `{ window = "30s", min_share = 0.1, steps = 0 }` |
//! | `count_cancelled_after` | none | |
//!
//! Of a registry ([`KeyedBreakersConfig`]):
//!
//! | setting | default | |
//! |---|---|---|
//! | `breaker` | as above | shared by all keys |
//! | `max_open` | 1.0 | maximum share of the keys whose breakers may be open at once |
//! | `idle` | 10 min | a key that is not used for this time may be removed |
//! | `max_keys` | 1,048,576 | beyond it, closed breakers without a user are removed; open ones are kept |
//!
//! # Example
//!
//! ```
//! use std::io;
//! use steadfast::{CallError, ConfigError};
//! use steadfast::circuit_breaker::{CircuitBreaker, CircuitBreakerConfig};
//!
//! struct Payments {
//!     breaker: CircuitBreaker,
//! }
//!
//! impl Payments {
//!     fn new() -> Result<Self, ConfigError> {
//!         let config = CircuitBreakerConfig::default(); // opens when half of the calls fail
//!         Ok(Self { breaker: CircuitBreaker::builder(config).name("payments").build()? })
//!     }
//!
//!     async fn pay(&self, order: u64) -> Result<(), CallError<io::Error>> {
//!         let result = self.breaker.call(|| send(order)).await;
//!         if let Err(error) = &result && error.is_rejected() {
//!             // The bank was not called. The error says when to try again.
//!             eprintln!("order {order} waits for {:?}", error.retry_after());
//!         }
//!         result
//!     }
//! }
//! # async fn send(_order: u64) -> io::Result<()> { Ok(()) }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() { Payments::new().unwrap().pay(42).await.unwrap() }
//! ```
//!
//! # The five commonest uses
//!
//! ```
//! use std::{future::{pending, ready}, io, time::Duration};
//! use steadfast::{Pipeline, call::idempotent, retry::{Retry, RetryConfig}, timeout::Timeout};
//! use steadfast::circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, KeyedBreakers};
//!
//! # async fn read() -> io::Result<u32> { Ok(7) }
//! # async fn health() -> io::Result<()> { Ok(()) }
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // 1. Inside a retry, around a time-out: a call that hangs is a failure, and an open breaker
//! //    ends the retries.
//! let breaker = CircuitBreaker::builder(CircuitBreakerConfig::default()).name("prices").build()?;
//! let calls = Pipeline::new()
//!     .then(Retry::new(RetryConfig::interactive())?)
//!     .then(breaker.clone())
//!     .then(Timeout::new(Duration::from_secs(1)));
//! calls.call(idempotent(|| read())).await?;
//!
//! // 2. A substitute while it is open.
//! let yesterday = 6;
//! calls.call_or(idempotent(|| read()), |_| ready(Ok(yesterday))).await?;
//!
//! // 3. One breaker for each host.
//! let hosts: KeyedBreakers<String> = KeyedBreakers::new(CircuitBreakerConfig::default())?;
//! hosts.call("10.0.0.1", || read()).await?;
//!
//! // 4. Probe a health endpoint, so that no customer's call is a probe.
//! let probed = breaker.clone();
//! tokio::spawn(async move { probed.run(|| health(), pending()).await });
//!
//! // 5. Operate it manually, for a maintenance of the other side.
//! breaker.isolate();
//! breaker.close();
//! # Ok(())
//! # }
//! ```
//!
//! # In a test
//!
//! ```
//! use std::time::Duration;
//! use steadfast::{circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, State}, time::Clock};
//!
//! let (clock, time) = Clock::manual();
//! let config = CircuitBreakerConfig::default()
//!     .count_window(10, 5)
//!     .open_for(Duration::from_secs(5), Duration::from_secs(60));
//! let breaker = CircuitBreaker::builder(config).name("payments").clock(&clock).build().unwrap();
//!
//! for _ in 0..5 {
//!     time.block_on(breaker.call(async || Err::<(), _>("no answer"))).unwrap_err();
//! }
//! assert_eq!(breaker.state(), State::Open);
//!
//! let error = time.block_on(breaker.call(async || Ok::<_, &str>(()))).unwrap_err();
//! assert!(error.is_rejected()); //                       the operation was not run
//! time.advance(error.retry_after().unwrap()); //          the error says when to try again
//! time.block_on(breaker.call(async || Ok::<_, &str>(()))).unwrap(); // the first probe
//! assert_eq!(breaker.state(), State::HalfOpen);
//! while breaker.state() == State::HalfOpen {
//!     time.block_on(breaker.call(async || Ok::<_, &str>(()))).unwrap(); // the other probes
//! }
//! assert_eq!(breaker.state(), State::Closed);
//! ```
//!
//! # How it works
//!
//! *Closed*, every call passes and every outcome is recorded. Failures and slow calls are stored
//! one by one, successes only as a number, and in a window that is full of successes not even that.
//! The rules are evaluated after every record.
//!
//! *Open*, calls are rejected without a lock and without an allocation. The error carries the
//! breaker's name, the time until the next probe, the time of the opening, the rule, and the kind
//! of the last failure. When the open time is over, the next caller becomes the first probe; there
//! is no timer.
//!
//! *Half-open*, at most `permitted_calls` calls pass as probes. The breaker closes or opens as soon
//! as enough of them have succeeded, or too many have failed. A probe that is dropped or ignored
//! frees its permit. A probe that hangs cannot block the breaker: once probes have been in flight
//! for `half_open.max_duration` without a result, the next caller moves the breaker to the state
//! that `on_timeout` names. Time without a probe in flight does not count, so calls may be as rare
//! as one a day. A probe that succeeds after that did not hang: calls take longer than
//! `max_duration`. Each such success doubles the limit of the half-open states to come, at most
//! 1,024 times `max_duration`, so that a service with long calls closes its breaker, too.
//!
//! Every admission carries the generation of the state that admitted it. An outcome of an older
//! generation changes no state and no count.
//!
//! # Slow start
//!
//! A service that has just recovered is often cold: empty caches, few connections. With
//! `slow_start`, a breaker that its probes have closed lets a share of the calls pass. The share is
//! `min_share` at first, and grows in a line or in steps until all calls pass after `window`. The
//! other calls are rejected as [`SlowStart`](crate::Reason::SlowStart), without a `retry_after`:
//! any later call may pass. The calls that pass are spread evenly, not drawn at random. A manual
//! close skips the slow start.
//!
//! # Recovery by a health probe
//!
//! By default callers' requests are the probes, so some callers wait for a service that may hang.
//! If the service has a health endpoint, spawn [`run`](CircuitBreaker::run) with a call to it.
//! While that loop runs, no caller's request is a probe; after it ends, callers probe again.
//!
//! # A breaker per key
//!
//! [`KeyedBreakers`] is a registry that holds one breaker per host, shard or tenant. A breaker is
//! created on the first use of its key and removed when the key is idle. `max_open` bounds the
//! share of the registry that may be open: if more would open, the fault is likely on this side (a
//! bad deployment, a broken network), and rejecting all calls does not help. A breaker whose
//! opening is suppressed in this way stays closed and sends an event. It opens at its next failure
//! if the limit allows it by then. A look-up takes a [borrowed form](crate::KeyRef) of the key,
//! such as `&str` for a `String`.
//!
//! ```
//! use steadfast::Pipeline;
//! use steadfast::circuit_breaker::{
//!     CircuitBreakerConfig, KeyedBreakers, KeyedBreakersConfig, State,
//! };
//!
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! let config = KeyedBreakersConfig::from(CircuitBreakerConfig::default()).max_open(0.5);
//! let hosts = KeyedBreakers::new(config).unwrap();
//! let pipeline = Pipeline::new().then(hosts.get(&"10.0.0.1"));
//! let answer = pipeline.call(async || Ok::<_, std::io::Error>(7)).await;
//! assert_eq!(answer.unwrap(), 7);
//! assert!(hosts.iter().all(|(_host, breaker)| breaker.state() == State::Closed));
//! # });
//! ```
//!
//! # Replacing the settings
//!
//! [`reconfigure`](CircuitBreaker::reconfigure) replaces them while calls are in flight. The state,
//! the totals, and the windows that fit the new settings are kept. An invalid configuration is
//! refused as a whole.
//!
//! # Composing
//!
//! Use one breaker per dependency: one service, one shard, one host. Put it inside the retry, so
//! that it counts attempts and its rejection ends the retry. Put it outside the attempt's time-out,
//! so that a call that hangs becomes a failure that it counts.
//!
//! Code that is not async has [`CircuitBreaker::call_blocking`], and the time in which its
//! operation blocks counts for the rule of slow calls; see
//! [code that is not async](crate::call#code-that-is-not-async).
//!
//! Processes that call the same dependency can share their openings through a store, off the path
//! of the calls: [`shared`].
//!
//! # Guarantees
//!
//! 1. The rules of `trip` are joined by "or"; the rejection and the event name the rule that opened
//!    the breaker. One outcome that announces an outage opens it for the announced time.
//! 2. A rate is evaluated at every record, a success too, from the `min_calls`th call on. A count
//!    window slides: only the last `calls` outcomes count.
//! 3. In a time window of `time` in `buckets`, an outcome counts for at least `time` less one
//!    bucket, and never at `time` after its record or later. Memory is bounded by the number of
//!    buckets.
//! 4. An open breaker rejects without running the operation. Once its time is over, of any number
//!    of racing callers exactly `permitted_calls` pass.
//! 5. The open time grows with consecutive openings up to `max_delay`, and shrinks only after
//!    `reset_after` closed. A hint lengthens it, at most to `max_hint`, and never shortens it.
//! 6. A half-open breaker judges at most `permitted_calls` results, and decides as soon as the
//!    result is settled. Probes that hang, are dropped or come late cannot block it or mislead it.
//! 7. Closing empties every window. During a slow start, of `n` consecutive calls at one share `s`
//!    `n * s` pass, give or take one.
//! 8. While [`run`](CircuitBreaker::run) runs, only its probes reach the service, one at a time.
//! 9. An isolated breaker stays isolated until it is closed manually. Shadow mode rejects nothing.
//! 10. Of a registry's keys, the rules open at most the share `max_open`, but at least one.
//!     Breakers that are in use, isolated, or whose open time is not over are not removed as idle.
//! 11. A shared breaker opens with others only if as many as agreed have opened by their own rules,
//!     and for no longer than they stay open. Without the store, each process keeps its own state.
//! 12. A call that is rejected was not started: it can be stored and replayed, for example by a
//!     [`journal`](crate::journal).
//! 13. Exactly one state's gauge reads 1 at any time. Totals cover the whole life of the breaker.
//!
//! # Cancel safety
//!
//! A call that is dropped counts as nothing, and frees its probe's permit. With
//! `count_cancelled_after`, a call that is dropped after at least that time counts as a failure. A
//! panic in the operation counts as a failure, and continues to unwind.
//!
//! # Events
//!
//! [`CircuitBreakerEvent`]: opened (with the rule), half-open, closed, slow start ended, isolated,
//! flapped, suppressed, reconfigured, failed and slow calls, rejections. Under load, rejections
//! push older events out of a slow subscriber's buffer. A subscriber that must not miss a change of
//! state uses [`transitions`](CircuitBreaker::transitions), a stream of state changes alone.
//!
//! # Gauges
//!
//! [`snapshot`](CircuitBreaker::snapshot) returns the state ([as a number](State::number), or as
//! [one gauge per state](State::gauges) of which exactly one reads 1), the time in this state, the
//! share of the calls that pass, and totals: openings, failures, rejections, time in each state.
//!
//! # Pitfalls
//!
//! One breaker in front of many shards opens for all when one fails: [`CircuitBreaker::explain`]
//! warns of a breaker without a name. A window of few calls and a low `min_calls` opens on chance:
//! at 10 calls and one half, a service that fails one call in four opens the breaker in one window
//! of thirteen. [`explain`](crate::Pipeline::explain) warns of thresholds that leave no head-room
//! to a service which fails one call in twenty.
//!
//! A breaker of a registry that is held (in a pipeline, say) is never removed: get it anew for each
//! call, or for each connection.
//!
//! # Source
//!
//! Michael Nygard, "Release It!" (2007). "Circuit Breaker pattern", Azure Architecture Center.
//! Rules and half-open as in resilience4j; growing ejection as in Envoy's outlier detection, slow
//! start as in its load balancer.
mod config;
mod config_parts;
mod event;
mod explain;
mod health; // probing by a health check
mod keyed; // a registry of breakers
mod keyed_config;
mod keyed_idle; // removal of idle keys
#[cfg(all(test, steadfast_loom))]
mod loom_parts;
#[cfg(all(test, steadfast_loom))]
mod loom_tests;
mod open_limit; // the share of a registry that may be open
mod permit; // a permit of one call, and its record
mod policy; // the async part
mod probes; // results of half-open calls
pub mod shared;
mod snapshot;
mod state; // admission and outcomes; transitions are in `state/moves.rs`
#[cfg(all(test, not(steadfast_loom)))]
mod tests;
mod window; // counts and rates of recent calls

pub use config::{CircuitBreakerConfig, WindowConfig};
pub use config_parts::{HalfOpenConfig, OnTimeout, OpenConfig, SlowStartConfig, TripConfig};
pub use event::{CircuitBreakerEvent, Transition};
pub use keyed::KeyedBreakers;
pub use keyed_config::KeyedBreakersConfig;
pub use permit::Permit;
pub use policy::CircuitBreaker;
pub use shared::{
    Agreement, CircuitReport, SharedCircuitBreaker, SharedCircuitBreakerConfig, SharedCircuitBreakerEvent,
};
pub use snapshot::Snapshot;
pub use state::State;
