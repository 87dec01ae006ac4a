//! Degradation: features that are switched off, in a stated order, while there is too much to do.
use std::{fmt, future::Future, sync::Arc};

use super::{
    DegradationConfig,
    gauge::{Due, Gauges, Reading},
    ladder::Ladder,
};
use crate::{
    call::{self, Attempt, CallContext, Explanation, Layer, Operation, Policy},
    config::{ConfigError, Name},
    observe::{Events, Subscription},
    outcome::{CallError, Outcome, PolicyKind, Reason, Rejected},
    race::{First, race},
    sync::{AtomicU32, Mutex, Ordering},
    throttling::DegradationEvent,
    time::{Clock, Instant},
};

/// Switches features off, one after the other in a stated order, while a gauge is above its soft limit; and on again, in reverse order, when all
/// are below.
///
/// Where a [`Shedder`](crate::throttling::Shedder) serves fewer calls, this serves all of them with less. A clone is the same degradation.
///
/// ```
/// use steadfast::{throttling::{Degradation, DegradationConfig, Gauge}, time::Clock};
/// use std::time::Duration;
///
/// let (clock, hand) = Clock::manual();
/// let cpu = Gauge::new();
/// let config = DegradationConfig::of(["recommendations", "avatars"]).limit("cpu", 0.7, 0.9);
/// let degradation = Degradation::new(config).unwrap().with_clock(&clock).with_gauge("cpu", cpu.clone()).unwrap();
/// let (recommendations, avatars) =
///     (degradation.feature("recommendations").unwrap(), degradation.feature("avatars").unwrap());
///
/// cpu.set(0.8);
/// assert_eq!((recommendations.is_on(), avatars.is_on()), (false, true));
/// hand.advance(Duration::from_secs(1));
/// assert_eq!((recommendations.is_on(), avatars.is_on()), (false, false));
/// cpu.set(0.3);
/// hand.advance(Duration::from_millis(100));
/// assert!(!avatars.is_on(), "held");
/// hand.advance(Duration::from_secs(10));
/// assert_eq!((recommendations.is_on(), avatars.is_on()), (false, true));
/// ```
#[derive(Clone)]
pub struct Degradation(Arc<Inner>);

struct Inner {
    gauges: Gauges,
    name: Option<Name>,
    clock: Clock,
    due: Due,
    /// Taken by who reads the gauges, and by who changes the settings or asks for a feature.
    machine: Mutex<Machine>,
    events: Events<DegradationEvent>,
}

struct Machine {
    config: Arc<DegradationConfig>,
    ladder: Ladder,
    /// In the order of the settings.
    switches: Vec<Arc<Switch>>,
}

struct Switch {
    name: Name,
    /// 1 where it is on.
    on: AtomicU32,
}

impl Machine {
    fn new(config: DegradationConfig) -> Self {
        let switch = |name: &String| Arc::new(Switch { name: name.into(), on: AtomicU32::new(1) });
        let switches = config.features.iter().map(switch).collect();
        Self { config: Arc::new(config), ladder: Ladder::default(), switches }
    }

    /// Sets every switch by the ladder, and tells of those that change: in order when they go off, in reverse order when they come on.
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
        let (off, on) = self.switches.split_at(self.ladder.level.min(self.switches.len()));
        off.iter().for_each(|switch| turn(switch, false));
        on.iter().rev().for_each(|switch| turn(switch, true));
    }
}

impl Degradation {
    /// A degradation by these settings, with every feature on. It switches nothing off before it has a gauge.
    ///
    /// # Errors
    /// Where a setting breaks its rule.
    pub fn new(config: DegradationConfig) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self::make(config, Gauges::default(), Clock::tokio(), None))
    }

    fn make(config: DegradationConfig, gauges: Gauges, clock: Clock, name: Option<Name>) -> Self {
        let machine = Mutex::new(Machine::new(config));
        Self(Arc::new(Inner { gauges, name, clock, due: Due::new(), machine, events: Events::new() }))
    }

    /// A new degradation of the same settings that watches this gauge too: a closure, or a [`Gauge`](crate::throttling::Gauge). One of the same name is replaced.
    ///
    /// # Errors
    /// If the settings have no limits for a gauge of this name.
    pub fn with_gauge(self, name: impl Into<Name>, gauge: impl Reading) -> Result<Self, ConfigError> {
        let (config, Inner { gauges, clock, name: own, .. }) = (self.config(), &*self.0);
        let gauges = gauges.clone().with(name.into(), gauge, &config.limits)?;
        Ok(Self::make(config, gauges, clock.clone(), own.clone()))
    }

    /// A new degradation of the same settings and gauges with a name, for errors and events.
    #[must_use]
    pub fn named(self, name: impl Into<Name>) -> Self {
        Self::make(self.config(), self.0.gauges.clone(), self.0.clock.clone(), Some(name.into()))
    }

    /// A new degradation of the same settings and gauges on another clock.
    #[must_use]
    pub fn with_clock(self, clock: &Clock) -> Self {
        Self::make(self.config(), self.0.gauges.clone(), clock.clone(), self.0.name.clone())
    }

    /// Its settings, as they are now.
    pub fn config(&self) -> DegradationConfig {
        DegradationConfig::clone(&self.0.machine.lock().config)
    }

    /// The feature of this name: keep it, and ask it before each use. It is a policy, too.
    pub fn feature(&self, name: &str) -> Option<Feature> {
        let machine = self.0.machine.lock();
        let switch = machine.switches.iter().find(|switch| switch.name.as_str() == name)?.clone();
        Some(Feature { switch, degradation: self.clone() })
    }

    /// The names of the features that are switched off now, in the order in which they went.
    pub fn switched_off(&self) -> Vec<Name> {
        self.0.look();
        let machine = self.0.machine.lock();
        machine.switches[..machine.ladder.level].iter().map(|switch| switch.name.clone()).collect()
    }

    /// Changes the settings while it is in use. As many features stay off as were, the first of the new order; one that is no longer named is on,
    /// and stays so.
    ///
    /// # Errors
    /// Where a setting breaks its rule, or a gauge that is watched has no limits; then nothing has changed.
    pub fn reconfigure(&self, config: DegradationConfig) -> Result<(), ConfigError> {
        config.check()?;
        self.0.gauges.all_have(&config.limits)?;
        let now = self.0.clock.now();
        {
            let mut machine = self.0.machine.lock();
            let mut next = Machine::new(config);
            (next.ladder, next.ladder.level) = (machine.ladder, machine.ladder.level.min(next.switches.len()));
            for old in machine.switches.drain(..) {
                match next.switches.iter_mut().find(|switch| switch.name == old.name) {
                    Some(switch) => *switch = old,
                    None => old.on.store(1, Ordering::Relaxed),
                }
            }
            next.set(now, &self.0.events);
            *machine = next;
        }
        self.0.due.now();
        self.0.events.flush(self.0.name.as_ref());
        Ok(())
    }

    /// Its events from now on.
    pub fn events(&self) -> Subscription<DegradationEvent> {
        self.0.events.subscribe()
    }

    /// Reads the gauges in time until `shutdown` is ready, also where nobody asks: so that its events are never late. It is not needed otherwise: who asks
    /// whether a feature is on reads the gauges when that is due.
    ///
    /// # Cancel safety
    /// Dropped, it stops reading; nothing is lost.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) {
        let reads = async {
            loop {
                self.0.look();
                let every = self.0.machine.lock().config.sample_every;
                self.0.clock.sleep(every).await;
            }
        };
        match race(shutdown, reads).await {
            First::One(()) => {}
            First::Other(never) => never,
        }
    }

    /// What it does, with warnings where the settings will hurt.
    pub fn explain(&self) -> Explanation {
        let mut explanation = Explanation::default();
        self.0.describe(&mut explanation, None);
        explanation
    }
}

impl Inner {
    /// Reads the gauges if that is due.
    #[inline]
    fn look(&self) {
        let now = self.clock.now();
        if self.due.is(now.as_nanos()) {
            self.sample(now);
        }
    }

    #[cold]
    fn sample(&self, now: Instant) {
        let Some(mut turn) = self.due.take(now.as_nanos()) else { return };
        let config = self.machine.lock().config.clone();
        turn.again_after(config.sample_every);
        // A gauge is foreign code: no lock is held while it is read.
        let pressure = self.gauges.pressure(&config.limits);
        let mut machine = self.machine.lock();
        let Machine { config, ladder, .. } = &mut *machine;
        let before = ladder.level;
        ladder.sample(now, pressure, config);
        if ladder.level != before {
            machine.set(now, &self.events);
        }
        drop(machine);
        drop(turn);
        self.events.flush(self.name.as_ref());
    }

    fn describe(&self, explanation: &mut Explanation, feature: Option<&str>) {
        let config = self.machine.lock().config.clone();
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
        let machine = self.0.machine.lock();
        f.debug_struct("Degradation")
            .field("name", &self.0.name)
            .field("features", &machine.config.features)
            .field("off", &machine.ladder.level)
            .finish_non_exhaustive()
    }
}

/// A feature that may be switched off. As a policy it refuses while it is. A clone is the same feature.
#[derive(Clone)]
pub struct Feature {
    switch: Arc<Switch>,
    degradation: Degradation,
}

impl Feature {
    /// What it is called.
    pub fn name(&self) -> &str {
        self.switch.name.as_str()
    }

    /// Whether it is on now.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.degradation.0.look();
        self.switch.on.load(Ordering::Relaxed) == 1
    }

    /// That it is on now.
    ///
    /// # Errors
    /// The rejection, [`Reason::SwitchedOff`], with the time before which it will not be on again.
    #[inline]
    pub fn check(&self) -> Result<(), Rejected> {
        if self.is_on() { Ok(()) } else { Err(self.rejected()) }
    }

    /// Runs `operation` if it is on.
    ///
    /// # Errors
    /// The operation's own, or the rejection.
    ///
    /// # Cancel safety
    /// Dropped, it drops the operation; nothing is held for it.
    pub fn call<O: Operation>(
        &self,
        operation: O,
    ) -> impl Future<Output = Result<O::Output, CallError<O::Error>>> + Send {
        call::call_alone(self, operation)
    }

    #[cold]
    fn rejected(&self) -> Rejected {
        let hold = self.degradation.0.machine.lock().config.hold;
        let name = Some(self.switch.name.clone());
        Rejected::new(PolicyKind::Degradation, Reason::SwitchedOff).named(name).with_retry_after(hold)
    }
}

impl Policy for Feature {
    #[inline]
    async fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> Outcome {
        match self.check() {
            Ok(()) => inner.attempt(cx).await,
            Err(rejected) => inner.refuse(rejected),
        }
    }

    fn describe(&self, explanation: &mut Explanation) {
        self.degradation.0.describe(explanation, Some(self.name()));
    }
}

impl fmt::Debug for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feature")
            .field("name", &self.switch.name)
            .field("on", &(self.switch.on.load(Ordering::Relaxed) == 1))
            .finish_non_exhaustive()
    }
}
