//! Restarting one child on request, in its order with the others.
use std::sync::Arc;

use thiserror::Error;
use tokio::sync::oneshot;

use super::{
    Supervisor,
    component::Inner,
    context::Message,
    state::{Machine, Refusal},
};
use crate::config::ConfigError;

/// Error of [`ChildHandle::restart`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RestartError {
    /// The supervisor does not run, or stops all children.
    #[error("the supervisor does not run, or is stopping")]
    NotRunning,
    /// The child has ended for good, and is not started again.
    #[error("the child has ended for good")]
    Finished,
    /// The new instance failed before it was ready. Its restart follows its rules.
    #[error("the new instance failed: {cause}")]
    Failed {
        /// Text of the failure.
        cause: String,
    },
}

/// A child of a [`Supervisor`], for those that restart it: a change of settings, say. A clone is
/// the same child.
#[derive(Clone)]
pub struct ChildHandle {
    supervisor: Arc<Inner>,
    child: usize,
}

/// The place for the end of a restart that was asked for.
pub(super) type Reply = oneshot::Sender<Result<(), RestartError>>;

/// The restarts that callers wait for.
#[derive(Default)]
pub(super) struct Asked(Vec<(usize, u64, Reply)>);

impl Asked {
    /// Asks the machine for a restart.
    pub(super) fn restart(&mut self, machine: &mut Machine, child: usize, reply: Reply) {
        // A caller that has gone does not hear the answer.
        match machine.restart_on_request(child) {
            Ok(instance) => self.0.push((child, instance, reply)),
            Err(refusal) => drop(reply.send(Err(refusal.into()))),
        }
    }

    /// Answers the callers whose child is ready, or failed. The others wait for that.
    pub(super) fn answer(&mut self, machine: &Machine) {
        for (child, instance, reply) in std::mem::take(&mut self.0) {
            match machine.has_restarted(child, instance) {
                Some(end) => drop(reply.send(end)),
                None => self.0.push((child, instance, reply)),
            }
        }
    }
}

impl From<Refusal> for RestartError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Ending => Self::NotRunning,
            Refusal::Finished => Self::Finished,
        }
    }
}

impl Supervisor {
    /// Returns a handle of a child, by which it is restarted on request.
    ///
    /// # Errors
    /// If no child has this name.
    pub fn handle(&self, child: &str) -> Result<ChildHandle, ConfigError> {
        let position = self.0.children.iter().position(|other| other.name() == child);
        let Some(child) = position else {
            return Err(ConfigError::new("child", format!("must be one of the supervisor's, and `{child}` is none")));
        };
        Ok(ChildHandle { supervisor: self.0.clone(), child })
    }
}

impl ChildHandle {
    /// Returns the name of the child.
    pub fn name(&self) -> &str {
        self.supervisor.children[self.child].name()
    }

    /// Stops the child as a shutdown does, starts it again, and waits until the new instance is
    /// ready; one that is not waited for is ready when it starts. The other children go on,
    /// whatever the strategy is. The restart uses no budget, and ends the delay after a failure.
    ///
    /// # Errors
    /// If the supervisor does not run, if the child has ended for good, or if the new instance
    /// failed.
    ///
    /// # Cancel safety
    /// If the future was polled and is dropped, the child is restarted all the same.
    pub async fn restart(&self) -> Result<(), RestartError> {
        let (reply, answer) = oneshot::channel();
        let orders = self.supervisor.orders.lock().clone().ok_or(RestartError::NotRunning)?;
        // The message or its reply is dropped with the run.
        let sent = orders.send((self.child, 0, Message::Restart(reply)));
        sent.map_err(|_| RestartError::NotRunning)?;
        answer.await.unwrap_or(Err(RestartError::NotRunning))
    }
}

crate::build::debug_fields!(ChildHandle, |this| child: this.name());
