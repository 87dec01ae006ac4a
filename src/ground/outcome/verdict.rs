//! The verdict on one attempt, with the server's hint about retrying.
use std::time::Duration;

use super::{FailureKind, Outcome};

/// Success, failure, or neither.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Class {
    /// The attempt succeeded.
    Success,
    /// The attempt failed.
    Failure {
        /// Kind of failure.
        kind: FailureKind,
        /// Weight under a breaker's rule of weighted failures.
        weight: u32,
    },
    /// Neither success nor failure: no counter changes, and all permits are returned.
    Ignore,
}

/// The server's hint about calling it again. The classifier reads it once; retry, breaker, hedge,
/// rate limit and adaptive limit act on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Hint {
    /// No hint.
    #[default]
    None,
    /// Wait this long before the next call (HTTP `Retry-After`, gRPC push-back).
    RetryAfter(Duration),
    /// Do not retry (gRPC's negative push-back).
    DoNotRetry,
    /// The server is unavailable for this long: a breaker opens on this one outcome, for that time.
    UnavailableFor(Duration),
}

impl Hint {
    /// Returns the time to wait before the next call, if the hint states one.
    pub fn retry_after(self) -> Option<Duration> {
        match self {
            Self::RetryAfter(d) | Self::UnavailableFor(d) => Some(d),
            Self::None | Self::DoNotRetry => None,
        }
    }
}

/// The verdict on one attempt. A [`Classify`](super::Classify) makes it once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    kind: VerdictKind,
    hint: Hint,
}

/// As large as a [`Class`] alone, because errors contain it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum VerdictKind {
    Class(Class),
    Refused,
}

impl Verdict {
    /// Creates the verdict "success".
    #[inline]
    pub const fn success() -> Self {
        Self::of(Class::Success)
    }

    /// Creates the verdict "neither success nor failure": no policy counts it.
    #[inline]
    pub const fn ignore() -> Self {
        Self::of(Class::Ignore)
    }

    /// Creates the verdict "rejected inside": a policy inside the operation did not run it, for
    /// example an open breaker of a nested pipeline.
    ///
    /// It is treated like a rejection by a policy of this pipeline: no policy counts it, and a
    /// retry does not repeat it unless configured to. A [`Hint::RetryAfter`] states the time to
    /// wait.
    #[inline]
    pub const fn refused() -> Self {
        Self { kind: VerdictKind::Refused, hint: Hint::None }
    }

    /// Creates a verdict of this class, without a hint.
    #[inline]
    pub const fn of(class: Class) -> Self {
        Self { kind: VerdictKind::Class(class), hint: Hint::None }
    }

    /// Creates the verdict "failure" of this kind, with the [weight](FailureKind::default_weight)
    /// of that kind.
    pub const fn failure(kind: FailureKind) -> Self {
        Self::of(Class::Failure { kind, weight: kind.default_weight() })
    }

    /// Sets the weight under a breaker's rule of weighted failures. No effect on a verdict that is
    /// not a failure.
    #[must_use]
    pub const fn weighing(mut self, weight: u32) -> Self {
        if let Class::Failure { kind, .. } = self.class() {
            self.kind = VerdictKind::Class(Class::Failure { kind, weight });
        }
        self
    }

    /// Sets the server's hint about retrying.
    #[must_use]
    pub const fn with_hint(mut self, hint: Hint) -> Self {
        self.hint = hint;
        self
    }

    /// Sets the hint [`Hint::RetryAfter`] with this time.
    #[must_use]
    pub const fn with_retry_after(self, wait: Duration) -> Self {
        self.with_hint(Hint::RetryAfter(wait))
    }

    /// Returns the class: success, failure or neither.
    #[inline]
    pub const fn class(&self) -> Class {
        match self.kind {
            VerdictKind::Class(class) => class,
            VerdictKind::Refused => Class::Ignore,
        }
    }

    /// Returns the server's hint about retrying.
    pub const fn hint(&self) -> Hint {
        self.hint
    }

    /// Returns `true` if a policy inside the operation [rejected](Self::refused) it.
    #[inline]
    pub const fn is_refused(&self) -> bool {
        matches!(self.kind, VerdictKind::Refused)
    }

    /// Returns the outcome that policies pass outwards.
    pub(crate) const fn outcome(&self) -> Outcome {
        match self.kind {
            VerdictKind::Class(class) => Outcome::Judged(class),
            VerdictKind::Refused => Outcome::Rejected,
        }
    }

    /// Returns `true` if the verdict is a success.
    #[inline]
    pub const fn is_success(&self) -> bool {
        matches!(self.class(), Class::Success)
    }

    /// Returns `true` if the verdict is a failure.
    #[inline]
    pub const fn is_failure(&self) -> bool {
        matches!(self.class(), Class::Failure { .. })
    }

    /// Returns the kind of failure, if the verdict is one.
    #[inline]
    pub const fn kind(&self) -> Option<FailureKind> {
        match self.class() {
            Class::Failure { kind, .. } => Some(kind),
            _ => None,
        }
    }
}
