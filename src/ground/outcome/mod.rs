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
mod priority;
mod rejected;
mod verdict;

pub use classify::{ByCallError, Classify, ErrIsFailure};
pub use error::{CallError, Cause, History, Stop, TimedOut};
pub use kind::{FailureKind, KindSet};
pub use priority::Priority;
pub use rejected::{PolicyKind, Reason, Rejected, TripRule};
pub use verdict::{Class, Hint, Verdict};

/// What one attempt came to, as policies hand it outwards: 8 bytes, of which nothing is the value.
///
/// The value, the error, a refusal and the server's hint stay where the operation ended; a policy that needs to know more asks
/// the attempt's [`Ledger`](crate::call::Ledger).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The operation was run, and judged.
    Judged(Class),
    /// A policy refused to run the operation. That is nobody's failure: no policy counts it.
    Rejected,
}

impl Outcome {
    /// What it was judged to be; [`Class::Ignore`] for a refusal.
    #[inline]
    pub const fn class(self) -> Class {
        match self {
            Self::Judged(class) => class,
            Self::Rejected => Class::Ignore,
        }
    }

    /// Whether it is a failure.
    #[inline]
    pub const fn is_failure(self) -> bool {
        matches!(self, Self::Judged(Class::Failure { .. }))
    }

    /// The kind of failure, if it is one.
    #[inline]
    pub const fn kind(self) -> Option<FailureKind> {
        match self {
            Self::Judged(Class::Failure { kind, .. }) => Some(kind),
            _ => None,
        }
    }
}
