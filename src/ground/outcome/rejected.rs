//! A policy's refusal to run the operation.
use std::{fmt, time::Duration};

use super::{FailureKind, Priority};
use crate::{
    config::Name,
    time::{Instant, nanos},
};

/// Which pattern refused, timed out or was described.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PolicyKind {
    /// A [`Timeout`](crate::timeout::Timeout).
    Timeout,
    /// A [`Retry`](crate::retry::Retry).
    Retry,
    /// A [`CircuitBreaker`](crate::circuit_breaker::CircuitBreaker).
    CircuitBreaker,
    /// A [`RateLimiter`](crate::throttling::RateLimiter).
    RateLimit,
    /// A [`ConcurrencyLimiter`](crate::throttling::ConcurrencyLimiter).
    ConcurrencyLimit,
    /// A [`ClientThrottle`](crate::throttling::ClientThrottle).
    ClientThrottle,
    /// A [`Shedder`](crate::throttling::Shedder), or a limiter that keeps places for higher priorities.
    Shed,
    /// A [`Feature`](crate::throttling::Feature) of a [`Degradation`](crate::throttling::Degradation).
    Degradation,
    /// A [`Hedge`](crate::hedge::Hedge).
    Hedge,
    /// A [`Fallback`](crate::fallback::Fallback).
    Fallback,
    /// Faults on purpose.
    Chaos,
    /// A policy of the user's own.
    Custom(&'static str),
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Timeout => "time-out",
            Self::Retry => "retry",
            Self::CircuitBreaker => "circuit breaker",
            Self::RateLimit => "rate limit",
            Self::ConcurrencyLimit => "concurrency limit",
            Self::ClientThrottle => "client throttle",
            Self::Shed => "shedder",
            Self::Degradation => "degradation",
            Self::Hedge => "hedge",
            Self::Fallback => "fallback",
            Self::Chaos => "chaos",
            Self::Custom(name) => name,
        })
    }
}

/// The rule by which a circuit breaker opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum TripRule {
    /// Too large a share of the window's calls failed.
    FailureRate,
    /// Too large a share of the window's calls was slow.
    SlowCallRate,
    /// Too many failures in a row.
    ConsecutiveFailures,
    /// The failures of the period weigh too much.
    WeightedFailures,
    /// One outcome said that the other side will be away.
    Unavailable,
    /// The probes of a half-open breaker failed.
    Probes,
    /// The probes of a half-open breaker hung.
    HalfOpenTimeout,
    /// An operator or the application opened it.
    Manual,
    /// The breakers of other processes opened.
    Shared,
}

impl TripRule {
    /// All rules, each at the index of its bits.
    pub(crate) const ALL: [Self; 9] = [
        Self::FailureRate,
        Self::SlowCallRate,
        Self::ConsecutiveFailures,
        Self::WeightedFailures,
        Self::Unavailable,
        Self::Probes,
        Self::HalfOpenTimeout,
        Self::Manual,
        Self::Shared,
    ];

    /// Returns the rule as one word in snake case, as labels of metrics have it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FailureRate => "failure_rate",
            Self::SlowCallRate => "slow_call_rate",
            Self::ConsecutiveFailures => "consecutive_failures",
            Self::WeightedFailures => "weighted_failures",
            Self::Unavailable => "unavailable",
            Self::Probes => "probes",
            Self::HalfOpenTimeout => "half_open_timeout",
            Self::Manual => "manual",
            Self::Shared => "shared",
        }
    }

    pub(crate) const fn to_bits(self) -> u8 {
        self as u8
    }

    pub(crate) fn from_bits(bits: u8) -> Self {
        Self::ALL.get(usize::from(bits)).copied().unwrap_or(Self::Manual)
    }
}

impl fmt::Display for TripRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FailureRate => "failure rate",
            Self::SlowCallRate => "slow-call rate",
            Self::ConsecutiveFailures => "consecutive failures",
            Self::WeightedFailures => "weighted failures",
            Self::Unavailable => "the server said it is unavailable",
            Self::Probes => "failed probes",
            Self::HalfOpenTimeout => "half-open timed out",
            Self::Manual => "opened manually",
            Self::Shared => "opened in other processes",
        })
    }
}

/// Why a policy refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The circuit breaker is open.
    CircuitOpen {
        /// Since when.
        since: Instant,
        /// The rule that opened it.
        rule: TripRule,
        /// The kind of the last failure before it opened.
        last: Option<FailureKind>,
    },
    /// The circuit breaker is isolated: it stays open until it is closed manually.
    Isolated {
        /// Since when.
        since: Instant,
    },
    /// The circuit breaker is half-open, and all its probes are taken.
    ProbesTaken,
    /// The circuit breaker has closed, and its slow start admits only a share of the calls yet.
    SlowStart,
    /// The rate limit is used up for now.
    RateLimited,
    /// The call asks for more permits at once than the limit can ever give.
    TooLarge,
    /// The concurrency limit is reached and its queue is full (or it has none).
    QueueFull,
    /// The call waited in the concurrency limit's queue for as long as it may.
    WaitedTooLong {
        /// How long that is.
        limit: Duration,
    },
    /// The other side asked that no call be made for a time, which is not over.
    AskedToPause,
    /// The limit is shared through a store, which does not answer.
    StoreDown,
    /// The other side refuses so many calls that this one was not sent: it would likely be refused there.
    LikelyRefused,
    /// Calls of this priority are shed now, so that those that matter more are served.
    Shed {
        /// The call's priority.
        priority: Priority,
    },
    /// The feature that the call belongs to is switched off while there is too much to do.
    SwitchedOff,
    /// A fault that was injected on purpose: no real one.
    Injected {
        /// The kind of failure that it is judged as.
        kind: FailureKind,
    },
    /// A reason of the user's own policy.
    Custom(&'static str),
}

/// A refusal: by which policy, why, and when to come back. The operation was not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    by: PolicyKind,
    name: Option<Name>,
    reason: Reason,
    /// Nanoseconds; [`UNKNOWN`] where it is not known. As a number, for a refusal must be cheap: its reader divides.
    wait: u64,
}

const UNKNOWN: u64 = u64::MAX;

impl Rejected {
    /// A refusal of this kind of policy, for this reason.
    pub const fn new(by: PolicyKind, reason: Reason) -> Self {
        Self { by, name: None, reason, wait: UNKNOWN }
    }

    /// A whole refusal, built in one place; the wait in nanoseconds.
    #[inline]
    pub(crate) fn by_policy(by: PolicyKind, name: Option<&Name>, reason: Reason, wait: Option<u64>) -> Self {
        Self { by, name: name.cloned(), reason, wait: wait.map_or(UNKNOWN, |wait| wait.min(UNKNOWN - 1)) }
    }

    /// The same, naming the policy.
    #[must_use]
    pub fn named(mut self, name: Option<Name>) -> Self {
        self.name = name;
        self
    }

    /// The same, saying when to come back.
    #[must_use]
    pub fn with_retry_after(self, wait: Duration) -> Self {
        self.with_wait(nanos(wait))
    }

    /// The same in nanoseconds.
    #[inline]
    pub(crate) fn with_wait(mut self, wait: u64) -> Self {
        self.wait = wait.min(UNKNOWN - 1);
        self
    }

    /// The kind of policy that refused.
    pub const fn by(&self) -> PolicyKind {
        self.by
    }

    /// The policy's name, if it has one.
    pub fn name(&self) -> Option<&str> {
        self.name.as_ref().map(Name::as_str)
    }

    /// Why.
    pub const fn reason(&self) -> Reason {
        self.reason
    }

    /// Whether the call was given up for those that matter more: shed by its priority, or of a feature that is switched off. It may be
    /// deferred, say to a queue, where a call that was over its limit should come back later.
    pub const fn is_shed(&self) -> bool {
        matches!(self.reason, Reason::Shed { .. } | Reason::SwitchedOff)
    }

    /// How long to wait before the call could pass, where that is known.
    pub const fn retry_after(&self) -> Option<Duration> {
        if self.wait == UNKNOWN { None } else { Some(Duration::from_nanos(self.wait)) }
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rejected by the {}", self.by)?;
        if let Some(name) = &self.name {
            write!(f, " `{name}`")?;
        }
        match self.reason {
            Reason::CircuitOpen { rule, last, .. } => {
                write!(f, ": open ({rule}")?;
                match last {
                    Some(kind) => write!(f, "; last failure: {kind})")?,
                    None => f.write_str(")")?,
                }
            }
            Reason::Isolated { .. } => f.write_str(": isolated manually")?,
            Reason::ProbesTaken => f.write_str(": half-open, all probes taken")?,
            Reason::SlowStart => f.write_str(": in slow start after an outage")?,
            Reason::RateLimited => f.write_str(": used up")?,
            Reason::TooLarge => f.write_str(": more permits than it can ever give")?,
            Reason::QueueFull => f.write_str(": queue full")?,
            Reason::WaitedTooLong { limit } => write!(f, ": waited too long ({limit:?})")?,
            Reason::AskedToPause => f.write_str(": the other side asked for a pause")?,
            Reason::StoreDown => f.write_str(": the store that it is shared through is down")?,
            Reason::LikelyRefused => f.write_str(": the other side refuses too many calls")?,
            Reason::Shed { priority } => write!(f, ": calls of {priority} priority are shed")?,
            Reason::SwitchedOff => f.write_str(": switched off while there is too much to do")?,
            Reason::Injected { kind } => write!(f, ": an injected fault ({kind})")?,
            Reason::Custom(why) => write!(f, ": {why}")?,
        }
        match self.retry_after() {
            Some(wait) => write!(f, "; try again in {wait:?}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Rejected {}
