//! The outcomes of a closed breaker, and the rules over them.
//!
//! Failures and slow calls are rare and kept one by one under the breaker's lock. Successes are only numbered: the word's count
//! goes up by one, and once the window holds nothing but successes not even that, for one more changes nothing. So a success in
//! a healthy count window is two loads, and no cache line moves between processors.
use std::{collections::VecDeque, time::Duration};

use super::{CircuitBreakerConfig, WindowConfig, word::Word};
use crate::{
    outcome::{FailureKind, TripRule},
    sync::{AtomicU64, Ordering},
    time::Instant,
    window::TimeWindow,
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

/// The failures and slow calls of a count window, oldest first, and how many there are of each.
#[derive(Default)]
pub(super) struct Bads {
    queue: VecDeque<Bad>,
    failures: u32,
    slow: u32,
}

struct Bad {
    /// Its number among the recorded outcomes.
    number: u32,
    failure: bool,
    slow: bool,
}

/// What a window holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) calls: u64,
    pub(super) failures: u64,
    pub(super) slow: u64,
}

/// What a record made: the word as it left it (others may have counted on since), and the failures in a row.
#[derive(Clone, Copy)]
pub(super) struct Made {
    word: Word,
    streak: u32,
}

pub(super) struct Tally {
    /// Count window: the number of the newest failure or slow call, or one of the two marks below. Time window: its instant.
    newest_bad: AtomicU64,
    /// The failures in a row, below the generation they belong to.
    streak: AtomicU64,
    /// The time window, if the rates are measured over one.
    rates: Option<Box<Rates>>,
    weights: Option<Box<TimeWindow>>,
}

struct Rates {
    calls: TimeWindow,
    failures: TimeWindow,
    slow: TimeWindow,
}

/// There is none. No number (32 bits) and no instant (584 years) comes near it or the next.
const NONE: u64 = u64::MAX;
/// One is being recorded just now.
const PENDING: u64 = u64::MAX - 1;

/// Weights are kept in this many buckets of their period.
const WEIGHT_BUCKETS: u32 = 10;

impl Tally {
    pub(super) fn new(config: &CircuitBreakerConfig) -> Self {
        let rates = match config.window {
            WindowConfig::Time { time, buckets } if has_rate(config) => Some(Box::new(Rates {
                calls: TimeWindow::new(time, buckets),
                failures: TimeWindow::new(time, buckets),
                slow: TimeWindow::new(time, buckets),
            })),
            _ => None,
        };
        let weights = config.trip.weight_period.map(|period| Box::new(TimeWindow::new(period, WEIGHT_BUCKETS)));
        Self { newest_bad: AtomicU64::new(NONE), streak: AtomicU64::new(0), rates, weights }
    }

    /// Counts a plain success of this generation, or leaves it to [`success_judged`](Self::success_judged): true if the rules must
    /// be judged at it.
    #[inline]
    pub(super) fn success(
        &self,
        word: &AtomicU64,
        config: &CircuitBreakerConfig,
        generation: u32,
        now: &impl Fn() -> Instant,
    ) -> bool {
        let seen = Word(word.load(Ordering::Acquire));
        if !seen.is_closed() || seen.generation() != generation {
            return false;
        }
        if config.trip.consecutive_failures.is_some() {
            self.end_streak(generation);
        }
        match (config.window, &self.rates) {
            (WindowConfig::Time { time, .. }, Some(rates)) => {
                let now = now();
                rates.calls.add(generation, now, 1);
                // Without a bad call in the window no rate can be reached.
                let newest = self.newest_bad.load(Ordering::Acquire);
                newest != NONE
                    && now - Instant::from_nanos(newest) < time
                    && self.over_time(config, generation, now).is_some()
            }
            (WindowConfig::Calls { calls }, _) if has_rate(config) => {
                // Full of successes: one more changes nothing, and it counts as having come when `seen` was read.
                if seen.is_full() && self.is_clean(seen, calls) {
                    return false;
                }
                self.count_success(word, seen, config, calls)
            }
            _ => false,
        }
    }

    /// Whether the last `size` outcomes up to `seen` are all successes.
    #[inline]
    fn is_clean(&self, seen: Word, size: u32) -> bool {
        match self.newest_bad.load(Ordering::Acquire) {
            NONE => true,
            PENDING => false,
            // More than half the range away means that it is newer than `seen`.
            newest => (size..=u32::MAX / 2).contains(&seen.count().wrapping_sub(newest as u32)),
        }
    }

    #[cold]
    fn count_success(&self, word: &AtomicU64, mut seen: Word, config: &CircuitBreakerConfig, size: u32) -> bool {
        let generation = seen.generation();
        loop {
            let counted = seen.counted(size);
            // A success lowers both rates, but it may be the call that makes them count. Then it is numbered under the lock, so
            // that the rules are judged over just the calls up to it. (If there is no bad call in `seen`, there is none before it.)
            if !seen.is_full()
                && counted.filled(size) == config.min_calls
                && self.newest_bad.load(Ordering::Acquire) != NONE
            {
                return true;
            }
            match word.compare_exchange_weak(seen.0, counted.0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return false,
                Err(changed) => seen = Word(changed),
            }
            if !seen.is_closed() || seen.generation() != generation {
                return false;
            }
        }
    }

    /// Ends the count of a success at which the rules must be judged. Called under the breaker's lock.
    pub(super) fn success_judged(&self, word: &AtomicU64, config: &CircuitBreakerConfig) -> Made {
        let word = match config.window {
            WindowConfig::Calls { calls } => number(word, calls),
            WindowConfig::Time { .. } => Word(word.load(Ordering::Acquire)),
        };
        Made { word, streak: 0 }
    }

    /// Records a failure or a slow call. Called under the breaker's lock, in the generation that it belongs to.
    pub(super) fn bad(
        &self,
        word: &AtomicU64,
        config: &CircuitBreakerConfig,
        generation: u32,
        bads: &mut Bads,
        mark: Mark,
        now: &dyn Fn() -> Instant,
    ) -> Made {
        let streak = if mark.failure.is_some() {
            self.extend_streak(generation)
        } else {
            self.end_streak(generation);
            0
        };
        if let (Some(weights), true) = (&self.weights, mark.failure.is_some()) {
            weights.add(generation, now(), mark.weight);
        }
        match (config.window, &self.rates) {
            (WindowConfig::Time { .. }, Some(rates)) => {
                let now = now();
                self.newest_bad.store(now.as_nanos(), Ordering::Release);
                // The call last: a success that is counted after it sees all that belongs to it. Once a bucket has no room for
                // calls its shares stay as they are.
                let room = rates.calls.has_room(generation, now);
                if mark.failure.is_some() && room {
                    rates.failures.add(generation, now, 1);
                }
                if mark.slow && room {
                    rates.slow.add(generation, now, 1);
                }
                rates.calls.add(generation, now, 1);
            }
            (WindowConfig::Calls { calls }, _) if has_rate(config) => {
                // First the mark, then the number, then the mark off: a success that sees the number sees that its window is
                // no longer clean.
                self.newest_bad.store(PENDING, Ordering::Release);
                let counted = number(word, calls);
                self.newest_bad.store(u64::from(counted.count()), Ordering::Release);
                bads.push(Bad { number: counted.count(), failure: mark.failure.is_some(), slow: mark.slow });
                bads.forget_before(counted.count(), calls);
                return Made { word: counted, streak };
            }
            _ => {}
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
        let generation = word.generation();
        let by_rate = match (config.window, &self.rates) {
            (WindowConfig::Time { .. }, Some(_)) => self.over_time(config, generation, now()),
            (WindowConfig::Calls { calls }, _) => rate_broken(config, bads.counts(word, calls)),
            _ => None,
        };
        by_rate
            .or_else(|| {
                let limit = config.trip.consecutive_failures?;
                (streak >= limit).then_some(TripRule::ConsecutiveFailures)
            })
            .or_else(|| {
                let (limit, weights) = (config.trip.weight?, self.weights.as_ref()?);
                (weights.sum(generation, now()) >= u64::from(limit)).then_some(TripRule::WeightedFailures)
            })
    }

    /// What the window holds.
    pub(super) fn counts(&self, word: Word, config: &CircuitBreakerConfig, bads: &Bads, now: Instant) -> Counts {
        match (config.window, &self.rates) {
            _ if !word.is_closed() => Counts::default(),
            (_, Some(rates)) => rates.counts(word.generation(), now),
            (WindowConfig::Calls { calls }, None) => bads.counts(word, calls),
            _ => Counts::default(),
        }
    }

    /// Empties the windows. Called under the breaker's lock, before a new generation; what the old one adds yet is not counted.
    pub(super) fn clear(&self, bads: &mut Bads) {
        *bads = Bads::default();
        let rates = self.rates.iter().flat_map(|rates| [&rates.calls, &rates.failures, &rates.slow]);
        rates.chain(self.weights.as_deref()).for_each(TimeWindow::clear);
        self.newest_bad.store(NONE, Ordering::Release);
    }

    fn over_time(&self, config: &CircuitBreakerConfig, generation: u32, now: Instant) -> Option<TripRule> {
        rate_broken(config, self.rates.as_ref()?.counts(generation, now))
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

    #[inline]
    fn end_streak(&self, generation: u32) {
        let mut streak = self.streak.load(Ordering::Acquire);
        // Until it is done, also where a failure comes in between: given up then, it would have ended nothing, and a row of
        // failures would go on over a success.
        while streak as u32 != 0 && (streak >> 32) as u32 == generation {
            let ended = u64::from(generation) << 32;
            match self.streak.compare_exchange_weak(streak, ended, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(changed) => streak = changed,
            }
        }
    }
}

impl Rates {
    fn counts(&self, generation: u32, now: Instant) -> Counts {
        Counts {
            calls: self.calls.sum(generation, now),
            failures: self.failures.sum(generation, now),
            slow: self.slow.sum(generation, now),
        }
    }
}

impl Bads {
    fn push(&mut self, bad: Bad) {
        self.failures += u32::from(bad.failure);
        self.slow += u32::from(bad.slow);
        self.queue.push_back(bad);
    }

    /// Forgets what is not among the last `size` outcomes, of which `newest` is the last.
    fn forget_before(&mut self, newest: u32, size: u32) {
        while let Some(bad) = self.queue.front()
            && newest.wrapping_sub(bad.number) >= size
        {
            self.failures -= u32::from(bad.failure);
            self.slow -= u32::from(bad.slow);
            self.queue.pop_front();
        }
    }

    /// What the window of `size` holds when `word` was read; entries that successes have pushed out since are left out.
    fn counts(&self, word: Word, size: u32) -> Counts {
        let gone = self.queue.iter().take_while(|bad| word.count().wrapping_sub(bad.number) >= size);
        let (failures, slow) = gone.fold((self.failures, self.slow), |(failures, slow), bad| {
            (failures - u32::from(bad.failure), slow - u32::from(bad.slow))
        });
        Counts { calls: word.filled(size).into(), failures: failures.into(), slow: slow.into() }
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

fn has_rate(config: &CircuitBreakerConfig) -> bool {
    config.trip.failure_rate.is_some() || config.trip.slow_call_rate.is_some()
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
