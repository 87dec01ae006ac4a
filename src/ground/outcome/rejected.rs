//! The rejection of a call by a policy.
use std::{fmt, time::Duration};

use super::{FailureKind, Priority};
use crate::{
    config::Name,
    time::{Instant, nanos},
};

/// The kind of policy that rejected a call, timed out or is described.
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
    /// A [`Shedder`](crate::throttling::Shedder), or a limiter that keeps places for higher
    /// priorities.
    Shed,
    /// A [`Feature`](crate::throttling::Feature) of a
    /// [`Degradation`](crate::throttling::Degradation).
    Degradation,
    /// A [`Hedge`](crate::hedge::Hedge).
    Hedge,
    /// A [`Fallback`](crate::fallback::Fallback).
    Fallback,
    /// An injected fault (feature `chaos`).
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

/// The reason of a rejection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The circuit breaker is open.
    CircuitOpen {
        /// Time of the opening.
        since: Instant,
        /// The rule that opened it.
        rule: TripRule,
        /// The kind of the last failure before it opened.
        last: Option<FailureKind>,
    },
    /// The circuit breaker is isolated: it stays open until it is closed manually.
    Isolated {
        /// Time of the isolation.
        since: Instant,
    },
    /// The circuit breaker is half-open, and all its probes are taken.
    ProbesTaken,
    /// The circuit breaker has closed, and its slow start admits only a share of the calls yet.
    SlowStart,
    /// The rate limit is used up for now.
    RateLimited,
    /// The call asks for more permits than the limit can ever grant.
    TooLarge,
    /// The concurrency limit is reached and its queue is full, or it has no queue.
    QueueFull,
    /// The call waited in the queue of the concurrency limit for the maximum time.
    WaitedTooLong {
        /// The maximum wait.
        limit: Duration,
    },
    /// The other side asked for a pause, which is not over.
    AskedToPause,
    /// The limit is shared through a store, and the store does not answer.
    StoreDown,
    /// The other side rejects so many calls that this one was not sent: it would probably be
    /// rejected there.
    LikelyRefused,
    /// Calls of this priority are shed now, so that more important calls are served.
    Shed {
        /// Priority of the call.
        priority: Priority,
    },
    /// The feature that the call belongs to is switched off because of overload.
    SwitchedOff,
    /// An injected fault, not a real one.
    Injected {
        /// Kind of failure that the fault is judged as.
        kind: FailureKind,
    },
    /// A reason of the user's own policy.
    Custom(&'static str),
}

impl Reason {
    /// Returns the reason as a word, for labels of metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::CircuitOpen { .. } => "circuit_open",
            Self::Isolated { .. } => "isolated",
            Self::ProbesTaken => "probes_taken",
            Self::SlowStart => "slow_start",
            Self::RateLimited => "rate_limited",
            Self::TooLarge => "too_large",
            Self::QueueFull => "queue_full",
            Self::WaitedTooLong { .. } => "waited_too_long",
            Self::AskedToPause => "asked_to_pause",
            Self::StoreDown => "store_down",
            Self::LikelyRefused => "likely_refused",
            Self::Shed { .. } => "shed",
            Self::SwitchedOff => "switched_off",
            Self::Injected { .. } => "injected",
            Self::Custom(_) => "custom",
        }
    }
}

/// A rejection: the policy, the reason, and the time to wait. The operation was not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    by: PolicyKind,
    name: Option<Name>,
    reason: Reason,
    /// Nanoseconds; [`UNKNOWN`] if unknown. A number, as a rejection must be cheap: only a reader
    /// converts it.
    wait: u64,
}

const UNKNOWN: u64 = u64::MAX;

impl Rejected {
    /// Creates a rejection by this kind of policy, for this reason.
    pub const fn new(by: PolicyKind, reason: Reason) -> Self {
        Self { by, name: None, reason, wait: UNKNOWN }
    }

    /// Creates a complete rejection in one step; `wait` is in nanoseconds.
    #[inline]
    pub(crate) fn by_policy(by: PolicyKind, name: Option<&Name>, reason: Reason, wait: Option<u64>) -> Self {
        Self { by, name: name.cloned(), reason, wait: wait.map_or(UNKNOWN, |wait| wait.min(UNKNOWN - 1)) }
    }

    /// Sets the name of the policy.
    #[must_use]
    pub fn named(mut self, name: Option<Name>) -> Self {
        self.name = name;
        self
    }

    /// Sets the time to wait before the next call.
    #[must_use]
    pub fn with_retry_after(self, wait: Duration) -> Self {
        self.with_wait(nanos(wait))
    }

    /// Sets the time to wait in nanoseconds.
    #[inline]
    pub(crate) fn with_wait(mut self, wait: u64) -> Self {
        self.wait = wait.min(UNKNOWN - 1);
        self
    }

    /// Returns the kind of policy that rejected the call.
    pub const fn by(&self) -> PolicyKind {
        self.by
    }

    /// Returns the name of the policy, if it has one.
    pub fn name(&self) -> Option<&str> {
        self.name.as_ref().map(Name::as_str)
    }

    /// Returns the reason.
    pub const fn reason(&self) -> Reason {
        self.reason
    }

    /// Returns `true` if the call was dropped in favour of more important ones: shed by its
    /// priority, or part of a feature that is switched off. Such a call may be deferred, say to a
    /// queue; a call over its limit should be retried later.
    pub const fn is_shed(&self) -> bool {
        matches!(self.reason, Reason::Shed { .. } | Reason::SwitchedOff)
    }

    /// Returns the time to wait until the call could pass, if it is known.
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
            Reason::RateLimited => f.write_str(": limit reached")?,
            Reason::TooLarge => f.write_str(": asks for more permits than the limit can ever grant")?,
            Reason::QueueFull => f.write_str(": queue full")?,
            Reason::WaitedTooLong { limit } => write!(f, ": waited too long ({limit:?})")?,
            Reason::AskedToPause => f.write_str(": the other side asked for a pause")?,
            Reason::StoreDown => f.write_str(": the shared store does not answer")?,
            Reason::LikelyRefused => f.write_str(": the other side rejects too many calls")?,
            Reason::Shed { priority } => write!(f, ": calls of {priority} priority are shed")?,
            Reason::SwitchedOff => f.write_str(": switched off under overload")?,
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
