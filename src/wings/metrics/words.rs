//! Label values of enums that have no `as_str` of their own.
use crate::outcome::{FailureKind, Reason, Stop};

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

pub(super) const fn reason(reason: Reason) -> &'static str {
    match reason {
        Reason::CircuitOpen { .. } => "circuit_open",
        Reason::Isolated { .. } => "isolated",
        Reason::ProbesTaken => "probes_taken",
        Reason::SlowStart => "slow_start",
        Reason::RateLimited => "rate_limited",
        Reason::TooLarge => "too_large",
        Reason::QueueFull => "queue_full",
        Reason::WaitedTooLong { .. } => "waited_too_long",
        Reason::AskedToPause => "asked_to_pause",
        Reason::StoreDown => "store_down",
        Reason::LikelyRefused => "likely_refused",
        Reason::Shed { .. } => "shed",
        Reason::SwitchedOff => "switched_off",
        Reason::Injected { .. } => "injected",
        _ => "custom",
    }
}

/// Reasons for no further attempt.
pub(super) const STOPS: [&str; 12] = [
    "attempts",
    "not_retryable",
    "not_idempotent",
    "total_time",
    "deadline",
    "hint_too_long",
    "told_not_to",
    "budget",
    "backoff_ended",
    "nested",
    "spent",
    "cut_short",
];

pub(super) const fn stop(stop: Stop) -> &'static str {
    match stop {
        Stop::Attempts => "attempts",
        Stop::NotRetryable => "not_retryable",
        Stop::NotIdempotent => "not_idempotent",
        Stop::TotalTime => "total_time",
        Stop::Deadline => "deadline",
        Stop::HintTooLong => "hint_too_long",
        Stop::ToldNotTo => "told_not_to",
        Stop::Budget => "budget",
        Stop::BackoffEnded => "backoff_ended",
        Stop::Nested => "nested",
        Stop::Spent => "spent",
        _ => "cut_short",
    }
}
