//! Notices of appends. They only shorten waits: a reader polls beside.
use std::{collections::BTreeSet, future::pending, sync::Arc, time::Duration};

use bytes::Bytes;

use super::{
    Appended,
    store_topic::{ATTEMPT, StoreTopicInner},
};
use crate::{
    notify::{Hints, Notifier},
    port::ask,
    sync::Mutex,
    time::Instant,
};

/// Publishes and receives the numbers of partitions with new events.
pub(super) struct Announcer {
    notifier: Arc<dyn Notifier>,
    topic: String,
    pending: Mutex<Pending>,
    /// Held by the one waiting read that receives for all.
    hints: tokio::sync::Mutex<Hints>,
}

#[derive(Default)]
struct Pending {
    partitions: BTreeSet<u16>,
    /// Time before which no notice is published.
    silent_until: Instant,
    /// Time at which a task publishes the next one; in the past if there is none.
    due: Instant,
}

/// Minimum time between two notices of a handle. Partitions in between are in the next one, which a
/// task publishes: the last append before a pause must be announced, too.
const APART: Duration = Duration::from_millis(20);
/// Time limit of one notice, which delays the answer of its append.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time for which notices are not received after a gap.
const AFTER_GAP: Duration = Duration::from_secs(1);

/// Returns the notifier's topic with the notices of a topic of this identity.
pub(crate) fn notices_of(identity: &str) -> String {
    format!("stream/{identity}")
}

/// Returns the partitions that a notice names.
pub(super) fn partitions_in(notice: &Bytes) -> impl Iterator<Item = u16> + '_ {
    notice.chunks_exact(2).map(|number| u16::from_be_bytes([number[0], number[1]]))
}

impl Announcer {
    pub(super) fn new(notifier: Arc<dyn Notifier>, topic: String) -> Self {
        let hints = tokio::sync::Mutex::new(Hints::new(Duration::ZERO));
        Self { notifier, topic, pending: Mutex::default(), hints }
    }
}

impl StoreTopicInner {
    /// Wakes readers after an append: those of this handle at once, others by a notice.
    pub(super) async fn announce(self: &Arc<Self>, partition: u16, appended: &[Appended]) {
        if appended.iter().all(|appended| appended.is_duplicate) {
            return;
        }
        if let Ok(part) = self.part(partition) {
            part.changed.notify_waiters();
        }
        let Some(announcer) = &self.announcer else { return };
        let due = {
            let mut pending = announcer.pending.lock();
            pending.partitions.insert(partition);
            let due = pending.silent_until;
            let is_later = self.clock.now() < due && self.spawner.is_there();
            if is_later && std::mem::replace(&mut pending.due, due) == due {
                return;
            }
            is_later.then_some(due)
        };
        let Some(due) = due else { return self.publish(announcer).await };
        let inner = self.clone();
        self.spawner.spawn(async move {
            inner.clock.sleep_until(due).await;
            if let Some(announcer) = &inner.announcer {
                inner.publish(announcer).await;
            }
        });
    }

    /// Publishes the partitions with new events, if there are any.
    async fn publish(&self, announcer: &Announcer) {
        let notice = {
            let mut pending = announcer.pending.lock();
            pending.silent_until = self.clock.now() + APART;
            let partitions = std::mem::take(&mut pending.partitions);
            Bytes::from(partitions.into_iter().flat_map(u16::to_be_bytes).collect::<Vec<u8>>())
        };
        if !notice.is_empty() {
            // A lost notice costs the wait until the next poll.
            drop(ask(&self.clock, PATIENCE, announcer.notifier.publish(&announcer.topic, notice)).await);
        }
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
            // Only a gap ends it: a notice wakes its readers here.
            let wakes = |notice: &Bytes| {
                for partition in partitions_in(notice) {
                    if let Ok(part) = self.part(partition) {
                        part.changed.notify_waiters();
                    }
                }
                false
            };
            hints.recv(&self.clock, AFTER_GAP, wakes).await;
            self.parts.iter().for_each(|part| part.changed.notify_waiters());
        }
    }
}
