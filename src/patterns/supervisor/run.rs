//! Running the children: the shell around the machine.
use std::{
    future::{Future, pending},
    pin::pin,
    sync::Arc,
};

use thiserror::Error;
use tokio::sync::mpsc;

use super::{
    ChildContext, Supervisor, SupervisorEvent as Event, UnstoppedChild,
    component::Inner,
    context::{Message, Numbered},
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
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StopReport {
    /// The children that did not stop when they were asked to, in the order of their start.
    pub unstopped: Vec<UnstoppedChild>,
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
        let rules = inner.children.iter().map(|child| child.rules().clone()).collect();
        let mut machine = Machine::new(inner.config, rules, inner.entropy.clone());
        let mut instances = Instances(vec![None; inner.children.len()]);
        let (mut shutdown, mut is_shut) = (pin!(shutdown), false);
        let mut parent_waits = parent;
        let outcome = loop {
            for action in machine.advance(inner.now()) {
                inner.act(action, &mut instances, &send);
            }
            inner.show(&mut machine);
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
                    inner.take(&mut machine, child, instance, message);
                }
                First::Other(_) => {}
            }
        };
        let unstopped = inner.unstopped(&machine, &instances);
        match outcome {
            Outcome::Stopped => Ok(StopReport { unstopped }),
            Outcome::Escalated { child } => {
                let slot = &machine.slots[child];
                let causes = slot.causes.iter().cloned().collect();
                Err(SupervisorError::Escalated { child: slot.rules.name.clone(), causes, unstopped })
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
                let meter = (Arc::clone(&self.meters[index]), self.clock.clone());
                let task = ChildTask::new(context, child.factory(), meter, self.config.slow_poll, child.share());
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

    fn take(&self, machine: &mut Machine, child: usize, instance: u64, message: Message) {
        let now = self.now();
        match message {
            Message::Ready => machine.ready(child, instance, now),
            Message::Ended(end) => machine.ended(child, instance, end, now),
            Message::SlowPoll(took) => {
                let child = self.children[child].rules().name.clone();
                machine.events.push(Event::SlowPoll { child, took });
            }
        }
    }

    /// Returns the children that did not stop, with those of nested supervisors.
    fn unstopped(&self, machine: &Machine, instances: &Instances) -> Vec<UnstoppedChild> {
        let mut unstopped = Vec::new();
        for (slot, context) in machine.slots.iter().zip(&instances.0) {
            let name = &slot.rules.name;
            if let Some(how) = slot.unstopped {
                unstopped.push(UnstoppedChild { child: name.to_string(), how });
            }
            let nested = context.as_ref().map(ChildContext::take_unstopped).unwrap_or_default();
            let named = nested.into_iter().map(|UnstoppedChild { child, how }| {
                let child = format!("{name}/{child}");
                UnstoppedChild { child, how }
            });
            unstopped.extend(named);
        }
        unstopped
    }
}
