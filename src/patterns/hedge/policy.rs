//! The policy: its door, its settings, and what explains it.
use std::{
    fmt,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use arc_swap::ArcSwap;

use super::{HedgeConfig, HedgeDelay, HedgeEvent, latencies::Latencies};
use crate::{
    budget::RetryBudget,
    call::{self, Attempt, CallContext, Explanation, Layer, Operation, Policy},
    config::{ConfigError, Name},
    observe::{Events, Subscription},
    outcome::{CallError, Outcome, PolicyKind},
    time::{Clock, Instant},
};

/// Starts a second attempt beside a first that takes long, and gives whichever succeeds first.
///
/// A clone is the same hedge: it shares what it knows of latencies, its budget and its events.
#[derive(Clone)]
pub struct Hedge(pub(super) Arc<HedgeInner>);

pub(super) struct HedgeInner {
    pub(super) settings: ArcSwap<HedgeSettings>,
    name: Option<Name>,
    pub(super) clock: Clock,
    pub(super) budget: Option<RetryBudget>,
    /// Until when the other side asked to be left alone, in nanoseconds.
    pub(super) quiet_until: AtomicU64,
    events: Events<HedgeEvent>,
}

/// What a new configuration replaces as a whole.
pub(super) struct HedgeSettings {
    pub(super) config: HedgeConfig,
    /// Only where a percentile is asked for.
    latencies: Option<Arc<Latencies>>,
}

impl HedgeSettings {
    /// By these settings, with the latencies that are known where they still make sense.
    fn new(config: HedgeConfig, known: Option<&Arc<Latencies>>) -> Self {
        let latencies = match config.delay {
            HedgeDelay::Fixed(_) => None,
            HedgeDelay::Percentile(percentile) => match known {
                Some(known) if known.window() == percentile.window => {
                    known.forget_look();
                    Some(known.clone())
                }
                _ => Some(Arc::new(Latencies::new(percentile.window))),
            },
        };
        Self { config, latencies }
    }

    pub(super) fn delay(&self, now: Instant) -> Duration {
        match (self.config.delay, &self.latencies) {
            (HedgeDelay::Percentile(p), Some(latencies)) => {
                latencies.look(now, p.percentile, p.min_samples).map_or(p.until_known, |delay| delay.max(p.floor))
            }
            (HedgeDelay::Percentile(p), None) => p.until_known,
            (HedgeDelay::Fixed(delay), _) => delay,
        }
    }
}

impl Hedge {
    /// A hedge by these settings, without a budget.
    ///
    /// # Errors
    /// Where a setting breaks its rule.
    pub fn new(config: HedgeConfig) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self::make(config, Clock::tokio(), None, None))
    }

    /// For settings that were checked before.
    pub(crate) fn make(config: HedgeConfig, clock: Clock, name: Option<Name>, budget: Option<RetryBudget>) -> Self {
        let settings = ArcSwap::from_pointee(HedgeSettings::new(config, None));
        Self(Arc::new(HedgeInner {
            settings,
            name,
            clock,
            budget,
            quiet_until: AtomicU64::new(0),
            events: Events::new(),
        }))
    }

    /// A new hedge of the same settings with a name, for events.
    #[must_use]
    pub fn named(self, name: impl Into<Name>) -> Self {
        Self::make(self.config(), self.0.clock.clone(), Some(name.into()), self.0.budget.clone())
    }

    /// A new hedge of the same settings on another clock.
    #[must_use]
    pub fn with_clock(self, clock: &Clock) -> Self {
        Self::make(self.config(), clock.clone(), self.0.name.clone(), self.0.budget.clone())
    }

    /// A new hedge of the same settings with a budget, which it shares with every retry and hedge that holds a clone of it.
    #[must_use]
    pub fn with_budget(self, budget: &RetryBudget) -> Self {
        Self::make(self.config(), self.0.clock.clone(), self.0.name.clone(), Some(budget.clone()))
    }

    /// Its settings.
    pub fn config(&self) -> HedgeConfig {
        self.0.settings.load().config
    }

    /// Its name.
    pub fn name(&self) -> Option<&str> {
        self.0.name.as_ref().map(Name::as_str)
    }

    /// Its budget.
    pub fn budget(&self) -> Option<&RetryBudget> {
        self.0.budget.as_ref()
    }

    /// Its events from now on.
    pub fn events(&self) -> Subscription<HedgeEvent> {
        self.0.events.subscribe()
    }

    /// How long an attempt may take now before another starts beside it.
    pub fn delay(&self) -> Duration {
        self.0.settings.load().delay(self.0.clock.now())
    }

    /// Replaces its settings, for all its clones. Latencies that are known are kept, unless the window changes. A call that
    /// waits keeps its delay; its other decisions go by the new settings.
    ///
    /// # Errors
    /// Where a setting breaks its rule; then nothing has changed.
    pub fn reconfigure(&self, config: HedgeConfig) -> Result<(), ConfigError> {
        config.check()?;
        self.0.settings.rcu(|now| HedgeSettings::new(config, now.latencies.as_ref()));
        Ok(())
    }

    /// Runs `operation` with nothing but this hedge around it; every `Err` is a failure after which another attempt starts.
    ///
    /// # Errors
    /// The operation's own, of the last attempt that failed.
    ///
    /// # Cancel safety
    /// Dropped, it drops all attempts in flight, and makes no other. What it took from the budget stays taken.
    #[inline]
    pub fn call<O: Operation>(
        &self,
        operation: O,
    ) -> impl Future<Output = Result<O::Output, CallError<O::Error>>> + Send {
        call::call_alone(self, operation)
    }
}

impl HedgeInner {
    #[inline]
    fn may_hedge(&self, cx: CallContext<'_>) -> bool {
        let config = &self.settings.load().config;
        config.max_attempts > 1 && cx.is_idempotent().unwrap_or(config.idempotent)
    }

    /// A call took this long: what percentiles are taken of.
    pub(super) fn record(&self, began: Instant) {
        let settings = self.settings.load();
        if let Some(latencies) = &settings.latencies {
            let now = self.clock.now();
            latencies.record(now, now - began);
        }
    }

    /// Tells the budget of the call, unless a retry around it has.
    pub(super) fn deposit(&self, now: Instant, cx: CallContext<'_>) {
        if let Some(budget) = &self.budget
            && cx.attempt() == 1
            && !cx.has_paid_into(budget)
        {
            budget.deposit(now);
        }
    }

    pub(super) fn is_quiet(&self, now: Instant) -> bool {
        now.as_nanos() < self.quiet_until.load(Relaxed)
    }

    pub(super) fn tell(&self, event: impl FnOnce() -> HedgeEvent) {
        if self.events.wanted() {
            self.events.send(self.name.as_ref(), self.clock.now(), event);
        }
    }
}

impl Policy for Hedge {
    #[inline]
    async fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> Outcome {
        if self.0.may_hedge(cx)
            && let Some(forks) = inner.fork()
        {
            return self.0.hedged(&forks, cx).await;
        }
        inner.attempt(cx).await
    }

    fn describe(&self, explanation: &mut Explanation) {
        let HedgeConfig { max_attempts, delay, idempotent, .. } = self.config();
        let after = match delay {
            HedgeDelay::Fixed(delay) => format!("{delay:?}"),
            HedgeDelay::Percentile(p) => format!(
                "the time that {} % of calls took within {:?}, at least {:?} ({:?} until {} are known)",
                p.percentile * 100.0,
                p.window,
                p.floor,
                p.until_known,
                p.min_samples
            ),
        };
        let settings = format!("up to {max_attempts} attempts at once, each after {after}");
        let mut layer = Layer::new(PolicyKind::Hedge, self.0.name.clone(), settings)
            .with_budget(self.0.budget.as_ref().is_some_and(RetryBudget::is_on))
            .with_idempotent(idempotent);
        if let HedgeDelay::Fixed(delay) = delay {
            layer = layer.with_delay(delay);
            if delay.is_zero() && max_attempts > 1 {
                layer = layer.with_warning(format!("starts all attempts at once: {max_attempts} times the load"));
            }
        }
        explanation.push(layer);
    }
}

impl fmt::Debug for Hedge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hedge")
            .field("name", &self.0.name)
            .field("config", &self.config())
            .field("budget", &self.0.budget)
            .finish_non_exhaustive()
    }
}
