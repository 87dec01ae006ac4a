//! The machine against examples, and the stored form.
mod model;
mod table;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;

use super::{
    StepOutcomeKind as Outcome,
    state::{Kind, Limits, Owner, Phase, PlannedStep, Progress, Report, Status},
};

const LIMITS: Limits = Limits { attempts: 3, undo_attempts: 4, holds: false };
const ME: Owner = Owner { executor: 7, run: 1 };
const S: fn(u64) -> Duration = Duration::from_secs;

const UNDOABLE: Kind = Kind { is_pivot: false, compensates: true, first: false };
const PIVOT: Kind = Kind { is_pivot: true, compensates: false, first: false };
const PLAIN: Kind = Kind { is_pivot: false, compensates: false, first: false };

fn plan(steps: &[(Kind, u8)]) -> Vec<PlannedStep> {
    let step = |(i, (kind, group)): (usize, &(Kind, u8))| PlannedStep {
        name: format!("step-{i}").into(),
        kind: *kind,
        group: *group,
    };
    steps.iter().enumerate().map(step).collect()
}

fn start(steps: &[(Kind, u8)]) -> Progress {
    Progress::start(&plan(steps), 1, ME, Bytes::from_static(b"{}"), LIMITS)
}

fn report(saga: &mut Progress, i: usize, kind: Outcome, delay: Duration) {
    assert!(saga.started().any(|started| started == i), "step {i} is not under way: {saga:?}");
    let reason = if kind == Outcome::Completed { "" } else { "no" };
    saga.report(i, &Report { kind, reason: reason.to_owned(), delay }, LIMITS);
}

fn started(saga: &Progress) -> Vec<usize> {
    saga.started().collect()
}

/// Reports the outcome of each attempt that is under way, until the phase changes or nothing runs.
fn all(saga: &mut Progress, kind: Outcome) {
    let phase = saga.phase;
    while saga.phase == phase {
        let Some(i) = started(saga).first().copied() else { return };
        report(saga, i, kind, S(0));
    }
}

#[test]
fn steps_run_in_order_and_a_group_together() {
    let mut saga = start(&[(UNDOABLE, 0), (UNDOABLE, 1), (UNDOABLE, 1), (PIVOT, 2), (PLAIN, 3)]);
    for (under_way, next) in [(vec![0], 0), (vec![1, 2], 2), (vec![1], 1), (vec![3], 3), (vec![4], 4)] {
        assert_eq!(started(&saga), under_way);
        report(&mut saga, next, Outcome::Completed, S(0));
    }
    assert_eq!((saga.phase, started(&saga)), (Phase::Completed, vec![]));
}

#[test]
fn compensation_runs_in_reverse_with_groups_together_and_marked_steps_first() {
    let first = Kind { first: true, ..UNDOABLE };
    let mut saga = start(&[(UNDOABLE, 0), (first, 1), (UNDOABLE, 2), (UNDOABLE, 2), (PLAIN, 3), (UNDOABLE, 4)]);
    for _ in 0..5 {
        let next = saga.started().next().unwrap();
        report(&mut saga, next, Outcome::Completed, S(0));
    }
    report(&mut saga, 5, Outcome::Failed, S(0));
    assert_eq!((saga.phase, saga.failed_step, saga.reason.as_str()), (Phase::Compensating, Some(5), "no"));
    for (under_way, next) in [(vec![1], 1), (vec![2, 3], 2), (vec![3], 3), (vec![0], 0)] {
        assert_eq!(started(&saga), under_way);
        report(&mut saga, next, Outcome::Completed, S(0));
    }
    assert_eq!(saga.phase, Phase::Compensated);
}

#[test]
fn an_unknown_attempt_is_compensated_although_a_later_one_failed_without_effect() {
    let mut saga = start(&[(UNDOABLE, 0)]);
    report(&mut saga, 0, Outcome::Unknown, S(0));
    report(&mut saga, 0, Outcome::Failed, S(0));
    assert_eq!((saga.phase, started(&saga)), (Phase::Compensating, vec![0]));

    let mut saga = start(&[(UNDOABLE, 0)]);
    report(&mut saga, 0, Outcome::NotSent, S(0));
    report(&mut saga, 0, Outcome::Failed, S(0));
    assert_eq!(saga.phase, Phase::Compensated);
}

#[test]
fn work_that_was_accepted_is_compensated_if_it_is_not_waited_for_and_not_if_it_failed() {
    let mut saga = start(&[(UNDOABLE, 0)]);
    report(&mut saga, 0, Outcome::Pending, S(60));
    assert!(saga.cancel("changed my mind"));
    saga.begin_waiting(|_| false, LIMITS);
    assert_eq!((saga.phase, started(&saga)), (Phase::Compensating, vec![0]));

    let mut saga = start(&[(UNDOABLE, 0)]);
    report(&mut saga, 0, Outcome::Pending, S(1));
    report(&mut saga, 0, Outcome::Failed, S(0));
    assert_eq!(saga.phase, Phase::Compensated);
}

#[test]
fn refused_and_pending_attempts_do_not_count() {
    let mut saga = start(&[(UNDOABLE, 0)]);
    for kind in [Outcome::Refused, Outcome::Pending].repeat(10) {
        report(&mut saga, 0, kind, S(1));
        assert_eq!((saga.phase, saga.steps[0].attempts), (Phase::Forward, 1));
    }
}

#[test]
fn a_step_that_kills_its_process_each_time_is_compensated_instead_of_started_again() {
    let mut saga = start(&[(UNDOABLE, 0), (PIVOT, 1)]);
    for epoch in 2..=3 {
        saga.claim(ME, 0, LIMITS);
        assert_eq!((saga.epoch, started(&saga), saga.steps[0].attempts), (epoch, vec![0], epoch as u32));
    }
    saga.claim(ME, 0, LIMITS);
    assert_eq!((saga.phase, started(&saga)), (Phase::Compensating, vec![0]));
    assert_eq!(saga.steps[0].status, Status::Undoing);
    for _ in 0..LIMITS.undo_attempts {
        assert_eq!(saga.phase, Phase::Compensating);
        saga.claim(ME, 0, LIMITS);
    }
    assert_eq!(saga.phase, Phase::StuckCompensating);
}

#[test]
fn a_pivot_that_fails_without_unknown_attempts_leads_back_and_any_other_is_stuck() {
    let pivot_after = |outcomes: &[Outcome]| {
        let mut saga = start(&[(UNDOABLE, 0), (PIVOT, 1)]);
        report(&mut saga, 0, Outcome::Completed, S(0));
        outcomes.iter().for_each(|kind| report(&mut saga, 1, *kind, S(0)));
        saga.phase
    };
    use Outcome::{Abandoned, Failed, NotSent, Pending, Unknown};
    for back in [&[Failed][..], &[NotSent, Failed], &[Pending, Failed], &[NotSent, NotSent, NotSent]] {
        assert_eq!(pivot_after(back), Phase::Compensating, "{back:?}");
    }
    for stuck in
        [&[Unknown, Failed][..], &[Abandoned], &[Unknown, NotSent, NotSent], &[Pending, NotSent, NotSent, NotSent]]
    {
        assert_eq!(pivot_after(stuck), Phase::StuckForward, "{stuck:?}");
    }
}

#[test]
fn a_group_with_a_failed_step_waits_for_the_attempts_under_way_and_begins_no_other() {
    let mut saga = start(&[(UNDOABLE, 0), (UNDOABLE, 0), (UNDOABLE, 0), (UNDOABLE, 0)]);
    report(&mut saga, 0, Outcome::NotSent, S(60));
    report(&mut saga, 1, Outcome::Failed, S(0));
    assert_eq!((saga.phase, started(&saga)), (Phase::Forward, vec![2, 3]));
    assert_eq!(saga.steps[0].status, Status::Failed);
    report(&mut saga, 2, Outcome::Unknown, S(0));
    assert_eq!((saga.phase, started(&saga)), (Phase::Forward, vec![3]));
    report(&mut saga, 3, Outcome::Completed, S(0));
    assert_eq!((saga.phase, started(&saga)), (Phase::Compensating, vec![2, 3]));
}

#[test]
fn a_stuck_step_is_retried_with_all_its_attempts_or_skipped() {
    let stuck = || {
        let mut saga = start(&[(PIVOT, 0), (PLAIN, 1), (PLAIN, 1), (PLAIN, 2)]);
        report(&mut saga, 0, Outcome::Completed, S(0));
        report(&mut saga, 1, Outcome::Failed, S(0));
        assert_eq!((saga.phase, started(&saga)), (Phase::Forward, vec![2]), "the others are finished first");
        report(&mut saga, 2, Outcome::Completed, S(0));
        assert_eq!(
            (saga.phase, saga.stuck_step().map(|step| &*step.planned.name)),
            (Phase::StuckForward, Some("step-1"))
        );
        saga
    };
    let mut saga = stuck();
    assert!(saga.retry() && !saga.retry());
    saga.claim(ME, 0, LIMITS);
    assert_eq!((started(&saga), saga.steps[1].attempts), (vec![1], 1));
    all(&mut saga, Outcome::Completed);
    assert_eq!(saga.phase, Phase::Completed);

    let mut saga = stuck();
    assert!(!saga.skip("step-2", "by hand") && !saga.skip("no step", "by hand"));
    assert!(saga.skip("step-1", "by hand"));
    saga.claim(ME, 0, LIMITS);
    assert_eq!((started(&saga), saga.steps[1].note.as_str()), (vec![3], "by hand"));
}

#[test]
fn a_pivot_that_took_no_effect_after_all_is_undone_and_the_rest_compensated() {
    let mut saga = start(&[(UNDOABLE, 0), (PIVOT, 1), (PLAIN, 2)]);
    report(&mut saga, 0, Outcome::Completed, S(0));
    report(&mut saga, 1, Outcome::Unknown, S(0));
    report(&mut saga, 1, Outcome::Failed, S(0));
    assert_eq!(saga.phase, Phase::StuckForward);
    assert!(!saga.clone().undo("step-0", "-") && !saga.clone().undo("no step", "-") && !saga.clone().cancel("-"));
    assert!(saga.undo("step-1", "the bank has no payment") && !saga.clone().undo("step-1", "-"));
    saga.claim(ME, 0, LIMITS);
    assert_eq!((saga.phase, started(&saga), saga.failed_step), (Phase::Compensating, vec![0], Some(1)));
    assert_eq!((saga.steps[1].note.as_str(), saga.reason.as_str()), ("the bank has no payment", "no"));
    all(&mut saga, Outcome::Completed);
    assert_eq!(saga.phase, Phase::Compensated);

    // Past a pivot that took effect nothing is undone.
    let mut saga = start(&[(UNDOABLE, 0), (PIVOT, 1), (PLAIN, 2)]);
    report(&mut saga, 0, Outcome::Completed, S(0));
    report(&mut saga, 1, Outcome::Completed, S(0));
    report(&mut saga, 2, Outcome::Failed, S(0));
    assert!(saga.phase == Phase::StuckForward && !saga.undo("step-2", "-"));
}

#[test]
fn a_cancelled_saga_goes_back_unless_its_pivot_may_have_taken_effect() {
    let mut saga = start(&[(UNDOABLE, 0), (UNDOABLE, 1), (PIVOT, 2), (PLAIN, 3)]);
    report(&mut saga, 0, Outcome::Completed, S(0));
    let mut early = saga.clone();
    assert!(early.cancel("no money") && early.cancel("again"));
    report(&mut early, 1, Outcome::Completed, S(0));
    assert_eq!((early.phase, early.reason.as_str(), early.failed_step), (Phase::Compensating, "no money", None));

    report(&mut saga, 1, Outcome::Completed, S(0));
    assert!(!saga.clone().cancel("the pivot is under way"));
    let mut waits = saga.clone();
    report(&mut waits, 2, Outcome::Refused, S(60));
    assert!(waits.cancel("the bank is closed"));
    waits.begin_waiting(|_| false, LIMITS);
    assert_eq!((waits.phase, started(&waits)), (Phase::Compensating, vec![1]));
    report(&mut saga, 2, Outcome::Pending, S(60));
    assert!(!saga.cancel("the bank has it"));

    let mut ended = start(&[(UNDOABLE, 0)]);
    report(&mut ended, 0, Outcome::Completed, S(0));
    assert_eq!(ended.phase, Phase::Completed);
    assert!(ended.cancel("afterwards"));
    ended.claim(ME, 0, LIMITS);
    assert_eq!((ended.phase, started(&ended)), (Phase::Compensating, vec![0]));
}

#[test]
fn a_wake_ends_the_delay_of_now_or_skips_the_next_one() {
    let mut saga = start(&[(UNDOABLE, 0)]);
    saga.wake();
    report(&mut saga, 0, Outcome::Pending, S(3600));
    assert_eq!((started(&saga), saga.steps[0].wait, saga.is_woken), (vec![0], S(0), false));
    report(&mut saga, 0, Outcome::Pending, S(3600));
    assert_eq!((started(&saga), saga.shortest_wait()), (vec![], S(3600)));
    saga.wake();
    assert_eq!((saga.shortest_wait(), saga.is_woken), (S(0), false));
}

#[test]
fn an_execution_that_leaves_begins_no_step() {
    let mut saga = start(&[(UNDOABLE, 0), (UNDOABLE, 1)]);
    let holds = Limits { holds: true, ..LIMITS };
    saga.report(0, &Report { kind: Outcome::Completed, reason: String::new(), delay: S(0) }, holds);
    assert_eq!((saga.phase, started(&saga), saga.steps[1].attempts), (Phase::Forward, vec![], 0));
    saga.claim(ME, 0, LIMITS);
    assert_eq!((started(&saga), saga.steps[1].attempts, saga.steps[1].is_unknown), (vec![1], 1, false));
    saga.report(1, &Report { kind: Outcome::Failed, reason: String::new(), delay: S(0) }, holds);
    assert_eq!((saga.phase, started(&saga)), (Phase::Compensating, vec![]));
    saga.claim(ME, 0, LIMITS);
    assert_eq!(started(&saga), vec![0]);
}

#[test]
fn a_record_of_another_kind_or_a_newer_release_is_refused_with_the_reason() {
    let mut saga = start(&[(UNDOABLE, 0)]);
    let texts = |texts: [(&str, &str); 2]| BTreeMap::from(texts.map(|(name, text)| (name.to_owned(), text.to_owned())));
    saga.hosted.origin.texts = texts([("reply-to", "web-1\nstate 2"), ("empty", "")]);
    saga.hosted.origin.headers = Arc::new(texts([("traceparent", "00-1-1-01"), ("", "\nvalue 1\n")]));
    let record = saga.encode();
    assert_eq!(Progress::decode(&record).unwrap(), saga);
    assert!(record.len() <= saga.size_without_texts());
    let refused = |text: &str| Progress::decode(&Bytes::from(text.to_owned())).unwrap_err();
    assert_eq!(refused("saga 2\nanything"), "the record was written by a newer release");
    assert_eq!(refused("lease 1\n"), "the record is not one of a saga");
    for end in 8..record.len() {
        assert_eq!(Progress::decode(&record.slice(..end)).unwrap_err(), "the record is damaged", "{end}");
    }
    let value = saga.encode().windows(6).position(|bytes| bytes == b"value ").unwrap();
    let mut damaged = saga.encode().to_vec();
    damaged[value] = b'x';
    assert_eq!(Progress::decode(&damaged.into()).unwrap_err(), "the record is damaged");
}

/// Records of schedulers from before submissions had headers.
#[test]
fn a_record_without_headers_is_read_and_written_as_before() {
    let record =
        "saga 1\nowner a b c\nat 1 1 d forward\norigin reply-to 5\nweb-1\nstep 0 started 1 0 -pc 0 charge\nstate 2\n{}";
    let saga = Progress::decode(&Bytes::from(record)).unwrap();
    assert_eq!((saga.hosted.origin.texts["reply-to"].as_str(), saga.hosted.origin.headers.len()), ("web-1", 0));
    assert_eq!(saga.encode(), record);
}
