//! The tasks of a run: their number, the calls to poll, and the tasks that wait.
//
// Concurrency. With `run_on` the tasks of a run are on several threads.
//
// - `calls` is raised before the lock of `scaler` is taken, and `may_end` reads it under that lock.
//   So a task that ends has seen the call, or the call sees its end and starts another task.
// - `handling` is raised before the lock of `scaler` is taken to start a task, and `may_end` reads
//   it under that lock. So a task that ends has seen the handler, or the handler sees its end.
// - `idle` is raised before `idles` is notified; a waiter creates the future of `idles` before it
//   reads `idle`, so that it misses no change.
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

use tokio::sync::Notify;

use crate::{
    in_progress::{InProgress, InProgressGuard},
    queue_listener::{QueueListenerEvent as Event, listener::Inner, run::scaler::Scaler},
    sync::Mutex,
};

/// Tasks of one run.
pub(crate) struct Tasks {
    inner: Arc<Inner>,
    scaler: Mutex<Scaler>,
    /// Number of tasks of the scaler. Read for each poll, without a lock.
    number: AtomicU32,
    /// Number of calls: reasons to poll. A task that has not seen the latest must poll again before
    /// it ends.
    calls: AtomicU64,
    /// Notified when there are tasks to start.
    pub(crate) to_spawn: Notify,
    /// Notifies one idle task that messages wait.
    pub(crate) offered: Notify,
    /// Notifies all idle tasks of a call.
    pub(crate) called: Notify,
    /// Number of tasks that wait for the next poll.
    pub(crate) idle: InProgress,
    /// Notified when a task starts to wait for the next poll.
    pub(crate) idles: Notify,
    /// Number of tasks that wait for the end of a pause.
    pub(crate) parked: InProgress,
    /// Number of tasks that wait for a handler, and poll for no other message.
    pub(crate) handling: InProgress,
    /// `true` while there is no subscription to notices, so that a task has to poll.
    pub(crate) without_hints: AtomicBool,
}

impl Tasks {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        let config = inner.config.now();
        Self {
            scaler: Mutex::new(Scaler::new(config.min_tasks, config.max_tasks)),
            number: AtomicU32::new(0),
            calls: AtomicU64::new(0),
            to_spawn: Notify::new(),
            offered: Notify::new(),
            called: Notify::new(),
            idle: InProgress::default(),
            idles: Notify::new(),
            parked: InProgress::default(),
            handling: InProgress::default(),
            without_hints: AtomicBool::new(inner.hints.is_none()),
            inner,
        }
    }

    pub(crate) fn scaler<T>(&self, change: impl FnOnce(&mut Scaler) -> T) -> T {
        let mut scaler = self.scaler.lock();
        let before = scaler.tasks;
        let result = change(&mut scaler);
        if scaler.tasks != before {
            // Under the lock, so that it has the value of the latest change.
            self.number.store(scaler.tasks, Ordering::Relaxed);
            // The listener may have other runs, so their tasks are kept. The difference wraps.
            let counters = &self.inner.counters;
            let more = scaler.tasks.wrapping_sub(before);
            let all = counters.tasks.fetch_add(more, Ordering::Relaxed).wrapping_add(more);
            counters.most_tasks.fetch_max(all, Ordering::Relaxed);
        }
        result
    }

    #[inline]
    pub(crate) fn number(&self) -> u32 {
        self.number.load(Ordering::Relaxed)
    }

    /// Takes over the bounds of the number of tasks from the settings in effect, read under the
    /// lock of `scaler`, so that the last of several changes stays.
    pub(crate) fn take_bounds(&self) {
        self.scaler(|scaler| {
            let config = self.inner.config.load();
            (scaler.min, scaler.max) = (config.min_tasks, config.max_tasks);
        });
    }

    /// Returns `true` if there are more tasks than a change of the settings permits, and the asking
    /// one, which has no message, ends.
    pub(crate) fn ends_surplus(&self) -> bool {
        if self.number() <= self.inner.config.load().max_tasks {
            return false;
        }
        let (ends, tasks) = self.scaler(|scaler| (scaler.ends_surplus(), scaler.tasks));
        if ends {
            self.inner.event(|| Event::ScaledDown { tasks });
        }
        ends
    }

    /// Calls all idle tasks to poll, and starts a task if there is none.
    pub(crate) fn call(&self) {
        // First, so that a task that decides whether to end has seen the call or is counted.
        self.calls.fetch_add(1, Ordering::SeqCst);
        let one_polls = self.one_polls();
        if self.scaler(|scaler| scaler.grow_to(one_polls())) > 0 {
            self.to_spawn.notify_one();
        }
        self.called.notify_waiters();
    }

    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    /// Returns the number of tasks that must not end, under the lock of `scaler`: at least one that
    /// polls if no notice can arrive or returned messages are expected.
    pub(crate) fn least(&self, expects_returns: bool) -> impl Fn() -> u32 {
        let looks = self.without_hints.load(Ordering::Acquire) || expects_returns;
        let idle = self.inner.config.load().min_tasks.max(u32::from(looks));
        let one_polls = self.one_polls();
        move || if idle > 0 { idle.max(one_polls()) } else { 0 }
    }

    /// Returns the number of tasks of which one handles no message and so polls, as far as the rule
    /// for one waiting message allows, under the lock of `scaler`.
    fn one_polls(&self) -> impl Fn() -> u32 {
        // Not under the lock: the rule is the user's.
        let most = (self.inner.rule)(1).max(1);
        move || self.handling.get().saturating_add(1).min(most)
    }

    /// Decides whether a task that knew this number of calls and found nothing for long may end.
    pub(crate) fn may_end(&self, knew: u64, expects_returns: bool) -> bool {
        let least = self.least(expects_returns);
        let (ends, tasks) = self.scaler(|scaler| (scaler.may_end(self.calls() == knew, least()), scaler.tasks));
        if ends {
            self.inner.event(|| Event::ScaledDown { tasks });
        }
        ends
    }

    /// Counts a task that waits for its next poll.
    pub(crate) fn begin_idle(&self) -> Option<InProgressGuard<'_>> {
        self.inner.wakes().then(|| {
            let idle = self.idle.enter(1);
            self.idles.notify_waiters();
            idle
        })
    }
}
