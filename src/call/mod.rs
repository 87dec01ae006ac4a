//! Calls: an operation, the policies around it, and the pipeline that composes them.
//!
//! An [`Operation`] is any `FnMut() -> Future<Output = Result<T, E>>`, which may borrow, or a type
//! of your own. A [`Policy`] stands around it. It sees an [`Attempt`] and its verdict, never `T` or
//! `E`, so one pipeline serves operations of any type. Neither boxes nor allocates.
//!
//! ```
//! use std::time::Duration;
//! use steadfast::{Pipeline, call::idempotent, retry::{Retry, RetryConfig}, timeout::Timeout};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! let pipeline = Pipeline::new()
//!     .then(Timeout::new(Duration::from_secs(2)))
//!     .then(Retry::new(RetryConfig::default()).unwrap());
//! let name = String::from("steadfast");
//! // A retry repeats what is marked, and anything else only if it surely was not sent.
//! let length = pipeline.call(idempotent(|| async { Ok::<_, std::io::Error>(name.len()) })).await;
//! assert_eq!(length.unwrap(), 9);
//! # });
//! ```
//!
//! # In a field
//!
//! The type of a pipeline names each policy. A struct holds it as a [`BoxedPipeline`], whose type
//! names only the result, or as a [`StandardPipeline`](crate::standard::StandardPipeline), which
//! serves results of any type and takes [longer to compile](crate::standard#boxed-or-not):
//!
//! ```
//! use std::{io, time::Duration};
//! use steadfast::{
//!     BoxedPipeline, Pipeline,
//!     standard::{Standard, StandardPipeline},
//!     timeout::Timeout,
//! };
//!
//! struct Prices { calls: BoxedPipeline<u32, io::Error> } // results of one type
//! struct Client { calls: StandardPipeline } //              results of any type, and no box
//!
//! # fn main() -> Result<(), steadfast::ConfigError> {
//! let pipeline = Pipeline::new().then(Timeout::new(Duration::from_secs(2)));
//! let prices = Prices { calls: pipeline.into() };
//! let client = Client { calls: Standard::new(Default::default())?.into_pipeline() };
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! assert_eq!(prices.calls.call(async || Ok(117)).await.unwrap(), 117);
//! assert_eq!(client.calls.call(async || Ok::<_, io::Error>("any")).await.unwrap(), "any");
//! # });
//! # Ok(())
//! # }
//! ```
//!
//! A layer around a trait, whose methods return many types, holds the policies and composes them in
//! each call: a policy can be borrowed, and a pipeline of borrowed policies costs nothing.
//!
//! ```
//! use std::io::{Error, ErrorKind};
//! use steadfast::{
//!     CallError, Pipeline,
//!     call::{Operation, idempotent},
//!     retry::{Retry, RetryConfig},
//! };
//!
//! struct Retrying<S> { inner: S, retry: Retry }
//!
//! impl<S> Retrying<S> {
//!     async fn call<T: Send, O>(&self, operation: O) -> Result<T, Error>
//!     where
//!         O: Operation<Output = T, Error = Error>,
//!     {
//!         let pipeline = Pipeline::new()
//!             .then(&self.retry)
//!             .retry_if(|error: &Error| error.kind() != ErrorKind::NotFound);
//!         let own = |error: CallError<_>| error.into_operation().unwrap_or_else(Error::other);
//!         pipeline.call(operation).await.map_err(own)
//!     }
//! }
//!
//! # struct Files;
//! # impl Files {
//! #     async fn read(&self, path: &str) -> Result<String, Error> { Ok(path.into()) }
//! #     async fn size(&self, path: &str) -> Result<usize, Error> { Ok(path.len()) }
//! # }
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! let retry = Retry::new(RetryConfig::default()).unwrap();
//! let files = Retrying { inner: Files, retry };
//! assert_eq!(files.call(idempotent(|| files.inner.read("a"))).await.unwrap(), "a");
//! assert_eq!(files.call(idempotent(|| files.inner.size("a"))).await.unwrap(), 1);
//! # });
//! ```
//!
//! # State across attempts
//!
//! A closure that captures `&mut` state is no operation, and the compiler says "captured variable
//! cannot escape `FnMut` closure body": the closure may run again while the future of an earlier
//! run exists, so that future cannot borrow what the closure borrows mutably. There are these ways:
//!
//! | state | way |
//! |---|---|
//! | `&mut` of the caller, say a connection or a transaction | [`with_state`]`(&mut state, async \|state\| ..)` |
//! | a value of its own for each attempt, say a request | a clone in the closure: `\|\| send(request.clone())` |
//! | a counter, or a small value | an atomic, or a [`Cell`](std::cell::Cell) with [`call_local`](Pipeline::call_local) |
//! | shared with other tasks | a mutex: `tokio`'s if it is held across an `.await` |
//! | anything, with methods of the operation such as a priority | a type that implements [`Operation`] |
//!
//! ```
//! use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
//! use steadfast::{Pipeline, call::with_state};
//!
//! # async fn send(to: &mut Vec<u8>, request: String) -> Result<(), std::io::Error> {
//! #     to.extend(request.into_bytes());
//! #     Ok(())
//! # }
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! let (pipeline, request) = (Pipeline::new(), String::from("hello"));
//! let (mut connection, sent) = (Vec::new(), AtomicU32::new(0));
//!
//! let call = with_state(&mut connection, async |connection| {
//!     sent.fetch_add(1, Relaxed);
//!     send(connection, request.clone()).await
//! });
//! pipeline.call(call).await.unwrap();
//! assert_eq!((connection, sent.into_inner()), (b"hello".to_vec(), 1));
//! # });
//! ```
//!
//! # Mistakes
//!
//! | message of the compiler | write |
//! |---|---|
//! | "is not an operation", for a future | a closure that makes it: `\|\| async { .. }`, since a retry makes another |
//! | "is not a future" | [`call_blocking`](Pipeline::call_blocking), and [`on_retry_blocking`] for its hook |
//! | "cannot be sent between threads safely", "cannot be shared" | [`call_local`](Pipeline::call_local), and [`on_retry_local`] for its hook |
//! | "async closure does not implement `FnMut`", "captured variable cannot escape `FnMut`" | [`with_state`], or another [way](#state-across-attempts) |
//! | "`Operation` is not dyn compatible" | `Box<dyn FnMut() -> Pin<Box<dyn Future<Output = Result<T, E>> + Send>> + Send>`, which is an operation |
//!
//! # Code that is not async
//!
//! A thread that runs no tasks has the same policies. [`Pipeline::call_blocking`] runs an operation
//! `FnMut() -> Result<T, E>` on the calling thread, which waits between attempts and for permits.
//! It needs no runtime, and neither the operation nor its result need be `Send`. The marks
//! ([`idempotent`], [`named`], [`with_priority`]) hold for it, and each policy has `call_blocking`
//! beside `call`. For all else that is async in this crate there is
//! [`time::block_on`](crate::time::block_on).
//!
//! ```
//! use std::{fs, time::Duration};
//! use steadfast::{
//!     Pipeline,
//!     call::idempotent,
//!     circuit_breaker::{CircuitBreaker, CircuitBreakerConfig},
//!     retry::{Retry, RetryConfig},
//!     throttling::{Quota, RateLimitConfig, RateLimiter},
//! };
//!
//! // At most 100 reads a second; a read waits for its turn, for up to a second.
//! let rate = RateLimitConfig::from(Quota::per_second(100)).max_wait(Duration::from_secs(1));
//! let disk = Pipeline::new()
//!     .then(RateLimiter::new(rate).unwrap())
//!     .then(Retry::new(RetryConfig::default()).unwrap())
//!     .then(CircuitBreaker::new(CircuitBreakerConfig::default()).unwrap());
//! let manifest = disk.call_blocking(idempotent(|| fs::read_to_string("Cargo.toml"))).unwrap();
//! assert!(manifest.starts_with("[package]"));
//! ```
//!
//! Code that blocks cannot be interrupted. A [`Timeout`](crate::timeout::Timeout) bounds the waits
//! between the attempts, and its deadline reaches the operation through
//! [`call_blocking_with`](Pipeline::call_blocking_with). A result that comes too late is still the
//! result; a failure that comes too late is not repeated. The time in which an operation blocks
//! counts: into a time-out, a retry's `max_elapsed`, and a breaker's rule for slow calls.
//!
//! A test of such code drives its thread by
//! [`ManualClock::run_blocking`](crate::time::ManualClock::run_blocking), and no delay takes time.
//!
//! Log each retry with its error and its delay: [`on_retry`] hooks one call,
//! [`Pipeline::on_retry`] all calls of a pipeline. [`with_last_failure`] shows the failure to the
//! next attempt.
//!
//! ```
//! use steadfast::{call::on_retry, retry::{Retry, RetryConfig}};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! let retry = Retry::new(RetryConfig::default()).unwrap();
//! let read = || async { Ok::<_, std::io::Error>(9) };
//! let answer = retry.call(on_retry(read, |retrying| eprintln!("{retrying}"))).await;
//! assert_eq!(answer.unwrap(), 9);
//! # });
//! ```
//!
//! # Guarantees
//!
//! 1. Policies run in the order in which they were added, the first one outermost. One pipeline
//!    serves operations of any value and error type, which may borrow. The future of a call is
//!    `Send` if the operation's is.
//! 2. Clones of a pipeline, and pipelines that use the same policy, share its state. A boxed or
//!    traced pipeline behaves as the plain one.
//! 3. [`explain`](Pipeline::explain) lists the policies in order, with warnings about their
//!    settings.
//! 4. A call that succeeds allocates nothing; through a [`BoxedPipeline`] it makes two allocations,
//!    and through a [standard stack](crate::standard) inside another one it makes one.
//! 5. If a call is dropped at any `.await`, or panics, all permits are returned. A dropped call
//!    counts as neither success nor failure.
//! 6. The error is flat: its shape does not depend on the policies or on their order. All policies
//!    read the same verdict.
//! 7. Rejections, idempotence marks, deadlines and budgets stay in force in pipelines that are
//!    entered by [`call_within`](Pipeline::call_within).
//! 8. With [`error_for_value`](Pipeline::error_for_value) a value that was judged a failure is
//!    returned as the closure's error, through every method that makes a call. Kind, hint and
//!    number of attempts stay.
//! 9. A predicate, [`retry_if`](Pipeline::retry_if) or [`fail_when`](Pipeline::fail_when), decides
//!    for all policies.
//! 10. A call that blocks needs no runtime, and allocates nothing if it succeeds without a wait.
//!     The time in which its operation blocks counts into the deadline. A result after the deadline
//!     is the call's result.
//! 11. A blocked thread misses no wake-up, by another thread or by a timer. A wait that it shares
//!     with other callers goes on when it returns, also by a panic.
pub(crate) mod alone;
mod attempt;
mod blocking;
mod boxed;
mod cold;
mod context;
mod deadline;
mod erased;
mod explain;
mod fork;
mod local;
mod marks;
mod nested;
mod on_retry;
mod operation;
mod pipeline;
mod policy;
mod refine;
mod repeats;
mod run;
mod state;
mod switch;
mod traced;
mod with_fallback;
mod with_state;

pub use attempt::Attempt;
pub(crate) use attempt::AttemptInternals;
pub use blocking::{BlockingOperation, on_retry_blocking};
pub(crate) use blocking::{blocking_door, call_alone_blocking, call_alone_blocking_or};
pub use boxed::BoxedPipeline;
pub(crate) use cold::{Cold, boxed, boxed_in_place};
pub(crate) use context::Frame;
pub use context::{AttemptInfo, CallContext, OperationName};
pub(crate) use deadline::{Deadline, Timed};
pub use explain::{Explanation, Layer};
pub(crate) use fork::{Fork, Forks};
pub use local::{LocalOperation, on_retry_local};
pub use marks::{Idempotent, Named, NotIdempotent, Prioritized, idempotent, named, not_idempotent, with_priority};
pub(crate) use nested::Nested;
pub use on_retry::{OnRetry, WithLastFailure, on_retry, with_last_failure};
pub(crate) use operation::as_inside;
pub use operation::{Operation, WithAttempt};
pub use pipeline::Pipeline;
pub(crate) use policy::Either;
pub use policy::{Identity, Policy};
pub(crate) use repeats::Repeats;
pub(crate) use run::{call_alone, call_alone_or, call_alone_or_marked};
pub(crate) use state::CallState;
pub use switch::Switch;
pub use with_fallback::{Answer, Answered, Failed};
pub(crate) use with_fallback::{FALL_BACK_ON, FellBack};
pub use with_state::{WithState, with_state};
