//! Sagas: those that are open, and one with its steps.
use super::super::{
    panel::{Look, Order, Panel, Source, View, unknown},
    readout::{Note, ReadOut, Table, Trouble, count, spoken},
    settings::{self, Settings},
};
use crate::{
    port::BoxFuture,
    saga::{Saga, SagaConfig, SagaError, SagaOutcome, SagaPhase, SagaStatus, StepState},
};

/// Maximum number of sagas that are listed, stuck ones first.
const LISTED: usize = 50;

/// Number of open sagas after which no further ones are read.
const READ: usize = 1000;

impl<T: Send + Sync + 'static> Panel for Saga<T> {
    fn view(&self) -> View {
        View(Box::new(self.clone()))
    }
}

impl<T: Send + Sync + 'static> Source for Saga<T> {
    fn kind(&self) -> &'static str {
        "saga"
    }

    fn asks_engine(&self) -> bool {
        true
    }

    fn has_parts(&self) -> bool {
        true
    }

    fn settings(&self, of: Option<&str>) -> Option<Box<dyn Settings + '_>> {
        if of.is_some() { None } else { settings::of::<SagaConfig, _>(self) }
    }

    fn read<'a>(&'a self, look: &'a Look) -> BoxFuture<'a, Result<ReadOut, String>> {
        Box::pin(async move {
            let read = match &look.of {
                None => whole(self).await,
                Some(id) => self.read(id).await.map(|status| status.map_or_else(gone, |status| one(&status))),
            };
            read.map_err(|error| error.to_string())
        })
    }

    fn act<'a>(&'a self, order: &'a Order) -> BoxFuture<'a, Result<String, String>> {
        Box::pin(async move {
            let (id, note) = (order.part(), order.note.trim());
            // The version names the step that the operator was shown.
            let step = order.version.split_once('/').map_or("", |(_, step)| step);
            let outcome = match order.action.as_str() {
                "retry" => self.retry(id).await,
                "skip" => self.skip(id, step, note).await,
                "undo" => self.undo(id, step, note).await,
                "cancel" => self.cancel(id, note).await,
                "wake" => {
                    self.wake(id).await.map_err(|error| error.to_string())?;
                    return Ok("The saga was woken.".to_owned());
                }
                _ => return unknown(order),
            };
            match outcome.map_err(|error| error.to_string())? {
                SagaOutcome::Completed(_) => Ok("The saga is completed.".to_owned()),
                SagaOutcome::Compensated { .. } => Ok("The saga is compensated.".to_owned()),
                SagaOutcome::Stuck { step, reason } => Err(format!("the saga is stuck at `{step}`: {reason}")),
            }
        })
    }
}

async fn whole<T: Send + Sync + 'static>(saga: &Saga<T>) -> Result<ReadOut, SagaError> {
    let (mut open, is_all) = saga.list_open_up_to(READ).await?;
    let stuck = open.iter().filter(|(_, is_stuck)| *is_stuck).count();
    let mut out = match stuck {
        0 => ReadOut::new("running"),
        _ => {
            let why = format!("{} cannot go on without an operator", count(stuck as u64, "saga"));
            ReadOut::new("stuck").trouble(Trouble::Stuck, why)
        }
    };
    out = out.level("open", open.len() as f64).level("stuck", stuck as f64).fact("run by this process", saga.running());
    if !is_all {
        out = out.fact("read", format!("the first {} open sagas; there are more", open.len()));
    }
    open.sort_by_key(|(_, is_stuck)| !is_stuck);
    let caption = match open.len() {
        0..=LISTED => "Open sagas".to_owned(),
        all => format!("Open sagas, {LISTED} of {all}"),
    };
    let mut table = Table::new(caption, &["id", "state"]);
    for (id, is_stuck) in open.into_iter().take(LISTED) {
        let state = if is_stuck { "stuck" } else { "open" };
        table.push_of(id.clone(), is_stuck, [id, state.to_owned()]);
    }
    Ok(out.table(table))
}

fn one<T>(status: &SagaStatus<T>) -> ReadOut {
    let mut out = ReadOut::new(match status.phase {
        SagaPhase::Forward => "running",
        SagaPhase::Compensating => "being compensated",
        SagaPhase::Completed => "completed",
        SagaPhase::Compensated => "compensated",
        SagaPhase::Stuck => "stuck",
    });
    let is_stuck_step = |state| matches!(state, StepState::Failed | StepState::CompensationFailed);
    let stuck = status.steps.iter().find(|step| is_stuck_step(step.state));
    match (status.phase, stuck) {
        (SagaPhase::Stuck, Some(step)) => {
            out = out.trouble(Trouble::Stuck, format!("at step `{}`: {}", step.name, status.reason));
        }
        (SagaPhase::Stuck, None) => out = out.trouble(Trouble::Stuck, status.reason.clone()),
        _ => out.why.clone_from(&status.reason),
    }
    out = out
        .fact("executors so far", status.epoch)
        .fact("owned", if status.is_owned { "yes" } else { "no" })
        .fact("losses of its executor", status.failures);
    let mut steps = Table::new("Steps", &["step", "state", "attempts", "compensations", "next attempt", "note"]);
    for step in &status.steps {
        let unknown = if step.is_unknown { ", outcome unknown" } else { "" };
        steps.push([
            step.name.clone(),
            format!("{}{unknown}", words(step.state)),
            step.attempts.to_string(),
            step.compensation_attempts.to_string(),
            if step.wait.is_zero() { String::new() } else { format!("after {}", spoken(step.wait)) },
            step.note.clone(),
        ]);
        if let Some(row) = steps.rows.last_mut() {
            row.wrong = is_stuck_step(step.state);
        }
    }
    out = out.table(steps);
    offer(out, status, stuck.map(|step| (step.name.as_str(), step.state)))
}

/// Adds the actions that the phase allows.
fn offer<T>(mut out: ReadOut, status: &SagaStatus<T>, stuck: Option<(&str, StepState)>) -> ReadOut {
    // Each executor raises the epoch: a saga that went on in between has another version.
    let version = format!("{}/{}", status.epoch, stuck.map(|(step, _)| step).unwrap_or_default());
    if let (SagaPhase::Stuck, Some((step, _))) = (status.phase, stuck) {
        let effect = format!("Tries step `{step}` again with all its attempts, and runs the saga to its end.");
        out = out.action("retry", "Retry", effect, &version, Note::None);
        let effect = format!("Records that you did what step `{step}` was to do, and runs the saga to its end.");
        out = out.action("skip", "Skip", effect, &version, Note::Required);
        if status.can_undo {
            let effect = format!(
                "Records that step `{step}` took no effect, or that you undid it. The other steps are compensated."
            );
            out = out.action("undo", "Undo", effect, &version, Note::Required);
        }
    }
    if status.can_cancel {
        let done = status.steps.iter().filter(|step| step.state == StepState::Completed).count();
        let effect = format!("Compensates the saga: {} took effect so far.", count(done as u64, "step"));
        // A running saga keeps its epoch.
        out = out.action("cancel", "Cancel", effect, format!("{}/{done}", status.epoch), Note::Required);
    }
    let is_open = matches!(status.phase, SagaPhase::Forward | SagaPhase::Compensating);
    if is_open && status.steps.iter().any(|step| !step.wait.is_zero()) {
        let effect = "Ends the delay before the next attempt.";
        out = out.action("wake", "Wake", effect, "", Note::None);
    }
    out
}

fn words(state: StepState) -> &'static str {
    match state {
        StepState::Ready => "not begun",
        StepState::Started => "running",
        StepState::Waiting => "waiting",
        StepState::Completed => "completed",
        StepState::Failed => "failed",
        StepState::Compensating => "being compensated",
        StepState::Compensated => "compensated",
        StepState::CompensationFailed => "compensation failed",
        StepState::Skipped => "skipped by an operator",
    }
}

fn gone() -> ReadOut {
    let mut out = ReadOut::new("gone");
    out.why = "there is no saga with this id, or its retention is over".to_owned();
    out
}
