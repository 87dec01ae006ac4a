//! The shedder: gives up calls by their priority while a gauge says that there is too much to do.
use std::{fmt, future::Future, sync::Arc};

use super::{
    ShedderConfig,
    cut::{Cut, share},
    gauge::{Due, Gauges, Reading},
};
use crate::{
    call::{self, Attempt, CallContext, Explanation, Layer, Operation, Policy},
    config::{ConfigError, Name},
    entropy::Entropy,
    observe::{Events, Subscription},
    outcome::{CallError, Outcome, PolicyKind, Priority, Reason, Rejected},
    race::{First, race},
    sync::{AtomicU64, Mutex, Ordering},
    throttling::ThrottlingEvent,
    time::{Clock, Instant},
};

/// Sheds calls, the lowest priority first, while a gauge is above its soft limit.
///
/// Between the soft limit and the hard one a growing share is shed: first of the low calls, then of the normal ones too, then of the high ones. From the
/// hard limit on all are shed but what is [spared](ShedderConfig::spare). It follows the gauges upwards at once; downwards it holds for a time and then
/// lets go at a bounded speed, so that it does not swing. Where several gauges are watched, the worst decides.
///
/// Unlike a limiter it counts nothing itself: it sees what its gauges see. A clone is the same shedder.
///
/// ```
/// use steadfast::{Priority, throttling::{Gauge, Shedder, ShedderConfig}, time::Clock};
/// use std::time::Duration;
///
/// let (clock, hand) = Clock::manual();
/// let cpu = Gauge::new();
/// let config = ShedderConfig::default().limit("cpu", 0.7, 0.9);
/// let shedder = Shedder::new(config).unwrap().with_clock(&clock).with_gauge("cpu", cpu.clone()).unwrap();
///
/// cpu.set(0.8); // half-way: one and a half of three classes
/// assert!(shedder.try_admit(Priority::Low).is_err());
/// assert!(shedder.try_admit(Priority::High).is_ok());
/// assert!((shedder.shed_share(Priority::Normal) - 0.5).abs() < 1e-9);
///
/// cpu.set(0.2);
/// hand.advance(Duration::from_millis(100));
/// assert!(shedder.try_admit(Priority::Low).is_err(), "held");
/// hand.advance(Duration::from_secs(3));
/// assert!(shedder.try_admit(Priority::Low).is_ok());
/// ```
#[derive(Clone)]
pub struct Shedder(Arc<Inner>);

struct Inner {
    gauges: Gauges,
    name: Option<Name>,
    clock: Clock,
    entropy: Entropy,
    due: Due,
    /// How much is shed, as a float: all that a call reads.
    cut: AtomicU64,
    /// Taken by who reads the gauges, and by who changes the settings.
    machine: Mutex<Machine>,
    events: Events<ThrottlingEvent>,
}

struct Machine {
    config: Arc<ShedderConfig>,
    cut: Cut,
}

impl Shedder {
    /// A shedder by these settings. It sheds nothing before it has a gauge.
    ///
    /// # Errors
    /// Where a setting breaks its rule.
    pub fn new(config: ShedderConfig) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self::make(config, Gauges::default(), Clock::tokio(), Entropy::from_os(), None))
    }

    pub(crate) fn make(
        config: ShedderConfig,
        gauges: Gauges,
        clock: Clock,
        entropy: Entropy,
        name: Option<Name>,
    ) -> Self {
        Self(Arc::new(Inner {
            gauges,
            name,
            clock,
            entropy,
            due: Due::new(),
            cut: AtomicU64::new(0f64.to_bits()),
            machine: Mutex::new(Machine { config: Arc::new(config), cut: Cut::default() }),
            events: Events::new(),
        }))
    }

    /// A new shedder of the same settings that watches this gauge too: a closure, or a [`Gauge`](crate::throttling::Gauge). One of the same name is replaced.
    ///
    /// # Errors
    /// If the settings have no limits for a gauge of this name.
    pub fn with_gauge(self, name: impl Into<Name>, gauge: impl Reading) -> Result<Self, ConfigError> {
        let (config, Inner { gauges, clock, entropy, name: own, .. }) = (self.config(), &*self.0);
        let gauges = gauges.clone().with(name.into(), gauge, &config.limits)?;
        Ok(Self::make(config, gauges, clock.clone(), entropy.clone(), own.clone()))
    }

    /// A new shedder of the same settings and gauges with a name, for errors and events.
    #[must_use]
    pub fn named(self, name: impl Into<Name>) -> Self {
        let Inner { gauges, clock, entropy, .. } = &*self.0;
        Self::make(self.config(), gauges.clone(), clock.clone(), entropy.clone(), Some(name.into()))
    }

    /// A new shedder of the same settings and gauges on another clock.
    #[must_use]
    pub fn with_clock(self, clock: &Clock) -> Self {
        let Inner { gauges, entropy, name, .. } = &*self.0;
        Self::make(self.config(), gauges.clone(), clock.clone(), entropy.clone(), name.clone())
    }

    /// A new shedder of the same settings and gauges that draws from this stream. Seeded by the system by default.
    #[must_use]
    pub fn with_entropy(self, entropy: &Entropy) -> Self {
        let Inner { gauges, clock, name, .. } = &*self.0;
        Self::make(self.config(), gauges.clone(), clock.clone(), entropy.clone(), name.clone())
    }

    /// Its settings, as they are now.
    pub fn config(&self) -> ShedderConfig {
        ShedderConfig::clone(&self.0.machine.lock().config)
    }

    /// Changes the settings while it is in use. As much is shed as before; the new limits hold from the next reading on, which is due at once.
    ///
    /// # Errors
    /// Where a setting breaks its rule, or a gauge that is watched has no limits; then nothing has changed.
    pub fn reconfigure(&self, config: ShedderConfig) -> Result<(), ConfigError> {
        config.check()?;
        self.0.gauges.all_have(&config.limits)?;
        self.0.machine.lock().config = Arc::new(config);
        self.0.due.now();
        self.0.events.send(self.0.name.as_ref(), self.0.clock.now(), || ThrottlingEvent::LimitChanged);
        Ok(())
    }

    /// The share of the calls of this priority that is shed now, from 0 to 1.
    pub fn shed_share(&self, priority: Priority) -> f64 {
        share(self.0.cut_now(), priority)
    }

    /// Its events from now on.
    pub fn events(&self) -> Subscription<ThrottlingEvent> {
        self.0.events.subscribe()
    }

    /// Whether a call of this priority may be made now.
    ///
    /// # Errors
    /// The rejection, [`Reason::Shed`], with the time before which less will not be shed.
    #[inline]
    pub fn try_admit(&self, priority: Priority) -> Result<(), Rejected> {
        let cut = self.0.cut_now();
        if cut == 0.0 || self.0.admits(cut, priority) { Ok(()) } else { Err(self.0.rejected(priority)) }
    }

    /// Reads the gauges in time until `shutdown` is ready, also where no calls come: so that its events, and its
    /// [`shed_share`](Self::shed_share), are never late. It is not needed for calls: they read the gauges themselves.
    ///
    /// # Cancel safety
    /// Dropped, it stops reading; nothing is lost.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) {
        let reads = async {
            loop {
                self.0.cut_now();
                let every = self.0.machine.lock().config.sample_every;
                self.0.clock.sleep(every).await;
            }
        };
        match race(shutdown, reads).await {
            First::One(()) => {}
            First::Other(never) => never,
        }
    }

    /// Runs `operation` with nothing but this shedder around it.
    ///
    /// # Errors
    /// The operation's own, or the rejection.
    ///
    /// # Cancel safety
    /// Dropped, it drops the operation; the shedder holds nothing for it.
    pub fn call<O: Operation>(
        &self,
        operation: O,
    ) -> impl Future<Output = Result<O::Output, CallError<O::Error>>> + Send {
        call::call_alone(self, operation)
    }
}

impl Inner {
    /// How much is shed; reads the gauges if that is due.
    #[inline]
    fn cut_now(&self) -> f64 {
        let now = self.clock.now();
        if self.due.is(now.as_nanos()) {
            self.sample(now);
        }
        f64::from_bits(self.cut.load(Ordering::Relaxed))
    }

    #[cold]
    fn sample(&self, now: Instant) {
        let Some(mut turn) = self.due.take(now.as_nanos()) else { return };
        let config = self.machine.lock().config.clone();
        turn.again_after(config.sample_every);
        // A gauge is foreign code: no lock is held while it is read.
        let pressure = self.gauges.pressure(&config.limits);
        let mut machine = self.machine.lock();
        let Machine { config, cut } = &mut *machine;
        let next = cut.sample(now, pressure, config);
        let before = f64::from_bits(self.cut.load(Ordering::Relaxed));
        self.cut.store(next.to_bits(), Ordering::Relaxed);
        match (before > 0.0, next > 0.0) {
            (false, true) => self.events.stage(now, || ThrottlingEvent::SheddingBegan),
            (true, false) => self.events.stage(now, || ThrottlingEvent::SheddingEnded),
            _ => {}
        }
        drop(machine);
        drop(turn);
        self.events.flush(self.name.as_ref());
    }

    #[cold]
    fn admits(&self, cut: f64, priority: Priority) -> bool {
        let share = share(cut, priority);
        share == 0.0 || (share < 1.0 && self.entropy.unit() >= share)
    }

    #[cold]
    fn rejected(&self, priority: Priority) -> Rejected {
        let (reason, wait) = (Reason::Shed { priority }, self.machine.lock().config.hold);
        if self.events.wanted() {
            let event = || ThrottlingEvent::Rejected { reason, retry_after: Some(wait) };
            self.events.send(self.name.as_ref(), self.clock.now(), event);
        }
        Rejected::new(PolicyKind::Shed, reason).named(self.name.clone()).with_retry_after(wait)
    }
}

impl Policy for Shedder {
    #[inline]
    async fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> Outcome {
        match self.try_admit(cx.priority()) {
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
        let settings = format!("sheds what is below {} by {}", config.spare, limits.join(", "));
        let layer = Layer::new(PolicyKind::Shed, self.0.name.clone(), settings);
        explanation.push(self.0.gauges.warnings(&config.limits).into_iter().fold(layer, Layer::with_warning));
    }
}

impl fmt::Debug for Shedder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shedder")
            .field("name", &self.0.name)
            .field("gauges", &self.0.gauges)
            .field("cut", &f64::from_bits(self.0.cut.load(Ordering::Relaxed)))
            .finish_non_exhaustive()
    }
}
