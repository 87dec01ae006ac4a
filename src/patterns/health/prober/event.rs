//! Events of a prober.
use std::time::Duration;

use super::ProbeFailure;
use crate::{config::Name, health::HealthStatus, observe::Traced};

/// An event of a [`Prober`](super::Prober).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProberEvent {
    /// A probe failed. Of an inconclusive round it is sent only of a known target that was
    /// misjudged, and otherwise of no known one.
    ProbeFailed {
        /// Name of the target.
        target: Name,
        /// Reason.
        failure: ProbeFailure,
        /// Text of the error. It is in no report.
        error: String,
        /// Latency of the probe.
        latency: Duration,
    },
    /// A conclusive round found another status of a target than the one before, or the first one.
    Changed {
        /// Name of the target.
        target: Name,
        /// Its status now.
        status: HealthStatus,
    },
    /// A round says nothing about the targets.
    Inconclusive {
        /// Status of the known good target.
        known_good: HealthStatus,
        /// Status of the known bad target.
        known_bad: HealthStatus,
    },
}

impl Traced for ProberEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: "steadfast::health", tracing::Level::INFO)
    }

    fn trace(&self, name: &str) {
        const TARGET: &str = "steadfast::health";
        match self {
            Self::ProbeFailed { target, failure, error, latency } => {
                let failure = failure.as_str();
                tracing::info!(target: TARGET, name, probed = %target, failure, error, ?latency, "probe failed");
            }
            Self::Changed { target, status: HealthStatus::Healthy } => {
                tracing::info!(target: TARGET, name, probed = %target, "target healthy");
            }
            Self::Changed { target, status } => {
                tracing::warn!(target: TARGET, name, probed = %target, status = status.as_str(), "target not healthy");
            }
            Self::Inconclusive { known_good, known_bad } => {
                let (good, bad) = (known_good.as_str(), known_bad.as_str());
                tracing::warn!(target: TARGET, name, known_good = good, known_bad = bad, "round inconclusive");
            }
        }
    }
}
