//! Who may pass, and who waits for a turn: the two algorithms behind one door, with a queue of the calls that wait.
//!
//! Time is an argument: it knows no clock. A turn that has come is used, whether or not its call has noticed; a turn that is still
//! to come is given back when its call leaves, and those behind it move up.
//!
//! A call that moves up is not woken for that: only the first of the queue is, and the turn of each tells the next. So N calls that leave
//! cost at most N wake-ups, not one for each pair of them.
use std::{
    collections::{HashMap, VecDeque},
    task::Waker,
};

use super::{
    Quota, RateMode,
    gcra::{Gcra, Pace},
    strict::Strict,
};
use crate::sync::{AtomicU32, Mutex, MutexGuard, Ordering};

pub(crate) struct Turns {
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
    /// Subtracted from each `ready` of the queue: when the first leaves, all others move up by one write.
    earlier: u64,
    /// No turn comes before.
    pause: u64,
    /// Calls that a change turned away and that have not looked yet.
    refused: HashMap<u64, Refusal>,
    /// Whom to tell, once the lock is free, that things have changed.
    to_wake: Vec<Waker>,
}

struct Waiting {
    id: u64,
    permits: u32,
    /// Its turn, and [`Queue::earlier`].
    ready: u64,
    /// Its turn must not come later.
    latest: u64,
    /// The turn that it was told when it looked last, and waits for by itself.
    told: u64,
    waker: Option<Waker>,
}

/// Why there is no turn. The later in order, the longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Refusal {
    /// Not now; after so many nanoseconds.
    Wait(u64),
    /// The limit can never give so many at once.
    TooLarge,
}

/// What has become of a call that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    Come,
    At(u64),
    Refused(Refusal),
}

/// Permits that were taken: enough to give them back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) permits: u32,
    /// Smooth: the arrival time that they led to. Strict: when they were used.
    pub(crate) stamp: u64,
}

impl Turns {
    pub(crate) fn new(mode: RateMode, quota: Quota) -> Self {
        let queue = Queue {
            quota,
            strict: Strict::new(&quota),
            next_id: 0,
            waiting: VecDeque::new(),
            earlier: 0,
            pause: 0,
            refused: HashMap::new(),
            to_wake: Vec::new(),
        };
        Self { mode: AtomicU32::new(mode as u32), gcra: Gcra::new(Pace::new(&quota)), queue: Mutex::new(queue) }
    }

    /// With permits taken that lead to this arrival time.
    pub(crate) fn start_at(&self, tat: u64) {
        self.gcra.start_at(tat);
    }

    #[inline]
    fn mode(&self) -> RateMode {
        if self.mode.load(Ordering::Relaxed) == RateMode::Smooth as u32 { RateMode::Smooth } else { RateMode::Strict }
    }

    pub(crate) fn settings(&self) -> (RateMode, Quota) {
        let queue = self.queue.lock();
        (self.mode(), queue.quota)
    }

    /// Takes `n` permits at `now`; nobody passes those who wait.
    #[inline]
    pub(crate) fn take(&self, n: u32, now: u64) -> Result<Taken, Refusal> {
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
    pub(crate) fn refusal(&self, n: u32, now: u64) -> Refusal {
        // No turn can come before now: all are too late.
        let mut queue = self.queue.lock();
        let asked = queue.reserve(&self.gcra, self.mode(), n, now.max(1), now.max(1) - 1);
        drop(queue);
        asked.err().unwrap_or(Refusal::Wait(0))
    }

    /// Gives back what was taken, if that has not come back by itself meanwhile.
    pub(crate) fn give_back(&self, taken: Taken, now: u64) {
        let mut queue = self.queue.lock();
        queue.release(now);
        match self.mode() {
            RateMode::Smooth => {
                // At the stamp the bucket was full again as far as these permits go; a pause stands for all that was taken before it.
                if taken.stamp > now && queue.pause <= now {
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
    pub(crate) fn enqueue(&self, n: u32, now: u64, latest: u64) -> Result<Option<(u64, u64)>, Refusal> {
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
        let waiting = Waiting { id, permits: n, ready: queue.written(ready), latest, told: ready, waker: None };
        queue.waiting.push_back(waiting);
        Ok(Some((id, ready)))
    }

    /// What has become of `id`; it will be woken when that changes other than by time.
    pub(crate) fn look(&self, id: u64, now: u64, waker: &Waker) -> Look {
        let mut queue = self.queue.lock();
        queue.release(now);
        let look = if let Some(refusal) = queue.refused.remove(&id) {
            Look::Refused(refusal)
        } else if let Some(at) = queue.find(id) {
            let ready = queue.ready(at);
            let waiting = &mut queue.waiting[at];
            waiting.told = ready;
            match &mut waiting.waker {
                Some(known) => known.clone_from(waker),
                unknown => *unknown = Some(waker.clone()),
            }
            Look::At(ready)
        } else {
            Look::Come
        };
        queue.wake_and_unlock();
        look
    }

    /// Gives back the place of a call that no longer waits, unless its turn has come: then it is used.
    pub(crate) fn leave(&self, id: u64, now: u64) {
        let mut queue = self.queue.lock();
        queue.release(now);
        queue.refused.remove(&id);
        if let Some(at) = queue.find(id) {
            let is_last = at + 1 == queue.waiting.len();
            match self.mode() {
                RateMode::Smooth => {
                    if let Some(left) = queue.waiting.remove(at) {
                        let earlier = self.gcra.give_back(left.permits, now);
                        queue.move_up(at, earlier);
                    }
                }
                RateMode::Strict if is_last => {
                    let left = queue.waiting.pop_back().map_or(0, |left| left.permits);
                    queue.strict.give_back_last(left.into());
                }
                RateMode::Strict => {
                    let reserved = queue.reserved();
                    queue.waiting.remove(at);
                    queue.strict.give_back_last(reserved);
                    queue.set_anew(&self.gcra, self.mode(), now);
                }
            }
        }
        queue.wake_and_unlock();
    }

    /// Lets no turn come before `until`; a pause that lasts longer stays. Those who wait are set anew in order; who would wait for too long is
    /// turned away.
    pub(crate) fn pause(&self, until: u64, now: u64) {
        let mut queue = self.queue.lock();
        queue.release(now);
        if until > queue.pause.max(now) {
            let reserved = queue.reserved();
            // At its end there is one permit, and then the even flow: what comes back from a rest is not met by a burst.
            queue.pause = until;
            self.gcra.drain(until, reserved);
            if self.mode() == RateMode::Strict {
                queue.strict.give_back_last(reserved);
            }
            queue.set_anew(&self.gcra, self.mode(), now);
        }
        queue.wake_and_unlock();
    }

    /// Whether it says no more than a new one: nothing is taken, and nobody waits.
    pub(crate) fn is_idle(&self, now: u64) -> bool {
        let mut queue = self.queue.lock();
        queue.release(now);
        let is_free = match self.mode() {
            RateMode::Smooth => self.gcra.used(now, 0) == 0,
            RateMode::Strict => queue.strict.used(now) == 0,
        };
        is_free && queue.waiting.is_empty() && queue.refused.is_empty() && queue.pause <= now
    }

    /// How many permits are not back at `now`, those that wait included.
    pub(crate) fn used(&self, now: u64) -> u64 {
        let queue = self.queue.lock();
        match self.mode() {
            RateMode::Smooth => self.gcra.used(now, 0),
            RateMode::Strict => queue.strict.used(now),
        }
    }

    /// Changes the quota, and how it counts. Those who wait are set anew in order; who no longer fits (too many permits, or a turn later than it may
    /// be) is turned away.
    pub(crate) fn change(&self, mode: RateMode, quota: Quota, now: u64) {
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
        if queue.pause > now {
            // Nothing passed since it began, so that it stands for all that was used.
            self.gcra.restart_drained(queue.pause);
        }
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
            RateMode::Strict => self.strict.reserve(n, now, self.pause, latest),
        };
        ready.map_err(Refusal::Wait)
    }

    /// Lets those go whose turn has come. Who waits for a later one by itself is woken.
    fn release(&mut self, now: u64) {
        while !self.waiting.is_empty() && self.ready(0) <= now {
            let Some(first) = self.waiting.pop_front() else { break };
            if first.told > now {
                self.to_wake.extend(first.waker);
            }
        }
        if self.waiting.is_empty() {
            self.earlier = 0;
        }
    }

    /// The turn of the call at this place.
    fn ready(&self, at: usize) -> u64 {
        self.waiting[at].ready.saturating_sub(self.earlier)
    }

    /// A turn as the queue writes it down.
    fn written(&self, ready: u64) -> u64 {
        ready.saturating_add(self.earlier)
    }

    fn find(&self, id: u64) -> Option<usize> {
        self.waiting.binary_search_by_key(&id, |w| w.id).ok()
    }

    /// The permits of all that wait: what they reserved.
    fn reserved(&self) -> u64 {
        self.waiting.iter().map(|w| u64::from(w.permits)).sum()
    }

    /// Those from place `at` on come earlier by so much.
    fn move_up(&mut self, at: usize, earlier: u64) {
        if at == 0 {
            self.earlier = self.earlier.saturating_add(earlier);
        } else {
            self.waiting.range_mut(at..).for_each(|later| later.ready = later.ready.saturating_sub(earlier));
        }
    }

    /// Reserves again for all that wait, in order. Their old reservations must have been given back.
    fn set_anew(&mut self, gcra: &Gcra, mode: RateMode, now: u64) {
        self.earlier = 0;
        for mut waiting in std::mem::take(&mut self.waiting) {
            match self.reserve(gcra, mode, waiting.permits, now, waiting.latest) {
                Ok(ready) => {
                    waiting.ready = ready;
                    self.waiting.push_back(waiting);
                }
                Err(refusal) => {
                    self.to_wake.extend(waiting.waker.take());
                    self.refused.insert(waiting.id, refusal);
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
        // Who is first waits for its turn by itself: it must know when that is.
        if !self.waiting.is_empty() && self.ready(0) < self.waiting[0].told {
            let first = &mut self.waiting[0];
            first.told = 0;
            let waker = first.waker.take();
            self.to_wake.extend(waker);
        }
        if self.to_wake.is_empty() {
            return;
        }
        let wakers = std::mem::take(&mut self.to_wake);
        drop(self); // a waker may run code that asks this limiter
        wakers.into_iter().for_each(Waker::wake);
    }
}
