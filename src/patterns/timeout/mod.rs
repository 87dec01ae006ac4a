//! Time-out: bounds the time of the work, and drops it when the time is over.
//!
//! # When, and when not
//!
//! For every call that leaves the process: without a time-out a call waits as long as the other
//! side does, and the policies around it (a breaker that counts failures, a limit that counts
//! permits) wait with it. With a retry, use two: one around the whole call, one around each
//! attempt. Not for work that must not be interrupted: dropping a future stops it at an `.await`,
//! and does not undo its effects.
//!
//! # Defaults
//!
//! A limit has no default. In the [standard stack](crate::standard) the whole call has 30 s, and an
//! attempt 10 s.
//!
//! | value | meaning |
//! |---|---|
//! | zero | the work is polled once |
//! | [`Duration::MAX`](std::time::Duration::MAX) | no limit: no timer is armed |
//!
//! # Example
//!
//! ```
//! use std::{io, time::Duration};
//! use steadfast::{CallError, timeout::Timeout};
//!
//! struct Prices {
//!     timeout: Timeout,
//! }
//!
//! impl Prices {
//!     fn new() -> Self {
//!         Self { timeout: Timeout::new(Duration::from_secs(2)) }
//!     }
//!
//!     async fn price(&self, item: &str) -> Result<u32, CallError<io::Error>> {
//!         // After 2 s the request is dropped, and the error says `is_timed_out()`.
//!         self.timeout.call(|| fetch(item)).await
//!     }
//! }
//! # async fn fetch(_item: &str) -> io::Result<u32> { Ok(117) }
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() { assert_eq!(Prices::new().price("tea").await.unwrap(), 117) }
//! ```
//!
//! # The five commonest uses
//!
//! ```
//! use std::{io, time::{Duration, Instant}};
//! use steadfast::{Pipeline, call::{AttemptInfo, idempotent}, time::Clock, timeout::Timeout};
//! use steadfast::retry::{Retry, RetryConfig};
//!
//! # async fn fetch(_item: &str) -> io::Result<u32> { Ok(117) }
//! # async fn fetch_within(_item: &str, _: Option<Duration>) -> io::Result<u32> { Ok(117) }
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let clock = Clock::tokio();
//! # let header = Duration::from_secs(1);
//! // 1. Bound one call.
//! let one = Timeout::new(Duration::from_secs(2));
//! one.call(|| fetch("tea")).await?;
//!
//! // 2. Bound the whole call and each attempt.
//! let calls = Pipeline::new()
//!     .then(Timeout::new(Duration::from_secs(3)))
//!     .then(Retry::new(RetryConfig::interactive())?)
//!     .then(Timeout::new(Duration::from_secs(1)));
//! calls.call(idempotent(|| fetch("tea"))).await?;
//!
//! // 3. Obey the deadline of the request that this service answers.
//! let request = AttemptInfo::with_deadline(clock.now() + header);
//! calls.call_within(request, idempotent(|| fetch("tea"))).await?;
//!
//! // 4. Tell the called service how much time is left.
//! calls.call_with(|attempt| fetch_within("tea", attempt.remaining(clock.now()))).await?;
//!
//! // 5. Change the limit while calls run.
//! one.reconfigure(Duration::from_secs(5))?;
//! # Ok(())
//! # }
//! ```
//!
//! # In a test
//!
//! ```
//! use std::time::Duration;
//! use steadfast::{time::Clock, timeout::Timeout};
//!
//! let (clock, time) = Clock::manual(); // a clock that the test moves
//! let timeout = Timeout::builder(Duration::from_secs(2)).clock(&clock).build();
//!
//! let start = time.now();
//! let error = time.block_on(timeout.call(async || {
//!     clock.sleep(Duration::from_secs(60)).await;
//!     Ok::<_, std::io::Error>("too late")
//! }));
//! assert!(error.unwrap_err().is_timed_out());
//! assert_eq!(time.now() - start, Duration::from_secs(2));
//! ```
//!
//! # Composing
//!
//! The deadline travels inwards. An inner time-out is clipped to the rest of an outer one, a retry
//! starts no wait that would end after it, and a limiter rejects at once a turn that would come
//! after it. An operation reads it through [`Pipeline::call_with`](crate::Pipeline::call_with), can
//! put the remaining time into a header
//! ([`AttemptInfo::remaining`](crate::call::AttemptInfo::remaining)), and passes it to an inner
//! pipeline by [`Pipeline::call_within`](crate::Pipeline::call_within).
//!
//! The time counts from the first wait of the work. Work that is ready at once therefore reads no
//! clock and arms no timer, which is most of what a time-out costs elsewhere. Work that computes
//! for long before its first `.await` is not timed meanwhile, as nothing could stop it there
//! anyway.
//!
//! # Code that is not async
//!
//! A time-out cannot interrupt an operation that blocks its thread
//! ([`call_blocking`](crate::Pipeline::call_blocking)). It bounds the waits of such a call: delays
//! between attempts, queues for permits. Its time counts from the start of the operation, which
//! reads the deadline through [`call_blocking_with`](crate::Pipeline::call_blocking_with) to set
//! the time-out of a socket or of a statement. A result that comes after the deadline is the call's
//! result; after a failure no further attempt starts.
//!
//! # Changes while in use
//!
//! [`Timeout::reconfigure`] changes the limit of all clones. A call that already waits keeps its
//! limit.
//!
//! # Guarantees
//!
//! 1. The limit covers the whole call, with queueing, delays and retries; a limit inside another is
//!    clipped to what is left of it, and the nearer deadline travels to the operation.
//! 2. The work is dropped before the error returns, and a result that is ready in the same poll
//!    wins. Zero polls the work once; `Duration::MAX` never ends it.
//!
//! # Cancel safety
//!
//! If the call is dropped, the work is dropped. When the time is over, the work is dropped before
//! the error returns, so its resources are free by then. A result that is ready in the same poll
//! wins.
//!
//! # Events
//!
//! [`TimeoutEvent::TimedOut`].
//!
//! # Pitfalls
//!
//! A time-out says that the caller stopped waiting, not that the work did not happen: see
//! [`idempotent`](crate::call::idempotent). A clipped attempt that times out counts as a failure of
//! kind `timeout` like any other.
//!
//! # Source
//!
//! Deadlines that travel: gRPC, "gRPC and Deadlines" (2018).
mod event;
mod policy;

pub use event::TimeoutEvent;
pub use policy::Timeout;
