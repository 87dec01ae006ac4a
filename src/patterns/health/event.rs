//! Events of health checks.
use std::time::Duration;

use super::CheckFailure;
use crate::{config::Name, observe::Traced, port::PortErrorKind};

/// An event of a [`Health`](super::Health).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum HealthEvent {
    /// An execution of a check failed.
    CheckFailed {
        /// Name of the check.
        check: Name,
        /// Reason.
        failure: CheckFailure,
        /// Text of the error or of the panic. It is in no report.
        error: String,
        /// Duration of the execution.
        took: Duration,
    },
    /// A check became healthy or unhealthy, by the thresholds.
    Changed {
        /// Name of the check.
        check: Name,
        /// `true` if it is healthy now.
        healthy: bool,
    },
    /// This member leaves readiness because of a dependency: it has a slot.
    Ejected {
        /// Number of members of the fleet.
        members: usize,
    },
    /// This member stays although a required dependency has failed: as many as may have left.
    Stayed {
        /// Number of members of the fleet.
        members: usize,
    },
    /// No dependency ejects this member any more: its slot is free, or was lost.
    Returned,
    /// The store of the fleet failed or did not answer in time. No dependency ejects this member.
    StoreFailed {
        /// Kind of failure; `None` for a time-out.
        kind: Option<PortErrorKind>,
    },
    /// The store of the fleet answers again.
    StoreBack,
    /// The fleet has too many members to be read. No dependency ejects this member.
    TooManyMembers,
    /// The service is about to stop: readiness ends.
    Stopping,
    /// The configuration was replaced.
    ConfigChanged,
}

impl Traced for HealthEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: "steadfast::health", tracing::Level::INFO)
    }

    fn trace(&self, name: &str) {
        const TARGET: &str = "steadfast::health";
        match self {
            Self::CheckFailed { check, failure, error, took } => {
                tracing::info!(target: TARGET, name, %check, failure = failure.as_str(), error, ?took, "check failed");
            }
            Self::Changed { check, healthy: true } => tracing::info!(target: TARGET, name, %check, "check healthy"),
            Self::Changed { check, healthy: false } => tracing::warn!(target: TARGET, name, %check, "check unhealthy"),
            Self::Ejected { members } => {
                tracing::warn!(target: TARGET, name, members, "ejected from the fleet because of a dependency");
            }
            Self::Stayed { members } => {
                tracing::warn!(target: TARGET, name, members, "stays although a required dependency has failed");
            }
            Self::Returned => tracing::info!(target: TARGET, name, "not ejected from the fleet any more"),
            Self::StoreFailed { kind } => {
                tracing::warn!(target: TARGET, name, ?kind, "store of the fleet failed: no dependency ejects");
            }
            Self::StoreBack => tracing::info!(target: TARGET, name, "store of the fleet is back"),
            Self::TooManyMembers => {
                tracing::warn!(target: TARGET, name, "too many members of the fleet: no dependency ejects");
            }
            Self::Stopping => tracing::info!(target: TARGET, name, "stopping: not ready any more"),
            Self::ConfigChanged => tracing::info!(target: TARGET, name, "configuration changed"),
        }
    }
}
