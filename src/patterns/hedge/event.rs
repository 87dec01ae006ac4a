//! What a hedge tells.
use std::{fmt, time::Duration};

use crate::{observe::Traced, outcome::FailureKind};

/// Something a [`Hedge`](super::Hedge) did. A call whose first attempt ends in time is no event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum HedgeEvent {
    /// Another attempt started beside those in flight.
    Hedged {
        /// Which: 1 is the first beside the call's own.
        hedge: u32,
        /// Why.
        cause: HedgeCause,
    },
    /// Another attempt was due, and is not made; nor is any later one of this call.
    Suppressed {
        /// Why.
        reason: SuppressReason,
    },
    /// An attempt other than the first gave the call its result.
    Won {
        /// Which: 1 is the first beside the call's own.
        hedge: u32,
    },
    /// All attempts of a call failed, and there was more than one.
    AllFailed {
        /// How many there were.
        attempts: u32,
        /// How the one failed whose failure is the call's; nothing where a policy refused it.
        kind: Option<FailureKind>,
    },
}

/// Why another attempt started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum HedgeCause {
    /// Those in flight take longer than this.
    Late {
        /// The delay.
        delay: Duration,
    },
    /// One failed.
    Failed {
        /// How.
        kind: FailureKind,
    },
}

/// Why no other attempt starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SuppressReason {
    /// The budget is empty.
    Budget,
    /// The other side asked to be left alone.
    PushedBack,
    /// A policy inside refused an attempt.
    Rejected,
    /// The call's time is over.
    Deadline,
}

impl HedgeCause {
    /// Returns the cause as a word, for labels of metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Late { .. } => "late",
            Self::Failed { .. } => "failed",
        }
    }
}

impl SuppressReason {
    /// All reasons.
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
        tracing::enabled!(target: "steadfast::hedge", tracing::Level::INFO)
    }

    fn trace(&self, source: &str) {
        const TARGET: &str = "steadfast::hedge";
        match self {
            Self::Hedged { hedge, cause } => {
                tracing::debug!(target: TARGET, hedged_by = source, hedge, ?cause, "hedged");
            }
            Self::Suppressed { reason } => tracing::info!(target: TARGET, hedged_by = source, %reason, "not hedged"),
            Self::Won { hedge } => tracing::debug!(target: TARGET, hedged_by = source, hedge, "a hedge won"),
            Self::AllFailed { attempts, kind } => {
                tracing::info!(target: TARGET, hedged_by = source, attempts, ?kind, "all attempts failed");
            }
        }
    }
}
