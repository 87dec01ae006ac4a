//! The shared breaker: its parts and its public methods.
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use super::{
    super::{CircuitBreaker, State, state::load},
    SharedCircuitBreakerConfig, SharedCircuitBreakerEvent as Event,
    report::Followed,
};
use crate::{
    build::{Builder, Common, Component, HasEvents},
    config::{ConfigError, Name, Reconfigure, reconfigurable, require},
    notify::Notifier,
    observe::{Events, Subscription},
    outcome::TripRule,
    port::{Capability, PortErrorKind},
    store::Store,
    sync::Mutex,
    time::{Clock, Instant},
};

/// Reports the openings of a [`CircuitBreaker`] to other processes, and opens it with theirs.
///
/// A clone is the same. The name stands for the dependency that all these breakers guard: processes
/// with the same store and the same name share openings. Calls go through the breaker; this type
/// only [runs](Self::run) beside it.
#[derive(Clone)]
pub struct SharedCircuitBreaker(pub(super) Arc<Inner>);

/// A report from another process that its breaker is open.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CircuitReport {
    /// Name of the process.
    pub process: String,
    /// Expected end of its open time, by the local clock.
    pub until: Instant,
}

pub(super) struct Inner {
    pub(super) breaker: CircuitBreaker,
    pub(super) store: Arc<dyn Store>,
    pub(super) notifier: Option<Arc<dyn Notifier>>,
    pub(super) name: Name,
    /// The partition of reports, and the topic of hints.
    pub(super) partition: String,
    /// Row of this process's own report.
    pub(super) row: String,
    /// Random number that tells this process's openings from those of another life.
    life: u64,
    config: Mutex<SharedCircuitBreakerConfig>,
    pub(super) mine: Mutex<Mine>,
    pub(super) followed: Mutex<Followed>,
    pub(super) others: Mutex<Vec<CircuitReport>>,
    store_down: AtomicBool,
    events: Events<Event>,
}

/// This process's own report in the store.
#[derive(Debug, Default)]
pub(super) struct Mine {
    /// `true` if there may be a row.
    pub(super) may_be_there: bool,
    /// Generation of the opening that the row certainly has.
    pub(super) told: Option<u32>,
}

/// Opening by the breaker's own rules.
#[derive(Debug, Clone, Copy)]
pub(super) struct Opening {
    pub(super) generation: u32,
    pub(super) left: Duration,
}

/// Prefix of the row of a process, so that other rows may be added to the partition later.
pub(super) const ROW: &str = "of ";

reconfigurable!(SharedCircuitBreaker, SharedCircuitBreakerConfig, |_this, next| next.check());

impl SharedCircuitBreaker {
    /// Shares the openings of this breaker, under this name, through this store.
    ///
    /// # Errors
    /// If a setting is invalid, or the store lacks [`TimeToLive`](Capability::TimeToLive).
    pub fn new(
        breaker: CircuitBreaker,
        store: Arc<dyn Store>,
        name: impl Into<Name>,
        config: SharedCircuitBreakerConfig,
    ) -> Result<Self, ConfigError> {
        Self::builder(breaker, store, name, config).build()
    }

    /// Creates a builder with the arguments of [`new`](Self::new). Clock and randomness are those
    /// of the breaker.
    ///
    /// Methods of [this builder alone](crate::Builder#impl-Builder%3CSharedCircuitBreaker%3E):
    /// `notifier`, `process`.
    pub fn builder(
        breaker: CircuitBreaker,
        store: Arc<dyn Store>,
        name: impl Into<Name>,
        config: SharedCircuitBreakerConfig,
    ) -> Builder<Self> {
        Builder::new(SharedSpec { breaker, store, name: name.into(), config, notifier: None, process: None })
    }

    /// Replaces the configuration while it is in use, from the next poll on. A report in the store
    /// keeps its lifetime.
    ///
    /// # Errors
    /// If a setting is invalid; then nothing has changed.
    pub fn reconfigure(&self, config: SharedCircuitBreakerConfig) -> Result<(), ConfigError> {
        self.validate(&config)?;
        *self.0.config.lock() = config;
        self.0.tell(|| Event::ConfigChanged);
        Ok(())
    }

    /// Returns the current configuration.
    pub fn config(&self) -> SharedCircuitBreakerConfig {
        self.0.config()
    }

    /// Returns the breaker whose openings are shared.
    pub fn breaker(&self) -> &CircuitBreaker {
        &self.0.breaker
    }

    /// Returns the name under which the openings are shared.
    pub fn name(&self) -> &str {
        self.0.name.as_str()
    }

    /// Returns the name of this process, as others see it.
    pub fn process(&self) -> &str {
        self.0.row.strip_prefix(ROW).unwrap_or(&self.0.row)
    }

    /// Subscribes to the events.
    pub fn events(&self) -> Subscription<Event> {
        self.0.events.subscribe()
    }

    /// Returns the reports of the other processes at the last poll that have not ended since.
    pub fn reports(&self) -> Vec<CircuitReport> {
        let now = self.0.now();
        self.0.others.lock().iter().filter(|report| report.until > now).cloned().collect()
    }

    /// Returns whether the last request to the store failed or timed out.
    pub fn is_store_down(&self) -> bool {
        self.0.store_down.load(Relaxed)
    }
}

/// Arguments of a shared breaker, beside name, clock and entropy.
pub struct SharedSpec {
    breaker: CircuitBreaker,
    store: Arc<dyn Store>,
    name: Name,
    config: SharedCircuitBreakerConfig,
    notifier: Option<Arc<dyn Notifier>>,
    process: Option<String>,
}

impl Builder<SharedCircuitBreaker> {
    /// Sets the notifier through which the breaker sends hints when it opens, and receives those of
    /// others.
    pub fn notifier(mut self, notifier: Arc<dyn Notifier>) -> Self {
        self.spec.notifier = Some(notifier);
        self
    }

    /// Sets the name of this process, a random one by default. Two processes must not have the same
    /// name: they would ignore each other's reports.
    pub fn process(mut self, process: impl Into<String>) -> Self {
        self.spec.process = Some(process.into());
        self
    }
}

impl Component for SharedCircuitBreaker {
    type Built = Result<Self, ConfigError>;
    type Spec = SharedSpec;

    fn assemble(spec: SharedSpec, common: Common) -> Self::Built {
        let SharedSpec { breaker, store, name, config, notifier, process } = spec;
        config.check()?;
        let can = store.capabilities();
        can.require(Capability::TimeToLive).map_err(|lacks| lacks.refuse("store"))?;
        let partition = format!("circuit breaker {name}");
        require(!name.as_str().is_empty(), "name", "must not be empty")?;
        require(partition.len() <= can.max_key(), "name", "must not be longer than the store's keys")?;
        let life = breaker.0.shared.set.entropy.next_u64();
        let process = process.unwrap_or_else(|| format!("{life:016x}"));
        let row = format!("{ROW}{process}");
        require(!process.is_empty(), "process", "must not be empty")?;
        require(row.len() <= can.max_key(), "process", "must not be longer than the store's keys")?;
        Ok(Self(Arc::new(Inner {
            breaker,
            store,
            notifier,
            name,
            partition,
            row,
            life,
            config: Mutex::new(config),
            mine: Mutex::default(),
            followed: Mutex::default(),
            others: Mutex::default(),
            store_down: AtomicBool::new(false),
            events: common.hooks.events(),
        })))
    }
}

impl HasEvents<Event> for SharedCircuitBreaker {}

impl Inner {
    pub(super) fn config(&self) -> SharedCircuitBreakerConfig {
        *self.config.lock()
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.breaker.0.shared.clock
    }

    /// Returns the generation of the breaker's state.
    pub(super) fn generation(&self) -> u32 {
        self.breaker.0.core.word().generation()
    }

    pub(super) fn now(&self) -> Instant {
        self.clock().now()
    }

    pub(super) fn tell(&self, event: impl FnOnce() -> Event) {
        self.events.send(Some(&self.name), self.now(), event);
    }

    pub(super) fn store_answered(&self) {
        if self.store_down.swap(false, Relaxed) {
            self.tell(|| Event::StoreBack);
        }
    }

    pub(super) fn store_failed(&self, kind: Option<PortErrorKind>) {
        if !self.store_down.swap(true, Relaxed) {
            self.tell(|| Event::StoreFailed { kind });
        }
    }

    /// Returns the identifier of one of this process's openings, as others read it.
    pub(super) fn opening(&self, generation: u32) -> String {
        format!("{:016x}-{generation}", self.life)
    }

    /// Returns the opening by the breaker's own rules, if it is open. An opening that followed
    /// others is not returned, nor one in shadow mode.
    pub(super) fn own_opening(&self) -> Option<Opening> {
        let core = &self.breaker.0.core;
        if self.breaker.is_shadow() {
            return None;
        }
        let gate = core.gate_if_any()?;
        loop {
            let word = core.word_of_values();
            if word.state() != State::Open {
                return None;
            }
            let (until, (rule, _)) = (load(&gate.until), gate.why());
            if core.word() != word {
                continue; // the values may belong to another opening
            }
            let left = until - self.now();
            return (rule != TripRule::Shared && left.as_millis() > 0)
                .then_some(Opening { generation: word.generation(), left });
        }
    }

    /// Opens the breaker with others, unless it is open, half-open or isolated by itself.
    pub(super) fn open_with_others(&self, open_for: Duration) -> bool {
        let breaker = &self.breaker.0;
        let opens = breaker.core.open_with_others(&breaker.shared.set, self.now(), open_for);
        breaker.flush();
        opens
    }
}

impl Inner {
    /// Sets the remaining open time of a breaker that opened with others.
    pub(super) fn stay_open_with_others(&self, now: Instant, left: Duration) {
        self.breaker.0.core.stay_open_with_others(now, left);
    }

    /// Returns the maximum duration for which one poll opens the breaker: the maximum of its own
    /// settings. It bounds a damaged report.
    pub(super) fn longest_opening(&self) -> Duration {
        let open = self.breaker.config().open;
        open.max_delay.max(open.max_hint)
    }
}

crate::build::debug_fields!(SharedCircuitBreaker, |this|
    name: this.0.name, process: this.process(), breaker: this.0.breaker
);
