//! A semaphore with a queue. While no call waits, permits are taken and given back by one atomic
//! operation each.
//!
//! Unlike tokio's semaphore it can serve the newest call first, bound its queue, and shrink below
//! the number of taken permits.

// Concurrency. `word` is twice the number of free permits, plus one as the mark "a call waits".
//
// Invariant: while the queue is not empty, the mark is set. It is set before the first entry and
// cleared after the last one, both under the lock. A mark without an entry may exist for a moment;
// it only sends calls to the slow path.
//
// Because both facts are in one word, no wake-up is lost. `give_back` adds its permits and reads
// the mark in one operation. If it sees the mark, it serves the queue under the lock, and so after
// the entry was inserted. If it does not, its permits come before the mark in the modification
// order, so the compare-and-set in `take_or_wait` fails or sees them, and takes them instead of
// waiting. `try_take` refuses while the mark is set, so no call overtakes the queue.
//
// Orderings: `give_back` releases and each successful take acquires, so that the writes of a call
// happen before those of the call that gets its permit. A permit that is granted through the queue
// is published by the mutex (`settled`). The first load of `try_take` is `Relaxed`, since the
// compare-and-set decides. `capacity` is a copy for readers that need no more than a recent value.

use std::{
    collections::{BTreeMap, HashMap},
    task::Waker,
};

use super::QueueOrder;
use crate::{
    outcome::Reason,
    sync::{AtomicI64, AtomicU32, Line, Mutex, Ordering},
};

pub(crate) struct Semaphore {
    /// Twice the number of free permits (negative after a shrink), plus one if a call waits.
    word: Line<AtomicI64>,
    /// A copy of the queue's capacity, readable without the lock.
    capacity: AtomicU32,
    queue: Mutex<PermitQueue>,
}

struct PermitQueue {
    capacity: u32,
    /// Maximum number of waiting calls.
    limit: usize,
    order: QueueOrder,
    next_id: u64,
    waiting: BTreeMap<u64, Waiter>,
    /// Results of calls that no longer wait but have not been polled since.
    settled: HashMap<u64, Result<(), Reason>>,
}

struct Waiter {
    permits: u32,
    waker: Option<Waker>,
}

/// The result of a request for permits.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Granted,
    Waits(u64),
}

impl Semaphore {
    pub(crate) fn new(capacity: u32, limit: u32, order: QueueOrder) -> Self {
        let queue = PermitQueue {
            capacity,
            limit: limit as usize,
            order,
            next_id: 0,
            waiting: BTreeMap::new(),
            settled: HashMap::new(),
        };
        Self {
            word: Line(AtomicI64::new(i64::from(capacity) * 2)),
            capacity: AtomicU32::new(capacity),
            queue: Mutex::new(queue),
        }
    }

    /// Takes `n` permits if they are free and no call waits.
    #[inline]
    pub(crate) fn try_take(&self, n: u32) -> bool {
        self.try_take_leaving(n, 0)
    }

    /// Takes `n` permits if `left` more stay free and no call waits.
    #[inline]
    pub(crate) fn try_take_leaving(&self, n: u32, left: u32) -> bool {
        let want = i64::from(n) * 2;
        let least = want + i64::from(left) * 2;
        let mut word = self.word.0.load(Ordering::Relaxed);
        loop {
            // An odd word: a call waits, and no call overtakes it.
            if word & 1 != 0 || word < least {
                return false;
            }
            match self.word.0.compare_exchange_weak(word, word - want, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(changed) => word = changed,
            }
        }
    }

    /// Gives `n` permits back.
    #[inline]
    pub(crate) fn give_back(&self, n: u32) {
        if self.word.0.fetch_add(i64::from(n) * 2, Ordering::AcqRel) & 1 != 0 {
            self.serve();
        }
    }

    /// Takes `n` permits, or enters the queue. Fails if the queue is full or `n` exceeds the
    /// capacity.
    pub(crate) fn take_or_wait(&self, n: u32) -> Result<Admission, Reason> {
        let mut rejected = None;
        let mut queue = self.queue.lock();
        if n > queue.capacity {
            return Err(Reason::TooLarge);
        }
        let mut word = self.word.0.load(Ordering::Acquire);
        loop {
            let first = queue.waiting.is_empty() || queue.order == QueueOrder::NewestFirst;
            let next = if first && word >> 1 >= i64::from(n) {
                word - i64::from(n) * 2
            } else if queue.limit == 0 || (queue.waiting.len() >= queue.limit && queue.order == QueueOrder::Fifo) {
                return Err(Reason::QueueFull);
            } else {
                word | 1
            };
            match self.word.0.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) if next == word | 1 => break,
                Ok(_) => return Ok(Admission::Granted),
                Err(changed) => word = changed,
            }
        }
        if queue.waiting.len() >= queue.limit
            && let Some((oldest, waiting)) = queue.waiting.pop_first()
        {
            queue.settled.insert(oldest, Err(Reason::QueueFull));
            rejected = waiting.waker;
        }
        queue.next_id += 1;
        let id = queue.next_id;
        queue.waiting.insert(id, Waiter { permits: n, waker: None });
        drop(queue);
        if let Some(waker) = rejected {
            waker.wake();
        }
        Ok(Admission::Waits(id))
    }

    /// Returns the result of call `id` if there is one; otherwise registers its waker.
    pub(crate) fn poll(&self, id: u64, waker: &Waker) -> Option<Result<(), Reason>> {
        let mut queue = self.queue.lock();
        if let Some(result) = queue.settled.remove(&id) {
            return Some(result);
        }
        if let Some(waiting) = queue.waiting.get_mut(&id) {
            waiting.waker = Some(waker.clone());
        }
        None
    }

    /// Leaves the queue, and gives back permits that were granted in the meantime.
    pub(crate) fn leave(&self, id: u64, n: u32) {
        let mut queue = self.queue.lock();
        let waited = queue.waiting.remove(&id).is_some();
        let settled = queue.settled.remove(&id);
        drop(queue);
        if settled == Some(Ok(())) {
            self.give_back(n);
        } else if waited {
            // A large request at the head may have kept smaller ones waiting.
            self.serve();
        }
    }

    /// Changes the capacity. Taken permits stay taken: after a shrink no permit is granted until
    /// enough have returned.
    pub(crate) fn resize(&self, capacity: u32) {
        self.apply(capacity, None, || ());
    }

    /// Changes the capacity, and the length and order of the queue. Calls that no longer fit into
    /// the queue are rejected: the newest ones, or with [`QueueOrder::NewestFirst`] the oldest
    /// ones. `beside` runs under the lock.
    pub(crate) fn change(&self, capacity: u32, limit: u32, order: QueueOrder, beside: impl FnOnce()) {
        self.apply(capacity, Some((limit, order)), beside);
    }

    fn apply(&self, capacity: u32, shape: Option<(u32, QueueOrder)>, beside: impl FnOnce()) {
        let mut queue = self.queue.lock();
        beside();
        let grown = i64::from(capacity) - i64::from(queue.capacity);
        queue.capacity = capacity;
        if let Some((limit, order)) = shape {
            (queue.limit, queue.order) = (limit as usize, order);
        }
        self.capacity.store(capacity, Ordering::Relaxed);
        self.word.0.fetch_add(grown * 2, Ordering::AcqRel);
        // A request above the capacity would wait for ever.
        let too_large: Vec<u64> =
            queue.waiting.iter().filter(|(_, w)| w.permits > capacity).map(|(id, _)| *id).collect();
        let mut wakers = Vec::new();
        for id in too_large {
            wakers.extend(queue.waiting.remove(&id).and_then(|w| w.waker));
            queue.settled.insert(id, Err(Reason::TooLarge));
        }
        // Before the queue is cut: no call is rejected while a permit is free for it.
        self.grant(&mut queue, &mut wakers);
        while queue.waiting.len() > queue.limit {
            let last = match queue.order {
                QueueOrder::Fifo => queue.waiting.pop_last(),
                QueueOrder::NewestFirst => queue.waiting.pop_first(),
            };
            let Some((id, waiting)) = last else { break };
            wakers.extend(waiting.waker);
            queue.settled.insert(id, Err(Reason::QueueFull));
        }
        self.grant(&mut queue, &mut wakers);
        drop(queue);
        wakers.into_iter().for_each(Waker::wake);
    }

    #[cold]
    fn serve(&self) {
        let mut wakers = Vec::new();
        self.grant(&mut self.queue.lock(), &mut wakers);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Grants free permits to waiting calls, in order, and clears the mark when no call waits.
    fn grant(&self, queue: &mut PermitQueue, wakers: &mut Vec<Waker>) {
        loop {
            let next = match queue.order {
                QueueOrder::Fifo => queue.waiting.first_key_value(),
                QueueOrder::NewestFirst => queue.waiting.last_key_value(),
            };
            let Some((id, n)) = next.map(|(id, w)| (*id, i64::from(w.permits))) else {
                self.word.0.fetch_and(!1, Ordering::AcqRel);
                break;
            };
            let mut word = self.word.0.load(Ordering::Acquire);
            let taken = loop {
                if word >> 1 < n {
                    break false;
                }
                match self.word.0.compare_exchange_weak(word, word - n * 2, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => break true,
                    Err(changed) => word = changed,
                }
            };
            if !taken {
                break;
            }
            wakers.extend(queue.waiting.remove(&id).and_then(|w| w.waker));
            queue.settled.insert(id, Ok(()));
        }
    }

    /// Returns the number of free permits, which is negative after a shrink.
    pub(crate) fn free(&self) -> i64 {
        self.word.0.load(Ordering::Acquire) >> 1
    }

    /// Returns the capacity and the number of waiting calls.
    pub(crate) fn size(&self) -> (u32, usize) {
        let queue = self.queue.lock();
        (queue.capacity, queue.waiting.len())
    }

    /// Returns the capacity, without the lock.
    #[inline]
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity.load(Ordering::Relaxed)
    }

    /// Returns the capacity, and the length and order of the queue.
    pub(crate) fn settings<T>(&self, beside: impl FnOnce() -> T) -> (u32, u32, QueueOrder, T) {
        let queue = self.queue.lock();
        (queue.capacity, queue.limit as u32, queue.order, beside())
    }
}
