//! HTTP and gRPC at the edges of a call: answers judged, hints read, refusals and deadlines as headers. By feature `http`.
//!
//! # When, and when not
//!
//! Where the operation is an HTTP or gRPC call, as the one classifier of its pipeline; and in a service, to say by its answers what
//! a policy refused. Not for judging what a body says: a classifier sees status and headers. Judge the body in the operation, and give
//! an error of your own.
//!
//! # Defaults
//!
//! [`ByStatus`] judges so:
//!
//! | status | verdict | why |
//! |---|---|---|
//! | below 400 | success | |
//! | 408, 504 | `timeout` | nobody knows whether the work was done |
//! | 429 | `throttled` | this caller shall slow down |
//! | 503, 529 | `overloaded` | the other side is busy with everybody |
//! | 501, 505, all other 4xx | `client` | an answer: the other side is well, and asking again would not help |
//! | all other 5xx | `server` | |
//! | 600 and more | `other` | |
//! | no answer at all | `other`, or what [`ByStatus::errors`] says | |
//!
//! With [`ByStatus::grpc`] the header `grpc-status` decides as well; a status that comes in trailers, after the body, is for
//! [`grpc_verdict`]. [`GrpcCode::kind`] has that table.
//!
//! A failure's hint is read once, here, and every policy may read it. A retry waits for it, a breaker opens by it, a hedge stops, and a rate limit
//! and an adaptive limit pause:
//!
//! | header | read as |
//! |---|---|
//! | `retry-after` | seconds, also with a fraction, or a date; a date that is past is no wait |
//! | `retry-after-ms`, `x-ms-retry-after-ms` | milliseconds |
//! | `ratelimit`, `ratelimit-*`, `x-ratelimit-*` | with nothing remaining, the time to the reset: [`RateLimit`] |
//! | `grpc-retry-pushback-ms` | milliseconds; negative or unreadable: not at all |
//!
//! A date is measured against the answer's own `date`, where it has one, so that two clocks that disagree do no harm; else against
//! wall time. Of several values the longest holds. What cannot be read is not there. No wait is longer than [`LONGEST_HINT`]. A 503
//! that asks for a minute or more says that [it will be away](crate::Hint::UnavailableFor): a breaker opens on it at once, for that long.
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//! use http::Response;
//! use steadfast::{Pipeline, http::ByStatus, retry::{Retry, RetryConfig}, time::Clock};
//!
//! let (clock, hand) = Clock::manual();
//! let pipeline = Pipeline::new()
//!     .then(Retry::new(RetryConfig::default().idempotent(true)).unwrap().with_clock(&clock)) // reads only
//!     .classify(ByStatus::new());
//!
//! let started = hand.now();
//! let mut answers = [Response::builder().status(503).header("retry-after", "7").body(()), Response::builder().body(())].into_iter();
//! let answer = hand.block_on(pipeline.call(|| std::future::ready(answers.next().unwrap()))).unwrap();
//! assert_eq!(answer.status(), 200);
//! assert!(hand.now() - started >= Duration::from_secs(7)); // never less than asked for
//! ```
//!
//! # Composing
//!
//! The other way round, a refusal becomes an answer: [`answer`] makes 429 or 503 with `retry-after`, and 504 of a time-out.
//! [`deadline`] writes what is left of a call's time into a header, and reads it on the other side.
//!
//! Of errors, only what the client itself calls a connect error is of kind `connect`, and so repeated where an operation must not run
//! twice. An [`std::io::ErrorKind`] proves nothing: see [`kind_by_source`].
//!
//! Feature `reqwest`: the classifier judges `reqwest`'s answers and errors as well. Feature `tonic`: [`ByGrpc`] judges `tonic::Status`,
//! and a refusal becomes one.
//!
//! # Cancel safety
//!
//! Nothing here waits.
//!
//! # Events
//!
//! None: policies tell what they make of a verdict.
//!
//! # Considerations
//!
//! Throttling 3: a refusal is a specific, recognisable error with a time to come back: [`refusal`]. (default)
//! Circuit breaker 9: a fault that says "not for some minutes" opens it at once, for that long. (default)
//! Retry 9: the delay goes by the kind of fault, and by what the server asks. (default)
//!
//! # Pitfalls
//!
//! An `Ok` answer that is judged a failure is still `Ok` when the attempts are used up: the caller gets the 503, and must look at its
//! status. A body that breaks off after the headers is no part of a call that gives the response: read the body inside the operation
//! where that shall count. A hint is the word of a stranger: [`RetryConfig::max_hint`](crate::retry::RetryConfig::max_hint) bounds
//! what a retry waits for, the breaker's `open.max_hint` for how long it opens, and the limits' `max_hint` for how long they pause.
//!
//! # Source
//!
//! RFC 9110 (status, `retry-after`), RFC 6585 (429), the IETF's draft "RateLimit header fields for HTTP" in its forms from -03 to -10.
//! gRPC over HTTP/2 (`grpc-status`, `grpc-timeout`) and gRPC proposal A6 (push-back).
mod answer;
#[cfg(feature = "reqwest")]
mod by_reqwest;
#[cfg(feature = "tonic")]
mod by_tonic;
mod classify;
pub mod deadline;
mod grpc;
mod hints;
mod number;
mod rate_limit;
mod source;
mod status;

pub use answer::{answer, refusal, retry_after_value, status_of};
#[cfg(feature = "reqwest")]
pub use by_reqwest::reqwest_error;
#[cfg(feature = "tonic")]
pub use by_tonic::{ByGrpc, grpc_status};
pub use classify::{AnyError, ByStatus, JudgeError};
pub use grpc::{GrpcCode, grpc_verdict};
pub use hints::{LONGEST_HINT, retry_after};
pub use rate_limit::RateLimit;
pub use source::kind_by_source;
pub use status::kind_of;
