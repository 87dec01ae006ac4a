//! Running a saga: attempts, their records, and the delays between them.
use std::{future::pending, panic::AssertUnwindSafe, time::Duration};

use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use tokio::sync::watch;

use super::{
    SagaError, SagaEvent as Event, StepOutcomeKind,
    action::{Attempt, UNDO},
    plan::Attempted,
    records::{Execution, Written},
    state::{Direction, Limits, Phase, Progress, Report},
};
use crate::{
    backoff::Backoff,
    port::{BoxFuture, FencingToken, within},
    race::{First, race},
    time::Instant,
    work::panic_text,
};

/// The reasons for which an execution leaves a saga that has not ended.
#[derive(Debug, Clone, Default)]
pub(super) struct Leave {
    /// It releases a saga that waits for longer than a few seconds.
    pub(super) when_deferred: bool,
    /// It releases the saga at the next step boundary once this is set.
    pub(super) when_stopped: Option<watch::Receiver<bool>>,
}

impl Leave {
    fn is_stopped(&self) -> bool {
        self.when_stopped.as_ref().is_some_and(|stopped| *stopped.borrow())
    }
}

/// The end of an execution.
#[derive(Debug)]
pub(super) enum Driven {
    /// The saga ended, or is stuck.
    Ended(Progress),
    /// The saga was released, and goes on after this delay.
    Released(Duration),
}

/// The attempts that are under way.
type Running = FuturesUnordered<BoxFuture<'static, (usize, Attempted)>>;

impl Execution {
    /// Runs the saga to its end, or until it is released.
    pub(super) async fn drive(mut self, leave: &Leave) -> Result<Driven, SagaError> {
        match self.run(leave).await {
            Ok(None) => Ok(Driven::Ended(self.progress)),
            Ok(Some(delay)) => Ok(Driven::Released(delay)),
            Err(error) => {
                if let SagaError::Superseded = error {
                    let id = self.id().to_string();
                    self.core.event(|| Event::Superseded { id });
                }
                Err(error)
            }
        }
    }

    /// Runs the saga; returns its delay if it is released.
    async fn run(&mut self, leave: &Leave) -> Result<Option<Duration>, SagaError> {
        let mut running = Running::new();
        let mut is_running = vec![false; self.progress.steps.len()];
        let mut due = vec![None; self.progress.steps.len()];
        loop {
            if !self.progress.is_open() {
                return Ok(None);
            }
            if self.progress.owner.is_none() {
                return Ok(Some(self.progress.shortest_wait()));
            }
            for i in self.progress.started() {
                if !std::mem::replace(&mut is_running[i], true) {
                    running.push(self.attempt(i));
                }
            }
            let next = self.next_due(&mut due);
            let signals = self.local.signals.clone();
            let wait = async {
                match next {
                    Some(at) => {
                        race(self.core.clock.sleep_until(at), signals.changed.notified()).await;
                    }
                    None => pending().await,
                }
            };
            let reported = async {
                match running.next().await {
                    Some(reported) => reported,
                    None => pending().await,
                }
            };
            match race(reported, wait).await {
                First::One((i, attempted)) => {
                    is_running[i] = false;
                    self.reported(i, attempted, leave).await?;
                }
                First::Other(()) => self.begin_due(&mut due, leave).await?,
            }
        }
    }

    /// Returns the time at which the next waiting step is due.
    fn next_due(&self, due: &mut [Option<Instant>]) -> Option<Instant> {
        let now = self.core.clock.now();
        let mut next = None;
        for (i, at) in due.iter_mut().enumerate() {
            let step = &self.progress.steps[i];
            if !step.status.waits() {
                *at = None;
                continue;
            }
            let at = at.get_or_insert(now + step.wait);
            if step.wait.is_zero() {
                *at = now; // woken
            }
            next = Some(next.map_or(*at, |next: Instant| next.min(*at)));
        }
        next
    }

    fn limits(&self, leave: &Leave) -> Limits {
        Limits { holds: leave.is_stopped(), ..self.core.limits() }
    }

    /// Releases the saga with this change, if nothing is under way and the execution leaves.
    fn release(&self, next: &mut Progress, limits: Limits, leave: &Leave) {
        let is_idle = next.is_open() && next.started().next().is_none();
        if is_idle && (limits.holds || leave.when_deferred) {
            next.release();
        }
    }

    /// Begins the attempts that are due.
    async fn begin_due(&mut self, due: &mut [Option<Instant>], leave: &Leave) -> Result<(), SagaError> {
        let now = self.core.clock.now();
        let is_due = |i: usize| due[i].is_some_and(|at| at <= now);
        if !(0..due.len()).any(is_due) {
            // A signal of this process: the record has changed.
            let stored = self.core.read_known(self.id()).await?;
            if (stored.progress.owner, stored.progress.epoch) != (self.progress.owner, self.progress.epoch) {
                return Err(SagaError::Superseded);
            }
            (self.progress, self.version) = (stored.progress, stored.version);
        }
        let limits = self.limits(leave);
        let mut next = self.progress.clone();
        next.begin_waiting(|i| due[i].is_some_and(|at| at <= now), limits);
        if next == self.progress {
            return Ok(());
        }
        self.release(&mut next, limits, leave);
        self.commit(next).await
    }

    /// Writes a change that contains nothing of the user's.
    async fn commit(&mut self, next: Progress) -> Result<(), SagaError> {
        let before = self.progress.phase;
        match self.write(next, &[]).await? {
            // The next round decides again on the record with the signal.
            Written::Changed => Ok(()),
            Written::Applied => {
                self.tell(before);
                Ok(())
            }
            Written::Refused(reason) => Err(refused(reason)),
        }
    }

    /// Records the result of an attempt.
    async fn reported(&mut self, i: usize, attempted: Attempted, leave: &Leave) -> Result<(), SagaError> {
        let Attempted { kind, reason, after, change, mut writes } = attempted;
        let direction = self.progress.steps[i].status.direction();
        let delay = self.delay(i, direction, kind, after);
        let mut report = Report { kind, reason, delay };
        let mut state = None;
        if kind != StepOutcomeKind::Completed {
            writes.clear();
        } else if let Some(change) = change {
            match change(&self.progress.state) {
                Ok(new) => state = Some(new),
                Err(reason) => {
                    writes.clear();
                    report = abandoned(reason);
                }
            }
        }
        let before = self.progress.phase;
        loop {
            let limits = self.limits(leave);
            let mut next = self.progress.clone();
            if let Some(state) = &state {
                next.state = state.clone();
            }
            next.report(i, &report, limits);
            self.release(&mut next, limits, leave);
            match self.write(next, &writes).await? {
                Written::Applied => break,
                Written::Changed => {}
                Written::Refused(reason) if report.kind == StepOutcomeKind::Completed => {
                    (report, state) = (abandoned(reason), None);
                    writes.clear();
                }
                Written::Refused(reason) => return Err(refused(reason)),
            }
        }
        self.tell_attempt(i, direction, &report);
        self.tell(before);
        Ok(())
    }

    fn delay(&self, i: usize, direction: Direction, kind: StepOutcomeKind, after: Option<Duration>) -> Duration {
        let (step, config) = (&self.progress.steps[i], self.core.config.now());
        let config = if direction.undoes() { config.compensation_retry } else { config.retry };
        match after {
            Some(after) => after,
            None if kind == StepOutcomeKind::Completed => Duration::ZERO,
            // It was no attempt, so the delay does not grow.
            None if matches!(kind, StepOutcomeKind::Refused | StepOutcomeKind::Pending) => config.base,
            None => {
                let nth = step.made(direction).saturating_sub(1) as usize;
                Backoff::checked(config, &self.core.entropy).nth(nth).unwrap_or_default()
            }
        }
    }

    /// Returns the attempt that is under way by the record.
    fn attempt(&self, i: usize) -> BoxFuture<'static, (usize, Attempted)> {
        let (core, step) = (self.core.clone(), &self.progress.steps[i]);
        let direction = step.status.direction();
        let (id, name) = (self.id().clone(), step.planned.name.clone());
        let end = if direction.undoes() { UNDO } else { "" };
        let key = [core.name.as_str(), "/", &id, "/", &name, end].concat();
        let number = step.made(direction);
        let token = FencingToken::new(self.progress.epoch);
        let headers = self.progress.hosted.origin.headers.clone();
        let attempt = Attempt { id, name, key, token, number, direction, headers };
        let (wait, state) = (step.wait, self.progress.state.clone());
        Box::pin(async move {
            if !wait.is_zero() {
                core.clock.sleep(wait).await;
            }
            let limit = core.config.load().step_timeout;
            let work = AssertUnwindSafe(core.code.clone().run(attempt, state)).catch_unwind();
            let attempted = match within(&core.clock, limit, work).await {
                Some(Ok(attempted)) => attempted,
                Some(Err(panic)) => Attempted::unknown(format_args!("the step panicked: {}", panic_text(&*panic))),
                None => Attempted::unknown(format_args!("no outcome within {limit:?}")),
            };
            (i, attempted)
        })
    }

    fn tell_attempt(&self, i: usize, direction: Direction, report: &Report) {
        if report.kind == StepOutcomeKind::Completed {
            return;
        }
        let step = &self.progress.steps[i];
        let is_retried = (step.status.is_under_way() || step.status.waits())
            && (direction.undoes() || self.progress.phase == Phase::Forward);
        self.core.event(|| Event::AttemptFailed {
            id: self.id().to_string(),
            step: step.planned.name.to_string(),
            compensates: direction.undoes(),
            outcome: report.kind.as_str(),
            reason: report.reason.clone(),
            retry_in: is_retried.then_some(step.wait),
        });
    }

    /// Reports a new phase.
    pub(super) fn tell(&self, before: Phase) {
        let (progress, core) = (&self.progress, &self.core);
        let id = || self.id().to_string();
        let is_new = before != progress.phase;
        let begins = before == Phase::Forward && matches!(progress.phase, Phase::Compensating | Phase::Compensated);
        if begins {
            let step = progress.failed_step.map(|i| progress.steps[usize::from(i)].planned.name.to_string());
            core.event(|| Event::Compensating { id: id(), step, reason: progress.reason.clone() });
        }
        match progress.phase {
            Phase::Completed if is_new => core.event(|| Event::Completed { id: id() }),
            Phase::Compensated if is_new => core.event(|| Event::Compensated { id: id() }),
            Phase::StuckForward | Phase::StuckCompensating if is_new => {
                if let Some(step) = progress.stuck_step() {
                    let direction = step.status.direction();
                    core.event(|| Event::Stuck {
                        id: id(),
                        step: step.planned.name.to_string(),
                        compensates: direction.undoes(),
                        reason: step.note.clone(),
                        attempts: step.made(direction),
                    });
                }
            }
            _ => {}
        }
    }
}

fn abandoned(reason: String) -> Report {
    Report { kind: StepOutcomeKind::Abandoned, reason, delay: Duration::ZERO }
}

/// The store refuses a record without anything of the user's: its limits are too small.
fn refused(reason: String) -> SagaError {
    SagaError::Store(crate::port::PortError::new(crate::port::PortErrorKind::Invalid, reason))
}
