//! What is an enumeration in the code, as words for labels.
use crate::{hedge::SuppressReason, outcome::StopReason};

/// The kinds of failures.
pub(super) const KINDS: [&str; 9] =
    ["timeout", "connect", "throttled", "overloaded", "server", "client", "cancelled", "panic", "other"];

/// Why a policy refuses.
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

/// Reasons why a retry made no further attempt.
pub(super) fn stops() -> [&'static str; StopReason::ALL.len()] {
    StopReason::ALL.map(StopReason::as_str)
}

/// Reasons why a hedge started no further attempt.
pub(super) fn suppressed() -> [&'static str; SuppressReason::ALL.len()] {
    SuppressReason::ALL.map(SuppressReason::as_str)
}
