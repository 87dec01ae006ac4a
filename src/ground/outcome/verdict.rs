//! The verdict on one attempt, with what the server said about trying again.
use std::time::Duration;

use super::{FailureKind, Outcome};

/// Success, failure, or neither.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// It worked.
    Success,
    /// It failed.
    Failure {
        /// In which way.
        kind: FailureKind,
        /// How much it counts for under a breaker's rule of weighted failures.
        weight: u32,
    },
    /// Neither: it changes no counter, and gives back whatever it held.
    Ignore,
}

/// What the other side said about calling it again, read once. Retry, breaker, hedge, rate limit and adaptive limit
/// act on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Hint {
    /// Nothing.
    #[default]
    None,
    /// Not before this long has passed (HTTP `Retry-After`, gRPC push-back).
    RetryAfter(Duration),
    /// Not at all (gRPC's negative push-back).
    DoNotRetry,
    /// It will be away for this long: a breaker opens on this one outcome, for that long.
    UnavailableFor(Duration),
}

impl Hint {
    /// How long to wait before calling again, where it says so.
    pub fn retry_after(self) -> Option<Duration> {
        match self {
            Self::RetryAfter(d) | Self::UnavailableFor(d) => Some(d),
            Self::None | Self::DoNotRetry => None,
        }
    }
}

/// What one attempt was judged to be. Made once, by a [`Classify`](super::Classify).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    judged: Judged,
    hint: Hint,
}

/// As large as a [`Class`] alone: errors hold it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Judged {
    As(Class),
    Refused,
}

impl Verdict {
    /// It worked.
    #[inline]
    pub const fn success() -> Self {
        Self::of(Class::Success)
    }

    /// Neither success nor failure: no policy counts it.
    #[inline]
    pub const fn ignore() -> Self {
        Self::of(Class::Ignore)
    }

    /// A policy inside the operation refused to run it, as an open breaker of a nested pipeline does. No policy counts it, and what
    /// holds for a refusal by a policy of this pipeline holds for it: a retry does not repeat it unless asked to. A
    /// [`Hint::RetryAfter`] tells when to come back.
    #[inline]
    pub const fn refused() -> Self {
        Self { judged: Judged::Refused, hint: Hint::None }
    }

    /// Success, failure or neither, without a hint.
    #[inline]
    pub const fn of(class: Class) -> Self {
        Self { judged: Judged::As(class), hint: Hint::None }
    }

    /// It failed in this way, with the [weight](FailureKind::default_weight) of that kind.
    pub const fn failure(kind: FailureKind) -> Self {
        Self::of(Class::Failure { kind, weight: kind.default_weight() })
    }

    /// The same, counting for `weight` under a breaker's rule of weighted failures. No effect on what is no failure.
    #[must_use]
    pub const fn weighing(mut self, weight: u32) -> Self {
        if let Class::Failure { kind, .. } = self.class() {
            self.judged = Judged::As(Class::Failure { kind, weight });
        }
        self
    }

    /// The same, with the server's word about trying again.
    #[must_use]
    pub const fn with_hint(mut self, hint: Hint) -> Self {
        self.hint = hint;
        self
    }

    /// The same, and the server says to wait this long.
    #[must_use]
    pub const fn with_retry_after(self, wait: Duration) -> Self {
        self.with_hint(Hint::RetryAfter(wait))
    }

    /// Success, failure or neither.
    #[inline]
    pub const fn class(&self) -> Class {
        match self.judged {
            Judged::As(class) => class,
            Judged::Refused => Class::Ignore,
        }
    }

    /// The server's word about trying again.
    pub const fn hint(&self) -> Hint {
        self.hint
    }

    /// Returns whether it is a [refusal](Self::refused) by a policy inside the operation.
    #[inline]
    pub const fn is_refused(&self) -> bool {
        matches!(self.judged, Judged::Refused)
    }

    /// Returns what policies hand outwards.
    pub(crate) const fn outcome(&self) -> Outcome {
        match self.judged {
            Judged::As(class) => Outcome::Judged(class),
            Judged::Refused => Outcome::Rejected,
        }
    }

    /// Whether it is a success.
    #[inline]
    pub const fn is_success(&self) -> bool {
        matches!(self.class(), Class::Success)
    }

    /// Whether it is a failure.
    #[inline]
    pub const fn is_failure(&self) -> bool {
        matches!(self.class(), Class::Failure { .. })
    }

    /// The kind of failure, if it is one.
    #[inline]
    pub const fn kind(&self) -> Option<FailureKind> {
        match self.class() {
            Class::Failure { kind, .. } => Some(kind),
            _ => None,
        }
    }
}
