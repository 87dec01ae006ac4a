//! Notices between candidates, which make the next call of the lease happen earlier.
use std::time::Duration;

use super::{Call, LeaderElectionEvent as Event, election::ElectionInner};
use crate::{
    notify::Hints,
    port::{AskError, PortError, ask},
};

/// Contents of the notices: the name is free; the leader is asked to resign.
pub(super) const FREE: &str = "free";
pub(super) const RESIGN: &str = "resign";

/// Time after a notice before the next one is read. It is short beside the 100 ms
/// within which a successor leads, and bounds the calls that a flood of notices causes.
const APART: Duration = Duration::from_millis(50);

impl ElectionInner {
    /// Subscribes to notices. If there is no notifier or subscribing failed, the candidate polls.
    pub(super) async fn subscribe(&self) -> Hints {
        let mut hints = Hints::new(APART);
        let timing = (&self.clock, self.config.call_timeout);
        let subscribed = hints.subscribe(self.notifier.as_ref(), &self.topic, timing).await;
        self.notified(subscribed);
        hints
    }

    /// Waits for this notice, or for a gap that may have contained it. Without a notifier it never
    /// returns.
    pub(super) async fn heard(&self, hints: &mut Hints, what: &str) {
        hints.recv(&self.clock, self.config.poll, |notice| *notice == what.as_bytes()).await;
    }

    /// Publishes a notice. Receivers find what a lost notice told by polling.
    pub(super) async fn publish(&self, notice: &'static str) {
        let Some(notifier) = &self.notifier else { return };
        let published = notifier.publish(&self.topic, notice.into());
        self.notified(ask(&self.clock, self.config.call_timeout, published).await);
    }

    fn notified(&self, result: Result<(), AskError<PortError>>) {
        if let Err(error) = result {
            self.event(|| Event::CallFailed { call: Call::Notify, kind: error.kind(), left: None });
        }
    }
}
