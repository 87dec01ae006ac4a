//! Time-out: gives the work a bounded time, and drops it when that is over.
//!
//! # When, and when not
//!
//! Around every call that leaves the process: a call without a time-out waits for as long as the other side likes, and whatever
//! stands around it (a breaker that counts failures, a limit that counts places) waits with it. Twice, if there is a retry: once
//! around the whole call, once around each attempt. Not around work that must not be cut in the middle: dropping a future stops
//! it at an `.await`, it does not undo what was done before.
//!
//! # Defaults
//!
//! A limit has no default. In the [standard stack](crate::standard) the whole call has 30 s, an attempt 10 s.
//!
//! | value | meaning |
//! |---|---|
//! | zero | the work is polled once |
//! | [`Duration::MAX`](std::time::Duration::MAX) | never: no timer is armed |
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//! use steadfast::{time::Clock, timeout::Timeout};
//!
//! let (clock, hand) = Clock::manual(); // a test's clock; without `with_clock` it is tokio's
//! let timeout = Timeout::new(Duration::from_secs(2)).with_clock(&clock);
//!
//! let error = hand.block_on(timeout.call(async || {
//!     clock.sleep(Duration::from_secs(60)).await;
//!     Ok::<_, std::io::Error>("too late")
//! }));
//! assert!(error.unwrap_err().is_timed_out());
//! assert_eq!(hand.now() - steadfast::time::Instant::from_nanos(1_000_000_000), Duration::from_secs(2));
//! ```
//!
//! # Composing
//!
//! The deadline travels inwards: an inner time-out is clipped to what is left of an outer one, a retry does not begin a wait that
//! would end after it, a limiter refuses at once a turn that would come after it. An operation sees it through
//! [`Pipeline::call_with`](crate::Pipeline::call_with), can put what is left into a header
//! ([`AttemptInfo::remaining`](crate::call::AttemptInfo::remaining)), and hands it to an inner pipeline by
//! [`Pipeline::call_within`](crate::Pipeline::call_within).
//!
//! The time counts from the moment when the work first waits. Work that is ready at once therefore reads no clock and arms no
//! timer, which is most of what a time-out costs elsewhere; work that computes for long before its first `.await` is not timed
//! while it does, as nothing could stop it there anyway.
//!
//! # Changes while in use
//!
//! [`Timeout::reconfigure`] changes the limit of all clones. A call whose time runs already keeps what it was given.
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
//! Dropping the call drops the work. When the time is over the work is dropped first, and the error returned after that: whatever
//! it held is free when the caller hears of it. A result that is ready in the same poll wins.
//!
//! # Events
//!
//! [`TimeoutEvent::TimedOut`].
//!
//! # Pitfalls
//!
//! A time-out says that the caller stopped waiting, not that the work did not happen: see
//! [`idempotent`](crate::call::idempotent). A clipped attempt that runs out counts as a failure of
//! kind `timeout` like any other.
//!
//! # Source
//!
//! Deadlines that travel: gRPC, "gRPC and Deadlines" (2018).
mod event;
mod policy;

pub use event::TimeoutEvent;
pub use policy::Timeout;
