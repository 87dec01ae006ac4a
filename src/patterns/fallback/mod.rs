//! Fallback: a substitute takes the place of a call that failed, and its answer is marked.
//!
//! Unlike a [retry](crate::retry) it does not ask the other side again: it gives something else.
//!
//! # When, and when not
//!
//! Where a lesser answer is better than none: the price of yesterday, a default list, a replica that may lag, an empty page. It is what
//! makes a breaker's or a limit's refusal bearable. Not where a wrong answer does harm (an account's balance, a permission), and not for
//! hiding errors: who reads a default for the truth is misled, which is why the answer says what it is.
//!
//! # Defaults
//!
//! | setting | default | |
//! |---|---|---|
//! | `fall_back_on` | all kinds but `client`, `cancelled`, `panic` | a request that is wrong stays wrong |
//! | `on_rejections` | yes | the breaker is open, a limit reached |
//! | `timeout` | 1 s | for the substitute; at most what is left of an outer deadline |
//!
//! # Example
//!
//! ```
//! use std::{future::ready, io};
//! use steadfast::{
//!     Pipeline,
//!     circuit_breaker::{CircuitBreaker, CircuitBreakerConfig},
//!     fallback::{Answer, Fallback, FallbackConfig},
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let breaker = CircuitBreaker::new(CircuitBreakerConfig::default())?;
//! let prices = Pipeline::new().then(Fallback::new(FallbackConfig::default())?).then(breaker.clone());
//! let ask = || async { Ok::<u32, io::Error>(117) };
//! let yesterday = 115;
//!
//! let own = prices.call_or(ask, |_| ready(Ok(yesterday))).await?;
//! assert!(matches!(own, Answer::Own(117)));
//!
//! breaker.isolate(); // the service is away
//! let degraded = prices.call_or(ask, |_| ready(Ok(yesterday))).await?;
//! assert!(degraded.is_degraded() && degraded.error().is_some_and(|error| error.is_rejected()));
//! assert_eq!(degraded.into_value(), 115);
//! # Ok(())
//! # }
//! ```
//!
//! # How it works
//!
//! The policy sees verdicts, never values, so the substitute comes with the call: [`Pipeline::call_or`](crate::Pipeline::call_or). It is any
//! closure that is told what [`Failed`] and gives a future of the same result type:
//!
//! | substitute | written |
//! |---|---|
//! | a value | `\|_\| ready(Ok(value))` |
//! | a function of the error | `\|failed\| { let kind = failed.kind(); async move { .. } }` |
//! | another operation | `\|failed\| replica.call_within(failed.within(), \|\| get())`, with its error mapped |
//!
//! The policy decides when it is asked, and bounds its time. A substitute is asked once a call. Its value is judged by the pipeline's
//! classifier as any other. Where it fails (or is judged a failure, or takes too long) the call comes to what it was before: the first
//! cause is the call's error, and [`CallError::fallback`](crate::CallError::fallback) says what the substitute failed with.
//!
//! A value that is judged a failure (an HTTP 503 that is an `Ok`) is replaced, too: [`Answer::Degraded`] holds it.
//!
//! In a pipeline without this policy [`call_or`](crate::Pipeline::call_or) falls back at the end of the call, by the default rules, with no
//! events and no time-out.
//!
//! # Composing
//!
//! Outermost: then it hears of everything that went wrong inside, the total time-out too, after retries and refusals. Inside a retry it
//! would end the retry, inside a breaker hide the failures from it: [`explain`](crate::Pipeline::explain) warns.
//!
//! ```
//! use std::time::Duration;
//! use steadfast::{
//!     Pipeline, circuit_breaker::CircuitBreaker, fallback::Fallback, retry::{Retry, RetryBudget, RetryConfig}, timeout::Timeout,
//! };
//!
//! # fn main() -> Result<(), steadfast::ConfigError> {
//! let budget = RetryBudget::new(Default::default())?;
//! let pipeline = Pipeline::new()
//!     .then(Fallback::new(Default::default())?)
//!     .then(Timeout::new(Duration::from_secs(2)))
//!     .then(Retry::new(RetryConfig::interactive())?.with_budget(&budget))
//!     .then(CircuitBreaker::new(Default::default())?)
//!     .then(Timeout::new(Duration::from_millis(300)));
//! assert!(pipeline.explain().warnings().is_empty());
//! # Ok(())
//! # }
//! ```
//!
//! # Cancel safety
//!
//! Dropping the call drops the operation, or the substitute that is at work.
//!
//! # Events
//!
//! [`FallbackEvent`]: each time it fell back, each time that failed or took too long, with what went before. A failure that it lets pass is
//! no event.
//!
//! # Considerations
//!
//! 1. Circuit breaker 1: the caller must handle the refusal; this is the degraded answer. (default)
//! 2. Watch how often it happens: a fallback that always works hides an outage. The events count. (event)
//! 3. The substitute must not need what is failing, nor be slower than it: it has a time-out. (default)
//! 4. Other services fall back at the same moment as this one: a replica or a cache that all fall back on needs a limit of its own.
//! 5. It is rarely run, so it is rarely right: run it on purpose, with injected faults.
//!
//! # Pitfalls
//!
//! [`call`](crate::Pipeline::call) has no substitute, so this policy does nothing there. A substitute that calls out has no retry and no
//! breaker but those you give it. What a closure reads of [`Failed`] it reads before its future is made: the future cannot borrow it.
//!
//! # Source
//!
//! Ben Christensen, "Fault Tolerance in a High Volume, Distributed System" (Netflix, 2012), on "fail fast" and "fallback". Against
//! careless ones: Jacob Gabrielson, "Avoiding fallback in distributed systems" (Amazon Builders' Library).
mod config;
mod event;
mod policy;

pub use crate::call::{Answer, Failed};
pub use config::FallbackConfig;
pub use event::{FallbackEvent, Setback};
pub use policy::Fallback;
