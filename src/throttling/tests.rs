//! The semaphore against a list, in both orders.
use std::{collections::BTreeMap, task::Waker};

use proptest::prelude::*;

use super::{
    QueueOrder,
    semaphore::{Semaphore, Wish},
};
use crate::outcome::Reason;

#[derive(Debug, Clone, Copy)]
enum Step {
    Try(u32),
    Wish(u32),
    /// One of those that have permits gives them back.
    GiveBack(usize),
    /// One of those that wait or have not looked leaves.
    Leave(usize),
    /// One of those that were told something looks.
    Look(usize),
    Resize(u32),
}

/// The same in the most obvious way: who has what, who waits, who was told what.
struct Model {
    capacity: u32,
    limit: usize,
    order: QueueOrder,
    holders: Vec<u32>,
    waiting: Vec<(u64, u32)>,
    told: BTreeMap<u64, (u32, Result<(), Reason>)>,
}

impl Model {
    fn free(&self) -> i64 {
        let granted = self.told.values().filter(|(_, told)| told.is_ok()).map(|(n, _)| *n);
        i64::from(self.capacity) - self.holders.iter().copied().chain(granted).map(i64::from).sum::<i64>()
    }

    fn serve(&mut self) {
        loop {
            let next = match self.order {
                QueueOrder::Fifo => 0,
                QueueOrder::NewestFirst => self.waiting.len().saturating_sub(1),
            };
            match self.waiting.get(next) {
                Some((id, n)) if i64::from(*n) <= self.free() => {
                    self.told.insert(*id, (*n, Ok(())));
                    self.waiting.remove(next);
                }
                _ => return,
            }
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (1u32..4).prop_map(Step::Try),
        (1u32..4).prop_map(Step::Wish),
        (1u32..4).prop_map(Step::Wish),
        (0usize..8).prop_map(Step::GiveBack),
        (0usize..8).prop_map(Step::Leave),
        (0usize..8).prop_map(Step::Look),
        (1u32..6).prop_map(Step::Resize),
    ];
    proptest::collection::vec(step, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn throttling_3_the_semaphore_equals_a_list(newest_first: bool, capacity in 1u32..5, limit in 0u32..4, steps in steps()) {
        let order = if newest_first { QueueOrder::NewestFirst } else { QueueOrder::Fifo };
        let semaphore = Semaphore::new(capacity, limit, order);
        let mut model = Model {
            capacity, limit: limit as usize, order, holders: Vec::new(), waiting: Vec::new(), told: BTreeMap::new()
        };
        for step in steps {
            match step {
                Step::Try(n) => {
                    let expected = model.waiting.is_empty() && i64::from(n) <= model.free();
                    prop_assert_eq!(semaphore.try_take(n), expected);
                    if expected {
                        model.holders.push(n);
                    }
                }
                Step::Wish(n) => {
                    let first = model.waiting.is_empty() || newest_first;
                    let full = model.waiting.len() >= model.limit;
                    let wish = semaphore.take_or_wait(n);
                    if n > model.capacity {
                        prop_assert_eq!(wish, Err(Reason::TooLarge));
                    } else if first && i64::from(n) <= model.free() {
                        prop_assert_eq!(wish, Ok(Wish::Granted));
                        model.holders.push(n);
                    } else if model.limit == 0 || (full && !newest_first) {
                        prop_assert_eq!(wish, Err(Reason::QueueFull));
                    } else {
                        if full {
                            let (oldest, n) = model.waiting.remove(0);
                            model.told.insert(oldest, (n, Err(Reason::QueueFull)));
                        }
                        let Ok(Wish::Waits(id)) = wish else { return Err(TestCaseError::fail(format!("{wish:?}"))) };
                        model.waiting.push((id, n));
                    }
                }
                Step::GiveBack(i) if i < model.holders.len() => {
                    semaphore.give_back(model.holders.remove(i));
                    model.serve();
                }
                Step::Leave(i) if i < model.waiting.len() => {
                    let (id, n) = model.waiting.remove(i);
                    semaphore.leave(id, n);
                    model.serve();
                }
                Step::Leave(i) if i - model.waiting.len() < model.told.len() => {
                    let id = *model.told.keys().nth(i - model.waiting.len()).unwrap();
                    let (n, _) = model.told.remove(&id).unwrap();
                    semaphore.leave(id, n);
                    model.serve();
                }
                Step::Look(i) if i < model.told.len() => {
                    let id = *model.told.keys().nth(i).unwrap();
                    let (n, told) = model.told.remove(&id).unwrap();
                    prop_assert_eq!(semaphore.look(id, Waker::noop()), Some(told));
                    if told.is_ok() {
                        model.holders.push(n);
                    }
                }
                Step::Resize(capacity) => {
                    semaphore.resize(capacity);
                    model.capacity = capacity;
                    let (stay, go) = model.waiting.iter().partition(|(_, n)| *n <= capacity);
                    model.waiting = stay;
                    let go: Vec<(u64, u32)> = go;
                    model.told.extend(go.into_iter().map(|(id, n)| (id, (n, Err(Reason::TooLarge)))));
                    model.serve();
                }
                _ => {}
            }
            prop_assert_eq!(semaphore.free(), model.free());
            prop_assert_eq!(semaphore.size(), (model.capacity, model.waiting.len()));
        }
    }
}
