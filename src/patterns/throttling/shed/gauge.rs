//! What tells how much there is to do: gauges, their limits, and whose turn it is to read them.
use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    config::{ConfigError, Name, require},
    sync::{AtomicU64, Ordering},
    time::nanos,
};

/// Something that can be read: a share of a processor, of memory, a queue's depth, the age of its oldest message.
///
/// Every `Fn() -> f64` is one, and so is a [`Gauge`]. It is read every 100 ms or so by one of the calls that come then, so it should be quick: read
/// what is slow elsewhere, and set a gauge. What is not a number is not known: such a gauge is left out,
/// and while no gauge is known nothing changes: as much is shed, and as much is switched off, as before.
pub trait Reading: Send + Sync + 'static {
    /// What it is now.
    fn read(&self) -> f64;
}

impl<F: Fn() -> f64 + Send + Sync + 'static> Reading for F {
    fn read(&self) -> f64 {
        self()
    }
}

/// A number that one part of a program sets and another reads. A clone is the same gauge; it begins at zero.
///
/// ```
/// use steadfast::throttling::{Gauge, Reading};
///
/// let depth = Gauge::new();
/// depth.set(12.0);
/// assert_eq!(depth.clone().read(), 12.0);
/// ```
#[derive(Clone)]
pub struct Gauge(Arc<AtomicU64>);

impl Gauge {
    /// A gauge at zero.
    pub fn new() -> Self {
        Self(Arc::new(AtomicU64::new(0f64.to_bits())))
    }

    /// Sets it.
    pub fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }
}

impl Default for Gauge {
    fn default() -> Self {
        Self::new()
    }
}

impl Reading for Gauge {
    fn read(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }
}

impl fmt::Debug for Gauge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Gauge").field(&self.read()).finish()
    }
}

/// Between which values of a gauge there is too much to do.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Above this something is given up, little by little.
    pub soft: f64,
    /// From here on all is given up that may be.
    pub hard: f64,
}

impl Limits {
    /// From `soft` to `hard`.
    pub const fn new(soft: f64, hard: f64) -> Self {
        Self { soft, hard }
    }

    fn check(&self) -> Result<(), ConfigError> {
        require(self.soft.is_finite(), "soft", "must be a finite number")?;
        require(self.hard.is_finite(), "hard", "must be a finite number")?;
        require(self.soft < self.hard, "hard", "must be above `soft`")
    }

    /// Where a value lies: 0 at the soft limit, 1 at the hard one.
    fn pressure(&self, value: f64) -> f64 {
        (value - self.soft) / (self.hard - self.soft)
    }
}

/// Limits by the names of their gauges.
pub(crate) type LimitsByName = BTreeMap<String, Limits>;

pub(crate) fn check_limits(limits: &LimitsByName) -> Result<(), ConfigError> {
    limits.iter().try_for_each(|(name, limits)| limits.check().map_err(|e| e.within(&format!("limits.{name}"))))
}

/// Gauges by their names.
#[derive(Clone, Default)]
pub(crate) struct Gauges(Vec<(Name, Arc<dyn Reading>)>);

impl Gauges {
    /// The same with one more, or another of the same name.
    pub(crate) fn with(self, name: Name, gauge: impl Reading, limits: &LimitsByName) -> Result<Self, ConfigError> {
        let gauges = self.and(name, gauge);
        gauges.all_have(limits)?;
        Ok(gauges)
    }

    /// The same with one more, or another of the same name, whether or not it has limits.
    pub(crate) fn and(mut self, name: Name, gauge: impl Reading) -> Self {
        self.0.retain(|(known, _)| *known != name);
        self.0.push((name, Arc::new(gauge)));
        self
    }

    /// That each has its limits.
    pub(crate) fn all_have(&self, limits: &LimitsByName) -> Result<(), ConfigError> {
        let without = self.0.iter().find(|(name, _)| !limits.contains_key(name.as_str()));
        without.map_or(Ok(()), |(name, _)| {
            Err(ConfigError::new(format!("limits.{name}"), "must be there: a gauge of that name is watched"))
        })
    }

    /// The pressure of the gauge that is furthest up, if any is known: 0 at its soft limit, 1 at its hard one.
    pub(crate) fn pressure(&self, limits: &LimitsByName) -> Option<f64> {
        let pressures = self.0.iter().filter_map(|(name, gauge)| {
            let pressure = limits.get(name.as_str())?.pressure(gauge.read());
            (!pressure.is_nan()).then_some(pressure)
        });
        pressures.reduce(f64::max)
    }

    /// What will hurt in these limits.
    pub(crate) fn warnings(&self, limits: &LimitsByName) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.0.is_empty() {
            warnings.push("it watches no gauge, and never does anything".to_owned());
        }
        for (name, Limits { soft, hard }) in limits {
            if !self.0.iter().any(|(known, _)| known.as_str() == name) {
                warnings.push(format!("it has limits for a gauge `{name}` that nobody gave it"));
            }
            if hard - soft < 0.05 * hard.abs() {
                warnings.push(format!(
                    "the limits of `{name}`, {soft} and {hard}, leave no head-room: all is given up at once"
                ));
            }
        }
        warnings
    }
}

impl fmt::Debug for Gauges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

/// Whose turn it is to read the gauges: of all calls that come when it is due, one's. Lock-free.
pub(crate) struct Due(AtomicU64);

/// Somebody reads now.
const BUSY: u64 = u64::MAX;

/// Somebody reads now, by settings that have changed meanwhile: it is due again as soon as they have.
const STALE: u64 = BUSY - 1;

impl Due {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Whether it is due at `now`, in nanoseconds.
    #[inline]
    pub(crate) fn is(&self, now: u64) -> bool {
        now >= self.0.load(Ordering::Relaxed)
    }

    /// Takes the turn, if nobody else did; it is over when the guard is dropped, also by a panic of a gauge.
    pub(crate) fn take(&self, now: u64) -> Option<Turn<'_>> {
        let due = self.0.load(Ordering::Acquire);
        let is_mine = now >= due
            && due < STALE
            && self.0.compare_exchange(due, BUSY, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        // Not `then_some`: a turn that is made and dropped ends somebody else's.
        is_mine.then(|| Turn { due: self, now, next: now })
    }

    /// Makes it due at once; where somebody reads now, as soon as they have.
    pub(crate) fn now(&self) {
        let mut due = self.0.load(Ordering::Acquire);
        loop {
            let next = if due < STALE { 0 } else { STALE };
            match self.0.compare_exchange_weak(due, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(changed) => due = changed,
            }
        }
    }
}

/// The turn to read the gauges. Settings are looked up after it was taken: if they change later, it is [due](Due::now) again.
pub(crate) struct Turn<'a> {
    due: &'a Due,
    now: u64,
    next: u64,
}

impl Turn<'_> {
    /// It is due again after so long.
    pub(crate) fn again_after(&mut self, every: Duration) {
        self.next = self.now.saturating_add(nanos(every)).min(STALE - 1);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.due.0.compare_exchange(BUSY, self.next, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            self.due.0.store(0, Ordering::Release);
        }
    }
}
