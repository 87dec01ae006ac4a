//! The verdict on each check and on a group: pure, with the time as an argument.
use std::time::Duration;

use serde::{Serialize, Serializer, ser::SerializeMap};

use super::{CheckKind, HealthConfig};
use crate::{config::Name, time::Instant};

/// Status of a check or of a group of checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[non_exhaustive]
pub enum HealthStatus {
    /// All is well.
    #[serde(rename = "pass")]
    Healthy,
    /// Requests are served, but something that is not required has failed, or a dependency of too
    /// many members of the fleet at once.
    #[serde(rename = "warn")]
    Degraded,
    /// Requests should go elsewhere.
    #[serde(rename = "fail")]
    Unhealthy,
}

impl HealthStatus {
    /// Returns the status as a word, which is the body for an anonymous request.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Degraded => "degraded",
            Self::Unhealthy => "unhealthy",
        }
    }
}

/// Reason for which a check has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CheckFailure {
    /// It returned an error.
    Error,
    /// It did not end in time.
    TimedOut,
    /// It panicked.
    Panicked,
    /// Its last result is too old.
    Stale,
    /// It has no result yet.
    NoResult,
}

impl CheckFailure {
    /// Returns the reason as a word: `timed_out`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::TimedOut => "timed_out",
            Self::Panicked => "panicked",
            Self::Stale => "stale",
            Self::NoResult => "no_result",
        }
    }
}

/// Further reason for the status of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum GroupReason {
    /// The service is about to stop.
    Stopping,
    /// This member left its fleet because of a dependency.
    Ejected,
    /// A required dependency has failed, and this member stays, because it has no slot to leave.
    Stayed,
}

impl GroupReason {
    /// Returns the reason as a word: `ejected`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stopping => "stopping",
            Self::Ejected => "ejected",
            Self::Stayed => "stayed",
        }
    }
}

/// The report on a group of checks.
///
/// With serde it has the terms of `application/health+json`: a status, and the checks by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Status of the group.
    pub status: HealthStatus,
    /// Further reason for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<GroupReason>,
    /// The checks of the group, in their order.
    #[serde(serialize_with = "by_name")]
    pub checks: Vec<CheckReport>,
}

/// The report on one check. It has no text of an error: such a text may name hosts and roles.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct CheckReport {
    /// Name of the check.
    #[serde(skip)]
    pub name: Name,
    /// Kind of the check.
    #[serde(rename = "componentType")]
    pub kind: CheckKind,
    /// Status. A check that is not required is at worst degraded.
    pub status: HealthStatus,
    /// Reason of its last failure, while it fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<CheckFailure>,
    /// Duration of the last execution.
    #[serde(rename = "observedValue", serialize_with = "crate::config::human::serialize")]
    pub latency: Duration,
    /// Age of the result.
    #[serde(serialize_with = "crate::config::human::serialize")]
    pub age: Duration,
}

fn by_name<S: Serializer>(checks: &[CheckReport], to: S) -> Result<S::Ok, S::Error> {
    let mut map = to.serialize_map(Some(checks.len()))?;
    for check in checks {
        map.serialize_entry(check.name.as_str(), &[check])?;
    }
    map.end()
}

/// The results of one check.
#[derive(Debug, Clone, Default)]
pub(super) struct CheckState {
    /// The verdict by the thresholds; `None` before the first result.
    healthy: Option<bool>,
    /// Number of results in a row that contradict that.
    against: u32,
    last: Option<Outcome>,
    /// `true` once it has been healthy.
    was_healthy: bool,
    /// Start of the execution that is under way.
    running_since: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Outcome {
    at: Instant,
    latency: Duration,
    failure: Option<CheckFailure>,
}

impl CheckState {
    /// Records a result. Returns the new verdict if it has changed.
    pub(super) fn record(
        &mut self,
        config: &HealthConfig,
        (at, latency): (Instant, Duration),
        failure: Option<CheckFailure>,
    ) -> Option<bool> {
        // After a gap the next result counts at once, as the first one does.
        if self.last.is_some_and(|last| at - last.at > config.stale_after) {
            (self.healthy, self.against) = (None, 0);
        }
        (self.last, self.running_since) = (Some(Outcome { at, latency, failure }), None);
        let is_well = failure.is_none();
        if self.healthy == Some(is_well) {
            self.against = 0;
            return None;
        }
        self.against += 1;
        let threshold = match self.healthy {
            None => 1,
            Some(true) => config.failure_threshold,
            Some(false) => config.success_threshold,
        };
        if self.against < threshold {
            return None;
        }
        (self.healthy, self.against) = (Some(is_well), 0);
        self.was_healthy |= is_well;
        self.healthy
    }

    /// Records that an execution has begun.
    pub(super) fn begin(&mut self, now: Instant) {
        self.running_since = Some(now);
    }

    /// Returns `true` once the check has been healthy.
    pub(super) fn was_healthy(&self) -> bool {
        self.was_healthy
    }

    /// Returns the time from which the last result serves no report any more.
    pub(super) fn due(&self, config: &HealthConfig) -> Instant {
        self.last.map_or(Instant::default(), |last| last.at + config.cache_ttl)
    }

    /// Returns `true` if the last result serves a report at this time.
    pub(super) fn is_fresh(&self, config: &HealthConfig, now: Instant) -> bool {
        self.last.is_some_and(|last| now - last.at < config.cache_ttl)
    }

    /// Returns `None` if the check is healthy, and else the reason.
    pub(super) fn failure(&self, config: &HealthConfig, now: Instant) -> Option<CheckFailure> {
        let Some(last) = self.last else { return Some(CheckFailure::NoResult) };
        // An execution that is under way has its time, also for reports that come seldom.
        let is_running = self.running_since.is_some_and(|since| now - since <= config.timeout);
        if now - last.at > config.stale_after && !is_running {
            return Some(CheckFailure::Stale);
        }
        match self.healthy {
            // On the way to health its last result may be a success.
            Some(false) => Some(last.failure.unwrap_or(CheckFailure::Error)),
            _ => None,
        }
    }

    pub(super) fn latency(&self) -> Duration {
        self.last.map(|last| last.latency).unwrap_or_default()
    }

    pub(super) fn age(&self, now: Instant) -> Duration {
        self.last.map(|last| now - last.at).unwrap_or_default()
    }
}

/// The facts beside the checks from which the status of readiness follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Around {
    pub(super) is_stopping: bool,
    /// `None` without a fleet, or for a group that it does not guard.
    pub(super) is_ejected: Option<bool>,
}

/// Returns the status of a group, and a further reason. `failed` has each check that has failed:
/// its kind, and `true` if it is required.
pub(super) fn status(
    failed: impl Iterator<Item = (CheckKind, bool)>,
    around: Around,
) -> (HealthStatus, Option<GroupReason>) {
    if around.is_stopping {
        return (HealthStatus::Unhealthy, Some(GroupReason::Stopping));
    }
    let (mut worst, mut reason) = (HealthStatus::Healthy, None);
    for (kind, is_required) in failed {
        let one = match (kind, is_required, around.is_ejected) {
            (_, false, _) => (HealthStatus::Degraded, None),
            (CheckKind::Dependency, true, Some(true)) => (HealthStatus::Unhealthy, Some(GroupReason::Ejected)),
            (CheckKind::Dependency, true, Some(false)) => (HealthStatus::Degraded, Some(GroupReason::Stayed)),
            _ => (HealthStatus::Unhealthy, None),
        };
        // The reason is that of the worst.
        if one.0 > worst || one.0 == worst && reason.is_none() {
            (worst, reason) = one;
        }
    }
    (worst, reason)
}

/// Returns the number of slots of a fleet.
pub(super) fn slots(share: f64, members: usize) -> usize {
    // A share such as 0.29 is no binary number: 29 of a hundred, although the product is a bit less.
    (share * members as f64 + 1e-9).floor() as usize
}
