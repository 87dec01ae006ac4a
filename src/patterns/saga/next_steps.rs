//! The steps that follow: from the statuses of a saga's steps to the next group, the next
//! compensation, or the end. The table of transitions is in `state`.
use super::state::{Direction, Limits, Phase, Progress, Status, StepProgress};

impl Progress {
    /// Returns `true` if the pivot took effect, or may have.
    pub(super) fn is_past_pivot(&self) -> bool {
        self.steps.iter().any(|step| {
            let may_have = step.is_unknown || step.is_pending || step.status == Status::Started;
            step.planned.kind.is_pivot && (matches!(step.status, Status::Done | Status::Skipped) || may_have)
        })
    }

    /// Returns `true` if no attempt of an action begins any more, because the saga will be
    /// compensated.
    pub(super) fn is_stopping(&self) -> bool {
        let has_failed = || self.steps.iter().any(|step| step.status == Status::Failed);
        self.phase == Phase::Forward && !self.is_past_pivot() && (self.cancelled.is_some() || has_failed())
    }

    /// Begins what follows from the current statuses.
    pub(super) fn settle(&mut self, limits: Limits) {
        if self.phase == Phase::Forward {
            self.settle_forward(limits);
        }
        if self.phase == Phase::Compensating {
            self.settle_compensating(limits);
        }
    }

    fn settle_forward(&mut self, limits: Limits) {
        if self.is_stopping() {
            // Those that wait are not tried again; those under way are waited for.
            self.steps
                .iter_mut()
                .filter(|step| step.status == Status::Waiting)
                .for_each(|step| step.give_up(Direction::Do));
            if self.started().next().is_none() {
                let failed = self.steps.iter().position(|step| step.status == Status::Failed);
                let cancelled = self.cancelled.clone();
                let failed = failed.filter(|_| cancelled.is_none());
                self.reason = cancelled.or_else(|| failed.map(|i| self.steps[i].note.clone())).unwrap_or_default();
                self.failed_step = failed.and_then(|i| u8::try_from(i).ok());
                self.phase = Phase::Compensating;
            }
            return;
        }
        let is_open = |step: &StepProgress| !matches!(step.status, Status::Done | Status::Skipped);
        let Some(next) = self.steps.iter().find(|step| is_open(step)) else {
            self.phase = Phase::Completed;
            return;
        };
        let group = next.planned.group;
        let group: Vec<usize> = (0..self.steps.len())
            .filter(|i| self.steps[*i].planned.group == group && is_open(&self.steps[*i]))
            .collect();
        let has = |status| group.iter().find(|i| self.steps[**i].status == status).copied();
        if has(Status::Started).or(has(Status::Waiting)).is_some() {
            return;
        }
        if let Some(failed) = has(Status::Failed) {
            // Only forward, and not any more.
            self.phase = Phase::StuckForward;
            self.stuck_at(failed);
        } else if !limits.holds {
            group.iter().for_each(|i| self.steps[*i].begin(Direction::Do));
        }
    }

    fn settle_compensating(&mut self, limits: Limits) {
        let needs = |step: &StepProgress| {
            let may_have = step.is_unknown || step.is_pending;
            step.planned.kind.compensates
                && match step.status {
                    Status::Done | Status::Undoing | Status::UndoWaiting | Status::UndoFailed => true,
                    Status::Undone | Status::Skipped => false,
                    _ => may_have,
                }
        };
        // Those to be compensated first, then the last group before the others.
        let rank = |step: &StepProgress| (step.planned.kind.first, step.planned.group);
        let Some(next) = self.steps.iter().filter(|step| needs(step)).map(rank).max() else {
            self.phase = Phase::Compensated;
            return;
        };
        let group: Vec<usize> =
            (0..self.steps.len()).filter(|i| needs(&self.steps[*i]) && rank(&self.steps[*i]) == next).collect();
        let has = |status| group.iter().find(|i| self.steps[**i].status == status).copied();
        if !limits.holds {
            for i in &group {
                if matches!(self.steps[*i].status, Status::Done | Status::Failed | Status::Ready) {
                    self.steps[*i].begin(Direction::Undo);
                }
            }
            let is_active = |i: &usize| matches!(self.steps[*i].status, Status::Undoing | Status::UndoWaiting);
            if group.iter().any(is_active) {
                return;
            }
        } else if has(Status::Undoing)
            .or(has(Status::UndoWaiting))
            .or(has(Status::Done))
            .or(has(Status::Failed))
            .is_some()
        {
            return;
        }
        if let Some(failed) = self.steps.iter().position(|step| step.status == Status::UndoFailed) {
            self.phase = Phase::StuckCompensating;
            self.stuck_at(failed);
        }
    }

    pub(super) fn stuck_at(&mut self, step: usize) {
        // The reason of the compensation stays, if there is one.
        if self.phase == Phase::StuckForward {
            self.reason = self.steps[step].note.clone();
            self.failed_step = u8::try_from(step).ok();
        }
    }

    /// Returns the step that a stuck saga is stuck at.
    pub(super) fn stuck_step(&self) -> Option<&StepProgress> {
        let wanted = match self.phase {
            Phase::StuckForward => Status::Failed,
            Phase::StuckCompensating => Status::UndoFailed,
            _ => return None,
        };
        self.steps.iter().find(|step| step.status == wanted)
    }
}
