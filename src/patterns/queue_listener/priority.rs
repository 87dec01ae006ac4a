//! Which of several queues is asked first. Takes `now` as an argument; knows no queue.
use std::time::Duration;

use crate::time::Instant;

/// How several queues share one listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum PriorityOrder {
    /// Higher levels first, always.
    #[default]
    Strict,
    /// In turn, by weight: a queue of weight 3 is asked three times as often as one of weight 1.
    Weighted,
}

/// How one of several queues is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Level {
    /// Higher goes first, where the order is strict. 0 by default.
    pub priority: i32,
    /// Its share, where the order is by weight. 1 by default.
    pub weight: u32,
    /// It is asked first when nobody has asked it for so long, however much there is above it: the ageing that bounds its wait. Never by
    /// default.
    pub max_wait: Option<Duration>,
}

impl Default for Level {
    fn default() -> Self {
        Self { priority: 0, weight: 1, max_wait: None }
    }
}

impl Level {
    /// Of this priority.
    pub const fn priority(priority: i32) -> Self {
        Self { priority, weight: 1, max_wait: None }
    }

    /// Of this weight.
    pub const fn weight(weight: u32) -> Self {
        Self { priority: 0, weight, max_wait: None }
    }

    /// Asked at least so often.
    #[must_use]
    pub const fn max_wait(mut self, wait: Duration) -> Self {
        self.max_wait = Some(wait);
        self
    }
}

/// Whose turn it is.
pub(super) struct Turns {
    order: PriorityOrder,
    queues: Vec<Queue>,
    /// By strict priority, highest first; equal ones in the order in which they were given.
    strict: Vec<usize>,
}

struct Queue {
    level: Level,
    asked: Instant,
    /// Of the smooth weighted round robin: grows by the weight each turn, falls by all weights when chosen.
    credit: i64,
}

impl Turns {
    pub(super) fn new(levels: &[Level], order: PriorityOrder, now: Instant) -> Self {
        let queues = levels.iter().map(|level| Queue { level: *level, asked: now, credit: 0 }).collect();
        let mut strict: Vec<usize> = (0..levels.len()).collect();
        strict.sort_by_key(|at| std::cmp::Reverse(levels[*at].priority));
        Self { order, queues, strict }
    }

    /// In which order to ask the queues now, until one has something; into `order`.
    pub(super) fn next(&mut self, now: Instant, order: &mut Vec<usize>) {
        order.clear();
        match self.order {
            PriorityOrder::Strict => order.extend_from_slice(&self.strict),
            PriorityOrder::Weighted => {
                let all: i64 = self.queues.iter().map(|queue| i64::from(queue.level.weight)).sum();
                for queue in &mut self.queues {
                    queue.credit += i64::from(queue.level.weight);
                }
                order.extend(0..self.queues.len());
                // The sort is stable: of equal ones the first.
                order.sort_by_key(|at| std::cmp::Reverse(self.queues[*at].credit));
                if let Some(first) = order.first() {
                    self.queues[*first].credit -= all;
                }
            }
        }
        // Whoever has waited for too long goes before all others; of several, who has for longest beyond its bound.
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

    /// This one is asked.
    pub(super) fn asked(&mut self, at: usize, now: Instant) {
        self.queues[at].asked = now;
    }
}
