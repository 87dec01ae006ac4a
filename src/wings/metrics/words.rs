//! Label values of enums, as lists.
use crate::{
    hedge::SuppressReason,
    outcome::{FailureKind, StopReason},
};

/// Returns the label values of all failure kinds.
pub(super) fn kinds() -> [&'static str; FailureKind::ALL.len()] {
    FailureKind::ALL.map(FailureKind::as_str)
}

/// Reasons for a rejection, except those of injected faults and custom policies.
pub(super) const REASONS: [&str; 12] = [
    "circuit_open",
    "isolated",
    "probes_taken",
    "slow_start",
    "rate_limited",
    "too_large",
    "queue_full",
    "waited_too_long",
    "store_down",
    "likely_refused",
    "shed",
    "switched_off",
];

/// Returns the reasons for which a retry makes no further attempt.
pub(super) fn stops() -> [&'static str; StopReason::ALL.len()] {
    StopReason::ALL.map(StopReason::as_str)
}

/// Returns the reasons for which a hedge starts no further attempt.
pub(super) fn suppressed() -> [&'static str; SuppressReason::ALL.len()] {
    SuppressReason::ALL.map(SuppressReason::as_str)
}
