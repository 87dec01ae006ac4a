//! Configuration of chaos.
use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    config::{ConfigError, human, require, require_share, require_some_time, setters},
    outcome::FailureKind,
};

/// Configuration of a [`Chaos`](super::Chaos): plain data, from code or from a document.
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
    /// If set, faults are injected. Off by default.
    pub enabled: bool,
    /// Faults to inject, with their rates and scopes. Each rule applies to each attempt, in this
    /// order. At most 100; none by default.
    pub rules: Vec<ChaosRule>,
}

/// One kind of fault, its rate, and its scope.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ChaosRule {
    /// Fault to inject.
    pub inject: Injection,
    /// Share of the attempts in scope that get it: above 0, at most 1.
    pub rate: f64,
    /// [Names](crate::call::named) of the operations in scope. Empty by default: all operations,
    /// with or without a name.
    #[serde(default)]
    pub operations: Vec<String>,
    /// Numbers of the attempts in scope, from 1. Empty by default: all attempts.
    #[serde(default)]
    pub attempts: Vec<u32>,
}

/// Kind of a fault to inject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Injection {
    /// The attempt starts later.
    Latency(LatencyConfig),
    /// The attempt fails without being started: with an [injected
    /// rejection](crate::Reason::Injected), judged as a failure of this kind.
    Fault(FaultConfig),
    /// The operation returns a result of your own, which the classifier judges. Applies only to
    /// operations wrapped by [`Chaos::outcomes`](super::Chaos::outcomes).
    Outcome,
    /// The attempt never ends.
    Hang,
    /// The attempt panics.
    Panic,
}

/// Delay of an attempt: uniformly random between both limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct LatencyConfig {
    /// Minimum delay. None by default.
    #[serde(default, with = "human")]
    pub min: Duration,
    /// Maximum delay.
    #[serde(with = "human")]
    pub max: Duration,
}

impl LatencyConfig {
    /// Returns delays from zero to `max`.
    pub const fn new(max: Duration) -> Self {
        Self { min: Duration::ZERO, max }
    }
}

impl FaultConfig {
    /// Returns failures of this kind, without a hint.
    pub const fn new(kind: FailureKind) -> Self {
        Self { kind, retry_after: None }
    }
}

setters! {
    impl LatencyConfig {
        min: Duration,
        max: Duration,
    }
}

/// Failure of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct FaultConfig {
    /// Kind of failure as which it is judged.
    pub kind: FailureKind,
    /// Hint of the service when to try again. None by default.
    #[serde(default, with = "human::option", skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<Duration>,
}

setters! {
    impl FaultConfig {
        kind: FailureKind,
        retry_after: Option<Duration>,
    }
}

setters! {
    impl ChaosConfig {
        enabled: bool,
        rules: [ChaosRule],
    }
}

impl ChaosConfig {
    /// Returns an enabled configuration with these rules.
    pub fn of(rules: impl IntoIterator<Item = ChaosRule>) -> Self {
        Self { enabled: true, rules: rules.into_iter().collect() }
    }

    /// Adds a rule.
    #[must_use]
    pub fn rule(mut self, rule: ChaosRule) -> Self {
        self.rules.push(rule);
        self
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        require(self.rules.len() <= 100, "rules", "must have at most 100 entries")?;
        let checked = |(i, rule): (usize, &ChaosRule)| rule.check().map_err(|e| e.within(&format!("rules.{i}")));
        self.rules.iter().enumerate().try_for_each(checked)
    }
}

setters! {
    impl ChaosRule {
        inject: Injection,
        rate: f64,
        operations: [impl Into<String>],
        attempts: [u32],
    }
}

impl ChaosRule {
    /// Returns a rule that injects this fault into this share of all attempts.
    pub const fn new(inject: Injection, rate: f64) -> Self {
        Self { inject, rate, operations: Vec::new(), attempts: Vec::new() }
    }

    /// Returns a rule that delays attempts, by a time between these limits.
    pub const fn latency(min: Duration, max: Duration, rate: f64) -> Self {
        Self::new(Injection::Latency(LatencyConfig { min, max }), rate)
    }

    /// Returns a rule that fails attempts with this kind.
    pub const fn fault(kind: FailureKind, rate: f64) -> Self {
        Self::new(Injection::Fault(FaultConfig { kind, retry_after: None }), rate)
    }

    /// Returns a rule that fails attempts with this kind and this hint when to try again.
    pub const fn fault_with_hint(kind: FailureKind, retry_after: Duration, rate: f64) -> Self {
        Self::new(Injection::Fault(FaultConfig { kind, retry_after: Some(retry_after) }), rate)
    }

    /// Returns a rule that replaces the results of operations.
    pub const fn outcome(rate: f64) -> Self {
        Self::new(Injection::Outcome, rate)
    }

    /// Returns a rule by which attempts never end.
    pub const fn hang(rate: f64) -> Self {
        Self::new(Injection::Hang, rate)
    }

    /// Returns a rule by which attempts panic.
    pub const fn panic(rate: f64) -> Self {
        Self::new(Injection::Panic, rate)
    }

    fn check(&self) -> Result<(), ConfigError> {
        require_share(self.rate, "rate")?;
        require(!self.attempts.contains(&0), "attempts", "must count from 1")?;
        require(self.operations.iter().all(|name| !name.is_empty()), "operations", "must not contain an empty name")?;
        match self.inject {
            Injection::Latency(latency) => {
                require_some_time(latency.max, "inject.latency.max")?;
                require(latency.min <= latency.max, "inject.latency.min", "must be at most `max`")
            }
            Injection::Fault(fault) => require(
                !matches!(fault.kind, FailureKind::Panic | FailureKind::Cancelled),
                "inject.fault.kind",
                "must not be `panic` or `cancelled`: to inject a panic, use `inject = \"panic\"`",
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
