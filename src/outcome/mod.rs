//! What came of a call: the verdict that every policy reads, and the one flat error that the caller gets.
//!
//! A [`Classify`] gives the [`Verdict`] once, where the operation ends; retry, breaker, limiter and the rest all read that
//! same verdict, so they cannot disagree about what a failure is. The value itself they never see.
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
mod classify;
mod error;
mod kind;
mod rejected;
mod verdict;

pub use classify::{Classify, ErrIsFailure};
pub use error::{CallError, Cause, History, Stop, TimedOut};
pub use kind::{FailureKind, KindSet};
pub use rejected::{PolicyKind, Reason, Rejected, TripRule};
pub use verdict::{Class, Hint, Verdict};

/// What one attempt came to, as policies hand it outwards: a verdict they read, a value they never touch.
#[derive(Debug)]
pub struct Outcome<T, E> {
    pub(crate) result: Result<T, Cause<E>>,
    pub(crate) verdict: Verdict,
    pub(crate) history: Option<Box<History<E>>>,
}

impl<T, E> Outcome<T, E> {
    /// The operation came back with `result`, judged as `verdict`.
    #[inline]
    pub fn answered(result: Result<T, E>, verdict: Verdict) -> Self {
        Self { result: result.map_err(Cause::Operation), verdict, history: None }
    }

    /// A policy refused to run the operation. Rejections are nobody's failure: the verdict is [`Class::Ignore`].
    #[inline]
    pub fn rejected(rejected: Rejected) -> Self {
        Self { result: Err(Cause::Rejected(rejected)), verdict: Verdict::ignore(), history: None }
    }

    /// A time-out dropped the operation. The verdict is a failure of kind [`FailureKind::Timeout`].
    pub fn timed_out(timed_out: TimedOut) -> Self {
        let verdict = Verdict::failure(FailureKind::Timeout);
        Self { result: Err(Cause::TimedOut(timed_out)), verdict, history: None }
    }

    /// What it was judged to be.
    #[inline]
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Why a policy of this crate refused to run the operation, if one did.
    #[inline]
    pub fn rejection(&self) -> Option<&Rejected> {
        match &self.result {
            Err(Cause::Rejected(rejected)) => Some(rejected),
            _ => None,
        }
    }
}
