//! The machine against a naive model.
use std::collections::BTreeSet;

use bytes::Bytes;
use proptest::{prelude::*, sample::select};

use super::{LIMITS, ME, PIVOT, PLAIN, S, UNDOABLE, plan, report, start, started};
use crate::saga::{
    StepOutcomeKind as Outcome,
    state::{Kind, Owner, Phase, PlannedStep, Progress, Status},
};

/// What the model knows of the effect of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    No,
    /// It was accepted, and a definite failure would end it.
    InProgress,
    Maybe,
    Yes,
}

/// A naive model: it follows each attempt, and knows nothing of phases.
struct Model {
    plan: Vec<PlannedStep>,
    effect: Vec<Effect>,
    attempts: Vec<u32>,
    undo_attempts: Vec<u32>,
    undone: Vec<bool>,
    under_way: BTreeSet<(usize, bool)>,
    has_undone: bool,
}

impl Model {
    fn new(plan: Vec<PlannedStep>) -> Self {
        let n = plan.len();
        Self {
            plan,
            effect: vec![Effect::No; n],
            attempts: vec![0; n],
            undo_attempts: vec![0; n],
            undone: vec![false; n],
            under_way: BTreeSet::new(),
            has_undone: false,
        }
    }

    fn ended(&mut self, i: usize, undoes: bool, kind: Option<Outcome>) {
        self.under_way.remove(&(i, undoes));
        if undoes {
            self.undone[i] |= kind == Some(Outcome::Completed);
            self.undo_attempts[i] -= u32::from(matches!(kind, Some(Outcome::Refused | Outcome::Pending)));
            return;
        }
        let before = self.effect[i];
        self.effect[i] = match kind {
            Some(Outcome::Completed) => Effect::Yes,
            Some(Outcome::Unknown | Outcome::Abandoned) | None => Effect::Maybe,
            Some(Outcome::Pending) if before == Effect::No => Effect::InProgress,
            Some(Outcome::Failed) if before == Effect::InProgress => Effect::No,
            Some(_) => before,
        };
        self.attempts[i] -= u32::from(matches!(kind, Some(Outcome::Refused | Outcome::Pending)));
    }

    fn needs_undo(&self, i: usize) -> bool {
        self.plan[i].kind.compensates && self.effect[i] != Effect::No && !self.undone[i]
    }

    fn rank(&self, i: usize) -> (bool, u8) {
        (self.plan[i].kind.first, self.plan[i].group)
    }

    /// Compares the attempts that the machine has begun with what is allowed.
    fn began(&mut self, saga: &Progress) -> Result<(), TestCaseError> {
        let now: BTreeSet<_> = saga.started().map(|i| (i, saga.steps[i].status == Status::Undoing)).collect();
        prop_assert!(self.under_way.is_subset(&now), "an attempt was forgotten: {:?} {now:?}", self.under_way);
        for (i, undoes) in now.difference(&self.under_way.clone()).copied() {
            let others = (0..self.plan.len()).filter(|other| *other != i);
            if undoes {
                self.has_undone = true;
                self.undo_attempts[i] += 1;
                prop_assert!(self.needs_undo(i), "step {i} has nothing to undo");
                prop_assert!(now.iter().all(|(_, undoes)| *undoes), "an action runs beside a compensation");
                for other in others {
                    let earlier = self.rank(other) > self.rank(i) && self.needs_undo(other);
                    prop_assert!(!earlier, "step {i} is undone before step {other}");
                }
            } else {
                self.attempts[i] += 1;
                prop_assert!(!self.has_undone, "step {i} begins after a compensation");
                for other in others {
                    let is_earlier = self.plan[other].group < self.plan[i].group;
                    prop_assert!(
                        !is_earlier || self.effect[other] == Effect::Yes,
                        "step {i} begins before step {other}"
                    );
                }
            }
            prop_assert!(self.attempts[i] <= LIMITS.attempts && self.undo_attempts[i] <= LIMITS.undo_attempts);
        }
        self.under_way = now;
        let pivot = self.plan.iter().position(|step| step.kind.is_pivot);
        let all = 0..self.plan.len();
        match saga.phase {
            Phase::Completed => prop_assert!(all.clone().all(|i| self.effect[i] == Effect::Yes)),
            Phase::Compensated => {
                prop_assert!(all.clone().all(|i| !self.needs_undo(i)), "an effect is left");
                prop_assert!(pivot.is_none_or(|pivot| self.effect[pivot] == Effect::No), "the pivot took effect");
            }
            Phase::StuckForward => {
                // What was accepted and not heard of again is neither undone nor repeated for ever.
                prop_assert!(pivot.is_some_and(|pivot| self.effect[pivot] != Effect::No), "it could go back");
            }
            Phase::StuckCompensating => prop_assert!(all.clone().any(|i| self.needs_undo(i))),
            Phase::Forward | Phase::Compensating => {
                prop_assert!(saga.started().chain(saga.waiting()).next().is_some(), "nothing goes on: {saga:?}");
            }
        }
        Ok(())
    }
}

#[derive(Debug, Clone)]
enum Op {
    Report(usize, Outcome, u64),
    Claim,
    Due,
    Cancel,
    Wake,
}

fn outcomes() -> impl Strategy<Value = Outcome> {
    use Outcome::{Abandoned, Completed, Failed, NotSent, Pending, Refused, Unknown};
    select(vec![Completed, Completed, Completed, Completed, Failed, Abandoned, Unknown, NotSent, Refused, Pending])
}

fn ops() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => (any::<usize>(), outcomes(), select(vec![0, 1, 60])).prop_map(|(i, kind, delay)| Op::Report(i, kind, delay)),
        2 => Just(Op::Claim),
        4 => Just(Op::Due),
        1 => Just(Op::Cancel),
        1 => Just(Op::Wake),
    ]
}

/// Steps before the pivot, perhaps the pivot, and steps after it, in groups.
fn plans() -> impl Strategy<Value = Vec<(Kind, u8)>> {
    let before = prop::collection::vec((any::<bool>(), any::<bool>(), any::<bool>()), 0..5);
    (before, any::<bool>(), prop::collection::vec(any::<bool>(), 0..3)).prop_map(|(before, has_pivot, after)| {
        let (mut plan, mut group) = (Vec::new(), 0);
        for (compensates, first, joins) in before {
            group += u8::from(!joins && !plan.is_empty());
            plan.push((Kind { is_pivot: false, compensates, first: first && compensates }, group));
        }
        if has_pivot || plan.is_empty() {
            group += u8::from(!plan.is_empty());
            plan.push((PIVOT, group));
            group += 1;
            for (i, joins) in after.into_iter().enumerate() {
                group += u8::from(!joins && i > 0);
                plan.push((PLAIN, group));
            }
        }
        plan
    })
}

proptest! {
    // 256 cases; `.ci/run` sets 2,000 by `PROPTEST_CASES`.

    /// A saga of any plan, with any outcomes, claims, signals, and delays.
    #[test]
    fn the_machine_does_what_the_naive_model_allows(kinds in plans(), ops in prop::collection::vec(ops(), 0..80)) {
        let mut saga = start(&kinds);
        let mut model = Model::new(plan(&kinds));
        model.began(&saga)?;
        for op in ops {
            if !saga.is_open() {
                break;
            }
            let under_way: Vec<_> = model.under_way.iter().copied().collect();
            match op {
                Op::Report(at, kind, delay) if !under_way.is_empty() => {
                    let (i, undoes) = under_way[at % under_way.len()];
                    model.ended(i, undoes, Some(kind));
                    report(&mut saga, i, kind, S(delay));
                }
                Op::Report(..) => {}
                Op::Claim => {
                    under_way.into_iter().for_each(|(i, undoes)| model.ended(i, undoes, None));
                    saga.claim(Owner { run: saga.epoch + 1, ..ME }, 0, LIMITS);
                }
                Op::Due => saga.begin_waiting(|_| true, LIMITS),
                Op::Cancel => {
                    let pivot = model.plan.iter().position(|step| step.kind.is_pivot);
                    let is_past = pivot.is_some_and(|pivot| {
                        model.effect[pivot] != Effect::No || model.under_way.contains(&(pivot, false))
                    });
                    prop_assert_eq!(saga.cancel("cancelled"), !is_past);
                    saga.begin_waiting(|_| false, LIMITS);
                }
                Op::Wake => saga.wake(),
            }
            model.began(&saga)?;
            prop_assert_eq!(&Progress::decode(&saga.encode()).unwrap(), &saga);
        }
        // Without further faults each saga ends, and is not stuck unless an action or a compensation was refused.
        for _ in 0..200 {
            saga.begin_waiting(|_| true, LIMITS);
            model.began(&saga)?;
            let Some(i) = started(&saga).first().copied() else { break };
            model.ended(i, saga.steps[i].status == Status::Undoing, Some(Outcome::Completed));
            report(&mut saga, i, Outcome::Completed, S(0));
            model.began(&saga)?;
        }
        prop_assert!(!saga.is_open(), "{:?}", saga);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 0..400usize, at in 0..400usize) {
        let _ = Progress::decode(&Bytes::from(bytes));
        let mut record = start(&[(UNDOABLE, 0), (PIVOT, 1)]).encode().to_vec();
        let at = at % record.len();
        record[at] = cut as u8;
        let _ = Progress::decode(&Bytes::from(record));
    }

    /// A record that something else has changed, and that can be read, does not stop its reader.
    #[test]
    fn no_operation_panics_on_a_damaged_record(
        kinds in plans(),
        ops in prop::collection::vec(ops(), 0..20),
        damages in prop::collection::vec((any::<prop::sample::Index>(), 0..DAMAGES.len()), 1..5),
    ) {
        let mut saga = start(&kinds);
        let operate = |saga: &mut Progress, op: Op| match op {
            Op::Report(at, kind, delay) => {
                if let Some(i) = started(saga).get(at % 4).copied() {
                    report(saga, i, kind, S(delay));
                }
            }
            Op::Claim => saga.claim(ME, 0, LIMITS),
            Op::Due => saga.begin_waiting(|_| true, LIMITS),
            Op::Cancel => drop(saga.cancel("cancelled")),
            Op::Wake => saga.wake(),
        };
        for op in &ops {
            operate(&mut saga, op.clone());
        }
        let record = String::from_utf8(saga.encode().to_vec()).unwrap();
        let mut words: Vec<&str> = record.split_inclusive([' ', '\n']).collect();
        for (at, damage) in damages {
            let word = at.get_mut(&mut words);
            let end = word.len() - word.trim_end().len();
            // A word of the same kind as the others, with the space or the end of the line behind it.
            *word = DAMAGES[damage][usize::from(end > 0 && word.ends_with('\n'))];
        }
        let Ok(mut saga) = Progress::decode(&Bytes::from(words.concat())) else { return Ok(()) };
        for op in ops {
            operate(&mut saga, op);
            let _ = (saga.longest_wait(), saga.shortest_wait(), saga.stuck_step().is_some());
            prop_assert_eq!(saga.is_stuck(), saga.stuck_step().is_some());
        }
        saga.clone().strand("given up");
        saga.clone().skip("0", "done");
        saga.retry();
        let _ = saga.encode_within(10);
    }
}

/// Words of a record, each before a space and before the end of a line.
const DAMAGES: [[&str; 2]; 12] = [
    ["0 ", "0\n"],
    ["255 ", "255\n"],
    ["4294967295 ", "4294967295\n"],
    ["18446744073709551615 ", "18446744073709551615\n"],
    ["ffffffffffffffff ", "ffffffffffffffff\n"],
    ["started ", "forward\n"],
    ["undoing ", "compensating\n"],
    ["undo-failed ", "stuck-compensating\n"],
    ["failed ", "stuck-forward\n"],
    ["waiting ", "compensated\n"],
    ["done ", "completed\n"],
    ["-pcfuw ", "woken\n"],
];
