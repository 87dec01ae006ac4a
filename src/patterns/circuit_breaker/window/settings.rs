//! Settings as the state machine reads them: one word for a success, single values for lock-free
//! readers, and the whole configuration. And the outcomes of a closed breaker across a change of
//! it.
use std::{sync::Arc, time::Duration};

use super::{
    super::{CircuitBreakerConfig, CircuitBreakerEvent, Transition, WindowConfig, open_limit::OpenLimit, state::Word},
    NONE, Tally,
    records::{Bads, Counts},
    tagged,
};
use crate::{
    build::Common,
    entropy::Entropy,
    observe::Events,
    outcome::FailureKind,
    sync::{AtomicU32, AtomicU64, Mutex, Ordering},
    time::nanos,
};

/// State shared by all clones of a breaker and all breakers of a registry.
pub(in super::super) struct Setting {
    /// Configuration and its version. This lock is the last in order, and is held for a moment.
    whole: Mutex<(u32, Arc<CircuitBreakerConfig>)>,
    /// Version of the configuration; readers compare it with the version of their cached copy.
    number: AtomicU32,
    pub(in super::super) live: Live,
    pub(in super::super) entropy: Entropy,
    pub(in super::super) events: Events<CircuitBreakerEvent>,
    pub(in super::super) transitions: Events<Transition>,
    pub(in super::super) open_limit: Option<OpenLimit>,
}

impl Setting {
    pub(in super::super) fn new(config: CircuitBreakerConfig, common: &Common, open_limit: Option<OpenLimit>) -> Self {
        let (entropy, hooks) = (common.entropy(), &common.hooks);
        let live = Live::default();
        live.store(&config);
        Self {
            whole: Mutex::new((0, Arc::new(config))),
            number: AtomicU32::new(0),
            live,
            entropy,
            events: hooks.events(),
            transitions: hooks.events(),
            open_limit,
        }
    }

    /// Returns the version and the configuration.
    pub(in super::super) fn whole(&self) -> (u32, Arc<CircuitBreakerConfig>) {
        self.whole.lock().clone()
    }

    pub(in super::super) fn config(&self) -> CircuitBreakerConfig {
        *self.whole.lock().1
    }

    pub(in super::super) fn number(&self) -> u32 {
        self.number.load(Ordering::Acquire)
    }

    /// Replaces the configuration by one that was checked. Each breaker takes it over at its next
    /// access.
    pub(in super::super) fn replace(&self, config: CircuitBreakerConfig) {
        let mut whole = self.whole.lock();
        *whole = (whole.0.wrapping_add(1), Arc::new(config));
        self.live.store(&config);
        self.number.store(whole.0, Ordering::Release);
    }
}

/// Settings that are read without a lock, beside the plan. Absent times are 0, absent rates above
/// 1.
///
/// The values are stored one by one, `Relaxed`: during a replacement a reader may combine old and
/// new ones. That is allowed, because each is a valid setting by itself: the rates are judged again
/// under the lock by the whole configuration, and of the others each is used alone, or, for the
/// three values of a slow start, affects the share of calls that pass for one moment.
#[derive(Default)]
pub(in super::super) struct Live {
    failure_rate: AtomicU64,
    slow_rate: AtomicU64,
    min_calls: AtomicU32,
    permitted_calls: AtomicU32,
    failures: AtomicU32,
    slow_call: AtomicU64,
    cancelled_after: AtomicU64,
    slow_start_window: AtomicU64,
    slow_start_min_share: AtomicU64,
    slow_start_steps: AtomicU32,
}

/// All calls, as the share of a slow start.
pub(in super::super) const ALL: u64 = 1 << 32;

impl Live {
    fn store(&self, config: &CircuitBreakerConfig) {
        let rate = |cell: &AtomicU64, share: Option<f64>| cell.store(share.unwrap_or(2.0).to_bits(), Ordering::Relaxed);
        let time = |cell: &AtomicU64, d: Option<Duration>| cell.store(d.map_or(0, nanos), Ordering::Relaxed);
        rate(&self.failure_rate, config.trip.failure_rate);
        rate(&self.slow_rate, config.trip.slow_call_rate);
        self.min_calls.store(config.min_calls, Ordering::Relaxed);
        self.permitted_calls.store(config.half_open.permitted_calls, Ordering::Relaxed);
        let kinds = config.failures.iter().fold(0, |bits, kind| bits | 1 << kind.to_bits());
        self.failures.store(kinds, Ordering::Relaxed);
        time(&self.slow_call, config.trip.slow_call);
        time(&self.cancelled_after, config.count_cancelled_after);
        time(&self.slow_start_window, config.slow_start.map(|slow_start| slow_start.window));
        rate(&self.slow_start_min_share, config.slow_start.map(|slow_start| slow_start.min_share));
        self.slow_start_steps.store(config.slow_start.map_or(0, |slow_start| slow_start.steps), Ordering::Relaxed);
    }

    /// Returns whether a rule over a time window seems to be broken. It is then judged under the
    /// lock.
    pub(in super::super) fn seems_broken(&self, counts: Counts) -> bool {
        let reached = |bad: u64, rate: &AtomicU64| {
            bad as f64 / counts.calls as f64 >= f64::from_bits(rate.load(Ordering::Relaxed))
        };
        counts.calls >= u64::from(self.min_calls.load(Ordering::Relaxed))
            && (reached(counts.failures, &self.failure_rate) || reached(counts.slow, &self.slow_rate))
    }

    pub(in super::super) fn permitted_calls(&self) -> u32 {
        self.permitted_calls.load(Ordering::Relaxed)
    }

    pub(in super::super) fn is_failure(&self, kind: FailureKind) -> bool {
        self.failures.load(Ordering::Relaxed) & 1 << kind.to_bits() != 0
    }

    pub(in super::super) fn slow_call(&self) -> Option<Duration> {
        some(&self.slow_call)
    }

    pub(in super::super) fn cancelled_after(&self) -> Option<Duration> {
        some(&self.cancelled_after)
    }

    /// Returns the share of the calls, in units of [`ALL`], that a slow start admits at this time
    /// after its beginning.
    pub(in super::super) fn slow_start_share(&self, since: Duration) -> u64 {
        let (time, since) = (self.slow_start_window.load(Ordering::Relaxed), nanos(since));
        if since >= time {
            return ALL;
        }
        let from = f64::from_bits(self.slow_start_min_share.load(Ordering::Relaxed)).min(1.0);
        let progress = match self.slow_start_steps.load(Ordering::Relaxed) {
            0 => since as f64 / time as f64,
            // In integers, so that a step begins at its exact nanosecond.
            n => (u128::from(since) * u128::from(n) / u128::from(time)) as f64 / f64::from(n),
        };
        // Half a unit is added, because shares such as 0.7 lie just below the intended value.
        ((((from + (1.0 - from) * progress) * ALL as f64) + 0.5) as u64).min(ALL)
    }
}

fn some(time: &AtomicU64) -> Option<Duration> {
    match time.load(Ordering::Relaxed) {
        0 => None,
        time => Some(Duration::from_nanos(time)),
    }
}

/// Settings that a success reads. From the bottom: size of the count window (20 bits), minimum
/// number of calls (20), flags of the rules, and the number of time windows before the one in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) struct Plan(pub(in super::super) u64);

const SIZE: u64 = (1 << 20) - 1;
const BY_COUNT: u64 = 1 << 40;
const BY_TIME: u64 = 1 << 41;
const IN_A_ROW: u64 = 1 << 42;
const TIMES_CALLS: u64 = 1 << 43;
const DEPTH: u32 = 48;

impl Plan {
    pub(in super::super) fn of(config: &CircuitBreakerConfig, depth: u32) -> Self {
        let trip = &config.trip;
        let rates = trip.failure_rate.is_some() || trip.slow_call_rate.is_some();
        let window = match config.window {
            WindowConfig::Calls { calls } if rates => {
                BY_COUNT | u64::from(calls) & SIZE | (u64::from(config.min_calls) & SIZE) << 20
            }
            WindowConfig::Time { .. } if rates => BY_TIME,
            _ => 0,
        };
        let flag = |on: bool, flag: u64| if on { flag } else { 0 };
        let rules = flag(trip.consecutive_failures.is_some(), IN_A_ROW)
            | flag(trip.slow_call.is_some() || config.count_cancelled_after.is_some(), TIMES_CALLS);
        Self(window | rules | u64::from(depth) << DEPTH)
    }

    #[inline]
    pub(in super::super) const fn size(self) -> u32 {
        (self.0 & SIZE) as u32
    }

    #[inline]
    pub(in super::super) const fn min_calls(self) -> u32 {
        (self.0 >> 20 & SIZE) as u32
    }

    #[inline]
    pub(in super::super) const fn by_count(self) -> bool {
        self.0 & BY_COUNT != 0
    }

    /// Returns whether a success is only counted, in a count window.
    #[inline]
    pub(in super::super) const fn is_by_count_alone(self) -> bool {
        self.0 & (BY_COUNT | IN_A_ROW) == BY_COUNT
    }

    #[inline]
    pub(in super::super) const fn by_time(self) -> bool {
        self.0 & BY_TIME != 0
    }

    #[inline]
    pub(in super::super) const fn in_a_row(self) -> bool {
        self.0 & IN_A_ROW != 0
    }

    #[inline]
    pub(in super::super) const fn times_calls(self) -> bool {
        self.0 & TIMES_CALLS != 0
    }

    #[inline]
    pub(in super::super) const fn depth(self) -> u32 {
        (self.0 >> DEPTH) as u32
    }
}

impl Tally {
    /// Takes over another configuration: the plan, the windows, and the outcomes that fit them.
    /// Called under the breaker's lock. `bads` is `None` if no failure was ever recorded.
    pub(in super::super) fn reshape(
        &self,
        word: &AtomicU64,
        config: &CircuitBreakerConfig,
        mut bads: Option<&mut Bads>,
    ) {
        let was = self.plan();
        let mut plan = Plan::of(config, was.depth());
        let mut same_windows = was.by_count() == plan.by_count() && was.by_time() == plan.by_time();
        if let (true, WindowConfig::Time { time, buckets }) = (plan.by_time(), config.window) {
            let same = |depth| self.rates.at(depth).is_some_and(|windows| windows.has_shape(time, buckets));
            if !was.by_time() || !same(was.depth()) {
                same_windows = false;
                plan = Plan::of(config, self.rates.make_room(time, buckets));
                // Before the word: a caller that sees the new generation sees its windows.
                if let Some(windows) = self.rates.at(plan.depth()) {
                    windows.reshape(time, buckets);
                }
            }
        }
        if !same_windows {
            self.newest_bad.store(NONE, Ordering::Release);
            bads.iter_mut().for_each(|bads| bads.clear_window());
        }
        self.plan.store(plan.0, Ordering::Release);
        // A success that began by the old plan must not be counted by it: the new generation makes
        // its compare-and-set fail. Time windows of an unchanged shape are kept, and belong to
        // their generation.
        if !same_windows || plan.by_count() && plan != was {
            self.renumber(word, was, plan, bads.as_deref_mut());
        }
        if !was.in_a_row() || !plan.in_a_row() {
            self.streak.store(0, Ordering::Release);
        }
        if let Some(bads) = bads {
            bads.weigh_over(config.trip.weight_period);
        }
    }

    /// Moves a closed breaker's word to the next generation, with the outcomes that its new window
    /// holds.
    fn renumber(&self, word: &AtomicU64, was: Plan, plan: Plan, bads: Option<&mut Bads>) {
        let mut seen = Word(word.load(Ordering::Acquire));
        if !seen.is_closed() {
            return; // its count is of probes; its windows are emptied when it closes
        }
        let moved = loop {
            let held = if was.by_count() && plan.by_count() { seen.filled(was.size()) } else { 0 };
            // A full window keeps its count; a window that is not full counts the outcomes that it
            // holds.
            let full = plan.by_count() && held >= plan.size();
            let next = seen.with_window(full, if full { seen.count() } else { held }).next();
            match word.compare_exchange(seen.0, next.0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break next,
                Err(changed) => seen = Word(changed),
            }
        };
        if let (Some(bads), true) = (bads, plan.by_count()) {
            // Entries that successes had pushed out of the old window must not reappear in a larger
            // one.
            bads.forget_before(seen.count(), was.size());
            bads.shift(seen.count().wrapping_sub(moved.count()));
            bads.forget_before(moved.count(), plan.size());
            let newest = bads.newest().map_or(NONE, |number| tagged(moved, number));
            self.newest_bad.store(newest, Ordering::Release);
        }
        self.carry_streak(moved.generation());
    }

    /// Moves the consecutive failures to the next generation. A success that comes in between sees
    /// a streak of another generation, and is counted under the lock.
    fn carry_streak(&self, generation: u32) {
        let mut streak = self.streak.load(Ordering::Acquire);
        loop {
            let carried = u64::from(generation) << 32 | u64::from(streak as u32);
            match self.streak.compare_exchange(streak, carried, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(changed) => streak = changed,
            }
        }
    }
}
