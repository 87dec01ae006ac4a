//! Chaos: faults on purpose, to see that the others hold. By feature `chaos`.
//!
//! Unlike the scripted service of the feature `testing`, which stands in for the other side in a test, it stands before the real one.
//!
//! # When, and when not
//!
//! In tests, in a staging system, and for a small share of live calls, to learn what a slow or failing dependency does before it does it.
//! Not in a build that is not meant to have it: it is a feature, off by default, and switched off until somebody switches it on.
//!
//! # Defaults
//!
//! | setting | default | |
//! |---|---|---|
//! | `enabled` | no | [`set_enabled`](Chaos::set_enabled), [`reconfigure`](Chaos::reconfigure) |
//! | `rules` | none | each: `inject`, `rate`, and where |
//! | a rule's `operations` | all | by [name](crate::call::named) |
//! | a rule's `attempts` | all | by number, from 1 |
//!
//! | `inject` | what an attempt meets |
//! |---|---|
//! | `{ latency = { min = "10ms", max = "200ms" } }` | it starts later, as likely any time between both; several add up |
//! | `{ fault = { kind = "overloaded", retry_after = "1s" } }` | it fails without being made, and every policy takes it for such a failure |
//! | `"outcome"` | the operation comes back with a result that you make: [`outcomes`](Chaos::outcomes) |
//! | `"hang"` | it never ends |
//! | `"panic"` | it panics |
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//! use steadfast::{
//!     FailureKind, Pipeline, chaos::{Chaos, ChaosConfig, ChaosRule}, entropy::Entropy, retry::{Retry, RetryConfig}, time::Clock,
//! };
//!
//! let (clock, hand) = Clock::manual();
//! let chaos = Chaos::new(ChaosConfig::of([ChaosRule::fault(FailureKind::Overloaded, 1.0).on_attempts([1])])).unwrap();
//! let chaos = chaos.with_clock(&clock).with_entropy(&Entropy::from_seed(7));
//! let pipeline = Pipeline::new()
//!     .then(Retry::new(RetryConfig::default().idempotent(true)).unwrap().with_clock(&clock))
//!     .then(chaos.clone()); // innermost, before the real thing
//!
//! // Every first attempt fails, and every call succeeds.
//! for _ in 0..10 {
//!     hand.block_on(pipeline.call(|| async { Ok::<_, std::io::Error>("there") })).unwrap();
//! }
//! assert_eq!((chaos.injected().attempts, chaos.injected().failed), (20, 10));
//! ```
//!
//! # How it works
//!
//! An attempt takes one number from the [`Entropy`](crate::entropy::Entropy), and from that number has two draws for each rule: whether it hits, and
//! by how much. So from one seed the same attempts meet the same, in the order in which they begin, and a rule that is narrowed or aimed
//! elsewhere moves no other draw. The first rule that ends the attempt does; the latencies before it come first.
//!
//! A fault is told as a refusal by this policy with [`Reason::Injected`](crate::Reason::Injected), so that nobody takes it for a real one, and judged as
//! a failure of its kind, with its hint, so that retry, breaker and budget do what they would do. A policy sees no values: a result of the
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
//! Innermost: what stands inside it never meets its faults. A hang needs a time-out outside. [`explain`](crate::Pipeline::explain) says both, and warns in
//! every build that it is in. Beside the rules, [`with_filter`](Chaos::with_filter) has it spare attempts by whatever their
//! [context](crate::call::CallContext) tells. It costs one load of a flag while it is switched off.
//!
//! # Cancel safety
//!
//! Dropping the call drops the operation, or the wait that stands in its place. What was counted stays counted.
//!
//! # Events
//!
//! [`ChaosEvent`]: every injection, and when it was switched on or off. [`injected`](Chaos::injected) counts.
//!
//! # Considerations
//!
//! 1. Retry 11: test the failure paths. A path that never runs does not work when it is needed.
//! 2. Begin small: one operation, one kind, a low rate, off at once by [`set_enabled`](Chaos::set_enabled).
//! 3. Know beforehand what should happen, and watch it by the events of the others.
//! 4. Injected faults are real to a breaker that is shared with calls that are spared: it opens for them, too.
//!
//! # Pitfalls
//!
//! An injected fault counts as no attempt in [`CallError::attempts`](crate::CallError::attempts), for the operation was not started. A panic unwinds
//! through the caller, as a real one does. With several tasks the order in which attempts begin, and so who meets what, is the scheduler's.
//!
//! # Source
//!
//! "Principles of Chaos Engineering" (principlesofchaos.org); Netflix's Latency Monkey. Injection by policy: Simmy, now part of Polly.
mod config;
mod draw;
mod event;
mod outcomes;
mod policy;

pub use config::{ChaosConfig, ChaosRule, FaultConfig, Injection, LatencyConfig};
pub use event::ChaosEvent;
pub use outcomes::WithOutcomes;
pub use policy::{Chaos, Injected};
