//! The partitions that a member owns, and the notices of new events, which make an owner read
//! earlier than its next poll.
use std::{collections::BTreeMap, convert::Infallible, sync::Arc, task::Waker, time::Duration};

use tokio::sync::Notify;

use super::{PartitionState, StreamCall, component::ProcessorCore};
use crate::{
    notify::Hints,
    stream::notices::{notices_of, partitions_in},
    sync::Mutex,
};

/// Time for which notices are not received after a gap, and before another try to subscribe.
const AFTER_GAP: Duration = Duration::from_secs(1);

/// Wakes the owner of one partition. A ring before it waits is kept.
#[derive(Debug, Default)]
pub(super) struct Alarm {
    state: Mutex<AlarmState>,
    /// Tells the owner to claim the partition anew.
    pub(super) resume: Notify,
}

#[derive(Debug, Default)]
struct AlarmState {
    has_rung: bool,
    waker: Option<Waker>,
}

impl Alarm {
    fn ring(&self) {
        let mut state = self.state.lock();
        state.has_rung = true;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Returns `true` if it has rung since the last call. The waker is woken by the next ring.
    pub(super) fn take(&self, waker: &Waker) -> bool {
        let mut state = self.state.lock();
        match &mut state.waker {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        std::mem::take(&mut state.has_rung)
    }
}

/// The partitions that a member owns.
#[derive(Default)]
pub(super) struct Holdings {
    pub(super) owned: Mutex<BTreeMap<u16, PartitionState>>,
    alarms: Mutex<BTreeMap<u16, Arc<Alarm>>>,
    /// Wakes the announcement of a change of `owned`.
    pub(super) announce: Notify,
    /// Wakes the next look at the members.
    pub(super) look: Notify,
}

impl Holdings {
    pub(super) fn add(&self, state: PartitionState) {
        self.alarms.lock().insert(state.partition, Arc::default());
        self.owned.lock().insert(state.partition, state);
        self.announce.notify_one();
    }

    pub(super) fn remove(&self, partition: u16) {
        self.owned.lock().remove(&partition);
        self.alarms.lock().remove(&partition);
        self.announce.notify_one();
        self.look.notify_one();
    }

    /// Returns the alarm of a partition, if this member owns it.
    pub(super) fn alarm(&self, partition: u16) -> Option<Arc<Alarm>> {
        self.alarms.lock().get(&partition).cloned()
    }

    fn ring(&self, partition: u16) {
        if let Some(alarm) = self.alarm(partition) {
            alarm.ring();
        }
    }

    /// Receives the notices of the topic, for all partitions, and never returns.
    pub(super) async fn hear(&self, core: &ProcessorCore) -> Infallible {
        let topic = notices_of(&core.topic.identity());
        let timing = (&core.clock, core.call_timeout());
        let mut hints = Hints::new(Duration::ZERO);
        loop {
            if let Err(error) = hints.subscribe(core.elections.notifier(), &topic, timing).await {
                core.failed(StreamCall::Notices, None, error.kind());
                core.clock.sleep(AFTER_GAP.saturating_mul(5)).await;
                continue;
            }
            let rings = |notice: &_| {
                partitions_in(notice).for_each(|partition| self.ring(partition));
                false
            };
            hints.recv(&core.clock, AFTER_GAP, rings).await;
            // Notices may have been lost.
            let all: Vec<u16> = self.alarms.lock().keys().copied().collect();
            all.into_iter().for_each(|partition| self.ring(partition));
        }
    }
}
