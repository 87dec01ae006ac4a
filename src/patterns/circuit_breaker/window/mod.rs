//! Outcomes of a closed breaker, and the rules over them.

// Failures and slow calls are rare and stored one by one under the breaker's lock (`records.rs`).
// Successes are only numbered: the word's count goes up by one, and in a count window that holds
// nothing but successes not even that. So a success in a healthy count window only loads, and no
// cache line moves between processors.
//
// Count window. `bad` stores `newest_bad = PENDING` (`Release`), then numbers the failure by a
// compare-and-set of the word (`AcqRel`), then stores the number. A success that loads a word
// (`Acquire`) with the failure's number therefore sees `PENDING` or the number in `newest_bad`, and
// not the clean window of before: it is counted. A success that loads the word before sees an older
// window and counts as having come before the failure.
//
// Time window. `newest_bad` holds an instant, stored (`Release`) before the failure is added to the
// buckets; the buckets add the call last (`records.rs`). A success that sees the call in its bucket
// sees the rest.
//
// Streak. One atomic of generation and consecutive failures, changed by compare-and-sets: a success
// ends it before it is counted, in a loop, because a lost race with a failure must not leave the
// streak going on over the success.
//
// Generations. Every compare-and-set of the word compares its generation too, so an outcome that
// began before a change of state or of the windows is not counted in the new ones. `plan` is stored
// (`Release`) before the word, so a caller that sees a new word reads the plan that it was made by.

mod records;
mod settings;
#[cfg(all(test, not(steadfast_loom)))]
mod tests;

pub(super) use records::{Bads, Counts};
pub(super) use settings::{ALL, Live, Plan, Setting};

use std::time::Duration;

use self::records::{Bad, Rates};
use super::{CircuitBreakerConfig, WindowConfig, state::Word};
use crate::{
    outcome::{FailureKind, TripRule},
    sync::{AtomicU64, Ordering},
    time::Instant,
};

/// Outcome that is not a plain success.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mark {
    pub(super) failure: Option<FailureKind>,
    pub(super) weight: u32,
    pub(super) slow: bool,
    /// Duration for which the server asks not to be called.
    pub(super) retry_after: Option<Duration>,
    /// Duration for which the server announces to be unavailable.
    pub(super) unavailable: Option<Duration>,
}

/// Result of a record: the word that it left (others may have counted since), and the consecutive
/// failures.
#[derive(Clone, Copy)]
pub(super) struct Made {
    word: Word,
    streak: u32,
}

/// Result of counting a success.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Counted {
    Done,
    /// Not counted yet: the rules must be judged at it, under the lock.
    Judge,
    /// Not counted: the state or the settings have changed. The lock decides.
    Late,
}

/// Windows of a closed breaker.
pub(super) struct Tally {
    /// [`Plan`] of the current settings. Written before the word, so that a caller that sees a new
    /// word sees the plan that it was made by.
    pub(super) plan: AtomicU64,
    /// Newest failure or slow call: in a count window its number, below its generation; in a time
    /// window its instant. Or one of the two marks below.
    pub(super) newest_bad: AtomicU64,
    /// Number of consecutive failures, below their generation.
    pub(super) streak: AtomicU64,
    /// Time windows, if the rates are or were measured over one.
    pub(super) rates: Rates,
}

/// No failure or slow call. No number (60 bits) and no instant (584 years) comes near this value or
/// the next.
pub(super) const NONE: u64 = u64::MAX;
/// A failure or slow call is being recorded.
const PENDING: u64 = u64::MAX - 1;

impl Tally {
    pub(super) fn new(config: &CircuitBreakerConfig) -> Self {
        let rates = Rates::default();
        let plan = Plan::of(config, 0);
        if let (true, WindowConfig::Time { time, buckets }) = (plan.by_time(), config.window) {
            rates.make_room(time, buckets);
        }
        let (newest_bad, streak) = (AtomicU64::new(NONE), AtomicU64::new(0));
        Self { plan: AtomicU64::new(plan.0), newest_bad, streak, rates }
    }

    #[inline]
    pub(super) fn plan(&self) -> Plan {
        Plan(self.plan.load(Ordering::Acquire))
    }

    /// Counts a plain success in a closed, full window, if outcomes are counted by number alone.
    /// Returns `false` if it was not counted: another call has changed the word since it was
    /// `seen`.
    #[inline]
    pub(super) fn success_of_full(&self, word: &AtomicU64, seen: Word) -> bool {
        let plan = self.plan();
        if !plan.is_by_count_alone() {
            return false;
        }
        let is_counted = || {
            let counted = seen.counted(plan.size());
            word.compare_exchange_weak(seen.0, counted.0, Ordering::AcqRel, Ordering::Acquire).is_ok()
        };
        self.is_clean(seen, plan.size()) || is_counted()
    }

    /// Counts a plain success of this generation, if it may be counted without the lock.
    #[inline]
    pub(super) fn success(
        &self,
        word: &AtomicU64,
        live: &Live,
        generation: u32,
        now: &impl Fn() -> Instant,
    ) -> Counted {
        let seen = Word(word.load(Ordering::Acquire));
        if !seen.is_closed() {
            return Counted::Done; // late: it changes nothing
        }
        let plan = self.plan();
        if seen.generation() != generation || plan.in_a_row() && !self.end_streak(generation) {
            return Counted::Late;
        }
        if plan.by_count() {
            // Full of successes: one more changes nothing. It counts as of the load of `seen`.
            if seen.is_full() && self.is_clean(seen, plan.size()) {
                return Counted::Done;
            }
            self.count_success(word, seen, plan)
        } else if plan.by_time() {
            self.count_over_time(plan, live, generation, now())
        } else {
            Counted::Done
        }
    }

    fn count_over_time(&self, plan: Plan, live: &Live, generation: u32, now: Instant) -> Counted {
        let Some(rates) = self.rates.at(plan.depth()) else { return Counted::Done };
        rates.call(generation, now);
        // Without a failure or slow call in the window no rate can be reached.
        let newest = self.newest_bad.load(Ordering::Acquire);
        let bad = newest != NONE && rates.may_hold(newest, now);
        if bad && live.seems_broken(rates.counts(generation, now)) { Counted::Judge } else { Counted::Done }
    }

    /// Returns whether the last `size` outcomes up to `seen` are all successes.
    #[inline]
    fn is_clean(&self, seen: Word, size: u32) -> bool {
        match self.newest_bad.load(Ordering::Acquire) {
            NONE => true,
            // A number of another generation, or `PENDING`: the window has changed since `seen` was
            // read, so the success is counted by a compare-and-set of the word.
            newest if (newest >> 32) as u32 != seen.generation() => false,
            // A distance of more than half the range means that it is newer than `seen`.
            newest => (size..=u32::MAX / 2).contains(&seen.count().wrapping_sub(newest as u32)),
        }
    }

    #[cold]
    fn count_success(&self, word: &AtomicU64, mut seen: Word, plan: Plan) -> Counted {
        let generation = seen.generation();
        loop {
            let counted = seen.counted(plan.size());
            // A success lowers both rates, but it may be the `min_calls`th call, at which they are first
            // judged. Then it is numbered under the lock, so that the rules are judged over exactly the calls
            // up to it. (If no failure was recorded when `seen` was read, there is none before this success.)
            if !seen.is_full()
                && counted.filled(plan.size()) == plan.min_calls()
                && self.newest_bad.load(Ordering::Acquire) != NONE
            {
                return Counted::Judge;
            }
            match word.compare_exchange_weak(seen.0, counted.0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Counted::Done,
                Err(changed) => seen = Word(changed),
            }
            if !seen.is_closed() || seen.generation() != generation {
                return Counted::Late;
            }
        }
    }

    /// Counts a success at which the rules must be judged. Called under the breaker's lock.
    pub(super) fn success_judged(&self, word: &AtomicU64) -> Made {
        let plan = self.plan();
        let word = if plan.by_count() { number(word, plan.size()) } else { Word(word.load(Ordering::Acquire)) };
        Made { word, streak: 0 }
    }

    /// Records a failure or a slow call. Called under the breaker's lock, with the word's
    /// generation.
    pub(super) fn bad(
        &self,
        word: &AtomicU64,
        generation: u32,
        bads: &mut Bads,
        mark: Mark,
        now: &dyn Fn() -> Instant,
    ) -> Made {
        let plan = self.plan();
        let streak = if mark.failure.is_some() {
            self.extend_streak(generation)
        } else {
            self.end_streak(generation);
            0
        };
        if mark.failure.is_some() {
            bads.weigh(mark.weight, now);
        }
        if plan.by_count() {
            // First `PENDING`, then the number in the word, then the number here: a success that sees the
            // word with this number sees that its window is no longer clean.
            self.newest_bad.store(PENDING, Ordering::Release);
            let counted = number(word, plan.size());
            self.newest_bad.store(tagged(counted, counted.count()), Ordering::Release);
            bads.push(Bad { number: counted.count(), failure: mark.failure.is_some(), slow: mark.slow });
            bads.forget_before(counted.count(), plan.size());
            return Made { word: counted, streak };
        }
        if let (true, Some(rates)) = (plan.by_time(), self.rates.at(plan.depth())) {
            let now = now();
            self.newest_bad.store(now.as_nanos(), Ordering::Release);
            rates.bad_call(generation, now, mark.failure.is_some(), mark.slow);
        }
        Made { word: Word(word.load(Ordering::Acquire)), streak }
    }

    /// Returns the rule that the outcomes up to this one break, if any. Called under the breaker's
    /// lock.
    pub(super) fn verdict(
        &self,
        Made { word, streak }: Made,
        config: &CircuitBreakerConfig,
        bads: &Bads,
        now: &dyn Fn() -> Instant,
    ) -> Option<TripRule> {
        let plan = self.plan();
        let counts = if plan.by_time() {
            self.over_time(plan, word.generation(), now())
        } else {
            bads.counts(word, plan.size())
        };
        rate_broken(config, counts)
            .or_else(|| {
                let limit = config.trip.consecutive_failures?;
                (streak >= limit).then_some(TripRule::ConsecutiveFailures)
            })
            .or_else(|| {
                let limit = config.trip.weight?;
                (bads.weight(now)? >= u64::from(limit)).then_some(TripRule::WeightedFailures)
            })
    }

    /// Returns the counts of the window.
    pub(super) fn counts(&self, word: Word, bads: &Bads, now: Instant) -> Counts {
        let plan = self.plan();
        if !word.is_closed() {
            Counts::default()
        } else if plan.by_time() {
            self.over_time(plan, word.generation(), now)
        } else {
            bads.counts(word, plan.size())
        }
    }

    /// Returns the counts of the window of a breaker that has recorded only plain successes.
    pub(super) fn counts_of_good(&self, word: Word, now: Instant) -> Counts {
        let plan = self.plan();
        match (word.is_closed(), plan.by_time()) {
            (false, _) => Counts::default(),
            (true, true) => self.over_time(plan, word.generation(), now),
            (true, false) => Counts { calls: word.filled(plan.size()).into(), ..Counts::default() },
        }
    }

    /// Empties the windows. Called under the breaker's lock, before a new generation: what the old
    /// generation adds later is not counted.
    pub(super) fn clear(&self, bads: &mut Bads) {
        bads.clear();
        if let Some(rates) = self.rates.at(self.plan().depth()) {
            rates.clear();
        }
        self.streak.store(0, Ordering::Release);
        self.newest_bad.store(NONE, Ordering::Release);
    }

    fn over_time(&self, plan: Plan, generation: u32, now: Instant) -> Counts {
        self.rates.at(plan.depth()).map_or(Counts::default(), |rates| rates.counts(generation, now))
    }

    /// Snapshots the window and the number of consecutive failures. Called under the breaker's
    /// lock.
    pub(super) fn as_it_is(&self, word: Word) -> Made {
        let streak = self.streak.load(Ordering::Acquire);
        let streak = if (streak >> 32) as u32 == word.generation() { streak as u32 } else { 0 };
        Made { word, streak }
    }

    /// Adds one consecutive failure, and returns their number.
    fn extend_streak(&self, generation: u32) -> u32 {
        let mut old = self.streak.load(Ordering::Acquire);
        loop {
            let before = if (old >> 32) as u32 == generation { old as u32 } else { 0 };
            let now = before.saturating_add(1);
            let next = u64::from(generation) << 32 | u64::from(now);
            match self.streak.compare_exchange_weak(old, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return now,
                Err(changed) => old = changed,
            }
        }
    }

    /// Ends the consecutive failures. Returns `false` if they belong to another generation, so that
    /// this one is over.
    #[inline]
    fn end_streak(&self, generation: u32) -> bool {
        let mut streak = self.streak.load(Ordering::Acquire);
        // Repeated until it succeeds, even if a failure comes in between: otherwise the streak would continue
        // over a success.
        while streak as u32 != 0 {
            if (streak >> 32) as u32 != generation {
                return false;
            }
            let ended = u64::from(generation) << 32;
            match self.streak.compare_exchange_weak(streak, ended, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(changed) => streak = changed,
            }
        }
        true
    }
}

/// Counts one more outcome in a window of `size`, and returns the word with its number.
fn number(word: &AtomicU64, size: u32) -> Word {
    let mut seen = Word(word.load(Ordering::Acquire));
    loop {
        let counted = seen.counted(size);
        match word.compare_exchange_weak(seen.0, counted.0, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return counted,
            Err(changed) => seen = Word(changed),
        }
    }
}

/// Returns the number of an outcome, below the generation in which it is counted.
pub(super) fn tagged(word: Word, number: u32) -> u64 {
    u64::from(word.generation()) << 32 | u64::from(number)
}

fn rate_broken(config: &CircuitBreakerConfig, counts: Counts) -> Option<TripRule> {
    if counts.calls < u64::from(config.min_calls) {
        return None;
    }
    let reached = |bad: u64, rate: Option<f64>| rate.is_some_and(|rate| bad as f64 / counts.calls as f64 >= rate);
    if reached(counts.failures, config.trip.failure_rate) {
        Some(TripRule::FailureRate)
    } else if reached(counts.slow, config.trip.slow_call_rate) {
        Some(TripRule::SlowCallRate)
    } else {
        None
    }
}
