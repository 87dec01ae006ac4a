//! Draws the faults of one attempt. The pure part: knows neither async nor a clock.
use std::time::Duration;

use super::{
    ChaosConfig, ChaosRule,
    config::{FaultConfig, Injection},
};
use crate::{entropy::mix, time::scaled};

/// Faults of one attempt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Drawn {
    /// Delay of its start.
    pub(super) delay: Duration,
    /// Fault that ends the attempt after the delay.
    pub(super) end: Option<End>,
}

/// Fault that ends an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Fault(FaultConfig),
    Hang,
    Panic,
}

/// Draws the faults of one attempt from one number. Every rule has two draws of its own, by its
/// position: neither the kind of another rule nor the scope of one changes any other draw.
pub(super) fn draw(config: &ChaosConfig, seed: u64, operation: Option<&str>, attempt: u32) -> Drawn {
    let mut drawn = Drawn::default();
    for (i, rule) in config.rules.iter().enumerate() {
        if !hits(rule, seed, i, operation, attempt) {
            continue;
        }
        let end = match rule.inject {
            Injection::Latency(latency) => {
                let part = scaled(latency.max.saturating_sub(latency.min), unit(seed, 2 * i + 1));
                drawn.delay = drawn.delay.saturating_add(latency.min + part);
                continue;
            }
            Injection::Outcome => continue,
            Injection::Fault(fault) => End::Fault(fault),
            Injection::Hang => End::Hang,
            Injection::Panic => End::Panic,
        };
        // The first fault that ends the attempt; later rules do not apply.
        drawn.end = Some(end);
        break;
    }
    drawn
}

/// Draws whether the result of an operation is replaced.
pub(super) fn draw_outcome(config: &ChaosConfig, seed: u64, operation: Option<&str>, attempt: u32) -> bool {
    let hits =
        |(i, rule): (usize, &ChaosRule)| rule.inject == Injection::Outcome && hits(rule, seed, i, operation, attempt);
    config.rules.iter().enumerate().any(hits)
}

fn hits(rule: &ChaosRule, seed: u64, place: usize, operation: Option<&str>, attempt: u32) -> bool {
    let here =
        rule.operations.is_empty() || operation.is_some_and(|name| rule.operations.iter().any(|own| own == name));
    let now = rule.attempts.is_empty() || rule.attempts.contains(&attempt);
    here && now && unit(seed, 2 * place) < rule.rate
}

/// Returns the `n`th number in `0.0..1.0` of this seed.
fn unit(seed: u64, n: usize) -> f64 {
    /// A double holds 53 bits of fraction.
    const SCALE: f64 = 1.0 / (1u64 << 53) as f64;
    (mix(seed ^ mix(n as u64 + 1)) >> 11) as f64 * SCALE
}
