//! What is an enumeration in the code, as words for labels.
use crate::{
    circuit_breaker::State,
    hedge::SuppressReason,
    outcome::{StopReason, TripRule},
};

/// The kinds of failures.
pub(super) const KINDS: [&str; 9] =
    ["timeout", "connect", "throttled", "overloaded", "server", "client", "cancelled", "panic", "other"];

/// Why a policy refuses.
pub(super) const REASONS: [&str; 12] = [
    "circuit_open",
    "isolated",
    "probes_taken",
    "ramping_up",
    "rate_limited",
    "too_large",
    "queue_full",
    "waited_too_long",
    "store_down",
    "likely_refused",
    "shed",
    "switched_off",
];

pub(super) const fn state(state: State) -> &'static str {
    match state {
        State::Closed => "closed",
        State::Open => "open",
        State::HalfOpen => "half_open",
        State::Isolated => "isolated",
    }
}

/// The rules by which a breaker opens.
pub(super) const RULES: [&str; 8] = [
    "failure_rate",
    "slow_call_rate",
    "consecutive_failures",
    "weighted_failures",
    "unavailable",
    "probes",
    "undecided",
    "by_hand",
];

pub(super) const fn rule(rule: TripRule) -> &'static str {
    match rule {
        TripRule::FailureRate => "failure_rate",
        TripRule::SlowCallRate => "slow_call_rate",
        TripRule::ConsecutiveFailures => "consecutive_failures",
        TripRule::WeightedFailures => "weighted_failures",
        TripRule::Unavailable => "unavailable",
        TripRule::Probes => "probes",
        TripRule::Undecided => "undecided",
        _ => "by_hand",
    }
}

/// Reasons why a retry made no further attempt.
pub(super) fn stops() -> [&'static str; StopReason::ALL.len()] {
    StopReason::ALL.map(StopReason::as_str)
}

/// Reasons why a hedge started no further attempt.
pub(super) fn suppressed() -> [&'static str; SuppressReason::ALL.len()] {
    SuppressReason::ALL.map(SuppressReason::as_str)
}
