//! Notices of new events, which make a partition's owner read earlier than its next poll.
use std::{sync::Arc, task::Waker, time::Duration};

use tokio::sync::Notify;

use super::{StreamCall, component::ProcessorCore};
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

impl ProcessorCore {
    /// Receives the notices of the topic, for all partitions of this member. Never returns.
    pub(super) async fn hear(&self) {
        let topic = notices_of(&self.topic.identity());
        let timing = (&self.clock, self.call_timeout());
        let mut hints = Hints::new(Duration::ZERO);
        loop {
            if let Err(error) = hints.subscribe(self.notifier(), &topic, timing).await {
                self.failed(StreamCall::Notices, None, error.kind());
                self.clock.sleep(AFTER_GAP.saturating_mul(5)).await;
                continue;
            }
            let rings = |notice: &_| {
                partitions_in(notice).for_each(|partition| self.ring(partition));
                false
            };
            hints.recv(&self.clock, AFTER_GAP, rings).await;
            // Notices may have been lost.
            let all: Vec<u16> = self.alarms.lock().keys().copied().collect();
            all.into_iter().for_each(|partition| self.ring(partition));
        }
    }

    /// Returns the alarm of a partition of this member.
    pub(super) fn alarm(&self, partition: u16) -> Arc<Alarm> {
        self.alarms.lock().get(&partition).cloned().unwrap_or_default()
    }

    fn ring(&self, partition: u16) {
        let alarm: Option<Arc<Alarm>> = self.alarms.lock().get(&partition).cloned();
        if let Some(alarm) = alarm {
            alarm.ring();
        }
    }
}
