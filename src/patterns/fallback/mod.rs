//! Fallback: a substitute answer for a failed call, marked as degraded if the caller asks for it.
//!
//! Unlike a [retry](crate::retry) it does not call the other side again; it returns something else.
//!
//! # When, and when not
//!
//! Where a lesser answer is better than none: yesterday's price, a default list, a replica that may
//! lag, an empty page. It makes the rejections of a breaker or a limit acceptable to users. Not
//! where a wrong answer does harm (an account's balance, a permission), and not to hide errors: a
//! default that looks like the truth misleads. Where the reader must know, the answer is marked:
//! [`call_or_marked`](crate::Pipeline::call_or_marked).
//!
//! # Defaults
//!
//! | setting | default | |
//! |---|---|---|
//! | `fall_back_on` | all kinds but `client`, `cancelled`, `panic` | an invalid request stays invalid |
//! | `on_rejections` | yes | an open breaker, a reached limit |
//! | `timeout` | 1 s | for the fallback; at most the rest of an outer deadline |
//!
//! # Example
//!
//! ```
//! use std::{future::ready, io};
//! use steadfast::{
//!     Pipeline,
//!     circuit_breaker::{CircuitBreaker, CircuitBreakerConfig},
//!     fallback::{Fallback, FallbackConfig},
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let breaker = CircuitBreaker::new(CircuitBreakerConfig::default())?;
//! let fallback = Fallback::new(FallbackConfig::default())?;
//! let prices = Pipeline::new().then(fallback).then(breaker.clone());
//! let ask = || async { Ok::<u32, io::Error>(117) };
//! let yesterday = 115;
//!
//! assert_eq!(prices.call_or(ask, |_| ready(Ok(yesterday))).await?, 117);
//!
//! breaker.isolate(); // the service is away
//! assert_eq!(prices.call_or(ask, |_| ready(Ok(yesterday))).await?, 115);
//!
//! // The same with a mark.
//! let degraded = prices.call_or_marked(ask, |_| ready(Ok(yesterday))).await?;
//! assert!(degraded.is_degraded() && degraded.error().is_some_and(|error| error.is_rejected()));
//! assert_eq!(degraded.into_value(), 115);
//! # Ok(())
//! # }
//! ```
//!
//! # The five commonest uses
//!
//! ```
//! use std::{future::ready, io};
//! use steadfast::{FailureKind, Pipeline, fallback::{Fallback, FallbackConfig}};
//!
//! # async fn read() -> io::Result<u32> { Ok(7) }
//! # async fn read_replica() -> io::Result<u32> { Ok(6) }
//! # fn map(_: steadfast::CallError<io::Error>) -> io::Error { io::ErrorKind::Other.into() }
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let calls = Pipeline::new().then(Fallback::new(FallbackConfig::default())?);
//! let replica = Pipeline::new();
//! // 1. A value.
//! calls.call_or(|| read(), |_| ready(Ok(0))).await?;
//!
//! // 2. A value, and a mark that the reader can see.
//! let answer = calls.call_or_marked(|| read(), |_| ready(Ok(0))).await?;
//! let note = if answer.is_degraded() { "yesterday's price" } else { "" };
//!
//! // 3. Another service.
//! let ask = |failed: steadfast::fallback::Failed<'_, u32, io::Error>| {
//!     let replica = replica.call_within(failed.within(), || read_replica());
//!     async move { replica.await.map_err(map) }
//! };
//! calls.call_or(|| read(), ask).await?;
//!
//! // 4. Only after some failures: any other `Err` leaves the call's own error as it is.
//! calls.call_or(|| read(), |failed| {
//!     let is_timeout = failed.kind() == Some(FailureKind::Timeout);
//!     ready(if is_timeout { Ok(0) } else { Err(io::ErrorKind::Other.into()) })
//! }).await?;
//!
//! // 5. Without the policy: the default rules, at the end of any pipeline.
//! Pipeline::new().call_or(|| read(), |_| ready(Ok(0))).await?;
//! # Ok(())
//! # }
//! ```
//!
//! A fallback rarely runs, so its own faults stay hidden: run it on purpose, with injected faults
//! (`chaos`, by feature). Other processes fall back at the same moment: give a replica behind many
//! fallbacks a limit of its own.
//!
//! # How it works
//!
//! A policy sees verdicts, never values, so the fallback is given with the call:
//! [`Pipeline::call_or`](crate::Pipeline::call_or), or
//! [`call_or_marked`](crate::Pipeline::call_or_marked), which returns an [`Answer`] in place of the
//! value alone. The fallback is any closure that receives the [`Failed`]
//! call and returns a future of the same result type:
//!
//! | fallback | written |
//! |---|---|
//! | a value | `\|_\| ready(Ok(value))` |
//! | a function of the error | `\|failed\| { let kind = failed.kind(); async move { .. } }` |
//! | another operation | `\|failed\| replica.call_within(failed.within(), \|\| get())`, with its error mapped |
//! | no substitute for this failure | any `Err`: the call returns its own error |
//!
//! The policy decides when the fallback runs, and bounds its time. A fallback runs at most once per
//! call. The pipeline's classifier judges its value as any other. If it fails, is judged a failure
//! or takes too long, the call returns its own error, and
//! [`CallError::fallback`](crate::CallError::fallback) returns the fallback's.
//!
//! A value that is judged a failure (an HTTP 503 that is an `Ok`) is also replaced:
//! [`Answer::Degraded`] contains it.
//!
//! In a pipeline without this policy [`call_or`](crate::Pipeline::call_or) falls back at the end of
//! the call, by the default rules, without events and without a time-out.
//! Inside a policy of your own this policy keeps its rules for every call that reaches it. A call
//! that was rejected before falls back at its end.
//!
//! # Composing
//!
//! Put it outermost: then it sees every failure inside, including the total time-out, after retries
//! and rejections. Inside a retry it would end the retry; inside a breaker it would hide failures
//! from it. [`explain`](crate::Pipeline::explain) warns about both.
//!
//! ```
//! use std::time::Duration;
//! use steadfast::{
//!     Pipeline,
//!     circuit_breaker::CircuitBreaker,
//!     fallback::Fallback,
//!     retry::{Retry, RetryBudget, RetryConfig},
//!     timeout::Timeout,
//! };
//!
//! # fn main() -> Result<(), steadfast::ConfigError> {
//! let budget = RetryBudget::new(Default::default())?;
//! let pipeline = Pipeline::new()
//!     .then(Fallback::new(Default::default())?)
//!     .then(Timeout::new(Duration::from_secs(2)))
//!     .then(Retry::builder(RetryConfig::interactive()).budget(&budget).build()?)
//!     .then(CircuitBreaker::new(Default::default())?)
//!     .then(Timeout::new(Duration::from_millis(300)));
//! assert!(pipeline.explain().warnings().is_empty());
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantees
//!
//! 1. The fallback is a value, a function of the failure, or another operation. In an [`Answer`]
//!    its value is marked as degraded, beside the outcome that it replaced.
//! 2. The fallback runs at most once per call, and only after the configured failures and
//!    rejections. A success is never replaced.
//! 3. If the fallback fails, the call returns its own error, with the fallback's beside it.
//! 4. The fallback has at most its time-out and the rest of the call's deadline. It is dropped
//!    before the call returns.
//! 5. Without this policy, `call_or` falls back at the end of the call, by the default rules.
//!
//! # Cancel safety
//!
//! If the call is dropped, the operation is dropped, or the fallback if that is running.
//!
//! # Events
//!
//! [`FallbackEvent`]: each call that fell back, and each fallback that failed or timed out, with
//! the failure or rejection before it. A failure that the policy lets pass causes no event.
//!
//! # Pitfalls
//!
//! [`call`](crate::Pipeline::call) has no fallback, so this policy does nothing there. A fallback
//! that makes a call has no retry and no breaker unless you add them. A closure must read from
//! [`Failed`] before it creates its future: the future cannot borrow it.
//!
//! # Source
//!
//! Ben Christensen, "Fault Tolerance in a High Volume, Distributed System" (Netflix, 2012), on
//! "fail fast" and "fallback". On the risks: Jacob Gabrielson, "Avoiding fallback in distributed
//! systems" (Amazon Builders' Library).
mod config;
mod event;
mod policy;

pub use crate::call::{Answer, Failed};
pub use config::FallbackConfig;
pub use event::FallbackEvent;
pub use policy::Fallback;
