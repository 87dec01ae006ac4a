//! Timers of a thread that blocks: they fire when the thread waits in `block_on`.
use std::{
    cell::RefCell,
    collections::BTreeMap,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use super::{Clock, Instant, block_on::arms_timer, clock::system_now};
use crate::sync::Mutex;

thread_local! {
    /// Kept until the thread ends. Only threads that have waited have one.
    static TIMERS: RefCell<Option<Arc<Timers>>> = const { RefCell::new(None) };
}

/// The waits of one thread, by the system's time. Only their thread adds entries and fires them;
/// any thread may remove one.
#[derive(Default)]
struct Timers(Mutex<Entries>);

#[derive(Default)]
struct Entries {
    next_id: u64,
    due: BTreeMap<Key, Waker>,
}

type Key = (Instant, u64);

impl Timers {
    fn of_this_thread() -> Arc<Self> {
        TIMERS.with_borrow_mut(|timers| timers.get_or_insert_default().clone())
    }

    fn add(&self, at: Instant, waker: Waker) -> Key {
        let mut entries = self.0.lock();
        entries.next_id += 1;
        let key = (at, entries.next_id);
        entries.due.insert(key, waker);
        key
    }

    fn remove(&self, key: Key) {
        let removed = self.0.lock().due.remove(&key);
        drop(removed); // without the lock, as a waker may run foreign code
    }

    /// Wakes what is due at `now`, and returns the time of the next entry.
    fn fire(&self, now: Instant) -> Option<Instant> {
        loop {
            let mut entries = self.0.lock();
            let first = entries.due.first_entry()?;
            let at = first.key().0;
            if at > now {
                return Some(at);
            }
            let waker = first.remove();
            drop(entries);
            waker.wake();
        }
    }
}

/// Fires the due timers of this thread, and returns the system's time at which the next one is due.
pub(super) fn fire_due() -> Option<Instant> {
    let timers = TIMERS.with_borrow(Clone::clone)?;
    timers.fire(system_now())
}

/// Wakes all that waits on this thread's timers. Each wait that goes on arms a timer where it is
/// polled next.
#[cold]
pub(super) fn hand_over() {
    if let Some(timers) = TIMERS.with_borrow(Clone::clone) {
        timers.fire(Instant::FAR_FUTURE);
    }
}

/// One wait on a timer of the thread that polls it; removes its entry on drop.
pub(super) struct Timer {
    clock: Clock,
    entry: Option<Entry>,
}

struct Entry {
    timers: Arc<Timers>,
    key: Key,
    /// Reading of the clock when the entry was made.
    read: Instant,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.timers.remove(self.key);
    }
}

impl Timer {
    pub(super) const fn new(clock: Clock) -> Self {
        Self { clock, entry: None }
    }

    pub(super) const fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Waits until `at` by the clock. The thread must be in `block_on`.
    pub(super) fn poll(&mut self, at: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let (now, real) = (self.clock.now(), system_now());
        if let Some(Entry { key, read, .. }) = &self.entry {
            assert!(
                now > *read || real < key.0,
                "tokio's time is paused, and a thread that blocks cannot move it: test blocking code with a manual clock"
            );
        }
        self.entry = None;
        if now >= at {
            return Poll::Ready(());
        }
        let timers = Timers::of_this_thread();
        let key = timers.add(real + (at - now), cx.waker().clone());
        self.entry = Some(Entry { timers, key, read: now });
        arms_timer();
        Poll::Pending
    }
}
