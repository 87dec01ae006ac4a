//! Outcomes of calls: the verdict that every policy reads, and the flat error that the caller gets.
//!
//! A [`Classify`] gives the [`Verdict`] once, where the operation ends. Retry, breaker, limiter and
//! all other policies read that verdict, so they cannot disagree about what a failure is. They
//! never see the value itself.
//!
//! ```
//! use steadfast::{FailureKind, Verdict};
//!
//! fn judge(answer: &Result<u16, std::io::Error>) -> Verdict {
//!     match answer {
//!         Ok(503) => Verdict::failure(FailureKind::Overloaded),
//!         Ok(_) => Verdict::success(),
//!         Err(_) => Verdict::failure(FailureKind::Connect),
//!     }
//! }
//! assert!(judge(&Ok(503)).is_failure());
//! ```
//!
//! # Errors and `?`
//!
//! A service has one error type of its own, with one variant for each error of an operation and one
//! for a [`PolicyError`]. One implementation of [`From`] serves the calls of all operations whose
//! errors convert to it:
//!
//! ```
//! use std::{io, num::ParseIntError, time::Duration};
//! use steadfast::{CallError, Pipeline, PolicyError, timeout::Timeout};
//!
//! #[derive(Debug, thiserror::Error)]
//! enum AppError {
//!     #[error("unreadable")]
//!     Io(#[from] io::Error),
//!     #[error("not a number")]
//!     Parse(#[from] ParseIntError),
//!     #[error(transparent)]
//!     Policy(PolicyError), // rejected or timed out
//! }
//!
//! impl<E: Into<AppError>> From<CallError<E>> for AppError {
//!     fn from(error: CallError<E>) -> Self {
//!         error.into_operation().map_or_else(AppError::Policy, E::into)
//!     }
//! }
//!
//! async fn price() -> Result<u32, AppError> {
//!     let pipeline = Pipeline::new().then(Timeout::new(Duration::from_secs(1)));
//!     let text = pipeline.call(async || Ok::<_, io::Error>("seven")).await?;
//!     let price = pipeline.call(async || text.parse::<u32>()).await?;
//!     let taxed = async || Ok::<_, AppError>(price * 2); // the service's own error already
//!     Ok(pipeline.call(taxed).await?)
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! assert!(matches!(price().await, Err(AppError::Parse(_))));
//! # });
//! ```
//!
//! A pipeline inside another one fails with a [`CallError`] of a [`CallError`]. The implementation
//! above converts it as well, and [`CallError::flatten`] makes one error of both. With feature
//! `http`, `http::policy_answer` makes an HTTP response of a [`PolicyError`].
//!
//! A [`CallError`] is a standard [`Error`](std::error::Error) if the operation's error is one: `?`
//! converts it to `anyhow::Error` or to a `Box<dyn Error>`, and the chain of sources continues with
//! the source of the operation's error. An operation that itself fails with `anyhow::Error` or
//! `Box<dyn Error + Send + Sync>` needs one word more, because these types are no standard errors:
//! `.map_err(CallError::into_std)?`, see [`CallError::into_std`].
mod classify;
mod error;
mod kind;
mod parts;
mod policy_error;
mod priority;
mod refine;
mod rejected;
mod retrying;
mod verdict;

pub use classify::{ByCallError, Classify, ErrIsFailure};
pub use error::{CallError, Cause, History, StopReason, TimedOut};
pub use kind::{FailureKind, KindSet};
pub use parts::{CallErrorParts, DynError};
pub use policy_error::PolicyError;
pub use priority::Priority;
pub use refine::{ErrorForValue, FailWhen, RetryIf};
pub use rejected::{PolicyKind, Reason, Rejected, TripRule};
pub(crate) use retrying::NextAttempt;
pub use retrying::{LastFailure, Retrying};
pub use verdict::{Class, Hint, Verdict};

/// The outcome of one attempt, as policies return it: 8 bytes, without the value.
///
/// The value, the error, a rejection and the server's hint stay where the operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The operation ran, and the classifier judged its result.
    Judged(Class),
    /// A policy rejected the call before the operation ran. A rejection is not a failure: no policy
    /// counts it.
    Rejected,
}

impl Outcome {
    /// Returns the class of the verdict; [`Class::Ignore`] for a rejection.
    #[inline]
    pub const fn class(self) -> Class {
        match self {
            Self::Judged(class) => class,
            Self::Rejected => Class::Ignore,
        }
    }

    /// Returns `true` if the outcome is a failure.
    #[inline]
    pub const fn is_failure(self) -> bool {
        matches!(self, Self::Judged(Class::Failure { .. }))
    }

    /// Returns the kind of failure, if the outcome is one.
    #[inline]
    pub const fn kind(self) -> Option<FailureKind> {
        match self {
            Self::Judged(Class::Failure { kind, .. }) => Some(kind),
            _ => None,
        }
    }
}
