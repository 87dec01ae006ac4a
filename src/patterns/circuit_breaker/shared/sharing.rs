//! The shared breaker: what it is made of, and the ways in.
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use super::{
    super::{CircuitBreaker, State, gate::load},
    SharedCircuitBreakerConfig, SharedCircuitBreakerEvent as Event,
    report::Followed,
};
use crate::{
    config::{ConfigError, Name, require},
    notify::Notifier,
    observe::{Events, Subscription},
    outcome::TripRule,
    port::{Capability, PortErrorKind},
    store::Store,
    sync::Mutex,
    time::{Clock, Instant},
};

/// Tells other processes when a [`CircuitBreaker`] opens, and opens it with them.
///
/// A clone is the same. Its name is the other side that all breakers of it stand for: processes with the same store and the same name hear of
/// each other. The breaker is the one that calls go through; this one only [runs](Self::run) beside it.
#[derive(Clone)]
pub struct SharedCircuitBreaker(pub(super) Arc<Inner>);

/// Another process's word that its breaker is open.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CircuitReport {
    /// Which process.
    pub process: String,
    /// Until when its breaker is open, as far as is known here.
    pub until: Instant,
}

pub(super) struct Inner {
    pub(super) breaker: CircuitBreaker,
    pub(super) store: Arc<dyn Store>,
    pub(super) notifier: Option<Arc<dyn Notifier>>,
    pub(super) name: Name,
    /// The partition of reports, and the topic of hints.
    pub(super) partition: String,
    /// This process's own row.
    pub(super) row: String,
    /// What tells its openings from those of another life.
    life: u64,
    config: Mutex<SharedCircuitBreakerConfig>,
    pub(super) mine: Mutex<Mine>,
    pub(super) followed: Mutex<Followed>,
    pub(super) others: Mutex<Vec<CircuitReport>>,
    store_down: AtomicBool,
    events: Events<Event>,
}

/// What this process told the others.
#[derive(Debug, Default)]
pub(super) struct Mine {
    /// There may be a row.
    pub(super) may_be_there: bool,
    /// The opening that the row has for certain.
    pub(super) told: Option<u32>,
}

/// An opening by the breaker's own judgement.
#[derive(Debug, Clone, Copy)]
pub(super) struct Opening {
    pub(super) generation: u32,
    pub(super) left: Duration,
}

/// Before the name of a process: others may have rows of their own there one day.
pub(super) const ROW: &str = "of ";

impl SharedCircuitBreaker {
    /// Shares the openings of this breaker, under this name, through this store.
    ///
    /// The process has a name that is drawn at random; [`as_process`](Self::as_process) gives it another.
    ///
    /// # Errors
    /// Where a setting breaks its rule, or the store lacks [`TimeToLive`](Capability::TimeToLive).
    pub fn new(
        breaker: CircuitBreaker,
        store: Arc<dyn Store>,
        name: impl Into<Name>,
        config: SharedCircuitBreakerConfig,
    ) -> Result<Self, ConfigError> {
        config.check()?;
        let (name, can) = (name.into(), store.capabilities());
        can.require(Capability::TimeToLive).map_err(|lacks| lacks.refuse("store"))?;
        let partition = format!("circuit breaker {name}");
        require(!name.as_str().is_empty(), "name", "must not be empty")?;
        require(partition.len() <= can.max_key(), "name", "must not be longer than the store's keys")?;
        let life = breaker.0.shared.set.entropy.next_u64();
        Ok(Self(Arc::new(Inner {
            breaker,
            store,
            notifier: None,
            name,
            partition,
            row: format!("{ROW}{life:016x}"),
            life,
            config: Mutex::new(config),
            mine: Mutex::default(),
            followed: Mutex::default(),
            others: Mutex::default(),
            store_down: AtomicBool::new(false),
            events: Events::new(),
        })))
    }

    /// The same, changed before it is in use.
    fn changed(self, change: impl FnOnce(&mut Inner)) -> Self {
        let Inner { breaker, store, notifier, name, partition, row, life, .. } = &*self.0;
        let mut inner = Inner {
            breaker: breaker.clone(),
            store: store.clone(),
            notifier: notifier.clone(),
            name: name.clone(),
            partition: partition.clone(),
            row: row.clone(),
            life: *life,
            config: Mutex::new(self.config()),
            mine: Mutex::default(),
            followed: Mutex::default(),
            others: Mutex::default(),
            store_down: AtomicBool::new(false),
            events: Events::new(),
        };
        change(&mut inner);
        Self(Arc::new(inner))
    }

    /// A new one that tells the others at once, and hears them at once, where hints arrive.
    #[must_use]
    pub fn with_notifier(self, notifier: Arc<dyn Notifier>) -> Self {
        self.changed(|inner| inner.notifier = Some(notifier))
    }

    /// A new one whose process has this name. No two processes may have the same: they would not hear each other.
    ///
    /// # Errors
    /// Where the name is empty, or longer than the store's keys.
    pub fn as_process(self, process: &str) -> Result<Self, ConfigError> {
        let row = format!("{ROW}{process}");
        require(!process.is_empty(), "process", "must not be empty")?;
        require(
            row.len() <= self.0.store.capabilities().max_key(),
            "process",
            "must not be longer than the store's keys",
        )?;
        Ok(self.changed(|inner| inner.row = row))
    }

    /// Changes the settings while they are in use; from the next look on. What was reported stays reported, for as long as it was to last.
    ///
    /// # Errors
    /// Where a setting breaks a rule; then nothing has changed.
    pub fn reconfigure(&self, config: SharedCircuitBreakerConfig) -> Result<(), ConfigError> {
        config.check()?;
        *self.0.config.lock() = config;
        self.0.tell(|| Event::ConfigChanged);
        Ok(())
    }

    /// Its settings, as they are now.
    pub fn config(&self) -> SharedCircuitBreakerConfig {
        self.0.config()
    }

    /// The breaker that it shares.
    pub fn breaker(&self) -> &CircuitBreaker {
        &self.0.breaker
    }

    /// The name under which it is shared.
    pub fn name(&self) -> &str {
        self.0.name.as_str()
    }

    /// The name of this process, as others see it.
    pub fn process(&self) -> &str {
        self.0.row.strip_prefix(ROW).unwrap_or(&self.0.row)
    }

    /// Its events from now on.
    pub fn events(&self) -> Subscription<Event> {
        self.0.events.subscribe()
    }

    /// Which other processes reported that their breaker is open, when it looked last, and still are.
    pub fn reports(&self) -> Vec<CircuitReport> {
        let now = self.0.now();
        self.0.others.lock().iter().filter(|report| report.until > now).cloned().collect()
    }

    /// Whether the store did not answer when it was asked last.
    pub fn is_store_down(&self) -> bool {
        self.0.store_down.load(Relaxed)
    }
}

impl Inner {
    pub(super) fn config(&self) -> SharedCircuitBreakerConfig {
        *self.config.lock()
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.breaker.0.shared.clock
    }

    /// Of the breaker's state.
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

    /// Which of this process's openings it is, as others are told.
    pub(super) fn opening(&self, generation: u32) -> String {
        format!("{:016x}-{generation}", self.life)
    }

    /// The opening that the breaker came to by itself, if it is open: not one that it has from others, and none that is only for show.
    pub(super) fn own_opening(&self) -> Option<Opening> {
        let core = &self.breaker.0.core;
        if self.breaker.is_shadow() {
            return None;
        }
        let gate = core.gate_if_any()?;
        loop {
            let word = core.word();
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

    /// Opens the breaker with others, unless it is judging by itself.
    pub(super) fn open_with_others(&self, open_for: Duration) -> bool {
        let breaker = &self.breaker.0;
        let opens = breaker.core.open_with_others(&breaker.shared.set, self.now(), open_for);
        breaker.flush();
        opens
    }
}

impl Inner {
    /// Sets how long the breaker stays open yet, where it is open with others.
    pub(super) fn stay_open_with_others(&self, now: Instant, left: Duration) {
        self.breaker.0.core.stay_open_with_others(now, left);
    }

    /// Returns the longest time for which one look opens the breaker: as long as it would open by itself. A damaged report says more.
    pub(super) fn longest_opening(&self) -> Duration {
        let open = self.breaker.config().open;
        open.max_delay.max(open.max_hint)
    }
}

impl fmt::Debug for SharedCircuitBreaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedCircuitBreaker")
            .field("name", &self.0.name)
            .field("process", &self.process())
            .field("breaker", &self.0.breaker)
            .finish_non_exhaustive()
    }
}
