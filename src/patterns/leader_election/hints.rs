//! Hints from other nodes: when it may be worth asking before it is time.
use std::time::Duration;

use super::{Call, LeaderElectionEvent as Event, election::Inner};
use crate::{
    notify::{Notice, Notices},
    race::{First, race},
    time::Instant,
};

/// Notices to a name's candidates: that it is free, and that its leader is asked to resign.
pub(super) const FREE: &str = "free";
pub(super) const RESIGN: &str = "resign";

/// How long after a notice the next one is acted on: short beside the 100 ms in which a resignation is to be answered, and enough that
/// a flood of notices is none of calls.
const APART: Duration = Duration::from_millis(50);

/// A subscription to hints, which makes no more calls of them than are good for the leases. Without a notifier it is silent.
pub(super) struct Hints {
    notices: Option<Notices>,
    /// Nothing is heard before.
    deaf_until: Instant,
}

impl Inner {
    pub(super) async fn subscribe(&self) -> Hints {
        Hints { notices: self.subscribed().await, deaf_until: Instant::default() }
    }

    /// `None` where it has to do without, and polls.
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

    /// Waits for this notice, or for a gap in which it may have been; for ever, without a notifier.
    pub(super) async fn heard(&self, hints: &mut Hints, what: &str) {
        let Some(notices) = &mut hints.notices else { return std::future::pending().await };
        if self.clock.now() < hints.deaf_until {
            self.clock.sleep_until(hints.deaf_until).await;
        }
        let apart = loop {
            match notices.recv().await {
                Notice::Message(notice) if notice == what.as_bytes() => break APART,
                Notice::Message(_) => {}
                // A line that breaks again and again is no better than polling, and must not be worse.
                Notice::Gap => break self.config.poll,
            }
        };
        hints.deaf_until = self.clock.now() + apart;
    }

    /// Tells the others. A notice that is lost is found by polling.
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
