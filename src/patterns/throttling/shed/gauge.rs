//! Gauges and their limits, and the choice of the call that reads them.

// Concurrency of `Due`. Its word is a time (the next reading is due then), `BUSY` (one call reads)
// or `STALE` (one call reads, and `now` was called since). The transitions are:
//
//   time -> BUSY    `take`, by compare-and-set: elects one call and makes its guard
//   BUSY -> time    drop of the guard
//   BUSY -> STALE   `now`
//   STALE -> 0      drop of the guard: due at once
//   time -> 0       `now`
//
// Invariant: at most one guard exists. Only a compare-and-set from a time creates one, and only its
// drop leaves `BUSY` and `STALE`.
//
// The settings are published by the mutex of the component, not by this word: a change writes them
// under the lock and then calls `now`; the elected call reads them under the lock after `take`. If
// `now` comes after `take`, it leaves `STALE`, and the reading is repeated. If it comes before, the
// release in `now` and the acquire in `take` order the new settings before the election.
//
// `is` loads `Relaxed`: a stale value costs a failed `take`, or delays the reading to the next
// call. A `Gauge` is one word that publishes nothing else, so `Relaxed` suffices.

use std::{collections::BTreeMap, fmt, future::Future, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    config::{ConfigError, Name, require, setters},
    race::race,
    sync::{AtomicU64, Ordering},
    time::{Clock, Instant, nanos},
};

/// A value that can be read: a share of a processor or of memory, a queue's depth, or the age of
/// its oldest message.
///
/// Every `Fn() -> f64` is a reading, and so is a [`Gauge`]. One call in about 100 ms reads it, so
/// it should be quick: measure slow values elsewhere, and set a gauge. NaN means unknown: such a
/// gauge is left out, and while no gauge is known, the amount of shedding and the disabled features
/// stay as they are.
pub trait Reading: Send + Sync + 'static {
    /// Returns the current value.
    fn read(&self) -> f64;
}

impl<F: Fn() -> f64 + Send + Sync + 'static> Reading for F {
    fn read(&self) -> f64 {
        self()
    }
}

/// A number that one part of a program sets and another one reads. A clone is the same gauge. It
/// begins at zero.
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
    /// Creates a gauge at zero.
    pub fn new() -> Self {
        Self(Arc::new(AtomicU64::new(0f64.to_bits())))
    }

    /// Sets the value.
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

/// The values of a gauge at which shedding begins and is complete.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Limits {
    /// Value above which load is shed, gradually.
    pub soft: f64,
    /// Value from which on all load is shed that may be.
    pub hard: f64,
}

setters! {
    impl Limits {
        soft: f64,
        hard: f64,
    }
}

impl Limits {
    /// Returns limits from `soft` to `hard`.
    pub const fn new(soft: f64, hard: f64) -> Self {
        Self { soft, hard }
    }

    fn check(&self) -> Result<(), ConfigError> {
        require(self.soft.is_finite(), "soft", "must be a finite number")?;
        require(self.hard.is_finite(), "hard", "must be a finite number")?;
        require(self.soft < self.hard, "hard", "must be above `soft`")
    }

    /// Returns the position of a value between the limits: 0 at the soft limit, 1 at the hard one.
    fn pressure(&self, value: f64) -> f64 {
        (value - self.soft) / (self.hard - self.soft)
    }
}

/// Limits by the names of their gauges.
pub(crate) type LimitsByName = BTreeMap<String, Limits>;

pub(crate) fn check_limits(limits: &LimitsByName) -> Result<(), ConfigError> {
    limits.iter().try_for_each(|(name, limits)| limits.check().map_err(|e| e.within(&format!("limits.{name}"))))
}

/// Gauges with their names.
#[derive(Clone, Default)]
pub(crate) struct Gauges(Vec<(Name, Arc<dyn Reading>)>);

impl Gauges {
    /// Adds a gauge, or replaces one of the same name.
    pub(crate) fn and(mut self, name: Name, gauge: impl Reading) -> Self {
        self.0.retain(|(known, _)| *known != name);
        self.0.push((name, Arc::new(gauge)));
        self
    }

    /// Fails if a gauge has no limits.
    pub(crate) fn all_have(&self, limits: &LimitsByName) -> Result<(), ConfigError> {
        let without = self.0.iter().find(|(name, _)| !limits.contains_key(name.as_str()));
        without.map_or(Ok(()), |(name, _)| {
            Err(ConfigError::new(format!("limits.{name}"), "must be present: a gauge of this name is watched"))
        })
    }

    /// Returns the highest pressure of the known gauges, if any: 0 at the soft limit, 1 at the hard
    /// one.
    pub(crate) fn pressure(&self, limits: &LimitsByName) -> Option<f64> {
        let pressures = self.0.iter().filter_map(|(name, gauge)| {
            let pressure = limits.get(name.as_str())?.pressure(gauge.read());
            (!pressure.is_nan()).then_some(pressure)
        });
        pressures.reduce(f64::max)
    }

    /// Returns warnings about limits that will cause trouble.
    pub(crate) fn warnings(&self, limits: &LimitsByName) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.0.is_empty() {
            warnings.push("no gauge is watched, so nothing is ever shed or switched off".to_owned());
        }
        for (name, Limits { soft, hard }) in limits {
            if !self.0.iter().any(|(known, _)| known.as_str() == name) {
                warnings.push(format!("there are limits for a gauge `{name}`, which is not watched"));
            }
            if hard - soft < 0.05 * hard.abs() {
                warnings.push(format!(
                    "the limits of `{name}`, {soft} and {hard}, leave no head-room: the reaction is all or nothing"
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

/// The time of the next reading, in nanoseconds, or one of two marks. Elects one of the concurrent
/// calls to read the gauges when a reading is due.
pub(crate) struct Due(AtomicU64);

/// A call is reading the gauges.
const BUSY: u64 = u64::MAX;

/// A call is reading the gauges by settings that have changed since. A reading is due again when it
/// ends.
const STALE: u64 = BUSY - 1;

impl Due {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Returns `true` if a reading is due at `now`, in nanoseconds.
    #[inline]
    pub(crate) fn is(&self, now: u64) -> bool {
        now >= self.0.load(Ordering::Relaxed)
    }

    /// Elects the caller if a reading is due and no other call is elected. The guard ends the
    /// reading on drop, also by a panic of a gauge.
    pub(crate) fn take(&self, now: u64) -> Option<SampleGuard<'_>> {
        let due = self.0.load(Ordering::Acquire);
        let is_mine = now >= due
            && due < STALE
            && self.0.compare_exchange(due, BUSY, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        // Not `then_some`: it would build and drop a guard, which ends another call's reading.
        is_mine.then(|| SampleGuard { due: self, now, next: now })
    }

    /// Reads the gauges if a reading is due and no other call reads them, and applies their
    /// pressure. Returns `true` if it did. `settings` returns the settings, and `of` their limits
    /// and the interval until the next reading.
    pub(crate) fn sample<C>(
        &self,
        gauges: &Gauges,
        now: Instant,
        settings: impl FnOnce() -> Arc<C>,
        of: impl FnOnce(&C) -> (&LimitsByName, Duration),
        apply: impl FnOnce(Option<f64>),
    ) -> bool {
        let Some(mut turn) = self.take(now.as_nanos()) else { return false };
        // Looked up after the election: see the header.
        let settings = settings();
        let (limits, every) = of(&settings);
        turn.again_after(every);
        // A gauge is foreign code: no lock is held while it is read.
        apply(gauges.pressure(limits));
        true
    }

    /// Makes a reading due at once; if one is running, as soon as it ends.
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

/// Permission to read the gauges. The elected call looks up the settings afterwards: if they change
/// later, a reading is [due](Due::now) again.
pub(crate) struct SampleGuard<'a> {
    due: &'a Due,
    now: u64,
    next: u64,
}

impl SampleGuard<'_> {
    /// Makes the next reading due after `every`.
    pub(crate) fn again_after(&mut self, every: Duration) {
        self.next = self.now.saturating_add(nanos(every)).min(STALE - 1);
    }
}

impl Drop for SampleGuard<'_> {
    fn drop(&mut self) {
        if self.due.0.compare_exchange(BUSY, self.next, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            self.due.0.store(0, Ordering::Release);
        }
    }
}

/// Reads gauges until `shutdown` is ready. `read` makes a reading if one is due, and returns the
/// interval until the next one.
pub(crate) async fn read_until(shutdown: impl Future<Output = ()>, clock: &Clock, read: impl Fn() -> Duration) {
    let reads = async {
        loop {
            clock.sleep(read()).await;
        }
    };
    race(shutdown, reads).await;
}
