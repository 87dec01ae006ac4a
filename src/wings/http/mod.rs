//! HTTP and gRPC at the edges of a call: classifiers of responses, hints from headers, rejections
//! as responses, deadlines as headers. Enabled by feature `http`.
//!
//! # When, and when not
//!
//! As the classifier of a pipeline whose operation is an HTTP or gRPC call, and in a service that
//! turns rejections of its policies into responses. Not for judging bodies: a classifier sees
//! status and headers only. Judge the body inside the operation, and return an error of your own.
//!
//! # Defaults
//!
//! [`ByStatus`] judges by this table:
//!
//! | status | verdict | why |
//! |---|---|---|
//! | below 400 | success | |
//! | 408, 504 | `timeout` | whether the work was done is unknown |
//! | 429 | `throttled` | this caller must slow down |
//! | 503, 529 | `overloaded` | the server is overloaded by all its callers |
//! | 501, 505, all other 4xx | `client` | the server is healthy, and a retry would not help |
//! | all other 5xx | `server` | |
//! | 600 and more | `other` | |
//! | no response | `other`, or the verdict of [`ByStatus::errors`] | |
//!
//! With [`ByStatus::grpc`] the header `grpc-status` is judged as well. A status in trailers, after
//! the body, is judged by [`grpc_verdict`]. The table of the codes is at [`GrpcCode::kind`].
//!
//! The hint of a failure is read once, here, for all policies: a retry waits for it, a breaker
//! opens for its duration, a hedge starts no further attempt, a rate limit and an adaptive limit
//! pause.
//!
//! | header | read as |
//! |---|---|
//! | `retry-after` | seconds, also with a fraction, or a date; a past date is no wait |
//! | `retry-after-ms`, `x-ms-retry-after-ms` | milliseconds |
//! | `ratelimit`, `ratelimit-*`, `x-ratelimit-*` | the time to the reset if nothing remains: [`RateLimit`] |
//! | `grpc-retry-pushback-ms` | milliseconds; negative or unreadable: do not retry |
//!
//! A date is measured against the response's own `date`, so that different clocks do no harm;
//! without one, against wall time. Of several values the longest counts. An unreadable value counts
//! as absent. No wait exceeds [`LONGEST_HINT`]. A 503 with a wait of a minute or more means that
//! [the service is away](crate::Hint::UnavailableFor): a breaker opens at once, for that duration.
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//! use http::Response;
//! use steadfast::{Pipeline, http::ByStatus, retry::{Retry, RetryConfig}, time::Clock};
//!
//! let (clock, time) = Clock::manual();
//! // Reads only, which may be repeated.
//! let reads = RetryConfig::default().idempotent(true);
//! let pipeline = Pipeline::new()
//!     .then(Retry::builder(reads).clock(&clock).build().unwrap())
//!     .classify(ByStatus::new());
//!
//! let started = time.now();
//! let busy = Response::builder().status(503).header("retry-after", "7").body(());
//! let mut answers = [busy, Response::builder().body(())].into_iter();
//! let call = pipeline.call(|| std::future::ready(answers.next().unwrap()));
//! let answer = time.block_on(call).unwrap();
//! assert_eq!(answer.status(), 200);
//! assert!(time.now() - started >= Duration::from_secs(7)); // never less than the header asks for
//! ```
//!
//! A response that is judged a failure is still an `Ok` after the last attempt. With
//! [`error_for_value`](crate::Pipeline::error_for_value) it is the client's error, or one of your
//! own. The service then converts the error of each call by one implementation, as
//! [the page of errors](crate::outcome) shows, and no call matches on a status:
//!
//! ```
//! # #[cfg(feature = "reqwest")] {
//! use std::time::Duration;
//! use reqwest::{Client, Response};
//! use steadfast::{
//!     BoxedPipeline, CallError, Pipeline, PolicyError, http::ByStatus, timeout::Timeout,
//! };
//!
//! #[derive(Debug)]
//! enum AppError {
//!     Http(reqwest::Error), // no response, or one that was judged a failure: `status()` tells
//!     Policy(PolicyError), //  rejected or timed out
//! }
//!
//! impl From<CallError<reqwest::Error>> for AppError {
//!     fn from(error: CallError<reqwest::Error>) -> Self {
//!         error.into_operation().map_or_else(AppError::Policy, AppError::Http)
//!     }
//! }
//!
//! struct Prices { client: Client, calls: BoxedPipeline<Response, reqwest::Error> }
//!
//! impl Prices {
//!     fn new() -> Self {
//!         let calls = Pipeline::new()
//!             .then(Timeout::new(Duration::from_secs(2)))
//!             .classify(ByStatus::new())
//!             .error_for_value(Response::error_for_status);
//!         Self { client: Client::new(), calls: calls.boxed() }
//!     }
//!
//!     async fn of(&self, url: &str) -> Result<String, AppError> {
//!         let answer = self.calls.call(|| self.client.get(url).send()).await?; // never a 503
//!         answer.text().await.map_err(AppError::Http)
//!     }
//! }
//! # }
//! ```
//!
//! The hint of the response stays in the [`CallError`](crate::CallError):
//! [`retry_after`](crate::CallError::retry_after) returns the time that a 503 asked for. An error
//! of your own is made of the response by a closure, for each type of response of the `http` crate:
//!
//! ```
//! use http::{Response, StatusCode};
//! use steadfast::{CallError, Pipeline, http::ByStatus, time::Clock};
//!
//! #[derive(Debug, PartialEq)]
//! enum ApiError { Busy, Status(StatusCode) }
//!
//! let api = Pipeline::new().classify(ByStatus::new());
//! let api = api.error_for_value(|answer: Response<Vec<u8>>| Err(match answer.status() {
//!     StatusCode::SERVICE_UNAVAILABLE => ApiError::Busy,
//!     status => ApiError::Status(status),
//! }));
//! let response = Response::builder().status(503).header("retry-after", 7).body(vec![]).unwrap();
//! let busy = || async { Ok(response.clone()) };
//! let (_, time) = Clock::manual();
//! let error: CallError<ApiError> = time.block_on(api.call(busy)).unwrap_err();
//! assert_eq!(error.retry_after(), Some(std::time::Duration::from_secs(7)));
//! assert_eq!(error.into_operation(), Ok(ApiError::Busy));
//! ```
//!
//! # Composing
//!
//! In the other direction [`answer`] makes a response of a [`CallError`](crate::CallError): 429 or
//! 503 with `retry-after` for a rejection, 504 for a time-out. [`policy_answer`] makes one of the
//! [`PolicyError`](crate::PolicyError) that a service's own error holds. [`deadline`] writes the
//! remaining time of a call into a header, and reads it on the other side.
//!
//! With feature `jwt`, `bearer` takes the token of a request for a
//! `federated_identity::TokenVerifier`, and `token_answer` makes a response of its refusal.
//!
//! [`strict_path`] refuses paths that two programs might read differently.
//!
//! For a [conditional refresh](crate::cache_aside::CacheAside::get_or_refresh) of a cache,
//! [`validator_of`] reads `etag` and `last-modified` of a response, and [`make_conditional`]
//! repeats them in the next request.
//!
//! Only an error that the client itself calls a connect error is of kind `connect`, and is
//! therefore retried for operations that must not run twice. An [`std::io::ErrorKind`] proves
//! nothing: see [`kind_by_source`]. Nor does a connect error of a client that follows redirects:
//! after a 303 the first server has done its work. With feature `reqwest`, build the client with
//! `redirect::Policy::none()` and say so by [`ByStatus::without_redirects`]; otherwise its connect
//! errors are of kind `other`, and are repeated only for operations that may run twice.
//!
//! With feature `reqwest`, the classifier also judges `reqwest`'s responses and errors. With
//! feature `tonic`, [`ByGrpc`] judges `tonic::Status`, and a rejection becomes one.
//!
//! # Cancel safety
//!
//! Nothing here waits.
//!
//! # Events
//!
//! None: each policy reports what it does with a verdict.
//!
//! # Pitfalls
//!
//! Without [`error_for_value`](crate::Pipeline::error_for_value) an `Ok` response that is judged a
//! failure is still `Ok` after the last attempt: the caller gets the 503 and must check its status.
//! A call that returns the response ends with the headers: time-outs, retries and the breaker do
//! not see its body. If that must end in time, or if a broken one must count as a failure, read it
//! inside the operation and return an `http::Response` of the text, judged by
//! [`ByStatus::errors`]: the [first steps](crate::_docs::first_steps) show it. A hint comes from an
//! untrusted server:
//! [`RetryConfig::max_hint`](crate::retry::RetryConfig::max_hint) bounds the wait of a retry, the
//! breaker's `open.max_hint` its open time, and the limits' `max_hint` their pause.
//!
//! # Source
//!
//! RFC 9110 (status, `retry-after`, validators), RFC 6585 (429), the IETF's draft "RateLimit header
//! fields for HTTP" in its forms from -03 to -10. gRPC over HTTP/2 (`grpc-status`, `grpc-timeout`)
//! and gRPC proposal A6 (push-back).
mod answer;
#[cfg(feature = "jwt")]
mod bearer;
#[cfg(feature = "reqwest")]
mod by_reqwest;
#[cfg(feature = "tonic")]
mod by_tonic;
mod classify;
mod conditional;
pub mod deadline;
mod grpc;
mod hints;
mod number;
mod rate_limit;
mod source;
mod status;

pub use answer::{answer, policy_answer, refusal, retry_after_value, status_of};
#[cfg(feature = "jwt")]
pub use bearer::{bearer, token_answer};
#[cfg(feature = "reqwest")]
pub use by_reqwest::reqwest_error;
#[cfg(feature = "tonic")]
pub use by_tonic::{ByGrpc, grpc_status};
pub use classify::{AnyError, ByStatus, JudgeError};
pub use conditional::{make_conditional, validator_of};
pub use grpc::{GrpcCode, grpc_verdict};
pub use hints::{LONGEST_HINT, retry_after};
pub use rate_limit::RateLimit;
pub use source::kind_by_source;
pub use status::kind_of;

pub use crate::strict_path::{BadPath, strict_path};
