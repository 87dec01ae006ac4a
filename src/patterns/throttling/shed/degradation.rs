//! Degradation: features that are switched off, in a stated order, under overload.
use std::{fmt, future::Future, sync::Arc};

use super::{
    DegradationConfig,
    feature_level::FeatureLevel,
    gauge::{Due, Gauges, Reading, read_until},
};
use crate::{
    build::{Builder, Common, Component, HasEvents, HasName},
    call::{self, Attempt, CallContext, Explanation, Layer, Operation, Policy},
    config::{ConfigError, Name, Reconfigure, reconfigurable},
    observe::{Events, Subscription},
    outcome::{CallError, Outcome, PolicyKind, Reason, Rejected},
    sync::{AtomicU32, Mutex, Ordering},
    throttling::DegradationEvent,
    time::{Clock, Instant},
};

/// Switches features off one after the other, in a stated order, while a gauge is above its soft
/// limit. Switches them on again in reverse order when all gauges are below.
///
/// A [`Shedder`](crate::throttling::Shedder) serves fewer calls; a degradation serves all calls
/// with fewer features. A clone is the same degradation.
///
/// ```
/// use steadfast::{throttling::{Degradation, DegradationConfig, Gauge}, time::Clock};
/// use std::time::Duration;
///
/// let (clock, driver) = Clock::manual();
/// let cpu = Gauge::new();
/// let config = DegradationConfig::of(["recommendations", "avatars"]).limit("cpu", 0.7, 0.9);
/// let degradation =
///     Degradation::builder(config).clock(&clock).gauge("cpu", cpu.clone()).build().unwrap();
/// let (recommendations, avatars) =
///     (degradation.feature("recommendations").unwrap(), degradation.feature("avatars").unwrap());
///
/// cpu.set(0.8);
/// assert_eq!((recommendations.is_enabled(), avatars.is_enabled()), (false, true));
/// driver.advance(Duration::from_secs(1));
/// assert_eq!((recommendations.is_enabled(), avatars.is_enabled()), (false, false));
/// cpu.set(0.3);
/// driver.advance(Duration::from_millis(100));
/// assert!(!avatars.is_enabled(), "not yet");
/// driver.advance(Duration::from_secs(10));
/// assert_eq!((recommendations.is_enabled(), avatars.is_enabled()), (false, true));
/// ```
#[derive(Clone)]
pub struct Degradation(Arc<DegradationCore>);

struct DegradationCore {
    gauges: Gauges,
    name: Option<Name>,
    clock: Clock,
    due: Due,
    /// Locked by a task that reads the gauges, changes the settings or looks up a feature.
    state: Mutex<DegradationState>,
    events: Events<DegradationEvent>,
}

struct DegradationState {
    config: Arc<DegradationConfig>,
    features_off: FeatureLevel,
    /// In the order of the settings.
    switches: Vec<Arc<Switch>>,
}

struct Switch {
    name: Name,
    /// 1 if the feature is enabled. Written under the lock of `state`. It publishes no other
    /// memory, so `Relaxed` suffices.
    on: AtomicU32,
}

impl DegradationState {
    fn new(config: DegradationConfig) -> Self {
        let switch = |name: &String| Arc::new(Switch { name: name.into(), on: AtomicU32::new(1) });
        let switches = config.features.iter().map(switch).collect();
        Self { config: Arc::new(config), features_off: FeatureLevel::default(), switches }
    }

    /// Sets every switch by the level and stages an event for each change: features are switched
    /// off in order, and on in reverse order.
    fn set(&self, now: Instant, events: &Events<DegradationEvent>) {
        let turn = |switch: &Switch, on: bool| {
            if (switch.on.swap(u32::from(on), Ordering::Relaxed) == 1) != on {
                events.stage(now, || {
                    let feature = switch.name.clone();
                    if on {
                        DegradationEvent::SwitchedOn { feature }
                    } else {
                        DegradationEvent::SwitchedOff { feature }
                    }
                });
            }
        };
        let (off, on) = self.switches.split_at(self.features_off.level.min(self.switches.len()));
        off.iter().for_each(|switch| turn(switch, false));
        on.iter().rev().for_each(|switch| turn(switch, true));
    }
}

reconfigurable!(Degradation, DegradationConfig, |this, next| {
    next.check()?;
    this.0.gauges.all_have(&next.limits)
});

impl Degradation {
    /// Creates a degradation by these settings, with every feature enabled. It switches nothing off
    /// before it has a gauge.
    ///
    /// # Errors
    /// If a setting is invalid.
    pub fn new(config: DegradationConfig) -> Result<Self, ConfigError> {
        Self::builder(config).build()
    }

    /// Creates a builder of a degradation.
    ///
    /// Methods of [this builder alone](crate::Builder#impl-Builder%3CDegradation%3E): `gauge`.
    pub fn builder(config: DegradationConfig) -> Builder<Self> {
        Builder::new(DegradationSpec { config, gauges: Gauges::default() })
    }

    /// Returns the current settings.
    pub fn config(&self) -> DegradationConfig {
        DegradationConfig::clone(&self.0.state.lock().config)
    }

    /// Returns the feature of this name. Keep it, and ask it before each use. It is also a policy.
    pub fn feature(&self, name: &str) -> Option<Feature> {
        let state = self.0.state.lock();
        let switch = state.switches.iter().find(|switch| switch.name.as_str() == name)?.clone();
        Some(Feature { switch, degradation: self.clone() })
    }

    /// Returns the names of the features that are switched off now, in the order of switching.
    pub fn switched_off(&self) -> Vec<Name> {
        self.0.sample_if_due();
        let state = self.0.state.lock();
        state.switches[..state.features_off.level].iter().map(|switch| switch.name.clone()).collect()
    }

    /// Changes the settings while the degradation is in use. The number of disabled features stays;
    /// they become the first ones of the new order. A feature that is no longer named is enabled
    /// for good.
    ///
    /// # Errors
    /// If a setting is invalid, or a watched gauge has no limits; then nothing has changed.
    pub fn reconfigure(&self, config: DegradationConfig) -> Result<(), ConfigError> {
        self.validate(&config)?;
        let now = self.0.clock.now();
        {
            let mut state = self.0.state.lock();
            let mut next = DegradationState::new(config);
            (next.features_off, next.features_off.level) =
                (state.features_off, state.features_off.level.min(next.switches.len()));
            for old in state.switches.drain(..) {
                match next.switches.iter_mut().find(|switch| switch.name == old.name) {
                    Some(switch) => *switch = old,
                    None => old.on.store(1, Ordering::Relaxed),
                }
            }
            next.set(now, &self.0.events);
            *state = next;
        }
        self.0.due.now();
        self.0.events.flush(self.0.name.as_ref());
        Ok(())
    }

    /// Subscribes to the events from now on.
    pub fn events(&self) -> Subscription<DegradationEvent> {
        self.0.events.subscribe()
    }

    /// Reads the gauges at their interval until `shutdown` is ready, even if no feature is asked,
    /// so that events are never late. It is optional: asking whether a feature is enabled reads the
    /// gauges when a reading is due.
    ///
    /// # Cancel safety
    /// A future that is dropped stops reading; nothing is lost.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) {
        let read = || {
            self.0.sample_if_due();
            self.0.state.lock().config.sample_every
        };
        read_until(shutdown, &self.0.clock, read).await;
    }

    /// Returns a description of the degradation, with warnings about settings that will cause
    /// trouble.
    pub fn explain(&self) -> Explanation {
        let mut explanation = Explanation::default();
        self.0.describe(&mut explanation, None);
        explanation
    }
}

/// Arguments of a degradation, beside name, clock and entropy.
#[derive(Debug)]
pub struct DegradationSpec {
    config: DegradationConfig,
    gauges: Gauges,
}

impl Builder<Degradation> {
    /// Watches this gauge: a closure, or a [`Gauge`](crate::throttling::Gauge). The settings must
    /// have limits for its name. A gauge of the same name is replaced.
    pub fn gauge(mut self, name: impl Into<Name>, gauge: impl Reading) -> Self {
        self.spec.gauges = self.spec.gauges.and(name.into(), gauge);
        self
    }
}

impl Component for Degradation {
    type Built = Result<Self, ConfigError>;
    type Spec = DegradationSpec;

    fn assemble(spec: DegradationSpec, common: Common) -> Self::Built {
        let DegradationSpec { config, gauges } = spec;
        config.check()?;
        gauges.all_have(&config.limits)?;
        let Common { name, clock, hooks, .. } = common;
        let state = Mutex::new(DegradationState::new(config));
        Ok(Self(Arc::new(DegradationCore { gauges, name, clock, due: Due::new(), state, events: hooks.events() })))
    }
}

impl HasName for Degradation {}
impl HasEvents<DegradationEvent> for Degradation {}

impl DegradationCore {
    /// Reads the gauges if a reading is due.
    #[inline]
    fn sample_if_due(&self) {
        let now = self.clock.now();
        if self.due.is(now.as_nanos()) {
            self.sample(now);
        }
    }

    #[cold]
    fn sample(&self, now: Instant) {
        let settings = || self.state.lock().config.clone();
        let apply = |pressure| self.apply(now, pressure);
        if self.due.sample(&self.gauges, now, settings, |config| (&config.limits, config.sample_every), apply) {
            self.events.flush(self.name.as_ref());
        }
    }

    /// Applies a reading.
    fn apply(&self, now: Instant, pressure: Option<f64>) {
        let mut state = self.state.lock();
        let DegradationState { config, features_off, .. } = &mut *state;
        let before = features_off.level;
        features_off.sample(now, pressure, config);
        if features_off.level != before {
            state.set(now, &self.events);
        }
    }

    fn describe(&self, explanation: &mut Explanation, feature: Option<&str>) {
        let config = self.state.lock().config.clone();
        let settings = match feature {
            Some(feature) => format!("the feature `{feature}`"),
            None => format!("switches off {}", config.features.join(", then ")),
        };
        let layer = Layer::new(PolicyKind::Degradation, self.name.clone(), settings);
        explanation.push(self.gauges.warnings(&config.limits).into_iter().fold(layer, Layer::with_warning));
    }
}

impl fmt::Debug for Degradation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.state.lock();
        f.debug_struct("Degradation")
            .field("name", &self.0.name)
            .field("features", &state.config.features)
            .field("off", &state.features_off.level)
            .finish_non_exhaustive()
    }
}

/// A feature that may be switched off. As a policy it rejects calls while it is off. A clone is the
/// same feature.
#[derive(Clone)]
pub struct Feature {
    switch: Arc<Switch>,
    degradation: Degradation,
}

impl Feature {
    /// Returns the feature's name.
    pub fn name(&self) -> &str {
        self.switch.name.as_str()
    }

    /// Returns `true` if the feature is enabled now.
    #[inline]
    pub fn is_enabled(&self) -> bool {
        self.degradation.0.sample_if_due();
        self.switch.on.load(Ordering::Relaxed) == 1
    }

    /// Returns `Ok` if the feature is enabled now.
    ///
    /// # Errors
    /// The rejection, [`Reason::SwitchedOff`]. The feature is not enabled again before its
    /// `retry_after`.
    #[inline]
    pub fn ensure_enabled(&self) -> Result<(), Rejected> {
        if self.is_enabled() { Ok(()) } else { Err(self.rejected()) }
    }

    /// Runs `operation` if the feature is enabled.
    ///
    /// # Errors
    /// The operation's own error, or the rejection.
    ///
    /// # Cancel safety
    /// A future that is dropped drops the operation; the feature holds nothing for it.
    pub fn call<T: Send, E: Send, O>(&self, operation: O) -> impl Future<Output = Result<T, CallError<E>>> + Send
    where
        O: Operation<Output = T, Error = E>, // `|| async { .. }`; blocks: `call_blocking`; not `Send`: `Pipeline::call_local`; `&mut`: `with_state`
    {
        call::call_alone(self, operation)
    }

    #[cold]
    fn rejected(&self) -> Rejected {
        let hold = self.degradation.0.state.lock().config.hold;
        let name = Some(self.switch.name.clone());
        Rejected::new(PolicyKind::Degradation, Reason::SwitchedOff).named(name).with_retry_after(hold)
    }
}

call::blocking_door!(Feature);

impl Policy for Feature {
    #[inline]
    async fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> Outcome {
        match self.ensure_enabled() {
            Ok(()) => inner.attempt(cx).await,
            Err(rejected) => inner.refuse(rejected),
        }
    }

    fn describe(&self, explanation: &mut Explanation) {
        self.degradation.0.describe(explanation, Some(self.name()));
    }
}

crate::build::debug_fields!(Feature, |this| name: this.switch.name, on: (this.switch.on.load(Ordering::Relaxed) == 1));
