//! Chaos: injects faults on purpose, to test how the other policies handle them. Needs the feature
//! `chaos`.
//!
//! The scripted service of the feature `testing` replaces a service in a test. Chaos stands before
//! the real one.
//!
//! # When, and when not
//!
//! In tests, in a staging system, and for a small share of live calls, to learn what a slow or
//! failing dependency does before it happens. Not in a build that is not meant to have it: it is a
//! feature, off by default, and injects nothing until it is enabled.
//!
//! # Defaults
//!
//! | setting | default | |
//! |---|---|---|
//! | `enabled` | no | [`set_enabled`](Chaos::set_enabled), [`reconfigure`](Chaos::reconfigure) |
//! | `rules` | none | each: `inject`, `rate`, and its scope |
//! | a rule's `operations` | all | by [name](crate::call::named) |
//! | a rule's `attempts` | all | by number, from 1 |
//!
//! | `inject` | effect on an attempt |
//! |---|---|
//! | `{ latency = { min = "10ms", max = "200ms" } }` | starts later, by a uniformly random time; several rules add up |
//! | `{ fault = { kind = "overloaded", retry_after = "1s" } }` | fails without being started; every policy treats it as a failure of this kind |
//! | `"outcome"` | the operation returns a result of your own: [`outcomes`](Chaos::outcomes) |
//! | `"hang"` | never ends |
//! | `"panic"` | panics |
//!
//! # Example
//!
//! ```
//! use std::{io, time::Duration};
//! use steadfast::{BoxedPipeline, ConfigError, Pipeline, timeout::Timeout};
//! use steadfast::chaos::{Chaos, ChaosConfig, ChaosRule};
//!
//! /// Calls of a service, of which a staging system delays one in ten.
//! fn payments(staging: bool) -> Result<BoxedPipeline<u32, io::Error>, ConfigError> {
//!     let (least, most) = (Duration::from_millis(10), Duration::from_millis(200));
//!     let chaos = Chaos::new(ChaosConfig::of([ChaosRule::latency(least, most, 0.1)]))?;
//!     chaos.set_enabled(staging);
//!     Ok(Pipeline::new().then(Timeout::new(Duration::from_secs(1))).then(chaos).boxed())
//! }
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! # assert_eq!(payments(true).unwrap().call(async || Ok(7)).await.unwrap(), 7);
//! # }
//! ```
//!
//! # The five commonest uses
//!
//! Each is a rule of a [`ChaosConfig`]:
//!
//! ```
//! use std::time::Duration;
//! use steadfast::{FailureKind, chaos::{Chaos, ChaosConfig, ChaosRule}};
//!
//! # fn main() -> Result<(), steadfast::ConfigError> {
//! let seconds = Duration::from_secs;
//! // 1. One call in a hundred is slow: does the time-out hold?
//! let slow = ChaosRule::latency(seconds(1), seconds(5), 0.01);
//! // 2. The first attempt of each call fails: does the retry hide it?
//! let first = ChaosRule::fault(FailureKind::Overloaded, 1.0).attempts([1]);
//! // 3. The server asks for a pause: is it obeyed?
//! let busy = ChaosRule::fault_with_hint(FailureKind::Throttled, seconds(10), 0.05);
//! // 4. One operation, by its name (`call::named`), hangs.
//! let hangs = ChaosRule::hang(0.001).operations(["charge"]);
//! let chaos = Chaos::new(ChaosConfig::of([slow, first, busy, hangs]))?;
//! // 5. Begin and end the experiment, from a command of an operator.
//! chaos.set_enabled(true);
//! chaos.set_enabled(false);
//! # Ok(())
//! # }
//! ```
//!
//! Begin small: one operation, one kind, a low rate, and [`set_enabled`](Chaos::set_enabled) at
//! hand. Write down the effect that you expect, and compare it with the events of the other
//! policies. A breaker that calls without chaos share counts injected faults as real ones.
//!
//! # In a test
//!
//! ```
//! use std::time::Duration;
//! use steadfast::{
//!     FailureKind, Pipeline, chaos::{Chaos, ChaosConfig, ChaosRule}, entropy::Entropy,
//!     retry::{Retry, RetryConfig}, time::Clock,
//! };
//!
//! let (clock, time) = Clock::manual();
//! let rule = ChaosRule::fault(FailureKind::Overloaded, 1.0).attempts([1]);
//! let chaos = Chaos::builder(ChaosConfig::of([rule]))
//!     .clock(&clock)
//!     .entropy(&Entropy::from_seed(7))
//!     .build()
//!     .unwrap();
//! let reads = RetryConfig::default().idempotent(true);
//! let retry = Retry::builder(reads).clock(&clock).build().unwrap();
//! let pipeline = Pipeline::new()
//!     .then(retry)
//!     .then(chaos.clone()); // innermost, before the real service
//!
//! // Every first attempt fails, and every call succeeds.
//! for _ in 0..10 {
//!     time.block_on(pipeline.call(|| async { Ok::<_, std::io::Error>("there") })).unwrap();
//! }
//! assert_eq!((chaos.injected().attempts, chaos.injected().failed), (20, 10));
//! ```
//!
//! # How it works
//!
//! An attempt takes one number from the [`Entropy`](crate::entropy::Entropy), and derives two draws
//! for each rule from it: one for the rate, one for the amount. So with one seed, the same sequence
//! of attempts gets the same faults, and narrowing the scope of one rule changes no other draw. The
//! first rule that ends the attempt is the last one that applies; the latencies of the rules before
//! it come first.
//!
//! A fault is a rejection by this policy with [`Reason::Injected`](crate::Reason::Injected), so
//! that it is told apart from a real one. It is judged as a failure of its kind, with its hint, so
//! that retry, breaker and budget react as they would. A policy sees no values: a result of the
//! operation's own types is made by an adapter around the operation.
//!
//! ```
//! use steadfast::{Pipeline, chaos::{Chaos, ChaosConfig, ChaosRule}};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! let chaos = Chaos::new(ChaosConfig::of([ChaosRule::outcome(1.0)])).unwrap();
//! let status = || async { Ok::<u16, std::io::Error>(200) };
//! let answer = Pipeline::new().call(chaos.outcomes(status, || Ok(503))).await;
//! assert_eq!(answer.unwrap(), 503);
//! # });
//! ```
//!
//! # Composing
//!
//! Innermost: a policy inside it never sees its faults. A hang needs a time-out outside.
//! [`explain`](crate::Pipeline::explain) warns of both, and of every build that contains chaos.
//! Beside the rules, [`filter`](Chaos::builder) exempts attempts by their
//! [context](crate::call::CallContext). While it is disabled it costs one load of a flag per
//! attempt.
//!
//! # Guarantees
//!
//! 1. Nothing is injected unless the crate is built with the feature `chaos` and chaos is enabled;
//!    `explain` warns of both.
//! 2. Each kind of injection (latency, fault, outcome, hang, panic) acts on an attempt as the real
//!    fault would on every policy, and the rejection says that it was injected.
//! 3. A rule applies to its share of the attempts in its scope: by name of the operation, number of
//!    the attempt, or filter.
//! 4. With one seed, attempts that begin in the same order get the same faults. The scope of one
//!    rule changes no draw of another.
//! 5. The configuration can be replaced while it is in use, for all clones. An invalid one is
//!    refused as a whole, with the name of its field.
//! 6. The counts equal what was injected.
//!
//! # Cancel safety
//!
//! Dropping the call drops the operation, or the wait in its place. Injections that were counted
//! stay counted.
//!
//! # Events
//!
//! [`ChaosEvent`]: every injection, and each time that chaos is enabled or disabled.
//! [`injected`](Chaos::injected) returns the counts.
//!
//! # Pitfalls
//!
//! An injected fault counts as no attempt in [`CallError::attempts`](crate::CallError::attempts),
//! because the operation was not started. A panic unwinds through the caller, as a real one does.
//! With several tasks, the scheduler decides the order in which attempts begin, and so which
//! attempt gets which fault.
//!
//! # Source
//!
//! "Principles of Chaos Engineering" (principlesofchaos.org); Netflix's Latency Monkey. Injection
//! by policy: Simmy, now part of Polly.
mod config;
mod draw;
mod event;
mod outcomes;
mod policy;

pub use config::{ChaosConfig, ChaosRule, FaultConfig, Injection, LatencyConfig};
pub use event::ChaosEvent;
pub use outcomes::WithOutcomes;
pub use policy::{Chaos, Injected};
