//! Notices of commits. They only shorten waits: a reader polls beside.
use std::{future::pending, sync::Arc, time::Duration};

use bytes::Bytes;

use super::{send::ATTEMPT, store::EventStoreInner};
use crate::{
    notify::{Hints, Notifier},
    port::ask,
    sync::Mutex,
};

/// Publishes and receives notices of new commits.
pub(super) struct Announcer {
    notifier: Arc<dyn Notifier>,
    topic: String,
    publishing: Mutex<Publishing>,
    /// Held by the one waiting read that receives for all.
    hints: tokio::sync::Mutex<Hints>,
}

/// The task that publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Publishing {
    #[default]
    Idle,
    Running,
    /// A commit came while it published: it publishes once more.
    Again,
}

/// The notice of a topic whose partition 0 has new events.
const NOTICE: Bytes = Bytes::from_static(&[0, 0]);
/// Minimum time between two notices of a handle.
const APART: Duration = Duration::from_millis(5);
/// Time for which notices are not received after a gap.
const AFTER_GAP: Duration = Duration::from_secs(1);

impl Announcer {
    pub(super) fn new(notifier: Arc<dyn Notifier>, topic: String) -> Self {
        let hints = tokio::sync::Mutex::new(Hints::new(Duration::ZERO));
        Self { notifier, topic, publishing: Mutex::default(), hints }
    }

    /// Returns `true` if a task must begin to publish.
    fn begin(&self) -> bool {
        let mut publishing = self.publishing.lock();
        let is_idle = *publishing == Publishing::Idle;
        *publishing = if is_idle { Publishing::Running } else { Publishing::Again };
        is_idle
    }

    /// Returns `true` if the task must publish once more.
    fn end(&self) -> bool {
        let mut publishing = self.publishing.lock();
        let is_again = *publishing == Publishing::Again;
        *publishing = if is_again { Publishing::Running } else { Publishing::Idle };
        is_again
    }
}

/// The right of a task to publish. A task that is dropped gives it back.
struct Publisher {
    log: Arc<EventStoreInner>,
    has_ended: bool,
}

impl Publisher {
    fn end(mut self) {
        self.has_ended = true;
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        // Behind the end another task may publish already.
        if let Some(announcer) = self.log.announcer.as_ref().filter(|_| !self.has_ended) {
            *announcer.publishing.lock() = Publishing::Idle;
        }
    }
}

impl EventStoreInner {
    /// Wakes readers after a commit: those of this handle at once, others by a notice.
    pub(super) fn announce(self: &Arc<Self>) {
        self.changed.notify_waiters();
        if !self.announcer.as_ref().is_some_and(Announcer::begin) {
            return;
        }
        let publisher = Publisher { log: self.clone(), has_ended: false };
        self.spawner.spawn(async move {
            let inner = publisher.log.clone();
            while let Some(announcer) = &inner.announcer {
                // A lost notice costs the wait until the next poll.
                drop(ask(&inner.clock, ATTEMPT, announcer.notifier.publish(&announcer.topic, NOTICE)).await);
                inner.clock.sleep(APART).await;
                if !announcer.end() {
                    return publisher.end();
                }
            }
        });
    }

    /// Receives notices and wakes readers. One reader at a time does so for all of this handle.
    pub(super) async fn hear(&self) {
        let Some(announcer) = &self.announcer else { return pending().await };
        let mut hints = announcer.hints.lock().await;
        let subscribed = hints.subscribe(Some(&announcer.notifier), &announcer.topic, (&self.clock, ATTEMPT)).await;
        if subscribed.is_err() {
            return pending().await;
        }
        loop {
            hints.recv(&self.clock, AFTER_GAP, |_| true).await;
            self.changed.notify_waiters();
        }
    }
}
