//! Permits with a queue: taken and given back by one atomic operation each while nobody waits.
//!
//! Unlike tokio's semaphore it can serve the newest first, bound its queue, and shrink below what is taken. The one word holds
//! the free permits and a mark "somebody waits"; as both are in one word, a permit given back and a call that begins to wait cannot
//! miss each other.
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
    /// Twice the free permits (below zero after a shrink), plus one if somebody waits.
    word: Line<AtomicI64>,
    /// The queue's, to be read without its lock.
    capacity: AtomicU32,
    queue: Mutex<Queue>,
}

struct Queue {
    capacity: u32,
    /// How many may wait.
    limit: usize,
    order: QueueOrder,
    next_id: u64,
    waiting: BTreeMap<u64, Waiting>,
    /// What became of those that no longer wait but have not looked yet.
    settled: HashMap<u64, Result<(), Reason>>,
}

struct Waiting {
    permits: u32,
    waker: Option<Waker>,
}

/// What became of a wish for permits.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    Granted,
    Waits(u64),
}

impl Semaphore {
    pub(crate) fn new(capacity: u32, limit: u32, order: QueueOrder) -> Self {
        let queue = Queue {
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

    /// Takes `n` permits if they are free and nobody waits.
    #[inline]
    pub(crate) fn try_take(&self, n: u32) -> bool {
        self.try_take_leaving(n, 0)
    }

    /// Takes `n` permits if so many more are free then, and nobody waits.
    #[inline]
    pub(crate) fn try_take_leaving(&self, n: u32, left: u32) -> bool {
        let want = i64::from(n) * 2;
        let least = want + i64::from(left) * 2;
        let mut word = self.word.0.load(Ordering::Relaxed);
        loop {
            // An odd word: somebody waits, and nobody goes before.
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

    /// Takes `n` permits, or joins the queue, or is turned away.
    pub(crate) fn take_or_wait(&self, n: u32) -> Result<Wish, Reason> {
        let mut turned_away = None;
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
                Ok(_) => return Ok(Wish::Granted),
                Err(changed) => word = changed,
            }
        }
        if queue.waiting.len() >= queue.limit
            && let Some((oldest, waiting)) = queue.waiting.pop_first()
        {
            queue.settled.insert(oldest, Err(Reason::QueueFull));
            turned_away = waiting.waker;
        }
        queue.next_id += 1;
        let id = queue.next_id;
        queue.waiting.insert(id, Waiting { permits: n, waker: None });
        drop(queue);
        if let Some(waker) = turned_away {
            waker.wake();
        }
        Ok(Wish::Waits(id))
    }

    /// What became of `id`, if anything; otherwise it will be woken.
    pub(crate) fn look(&self, id: u64, waker: &Waker) -> Option<Result<(), Reason>> {
        let mut queue = self.queue.lock();
        if let Some(result) = queue.settled.remove(&id) {
            return Some(result);
        }
        if let Some(waiting) = queue.waiting.get_mut(&id) {
            waiting.waker = Some(waker.clone());
        }
        None
    }

    /// Leaves the queue; permits that were granted in the meantime go back.
    pub(crate) fn leave(&self, id: u64, n: u32) {
        let mut queue = self.queue.lock();
        let waited = queue.waiting.remove(&id).is_some();
        let settled = queue.settled.remove(&id);
        drop(queue);
        if settled == Some(Ok(())) {
            self.give_back(n);
        } else if waited {
            // It may have kept smaller wishes behind it waiting.
            self.serve();
        }
    }

    /// Changes the capacity. Permits that are out stay out: after a shrink none is given until enough are back.
    pub(crate) fn resize(&self, capacity: u32) {
        self.apply(capacity, None);
    }

    /// Changes the capacity, and the length and order of the queue. Who no longer fits into the queue is turned away: who came last, or, where the
    /// newest go first, who came first.
    pub(crate) fn change(&self, capacity: u32, limit: u32, order: QueueOrder) {
        self.apply(capacity, Some((limit, order)));
    }

    fn apply(&self, capacity: u32, shape: Option<(u32, QueueOrder)>) {
        let mut queue = self.queue.lock();
        let grown = i64::from(capacity) - i64::from(queue.capacity);
        queue.capacity = capacity;
        if let Some((limit, order)) = shape {
            (queue.limit, queue.order) = (limit as usize, order);
        }
        self.capacity.store(capacity, Ordering::Relaxed);
        self.word.0.fetch_add(grown * 2, Ordering::AcqRel);
        // Wishes that can no longer come true do not wait for ever.
        let hopeless: Vec<u64> =
            queue.waiting.iter().filter(|(_, w)| w.permits > capacity).map(|(id, _)| *id).collect();
        let mut wakers = Vec::new();
        for id in hopeless {
            wakers.extend(queue.waiting.remove(&id).and_then(|w| w.waker));
            queue.settled.insert(id, Err(Reason::TooLarge));
        }
        // Before the queue is cut: nobody is turned away for whom there is a place now.
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

    /// Gives free permits to those who wait, in order, and takes the mark away when nobody is left.
    fn grant(&self, queue: &mut Queue, wakers: &mut Vec<Waker>) {
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

    /// Free permits; below zero after a shrink.
    pub(crate) fn free(&self) -> i64 {
        self.word.0.load(Ordering::Acquire) >> 1
    }

    /// The capacity, and how many wait.
    pub(crate) fn size(&self) -> (u32, usize) {
        let queue = self.queue.lock();
        (queue.capacity, queue.waiting.len())
    }

    /// The capacity, without the lock.
    #[inline]
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity.load(Ordering::Relaxed)
    }

    /// The capacity, and the length and order of the queue.
    pub(crate) fn settings(&self) -> (u32, u32, QueueOrder) {
        let queue = self.queue.lock();
        (queue.capacity, queue.limit as u32, queue.order)
    }
}
