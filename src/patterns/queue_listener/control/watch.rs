//! Reading of the control's records by a run, and their effects.
use std::{future::pending, time::Duration};

use crate::{
    backoff::Backoff,
    notify::Hints,
    queue::QueueError,
    queue_listener::{
        QueueCall, QueueListenerEvent as Event,
        control::state::{Changes, ControlState},
        lease::Lease,
        listener::Inner,
        run::requests::Requests,
        settle::PendingSettlement,
    },
    race::{First, race},
};

/// Minimum interval between two reads that notices cause.
const APART: Duration = Duration::from_millis(50);

impl Inner {
    fn control_state(&self) -> Option<&ControlState> {
        self.control.as_deref()
    }

    /// Returns `true` if messages are cancelled, so that each has to be compared.
    #[inline]
    pub(crate) fn has_cancelled(&self) -> bool {
        self.control_state().is_some_and(ControlState::has_cancelled)
    }

    /// Returns `true` if the message is cancelled.
    #[inline]
    pub(crate) fn is_cancelled(&self, lease: &Lease) -> bool {
        self.control_state().is_some_and(|state| state.is_cancelled(lease.source, &lease.id))
    }

    /// Returns `true` if the control has paused this queue.
    #[inline]
    pub(crate) fn is_source_paused(&self, source: usize) -> bool {
        self.control_state().is_some_and(|state| state.is_paused(source))
    }

    /// Returns `true` if the next poll has to wait for a read of the records.
    #[inline]
    pub(crate) fn awaits_control(&self) -> bool {
        let Some(state) = self.control_state() else { return false };
        let now = self.clock.now();
        let waits = state.delays_polls(now);
        if !waits && state.due() <= now {
            state.asked.notify_one();
        }
        waits
    }

    /// Lets the records be read if that is due, beside the caller.
    pub(crate) fn ride(&self) {
        if let Some(state) = self.control_state()
            && state.due() <= self.clock.now()
        {
            state.asked.notify_one();
        }
    }

    fn obey(&self, changes: &Changes) {
        let Some(state) = self.control_state() else { return };
        let identity = |source: usize| self.sources[source].queue.identity();
        changes.paused.iter().for_each(|source| self.event(|| Event::QueuePaused { queue: identity(*source) }));
        changes.resumed.iter().for_each(|source| self.event(|| Event::QueueResumed { queue: identity(*source) }));
        let all_are_paused = state.paused() == Some(self.sources.len());
        self.paused.send_if_modified(|paused| {
            let before = *paused;
            (paused.is_unknown, paused.by_control) = (false, all_are_paused);
            *paused != before
        });
        if state.next_ended().is_some() {
            // Their deletion failed, and is tried again.
            state.asked.notify_one();
        }
        if changes.paused.is_empty() && changes.resumed.is_empty() && !state.has_cancelled() {
            return;
        }
        // The interval of the reads may have begun, if another task made this one.
        state.asked.notify_one();
        for run in self.runs.all() {
            changes.paused.iter().for_each(|source| run.release_waiting_of(*source));
            run.lifecycle.nudge();
            if !changes.resumed.is_empty() {
                // Notices of messages that were sent during the pause led to no poll of their queue.
                run.call();
            }
        }
    }

    /// Records which cancelled messages ended with these settlements.
    #[cold]
    pub(crate) fn note_ended(&self, settlements: &[PendingSettlement], answers: &[Result<(), QueueError>]) {
        let Some(state) = self.control_state() else { return };
        for (settlement, answer) in settlements.iter().zip(answers) {
            if answer.is_ok() && settlement.decision.ends_the_message() {
                state.ended(settlement.lease.source, &settlement.lease.id);
            }
        }
    }
}

impl Requests {
    /// Reads the records if that is due. Callers at the same time share one read.
    pub(crate) async fn read_control(&self) {
        let Some(state) = self.inner.control_state() else { return };
        let _one = state.reading.lock().await;
        if state.due() > self.inner.clock.now() {
            return;
        }
        // Before the requests, so that a notice in between makes another read due.
        state.read_at(self.inner.clock.now() + state.control.interval());
        let limit = self.inner.call_limit();
        let mut records = Vec::with_capacity(state.partitions.len());
        for partition in &state.partitions {
            self.inner.counters.control_reads.add(1);
            match self.make(QueueCall::Control, limit, state.control.read(partition)).await {
                Some(Ok(read)) => records.push(read),
                _ => {
                    let pauses = Backoff::checked(self.inner.config.load().busy, &self.inner.entropy);
                    let pause = { pauses }.nth(state.failed().min(64)).unwrap_or_default();
                    return state.read_at(self.inner.clock.now() + pause.min(state.control.interval()));
                }
            }
        }
        self.inner.obey(&state.replace(records));
    }

    /// Subscribes to notices and reads the records until the run ends: at its begin, after each
    /// notice, when another task asks for it, and at intervals while a queue is paused.
    pub(crate) async fn watch_control(&self) {
        let Some(state) = self.inner.control_state() else { return pending().await };
        let clock = &self.inner.clock;
        let mut hints = Hints::new(APART);
        let mut pauses = Backoff::checked(self.inner.config.load().busy, &self.inner.entropy);
        let mut is_subscribed = false;
        state.expire();
        loop {
            let mut again = None;
            if let Some((notifier, topic)) = state.control.notices()
                && !is_subscribed
            {
                let timing = (clock, self.inner.call_limit());
                match hints.subscribe(Some(notifier), topic.as_str(), timing).await {
                    // Changes before the subscription had no notice for this listener.
                    Ok(()) => {
                        is_subscribed = true;
                        state.expire();
                    }
                    Err(error) => {
                        self.inner.event(|| Event::CallFailed { call: QueueCall::Notify, kind: error.kind() });
                        again = Some(clock.now() + pauses.next().unwrap_or_default());
                    }
                }
            }
            self.read_control().await;
            self.forget_ended().await;
            // Without polls nothing else reads the records.
            let is_halted = state.paused().is_none_or(|paused| paused > 0);
            let until = is_halted.then(|| state.due()).into_iter().chain(again).min();
            let timer = async {
                match until {
                    Some(until) => clock.sleep_until(until).await,
                    None => pending().await,
                }
            };
            let heard = hints.recv(clock, state.control.interval(), |_| true);
            if let First::One(()) = race(heard, race(state.asked.notified(), timer)).await {
                state.expire();
            }
        }
    }

    /// Deletes the records of cancelled messages that ended. If that fails, the rest is tried again
    /// after the next read.
    async fn forget_ended(&self) {
        let Some(state) = self.inner.control_state() else { return };
        let limit = self.inner.call_limit();
        while let Some((source, id)) = state.next_ended() {
            let forgotten = state.control.forget(&state.partitions[source], &id);
            if !matches!(self.make(QueueCall::Control, limit, forgotten).await, Some(Ok(_))) {
                return;
            }
            state.forgotten(source, &id);
        }
    }
}

/// Reasons for which a listener takes no messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in super::super) struct Paused {
    /// The listener was paused.
    pub(in super::super) by_listener: bool,
    /// The control paused all its queues.
    pub(in super::super) by_control: bool,
    /// The records of the control were not read yet.
    pub(in super::super) is_unknown: bool,
}

impl Paused {
    pub(in super::super) const fn halts(self) -> bool {
        self.by_listener || self.by_control || self.is_unknown
    }
}
