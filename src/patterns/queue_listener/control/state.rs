//! The records of a listener's queues, as the listener read them last.
//
// Concurrency. With `run_on` the tasks of a run are on several threads.
//
// - `has_cancelled` and `has_paused` mirror `view` and are written under its lock, with `Release`;
//   their `Acquire` loads only decide whether the lock is taken. A task that reads them before a
//   change acts on the records of before, as if it had been faster than the read.
// - `due` is written before a read is sent, and by a notice. A notice that arrives during a read
//   makes the next read due at once. No data is read on the strength of it or of `is_failing`, so
//   `Relaxed` suffices.
use std::{
    mem,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use tokio::sync::Notify;

use super::{QueueControl, Records};
use crate::{queue::MessageId, sync::Mutex, time::Instant};

/// The control of a listener, and the records that were read last.
pub(in super::super) struct ControlState {
    pub(super) control: QueueControl,
    /// Partitions of the sources' records.
    pub(super) partitions: Vec<String>,
    /// Held during a read, so that tasks share one.
    pub(super) reading: tokio::sync::Mutex<()>,
    /// Nanoseconds at which the next read is due.
    due: AtomicU64,
    view: Mutex<View>,
    has_cancelled: AtomicBool,
    has_paused: AtomicBool,
    /// `true` if the last read failed.
    is_failing: AtomicBool,
    /// Notified when a read is due, or a cancelled message ended.
    pub(super) asked: Notify,
}

#[derive(Default)]
struct View {
    /// Records by source; empty until the first read.
    records: Vec<Records>,
    /// Cancelled messages that ended, by source. Their records are to be deleted.
    ended: Vec<(usize, MessageId)>,
    /// Consecutive reads that failed.
    failures: usize,
}

/// A difference between two reads.
pub(super) struct Changes {
    /// Sources that were paused.
    pub(super) paused: Vec<usize>,
    /// Sources that were resumed.
    pub(super) resumed: Vec<usize>,
}

impl ControlState {
    pub(in super::super) fn new(control: QueueControl, partitions: Vec<String>) -> Self {
        Self {
            control,
            partitions,
            reading: tokio::sync::Mutex::default(),
            due: AtomicU64::new(0),
            view: Mutex::default(),
            has_cancelled: AtomicBool::new(false),
            has_paused: AtomicBool::new(false),
            is_failing: AtomicBool::new(false),
            asked: Notify::new(),
        }
    }

    /// Returns the minimum interval between two reads without a notice.
    pub(in super::super) fn interval(&self) -> Duration {
        self.control.interval()
    }

    pub(super) fn due(&self) -> Instant {
        Instant::from_nanos(self.due.load(Ordering::Relaxed))
    }

    pub(super) fn read_at(&self, at: Instant) {
        self.due.store(at.as_nanos(), Ordering::Relaxed);
    }

    /// Returns `true` if a poll has to wait for a read that is due or under way. While reads fail,
    /// polls do not wait, so that an outage of the store is none of the queue.
    pub(super) fn delays_polls(&self, now: Instant) -> bool {
        !self.is_failing.load(Ordering::Relaxed) && (self.due() <= now || self.reading.try_lock().is_err())
    }

    /// Makes a read due at once.
    pub(super) fn expire(&self) {
        self.due.store(0, Ordering::Relaxed);
    }

    pub(in super::super) fn has_cancelled(&self) -> bool {
        self.has_cancelled.load(Ordering::Acquire)
    }

    pub(in super::super) fn is_cancelled(&self, source: usize, id: &MessageId) -> bool {
        self.has_cancelled()
            && self.view.lock().records.get(source).is_some_and(|records| records.cancelled.contains(&id.to_string()))
    }

    pub(in super::super) fn is_paused(&self, source: usize) -> bool {
        self.has_paused.load(Ordering::Acquire)
            && self.view.lock().records.get(source).is_some_and(|records| records.is_paused)
    }

    /// Returns the number of paused queues, or `None` before the first read.
    pub(in super::super) fn paused(&self) -> Option<usize> {
        let view = self.view.lock();
        (!view.records.is_empty()).then(|| view.records.iter().filter(|records| records.is_paused).count())
    }

    /// Replaces the records of all sources.
    pub(super) fn replace(&self, mut records: Vec<Records>) -> Changes {
        let mut view = self.view.lock();
        view.failures = 0;
        self.is_failing.store(false, Ordering::Relaxed);
        for (source, id) in &view.ended {
            records[*source].cancelled.remove(&id.to_string());
        }
        let before = mem::replace(&mut view.records, records);
        self.mirror(&view);
        let was = |source: usize| before.get(source).is_some_and(|records| records.is_paused);
        let now = |source: usize| view.records[source].is_paused;
        let sources = 0..view.records.len();
        Changes {
            paused: sources.clone().filter(|source| now(*source) && !was(*source)).collect(),
            resumed: sources.filter(|source| was(*source) && !now(*source)).collect(),
        }
    }

    /// Counts a failed read, and returns the number of those before it.
    pub(super) fn failed(&self) -> usize {
        let mut view = self.view.lock();
        view.failures += 1;
        self.is_failing.store(true, Ordering::Relaxed);
        view.failures - 1
    }

    /// Records that a cancelled message ended.
    pub(in super::super) fn ended(&self, source: usize, id: &MessageId) {
        let mut view = self.view.lock();
        if view.records.get_mut(source).is_some_and(|records| records.cancelled.remove(&id.to_string())) {
            view.ended.push((source, id.clone()));
            self.mirror(&view);
            drop(view);
            self.asked.notify_one();
        }
    }

    /// Returns a message whose record is to be deleted.
    pub(super) fn next_ended(&self) -> Option<(usize, MessageId)> {
        self.view.lock().ended.first().cloned()
    }

    /// Records that the record of this message was deleted.
    pub(super) fn forgotten(&self, source: usize, id: &MessageId) {
        self.view.lock().ended.retain(|ended| (ended.0, &ended.1) != (source, id));
    }

    fn mirror(&self, view: &View) {
        self.has_cancelled.store(view.records.iter().any(|records| !records.cancelled.is_empty()), Ordering::Release);
        self.has_paused.store(view.records.iter().any(|records| records.is_paused), Ordering::Release);
    }
}
