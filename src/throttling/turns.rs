//! Who may pass, and who waits for a turn: the two algorithms behind one door, with a queue of the calls that wait.
//!
//! Time is an argument: it knows no clock. A turn that has come is used, whether or not its call has noticed; a turn that is still
//! to come is given back when its call leaves, and those behind it move up.
use std::{collections::VecDeque, task::Waker};

use super::{
    Quota, RateMode,
    gcra::{Gcra, Pace},
    strict::Strict,
};
use crate::sync::{AtomicU32, Mutex, MutexGuard, Ordering};

pub(super) struct Turns {
    /// The mode as a number; changes under the lock.
    mode: AtomicU32,
    gcra: Gcra,
    queue: Mutex<Queue>,
}

/// The calls that wait, oldest first, and what only they and strict mode need.
struct Queue {
    quota: Quota,
    strict: Strict,
    next_id: u64,
    waiting: VecDeque<Waiting>,
    /// Calls that a change of the quota turned away and that have not looked yet.
    refused: Vec<(u64, Refusal)>,
    /// Whom to tell, once the lock is free, that things have changed.
    to_wake: Vec<Waker>,
}

struct Waiting {
    id: u64,
    permits: u32,
    ready: u64,
    /// Its turn must not come later.
    latest: u64,
    waker: Option<Waker>,
}

/// Why there is no turn. The later in order, the longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Refusal {
    /// Not now; after so many nanoseconds.
    Wait(u64),
    /// The limit can never give so many at once.
    TooLarge,
}

/// What has become of a call that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    Come,
    At(u64),
    Refused(Refusal),
}

/// Permits that were taken: enough to give them back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Taken {
    permits: u32,
    /// Smooth: the arrival time that they led to. Strict: when they were used.
    stamp: u64,
}

impl Turns {
    pub(super) fn new(mode: RateMode, quota: Quota) -> Self {
        let queue = Queue {
            quota,
            strict: Strict::new(&quota),
            next_id: 0,
            waiting: VecDeque::new(),
            refused: Vec::new(),
            to_wake: Vec::new(),
        };
        Self { mode: AtomicU32::new(mode as u32), gcra: Gcra::new(Pace::new(&quota)), queue: Mutex::new(queue) }
    }

    #[inline]
    fn mode(&self) -> RateMode {
        if self.mode.load(Ordering::Relaxed) == RateMode::Smooth as u32 { RateMode::Smooth } else { RateMode::Strict }
    }

    pub(super) fn settings(&self) -> (RateMode, Quota) {
        let queue = self.queue.lock();
        (self.mode(), queue.quota)
    }

    /// Takes `n` permits at `now`; nobody passes those who wait.
    #[inline]
    pub(super) fn take(&self, n: u32, now: u64) -> Result<Taken, Refusal> {
        let stamp = match self.mode() {
            RateMode::Smooth => self.gcra.take(n, now).map_err(|wait| self.smooth_refusal(n, wait))?,
            RateMode::Strict => {
                let mut queue = self.queue.lock();
                queue.reserve(&self.gcra, self.mode(), n, now, now)?
            }
        };
        Ok(Taken { permits: n, stamp })
    }

    #[cold]
    fn smooth_refusal(&self, n: u32, wait: u64) -> Refusal {
        if self.gcra.pace().allows(n) { Refusal::Wait(wait) } else { Refusal::TooLarge }
    }

    /// How long `n` permits would have to wait at `now`, which may be no time at all. Takes nothing.
    pub(super) fn refusal(&self, n: u32, now: u64) -> Refusal {
        // No turn can come before now: all are too late.
        let mut queue = self.queue.lock();
        let asked = queue.reserve(&self.gcra, self.mode(), n, now.max(1), now.max(1) - 1);
        drop(queue);
        asked.err().unwrap_or(Refusal::Wait(0))
    }

    /// Gives back what was taken, if that has not come back by itself meanwhile.
    pub(super) fn give_back(&self, taken: Taken, now: u64) {
        let mut queue = self.queue.lock();
        queue.release(now);
        match self.mode() {
            RateMode::Smooth => {
                // At the stamp the bucket was full again as far as these permits go.
                if taken.stamp > now {
                    let earlier = self.gcra.give_back(taken.permits, now);
                    queue.move_up(0, earlier);
                }
            }
            RateMode::Strict => {
                let reserved = queue.reserved();
                queue.strict.give_back_last(reserved);
                queue.strict.give_back_at(taken.permits, taken.stamp);
                queue.set_anew(&self.gcra, self.mode(), now);
            }
        }
        queue.wake_and_unlock();
    }

    /// Reserves the next turn for `n` permits, if it comes by `latest`: who waits, and until when. `None`: it is now.
    pub(super) fn enqueue(&self, n: u32, now: u64, latest: u64) -> Result<Option<(u64, u64)>, Refusal> {
        // Without the lock where nobody waits. While somebody does, this cannot succeed: their turns are to come, and each
        // of them is a whole burst ahead of what is free.
        if self.mode() == RateMode::Smooth && now <= latest && self.gcra.take(n, now).is_ok() {
            return Ok(None);
        }
        let mut queue = self.queue.lock();
        let ready = queue.reserve(&self.gcra, self.mode(), n, now, latest)?;
        if ready <= now {
            return Ok(None);
        }
        queue.next_id += 1;
        let id = queue.next_id;
        queue.waiting.push_back(Waiting { id, permits: n, ready, latest, waker: None });
        Ok(Some((id, ready)))
    }

    /// What has become of `id`; it will be woken when that changes other than by time.
    pub(super) fn look(&self, id: u64, now: u64, waker: &Waker) -> Look {
        let mut queue = self.queue.lock();
        queue.release(now);
        if let Some(refusal) = queue.take_refusal(id) {
            return Look::Refused(refusal);
        }
        let Some(at) = queue.find(id) else { return Look::Come };
        let waiting = &mut queue.waiting[at];
        match &mut waiting.waker {
            Some(known) => known.clone_from(waker),
            unknown => *unknown = Some(waker.clone()),
        }
        Look::At(waiting.ready)
    }

    /// Gives back the place of a call that no longer waits, unless its turn has come: then it is used.
    pub(super) fn leave(&self, id: u64, now: u64) {
        let mut queue = self.queue.lock();
        queue.release(now);
        queue.take_refusal(id);
        let Some(at) = queue.find(id) else { return };
        let reserved = queue.reserved();
        let Some(left) = queue.waiting.remove(at) else { return };
        match self.mode() {
            RateMode::Smooth => {
                let earlier = self.gcra.give_back(left.permits, now);
                queue.move_up(at, earlier);
            }
            RateMode::Strict => {
                queue.strict.give_back_last(reserved);
                queue.set_anew(&self.gcra, self.mode(), now);
            }
        }
        queue.wake_and_unlock();
    }

    /// Changes the quota, and how it counts. Those who wait are set anew in order; who no longer fits (too many permits, or a turn later than it may
    /// be) is turned away.
    pub(super) fn change(&self, mode: RateMode, quota: Quota, now: u64) {
        let mut queue = self.queue.lock();
        queue.release(now);
        let reserved = queue.reserved();
        let pace = Pace::new(&quota);
        match (self.mode(), mode) {
            (RateMode::Smooth, RateMode::Smooth) => self.gcra.change(pace, now, reserved),
            (RateMode::Strict, RateMode::Strict) => {
                queue.strict.give_back_last(reserved);
                queue.strict.change(&quota);
            }
            (RateMode::Smooth, RateMode::Strict) => {
                // As of now, who takes one looks at the other: only then is it known what was taken.
                self.mode.store(mode as u32, Ordering::Relaxed);
                let used = self.gcra.used(now, reserved);
                queue.strict.change(&quota);
                queue.strict.restart(used, now);
            }
            (RateMode::Strict, RateMode::Smooth) => {
                queue.strict.give_back_last(reserved);
                self.gcra.restart(pace, queue.strict.used(now), now);
                queue.strict.restart(0, now);
                self.mode.store(mode as u32, Ordering::Relaxed);
            }
        }
        queue.quota = quota;
        queue.set_anew(&self.gcra, mode, now);
        queue.wake_and_unlock();
    }
}

impl Queue {
    fn reserve(&mut self, gcra: &Gcra, mode: RateMode, n: u32, now: u64, latest: u64) -> Result<u64, Refusal> {
        if n > self.quota.largest() {
            return Err(Refusal::TooLarge);
        }
        let ready = match mode {
            RateMode::Smooth => gcra.reserve(n, now, latest),
            RateMode::Strict => self.strict.reserve(n, now, latest),
        };
        ready.map_err(Refusal::Wait)
    }

    /// Lets those go whose turn has come.
    fn release(&mut self, now: u64) {
        while self.waiting.front().is_some_and(|first| first.ready <= now) {
            self.waiting.pop_front();
        }
    }

    fn find(&self, id: u64) -> Option<usize> {
        self.waiting.binary_search_by_key(&id, |w| w.id).ok()
    }

    fn take_refusal(&mut self, id: u64) -> Option<Refusal> {
        let at = self.refused.iter().position(|(refused, _)| *refused == id)?;
        Some(self.refused.swap_remove(at).1)
    }

    /// The permits of all that wait: what they reserved.
    fn reserved(&self) -> u64 {
        self.waiting.iter().map(|w| u64::from(w.permits)).sum()
    }

    /// Those from place `at` on come earlier by so much.
    fn move_up(&mut self, at: usize, earlier: u64) {
        for later in self.waiting.range_mut(at..) {
            later.ready = later.ready.saturating_sub(earlier);
            self.to_wake.extend(later.waker.take());
        }
    }

    /// Reserves again for all that wait, in order. Their old reservations must have been given back.
    fn set_anew(&mut self, gcra: &Gcra, mode: RateMode, now: u64) {
        for mut waiting in std::mem::take(&mut self.waiting) {
            match self.reserve(gcra, mode, waiting.permits, now, waiting.latest) {
                Ok(ready) => {
                    if ready != waiting.ready {
                        self.to_wake.extend(waiting.waker.take());
                    }
                    waiting.ready = ready;
                    self.waiting.push_back(waiting);
                }
                Err(refusal) => {
                    self.to_wake.extend(waiting.waker.take());
                    self.refused.push((waiting.id, refusal));
                }
            }
        }
    }
}

trait WakeAndUnlock {
    fn wake_and_unlock(self);
}

impl WakeAndUnlock for MutexGuard<'_, Queue> {
    fn wake_and_unlock(mut self) {
        let wakers = std::mem::take(&mut self.to_wake);
        drop(self); // a waker may run code that asks this limiter
        wakers.into_iter().for_each(Waker::wake);
    }
}
