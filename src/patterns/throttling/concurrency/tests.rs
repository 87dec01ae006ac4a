//! The semaphore, compared with a plain list of waiting calls and a number.
#![allow(clippy::unwrap_used, reason = "tests")]
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Wake, Waker},
};

use proptest::prelude::*;

use super::{
    QueueOrder,
    semaphore::{Admission, Semaphore},
};
use crate::outcome::Reason;

/// A waker that counts the wake-ups of a waiting call.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

struct Naive {
    capacity: u32,
    limit: usize,
    order: QueueOrder,
    free: i64,
    /// Number and permits, oldest first.
    waiting: Vec<(u64, u32)>,
    /// Results of calls that no longer wait.
    settled: BTreeMap<u64, (u32, Result<(), Reason>)>,
}

impl Naive {
    fn try_take(&mut self, n: u32) -> bool {
        let granted = self.waiting.is_empty() && self.free >= n.into();
        if granted {
            self.free -= i64::from(n);
        }
        granted
    }

    /// Returns `true` if the call is granted at once; otherwise it waits, as number `id`.
    fn take_or_wait(&mut self, n: u32, id: u64) -> Result<bool, Reason> {
        let newest = self.order == QueueOrder::NewestFirst;
        if n > self.capacity {
            return Err(Reason::TooLarge);
        }
        if (newest || self.waiting.is_empty()) && self.free >= n.into() {
            self.free -= i64::from(n);
            return Ok(true);
        }
        if self.limit == 0 || (self.waiting.len() == self.limit && !newest) {
            return Err(Reason::QueueFull);
        }
        if self.waiting.len() == self.limit {
            let (oldest, n) = self.waiting.remove(0);
            self.settled.insert(oldest, (n, Err(Reason::QueueFull)));
        }
        self.waiting.push((id, n));
        Ok(false)
    }

    fn serve(&mut self) {
        loop {
            let next = if self.order == QueueOrder::Fifo { 0 } else { self.waiting.len().wrapping_sub(1) };
            match self.waiting.get(next) {
                Some(&(id, n)) if self.free >= n.into() => {
                    self.free -= i64::from(n);
                    self.waiting.remove(next);
                    self.settled.insert(id, (n, Ok(())));
                }
                _ => return,
            }
        }
    }

    fn change(&mut self, capacity: u32, limit: usize, order: QueueOrder) {
        (self.limit, self.order) = (limit, order);
        self.resize(capacity);
        while self.waiting.len() > limit {
            let at = if order == QueueOrder::Fifo { self.waiting.len() - 1 } else { 0 };
            let (id, n) = self.waiting.remove(at);
            self.settled.insert(id, (n, Err(Reason::QueueFull)));
        }
    }

    fn resize(&mut self, capacity: u32) {
        self.free += i64::from(capacity) - i64::from(self.capacity);
        self.capacity = capacity;
        let hopeless: Vec<_> = self.waiting.extract_if(.., |(_, n)| *n > capacity).collect();
        self.settled.extend(hopeless.into_iter().map(|(id, n)| (id, (n, Err(Reason::TooLarge)))));
        self.serve();
    }
}

#[derive(Debug, Clone)]
enum Step {
    TryTake(u32),
    Take(u32),
    /// A call leaves that waits, or that was granted or refused and not polled since.
    Leave(prop::sample::Index),
    /// One call is polled.
    Look(prop::sample::Index),
    GiveBack(prop::sample::Index),
    Resize(u32),
    Change(u32, u32, bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let which = any::<prop::sample::Index>;
    let step = prop_oneof![
        2 => (1u32..6).prop_map(Step::TryTake),
        6 => (1u32..6).prop_map(Step::Take),
        2 => which().prop_map(Step::Leave),
        3 => which().prop_map(Step::Look),
        5 => which().prop_map(Step::GiveBack),
        1 => prop_oneof![1u32..9, Just(u32::MAX)].prop_map(Step::Resize),
        1 => (1u32..9, 0u32..5, any::<bool>()).prop_map(|(capacity, limit, newest)| Step::Change(capacity, limit, newest)),
    ];
    prop::collection::vec(step, 1..120)
}

proptest! {
    // Guarantee: throttling 11, 13.
    /// Capacity, bounded queue, both orders and weights, all of them changed in use.
    #[test]
    fn the_semaphore_equals_a_list(
        capacity in 1u32..8, limit in 0u32..5, newest: bool, steps in steps()
    ) {
        let order = if newest { QueueOrder::NewestFirst } else { QueueOrder::Fifo };
        let semaphore = Semaphore::new(capacity, limit, order);
        let mut naive = Naive {
            capacity, limit: limit as usize, order, free: capacity.into(), waiting: Vec::new(), settled: BTreeMap::new(),
        };
        // Taken permits; queued calls that were not polled since their end; and those of them that
        // were woken.
        let (mut out, mut calls) = (Vec::new(), Vec::<(u64, u32, Arc<Woken>)>::new());
        for step in steps {
            match step {
                Step::TryTake(n) => {
                    let taken = semaphore.try_take(n);
                    prop_assert_eq!(taken, naive.try_take(n));
                    if taken {
                        out.push(n);
                    }
                }
                Step::Take(n) => {
                    let answer = semaphore.take_or_wait(n);
                    let id = if let Ok(Admission::Waits(id)) = answer { id } else { 0 };
                    let expected = naive.take_or_wait(n, id);
                    prop_assert_eq!(&answer, &expected.map(|granted| if granted { Admission::Granted } else { Admission::Waits(id) }));
                    match answer {
                        Ok(Admission::Granted) => out.push(n),
                        Ok(Admission::Waits(id)) => {
                            let woken = Arc::new(Woken::default());
                            prop_assert_eq!(semaphore.poll(id, &Waker::from(woken.clone())), None);
                            calls.push((id, n, woken));
                        }
                        Err(_) => {}
                    }
                }
                Step::Leave(_) | Step::Look(_) if calls.is_empty() => {}
                Step::Leave(which) => {
                    let (id, n, _) = calls.remove(which.index(calls.len()));
                    semaphore.leave(id, n);
                    naive.waiting.retain(|(waits, _)| *waits != id);
                    if let Some((n, Ok(()))) = naive.settled.remove(&id) {
                        naive.free += i64::from(n);
                    }
                    naive.serve();
                }
                Step::Look(which) => {
                    let (id, n, woken) = calls.remove(which.index(calls.len()));
                    let seen = semaphore.poll(id, &Waker::from(woken.clone()));
                    let expected = naive.settled.remove(&id);
                    prop_assert_eq!(seen, expected.map(|(_, result)| result));
                    match seen {
                        Some(Ok(())) => out.push(n),
                        Some(Err(_)) => {}
                        None => calls.push((id, n, woken)),
                    }
                }
                Step::GiveBack(which) => {
                    if !out.is_empty() {
                        let n = out.swap_remove(which.index(out.len()));
                        semaphore.give_back(n);
                        naive.free += i64::from(n);
                        naive.serve();
                    }
                }
                Step::Resize(capacity) => {
                    semaphore.resize(capacity);
                    naive.resize(capacity);
                }
                Step::Change(capacity, limit, newest) => {
                    let order = if newest { QueueOrder::NewestFirst } else { QueueOrder::Fifo };
                    semaphore.change(capacity, limit, order, || ());
                    naive.change(capacity, limit as usize, order);
                }
            }
            prop_assert_eq!(semaphore.free(), naive.free);
            prop_assert_eq!(semaphore.size(), (naive.capacity, naive.waiting.len()));
            for (id, _, woken) in &calls {
                let settled = usize::from(naive.settled.contains_key(id));
                prop_assert_eq!(woken.0.load(Ordering::SeqCst), settled, "a call is woken once, when it is settled");
            }
        }
        for (id, n, _) in calls {
            semaphore.leave(id, n);
        }
        out.into_iter().for_each(|n| semaphore.give_back(n));
        prop_assert_eq!(semaphore.free(), i64::from(semaphore.size().0));
        prop_assert_eq!(semaphore.size().1, 0);
        prop_assert!(semaphore.try_take(1), "no mark is left behind");
    }
}
