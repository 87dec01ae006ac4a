//! Notices between candidates, which make the next call of the lease happen earlier.
use std::time::Duration;

use super::{Call, LeaderElectionEvent as Event, election::ElectionInner};
use crate::{
    notify::{Notice, Notices},
    race::{First, race},
    time::Instant,
};

/// Contents of the notices: the name is free; the leader is asked to resign.
pub(super) const FREE: &str = "free";
pub(super) const RESIGN: &str = "resign";

/// Time after a notice before the next one is read. It is short beside the 100 ms
/// within which a successor leads, and bounds the calls that a flood of notices causes.
const APART: Duration = Duration::from_millis(50);

/// A subscription to notices with a bounded rate. Without a notifier it never yields one.
pub(super) struct Hints {
    notices: Option<Notices>,
    /// Time before which no notice is read.
    paused_until: Instant,
}

impl ElectionInner {
    pub(super) async fn subscribe(&self) -> Hints {
        Hints { notices: self.subscribed().await, paused_until: Instant::default() }
    }

    /// Returns `None` if there is no notifier or subscribing failed; the candidate then polls.
    async fn subscribed(&self) -> Option<Notices> {
        let subscribed = self.notifier.as_ref()?.subscribe(&self.topic);
        let kind = match race(subscribed, self.clock.sleep(self.config.call_timeout)).await {
            First::One(Ok(notices)) => return Some(notices),
            First::One(Err(error)) => Some(error.kind()),
            First::Other(()) => None,
        };
        self.event(|| Event::CallFailed { call: Call::Notify, kind, left: None });
        None
    }

    /// Waits for this notice, or for a gap that may have contained it. Without a notifier it never
    /// returns.
    pub(super) async fn heard(&self, hints: &mut Hints, what: &str) {
        let Some(notices) = &mut hints.notices else { return std::future::pending().await };
        if self.clock.now() < hints.paused_until {
            self.clock.sleep_until(hints.paused_until).await;
        }
        let apart = loop {
            match notices.recv().await {
                Notice::Message(notice) if notice == what.as_bytes() => break APART,
                Notice::Message(_) => {}
                // A connection that breaks repeatedly must cost no more calls than polling does.
                Notice::Gap => break self.config.poll,
            }
        };
        hints.paused_until = self.clock.now() + apart;
    }

    /// Publishes a notice. Receivers find what a lost notice told by polling.
    pub(super) async fn publish(&self, notice: &'static str) {
        let Some(notifier) = &self.notifier else { return };
        let published = notifier.publish(&self.topic, notice.into());
        let kind = match race(published, self.clock.sleep(self.config.call_timeout)).await {
            First::One(Ok(())) => return,
            First::One(Err(error)) => Some(error.kind()),
            First::Other(()) => None,
        };
        self.event(|| Event::CallFailed { call: Call::Notify, kind, left: None });
    }
}
