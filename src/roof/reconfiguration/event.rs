//! Events of reconfigurations and of roll-outs. They have no values.
use super::AbortReason;
use crate::observe::Traced;

/// An event of a [`Reconfigurer`](super::Reconfigurer).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReconfigurerEvent {
    /// A change is in effect.
    Applied {
        /// Names of the parts that changed.
        parts: Vec<String>,
        /// Names of those that were restarted.
        restarted: Vec<String>,
    },
    /// A change was refused before anything had changed.
    Refused {
        /// Name of the part; `None` for a change outside of all parts.
        part: Option<String>,
        /// Field of the part's settings.
        field: Option<String>,
    },
    /// A change failed, or was unhealthy within its time, and all parts are as before.
    RolledBack {
        /// Name of the part that failed; `None` if the process became unhealthy, or the change was
        /// dropped.
        part: Option<String>,
    },
    /// A change failed and could not be undone: some parts have the new settings.
    PartiallyApplied {
        /// Names of these parts.
        parts: Vec<String>,
    },
}

impl Traced for ReconfigurerEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: "steadfast::reconfiguration", tracing::Level::INFO)
    }

    fn trace(&self, name: &str) {
        const TARGET: &str = "steadfast::reconfiguration";
        match self {
            Self::Applied { parts, restarted } => {
                tracing::info!(target: TARGET, name, ?parts, ?restarted, "change applied");
            }
            Self::Refused { part, field } => tracing::warn!(target: TARGET, name, part, field, "change refused"),
            Self::RolledBack { part } => tracing::warn!(target: TARGET, name, part, "change undone"),
            Self::PartiallyApplied { parts } => {
                tracing::error!(target: TARGET, name, ?parts, "change applied in part, and not undone");
            }
        }
    }
}

/// An event of a [`Rollout`](super::Rollout).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum RolloutEvent {
    /// A stage was entered.
    StageEntered {
        /// Number of the change.
        number: u64,
        /// Share of the processes that take it.
        share: f64,
        /// Number of all processes.
        members: usize,
    },
    /// The change is in effect for all.
    Completed {
        /// Number of the change.
        number: u64,
    },
    /// All processes return to the number before.
    Aborted {
        /// Number of the change.
        number: u64,
        /// The member that was the reason; empty if it was aborted by hand, or if no member of the
        /// stage was seen.
        member: String,
        /// Reason.
        reason: AbortReason,
    },
}

impl Traced for RolloutEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: "steadfast::reconfiguration", tracing::Level::INFO)
    }

    fn trace(&self, name: &str) {
        const TARGET: &str = "steadfast::reconfiguration";
        match self {
            Self::StageEntered { number, share, members } => {
                tracing::info!(target: TARGET, name, number, share, members, "stage of a roll-out entered");
            }
            Self::Completed { number } => tracing::info!(target: TARGET, name, number, "roll-out completed"),
            Self::Aborted { number, member, reason } => {
                tracing::warn!(target: TARGET, name, number, member, reason = reason.as_str(), "roll-out aborted");
            }
        }
    }
}
