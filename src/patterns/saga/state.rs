//! The progress of a saga as a pure machine: no time, no store, no async.
//!
//! # Transitions of a step
//!
//! The outcome of an attempt changes a step with an attempt under way, and no other:
//!
//! | status | completed | failed | abandoned | unknown | not_sent | refused | pending |
//! |---|---|---|---|---|---|---|---|
//! | Ready | - | - | - | - | - | - | - |
//! | Started | Done | Failed | Failed unknown | Waiting unknown | Waiting | Waiting uncounted | Waiting uncounted pending |
//! | Waiting | - | - | - | - | - | - | - |
//! | Done | - | - | - | - | - | - | - |
//! | Failed | - | - | - | - | - | - | - |
//! | Undoing | Undone | UndoFailed | UndoFailed | UndoWaiting | UndoWaiting | UndoWaiting uncounted | UndoWaiting uncounted |
//! | UndoWaiting | - | - | - | - | - | - | - |
//! | Undone | - | - | - | - | - | - | - |
//! | UndoFailed | - | - | - | - | - | - | - |
//! | Skipped | - | - | - | - | - | - | - |
//!
//! - *unknown*: the action may have had an effect, and is compensated if the saga fails.
//!   *uncounted*: it was no attempt. *pending*: the action was accepted and is not finished.
//! - A step that would wait fails instead if its counted attempts are used up. Its action also
//!   fails if the saga is about to be compensated.
//! - A step that would wait for at most [`SHORT`] begins its next attempt in the same change.
//!
//! Other causes, each in the phase in which the status matters:
//!
//! | status | forward | back | due | takeover | stop | retry | skip | undo | strand |
//! |---|---|---|---|---|---|---|---|---|---|
//! | Ready | Started | Undoing if unknown | - | - | - | - | - | - | Failed |
//! | Started | - | - | - | Started unknown | - | - | - | - | Failed unknown |
//! | Waiting | - | - | Started | Started | Failed | - | - | - | Failed |
//! | Done | - | Undoing | - | - | - | - | - | - | UndoFailed |
//! | Failed | Undoing if unknown | Undoing if unknown | - | - | - | Waiting uncounted | Skipped | Undone | - |
//! | Undoing | - | - | - | Undoing | - | - | - | - | UndoFailed |
//! | UndoWaiting | - | - | Undoing | Undoing | - | - | - | - | UndoFailed |
//! | Undone | - | - | - | - | - | - | - | - | - |
//! | UndoFailed | - | - | - | - | - | UndoWaiting uncounted | Skipped | - | - |
//! | Skipped | - | - | - | - | - | - | - | - | - |
//!
//! - *forward* and *back*: the turn of the step's group comes, as the saga goes forward or is
//!   compensated. *due*: its delay is over.
//! - *takeover*: another execution claims the saga; the attempt that was under way is lost, and
//!   fails the step if it was the last. *stop*: the saga is about to be compensated.
//! - *retry*, *skip* and *undo*: an operator repairs a saga that is stuck at this step; a retry
//!   counts none of the attempts before it. *strand*: a supervisor gives the saga up.
//!
//! Each attempt is counted in the change that begins it, so that an attempt that kills its process
//! is counted, too. After each change [`started`](Progress::started) names the attempts that are
//! under way. `tests/table.rs` reads both tables and drives the machine through each pair.
use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;

use super::StepOutcomeKind;

/// A step of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PlannedStep {
    pub(super) name: Arc<str>,
    pub(super) kind: Kind,
    /// Steps with the same number run together.
    pub(super) group: u8,
}

/// The kind of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Kind {
    pub(super) is_pivot: bool,
    /// The step has a compensation.
    pub(super) compensates: bool,
    /// It is compensated before the others.
    pub(super) first: bool,
}

/// The status of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    /// Not begun.
    Ready,
    /// An attempt of the action is under way.
    Started,
    /// The action is tried again after a delay.
    Waiting,
    /// The action took effect.
    Done,
    /// The action is not tried again.
    Failed,
    /// An attempt of the compensation is under way.
    Undoing,
    /// The compensation is tried again after a delay.
    UndoWaiting,
    /// The compensation took effect.
    Undone,
    /// The compensation is not tried again.
    UndoFailed,
    /// An operator did manually what the step or its compensation was to do.
    Skipped,
}

impl Status {
    pub(super) const fn is_under_way(self) -> bool {
        matches!(self, Self::Started | Self::Undoing)
    }

    pub(super) const fn waits(self) -> bool {
        matches!(self, Self::Waiting | Self::UndoWaiting)
    }

    pub(super) const fn direction(self) -> Direction {
        match self {
            Self::Undoing | Self::UndoWaiting | Self::Undone | Self::UndoFailed => Direction::Undo,
            _ => Direction::Do,
        }
    }
}

/// The direction of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// An attempt of the action.
    Do,
    /// An attempt of the compensation.
    Undo,
}

impl Direction {
    const fn started(self) -> Status {
        if self.undoes() { Status::Undoing } else { Status::Started }
    }

    const fn waiting(self) -> Status {
        if self.undoes() { Status::UndoWaiting } else { Status::Waiting }
    }

    const fn done(self) -> Status {
        if self.undoes() { Status::Undone } else { Status::Done }
    }

    pub(super) const fn failed(self) -> Status {
        if self.undoes() { Status::UndoFailed } else { Status::Failed }
    }

    pub(super) const fn undoes(self) -> bool {
        matches!(self, Self::Undo)
    }
}

/// A step of a saga.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StepProgress {
    pub(super) planned: PlannedStep,
    pub(super) status: Status,
    /// Attempts of the action, the current one included.
    pub(super) attempts: u32,
    /// Attempts of the compensation, the current one included.
    pub(super) undo_attempts: u32,
    /// The outcome of an attempt is unknown: the action may have had an effect.
    pub(super) is_unknown: bool,
    /// The action was accepted and is not finished.
    pub(super) is_pending: bool,
    /// Delay before the attempt that is under way, or that the step waits for.
    pub(super) wait: Duration,
    /// The last error, or the note of an operator.
    pub(super) note: String,
}

/// The phase of a saga.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Forward,
    Compensating,
    Completed,
    Compensated,
    /// An action failed where the saga cannot be compensated.
    StuckForward,
    /// A compensation failed.
    StuckCompensating,
}

/// The execution that owns a saga.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner {
    /// The number of the component.
    pub(super) executor: u64,
    /// The number of the execution within the component.
    pub(super) run: u64,
}

/// The part of a record that belongs to a component which runs sagas on behalf of requests. The
/// machine does not read it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Hosted {
    /// Number of the request on whose behalf the owner runs; 0 if there is none.
    pub(super) request: u64,
    /// Number of times that a supervisor found no executor.
    pub(super) failures: u32,
    /// The request that started the saga.
    pub(super) origin: Origin,
}

/// The parts of a request that the saga keeps.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Origin {
    /// Texts for the component that started the saga, by name: words without spaces.
    pub(crate) texts: BTreeMap<String, String>,
    /// Headers for the steps.
    pub(crate) headers: Arc<BTreeMap<String, String>>,
}

/// The progress of one saga.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Progress {
    /// Hash of the initial state.
    pub(super) input: u64,
    /// `None` if the execution has released the saga.
    pub(super) owner: Option<Owner>,
    pub(super) epoch: u64,
    /// Number of writes by executions. Signals of others do not count.
    pub(super) writes: u64,
    /// The reason of a cancellation.
    pub(super) cancelled: Option<String>,
    /// The next delay is skipped.
    pub(super) is_woken: bool,
    pub(super) phase: Phase,
    /// The step that failed, and the reason of the compensation.
    pub(super) failed_step: Option<u8>,
    pub(super) reason: String,
    pub(super) hosted: Hosted,
    pub(super) steps: Vec<StepProgress>,
    pub(super) state: Bytes,
}

/// Limits of attempts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) attempts: u32,
    pub(super) undo_attempts: u32,
    /// No step is begun: the execution is about to release the saga.
    pub(super) holds: bool,
}

/// The result of an attempt.
#[derive(Debug, Clone)]
pub(super) struct Report {
    pub(super) kind: StepOutcomeKind,
    pub(super) reason: String,
    /// Delay before the next attempt, if there is one.
    pub(super) delay: Duration,
}

/// Longest delay after which the next attempt begins in the same write: the executor sleeps and
/// needs no second one. Such an attempt counts although its executor may die before it begins.
pub(super) const SHORT: Duration = Duration::from_secs(5);

/// Longest error text in a record, in bytes.
const LONGEST_NOTE: usize = 512;

const LOST: &str = "the process ended during the attempt";

impl Progress {
    /// Creates a saga whose first steps are started.
    pub(super) fn start(plan: &[PlannedStep], input: u64, owner: Owner, state: Bytes, limits: Limits) -> Self {
        let mut new = Self::ready(plan, input, owner, state);
        new.settle(limits);
        new
    }

    /// Creates a saga that was cancelled before it began: it has ended.
    pub(super) fn cancelled(
        plan: &[PlannedStep],
        input: u64,
        owner: Owner,
        state: Bytes,
        reason: &str,
        limits: Limits,
    ) -> Self {
        let mut new = Self::ready(plan, input, owner, state);
        new.cancelled = Some(shortened(reason));
        new.settle(limits);
        new
    }

    fn ready(plan: &[PlannedStep], input: u64, owner: Owner, state: Bytes) -> Self {
        let ready = |planned: &PlannedStep| StepProgress {
            planned: planned.clone(),
            status: Status::Ready,
            attempts: 0,
            undo_attempts: 0,
            is_unknown: false,
            is_pending: false,
            wait: Duration::ZERO,
            note: String::new(),
        };
        Self {
            input,
            owner: Some(owner),
            epoch: 1,
            writes: 1,
            cancelled: None,
            is_woken: false,
            phase: Phase::Forward,
            failed_step: None,
            reason: String::new(),
            hosted: Hosted::default(),
            steps: plan.iter().map(ready).collect(),
            state,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Forward | Phase::Compensating)
    }

    pub(super) fn is_stuck(&self) -> bool {
        matches!(self.phase, Phase::StuckForward | Phase::StuckCompensating)
    }

    /// Returns the steps with an attempt under way.
    pub(super) fn started(&self) -> impl Iterator<Item = usize> {
        let steps = self.steps.iter().enumerate();
        steps.filter(|(_, step)| step.status.is_under_way()).map(|(i, _)| i)
    }

    /// Returns the steps that wait for their next attempt.
    pub(super) fn waiting(&self) -> impl Iterator<Item = usize> {
        let steps = self.steps.iter().enumerate();
        steps.filter(|(_, step)| step.status.waits()).map(|(i, _)| i)
    }

    /// Returns the longest delay that explains a record without changes.
    pub(super) fn longest_wait(&self) -> Duration {
        self.started().chain(self.waiting()).map(|i| self.steps[i].wait).max().unwrap_or_default()
    }

    /// Returns the time until the next waiting step is due.
    pub(super) fn shortest_wait(&self) -> Duration {
        self.waiting().map(|i| self.steps[i].wait).min().unwrap_or_default()
    }

    /// Records the result of an attempt that was under way.
    pub(super) fn report(&mut self, i: usize, report: &Report, limits: Limits) {
        let is_stopping = self.is_stopping();
        let Some(step) = self.steps.get_mut(i).filter(|step| step.status.is_under_way()) else { return };
        let direction = step.status.direction();
        step.note = shortened(&report.reason);
        step.wait = Duration::ZERO;
        use StepOutcomeKind as Kind;
        if direction == Direction::Do {
            step.is_unknown |= matches!(report.kind, Kind::Abandoned | Kind::Unknown);
            step.is_pending |= report.kind == Kind::Pending;
        }
        match report.kind {
            Kind::Completed | Kind::Failed | Kind::Abandoned => {
                step.status = if report.kind == Kind::Completed { direction.done() } else { direction.failed() };
                // A definite answer also ends an action that was accepted before.
                step.is_pending = false;
            }
            Kind::Unknown | Kind::NotSent | Kind::Refused | Kind::Pending => {
                let counts = matches!(report.kind, Kind::Unknown | Kind::NotSent);
                let count = step.count(direction);
                *count = count.saturating_sub(u32::from(!counts));
                let is_last = counts && *count >= limits.of(direction);
                if is_last || is_stopping && direction == Direction::Do {
                    step.give_up(direction);
                } else {
                    step.schedule(direction, report.delay, &mut self.is_woken, limits.holds);
                }
            }
        }
        self.settle(limits);
    }

    /// Begins the next attempt of steps that have waited.
    pub(super) fn begin_waiting(&mut self, due: impl Fn(usize) -> bool, limits: Limits) {
        let is_stopping = self.is_stopping();
        for (i, step) in self.steps.iter_mut().enumerate() {
            match step.status {
                Status::Waiting if is_stopping => step.give_up(Direction::Do),
                status if status.waits() && due(i) => step.begin(status.direction()),
                _ => {}
            }
        }
        self.settle(limits);
    }

    /// Takes the saga over: attempts that were under way have an unknown outcome, and the next
    /// ones begin. It is the same change, so that a claim costs no write of its own.
    pub(super) fn claim(&mut self, owner: Owner, request: u64, limits: Limits) {
        self.owner = Some(owner);
        self.hosted.request = request;
        self.epoch = self.epoch.saturating_add(1);
        let is_stopping = self.is_stopping();
        for step in &mut self.steps {
            let direction = step.status.direction();
            let may_begin = direction == Direction::Undo || !is_stopping;
            if step.status.is_under_way() {
                step.is_unknown |= direction == Direction::Do;
                if may_begin && *step.count(direction) < limits.of(direction) {
                    step.begin(direction);
                } else {
                    step.note = LOST.to_owned();
                    step.give_up(direction);
                }
            } else if step.status.waits() && may_begin {
                step.begin(direction);
            }
        }
        self.settle(limits);
    }

    /// Releases the saga: no execution owns it.
    pub(super) fn release(&mut self) {
        (self.owner, self.hosted.request) = (None, 0);
    }
}

impl Limits {
    const fn of(self, direction: Direction) -> u32 {
        if direction.undoes() { self.undo_attempts } else { self.attempts }
    }
}

impl StepProgress {
    /// Returns the number of attempts in this direction, the current one included.
    pub(super) const fn count(&mut self, direction: Direction) -> &mut u32 {
        if direction.undoes() { &mut self.undo_attempts } else { &mut self.attempts }
    }

    /// Same as [`count`](Self::count), to read it.
    pub(super) const fn made(&self, direction: Direction) -> u32 {
        if direction.undoes() { self.undo_attempts } else { self.attempts }
    }

    pub(super) fn begin(&mut self, direction: Direction) {
        self.wait = Duration::ZERO;
        let count = self.count(direction);
        *count = count.saturating_add(1);
        self.status = direction.started();
    }

    /// Plans the next attempt: after a short delay it begins in this change.
    fn schedule(&mut self, direction: Direction, delay: Duration, is_woken: &mut bool, holds: bool) {
        let delay = if std::mem::take(is_woken) { Duration::ZERO } else { delay };
        if delay <= SHORT && !holds {
            self.begin(direction);
        } else {
            self.status = direction.waiting();
        }
        self.wait = delay;
    }

    pub(super) fn give_up(&mut self, direction: Direction) {
        self.wait = Duration::ZERO;
        self.status = direction.failed();
    }
}

/// Shortens a text to the longest note.
pub(super) fn shortened(text: &str) -> String {
    text[..text.floor_char_boundary(LONGEST_NOTE)].to_owned()
}
