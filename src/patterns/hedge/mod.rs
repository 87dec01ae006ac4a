//! Hedge: starts a second attempt beside one that takes long, and gives whichever succeeds first.
//!
//! Unlike a [retry](crate::retry), which waits for a failure, it does not wait for the slow one to end.
//!
//! # When, and when not
//!
//! For reads whose slowest answers come from chance: a pause of one replica, a lost packet, a cold cache, where a second try is likely to be
//! quick. Not where all of the other side is slow: then each call becomes several, just when there is least room for them (the budget bounds
//! that). Not for what must not happen twice, and not where both attempts would queue for the same thing.
//!
//! # Defaults
//!
//! | setting | default | |
//! |---|---|---|
//! | `max_attempts` | 2 | in all, the first included; at most 10 |
//! | `delay` | `{ percentile = 0.95, floor = "1ms", until_known = "100ms", min_samples = 100, window = "30s" }` | or a duration: `"50ms"` |
//! | `hedge_on` | all kinds but `client`, `cancelled`, `panic` | a failure of another kind ends the call |
//! | `idempotent` | yes | for operations that carry no mark |
//! | budget | none: [`explain`](crate::Pipeline::explain) warns | share one with the retry |
//!
//! # Example
//!
//! ```
//! use std::{sync::atomic::{AtomicU32, Ordering::SeqCst}, time::Duration};
//! use steadfast::{hedge::{Hedge, HedgeConfig}, time::Clock};
//!
//! let (clock, hand) = Clock::manual();
//! let hedge = Hedge::new(HedgeConfig::after(Duration::from_millis(50))).unwrap().with_clock(&clock);
//!
//! let (start, calls) = (hand.now(), AtomicU32::new(0));
//! let answer = hand.block_on(hedge.call(|| {
//!     let slow = calls.fetch_add(1, SeqCst) == 0; // the first replica pauses
//!     let clock = &clock;
//!     async move {
//!         clock.sleep(Duration::from_millis(if slow { 2_000 } else { 20 })).await;
//!         Ok::<_, std::io::Error>("the same answer")
//!     }
//! }));
//! assert_eq!(answer.unwrap(), "the same answer");
//! assert_eq!(hand.now() - start, Duration::from_millis(70));
//! ```
//!
//! # How it works
//!
//! The first attempt runs in place, alone. When it has taken as long as the delay, another starts beside it, and so on up to
//! `max_attempts`; when one fails, the next starts at once. The first that succeeds is the result: the others are dropped, and then it is
//! returned. A failure that a retry would not repeat (a kind outside `hedge_on`) is the result, too. Where all fail, the last failure is.
//!
//! Nothing further starts in a call once a policy inside refused an attempt, the budget is empty, the call's time is over, or the other side
//! said anything about being called again ([`Hint`](crate::Hint)); what is in flight goes on. Where it said for how long, no other call of
//! this hedge starts a second attempt until then, for a minute at most.
//!
//! The percentile is taken of whole calls that succeeded, from when they first waited: of one that was hedged it is known that its first
//! attempt took longer than the delay, and the call did, too. So the share of calls above the delay is right, and hedging does not pull
//! down the percentile that it goes by. Calls that are ready at once are not counted: they read no clock.
//!
//! An operation is asked for its next future while others run. A closure can do that, as its futures borrow nothing of it. An
//! [`Operation`](crate::call::Operation) of your own says so by [`can_overlap`](crate::call::Operation::can_overlap), or runs once.
//!
//! # Composing
//!
//! Inside the retry, so that each of its attempts is hedged; outside the circuit breaker and the attempt's time-out, so that each attempt has
//! its own: a loser gives its place back and counts for nothing, a time-out starts the next attempt. Share one
//! [`RetryBudget`](crate::retry::RetryBudget) with the retry: a call inside that retry is told to it once. The operation hears which attempt
//! it is from [`AttemptInfo::hedge`](crate::call::AttemptInfo::hedge), say for a header. A hedge inside a hedge leaves the attempts to the
//! outer one.
//!
//! ```
//! use std::time::Duration;
//! use steadfast::{
//!     Pipeline, circuit_breaker::CircuitBreaker, hedge::{Hedge, HedgeConfig}, retry::{Retry, RetryBudget, RetryConfig}, timeout::Timeout,
//! };
//!
//! # fn main() -> Result<(), steadfast::ConfigError> {
//! let budget = RetryBudget::new(Default::default())?;
//! let pipeline = Pipeline::new()
//!     .then(Timeout::new(Duration::from_secs(2)))
//!     .then(Retry::new(RetryConfig::interactive().idempotent(true))?.with_budget(&budget)) // all calls here are reads
//!     .then(Hedge::new(HedgeConfig::percentile(0.95))?.with_budget(&budget))
//!     .then(CircuitBreaker::new(Default::default())?)
//!     .then(Timeout::new(Duration::from_millis(300)));
//! assert!(pipeline.explain().warnings().is_empty());
//! # Ok(())
//! # }
//! ```
//!
//! # Cancel safety
//!
//! Dropping the call drops all its attempts, and starts no other. What was taken from the budget stays taken.
//!
//! # Events
//!
//! [`HedgeEvent`]: every attempt beside the first with its cause, every one that was due and not made, a hedge that won, calls of which all
//! attempts failed. A call whose first attempt ends in time is no event.
//!
//! # Considerations
//!
//! 1. The operation must be idempotent: mark the one that is not by [`not_idempotent`](crate::call::not_idempotent), and it runs once.
//!    (default) [`explain_for`](crate::Pipeline::explain_for) warns of it. (warning)
//! 2. It adds load: about `1 - percentile`, and `max_attempts` times it when everything is slow, but for the budget. (warning without one)
//! 3. A server that is overloaded is left alone: its hint stops hedging. (default)
//! 4. Too short a delay is a load generator: percentiles have a floor, and need samples. (default)
//! 5. One hedge for one kind of call: fast reads and slow reports have no percentile in common.
//!
//! # Pitfalls
//!
//! A dropped attempt may go on at the other side, unless it hears of the drop: HTTP/1 closes the connection, HTTP/2 resets the stream. Two
//! attempts through one connection, or to one replica, share its fate. A call that is dropped while its first attempt waits teaches the
//! percentile nothing.
//!
//! # Source
//!
//! Jeffrey Dean, Luiz André Barroso, "The Tail at Scale" (CACM, 2013). Fatal and other failures, and push-back: gRPC proposal A6.
mod config;
mod event;
mod latencies;
mod policy;
mod race;
mod state;

pub use config::{HedgeConfig, HedgeDelay, PercentileConfig};
pub use event::{HedgeCause, HedgeEvent, SuppressReason};
pub use policy::Hedge;
