//! The outcomes of a closed breaker, and the rules over them.
//!
//! Failures and slow calls are rare and kept one by one under the breaker's lock. Successes are only numbered: the word's count
//! goes up by one, and once the window holds nothing but successes not even that, for one more changes nothing. So a success in
//! a healthy count window is two loads, and no cache line moves between processors.
use std::time::Duration;

use super::{
    CircuitBreakerConfig, WindowConfig,
    bads::{Bad, Bads, Counts},
    plan::{Live, Plan},
    rates::Rates,
    word::Word,
};
use crate::{
    outcome::{FailureKind, TripRule},
    sync::{AtomicU64, Ordering},
    time::Instant,
};

/// An outcome that is not a plain success.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mark {
    pub(super) failure: Option<FailureKind>,
    pub(super) weight: u32,
    pub(super) slow: bool,
    /// The server asks not to be called for this long.
    pub(super) retry_after: Option<Duration>,
    /// The server will be away for this long.
    pub(super) unavailable: Option<Duration>,
}

/// What a record made: the word as it left it (others may have counted on since), and the failures in a row.
#[derive(Clone, Copy)]
pub(super) struct Made {
    word: Word,
    streak: u32,
}

/// What came of counting a success.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Counted {
    Done,
    /// Not counted yet: the rules must be judged at it, under the lock.
    Judge,
    /// Not counted: the state or the settings are others by now. The lock will tell.
    Late,
}

pub(super) struct Tally {
    /// What the settings ask for. Written before the word, so whoever sees a new word sees the plan that it was made by.
    pub(super) plan: AtomicU64,
    /// Count window: the number of the newest failure or slow call, below its generation. Time window: its instant. Or one of the
    /// two marks below.
    pub(super) newest_bad: AtomicU64,
    /// The failures in a row, below the generation they belong to.
    pub(super) streak: AtomicU64,
    /// The time windows, if the rates are, or were, measured over one.
    pub(super) rates: Rates,
}

/// There is none. No number (60 bits) and no instant (584 years) comes near it or the next.
pub(super) const NONE: u64 = u64::MAX;
/// One is being recorded just now.
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
            return Counted::Done; // it comes late, and changes nothing
        }
        let plan = self.plan();
        if seen.generation() != generation || plan.in_a_row() && !self.end_streak(generation) {
            return Counted::Late;
        }
        if plan.by_count() {
            // Full of successes: one more changes nothing, and it counts as having come when `seen` was read.
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
        // Without a bad call in the window no rate can be reached.
        let newest = self.newest_bad.load(Ordering::Acquire);
        let bad = newest != NONE && rates.may_hold(newest, now);
        if bad && live.seems_broken(rates.counts(generation, now)) { Counted::Judge } else { Counted::Done }
    }

    /// Whether the last `size` outcomes up to `seen` are all successes.
    #[inline]
    fn is_clean(&self, seen: Word, size: u32) -> bool {
        match self.newest_bad.load(Ordering::Acquire) {
            NONE => true,
            // Of another generation it was numbered anew since `seen` was read (or is being recorded): to be counted, which will fail.
            newest if (newest >> 32) as u32 != seen.generation() => false,
            // More than half the range away means that it is newer than `seen`.
            newest => (size..=u32::MAX / 2).contains(&seen.count().wrapping_sub(newest as u32)),
        }
    }

    #[cold]
    fn count_success(&self, word: &AtomicU64, mut seen: Word, plan: Plan) -> Counted {
        let generation = seen.generation();
        loop {
            let counted = seen.counted(plan.size());
            // A success lowers both rates, but it may be the call that makes them count. Then it is numbered under the lock, so
            // that the rules are judged over just the calls up to it. (If there is no bad call in `seen`, there is none before it.)
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

    /// Ends the count of a success at which the rules must be judged. Called under the breaker's lock.
    pub(super) fn success_judged(&self, word: &AtomicU64) -> Made {
        let plan = self.plan();
        let word = if plan.by_count() { number(word, plan.size()) } else { Word(word.load(Ordering::Acquire)) };
        Made { word, streak: 0 }
    }

    /// Records a failure or a slow call. Called under the breaker's lock, with the generation that the word has.
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
            // First the mark, then the number, then the mark off: a success that sees the number sees that its window is
            // no longer clean.
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

    /// The rule that the outcomes up to this one break, if any. Called under the breaker's lock.
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

    /// What the window holds.
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

    /// What the window of a breaker holds that has never seen anything bad.
    pub(super) fn counts_of_good(&self, word: Word, now: Instant) -> Counts {
        let plan = self.plan();
        match (word.is_closed(), plan.by_time()) {
            (false, _) => Counts::default(),
            (true, true) => self.over_time(plan, word.generation(), now),
            (true, false) => Counts { calls: word.filled(plan.size()).into(), ..Counts::default() },
        }
    }

    /// Empties the windows. Called under the breaker's lock, before a new generation; what the old one adds yet is not counted.
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

    /// What the window holds and the failures in a row, for a judgement of its own. Called under the breaker's lock.
    pub(super) fn as_it_is(&self, word: Word) -> Made {
        let streak = self.streak.load(Ordering::Acquire);
        let streak = if (streak >> 32) as u32 == word.generation() { streak as u32 } else { 0 };
        Made { word, streak }
    }

    /// One failure more in a row: how many that makes.
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

    /// False if the row belongs to another generation: then this one is over.
    #[inline]
    fn end_streak(&self, generation: u32) -> bool {
        let mut streak = self.streak.load(Ordering::Acquire);
        // Until it is done, also where a failure comes in between: given up then, it would have ended nothing, and a row of
        // failures would go on over a success.
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

/// Counts one outcome more in a window of `size`, for its number.
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

/// The number of an outcome, below the generation that it is counted in.
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
