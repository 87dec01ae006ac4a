//! Events of a hedge.
use std::{fmt, time::Duration};

use tracing::field;

use crate::{
    observe::Traced,
    outcome::{Cause, FailureKind},
};

/// An event of a [`Hedge`](super::Hedge). A call whose first attempt ends in time causes none.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum HedgeEvent {
    /// Another attempt started beside those in flight.
    Hedged {
        /// Number of the hedged attempt: 1 is the first beside the original.
        hedge: u32,
        /// Cause of the attempt.
        cause: HedgeCause,
    },
    /// Another attempt was due but did not start. No later one of this call starts either.
    Suppressed {
        /// Reason why it did not start.
        reason: SuppressReason,
        /// Cause of the failure or rejection after which it was due. `None` if it was due because
        /// the attempts in flight were late.
        cause: Option<Cause<FailureKind>>,
    },
    /// A hedged attempt gave the call its result.
    Won {
        /// Number of the hedged attempt: 1 is the first beside the original.
        hedge: u32,
    },
    /// All attempts of a call failed, and there was more than one.
    AllFailed {
        /// Number of attempts.
        attempts: u32,
        /// Cause of the failure that the call returns.
        cause: Cause<FailureKind>,
    },
}

/// The cause of another attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum HedgeCause {
    /// The attempts in flight took longer than the delay.
    Late {
        /// The delay.
        delay: Duration,
    },
    /// An attempt failed.
    Failed {
        /// Cause of its failure.
        cause: Cause<FailureKind>,
    },
}

/// The reason why no other attempt starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SuppressReason {
    /// The retry budget is empty.
    Budget,
    /// The other side asked for a pause.
    PushedBack,
    /// A policy inside rejected an attempt.
    Rejected,
    /// The deadline of the call has passed.
    Deadline,
}

impl HedgeCause {
    /// Returns the cause as a word, for labels of metrics.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Late { .. } => "late",
            Self::Failed { .. } => "failed",
        }
    }
}

impl SuppressReason {
    /// All reasons.
    #[cfg(feature = "metrics")]
    pub(crate) const ALL: [Self; 4] = [Self::Budget, Self::PushedBack, Self::Rejected, Self::Deadline];

    /// Returns the reason as a word, for labels of metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Budget => "budget",
            Self::PushedBack => "pushed_back",
            Self::Rejected => "rejected",
            Self::Deadline => "deadline",
        }
    }
}

impl fmt::Display for SuppressReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Traced for HedgeEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: "steadfast::hedge", tracing::Level::DEBUG)
    }

    fn trace(&self, source: &str) {
        const TARGET: &str = "steadfast::hedge";
        match self {
            Self::Hedged { hedge, cause } => {
                tracing::debug!(target: TARGET, hedged_by = source, hedge, ?cause, "hedged");
            }
            Self::Suppressed { reason, cause } => {
                let cause = cause.as_ref().map(field::display);
                tracing::debug!(target: TARGET, hedged_by = source, %reason, cause, "not hedged");
            }
            Self::Won { hedge } => tracing::debug!(target: TARGET, hedged_by = source, hedge, "a hedge won"),
            Self::AllFailed { attempts, cause } => {
                let kind = cause.kind();
                tracing::debug!(target: TARGET, hedged_by = source, attempts, ?kind, %cause, "all attempts failed");
            }
        }
    }
}
