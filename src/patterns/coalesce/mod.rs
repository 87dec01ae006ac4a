//! Coalescing: callers who ask for the same at the same time share one call.
//!
//! # When, and when not
//!
//! When many ask for one thing at once and the answer is the same for all: a page, a token, a price. Not for what has an effect for each
//! caller, and not in place of a cache: what is over is forgotten, and the next caller starts anew.
//!
//! # Defaults
//!
//! | setting | default | |
//! |---|---|---|
//! | nobody waits any more | the work is dropped | [`finishing`](Coalesce::finishing) has it go on |
//!
//! # Example
//!
//! ```
//! use std::sync::atomic::{AtomicU32, Ordering};
//! use steadfast::coalesce::Coalesce;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! static CALLS: AtomicU32 = AtomicU32::new(0);
//! let prices: Coalesce<String, u32> = Coalesce::new();
//! let ask = || prices.run("eur", || async {
//!     CALLS.fetch_add(1, Ordering::Relaxed);
//!     tokio::task::yield_now().await; // a round trip
//!     117
//! });
//! let (one, other) = tokio::join!(ask(), ask());
//! assert_eq!((one, other), (Ok(117), Ok(117)));
//! assert_eq!(CALLS.load(Ordering::Relaxed), 1);
//! # }
//! ```
//!
//! # How it works
//!
//! The first caller makes the work and drives it; each other one is polled twice, when it comes and when the result is there, however often
//! the work is polled. There is no task: when the driver leaves, one of those who wait is woken and goes on where the driver was.
//!
//! # Composing
//!
//! Around a pipeline: then its retries, breaker and time-out are those of the one call. The work owns its pipeline (a clone is cheap and
//! shares the state), and the error that goes to all is one that can be cloned:
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use steadfast::{CallError, Pipeline, call::idempotent, coalesce::Coalesce, retry::{Retry, RetryConfig}, timeout::Timeout};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), steadfast::ConfigError> {
//! # async fn fetch(_: String) -> Result<u32, std::io::Error> { Ok(117) }
//! type Shared = Result<u32, Arc<CallError<std::io::Error>>>;
//!
//! let pipeline = Pipeline::new().then(Timeout::new(Duration::from_secs(2))).then(Retry::new(RetryConfig::interactive())?);
//! let prices: Coalesce<String, Shared> = Coalesce::new();
//! let price = prices.run("eur", || async move { pipeline.call(idempotent(|| fetch("eur".into()))).await.map_err(Arc::new) }).await;
//! assert!(matches!(price, Ok(Ok(117))));
//! # Ok(())
//! # }
//! ```
//!
//! The other way round, with the coalescing inside the pipeline, k callers make k calls of the pipeline: a breaker hears one failure k times. A
//! time-out around [`run`](Coalesce::run) ends the wait of one caller, not the work of the others; so the deadline of who came first is
//! not handed to the work: give that a time-out of its own.
//!
//! # Cancel safety
//!
//! A caller that is dropped takes nothing from the others. The last one drops the work, or with [`finishing`](Coalesce::finishing) leaves it
//! to the background.
//!
//! # Events
//!
//! None. [`under_way`](Coalesce::under_way) counts.
//!
//! # Pitfalls
//!
//! An error is a result, too, and goes to all: let `T` be a `Result` whose error can be cloned (an `Arc` around it can). The work outlives
//! the caller who made it, so it owns what it needs. Work that asks for its own key is refused
//! ([`Lost::OwnKey`]); two works that wait for each other's keys are not seen. A driver that is neither polled nor dropped holds the others up: do not keep a
//! `run` aside, half done, while you wait for something else.
//!
//! # Source
//!
//! `singleflight` of Go's `golang.org/x/sync`; "collapsed forwarding" of HTTP caches (Squid, Varnish).
mod policy;

pub use policy::{Coalesce, Lost};
