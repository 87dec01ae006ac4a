//! The order of the events of one partition: one at a time for each key, in order of positions.
//! A state machine that knows neither async nor the clock.
use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap, HashMap, VecDeque},
    hash::{BuildHasherDefault, Hasher},
};

use super::finished::Finished;
use crate::time::Instant;

/// The events of a partition that were read and are not finished, and the set of finished ones.
///
/// An event waits for the one of its key before it; then it is ready; then it runs. If it is to run
/// again, it is delayed, and those of its key wait on.
#[derive(Debug)]
pub(super) struct Lanes<E> {
    finished: Finished,
    /// Position that is read next.
    next: u64,
    /// Position of the first slot.
    base: u64,
    slots: VecDeque<Option<Slot<E>>>,
    /// Last unfinished event of each key. Keys of one hash share an order, which does no harm.
    tails: HashMap<u64, u64, BuildHasherDefault<IsHash>>,
    ready: Ready,
    delayed: BTreeSet<(Instant, u64)>,
    running: usize,
}

#[derive(Debug)]
struct Slot<E> {
    event: E,
    key: Option<u64>,
    /// The next event of the same key.
    follower: Option<u64>,
    /// Number of attempts that failed.
    failures: u32,
}

impl<E> Lanes<E> {
    /// Creates the order of the events that are not in this set.
    pub(super) fn new(finished: Finished) -> Self {
        let next = finished.watermark() + 1;
        Self {
            finished,
            next,
            base: next,
            slots: VecDeque::new(),
            tails: HashMap::default(),
            ready: Ready::default(),
            delayed: BTreeSet::new(),
            running: 0,
        }
    }

    pub(super) fn finished(&self) -> &Finished {
        &self.finished
    }

    /// Returns the position that is read next.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Returns the number of events that may be read: those up to `max_ahead` above the watermark.
    pub(super) fn room(&self, max_ahead: u64) -> u64 {
        (self.finished.watermark() + 1).saturating_add(max_ahead).saturating_sub(self.next)
    }

    /// Returns the number of events that run.
    pub(super) fn running(&self) -> usize {
        self.running
    }

    /// Returns `true` if no event is unfinished.
    pub(super) fn is_idle(&self) -> bool {
        self.slots.is_empty()
    }

    /// Adds the event at [`next`](Self::next), unless it is finished.
    pub(super) fn push(&mut self, key: Option<u64>, event: E) {
        let position = self.next;
        self.next += 1;
        if self.slots.is_empty() {
            self.base = position;
        }
        if self.finished.contains(position) {
            if !self.slots.is_empty() {
                self.slots.push_back(None);
            }
            return;
        }
        self.slots.push_back(Some(Slot { event, key, follower: None, failures: 0 }));
        let before = key.and_then(|key| self.tails.insert(key, position));
        match before.and_then(|before| self.slot(before)) {
            Some(before) => before.follower = Some(position),
            None => self.ready.push(position),
        }
    }

    /// Skips all events below `position`, and returns the number of those that were not finished.
    /// Call it only while [`is_idle`](Self::is_idle) is true.
    pub(super) fn skip_to(&mut self, position: u64) -> u64 {
        let lost = self.finished.skip_to(position - 1);
        self.next = self.next.max(position);
        lost
    }

    /// Returns the lowest position that may start.
    pub(super) fn peek(&self) -> Option<u64> {
        self.ready.peek()
    }

    /// Starts the event with the lowest position that is ready.
    pub(super) fn start(&mut self) -> Option<(u64, &E, u32)> {
        let position = self.ready.pop()?;
        self.running += 1;
        let slot = self.slots[(position - self.base) as usize].as_ref()?;
        Some((position, &slot.event, slot.failures))
    }

    /// Returns an event that is not finished.
    pub(super) fn event(&self, position: u64) -> Option<&E> {
        let at = usize::try_from(position.checked_sub(self.base)?).ok()?;
        Some(&self.slots.get(at)?.as_ref()?.event)
    }

    /// Counts a failed attempt of an event that runs, and returns their number.
    pub(super) fn fail(&mut self, position: u64) -> u32 {
        let Some(slot) = self.slot(position) else { return 0 };
        slot.failures = slot.failures.saturating_add(1);
        slot.failures
    }

    /// Ends the run of an event, which runs again at `at`.
    pub(super) fn delay(&mut self, position: u64, at: Instant) {
        self.running -= 1;
        self.delayed.insert((at, position));
    }

    /// Ends the run of an event, which is finished.
    pub(super) fn finish(&mut self, position: u64) {
        self.running -= 1;
        let at = (position - self.base) as usize;
        let Some(Slot { key, follower, .. }) = self.slots.get_mut(at).and_then(Option::take) else { return };
        match (key, follower) {
            (_, Some(follower)) => self.ready.push(follower),
            (Some(key), None) => drop(self.tails.remove(&key)),
            (None, None) => {}
        }
        self.finished.add(position);
        while let Some(None) = self.slots.front() {
            self.slots.pop_front();
            self.base += 1;
        }
    }

    /// Makes the delayed events ready whose time has come.
    pub(super) fn wake(&mut self, now: Instant) {
        while let Some((at, position)) = self.delayed.first().copied().filter(|(at, _)| *at <= now) {
            self.delayed.remove(&(at, position));
            self.ready.push(position);
        }
    }

    /// Returns the time at which the next delayed event is ready.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.delayed.first().map(|(at, _)| *at)
    }

    fn slot(&mut self, position: u64) -> Option<&mut Slot<E>> {
        let at = usize::try_from(position.checked_sub(self.base)?).ok()?;
        self.slots.get_mut(at)?.as_mut()
    }
}

/// Positions that may start, lowest first. Most become ready in their order: those wait in a list,
/// and only others in a heap.
#[derive(Debug, Default)]
struct Ready {
    in_order: VecDeque<u64>,
    others: BinaryHeap<Reverse<u64>>,
}

impl Ready {
    fn push(&mut self, position: u64) {
        if self.in_order.back().is_none_or(|last| *last < position) {
            self.in_order.push_back(position);
        } else {
            self.others.push(Reverse(position));
        }
    }

    fn peek(&self) -> Option<u64> {
        let other = self.others.peek().map(|Reverse(position)| *position);
        self.in_order.front().copied().into_iter().chain(other).min()
    }

    fn pop(&mut self) -> Option<u64> {
        let lowest = self.peek()?;
        if self.in_order.front() == Some(&lowest) {
            self.in_order.pop_front()
        } else {
            self.others.pop().map(|Reverse(position)| position)
        }
    }
}

/// The hasher of keys that are hashes already.
#[derive(Debug, Default)]
struct IsHash(u64);

impl Hasher for IsHash {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        // A `u64` takes the other way.
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}
