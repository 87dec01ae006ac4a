//! The policy: its methods, its settings, and its description.
use std::{
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
    build::{Builder, Common, Component, HasEvents, HasName},
    call::{self, Attempt, CallContext, Explanation, Layer, Operation, Policy},
    config::{ConfigError, Name, Reconfigure, reconfigurable},
    observe::{Events, Subscription},
    outcome::{CallError, Outcome, PolicyKind},
    time::{Clock, Instant},
};

/// Starts a second attempt beside a slow first one, and returns the first success.
///
/// A clone is the same hedge: it shares recent latencies, the budget and the events.
#[derive(Clone)]
pub struct Hedge(pub(super) Arc<HedgeInner>);

pub(super) struct HedgeInner {
    pub(super) settings: ArcSwap<HedgeSettings>,
    name: Option<Name>,
    pub(super) clock: Clock,
    pub(super) budget: Option<RetryBudget>,
    /// Nanoseconds until which the other side asked for a pause. It only grows, by `fetch_max`, and
    /// publishes nothing else, so `Relaxed` suffices.
    pub(super) quiet_until: AtomicU64,
    events: Events<HedgeEvent>,
}

/// The settings, which a new configuration replaces as a whole.
pub(super) struct HedgeSettings {
    pub(super) config: HedgeConfig,
    /// `Some` if the delay is a percentile.
    latencies: Option<Arc<Latencies>>,
}

/// Arguments of a hedge, beside name, clock and entropy.
#[derive(Debug)]
pub struct HedgeSpec {
    config: HedgeConfig,
    budget: Option<RetryBudget>,
}

impl Builder<Hedge> {
    /// Sets the budget, which is shared with every retry and hedge that holds a clone of it.
    pub fn budget(mut self, budget: &RetryBudget) -> Self {
        self.spec.budget = Some(budget.clone());
        self
    }
}

impl HedgeSettings {
    /// Creates the settings; keeps the recent latencies if their window is unchanged.
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

reconfigurable!(Hedge, HedgeConfig, |_this, next| next.check());

impl Hedge {
    /// Creates a hedge without a budget.
    ///
    /// # Errors
    /// Returns a [`ConfigError`] if a setting is out of range.
    pub fn new(config: HedgeConfig) -> Result<Self, ConfigError> {
        Self::builder(config).build()
    }

    /// Creates a builder of a hedge.
    ///
    /// Methods of [this builder alone](crate::Builder#impl-Builder%3CHedge%3E): `budget`.
    pub fn builder(config: HedgeConfig) -> Builder<Self> {
        Builder::new(HedgeSpec { config, budget: None })
    }

    /// Creates a hedge from settings that were checked before.
    pub(crate) fn make(HedgeSpec { config, budget }: HedgeSpec, Common { name, clock, hooks, .. }: Common) -> Self {
        let settings = ArcSwap::from_pointee(HedgeSettings::new(config, None));
        Self(Arc::new(HedgeInner {
            settings,
            name,
            clock,
            budget,
            quiet_until: AtomicU64::new(0),
            events: hooks.events(),
        }))
    }

    /// Returns the current settings.
    pub fn config(&self) -> HedgeConfig {
        self.0.settings.load().config
    }

    /// Returns the name, if one is set.
    pub fn name(&self) -> Option<&str> {
        self.0.name.as_ref().map(Name::as_str)
    }

    /// Returns the budget, if one is set.
    pub fn budget(&self) -> Option<&RetryBudget> {
        self.0.budget.as_ref()
    }

    /// Subscribes to events, from now on.
    pub fn events(&self) -> Subscription<HedgeEvent> {
        self.0.events.subscribe()
    }

    /// Returns the current delay before another attempt starts.
    pub fn delay(&self) -> Duration {
        self.0.settings.load().delay(self.0.clock.now())
    }

    /// Replaces the settings while in use, for all clones. Recent latencies are kept, unless the
    /// window changes. A waiting call keeps its delay; its other decisions use the new settings.
    ///
    /// # Errors
    /// Returns a [`ConfigError`] if a setting is out of range. Nothing has changed then.
    pub fn reconfigure(&self, config: HedgeConfig) -> Result<(), ConfigError> {
        self.validate(&config)?;
        self.0.settings.rcu(|now| HedgeSettings::new(config, now.latencies.as_ref()));
        Ok(())
    }

    /// Runs `operation` under this hedge alone; every `Err` is a failure after which another
    /// attempt starts.
    ///
    /// # Errors
    /// Returns the operation's own error, of the last attempt that failed.
    ///
    /// # Cancel safety
    /// If the future is dropped, all attempts in flight are dropped, and no other starts.
    /// Withdrawals from the budget are not refunded.
    #[inline]
    pub fn call<T: Send, E: Send, O>(&self, operation: O) -> impl Future<Output = Result<T, CallError<E>>> + Send
    where
        O: Operation<Output = T, Error = E>, // `|| async { .. }`; blocks: `call_blocking`; not `Send`: `Pipeline::call_local`; `&mut`: `with_state`
    {
        call::call_alone(self, operation)
    }
}

impl HedgeInner {
    #[inline]
    pub(super) fn may_hedge(&self, cx: CallContext<'_>) -> bool {
        let config = &self.settings.load().config;
        config.max_attempts > 1 && cx.is_idempotent().unwrap_or(config.idempotent)
    }

    /// Records the latency of a call, for the percentile.
    pub(super) fn record(&self, began: Instant) {
        let settings = self.settings.load();
        if let Some(latencies) = &settings.latencies {
            let now = self.clock.now();
            latencies.record(now, now - began);
        }
    }

    /// Counts the call in the budget, unless an outer retry has.
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

    /// Returns `true` if events are wanted.
    pub(super) fn tells(&self) -> bool {
        self.events.wanted()
    }

    pub(super) fn tell(&self, event: impl FnOnce() -> HedgeEvent) {
        if self.tells() {
            self.events.send(self.name.as_ref(), self.clock.now(), event);
        }
    }
}

impl Component for Hedge {
    type Built = Result<Self, ConfigError>;
    type Spec = HedgeSpec;

    fn assemble(spec: HedgeSpec, common: Common) -> Self::Built {
        spec.config.check()?;
        Ok(Self::make(spec, common))
    }
}

impl HasName for Hedge {}
impl HasEvents<HedgeEvent> for Hedge {}

impl Policy for Hedge {
    #[inline]
    fn around<A: Attempt>(&self, inner: A, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send {
        self.0.around(inner, cx)
    }

    fn describe(&self, explanation: &mut Explanation) {
        let HedgeConfig { max_attempts, delay, idempotent, .. } = self.config();
        let after = match delay {
            HedgeDelay::Fixed(delay) => format!("{delay:?}"),
            HedgeDelay::Percentile(p) => format!(
                "the time that {} % of the calls of the last {:?} took, at least {:?} ({:?} until there are {} samples)",
                p.percentile * 100.0,
                p.window,
                p.floor,
                p.until_known,
                p.min_samples
            ),
        };
        let which = if idempotent { "" } else { ", of operations marked as idempotent" };
        let settings = format!("up to {max_attempts} attempts at once{which}, each after {after}");
        let mut layer = Layer::new(PolicyKind::Hedge, self.0.name.clone(), settings)
            .with_budget(self.0.budget.as_ref().is_some_and(RetryBudget::is_on))
            .with_idempotent(idempotent)
            .with_component(self);
        if let HedgeDelay::Fixed(delay) = delay {
            layer = layer.with_delay(delay);
            if delay.is_zero() && max_attempts > 1 {
                layer = layer.with_warning(format!("starts all attempts at once: {max_attempts} times the load"));
            }
        }
        explanation.push(layer);
    }
}

crate::build::debug_fields!(Hedge, |this| name: this.0.name, config: this.config(), budget: this.0.budget);
