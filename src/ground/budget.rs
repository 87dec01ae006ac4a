//! How much of the load may be retries and hedges: one budget for all that call the same target.
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{
    config::{ConfigError, human, require, require_some_time},
    outcome::FailureKind,
    sync::Mutex,
    time::Instant,
    window::ChangingWindow,
};

/// Settings of a [`RetryBudget`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct RetryBudgetConfig {
    /// Retries allowed for each first attempt in the window. 0.2 by default.
    pub ratio: f64,
    /// How long a first attempt counts. 10 s by default.
    #[serde(with = "human")]
    pub window: Duration,
    /// Retries allowed each second whatever the traffic, so that a quiet client can retry at all. 10 by default.
    pub min_per_second: u32,
    /// What a retry takes from the budget. 1 by default.
    pub cost: u32,
    /// What a retry after a time-out takes: the other side is likely at work still. 2 by default.
    pub timeout_cost: u32,
}

impl RetryBudgetConfig {
    /// Sets the retries allowed for each first attempt.
    #[must_use]
    pub const fn ratio(mut self, ratio: f64) -> Self {
        self.ratio = ratio;
        self
    }

    /// Sets how long a first attempt counts.
    #[must_use]
    pub const fn window(mut self, window: Duration) -> Self {
        self.window = window;
        self
    }

    /// Sets the retries allowed each second whatever the traffic.
    #[must_use]
    pub const fn min_per_second(mut self, n: u32) -> Self {
        self.min_per_second = n;
        self
    }

    /// Sets what a retry takes, in general and after a time-out.
    #[must_use]
    pub const fn costs(mut self, cost: u32, timeout_cost: u32) -> Self {
        self.cost = cost;
        self.timeout_cost = timeout_cost;
        self
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        require(self.ratio >= 0.0 && self.ratio <= 1000.0, "ratio", "must lie between 0 and 1000")?;
        require_some_time(self.window, "window")?;
        require(self.window <= Duration::from_secs(3600), "window", "must be at most 1h")?;
        require(self.cost >= 1, "cost", "must be at least 1")?;
        require(self.timeout_cost >= 1, "timeout_cost", "must be at least 1")?;
        require(
            self.ratio > 0.0 || self.min_per_second > 0,
            "ratio",
            "must be above 0, or `min_per_second` must be: this budget never allows a retry",
        )
    }
}

impl Default for RetryBudgetConfig {
    fn default() -> Self {
        Self { ratio: 0.2, window: Duration::from_secs(10), min_per_second: 10, cost: 1, timeout_cost: 2 }
    }
}

/// A bound on what retries (and hedges) add to the load of one target. Clones share it: give one to every policy that calls
/// the same target.
///
/// Why a budget, beside a limit of attempts? Three attempts each are harmless while one call in a thousand fails, and triple
/// the load just when everything fails. The budget allows retries in proportion to first attempts, so that the worst case is
/// `1 + ratio` calls for each request. A first attempt that a policy inside refused (an open breaker) earns none: the target never saw it. After Finagle's `RetryBudget`: 20 % of the requests of 10 s, and 10 a second.
#[derive(Clone)]
pub struct RetryBudget(Arc<Inner>);

struct Inner {
    /// Switched off, it allows everything.
    on: AtomicBool,
    requests: ChangingWindow,
    /// Grows under the lock alone.
    taken: ChangingWindow,
    /// Held from the look to the taking, so that they are one; only failed attempts come here.
    config: Mutex<RetryBudgetConfig>,
}

const BUCKETS: u32 = 10;

impl RetryBudget {
    /// A budget by these settings, full.
    ///
    /// # Errors
    /// Where a setting breaks its rule.
    pub fn new(config: RetryBudgetConfig) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self::make(config))
    }

    /// For settings that were checked before.
    pub(crate) fn make(config: RetryBudgetConfig) -> Self {
        let window = || ChangingWindow::new(config.window, BUCKETS);
        let (requests, taken) = (window(), window());
        Self(Arc::new(Inner { on: AtomicBool::new(true), requests, taken, config: Mutex::new(config) }))
    }

    /// Its settings, as they are now.
    pub fn config(&self) -> RetryBudgetConfig {
        *self.0.config.lock()
    }

    /// Changes the settings at `now` while it is in use, for all that share it. What was earned and taken goes on counting, in proportion where the window
    /// becomes shorter.
    ///
    /// # Errors
    /// Where a setting breaks its rule; then nothing has changed.
    pub fn reconfigure(&self, config: RetryBudgetConfig, now: Instant) -> Result<(), ConfigError> {
        config.check()?;
        let mut current = self.0.config.lock();
        ChangingWindow::set_spans([&self.0.requests, &self.0.taken], config.window, now);
        *current = config;
        Ok(())
    }

    /// How many retries at cost 1 it would allow at `now`.
    pub fn balance(&self, now: Instant) -> u64 {
        self.0.balance(&self.0.config.lock(), now).max(0.0) as u64
    }

    /// Switches it off, or on again.
    pub(crate) fn switch(&self, on: bool) {
        self.0.on.store(on, Ordering::Relaxed);
    }

    /// Whether it bounds anything.
    pub(crate) fn is_on(&self) -> bool {
        self.0.on.load(Ordering::Relaxed)
    }

    /// Whether both are clones of one.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns a number that its clones alone share while one of them lives; never 0.
    pub(crate) fn id(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    pub(crate) fn deposit(&self, now: Instant) {
        self.0.requests.add(now, 1, &self.0.taken);
    }

    /// Takes back a first attempt that was told of at about `now`: a policy refused it, and the target never saw it.
    pub(crate) fn refund(&self, now: Instant) {
        self.0.requests.take_one_back(now);
    }

    /// Takes what a retry after `kind` costs, if it is there.
    pub(crate) fn withdraw(&self, now: Instant, kind: Option<FailureKind>) -> bool {
        let config = self.0.config.lock();
        let cost = if kind == Some(FailureKind::Timeout) { config.timeout_cost } else { config.cost };
        let allowed = !self.is_on() || self.0.balance(&config, now) >= f64::from(cost);
        if allowed {
            self.0.taken.add(now, cost, &self.0.requests);
        }
        allowed
    }
}

impl Inner {
    fn balance(&self, config: &RetryBudgetConfig, now: Instant) -> f64 {
        let earned = self.requests.sum(now) as f64 * config.ratio;
        let floor = f64::from(config.min_per_second) * config.window.as_secs_f64();
        earned + floor - self.taken.sum(now) as f64
    }
}

impl fmt::Debug for RetryBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryBudget").field("config", &self.config()).finish_non_exhaustive()
    }
}
