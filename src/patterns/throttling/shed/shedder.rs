//! The shedder: rejects calls by priority while a gauge reports overload.
use std::{future::Future, sync::Arc};

use super::{
    ShedderConfig,
    gauge::{Due, Gauges, Reading, read_until},
    shed_level::{ShedLevel, share},
};
use crate::{
    build::{Builder, Common, Component, HasEntropy, HasEvents, HasName},
    call::{self, Attempt, CallContext, Explanation, Layer, Operation, Policy},
    config::{ConfigError, Name, Reconfigure, reconfigurable},
    entropy::Entropy,
    observe::{Events, Subscription},
    outcome::{CallError, Outcome, PolicyKind, Priority, Reason, Rejected},
    sync::{AtomicU64, Mutex, Ordering},
    throttling::ThrottlingEvent,
    time::{Clock, Instant},
};

/// Sheds calls while a gauge is above its soft limit, the lowest priority first.
///
/// Between the soft limit and the hard one a growing share is shed: first low calls, then also
/// normal ones, then also high ones. From the hard limit on, all calls below
/// [`min_priority`](ShedderConfig::min_priority) are shed. Shedding follows the gauges upwards at
/// once. Downwards it is sustained for a time and then falls at a bounded speed, so that it does
/// not oscillate. The gauge with the highest pressure decides.
///
/// Unlike a limiter, a shedder counts no calls: it only reads its gauges. A clone is the same
/// shedder.
///
/// ```
/// use steadfast::{Priority, throttling::{Gauge, Shedder, ShedderConfig}, time::Clock};
/// use std::time::Duration;
///
/// let (clock, driver) = Clock::manual();
/// let cpu = Gauge::new();
/// let config = ShedderConfig::default().limit("cpu", 0.7, 0.9);
/// let shedder = Shedder::builder(config).clock(&clock).gauge("cpu", cpu.clone()).build().unwrap();
///
/// cpu.set(0.8); // half-way: one and a half of three classes
/// assert!(shedder.try_acquire(Priority::Low).is_err());
/// assert!(shedder.try_acquire(Priority::High).is_ok());
/// assert!((shedder.shed_share(Priority::Normal) - 0.5).abs() < 1e-9);
///
/// cpu.set(0.2);
/// driver.advance(Duration::from_millis(100));
/// assert!(shedder.try_acquire(Priority::Low).is_err(), "sustained");
/// driver.advance(Duration::from_secs(3));
/// assert!(shedder.try_acquire(Priority::Low).is_ok());
/// ```
#[derive(Clone)]
pub struct Shedder(Arc<ShedderCore>);

struct ShedderCore {
    gauges: Gauges,
    name: Option<Name>,
    clock: Clock,
    entropy: Entropy,
    due: Due,
    /// The amount of shedding, as bits of a float: the only word that a call reads. It publishes no
    /// other memory, so `Relaxed` suffices.
    level: AtomicU64,
    /// Locked by a task that reads the gauges or changes the settings.
    state: Mutex<ShedderState>,
    events: Events<ThrottlingEvent>,
}

struct ShedderState {
    config: Arc<ShedderConfig>,
    level: ShedLevel,
}

reconfigurable!(Shedder, ShedderConfig, |this, next| {
    next.check()?;
    this.0.gauges.all_have(&next.limits)
});

impl Shedder {
    /// Creates a shedder by these settings. It sheds nothing before it has a gauge.
    ///
    /// # Errors
    /// If a setting is invalid.
    pub fn new(config: ShedderConfig) -> Result<Self, ConfigError> {
        Self::builder(config).build()
    }

    /// Creates a builder of a shedder.
    ///
    /// Methods of [this builder alone](crate::Builder#impl-Builder%3CShedder%3E): `gauge`.
    pub fn builder(config: ShedderConfig) -> Builder<Self> {
        Builder::new(ShedderSpec { config, gauges: Gauges::default() })
    }

    pub(crate) fn make(config: ShedderConfig, gauges: Gauges, common: Common) -> Self {
        let (entropy, Common { name, clock, hooks, .. }) = (common.entropy(), common);
        Self(Arc::new(ShedderCore {
            gauges,
            name,
            clock,
            entropy,
            due: Due::new(),
            level: AtomicU64::new(0f64.to_bits()),
            state: Mutex::new(ShedderState { config: Arc::new(config), level: ShedLevel::default() }),
            events: hooks.events(),
        }))
    }

    /// Returns the current settings.
    pub fn config(&self) -> ShedderConfig {
        ShedderConfig::clone(&self.0.state.lock().config)
    }

    /// Changes the settings while the shedder is in use. The amount of shedding stays. The new
    /// limits apply from the next reading on, which is due at once.
    ///
    /// # Errors
    /// If a setting is invalid, or a watched gauge has no limits; then nothing has changed.
    pub fn reconfigure(&self, config: ShedderConfig) -> Result<(), ConfigError> {
        self.validate(&config)?;
        self.0.state.lock().config = Arc::new(config);
        self.0.due.now();
        self.0.events.send(self.0.name.as_ref(), self.0.clock.now(), || ThrottlingEvent::LimitChanged);
        Ok(())
    }

    /// Returns the share of the calls of this priority that is shed now, from 0 to 1.
    pub fn shed_share(&self, priority: Priority) -> f64 {
        share(self.0.level_now(), priority)
    }

    /// Subscribes to the events from now on.
    pub fn events(&self) -> Subscription<ThrottlingEvent> {
        self.0.events.subscribe()
    }

    /// Admits or sheds a call of this priority.
    ///
    /// # Errors
    /// The rejection, [`Reason::Shed`]. Shedding does not decrease before its `retry_after`.
    #[inline]
    pub fn try_acquire(&self, priority: Priority) -> Result<(), Rejected> {
        let level = self.0.level_now();
        if level == 0.0 || self.0.admits(level, priority) { Ok(()) } else { Err(self.0.rejected(priority)) }
    }

    /// Reads the gauges at their interval until `shutdown` is ready, even if no calls come, so that
    /// events and [`shed_share`](Self::shed_share) are never late. It is optional: calls read the
    /// gauges themselves.
    ///
    /// # Cancel safety
    /// A future that is dropped stops reading; nothing is lost.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) {
        let read = || {
            self.0.level_now();
            self.0.state.lock().config.sample_every
        };
        read_until(shutdown, &self.0.clock, read).await;
    }

    /// Runs `operation` under this shedder alone.
    ///
    /// # Errors
    /// The operation's own error, or the rejection.
    ///
    /// # Cancel safety
    /// A future that is dropped drops the operation; the shedder holds nothing for it.
    pub fn call<T: Send, E: Send, O>(&self, operation: O) -> impl Future<Output = Result<T, CallError<E>>> + Send
    where
        O: Operation<Output = T, Error = E>, // `|| async { .. }`; blocks: `call_blocking`; not `Send`: `Pipeline::call_local`; `&mut`: `with_state`
    {
        call::call_alone(self, operation)
    }
}

/// Arguments of a shedder, beside name, clock and entropy.
#[derive(Debug)]
pub struct ShedderSpec {
    config: ShedderConfig,
    gauges: Gauges,
}

impl Builder<Shedder> {
    /// Watches this gauge: a closure, or a [`Gauge`](crate::throttling::Gauge). The settings must
    /// have limits for its name. A gauge of the same name is replaced.
    pub fn gauge(mut self, name: impl Into<Name>, gauge: impl Reading) -> Self {
        self.spec.gauges = self.spec.gauges.and(name.into(), gauge);
        self
    }
}

impl Component for Shedder {
    type Built = Result<Self, ConfigError>;
    type Spec = ShedderSpec;

    fn assemble(spec: ShedderSpec, common: Common) -> Self::Built {
        let ShedderSpec { config, gauges } = spec;
        config.check()?;
        gauges.all_have(&config.limits)?;
        Ok(Self::make(config, gauges, common))
    }
}

impl HasName for Shedder {}
impl HasEntropy for Shedder {}
impl HasEvents<ThrottlingEvent> for Shedder {}

impl ShedderCore {
    /// Returns the amount of shedding, and reads the gauges if a reading is due.
    #[inline]
    fn level_now(&self) -> f64 {
        let now = self.clock.now();
        if self.due.is(now.as_nanos()) {
            self.sample(now);
        }
        f64::from_bits(self.level.load(Ordering::Relaxed))
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
        let ShedderState { config, level } = &mut *state;
        let next = level.sample(now, pressure, config);
        let before = f64::from_bits(self.level.load(Ordering::Relaxed));
        self.level.store(next.to_bits(), Ordering::Relaxed);
        match (before > 0.0, next > 0.0) {
            (false, true) => self.events.stage(now, || ThrottlingEvent::SheddingBegan),
            (true, false) => self.events.stage(now, || ThrottlingEvent::SheddingEnded),
            _ => {}
        }
    }

    #[cold]
    fn admits(&self, level: f64, priority: Priority) -> bool {
        let share = share(level, priority);
        share == 0.0 || (share < 1.0 && self.entropy.unit() >= share)
    }

    #[cold]
    fn rejected(&self, priority: Priority) -> Rejected {
        let (reason, wait) = (Reason::Shed { priority }, self.state.lock().config.sustain);
        if self.events.wanted() {
            let event = || ThrottlingEvent::Rejected { reason, retry_after: Some(wait) };
            self.events.send(self.name.as_ref(), self.clock.now(), event);
        }
        Rejected::new(PolicyKind::Shed, reason).named(self.name.clone()).with_retry_after(wait)
    }
}

call::blocking_door!(Shedder);

impl Policy for Shedder {
    #[inline]
    async fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> Outcome {
        match self.try_acquire(cx.priority()) {
            Ok(()) => inner.attempt(cx).await,
            Err(rejected) => inner.refuse(rejected),
        }
    }

    fn describe(&self, explanation: &mut Explanation) {
        let config = self.config();
        let limits: Vec<_> = config
            .limits
            .iter()
            .map(|(name, limits)| format!("{name} from {} to {}", limits.soft, limits.hard))
            .collect();
        let settings = format!("sheds priorities below {} by {}", config.min_priority, limits.join(", "));
        let layer = Layer::new(PolicyKind::Shed, self.0.name.clone(), settings).with_component(self);
        explanation.push(self.0.gauges.warnings(&config.limits).into_iter().fold(layer, Layer::with_warning));
    }
}

crate::build::debug_fields!(Shedder, |this|
    name: this.0.name, gauges: this.0.gauges, level: f64::from_bits(this.0.level.load(Ordering::Relaxed))
);
