//! Settings of chaos.
use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    config::{ConfigError, human, require, require_share, require_some_time},
    outcome::FailureKind,
};

/// Settings of a [`Chaos`](super::Chaos): plain data, from code or from a document.
///
/// ```
/// use steadfast::chaos::{ChaosConfig, Injection};
///
/// let config: ChaosConfig = toml::from_str(r#"
///     enabled = true
///
///     [[rules]]
///     inject = { latency = { min = "10ms", max = "200ms" } }
///     rate = 0.1
///
///     [[rules]]
///     inject = { fault = { kind = "overloaded", retry_after = "1s" } }
///     rate = 0.05
///     operations = ["price"]
///     attempts = [1]
///
///     [[rules]]
///     inject = "hang"
///     rate = 0.01
/// "#).unwrap();
/// assert_eq!(config.rules[2].inject, Injection::Hang);
/// ```
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ChaosConfig {
    /// Whether anything is injected. No by default.
    pub enabled: bool,
    /// What is injected, where, and how often. Each attempt meets every rule, in this order. At most 100; none by default.
    pub rules: Vec<ChaosRule>,
}

/// One sort of fault, its rate, and where it is met.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ChaosRule {
    /// What is injected.
    pub inject: Injection,
    /// The share of attempts that meet it: above 0, at most 1.
    pub rate: f64,
    /// The [names](crate::call::named) of the operations that meet it. All, also those without a name, where this is empty: the default.
    #[serde(default)]
    pub operations: Vec<String>,
    /// The numbers of the attempts that meet it, from 1. All where this is empty: the default.
    #[serde(default)]
    pub attempts: Vec<u32>,
}

/// What is injected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Injection {
    /// The attempt starts later.
    Latency(LatencyConfig),
    /// The attempt fails without being made: with an [injected refusal](crate::Reason::Injected), judged as a failure of this kind.
    Fault(FaultConfig),
    /// The operation comes back with a result of your own, for the classifier to judge: in operations that are wrapped by
    /// [`Chaos::outcomes`](super::Chaos::outcomes), and nowhere else.
    Outcome,
    /// The attempt never ends.
    Hang,
    /// The attempt panics.
    Panic,
}

/// How much later an attempt starts: as likely any time between both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct LatencyConfig {
    /// At least this. None by default.
    #[serde(default, with = "human")]
    pub min: Duration,
    /// At most this.
    #[serde(with = "human")]
    pub max: Duration,
}

/// How an attempt fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct FaultConfig {
    /// The kind of failure that it is judged as.
    pub kind: FailureKind,
    /// What the other side would say about coming back. Nothing by default.
    #[serde(default, with = "human::option", skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<Duration>,
}

impl ChaosConfig {
    /// Switched on, with these rules.
    pub fn of(rules: impl IntoIterator<Item = ChaosRule>) -> Self {
        Self { enabled: true, rules: rules.into_iter().collect() }
    }

    /// Sets whether anything is injected.
    #[must_use]
    pub const fn enabled(mut self, yes: bool) -> Self {
        self.enabled = yes;
        self
    }

    /// Adds a rule.
    #[must_use]
    pub fn rule(mut self, rule: ChaosRule) -> Self {
        self.rules.push(rule);
        self
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        require(self.rules.len() <= 100, "rules", "must be at most 100")?;
        let checked = |(i, rule): (usize, &ChaosRule)| rule.check().map_err(|e| e.within(&format!("rules.{i}")));
        self.rules.iter().enumerate().try_for_each(checked)
    }
}

impl ChaosRule {
    /// Injects this into such a share of all attempts.
    pub const fn new(inject: Injection, rate: f64) -> Self {
        Self { inject, rate, operations: Vec::new(), attempts: Vec::new() }
    }

    /// Attempts that start later, by a time between these.
    pub const fn latency(min: Duration, max: Duration, rate: f64) -> Self {
        Self::new(Injection::Latency(LatencyConfig { min, max }), rate)
    }

    /// Attempts that fail in this way.
    pub const fn fault(kind: FailureKind, rate: f64) -> Self {
        Self::new(Injection::Fault(FaultConfig { kind, retry_after: None }), rate)
    }

    /// Attempts that fail in this way, and the other side asks to come back so much later.
    pub const fn fault_with_hint(kind: FailureKind, retry_after: Duration, rate: f64) -> Self {
        Self::new(Injection::Fault(FaultConfig { kind, retry_after: Some(retry_after) }), rate)
    }

    /// Operations that come back with a result of your own.
    pub const fn outcome(rate: f64) -> Self {
        Self::new(Injection::Outcome, rate)
    }

    /// Attempts that never end.
    pub const fn hang(rate: f64) -> Self {
        Self::new(Injection::Hang, rate)
    }

    /// Attempts that panic.
    pub const fn panic(rate: f64) -> Self {
        Self::new(Injection::Panic, rate)
    }

    /// Sets the names of the operations that meet it.
    #[must_use]
    pub fn on_operations<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.operations = names.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the numbers of the attempts that meet it.
    #[must_use]
    pub fn on_attempts(mut self, numbers: impl IntoIterator<Item = u32>) -> Self {
        self.attempts = numbers.into_iter().collect();
        self
    }

    fn check(&self) -> Result<(), ConfigError> {
        require_share(self.rate, "rate")?;
        require(!self.attempts.contains(&0), "attempts", "must count from 1")?;
        require(self.operations.iter().all(|name| !name.is_empty()), "operations", "must not be empty text")?;
        match self.inject {
            Injection::Latency(latency) => {
                require_some_time(latency.max, "inject.latency.max")?;
                require(latency.min <= latency.max, "inject.latency.min", "must be at most `max`")
            }
            Injection::Fault(fault) => require(
                !matches!(fault.kind, FailureKind::Panic | FailureKind::Cancelled),
                "inject.fault.kind",
                "must be a failure that is told: for a panic inject `panic`",
            ),
            Injection::Outcome | Injection::Hang | Injection::Panic => Ok(()),
        }
    }
}

impl fmt::Display for ChaosRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.inject {
            Injection::Latency(latency) => write!(f, "latency {:?} to {:?}", latency.min, latency.max)?,
            Injection::Fault(fault) => write!(f, "fault ({})", fault.kind)?,
            Injection::Outcome => f.write_str("outcome")?,
            Injection::Hang => f.write_str("hang")?,
            Injection::Panic => f.write_str("panic")?,
        }
        write!(f, " in {} %", self.rate * 100.0)?;
        if !self.operations.is_empty() {
            write!(f, " of {}", self.operations.join(", "))?;
        }
        if !self.attempts.is_empty() {
            let numbers: Vec<_> = self.attempts.iter().map(u32::to_string).collect();
            write!(f, " in attempt {}", numbers.join(", "))?;
        }
        Ok(())
    }
}
