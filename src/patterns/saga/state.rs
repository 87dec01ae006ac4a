//! The progress of a saga as a pure machine: no time, no store, no async.
//!
//! A [`Progress`] changes by reports of attempts, by the claim of an executor, and by the requests
//! of a caller. After each change it names the attempts that are under way
//! ([`started`](Progress::started)). Each attempt is counted in the change that begins it, so that
//! an attempt that kills its process is counted, too.
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
    /// The message on whose behalf it runs; 0 if there is none.
    pub(super) message: u64,
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
    /// Number of times that a supervisor found no executor.
    pub(super) failures: u32,
    pub(super) phase: Phase,
    /// The step that failed, and the reason of the compensation.
    pub(super) failed_step: Option<u8>,
    pub(super) reason: String,
    /// Headers of the submission that started the saga, by name; a scheduler copies them into later
    /// messages.
    pub(super) origin: Origin,
    pub(super) steps: Vec<StepProgress>,
    pub(super) state: Bytes,
}

/// Named texts that a saga keeps for the component that started it.
pub(crate) type Origin = BTreeMap<String, String>;

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
            failures: 0,
            phase: Phase::Forward,
            failed_step: None,
            reason: String::new(),
            origin: Origin::new(),
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
        steps.filter(|(_, step)| matches!(step.status, Status::Started | Status::Undoing)).map(|(i, _)| i)
    }

    /// Returns the steps that wait for their next attempt.
    pub(super) fn waiting(&self) -> impl Iterator<Item = usize> {
        let steps = self.steps.iter().enumerate();
        steps.filter(|(_, step)| matches!(step.status, Status::Waiting | Status::UndoWaiting)).map(|(i, _)| i)
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
        let Some(step) = self.steps.get_mut(i) else { return };
        step.note = shortened(&report.reason);
        step.wait = Duration::ZERO;
        let undoes = match step.status {
            Status::Started => false,
            Status::Undoing => true,
            _ => return,
        };
        use StepOutcomeKind as Kind;
        match report.kind {
            Kind::Completed => {
                step.status = if undoes { Status::Undone } else { Status::Done };
                step.is_pending = false;
            }
            Kind::Failed | Kind::Abandoned => {
                step.status = if undoes { Status::UndoFailed } else { Status::Failed };
                // A definite answer also ends an action that was accepted before.
                step.is_pending = false;
                step.is_unknown |= report.kind == Kind::Abandoned && !undoes;
            }
            Kind::Unknown | Kind::NotSent => {
                step.is_unknown |= report.kind == Kind::Unknown && !undoes;
                let (made, most) = match undoes {
                    true => (step.undo_attempts, limits.undo_attempts),
                    false => (step.attempts, limits.attempts),
                };
                if made >= most || is_stopping && !undoes {
                    step.give_up(undoes);
                } else {
                    step.schedule(undoes, report.delay, &mut self.is_woken, limits.holds);
                }
            }
            Kind::Refused | Kind::Pending => {
                step.is_pending |= report.kind == Kind::Pending && !undoes;
                // It was no attempt.
                let count = if undoes { &mut step.undo_attempts } else { &mut step.attempts };
                *count = count.saturating_sub(1);
                if is_stopping && !undoes {
                    step.give_up(undoes);
                } else {
                    step.schedule(undoes, report.delay, &mut self.is_woken, limits.holds);
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
                Status::Waiting if is_stopping => step.give_up(false),
                Status::Waiting if due(i) => step.begin(false),
                Status::UndoWaiting if due(i) => step.begin(true),
                _ => {}
            }
        }
        self.settle(limits);
    }

    /// Takes the saga over: attempts that were under way have an unknown outcome, and the next
    /// ones begin. It is the same change, so that a claim costs no write of its own.
    pub(super) fn claim(&mut self, owner: Owner, limits: Limits) {
        self.owner = Some(owner);
        self.epoch = self.epoch.saturating_add(1);
        let is_stopping = self.is_stopping();
        for step in &mut self.steps {
            match step.status {
                Status::Started => {
                    step.is_unknown = true;
                    if step.attempts >= limits.attempts || is_stopping {
                        step.note = LOST.to_owned();
                        step.give_up(false);
                    } else {
                        step.begin(false);
                    }
                }
                Status::Undoing if step.undo_attempts >= limits.undo_attempts => {
                    step.note = LOST.to_owned();
                    step.give_up(true);
                }
                Status::Undoing | Status::UndoWaiting => step.begin(true),
                Status::Waiting if !is_stopping => step.begin(false),
                _ => {}
            }
        }
        self.settle(limits);
    }
}

impl StepProgress {
    pub(super) fn begin(&mut self, undoes: bool) {
        self.wait = Duration::ZERO;
        let (status, count) = match undoes {
            true => (Status::Undoing, &mut self.undo_attempts),
            false => (Status::Started, &mut self.attempts),
        };
        *count = count.saturating_add(1);
        self.status = status;
    }

    /// Plans the next attempt: after a short delay it begins in this change.
    fn schedule(&mut self, undoes: bool, delay: Duration, is_woken: &mut bool, holds: bool) {
        let delay = if std::mem::take(is_woken) { Duration::ZERO } else { delay };
        if delay <= SHORT && !holds {
            self.begin(undoes);
        } else {
            self.status = if undoes { Status::UndoWaiting } else { Status::Waiting };
        }
        self.wait = delay;
    }

    pub(super) fn give_up(&mut self, undoes: bool) {
        self.wait = Duration::ZERO;
        self.status = if undoes { Status::UndoFailed } else { Status::Failed };
    }
}

/// Shortens a text to the longest note.
pub(super) fn shortened(text: &str) -> String {
    text[..text.floor_char_boundary(LONGEST_NOTE)].to_owned()
}
