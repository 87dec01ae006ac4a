//! Running the children: the shell around the machine.
use std::{
    future::{Future, pending},
    pin::pin,
    sync::Arc,
};

use thiserror::Error;
use tokio::sync::mpsc;

use super::{
    ChildContext, Supervisor, SupervisorEvent as Event, Unstopped, UnstoppedChild,
    component::Inner,
    config::DROP_GRACE,
    context::{Message, Numbered},
    handle::Asked,
    state::{Action, Machine, Outcome},
    task::ChildTask,
};
use crate::{
    config::Name,
    race::{First, race},
    time::Instant,
};

/// Error of [`Supervisor::run`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SupervisorError {
    /// A child failed more often than the budget allows. All children were stopped.
    #[error("child `{child}` failed too often: {}", causes.join("; "))]
    Escalated {
        /// Name of the child.
        child: Name,
        /// Texts of its last failures, the oldest first.
        causes: Vec<String>,
        /// The children that did not stop.
        unstopped: Vec<UnstoppedChild>,
    },
    /// Another clone of the supervisor runs.
    #[error("the supervisor runs already")]
    AlreadyRunning,
}

/// Report of a run that ended in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct StopReport {
    /// The children that did not stop when they were asked to, in the order of their start.
    pub unstopped: Vec<UnstoppedChild>,
    /// The children that failed within the stop, in the order of their start: by a last write, say.
    pub failed: Vec<FailedChild>,
}

/// A child that failed within the stop.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailedChild {
    /// Name of the child, with that of its supervisor's child if it is nested: `feeds/prices`.
    pub child: String,
    /// Text of the error or of the panic.
    pub cause: String,
}

/// The current instances. Dropping it drops them all.
struct Instances(Vec<Option<ChildContext>>);

impl Drop for Instances {
    fn drop(&mut self) {
        for context in self.0.iter().flatten() {
            context.signal().drop_child();
        }
    }
}

impl Supervisor {
    /// Starts the children in their order, restarts them when they fail, and stops them in reverse
    /// order when `shutdown` is ready. It also ends when all children have ended for good.
    ///
    /// Each instance of a child is a task of the spawner. A child that blocks its thread cannot be
    /// dropped; it is named in the report, and the run ends without it.
    ///
    /// # Errors
    /// [`Escalated`](SupervisorError::Escalated) if a child failed once more than the budget
    /// allows, also if `shutdown` is ready while the others are being stopped.
    ///
    /// # Cancel safety
    /// If the future is dropped, all children are dropped, in no order. Prefer `shutdown`.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) -> Result<StopReport, SupervisorError> {
        self.run_within(None, shutdown).await
    }

    /// Runs the children, as a child of another supervisor or alone.
    pub(super) async fn run_within(
        &self,
        parent: Option<&ChildContext>,
        shutdown: impl Future<Output = ()>,
    ) -> Result<StopReport, SupervisorError> {
        let inner = &self.0;
        let Some(_alone) = inner.running.enter_alone() else { return Err(SupervisorError::AlreadyRunning) };
        let (send, mut reports) = mpsc::unbounded_channel();
        *inner.orders.lock() = Some(send.clone());
        let mut asked = Asked::default();
        let rules = inner.children.iter().map(|child| child.rules().clone()).collect();
        let mut machine = Machine::new(inner.config, rules, inner.entropy.clone());
        let mut instances = Instances(vec![None; inner.children.len()]);
        let (mut shutdown, mut is_shut) = (pin!(shutdown), false);
        // Instances of an earlier run that was dropped, or that left a blocked child behind.
        let earlier = async {
            for lives in &inner.lives {
                lives.ended().await;
            }
        };
        let patience = async { inner.clock.sleep(DROP_GRACE).await };
        match race(shutdown.as_mut(), race(earlier, patience)).await {
            First::One(()) => return Ok(StopReport { unstopped: inner.left(), failed: Vec::new() }),
            First::Other(First::One(())) => {}
            First::Other(First::Other(())) => return Err(inner.is_blocked()),
        }
        let mut parent_waits = parent;
        let outcome = loop {
            for action in machine.advance(inner.now()) {
                inner.act(action, &mut instances, &send);
            }
            inner.show(&mut machine);
            asked.answer(&machine);
            if let Some(parent) = parent_waits.take_if(|_| machine.has_started()) {
                parent.ready();
            }
            if let Some(outcome) = machine.outcome() {
                break outcome;
            }
            let next = machine.next();
            let timer = async {
                match next {
                    Instant::FAR_FUTURE => pending().await,
                    next => inner.clock.sleep_until(next).await,
                }
            };
            let shut = async {
                match is_shut {
                    true => pending().await,
                    false => shutdown.as_mut().await,
                }
            };
            match race(shut, race(reports.recv(), timer)).await {
                First::One(()) => {
                    is_shut = true;
                    let now = inner.now();
                    machine.shut_down(now);
                    if let Some(by) = parent.and_then(ChildContext::stop_by) {
                        // A part is kept, so that the parent hears the names of those that did not stop.
                        machine.end_by(by.saturating_sub((by - now) / 10));
                    }
                }
                First::Other(First::One(Some((child, instance, message)))) => {
                    inner.take((&mut machine, &mut asked), child, instance, message);
                    // All that came in time counts, before a time limit does.
                    while let Ok((child, instance, message)) = reports.try_recv() {
                        inner.take((&mut machine, &mut asked), child, instance, message);
                    }
                }
                First::Other(_) => {}
            }
        };
        let report = inner.report(&machine, &instances);
        match outcome {
            Outcome::Stopped => Ok(report),
            Outcome::Escalated { child } => {
                let slot = &machine.slots[child];
                let causes = slot.causes.iter().cloned().collect();
                Err(SupervisorError::Escalated { child: slot.rules.name.clone(), causes, unstopped: report.unstopped })
            }
        }
    }
}

impl Inner {
    fn act(&self, action: Action, instances: &mut Instances, reports: &mpsc::UnboundedSender<Numbered>) {
        match action {
            Action::Start { child: index, instance } => {
                let child = &self.children[index];
                let row = self.checkpoint(child);
                let name = child.rules().name.clone();
                let context = ChildContext::new(name, (index, instance), reports.clone(), row);
                instances.0[index] = Some(context.clone());
                let meter = child.is_metered().then(|| Arc::clone(&self.meters[index]));
                let meter = (meter, self.clock.clone());
                let made = (child.factory(), self.lives[index].begin());
                let task = ChildTask::new(context, made, meter, self.config.slow_poll, child.share());
                self.spawner.spawn(task);
            }
            Action::Stop { child, by } => {
                if let Some(context) = &instances.0[child] {
                    context.signal().stop(by);
                }
            }
            Action::Drop { child } => {
                if let Some(context) = &instances.0[child] {
                    context.signal().drop_child();
                }
            }
        }
    }

    fn take(&self, (machine, asked): (&mut Machine, &mut Asked), child: usize, instance: u64, message: Message) {
        let now = self.now();
        match message {
            Message::Ready => machine.ready(child, instance, now),
            Message::Ended(end) => machine.ended(child, instance, end, now),
            Message::SlowPoll(took) => {
                let child = self.children[child].rules().name.clone();
                machine.events.push(Event::SlowPoll { child, took });
            }
            Message::Restart(reply) => asked.restart(machine, child, reply),
        }
    }

    /// Returns the children of earlier runs that still live.
    fn left(&self) -> Vec<UnstoppedChild> {
        let living = self.children.iter().zip(&self.lives).filter(|(_, lives)| lives.is_any());
        let left = living.map(|(child, _)| UnstoppedChild { child: child.name().to_owned(), how: Unstopped::Blocked });
        left.collect()
    }

    /// Returns the error for a child of an earlier run that blocks its thread.
    fn is_blocked(&self) -> SupervisorError {
        let left = self.left();
        let child = left.first().map_or("", |left| &*left.child).into();
        let causes = vec!["an instance of an earlier run blocks its thread".to_owned()];
        SupervisorError::Escalated { child, causes, unstopped: left }
    }

    /// Returns the children that did not stop or failed in it, with those of nested supervisors.
    fn report(&self, machine: &Machine, instances: &Instances) -> StopReport {
        let (mut unstopped, mut failed) = (Vec::new(), Vec::new());
        for ((slot, context), child) in machine.slots.iter().zip(&instances.0).zip(&self.children) {
            let name = &slot.rules.name;
            if let Some(how) = slot.unstopped {
                unstopped.push(UnstoppedChild { child: name.to_string(), how });
            }
            if let Some(cause) = &slot.failed_in_stop {
                failed.push(FailedChild { child: name.to_string(), cause: cause.clone() });
            }
            let nested = context.as_ref().map(ChildContext::take_nested).unwrap_or_default();
            let path = |child| format!("{name}/{child}");
            let named = nested.unstopped.into_iter().map(|one| UnstoppedChild { child: path(one.child), ..one });
            unstopped.extend(named);
            failed.extend(nested.failed.into_iter().map(|one| FailedChild { child: path(one.child), ..one }));
            // Of a nested supervisor that was dropped itself, or that left a child behind.
            for living in child.nested().map(Supervisor::living).unwrap_or_default() {
                let left = UnstoppedChild { child: format!("{name}/{living}"), how: Unstopped::Blocked };
                if !unstopped.iter().any(|named| named.child == left.child) {
                    unstopped.push(left);
                }
            }
        }
        StopReport { unstopped, failed }
    }
}
