//! Circuit breaker: stops asking a service that fails, and finds out gently when it is well again.
//!
//! # When, and when not
//!
//! When a remote service or a shared resource may fail for long: asking on would hold the caller's threads, connections and
//! patience, and keep the other side from recovering. Not for private resources in memory, and not in place of handling errors of
//! business logic.
//!
//! # Defaults
//!
//! | setting | default | |
//! |---|---|---|
//! | `window` | the last 100 calls | or `{ time = "10s", buckets = 10 }` |
//! | `min_calls` | 20 | no rate is judged over fewer |
//! | `trip` | `failure_rate = 0.5` | also `slow_call_rate`, `consecutive_failures`, `weight`; joined by "or" |
//! | `failures` | all kinds but `client`, `cancelled` | the others are answers, and count as successes |
//! | `open` | 5 s, doubled with each opening in a row, to 60 s; up to 10 % jitter; forgotten after 60 s closed | |
//! | `half_open` | 5 probes, 80 % good, 30 s, then open again | |
//! | `ramp` | none: closed, all calls pass at once | or `{ time = "30s", from = 0.1, steps = 0 }`: a line, or steps |
//! | `count_cancelled_after` | none | |
//!
//! Of a family ([`KeyedBreakersConfig`]):
//!
//! | setting | default | |
//! |---|---|---|
//! | `breaker` | as above | shared by all keys |
//! | `max_open` | 1.0 | the share of the keys that may be open at once |
//! | `idle` | 10 min | a key that nobody asks for so long may be forgotten |
//! | `max_keys` | 1,048,576 | beyond, closed breakers that nobody holds are forgotten; open ones are kept |
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//! use steadfast::{circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, State}, time::Clock};
//!
//! let (clock, hand) = Clock::manual();
//! let config = CircuitBreakerConfig::default().count_window(10, 5).open_for(Duration::from_secs(5), Duration::from_secs(60));
//! let breaker = CircuitBreaker::new(config).unwrap().named("payments").with_clock(&clock);
//!
//! for _ in 0..5 {
//!     hand.block_on(breaker.call(async || Err::<(), _>("no answer"))).unwrap_err();
//! }
//! assert_eq!(breaker.state(), State::Open);
//!
//! let error = hand.block_on(breaker.call(async || Ok::<_, &str>(()))).unwrap_err();
//! assert!(error.is_rejected()); //                       the operation was not run
//! hand.advance(error.retry_after().unwrap()); //          the error knows when to come back
//! hand.block_on(breaker.call(async || Ok::<_, &str>(()))).unwrap(); // the first probe
//! assert_eq!(breaker.state(), State::HalfOpen);
//! ```
//!
//! # How it works
//!
//! *Closed*, every call passes and every outcome is recorded: failures and slow calls one by one, successes by number alone, and in
//! a window that is full of successes not even that. The rules are judged after every record. *Open*, calls are rejected without
//! a lock and without an allocation; the error carries the name, the time to come back, since when, the rule and the last failure's kind.
//! When the open time is over, the next caller is the first probe: there is no timer. *Half-open*, at most `probes` calls are let
//! through; the breaker decides as soon as enough of them are good or too many bad. A probe that is dropped or ignored gives its
//! place back. A probe that hangs cannot wedge the breaker: once probes have been in flight for `half_open.max_duration` without a result, the next
//! caller finds the breaker in the configured state. Time without a probe in flight does not count, so callers may be as rare as they like.
//!
//! Every admission carries the generation of the state that admitted it; an outcome that comes late changes nothing.
//!
//! # Ramping up
//!
//! A service that has just come back is often cold: empty caches, few connections. With `ramp` a breaker that has closed by itself lets
//! a share of the calls pass, `from` at first, that grows in a line or in steps until all pass after `time`. Others are rejected as
//! [`SlowStart`](crate::Reason::SlowStart), with no time to come back: a later call may pass at any moment. The calls that pass are spread
//! evenly among those that ask, not drawn by lot. A closing by hand has no ramp: a hand knows.
//!
//! # Recovery by a health probe
//!
//! By default callers find out whether the other side is well: one in so many waits for a service that may hang. Where it has an
//! endpoint that tells, spawn [`run`](CircuitBreaker::run) with a call to it. While that loop runs no caller probes; when it ends, they do.
//!
//! # A breaker a key
//!
//! [`KeyedBreakers`] holds one for each host, shard or tenant, made when first asked for and forgotten when idle. `max_open` guards the
//! family: where more than that share would be open, the fault is likely to be on this side (a bad deployment, a broken network),
//! and rejecting everything helps nobody. A breaker that is spared so stays closed, tells it, and opens at its next failure if there is
//! room by then.
//!
//! ```
//! use steadfast::{Pipeline, circuit_breaker::{CircuitBreakerConfig, KeyedBreakers, KeyedBreakersConfig, State}};
//!
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! let hosts = KeyedBreakers::new(KeyedBreakersConfig::from(CircuitBreakerConfig::default()).max_open(0.5)).unwrap();
//! let answer = Pipeline::new().then(hosts.get(&"10.0.0.1")).call(async || Ok::<_, std::io::Error>(7)).await;
//! assert_eq!(answer.unwrap(), 7);
//! assert!(hosts.iter().all(|(_host, breaker)| breaker.state() == State::Closed));
//! # });
//! ```
//!
//! # Replacing the settings
//!
//! [`reconfigure`](CircuitBreaker::reconfigure) replaces them while calls are under way: the state, the windows as far as they still
//! make sense, and the totals are kept; a bad configuration is refused whole.
//!
//! # Composing
//!
//! One breaker for one other side: one service, one shard, one host. Inside the retry, so that it counts attempts and its rejection
//! ends the retry; outside the attempt's time-out, so that a call that hangs becomes a failure that it sees.
//!
//! Processes that call one other side tell each other when they open: [`shared`], off the way of every call.
//!
//! # Cancel safety
//!
//! A call that is dropped counts for nothing; a probe's place is free again. With `count_cancelled_after` a call that is dropped after
//! that long counts as a failure. A panic in the operation counts as one, and goes on unwinding.
//!
//! # Events
//!
//! [`CircuitBreakerEvent`]: opened (with the rule), half-open, closed, ramped up, isolated; flapped; spared; reconfigured; failed and slow
//! calls; rejections. In a storm the rejections push older events out of a slow listener's ring: whoever must not miss a change of state
//! follows [`transitions`](CircuitBreaker::transitions), a stream of nothing else.
//!
//! # Gauges
//!
//! [`snapshot`](CircuitBreaker::snapshot): the state ([as a number](State::number), or [a gauge each](State::gauges) of which just one
//! reads 1), how long it has been in it, the share of the calls that pass, and totals: openings, failures, rejections, time in each state.
//!
//! # Considerations
//!
//! 1. The caller must handle the rejection: a fallback, a degraded answer, or later; the error says
//!    when. (default)
//! 2. Kinds of fault differ: under the rule `trip.weight` failures [weigh](crate::FailureKind::default_weight) by kind, a refused
//!    connection three times a time-out. Off by default, for a sum of weights says nothing without the number of calls: no limit fits
//!    every rate. Which kinds count at all is `failures`. (option)
//! 3. Failed calls are events. (default)
//! 4. The open time fits the recovery: it grows with openings in a row and shrinks after calm (default). One that opens again and again
//!    soon after closing tells of it: [`Flapped`](CircuitBreakerEvent::Flapped) (warning).
//! 5. Recovery by a probe instead of a timer: [`run`](CircuitBreaker::run). (option)
//! 6. By hand: [`isolate`](CircuitBreaker::isolate), [`close`](CircuitBreaker::close), [`reset`](CircuitBreaker::reset),
//!    [`force_open`](CircuitBreaker::force_open), [shadow mode](CircuitBreaker::set_shadow). (default)
//! 7. Many concurrent callers: nothing blocks; see the benches. (default)
//! 8. One breaker per provider or shard: [`KeyedBreakers`] (option). [`explain`](CircuitBreaker::explain) warns of a breaker
//!    without the name of what it stands for (warning).
//! 9. A fault that says "not for some minutes" ([`Hint::UnavailableFor`](crate::Hint::UnavailableFor)) opens it at once, for that
//!    long. (default)
//! 10. Rejected requests may be kept and replayed: [`journal`](crate::journal). (option)
//! 11. A long time-out in the service behind defeats the breaker: [`explain`](crate::Pipeline::explain) warns of a breaker with no
//!     time-out inside it, and the slow-call rule opens on slowness. (warning)
//! 12. A retry around it stops at its rejection. (default)
//! 13. Every change of state is an event. (default)
//!
//! # Pitfalls
//!
//! One breaker in front of many shards opens for all when one fails: [`CircuitBreaker::explain`] warns of one without a name. A window of few calls and a low `min_calls` opens on chance: at
//! 10 calls and one half, a service that fails one call in four opens the breaker in one window of thirteen;
//! [`explain`](crate::Pipeline::explain) warns of thresholds that leave no head-room to a service which fails one call in twenty.
//!
//! A family's key that is held (in a pipeline, say) is never forgotten: get it anew for each call, or for each connection.
//!
//! # Source
//!
//! Michael Nygard, "Release It!" (2007). "Circuit Breaker pattern", Azure Architecture Center. Rules and half-open as in
//! resilience4j; growing ejection as in Envoy's outlier detection.
mod bads;
mod config;
mod event;
mod explain;
mod gate;
mod health;
mod keyed;
mod keyed_config;
#[cfg(all(test, steadfast_loom))]
mod loom_parts;
#[cfg(all(test, steadfast_loom))]
mod loom_tests;
mod moves;
mod open_limit;
mod parts;
mod permit;
mod plan;
mod policy;
mod probes;
mod rates;
#[cfg(all(test, not(steadfast_loom)))]
mod rates_tests;
mod reshape;
pub mod shared;
mod snapshot;
mod state;
mod tally;
#[cfg(all(test, not(steadfast_loom)))]
mod tests;
mod word;

pub use config::{CircuitBreakerConfig, WindowConfig};
pub use event::{CircuitBreakerEvent, Transition};
pub use keyed::KeyedBreakers;
pub use keyed_config::KeyedBreakersConfig;
pub use parts::{HalfOpenConfig, OnTimeout, OpenConfig, SlowStartConfig, TripConfig};
pub use permit::Permit;
pub use policy::CircuitBreaker;
pub use shared::{
    Agreement, CircuitReport, SharedCircuitBreaker, SharedCircuitBreakerConfig, SharedCircuitBreakerEvent,
};
pub use snapshot::Snapshot;
pub use word::State;
