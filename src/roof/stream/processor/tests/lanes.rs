//! The order of keys against a model that keeps all events in a list.
use std::{collections::BTreeSet, time::Duration};

use proptest::prelude::*;

use super::super::{finished::Finished, lanes::Lanes};
use crate::time::Instant;

#[derive(Debug, Clone, Copy)]
enum Step {
    Read(Option<u64>),
    Start,
    Finish(usize),
    Delay(usize, u64),
    Pass(u64),
    /// Another owner goes on from the checkpoint.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => prop::option::of(0..4_u64).prop_map(Step::Read),
        5 => Just(Step::Start),
        4 => (0..9_usize).prop_map(Step::Finish),
        2 => (0..9_usize, 0..50_u64).prop_map(|(at, ms)| Step::Delay(at, ms)),
        2 => (0..40_u64).prop_map(Step::Pass),
        1 => Just(Step::Restart),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Waits,
    Runs,
    Delayed(Instant),
    Finished,
}

fn at(ms: u64) -> Instant {
    Instant::from_nanos(1) + Duration::from_millis(ms)
}

proptest! {
    #[test]
    fn events_of_one_key_run_one_at_a_time_in_order_and_all_others_at_once(
        start in 0..130_u64, steps in prop::collection::vec(step(), 0..200), ahead in 1..100_u64,
    ) {
        let mut lanes = Lanes::new(Finished::up_to(start));
        // Each event of the topic, by position, with its key, state and failures.
        let mut all: Vec<(Option<u64>, State)> = Vec::new();
        let mut read = 0;
        let mut now = 0;
        for step in steps {
            let place = |position: u64| (position - start - 1) as usize;
            let running: Vec<usize> = (0..read).filter(|i| all[*i].1 == State::Runs).collect();
            match step {
                Step::Read(key) if lanes.room(ahead) > 0 => {
                    prop_assert_eq!(place(lanes.next()), read);
                    if read == all.len() {
                        all.push((key, State::Waits));
                    }
                    lanes.push(all[read].0, read);
                    read += 1;
                }
                Step::Start => {
                    let first = (0..read).find(|i| {
                        let (key, state) = all[*i];
                        let is_first =
                            key.is_none() || !all[..*i].iter().any(|(k, state)| *k == key && *state != State::Finished);
                        let is_due = matches!(state, State::Delayed(due) if due <= at(now));
                        is_first && (state == State::Waits || is_due)
                    });
                    lanes.wake(at(now));
                    prop_assert_eq!(lanes.peek().map(place), first);
                    prop_assert_eq!(lanes.start().map(|(position, event, _)| (place(position), *event)), first.map(|i| (i, i)));
                    if let Some(i) = first {
                        all[i].1 = State::Runs;
                    }
                }
                Step::Finish(which) if !running.is_empty() => {
                    let i = running[which % running.len()];
                    all[i].1 = State::Finished;
                    lanes.finish(start + 1 + i as u64);
                }
                Step::Delay(which, ms) if !running.is_empty() => {
                    let i = running[which % running.len()];
                    all[i].1 = State::Delayed(at(now + ms));
                    lanes.fail(start + 1 + i as u64);
                    lanes.delay(start + 1 + i as u64, at(now + ms));
                }
                Step::Pass(ms) => now += ms,
                Step::Restart => {
                    lanes = Lanes::new(lanes.finished().clone());
                    all.iter_mut().filter(|(_, state)| *state != State::Finished).for_each(|(_, state)| *state = State::Waits);
                    read = place(lanes.next());
                }
                _ => {}
            }
            let finished: BTreeSet<usize> = (0..all.len()).filter(|i| all[*i].1 == State::Finished).collect();
            let watermark = (0..).find(|i| !finished.contains(i)).unwrap();
            prop_assert_eq!(place(lanes.finished().watermark() + 1), watermark);
            prop_assert_eq!(lanes.running(), (0..read).filter(|i| all[*i].1 == State::Runs).count());
            prop_assert_eq!(lanes.is_idle(), (0..read).all(|i| all[i].1 == State::Finished));
            prop_assert!(read as u64 <= watermark as u64 + ahead, "no further than that above the watermark");
        }
    }
}
