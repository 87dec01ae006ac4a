//! The signals from a supervisor to one instance of a child.
//
// `phase` grows: RUN, then STOP, then DROP. `by` is stored before STOP is. The `Release` half of `fetch_max` publishes it
// to the `Acquire` loads of `phase`. A waiter enters itself (the waker of the task, or `notified`) before it reads the
// phase, and the sender raises the phase before it wakes, so that no signal is lost: `AtomicWaker` and `Notify` order the
// two sides.
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::task::Waker;

use futures_util::task::AtomicWaker;
use tokio::sync::Notify;

use crate::time::Instant;

const RUN: u8 = 0;
const STOP: u8 = 1;
const DROP: u8 = 2;

#[derive(Default)]
pub(super) struct Signal {
    phase: AtomicU8,
    by: AtomicU64,
    task: AtomicWaker,
    stopped: Notify,
}

impl Signal {
    /// Asks the child to stop until `by`.
    pub(super) fn stop(&self, by: Instant) {
        self.by.store(by.as_nanos(), Ordering::Relaxed);
        self.raise(STOP);
    }

    /// Asks the task to drop the child.
    pub(super) fn drop_child(&self) {
        self.raise(DROP);
        self.task.wake();
    }

    fn raise(&self, phase: u8) {
        if self.phase.fetch_max(phase, Ordering::AcqRel) == RUN {
            self.stopped.notify_waiters();
        }
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.phase.load(Ordering::Acquire) >= STOP
    }

    pub(super) fn is_dropped(&self) -> bool {
        self.phase.load(Ordering::Acquire) >= DROP
    }

    /// Returns the time until which the child must stop, once it was asked to.
    pub(super) fn stop_by(&self) -> Option<Instant> {
        self.is_stopping().then(|| Instant::from_nanos(self.by.load(Ordering::Relaxed)))
    }

    /// Sets the waker of the task that drops the child.
    pub(super) fn register(&self, waker: &Waker) {
        self.task.register(waker);
    }

    /// Waits until the child is asked to stop.
    pub(super) async fn stopping(&self) {
        loop {
            // Created before the check, so that a signal in between is received.
            let stopped = self.stopped.notified();
            if self.is_stopping() {
                return;
            }
            stopped.await;
        }
    }
}
