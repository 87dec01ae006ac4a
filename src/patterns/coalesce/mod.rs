//! Coalescing: callers that ask for the same key at the same time share one execution.
//!
//! # When, and when not
//!
//! Use it when many callers ask for one thing at once and the answer is the same for all: a page, a
//! token, a price. Do not use it for work that has an effect for each caller, nor as a cache: a
//! finished result is forgotten, and the next caller starts a new execution.
//!
//! # Defaults
//!
//! | setting | default | |
//! |---|---|---|
//! | no caller waits any more | the work is dropped | [`finishing`](Coalesce::finishing) lets it finish in the background |
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
//! # The five commonest uses
//!
//! ```
//! use std::{io, sync::Arc};
//! use steadfast::coalesce::Coalesce;
//!
//! # async fn fetch(_key: String) -> io::Result<u32> { Ok(117) }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! type Shared = Result<u32, Arc<io::Error>>;
//! // 1. One request for all concurrent callers of a key. All of them get its result, or its error.
//! let prices: Coalesce<String, Shared> = Coalesce::new();
//! let price = prices.run("eur", || async { fetch("eur".into()).await.map_err(Arc::new) }).await??;
//!
//! // 2. Work that is finished although its callers have left.
//! let prices: Coalesce<String, Shared> = Coalesce::finishing(|work| drop(tokio::spawn(work)));
//!
//! // 3. A key of several parts.
//! let by_day: Coalesce<(String, u32), Shared> = Coalesce::new();
//!
//! // 4. Begin anew after a change: a later caller does not join the work under way.
//! prices.forget("eur");
//!
//! // 5. The number of keys that are asked for now, for a gauge.
//! assert_eq!(prices.under_way(), 0);
//! # Ok(())
//! # }
//! ```
//!
//! # How it works
//!
//! The first caller creates the work and drives it. Each other caller is polled twice, when it
//! arrives and when the result is there, however often the work is polled. No task is spawned: if
//! the driver is dropped, one of the waiting callers is woken and continues the work.
//!
//! # Composing
//!
//! Put it around a pipeline. Then the retries, breaker and time-out are those of the one execution.
//! The work owns its pipeline (a clone is cheap and shares the state), and the error for all
//! callers must be one that can be cloned:
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use steadfast::{CallError, Pipeline, call::idempotent, coalesce::Coalesce};
//! use steadfast::{retry::{Retry, RetryConfig}, timeout::Timeout};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), steadfast::ConfigError> {
//! # async fn fetch(_: String) -> Result<u32, std::io::Error> { Ok(117) }
//! type Shared = Result<u32, Arc<CallError<std::io::Error>>>;
//!
//! let retry = Retry::new(RetryConfig::interactive())?;
//! let pipeline = Pipeline::new().then(Timeout::new(Duration::from_secs(2))).then(retry);
//! let prices: Coalesce<String, Shared> = Coalesce::new();
//! let ask = async move { pipeline.call(idempotent(|| fetch("eur".into()))).await };
//! let price = prices.run("eur", || async move { ask.await.map_err(Arc::new) }).await;
//! assert!(matches!(price, Ok(Ok(117))));
//! # Ok(())
//! # }
//! ```
//!
//! If the coalescing is inside the pipeline instead, k callers make k calls of the pipeline, and a
//! breaker records one failure k times. A time-out around [`run`](Coalesce::run) ends the wait of
//! one caller, not the work of the others. So the deadline of the first caller is not passed to the
//! work: give the work a time-out of its own.
//!
//! # Guarantees
//!
//! 1. At most one execution per key runs at a time, and its result goes to all callers that asked
//!    for the key meanwhile.
//! 2. A waiting caller is polled twice, however often the work is polled.
//! 3. If the driving caller is dropped, a waiting caller continues the same execution.
//! 4. If the last caller is dropped, the work is dropped, or with
//!    [`finishing`](Coalesce::finishing) handed over to be finished.
//! 5. A panic ends one execution. The next caller of the key starts a new one.
//! 6. Work that asks for its own key in its own task is refused; it does not wait for itself.
//!
//! # Cancel safety
//!
//! A dropped caller takes nothing from the others. The last one drops the work, or with
//! [`finishing`](Coalesce::finishing) leaves it to the background.
//!
//! # Events
//!
//! None. [`under_way`](Coalesce::under_way) returns the number of running executions.
//!
//! # Pitfalls
//!
//! - An error is a result and goes to all callers: let `T` be a `Result` whose error can be cloned,
//!   for example an `Arc` around it.
//! - The work outlives the caller that created it, so it must own what it needs.
//! - Work that asks for its own key is refused ([`Lost::OwnKey`]). Two executions that wait for
//!   each other's keys are not detected.
//! - A driver that is neither polled nor dropped delays the other callers: do not keep a half-done
//!   `run` aside while you wait for something else.
//!
//! # Source
//!
//! `singleflight` of Go's `golang.org/x/sync`; "collapsed forwarding" of HTTP caches (Squid,
//! Varnish).
mod policy;

pub use policy::{Coalesce, Lost};
