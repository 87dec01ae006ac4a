//! The tables at the head of `state.rs`, read as they stand there, against the machine.
use std::collections::BTreeMap;

use super::{
    super::state::{Direction, StepProgress},
    *,
};

const STATUSES: [Status; 10] = [
    Status::Ready,
    Status::Started,
    Status::Waiting,
    Status::Done,
    Status::Failed,
    Status::Undoing,
    Status::UndoWaiting,
    Status::Undone,
    Status::UndoFailed,
    Status::Skipped,
];

const OUTCOMES: [Outcome; 7] = [
    Outcome::Completed,
    Outcome::Failed,
    Outcome::Abandoned,
    Outcome::Unknown,
    Outcome::NotSent,
    Outcome::Refused,
    Outcome::Pending,
];

const HOLDS: Limits = Limits { holds: true, ..LIMITS };

/// Reads one table: the words of each cell by the names of its row and its column.
fn table(nth: usize) -> BTreeMap<(String, String), Vec<String>> {
    let lines: Vec<_> = include_str!("../state.rs").lines().map_while(|line| line.strip_prefix("//!")).collect();
    let tables: Vec<_> = lines.split(|line| !line.starts_with(" |")).filter(|table| !table.is_empty()).collect();
    let cells =
        |line: &str| -> Vec<String> { line.trim().trim_matches('|').split('|').map(|c| c.trim().into()).collect() };
    let (head, rows) = (cells(tables[nth][0]), &tables[nth][2..]);
    let row = |line: &&str| {
        let row = cells(line);
        assert_eq!(row.len(), head.len(), "{line}");
        let words = |cell: &String| cell.split(' ').map(str::to_owned).collect();
        let named: Vec<_> =
            head.iter().zip(&row).skip(1).map(|(c, cell)| ((row[0].clone(), c.clone()), words(cell))).collect();
        named
    };
    rows.iter().flat_map(row).collect()
}

/// Returns a saga of one step of this status, which had one attempt in each direction.
fn saga(status: Status, phase: Phase) -> Progress {
    let mut saga = start(&[(UNDOABLE, 0)]);
    saga.phase = phase;
    let step = &mut saga.steps[0];
    (step.status, step.attempts, step.undo_attempts) = (status, 1, 1);
    saga
}

/// Returns the words by which the table describes a change of a step.
fn change(before: &Progress, after: &Progress) -> Vec<String> {
    let (before, after): (&StepProgress, _) = (&before.steps[0], &after.steps[0]);
    let mut words = vec![if before == after { "-".to_owned() } else { format!("{:?}", after.status) }];
    let made = |step: &StepProgress| step.attempts + step.undo_attempts;
    let flags = [
        ("unknown", after.is_unknown && !before.is_unknown),
        ("uncounted", made(after) < made(before) && after.status.waits()),
        ("pending", after.is_pending && !before.is_pending),
    ];
    words.extend(flags.into_iter().filter(|(_, is_set)| *is_set).map(|(word, _)| word.to_owned()));
    words
}

fn phase_of(status: Status) -> Phase {
    if status.direction().undoes() { Phase::Compensating } else { Phase::Forward }
}

#[test]
fn each_pair_of_a_status_and_an_outcome_does_what_the_table_says() {
    let table = table(0);
    assert_eq!(table.len(), STATUSES.len() * OUTCOMES.len());
    for (status, kind) in STATUSES.into_iter().flat_map(|status| OUTCOMES.map(|kind| (status, kind))) {
        let before = saga(status, phase_of(status));
        let reported = |mut saga: Progress, delay, limits| {
            saga.report(0, &Report { kind, reason: String::new(), delay }, limits);
            saga
        };
        let after = reported(before.clone(), S(60), HOLDS);
        let cell = &table[&(format!("{status:?}"), kind.as_str().to_owned())];
        assert_eq!(&change(&before, &after), cell, "{status:?}, {kind:?}");
        if cell[0] == "-" {
            assert_eq!(after, before, "{status:?}, {kind:?}: the saga has changed");
        }
        if !after.steps[0].status.waits() || status.waits() {
            continue;
        }
        // The rules below the table.
        let (direction, counts) = (status.direction(), !cell.contains(&"uncounted".to_owned()));
        assert_eq!(reported(before.clone(), S(1), LIMITS).steps[0].status, status, "after a short delay: {kind:?}");
        let mut last = before.clone();
        *last.steps[0].count(direction) = if direction.undoes() { HOLDS.undo_attempts } else { HOLDS.attempts };
        let failed = |saga: Progress| saga.steps[0].status == direction.failed();
        assert_eq!(failed(reported(last, S(60), HOLDS)), counts, "after the last attempt: {status:?}, {kind:?}");
        let mut stopped = before;
        stopped.cancelled = Some("no".to_owned());
        let is_action = direction == Direction::Do;
        assert_eq!(failed(reported(stopped, S(60), HOLDS)), is_action, "of a saga that stops: {status:?}, {kind:?}");
    }
}

#[test]
fn each_pair_of_a_status_and_another_cause_does_what_the_table_says() {
    let table = table(1);
    type Cause = (&'static str, fn(Status) -> Phase, fn(&mut Progress));
    let stuck: fn(Status) -> Phase =
        |status| if status.direction().undoes() { Phase::StuckCompensating } else { Phase::StuckForward };
    let back: fn(Status) -> Phase =
        |status| if status == Status::Done { Phase::Compensating } else { phase_of(status) };
    let causes: [Cause; 9] = [
        ("forward", phase_of, |saga| saga.begin_waiting(|_| false, LIMITS)),
        ("back", |_| Phase::Compensating, |saga| saga.begin_waiting(|_| false, LIMITS)),
        ("due", phase_of, |saga| saga.begin_waiting(|_| true, HOLDS)),
        ("takeover", phase_of, |saga| saga.claim(ME, 0, HOLDS)),
        ("stop", phase_of, |saga| {
            saga.cancelled = Some("no".to_owned());
            saga.begin_waiting(|_| false, HOLDS);
        }),
        ("retry", stuck, |saga| _ = saga.retry()),
        ("skip", stuck, |saga| _ = saga.skip("step-0", "manually")),
        ("undo", stuck, |saga| _ = saga.undo("step-0", "manually")),
        ("strand", back, |saga| saga.strand("nobody")),
    ];
    assert_eq!(table.len(), STATUSES.len() * causes.len());
    let mut wrong = Vec::new();
    for (status, (name, phase, cause)) in STATUSES.into_iter().flat_map(|status| causes.map(|cause| (status, cause))) {
        let cell = &table[&(format!("{status:?}"), name.to_owned())];
        for is_unknown in [false, true] {
            let mut before = saga(status, phase(status));
            before.steps[0].is_unknown = is_unknown;
            let mut after = before.clone();
            cause(&mut after);
            let wanted = match &**cell {
                [status, condition, _] if condition == "if" => vec![if is_unknown { status } else { "-" }],
                // A step that was unknown before does not become it.
                cell => cell.iter().map(String::as_str).filter(|word| !is_unknown || *word != "unknown").collect(),
            };
            let seen = change(&before, &after);
            if seen != wanted {
                wrong.push(format!("{status:?}, {name}, unknown: {is_unknown}: {seen:?}, not {wanted:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
