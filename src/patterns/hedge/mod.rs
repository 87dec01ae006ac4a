//! Hedge: starts a second attempt beside a slow one, and returns the first success.
//!
//! A [retry](crate::retry) waits for a failure; a hedge does not wait for the slow attempt to end.
//!
//! # When, and when not
//!
//! For reads whose slowest answers are due to chance: a pause of one replica, a lost packet, a cold
//! cache. A second attempt is likely to be fast there. Not where the whole other side is slow: each
//! call would become several when capacity is least (the budget bounds that). Not for operations
//! that must not run twice, and not where both attempts would wait in the same queue.
//!
//! # Defaults
//!
//! | setting | default | |
//! |---|---|---|
//! | `max_attempts` | 2 | in total, the first included; at most 10 |
//! | `delay` | `{ percentile = 0.95, floor = "1ms", until_known = "100ms", min_samples = 100, window = "30s" }` | or a duration: `"50ms"` |
//! | `hedge_on` | all kinds but `client`, `cancelled`, `panic` | a failure of another kind ends the call |
//! | `idempotent` | no | if yes, unmarked operations may run twice; otherwise only those [marked](crate::call::idempotent) so |
//! | budget | none: [`explain`](crate::Pipeline::explain) warns | share one with the retry |
//!
//! # Example
//!
//! ```
//! use std::io;
//! use steadfast::{CallError, ConfigError, call::idempotent, hedge::{Hedge, HedgeConfig}};
//!
//! struct Search {
//!     hedge: Hedge,
//! }
//!
//! impl Search {
//!     fn new() -> Result<Self, ConfigError> {
//!         // A second attempt for the slowest twentieth of the calls.
//!         Ok(Self { hedge: Hedge::new(HedgeConfig::percentile(0.95))? })
//!     }
//!
//!     async fn find(&self, words: &str) -> Result<Vec<u64>, CallError<io::Error>> {
//!         self.hedge.call(idempotent(|| ask_a_replica(words))).await
//!     }
//! }
//! # async fn ask_a_replica(_words: &str) -> io::Result<Vec<u64>> { Ok(vec![7]) }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() { assert_eq!(Search::new().unwrap().find("tea").await.unwrap(), [7]) }
//! ```
//!
//! # The five commonest uses
//!
//! ```
//! use std::{io, time::Duration};
//! use steadfast::{Pipeline, call::idempotent, hedge::{Hedge, HedgeConfig}};
//! use steadfast::retry::{Retry, RetryBudget, RetryConfig};
//!
//! # async fn read() -> io::Result<u32> { Ok(7) }
//! # async fn read_from(_replica: u32) -> io::Result<u32> { Ok(7) }
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // 1. After a fixed delay.
//! let hedge = Hedge::new(HedgeConfig::after(Duration::from_millis(50)))?;
//! hedge.call(idempotent(|| read())).await?;
//!
//! // 2. After a percentile of the recent latencies, and from a budget that bounds the added load.
//! let budget = RetryBudget::new(Default::default())?;
//! let hedge = Hedge::builder(HedgeConfig::percentile(0.95)).budget(&budget).build()?;
//!
//! // 3. Inside a retry, from the same budget.
//! let retry = Retry::builder(RetryConfig::interactive()).budget(&budget).build()?;
//! let calls = Pipeline::new().then(retry).then(hedge);
//! calls.call(idempotent(|| read())).await?;
//!
//! // 4. Where each call is a read: no marks.
//! let reads = Hedge::new(HedgeConfig::percentile(0.99).idempotent(true))?;
//! reads.call(|| read()).await?;
//!
//! // 5. Ask another replica with the second attempt.
//! let reads = Pipeline::new().then(reads);
//! reads.call_with(|attempt| read_from(attempt.hedge())).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Use one hedge for each kind of call: fast reads and slow reports have no percentile in common.
//!
//! # In a test
//!
//! ```
//! use std::{sync::atomic::{AtomicU32, Ordering::SeqCst}, time::Duration};
//! use steadfast::{call::idempotent, hedge::{Hedge, HedgeConfig}, time::Clock};
//!
//! let (clock, time) = Clock::manual();
//! let config = HedgeConfig::after(Duration::from_millis(50));
//! let hedge = Hedge::builder(config).clock(&clock).build().unwrap();
//!
//! let (start, calls) = (time.now(), AtomicU32::new(0));
//! let answer = time.block_on(hedge.call(idempotent(|| {
//!     let slow = calls.fetch_add(1, SeqCst) == 0; // the first replica pauses
//!     let clock = &clock;
//!     async move {
//!         clock.sleep(Duration::from_millis(if slow { 2_000 } else { 20 })).await;
//!         Ok::<_, std::io::Error>("the same answer")
//!     }
//! })));
//! assert_eq!(answer.unwrap(), "the same answer");
//! assert_eq!(time.now() - start, Duration::from_millis(70));
//! ```
//!
//! # How it works
//!
//! The first attempt runs in place, alone. After the delay another starts beside it, and so on up
//! to `max_attempts`. If an attempt fails, the next starts at once. The first success is the
//! result: the other attempts are dropped before it is returned. A failure that a retry would not
//! repeat (a kind outside `hedge_on`) also ends the call. If all attempts fail, the last failure is
//! the result.
//!
//! No further attempt of a call starts once an inner policy rejected an attempt, the budget is
//! empty, the deadline has passed, or the server sent any [`Hint`](crate::Hint). Attempts in flight
//! continue. If the hint states a time, no call of this hedge starts a second attempt until then,
//! for a minute at most.
//!
//! The percentile is computed from whole calls that succeeded, from their first wait. A hedged call
//! counts with its whole time: both that and its first attempt exceeded the delay. So the share of
//! calls above the delay is right, and hedging does not lower the percentile that it uses. Calls
//! that are ready at once are not counted: they read no clock.
//!
//! The operation must start its next future while others run. A closure can, as its futures borrow
//! nothing of it. An [`Operation`](crate::call::Operation) of your own declares it by
//! [`can_overlap`](crate::call::Operation::can_overlap), or runs once.
//!
//! # Composing
//!
//! Put it inside the retry, so that each attempt of the retry is hedged. Put it outside the circuit
//! breaker and the attempt's time-out, so that each hedged attempt has its own: a loser returns its
//! permit and counts for nothing, and a time-out starts the next attempt. Share one
//! [`RetryBudget`](crate::retry::RetryBudget) with the retry; a call is counted in it once.
//! [`AttemptInfo::hedge`](crate::call::AttemptInfo::hedge) tells the operation its number, say for
//! a header. A hedge inside a hedge leaves the attempts to the outer one.
//!
//! ```
//! use std::time::Duration;
//! use steadfast::{
//!     Pipeline,
//!     circuit_breaker::CircuitBreaker,
//!     hedge::{Hedge, HedgeConfig},
//!     retry::{Retry, RetryBudget, RetryConfig},
//!     timeout::Timeout,
//! };
//!
//! # fn main() -> Result<(), steadfast::ConfigError> {
//! let budget = RetryBudget::new(Default::default())?;
//! let pipeline = Pipeline::new()
//!     .then(Timeout::new(Duration::from_secs(2)))
//!     // All calls here are reads.
//!     .then(Retry::builder(RetryConfig::interactive().idempotent(true)).budget(&budget).build()?)
//!     .then(Hedge::builder(HedgeConfig::percentile(0.95).idempotent(true))
//!         .budget(&budget).build()?)
//!     .then(CircuitBreaker::new(Default::default())?)
//!     .then(Timeout::new(Duration::from_millis(300)));
//! assert!(pipeline.explain().warnings().is_empty());
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantees
//!
//! 1. After the delay another attempt starts beside those in flight. A first attempt that ends in
//!    time runs alone and allocates nothing.
//! 2. A percentile is that of recent calls, within an eighth, in memory that does not grow with
//!    traffic. Hedging does not lower it.
//! 3. A failed attempt starts the next at once. A failure of a kind outside `hedge_on` ends the
//!    call.
//! 4. A call has at most `max_attempts` attempts. With a budget, each one beside the first is paid
//!    from it.
//! 5. An operation that is not idempotent, or cannot run concurrently, runs once.
//! 6. A call has exactly one result. All other attempts are dropped before it returns, and count as
//!    neither success nor failure.
//! 7. After a server's hint, a rejection inside, or the deadline, no further attempt starts; those
//!    in flight continue.
//!
//! # Cancel safety
//!
//! If the call is dropped, all its attempts are dropped, and no other starts. Withdrawals from the
//! budget are not refunded.
//!
//! # Events
//!
//! [`HedgeEvent`]: every hedged attempt with its cause, every one that was due and suppressed,
//! every hedged attempt that won, and calls whose attempts all failed. A call whose first attempt
//! ends in time causes no event.
//!
//! # Pitfalls
//!
//! A dropped attempt may continue at the other side, unless the drop is visible there: HTTP/1
//! closes the connection, HTTP/2 resets the stream. Two attempts over one connection, or to one
//! replica, share its fate. A call that is dropped while its first attempt waits adds no sample to
//! the percentile.
//!
//! # Source
//!
//! Jeffrey Dean, Luiz André Barroso, "The Tail at Scale" (CACM, 2013). Fatal and non-fatal
//! failures, and push-back: gRPC proposal A6.
mod attempt_end; // what follows from the end of an attempt
mod config;
mod event;
mod latencies; // percentiles; the delay is in `policy`
mod policy; // the delay, settings and events
mod race; // the attempts side by side, and the delay between their starts

pub use config::{HedgeConfig, HedgeDelay, PercentileConfig};
pub use event::{HedgeCause, HedgeEvent, SuppressReason};
pub use policy::Hedge;
