//! Requests of callers to a saga: cancellation, waking, and the repair of a stuck one.
use std::time::Duration;

use super::state::{Direction, Phase, Progress, Status, StepProgress, shortened};

impl Progress {
    /// Requests the compensation of a saga that has not passed its pivot. Returns `false` if it
    /// has. An execution obeys at its next change; an ended saga, and one that was given up before
    /// its pivot, is compensated by the next claim.
    pub(super) fn cancel(&mut self, reason: &str) -> bool {
        if self.is_past_pivot() {
            return false;
        }
        let goes_back = matches!(self.phase, Phase::Forward | Phase::Completed | Phase::StuckForward);
        if goes_back && self.cancelled.is_none() {
            self.cancelled = Some(shortened(reason));
        }
        if matches!(self.phase, Phase::Completed | Phase::StuckForward) {
            self.phase = Phase::Forward;
            self.release();
        }
        true
    }

    /// Ends the delay of the steps that wait, or skips the next one.
    pub(super) fn wake(&mut self) {
        if !self.is_open() {
            return;
        }
        let mut waits = false;
        for step in &mut self.steps {
            if step.status.waits() {
                (step.wait, waits) = (Duration::ZERO, true);
            }
        }
        self.is_woken = !waits;
    }

    /// Tries a stuck step again, with all its attempts. Returns `false` if the saga is not stuck.
    pub(super) fn retry(&mut self) -> bool {
        let is_stuck = self.unstick();
        for step in &mut self.steps {
            match step.status {
                Status::Failed if self.phase == Phase::Forward && is_stuck => {
                    step.attempts = 0;
                    step.status = Status::Waiting;
                }
                Status::UndoFailed => {
                    step.undo_attempts = 0;
                    step.status = Status::UndoWaiting;
                }
                _ => {}
            }
        }
        is_stuck
    }

    /// Records that an operator did what a stuck step was to do. Returns `false` if the step is not
    /// one that the saga is stuck at.
    pub(super) fn skip(&mut self, name: &str, note: &str) -> bool {
        let wanted = match self.phase {
            Phase::StuckForward => Status::Failed,
            Phase::StuckCompensating => Status::UndoFailed,
            _ => return false,
        };
        let mut steps = self.steps.iter_mut();
        let Some(step) = steps.find(|step| *step.planned.name == *name && step.status == wanted) else { return false };
        step.status = Status::Skipped;
        step.note = shortened(note);
        self.unstick()
    }

    /// Records that the action that a saga is stuck at took no effect, or that an operator undid
    /// it: the saga is compensated. Returns `false` if it is not stuck there, or another action
    /// past its pivot may have taken effect.
    pub(super) fn undo(&mut self, name: &str, note: &str) -> bool {
        if self.phase != Phase::StuckForward {
            return false;
        }
        let is_stuck_at = |step: &StepProgress| *step.planned.name == *name && step.status == Status::Failed;
        let Some(at) = self.steps.iter().position(is_stuck_at) else { return false };
        let step = &mut self.steps[at];
        (step.status, step.is_unknown, step.is_pending) = (Status::Undone, false, false);
        self.reason = std::mem::replace(&mut step.note, shortened(note));
        if self.is_past_pivot() {
            return false;
        }
        self.failed_step = u8::try_from(at).ok();
        self.phase = Phase::Compensating;
        self.release();
        true
    }

    /// Gives a saga up that no execution carries on: it is stuck at its next step.
    pub(super) fn strand(&mut self, note: &str) {
        let (direction, phase) = match self.phase {
            Phase::Forward => (Direction::Do, Phase::StuckForward),
            Phase::Compensating => (Direction::Undo, Phase::StuckCompensating),
            _ => return,
        };
        let is_next = |step: &StepProgress| match (direction, step.status) {
            (Direction::Do, Status::Ready | Status::Started | Status::Waiting | Status::Failed) => true,
            (Direction::Undo, Status::Undoing | Status::UndoWaiting | Status::UndoFailed) => true,
            (Direction::Undo, Status::Done) => step.planned.kind.compensates,
            (Direction::Undo, Status::Failed) => step.planned.kind.compensates && (step.is_unknown || step.is_pending),
            _ => false,
        };
        for step in &mut self.steps {
            step.is_unknown |= step.status == Status::Started;
            if step.status.is_under_way() || step.status.waits() {
                step.note = shortened(note);
                step.give_up(direction);
            }
        }
        let stuck = direction.failed();
        if !self.steps.iter().any(|step| step.status == stuck)
            && let Some(step) = self.steps.iter_mut().find(|step| is_next(step))
        {
            step.note = shortened(note);
            step.status = stuck;
        }
        self.phase = phase;
        self.release();
        if let Some(step) = self.steps.iter().position(|step| step.status == stuck) {
            self.stuck_at(step);
        }
    }

    fn unstick(&mut self) -> bool {
        self.phase = match self.phase {
            Phase::StuckForward => Phase::Forward,
            Phase::StuckCompensating => Phase::Compensating,
            _ => return false,
        };
        self.release();
        true
    }
}
