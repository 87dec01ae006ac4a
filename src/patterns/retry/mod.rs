//! Retry: does it again when the failure is of a kind that passes.
//!
//! # When, and when not
//!
//! When faults are transient: a connection lost, a server that restarts, a moment of overload. Not when they last (that is for a
//! [circuit breaker](crate::circuit_breaker)), not for errors of business logic, and not in place of scaling: frequent "busy" means
//! that capacity is missing.
//!
//! # Defaults
//!
//! | setting | default | |
//! |---|---|---|
//! | `max_attempts` | 3 | calls in all, the first included |
//! | `backoff` | exponential, 100 ms to 20 s, factor 2, full jitter | |
//! | `max_elapsed` | none | no attempt starts later than this after the first |
//! | `retry_on` | all kinds but `client`, `cancelled`, `panic` | |
//! | `max_hint` | 60 s | the longest wait a server may ask for |
//! | `retry_rejections` | no | refusals of this crate's own policies |
//! | `retry_nested` | no | inside an attempt of another retry |
//! | `idempotent` | no | whether operations without a mark may run twice |
//! | budget | none; 20 % and 10 a second in the standard stack | |
//!
//! [`RetryConfig::interactive`] is for somebody who waits, [`RetryConfig::batch`] for work that nobody waits for.
//!
//! # Example
//!
//! ```
//! use steadfast::{call::idempotent, entropy::Entropy, retry::{Retry, RetryConfig}, time::Clock};
//!
//! let (clock, hand) = Clock::manual();
//! let retry = Retry::new(RetryConfig::default()).unwrap().with_clock(&clock).with_entropy(&Entropy::from_seed(1));
//!
//! let mut calls = 0;
//! let read = idempotent(|| {
//!     calls += 1;
//!     let answer = if calls < 3 { Err("busy") } else { Ok("done") };
//!     async move { answer }
//! });
//! assert_eq!(hand.block_on(retry.call(read)).unwrap(), "done");
//! assert_eq!(calls, 3);
//! ```
//!
//! # Which operations are repeated
//!
//! A failure seldom proves that nothing was sent: after a time-out, a reset or a 500 the other side
//! may have done its work. So the retry repeats an operation only where running it twice is as good
//! as once, and it is told so:
//!
//! | operation | repeated after |
//! |---|---|
//! | [`idempotent(operation)`](crate::call::idempotent): a read, a write of a whole value, a request with an idempotency key | each failure in `retry_on` |
//! | [`not_idempotent(operation)`](crate::call::not_idempotent) | failures of kind `connect`, refusals of this crate's policies |
//! | without a mark, as above where [`RetryConfig::idempotent`] is off (the default) | the same |
//! | without a mark, where [`RetryConfig::idempotent`] is on: all calls through this retry may run twice | each failure in `retry_on` |
//!
//! A retry that gives up for want of a mark says so:
//! [`StopReason::NotIdempotent`](crate::outcome::StopReason::NotIdempotent) in the error's history, in the
//! event [`RetryEvent::GaveUp`], and in the log; [`explain`](crate::Pipeline::explain) states the
//! setting, and [`explain_for`](crate::Pipeline::explain_for) warns for an operation. The tower
//! layer's `HttpRequests` marks requests by their method and their `idempotency-key`. The page [why
//! it is as it is](crate::_docs::design) has the reasons.
//!
//! # Why a budget, and not only a limit of attempts?
//!
//! Three attempts are harmless while one call in a thousand fails, and triple the load just when everything does. A
//! [`RetryBudget`] allows retries in proportion to first attempts, so the worst case is `1 + ratio` calls a request. Share one
//! between all policies that call the same target.
//!
//! # Composing
//!
//! Outside the circuit breaker and the attempt's time-out, inside the total time-out. A rejection by a breaker or a limiter inside is
//! not retried, unless asked for: it means "stop asking". A retry inside an attempt of another one, in the same pipeline or in one
//! that was entered by [`Pipeline::call_within`](crate::Pipeline::call_within), leaves the attempts to the outer: three times
//! three is nine calls.
//!
//! A server's hint is honoured: the wait is never shorter, jitter only adds to it, a hint above `max_hint` gives up at once with the
//! hint in the error, and "do not retry" ends it.
//!
//! # Cancel safety
//!
//! Dropping the call drops the running attempt or the wait; no other attempt is made. What was taken from the budget stays taken.
//!
//! # Changes while in use
//!
//! [`Retry::reconfigure`] changes the settings of all clones: a call under way follows them from its next failure on, with the delays that it began with.
//! [`RetryBudget::reconfigure`] keeps what was earned and taken, in proportion to a shorter window. A bad change is refused whole.
//!
//! # Events
//!
//! [`RetryEvent`]: every failure that led to another attempt, recoveries, and giving up with its reason. A call that succeeds at
//! once is no event.
//!
//! # Considerations
//!
//! 1. Interactive work: few and short; batch: many and growing: the two presets. (default)
//! 2. An aggressive policy hurts a struggling service: [`explain`](crate::Pipeline::explain) warns of missing jitter and a missing
//!    budget. (warning)
//! 3. After many failures stop asking for a while: `explain` warns of a retry with neither budget nor breaker. (warning)
//! 4. The operation must be idempotent: an operation without the mark
//!    [`idempotent`](crate::call::idempotent) is repeated only after a failure that proves that
//!    nothing was sent. (default)
//! 5. The delay fits the kind of fault: hints, kinds, costs of the budget. (default)
//! 6. Within a transaction giving up means undoing, which costs more than an attempt: try harder
//!    there. (advice)
//! 7. Nested retries multiply: the inner one sees the outer. (default)
//! 8. Every fault that led to a retry is an event. (default)
//! 9. Rare faults: [`immediate_first`](crate::backoff::BackoffConfig::immediate_first) tries once at once, then backs off. (option)
//! 10. Instances are spread apart: full jitter. (default)
//! 11. Test the failure paths: the scripted service of the `testing` feature. (advice)
//!
//! # Pitfalls
//!
//! The classifier decides: with the default one every `Err` is a failure of kind `other`, and
//! retried where the operation is idempotent. State once, in
//! [`Pipeline::classify`](crate::Pipeline::classify), which errors are the client's own, and which
//! are of kind `connect`: these are repeated without a mark.
//!
//! # Source
//!
//! "Retry pattern", Azure Architecture Center. Jitter: Marc Brooker, "Exponential Backoff And Jitter" (AWS Architecture Blog,
//! 2015). Budget: Finagle's `RetryBudget`. Push-back: gRPC proposal A6.
mod config;
mod event;
mod live;
mod policy;
mod state;

pub use crate::budget::{RetryBudget, RetryBudgetConfig};
pub use config::RetryConfig;
pub use event::RetryEvent;
pub use policy::Retry;
