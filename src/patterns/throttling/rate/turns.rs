//! The state machine of a rate limiter: both algorithms behind one interface, with the queue of
//! waiting calls.
//!
//! A *turn* is the time from which a queued call may pass. Time is an argument; the machine reads
//! no clock. A turn that has come is used, even if its call has not noticed. A turn that is still
//! to come is given back when its call leaves, and the calls behind it move up.
//!
//! A call that moves up is not woken. Only the first call in the queue is, and each call learns its
//! new turn when it is polled. So N calls that leave cause at most N wake-ups, not one for each
//! pair of calls.
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
    /// The mode as a number. It changes under the queue's lock. A call that reads it without the
    /// lock may race with the change and pass in the old mode.
    mode: AtomicU32,
    gcra: Gcra,
    queue: Mutex<TurnQueue>,
}

/// The waiting calls, oldest first, and the data that only they and strict mode need.
struct TurnQueue {
    quota: Quota,
    strict: Strict,
    next_id: u64,
    waiting: VecDeque<QueuedCall>,
    /// Subtracted from each `ready`: one write moves up all calls when the first one leaves.
    earlier: u64,
    /// Time before which no turn comes.
    pause: u64,
    /// Arrival time in smooth mode without the running pause, for its end before the time.
    unpaused: u64,
    /// Calls that a change rejected and that have not been polled since.
    refused: HashMap<u64, Refusal>,
    /// Wakers to wake after the lock is released.
    to_wake: Vec<Waker>,
}

struct QueuedCall {
    id: u64,
    permits: u32,
    /// The call's turn plus [`TurnQueue::earlier`].
    ready: u64,
    /// Latest turn that the call accepts.
    latest: u64,
    /// The turn that the call saw on its last poll. The call has a timer for it.
    timer_at: u64,
    waker: Option<Waker>,
}

/// The reason why no permit is available, ordered by the length of the wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Refusal {
    /// No permit now; one after this number of nanoseconds.
    Wait(u64),
    /// More permits than the limit can ever give at once.
    TooLarge,
}

/// The state of a queued call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TurnStatus {
    Ready,
    At(u64),
    Refused(Refusal),
}

/// Permits that were taken, with the data to give them back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) permits: u32,
    /// In smooth mode, the arrival time after the permits. In strict mode, their time of use.
    pub(crate) stamp: u64,
}

impl Turns {
    pub(crate) fn new(mode: RateMode, quota: Quota) -> Self {
        let queue = TurnQueue {
            quota,
            strict: Strict::new(&quota),
            next_id: 0,
            waiting: VecDeque::new(),
            earlier: 0,
            pause: 0,
            unpaused: 0,
            refused: HashMap::new(),
            to_wake: Vec::new(),
        };
        Self { mode: AtomicU32::new(mode as u32), gcra: Gcra::new(Pace::new(&quota)), queue: Mutex::new(queue) }
    }

    /// Starts with this arrival time, for a key whose limiter grows from a single number.
    pub(crate) fn start_at(&self, tat: u64) {
        self.gcra.start_at(tat);
    }

    #[inline]
    fn mode(&self) -> RateMode {
        if self.mode.load(Ordering::Relaxed) == RateMode::Smooth as u32 { RateMode::Smooth } else { RateMode::Strict }
    }

    pub(crate) fn settings<T>(&self, beside: impl FnOnce() -> T) -> (RateMode, Quota, T) {
        let queue = self.queue.lock();
        (self.mode(), queue.quota, beside())
    }

    /// Takes `n` permits at `now`; fails while calls wait.
    #[inline]
    pub(crate) fn take(&self, n: u32, now: u64) -> Result<Taken, Refusal> {
        let stamp = match self.mode() {
            RateMode::Smooth => self.gcra.take(n, now).map_err(|wait| self.smooth_refusal(n, wait))?,
            RateMode::Strict => self.take_locked(n, now)?,
        };
        Ok(Taken { permits: n, stamp })
    }

    // Out of line, so that `take` is small enough to be inlined.
    #[inline(never)]
    fn take_locked(&self, n: u32, now: u64) -> Result<u64, Refusal> {
        let mut queue = self.queue.lock();
        queue.reserve(&self.gcra, self.mode(), n, now, now)
    }

    #[cold]
    fn smooth_refusal(&self, n: u32, wait: u64) -> Refusal {
        if self.gcra.pace().allows(n) { Refusal::Wait(wait) } else { Refusal::TooLarge }
    }

    /// Returns the wait of `n` permits at `now`, which may be zero. Takes nothing.
    pub(crate) fn refusal(&self, n: u32, now: u64) -> Refusal {
        // No turn comes before now, so every reservation is too late and takes nothing.
        let mut queue = self.queue.lock();
        let reserved = queue.reserve(&self.gcra, self.mode(), n, now.max(1), now.max(1) - 1);
        drop(queue);
        reserved.err().unwrap_or(Refusal::Wait(0))
    }

    /// Gives back permits, except those that have returned by themselves since.
    pub(crate) fn give_back(&self, taken: Taken, now: u64) {
        let mut queue = self.queue.lock();
        queue.release(now);
        match self.mode() {
            RateMode::Smooth => {
                // After the stamp the bucket has refilled these permits; a pause replaces them.
                if taken.stamp > now && queue.pause <= now {
                    let earlier = self.gcra.give_back(taken.permits, now);
                    queue.move_up(0, earlier);
                }
            }
            RateMode::Strict => {
                let reserved = queue.reserved();
                queue.strict.give_back_last(reserved);
                queue.strict.give_back_at(taken.permits, taken.stamp);
                queue.reserve_again(&self.gcra, self.mode(), now);
            }
        }
        queue.wake_and_unlock();
    }

    /// Reserves the next turn for `n` permits, if it comes by `latest`. Returns the queued call's
    /// number and turn, or `None` if the permits are taken now.
    pub(crate) fn enqueue(&self, n: u32, now: u64, latest: u64) -> Result<Option<(u64, u64)>, Refusal> {
        // Without the lock if no call waits. While calls wait this cannot succeed: their turns are
        // to come, and each of them is a whole burst ahead of the free permits.
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
        let waiting = QueuedCall { id, permits: n, ready: queue.stored(ready), latest, timer_at: ready, waker: None };
        queue.waiting.push_back(waiting);
        Ok(Some((id, ready)))
    }

    /// Returns the state of call `id`, and registers its waker for changes other than by time.
    pub(crate) fn poll(&self, id: u64, now: u64, waker: &Waker) -> TurnStatus {
        let mut queue = self.queue.lock();
        queue.release(now);
        let status = if let Some(refusal) = queue.refused.remove(&id) {
            TurnStatus::Refused(refusal)
        } else if let Some(at) = queue.find(id) {
            let ready = queue.ready(at);
            let waiting = &mut queue.waiting[at];
            waiting.timer_at = ready;
            match &mut waiting.waker {
                Some(known) => known.clone_from(waker),
                unknown => *unknown = Some(waker.clone()),
            }
            TurnStatus::At(ready)
        } else {
            TurnStatus::Ready
        };
        queue.wake_and_unlock();
        status
    }

    /// Removes call `id` and gives back its turn. A turn that has come stays used.
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
                    queue.reserve_again(&self.gcra, self.mode(), now);
                }
            }
        }
        queue.wake_and_unlock();
    }

    /// Admits no turn before `until`; a pause that ends later stays. Waiting calls reserve again,
    /// in order. A call whose turn would come too late is rejected.
    pub(crate) fn pause(&self, until: u64, now: u64) {
        let mut queue = self.queue.lock();
        queue.release(now);
        if until > queue.pause.max(now) {
            let reserved = queue.reserved();
            // At the end of the pause there is one permit and then the even flow: a service that
            // has just recovered receives no burst.
            let before = self.gcra.drain(until, reserved);
            if queue.pause <= now {
                queue.unpaused = before;
            }
            queue.pause = until;
            if self.mode() == RateMode::Strict {
                queue.strict.give_back_last(reserved);
            }
            queue.reserve_again(&self.gcra, self.mode(), now);
        }
        queue.wake_and_unlock();
    }

    /// Ends a running pause as its time would have ended it. Waiting calls reserve again, in order.
    /// Returns `false` if there is no pause.
    pub(crate) fn resume(&self, now: u64) -> bool {
        let mut queue = self.queue.lock();
        queue.release(now);
        let is_paused = queue.pause > now;
        if is_paused {
            let (reserved, pace) = (queue.reserved(), self.gcra.pace());
            let next = pace.drained(now).max(queue.unpaused);
            self.gcra.replace_pause(queue.paused(pace), reserved, pace, next);
            queue.pause = 0;
            if self.mode() == RateMode::Strict {
                queue.strict.give_back_last(reserved);
            }
            queue.reserve_again(&self.gcra, self.mode(), now);
        }
        queue.wake_and_unlock();
        is_paused
    }

    /// Returns `true` if the machine equals a new one: no permit is taken, and no call waits.
    pub(crate) fn is_idle(&self, now: u64) -> bool {
        let mut queue = self.queue.lock();
        queue.release(now);
        let is_free = match self.mode() {
            RateMode::Smooth => self.gcra.used(now, 0) == 0,
            RateMode::Strict => queue.strict.used(now) == 0,
        };
        is_free && queue.waiting.is_empty() && queue.refused.is_empty() && queue.pause <= now
    }

    /// Returns the number of permits that are out at `now`, with those of waiting calls.
    pub(crate) fn used(&self, now: u64) -> u64 {
        let queue = self.queue.lock();
        match self.mode() {
            RateMode::Smooth => self.gcra.used(now, 0),
            RateMode::Strict => queue.strict.used(now),
        }
    }

    /// Changes the quota and the mode; `beside` runs under the lock. Waiting calls reserve again,
    /// in order. A call that no longer fits (too many permits, or a late turn) is rejected.
    pub(crate) fn change(&self, mode: RateMode, quota: Quota, now: u64, beside: impl FnOnce()) {
        let mut queue = self.queue.lock();
        beside();
        queue.release(now);
        let reserved = queue.reserved();
        let pace = Pace::new(&quota);
        let (is_paused, drained) = (queue.pause > now, pace.drained(queue.pause));
        match (self.mode(), mode) {
            (RateMode::Smooth, RateMode::Smooth) if is_paused => {
                self.gcra.replace_pause(queue.paused(self.gcra.pace()), reserved, pace, drained);
            }
            (RateMode::Smooth, RateMode::Smooth) => self.gcra.change(pace, now, reserved),
            (RateMode::Strict, RateMode::Strict) => {
                queue.strict.give_back_last(reserved);
                queue.strict.change(&quota);
            }
            (RateMode::Smooth, RateMode::Strict) => {
                // Stored first, so that later calls use the strict list and none is missed in it.
                self.mode.store(mode as u32, Ordering::Relaxed);
                let used = self.gcra.used(now, reserved);
                queue.strict.change(&quota);
                queue.strict.restart(used, now);
            }
            (RateMode::Strict, RateMode::Smooth) => {
                queue.strict.give_back_last(reserved);
                self.gcra.restart(pace, queue.strict.used(now), now);
                if is_paused {
                    // No call has passed since the pause began, so it stands for all used permits.
                    self.gcra.restart_drained(queue.pause);
                }
                queue.strict.restart(0, now);
                self.mode.store(mode as u32, Ordering::Relaxed);
            }
        }
        queue.quota = quota;
        if is_paused {
            // The share of the burst before the pause is unknown at this pace: all of it.
            queue.unpaused = now.saturating_add(pace.span).min(drained);
        }
        queue.reserve_again(&self.gcra, mode, now);
        queue.wake_and_unlock();
    }
}

impl TurnQueue {
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

    /// Removes calls whose turn has come. A call with a timer for a later turn is woken.
    fn release(&mut self, now: u64) {
        while !self.waiting.is_empty() && self.ready(0) <= now {
            let Some(first) = self.waiting.pop_front() else { break };
            if first.timer_at > now {
                self.to_wake.extend(first.waker);
            }
        }
        if self.waiting.is_empty() {
            self.earlier = 0;
        }
    }

    fn ready(&self, at: usize) -> u64 {
        self.waiting[at].ready.saturating_sub(self.earlier)
    }

    fn stored(&self, ready: u64) -> u64 {
        ready.saturating_add(self.earlier)
    }

    fn find(&self, id: u64) -> Option<usize> {
        self.waiting.binary_search_by_key(&id, |w| w.id).ok()
    }

    /// Returns the arrival time in the running pause, without the permits of waiting calls.
    fn paused(&self, pace: Pace) -> u64 {
        pace.drained(self.pause).max(self.unpaused)
    }

    /// Returns the permits that the waiting calls reserved.
    fn reserved(&self) -> u64 {
        self.waiting.iter().map(|w| u64::from(w.permits)).sum()
    }

    /// Moves the calls from index `at` on forward by `earlier`.
    fn move_up(&mut self, at: usize, earlier: u64) {
        if at == 0 {
            self.earlier = self.earlier.saturating_add(earlier);
        } else {
            self.waiting.range_mut(at..).for_each(|later| later.ready = later.ready.saturating_sub(earlier));
        }
    }

    /// Reserves again for all waiting calls, in order. Their old reservations are given back.
    fn reserve_again(&mut self, gcra: &Gcra, mode: RateMode, now: u64) {
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

impl WakeAndUnlock for MutexGuard<'_, TurnQueue> {
    fn wake_and_unlock(mut self) {
        // The first call has a timer for its turn, so it must learn of an earlier one.
        if !self.waiting.is_empty() && self.ready(0) < self.waiting[0].timer_at {
            let first = &mut self.waiting[0];
            first.timer_at = 0;
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
