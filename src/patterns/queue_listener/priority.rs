//! The order in which several queues are polled. A state machine that takes `now` as an argument
//! and knows no queue.
use std::time::Duration;

use crate::{config::setters, time::Instant};

/// Order in which one listener polls several queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum PriorityOrder {
    /// Higher priorities first, always.
    #[default]
    Strict,
    /// By weight: a queue of weight 3 is polled first three times as often as one of weight 1.
    Weighted,
}

/// Priority and weight of one of several queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Level {
    /// Priority under the strict order; higher is polled first. 0 by default.
    pub priority: i32,
    /// Share under the weighted order. 1 by default.
    pub weight: u32,
    /// Time after which a queue that was not polled is polled first, whatever its priority. This
    /// ageing bounds the wait of its messages. No bound by default.
    pub max_wait: Option<Duration>,
}

impl Default for Level {
    fn default() -> Self {
        Self { priority: 0, weight: 1, max_wait: None }
    }
}

setters! {
    impl Level {
        priority: i32,
        weight: u32,
        max_wait: Option<Duration>,
    }
}

/// The order of the next poll.
pub(super) struct Turns {
    order: PriorityOrder,
    queues: Vec<Turn>,
    /// Indices by strict priority, highest first; equal priorities in the order in which they were
    /// given.
    strict: Vec<usize>,
}

struct Turn {
    level: Level,
    asked: Instant,
    /// Credit of the smooth weighted round robin: grows by the queue's weight each turn, falls by
    /// the sum of all weights if the queue is chosen.
    credit: i64,
}

impl Turns {
    pub(super) fn new(levels: impl Iterator<Item = Level>, order: PriorityOrder, now: Instant) -> Self {
        let queues: Vec<_> = levels.map(|level| Turn { level, asked: now, credit: 0 }).collect();
        let mut strict: Vec<usize> = (0..queues.len()).collect();
        strict.sort_by_key(|at| std::cmp::Reverse(queues[*at].level.priority));
        Self { order, queues, strict }
    }

    /// Writes into `order` the order in which to poll the queues now, until one has a message.
    ///
    /// While consecutive messages are refused, that is the queue first that was not polled for the
    /// longest time: refused messages that return all the time would hide all lower queues.
    pub(super) fn next(&mut self, now: Instant, refuses_all: bool, order: &mut Vec<usize>) {
        order.clear();
        match self.order {
            _ if refuses_all => {
                order.extend_from_slice(&self.strict);
                order.sort_by_key(|at| self.queues[*at].asked);
            }
            PriorityOrder::Strict => order.extend_from_slice(&self.strict),
            PriorityOrder::Weighted => {
                let all: i64 = self.queues.iter().map(|queue| i64::from(queue.level.weight)).sum();
                for queue in &mut self.queues {
                    queue.credit += i64::from(queue.level.weight);
                }
                order.extend(0..self.queues.len());
                // The sort is stable: the first of several equal credits wins.
                order.sort_by_key(|at| std::cmp::Reverse(self.queues[*at].credit));
                if let Some(first) = order.first() {
                    self.queues[*first].credit -= all;
                }
            }
        }
        // A queue whose `max_wait` has passed goes first; of several, the one that is furthest
        // beyond its bound.
        let overdue = |at: usize| {
            let queue = &self.queues[at];
            let bound = queue.level.max_wait?;
            let waited = now - queue.asked;
            (waited >= bound).then(|| waited - bound)
        };
        let first = (0..order.len()).filter_map(|i| Some((overdue(order[i])?, i))).max_by_key(|(beyond, _)| *beyond);
        if let Some((_, i)) = first {
            order[..=i].rotate_right(1);
        }
    }

    /// Records that this queue is polled.
    pub(super) fn asked(&mut self, at: usize, now: Instant) {
        self.queues[at].asked = now;
    }
}
