//! The retry budget: a limit on the share of retries and hedges in the load of one target.
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{
    config::{ConfigError, Reconfigure, human, reconfigurable, require, require_some_time, setters},
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
    /// Retries allowed per first attempt in the window. 0.2 by default.
    pub ratio: f64,
    /// Time for which a first attempt counts. 10 s by default.
    #[serde(with = "human")]
    pub window: Duration,
    /// Retries allowed per second at any traffic, so that a quiet client can retry at all. 10 by
    /// default.
    pub min_per_second: u32,
    /// Cost of a retry. 1 by default.
    pub cost: u32,
    /// Cost of a retry after a time-out: the other side is probably still working. 2 by default.
    pub timeout_cost: u32,
}

setters! {
    impl RetryBudgetConfig {
        ratio: f64,
        window: Duration,
        min_per_second: u32,
        cost: u32,
        timeout_cost: u32,
    }
}

impl RetryBudgetConfig {
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

/// A limit on the load that retries and hedges add to one target. Clones share it: give one to
/// every policy that calls the same target.
///
/// Why a budget, beside a limit of attempts? Three attempts per call are harmless while one call in
/// a thousand fails, and triple the load when all calls fail. The budget allows retries in
/// proportion to first attempts, so the worst case is `1 + ratio` calls per request.
///
/// A first attempt that an inner policy rejected (an open breaker) earns no retries, because the
/// target never saw it. The defaults follow Finagle's `RetryBudget`: 20 % of the requests of 10 s,
/// and 10 a second.
#[derive(Clone)]
pub struct RetryBudget(Arc<BudgetInner>);

struct BudgetInner {
    /// While it is `false`, every withdrawal is granted. It publishes nothing else, so `Relaxed`
    /// suffices.
    on: AtomicBool,
    /// The settings have another span than the windows, until the next use, which knows the time.
    /// Set and cleared under the lock of `config`; without it, a hint to take the lock, so
    /// `Relaxed` suffices.
    has_new_span: AtomicBool,
    requests: ChangingWindow,
    /// Increased only under the lock.
    taken: ChangingWindow,
    /// Held from the check of the balance to the withdrawal, so that they are one step. Only failed
    /// attempts take it.
    config: Mutex<RetryBudgetConfig>,
}

const BUCKETS: u32 = 10;

reconfigurable!(RetryBudget, RetryBudgetConfig, |_this, next| next.check());

impl RetryBudget {
    /// Creates a full budget.
    ///
    /// # Errors
    /// Returns a [`ConfigError`] if a setting is out of range.
    pub fn new(config: RetryBudgetConfig) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self::make(config))
    }

    /// Creates a budget from settings that were checked before.
    pub(crate) fn make(config: RetryBudgetConfig) -> Self {
        let window = || ChangingWindow::new(config.window, BUCKETS);
        let (requests, taken) = (window(), window());
        Self(Arc::new(BudgetInner {
            on: AtomicBool::new(true),
            has_new_span: AtomicBool::new(false),
            requests,
            taken,
            config: Mutex::new(config),
        }))
    }

    /// Returns the current settings.
    pub fn config(&self) -> RetryBudgetConfig {
        *self.0.config.lock()
    }

    /// Replaces the settings, for all clones. Earned and spent retries keep counting, in proportion
    /// if the window becomes shorter. The window changes at the next use: what has left the old one
    /// by then no longer counts.
    ///
    /// # Errors
    /// Returns a [`ConfigError`] if a setting is out of range. Nothing has changed then.
    pub fn reconfigure(&self, config: RetryBudgetConfig) -> Result<(), ConfigError> {
        self.validate(&config)?;
        let mut current = self.0.config.lock();
        *current = config;
        self.0.has_new_span.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the number of retries at cost 1 that the budget would grant at `now`.
    pub fn balance(&self, now: Instant) -> u64 {
        self.0.balance(&self.0.config.lock(), now).max(0.0) as u64
    }

    /// Switches the limit on or off.
    pub(crate) fn switch(&self, on: bool) {
        self.0.on.store(on, Ordering::Relaxed);
    }

    /// Returns `true` if the limit is on.
    pub(crate) fn is_on(&self) -> bool {
        self.0.on.load(Ordering::Relaxed)
    }

    /// Returns `true` if both are clones of one budget.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns a number that identifies the budget among all live ones; never 0.
    pub(crate) fn id(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    pub(crate) fn deposit(&self, now: Instant) {
        if self.0.has_new_span.load(Ordering::Relaxed) {
            self.0.follow(&self.0.config.lock(), now);
        }
        self.0.requests.add(now, 1, &self.0.taken);
    }

    /// Takes back a first attempt that was counted at about `now`: a policy rejected it, so the
    /// target never saw it.
    pub(crate) fn refund(&self, now: Instant) {
        self.0.requests.take_one_back(now);
    }

    /// Withdraws the cost of a retry after `kind`, if the balance covers it. Returns `true` on
    /// success.
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

impl BudgetInner {
    /// Gives the windows the span of the settings. The caller holds the lock of `config`.
    fn follow(&self, config: &RetryBudgetConfig, now: Instant) {
        if self.has_new_span.swap(false, Ordering::Relaxed) {
            ChangingWindow::set_spans([&self.requests, &self.taken], config.window, now);
        }
    }

    /// The caller holds the lock of `config`.
    fn balance(&self, config: &RetryBudgetConfig, now: Instant) -> f64 {
        self.follow(config, now);
        let earned = self.requests.sum(now) as f64 * config.ratio;
        let floor = f64::from(config.min_per_second) * config.window.as_secs_f64();
        earned + floor - self.taken.sum(now) as f64
    }
}

crate::build::debug_fields!(RetryBudget, |this| config: this.config());

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::{
        budget::{RetryBudget, RetryBudgetConfig},
        time::Instant,
    };

    const S: fn(u64) -> Duration = Duration::from_secs;

    fn at(second: u64) -> Instant {
        Instant::from_nanos(second * 1_000_000_000)
    }

    #[test]
    fn a_longer_window_holds_from_the_next_first_attempt_on() {
        let config = RetryBudgetConfig::default().ratio(1.0).min_per_second(0).window(S(10));
        let budget = RetryBudget::make(config);
        (100..110).for_each(|second| budget.deposit(at(second)));
        budget.reconfigure(config.window(S(60))).unwrap();
        // No attempt fails, so that nothing asks for the balance.
        (110..150).for_each(|second| budget.deposit(at(second)));
        assert_eq!(budget.balance(at(150)), 49, "forty since the change, and nine of the ten seconds before it");
    }

    #[test]
    fn a_shorter_window_keeps_earned_retries_in_proportion() {
        let config = RetryBudgetConfig::default().ratio(1.0).min_per_second(0).window(S(60));
        let budget = RetryBudget::make(config);
        (0..60).for_each(|second| budget.deposit(at(100 + second)));
        let before = budget.balance(at(160));
        budget.reconfigure(config.window(S(30))).unwrap();
        assert_eq!(budget.balance(at(160)), before / 2);
        assert!(budget.withdraw(at(160), None));
    }
}
