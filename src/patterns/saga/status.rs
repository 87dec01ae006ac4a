//! The status of a saga, for its callers and for operators.
use std::time::Duration;

use super::state::{Phase, Progress, Status, StepProgress};
use crate::port::FencingToken;

/// The status of a saga at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SagaStatus<T> {
    /// The phase.
    pub phase: SagaPhase,
    /// The state after the last completed step.
    pub state: T,
    /// The reason of the compensation, or of being stuck; empty otherwise.
    pub reason: String,
    /// The steps, in their order.
    pub steps: Vec<StepStatus>,
    /// The epoch: the number of executors so far.
    pub epoch: FencingToken,
    /// `true` while an executor owns the saga. It may have died.
    pub is_owned: bool,
    /// Number of times that a scheduler's supervisor found it without an executor.
    pub failures: u32,
    /// `true` if the saga can be [cancelled](super::Saga::cancel): it is neither past its pivot nor
    /// being compensated.
    pub can_cancel: bool,
    /// `true` if the step at which the saga is stuck can be [undone](super::Saga::undo).
    pub can_undo: bool,
}

/// The phase of a saga.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SagaPhase {
    /// Its steps run.
    Forward,
    /// Its completed steps are being compensated.
    Compensating,
    /// All steps took effect.
    Completed,
    /// All effects are compensated.
    Compensated,
    /// It needs an operator.
    Stuck,
}

/// The status of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StepStatus {
    /// The name.
    pub name: String,
    /// The status.
    pub state: StepState,
    /// Attempts of the action, the current one included.
    pub attempts: u32,
    /// Attempts of the compensation, the current one included.
    pub compensation_attempts: u32,
    /// `true` if the action may have had an effect: the outcome of an attempt is unknown, or it was
    /// accepted and has not finished.
    pub is_unknown: bool,
    /// Delay before the next attempt, counted from the write of the record.
    pub wait: Duration,
    /// The last error, or the note of an operator; empty if there is none.
    pub note: String,
}

/// The state of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StepState {
    /// Not begun.
    Ready,
    /// The action runs.
    Started,
    /// The action is tried again after a delay.
    Waiting,
    /// The action took effect.
    Completed,
    /// The action is not tried again.
    Failed,
    /// The compensation runs, or is tried again after a delay.
    Compensating,
    /// The compensation took effect.
    Compensated,
    /// The compensation is not tried again.
    CompensationFailed,
    /// An operator did it manually.
    Skipped,
}

impl<T> SagaStatus<T> {
    pub(super) fn new(progress: &Progress, state: T) -> Self {
        let phase = match progress.phase {
            Phase::Forward => SagaPhase::Forward,
            Phase::Compensating => SagaPhase::Compensating,
            Phase::Completed => SagaPhase::Completed,
            Phase::Compensated => SagaPhase::Compensated,
            Phase::StuckForward | Phase::StuckCompensating => SagaPhase::Stuck,
        };
        let reason = progress.stuck_step().map_or(&progress.reason, |step| &step.note).clone();
        let steps = progress.steps.iter().map(StepStatus::new).collect();
        let can_cancel =
            matches!(phase, SagaPhase::Forward | SagaPhase::Completed) || progress.phase == Phase::StuckForward;
        let can_cancel = can_cancel && progress.cancelled.is_none() && progress.clone().cancel("");
        let stuck = progress.stuck_step().map(|step| step.planned.name.clone());
        let can_undo = stuck.is_some_and(|step| progress.clone().undo(&step, ""));
        let (epoch, is_owned) = (FencingToken::new(progress.epoch), progress.is_open() && progress.owner.is_some());
        let failures = progress.hosted.failures;
        Self { phase, state, reason, steps, epoch, is_owned, failures, can_cancel, can_undo }
    }
}

impl StepStatus {
    fn new(step: &StepProgress) -> Self {
        let state = match step.status {
            Status::Ready => StepState::Ready,
            Status::Started => StepState::Started,
            Status::Waiting => StepState::Waiting,
            Status::Done => StepState::Completed,
            Status::Failed => StepState::Failed,
            Status::Undoing | Status::UndoWaiting => StepState::Compensating,
            Status::Undone => StepState::Compensated,
            Status::UndoFailed => StepState::CompensationFailed,
            Status::Skipped => StepState::Skipped,
        };
        Self {
            name: step.planned.name.to_string(),
            state,
            attempts: step.attempts,
            compensation_attempts: step.undo_attempts,
            is_unknown: step.is_unknown || step.is_pending,
            wait: step.wait,
            note: step.note.clone(),
        }
    }
}
