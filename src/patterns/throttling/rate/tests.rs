//! The rate limiter's state machine, compared with a bucket or a list and a queue that is served
//! when possible, without reservations.
#![allow(clippy::unwrap_used, reason = "tests")]
use std::{collections::BTreeMap, task::Waker, time::Duration};

use proptest::prelude::*;

use super::{
    Quota, RateMode,
    turns::{Refusal, TurnStatus, Turns},
};

const START: u64 = 1_000;

/// A model without arrival times and reservations: waiting calls are served in order when there is
/// enough.
#[derive(Clone, Debug)]
struct Naive {
    mode: RateMode,
    quota: Quota,
    now: u64,
    /// Smooth mode: the content of the bucket, in nanoseconds of refilling.
    level: u64,
    /// Strict mode: the time of use of each permit, kept for ever.
    used: Vec<u64>,
    /// The waiting calls: number, permits, and the latest turn that they accept.
    waiting: Vec<(u64, u32, u64)>,
}

impl Naive {
    fn new(mode: RateMode, quota: Quota) -> Self {
        let mut naive = Self { mode, quota, now: START, level: 0, used: Vec::new(), waiting: Vec::new() };
        naive.level = naive.full();
        naive
    }

    fn interval(&self) -> u64 {
        (self.quota.per.as_nanos() as u64).div_ceil(self.quota.permits.into())
    }

    fn full(&self) -> u64 {
        self.interval() * u64::from(self.quota.largest())
    }

    /// Returns the first time from now on at which `n` permits are available to the first call.
    fn earliest(&self, n: u32) -> u64 {
        match self.mode {
            RateMode::Smooth => self.now + (self.interval() * u64::from(n)).saturating_sub(self.level),
            RateMode::Strict => {
                let leaves = |used: &u64| used + self.quota.per.as_nanos() as u64;
                let mut at = self.now;
                loop {
                    let inside: Vec<u64> = self.used.iter().map(leaves).filter(|leaves| *leaves > at).collect();
                    if inside.len() + n as usize <= self.quota.permits as usize {
                        return at;
                    }
                    at = *inside.iter().min().unwrap();
                }
            }
        }
    }

    fn pass_time(&mut self, to: u64) {
        self.level = self.full().min(self.level + (to - self.now));
        self.now = to;
    }

    fn use_now(&mut self, n: u32) {
        match self.mode {
            RateMode::Smooth => self.level -= self.interval() * u64::from(n),
            RateMode::Strict => self.used.extend((0..n).map(|_| self.now)),
        }
    }

    fn advance(&mut self, to: u64) {
        while let Some(&(_, n, _)) = self.waiting.first()
            && self.earliest(n) <= to
        {
            self.pass_time(self.earliest(n));
            self.use_now(n);
            self.waiting.remove(0);
        }
        self.pass_time(to);
    }

    /// Returns the times at which the waiting calls will be served, and that of `n` more permits
    /// behind them.
    fn foresee(&self, n: u32) -> (BTreeMap<u64, u64>, u64) {
        let (mut future, mut turns) = (self.clone(), BTreeMap::new());
        for (id, permits, _) in std::mem::take(&mut future.waiting) {
            future.pass_time(future.earliest(permits));
            future.use_now(permits);
            turns.insert(id, future.now);
        }
        let next = future.earliest(n);
        (turns, next)
    }

    fn ask(&self, n: u32, latest: u64) -> Result<u64, Refusal> {
        if n > self.quota.largest() {
            return Err(Refusal::TooLarge);
        }
        let turn = self.foresee(n).1;
        if turn <= latest { Ok(turn) } else { Err(Refusal::Wait(turn - self.now)) }
    }

    /// Changes the quota and returns the calls that no longer fit.
    fn change(&mut self, quota: Quota) -> BTreeMap<u64, Refusal> {
        let missing = u128::from(self.full() - self.level);
        let old = u128::from(self.full());
        self.quota = quota;
        self.level = self.full() - (missing * u128::from(self.full())).div_ceil(old) as u64;
        let mut refused = BTreeMap::new();
        for (id, n, latest) in std::mem::take(&mut self.waiting) {
            match self.ask(n, latest) {
                Ok(_) => self.waiting.push((id, n, latest)),
                Err(refusal) => {
                    refused.insert(id, refusal);
                }
            }
        }
        self.advance(self.now);
        refused
    }
}

#[derive(Debug, Clone)]
enum Step {
    Advance(u64),
    Take(u32),
    TakeAndGiveBack(u32),
    Enqueue(u32, u64),
    Leave(prop::sample::Index),
    Change(u32, u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0u64..400).prop_map(Step::Advance),
        1 => (0u64..3_000).prop_map(Step::Advance),
        3 => (1u32..7).prop_map(Step::Take),
        1 => (1u32..7).prop_map(Step::TakeAndGiveBack),
        6 => (1u32..7, prop_oneof![0u64..3_000, Just(u64::MAX / 2)]).prop_map(|(n, wait)| Step::Enqueue(n, wait)),
        3 => any::<prop::sample::Index>().prop_map(Step::Leave),
        1 => (1u32..12, 1u32..12).prop_map(|(permits, burst)| Step::Change(permits, burst)),
    ];
    prop::collection::vec(step, 1..80)
}

fn quota(mode: RateMode, permits: u32, burst: u32) -> Quota {
    let quota = Quota::new(permits, Duration::from_nanos(1_000));
    if mode == RateMode::Smooth { quota.burst(burst) } else { quota }
}

fn equals_the_naive_model(mode: RateMode, permits: u32, burst: u32, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let first = quota(mode, permits, burst);
    let (turns, mut naive) = (Turns::new(mode, first), Naive::new(mode, first));
    let mut now = START;
    for step in steps {
        let mut refused = BTreeMap::new();
        match step {
            Step::Advance(by) => {
                now += by;
                naive.advance(now);
            }
            Step::Take(n) => {
                let expected = naive.ask(n, now);
                prop_assert_eq!(turns.take(n, now).map(|_| now), expected);
                if expected.is_ok() {
                    naive.use_now(n);
                }
            }
            Step::TakeAndGiveBack(n) => {
                if let Ok(taken) = turns.take(n, now) {
                    turns.give_back(taken, now);
                }
            }
            Step::Enqueue(n, wait) => {
                let expected = naive.ask(n, now + wait);
                match turns.enqueue(n, now, now + wait) {
                    Ok(None) => {
                        prop_assert_eq!(expected, Ok(now));
                        naive.use_now(n);
                    }
                    Ok(Some((id, ready))) => {
                        prop_assert_eq!(expected, Ok(ready));
                        naive.waiting.push((id, n, now + wait));
                    }
                    Err(refusal) => prop_assert_eq!(expected, Err(refusal)),
                }
            }
            Step::Leave(which) => {
                if !naive.waiting.is_empty() {
                    let (id, ..) = naive.waiting.remove(which.index(naive.waiting.len()));
                    naive.advance(now);
                    turns.leave(id, now);
                }
            }
            Step::Change(permits, burst) => {
                let next = quota(mode, permits, burst);
                refused = naive.change(next);
                turns.change(mode, next, now, || ());
            }
        }
        for (id, refusal) in refused {
            prop_assert_eq!(turns.poll(id, now, Waker::noop()), TurnStatus::Refused(refusal));
        }
        for (id, at) in naive.foresee(1).0 {
            prop_assert_eq!(turns.poll(id, now, Waker::noop()), TurnStatus::At(at), "call {} at {}", id, now);
        }
    }
    // All calls leave, and a long quiet period follows: the full burst is available, and no permit
    // more.
    for (id, ..) in naive.waiting {
        turns.leave(id, now);
    }
    let (now, largest) = (now + 1_000_000, turns.settings(|| ()).1.largest());
    turns.take(largest, now).unwrap();
    prop_assert!(turns.take(1, now).is_err());
    Ok(())
}

proptest! {
    // Guarantee: throttling 1, 4.
    /// Compared with a bucket and a queue.
    #[test]
    fn smooth_turns_equal_a_bucket_with_a_queue(permits in 1u32..12, burst in 1u32..12, steps in steps()) {
        equals_the_naive_model(RateMode::Smooth, permits, burst, steps)?;
    }

    // Guarantee: throttling 2, 4.
    /// Compared with a list of every use and a queue.
    #[test]
    fn strict_turns_equal_a_list_with_a_queue(permits in 1u32..12, steps in steps()) {
        equals_the_naive_model(RateMode::Strict, permits, permits, steps)?;
    }
}

// Guarantee: throttling 3.
/// Permits that are given back late have already returned: no second permit is made.
#[test]
fn permits_that_returned_by_themselves_are_not_given_back_again() {
    for mode in [RateMode::Smooth, RateMode::Strict] {
        let turns = Turns::new(mode, quota(mode, 2, 2));
        let taken = turns.take(1, START).unwrap();
        let later = START + 5_000;
        turns.take(2, later).unwrap();
        turns.give_back(taken, later);
        assert_eq!(turns.take(1, later).err(), Some(Refusal::Wait(if mode == RateMode::Smooth { 500 } else { 1_000 })));
    }
}

// Guarantee: throttling 3.
/// A permit is given back among later ones: waiting calls move up, and the other permits keep their
/// times. (The newest entry was once removed instead, which may be a reservation of another call.)
#[test]
fn giving_back_finds_its_own_permit() {
    let turns = Turns::new(RateMode::Strict, quota(RateMode::Strict, 2, 2));
    let taken = turns.take(1, START).unwrap();
    turns.take(1, START + 300).unwrap();
    let Ok(Some((id, ready))) = turns.enqueue(1, START + 400, u64::MAX) else { panic!("must wait") };
    assert_eq!(ready, START + 1_000);
    turns.give_back(taken, START + 500);
    assert_eq!(turns.poll(id, START + 500, Waker::noop()), TurnStatus::Ready);
    // Used at 300 and at 500.
    assert_eq!(turns.take(2, START + 1_300).err(), Some(Refusal::Wait(200)));
    turns.take(2, START + 1_500).unwrap();
}

// Guarantee: throttling 5.
/// Making room for a longer pace near the clock's origin must not wrap around.
#[test]
fn no_arithmetic_wraps() {
    let turns = Turns::new(RateMode::Smooth, Quota::new(u32::MAX, Duration::from_secs(5)).burst(u32::MAX));
    turns.take(u32::MAX, 0).unwrap();
    let Ok(Some((id, _))) = turns.enqueue(u32::MAX, 0, u64::MAX) else { panic!("must wait") };
    let slow = Quota::new(1, Duration::from_secs(366 * 24 * 3600));
    turns.change(RateMode::Smooth, slow, 0, || ());
    assert_eq!(turns.poll(id, 0, Waker::noop()), TurnStatus::Refused(Refusal::TooLarge));
    turns.leave(id, 0);
    let year = slow.per.as_nanos() as u64;
    assert_eq!(turns.take(1, 0).err(), Some(Refusal::Wait(year)));
    turns.take(1, year).unwrap();
    assert_eq!(turns.take(u32::MAX, year).err(), Some(Refusal::TooLarge));
}

// Guarantee: throttling 6.
/// A resume, or a change of the quota, read the clock just before the pause ended, and a call
/// passed just after it: the store of the new arrival time forgot the call's permit.
#[test]
fn a_permit_that_is_taken_as_a_pause_ends_by_itself_stays_used() {
    let paused = || {
        let turns = Turns::new(RateMode::Smooth, quota(RateMode::Smooth, 10, 10));
        turns.pause(START + 500, START);
        turns.take(1, START + 500).unwrap();
        turns
    };
    let turns = paused();
    assert!(turns.resume(START + 499));
    assert_eq!(turns.take(1, START + 500).err(), Some(Refusal::Wait(99)));
    turns.take(1, START + 599).unwrap();

    let turns = paused();
    turns.change(RateMode::Smooth, quota(RateMode::Smooth, 5, 5), START + 499, || ());
    assert_eq!(turns.take(1, START + 500).err(), Some(Refusal::Wait(200)));
    turns.take(1, START + 700).unwrap();
}
