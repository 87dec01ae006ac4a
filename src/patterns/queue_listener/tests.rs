//! The state machines of the listener against naive models.
use std::{collections::BTreeSet, time::Duration};

use proptest::prelude::*;

use super::{
    IdleConfig, Level, PriorityOrder,
    priority::Turns,
    run::scaler::{Scaler, tasks_by_depth},
};
use crate::time::Instant;

#[derive(Debug, Clone, Copy)]
enum Step {
    Grow(u32),
    Call,
    MayEnd(bool),
    Ended,
    Begin,
    Close,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u32..20).prop_map(Step::Grow),
        2 => Just(Step::Call),
        6 => any::<bool>().prop_map(Step::MayEnd),
        1 => Just(Step::Ended),
        4 => Just(Step::Begin),
        1 => Just(Step::Close),
    ]
}

proptest! {
    /// The model has each task as a name in a set: the started ones, and those to be started.
    #[test]
    fn the_scaler_counts_a_set_of_tasks(min in 0u32..3, more in 1u32..12, steps in prop::collection::vec(step(), 1..200)) {
        let max = min + more;
        let mut scaler = Scaler::new(min, max);
        let (mut begun, mut to_start) = (BTreeSet::new(), BTreeSet::new());
        let (mut next, mut closed) = (0u32, false);
        for step in steps {
            let wanted = match step {
                Step::Grow(wanted) => Some(wanted),
                Step::Call => Some(1),
                _ => None,
            };
            if let Some(wanted) = wanted {
                let before = begun.len() + to_start.len();
                while !closed && ((begun.len() + to_start.len()) as u32) < wanted.clamp(min, max) {
                    to_start.insert(next);
                    next += 1;
                }
                let grown = scaler.grow_to(wanted);
                prop_assert_eq!(grown as usize, begun.len() + to_start.len() - before);
            }
            match step {
                Step::MayEnd(has_looked) if !begun.is_empty() => {
                    let all = (begun.len() + to_start.len()) as u32;
                    let may = closed || (has_looked && all > min);
                    prop_assert_eq!(scaler.may_end(has_looked, min), may);
                    if may {
                        begun.pop_first();
                    }
                }
                Step::Ended if begun.pop_first().is_some() => scaler.ended(),
                Step::Begin => {
                    prop_assert_eq!(scaler.take_to_start() as usize, to_start.len());
                    begun.append(&mut to_start);
                }
                Step::Close => {
                    scaler.close();
                    (closed, to_start) = (true, BTreeSet::new());
                }
                _ => {}
            }
            prop_assert_eq!(scaler.tasks as usize, begun.len() + to_start.len());
            prop_assert!(scaler.tasks <= max);
            prop_assert_eq!(scaler.has_to_start(), !to_start.is_empty());
        }
    }

    /// Each order contains each queue once; a queue that was not polled within its `max_wait` is
    /// first.
    #[test]
    fn turns_pass_nobody_over_for_longer_than_it_bears(
        levels in prop::collection::vec((0i32..4, 1u32..5, prop::option::of(1u64..50)), 1..6),
        weighted in any::<bool>(),
        waits in prop::collection::vec((0u64..20, 0usize..6, any::<bool>()), 1..200),
    ) {
        let at = |seconds: u64| Instant::from_nanos(seconds * 1_000_000_000);
        let make = |&(priority, weight, wait): &(i32, u32, Option<u64>)| {
            let level = Level { priority, weight, ..Level::default() };
            wait.map_or(level, |wait| level.max_wait(Duration::from_secs(wait)))
        };
        let levels: Vec<_> = levels.iter().map(make).collect();
        let order = if weighted { PriorityOrder::Weighted } else { PriorityOrder::Strict };
        let mut turns = Turns::new(levels.iter().copied(), order, at(0));
        let (mut now, mut asked) = (0, vec![0; levels.len()]);
        let mut order = Vec::new();
        for (passed, has_something, refuses_all) in waits {
            now += passed;
            turns.next(at(now), refuses_all, &mut order);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            prop_assert!(sorted.into_iter().eq(0..levels.len()));
            let overdue = |i: usize| {
                let wait = levels[i].max_wait?.as_secs();
                (now - asked[i]).checked_sub(wait)
            };
            let most = (0..levels.len()).filter_map(overdue).max();
            prop_assert_eq!(overdue(order[0]), most);
            if most.is_none() && refuses_all {
                prop_assert!(order.windows(2).all(|pair| asked[pair[0]] <= asked[pair[1]]));
            } else if most.is_none() && !weighted {
                prop_assert!(order.windows(2).all(|pair| levels[pair[0]].priority >= levels[pair[1]].priority));
            }
            // They are polled in turn until one has a message.
            for &i in order.iter().take(has_something + 1) {
                turns.asked(i, at(now));
                asked[i] = now;
            }
        }
    }
}

proptest! {
    /// Delay n: `min + (2^n - 1) * r`, `r` from 0.8 to 1.2 of `delta`, at most `max`, in whole
    /// numbers.
    #[test]
    fn an_idle_delay_is_what_the_formula_says(min in 1u64..2_000, more in 0u64..600_000, delta in 0u64..5_000, n in 0u32..200, unit in 0.0..1.0f64) {
        let ms = Duration::from_millis;
        let max = min + more;
        let config = IdleConfig::between(ms(min), ms(max)).delta(ms(delta));
        let delay = config.delay(n, unit);
        let grown = |r: u64| {
            let doubled = 1u128.checked_shl(n).unwrap_or(u128::MAX).saturating_sub(1);
            u128::from(min * 1_000_000).saturating_add(doubled.saturating_mul(u128::from(r * 100_000)))
        };
        let least = grown(delta * 8).min(u128::from(max) * 1_000_000);
        let most = grown(delta * 12).min(u128::from(max) * 1_000_000);
        // A double is exact to a part in 10^15.
        let slack = most / 1_000_000_000 + 2;
        prop_assert!(delay.as_nanos() + slack >= least && delay.as_nanos() <= most + slack, "{delay:?} {least} {most}");
        prop_assert!(delay <= ms(max) && delay >= ms(min));
        prop_assert!(config.delay(n + 1, unit) >= delay, "it only grows");
    }

    #[test]
    fn more_messages_never_ask_for_fewer_tasks(a in 0u64..5_000, b in 0u64..5_000) {
        prop_assert!(tasks_by_depth(a.min(b)) <= tasks_by_depth(a.max(b)));
    }
}

#[test]
fn the_documented_delays_and_task_steps() {
    let config = IdleConfig::default();
    let delays: Vec<_> = (0..12).map(|n| config.delay(n, 0.5).as_millis()).collect();
    assert_eq!(delays, [100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 51_200, 60_000, 60_000]);
    assert_eq!([0, 1, 99, 100, 999, 1000, u64::MAX].map(tasks_by_depth), [10, 10, 10, 50, 50, 100, 100]);
}
