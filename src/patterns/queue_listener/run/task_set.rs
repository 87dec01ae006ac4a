//! A set of futures polled within one task. Each future is polled only after it was woken.
//!
//! The handlers of `run` borrow, so they cannot be spawned; and a run needs a callback after each
//! polled future, which futures-util's set does not offer.
//
// Concurrency. A place is in one of three states: asleep (`woken` is false), listed (`woken` is
// true and its index is in the list), or being polled.
//
// - A waker sets `woken` by a swap. Only the thread that changes it from false to true lists the
//   place, so a place is listed at most once.
// - `poll` takes the list, then clears the flag of a place before it polls its future. Both
//   accesses of the flag are read-modify-writes with `AcqRel`. A wake-up may precede the clear: then
//   the poll sees everything that the waking thread wrote. Or it follows: then it lists the place
//   again.
// - The first wake-up after a poll takes the parent's waker; later ones need not wake it again.
use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Wake, Waker},
};

use crate::sync::Mutex;

/// Futures without output. Each has a fixed place, and places are reused.
pub(crate) struct TaskSet<F> {
    places: Vec<Place<F>>,
    free: Vec<usize>,
    list: Arc<SharedWakeList>,
}

struct Place<F> {
    future: Option<Pin<Box<F>>>,
    waker: Waker,
    flag: Arc<Flag>,
}

/// Places woken since the last poll, and the waker of the surrounding task.
#[derive(Default)]
struct SharedWakeList(Mutex<WakeList>);

#[derive(Default)]
struct WakeList {
    woken: Vec<usize>,
    parent: Option<Waker>,
}

struct Flag {
    at: usize,
    /// `true` while the place is in the list of woken places.
    woken: AtomicBool,
    list: Arc<SharedWakeList>,
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.woken.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut wakes = self.list.0.lock();
        wakes.woken.push(self.at);
        let parent = wakes.parent.take();
        drop(wakes); // a waker may run code that comes back here
        if let Some(parent) = parent {
            parent.wake();
        }
    }
}

impl<F: Future<Output = ()>> TaskSet<F> {
    pub(crate) fn new() -> Self {
        Self { places: Vec::new(), free: Vec::new(), list: Arc::default() }
    }

    /// Adds a future, to be polled at the next [`poll`](Self::poll).
    pub(crate) fn add(&mut self, future: F) {
        let at = self.free.pop().unwrap_or_else(|| {
            let at = self.places.len();
            let flag = Arc::new(Flag { at, woken: AtomicBool::new(false), list: self.list.clone() });
            self.places.push(Place { future: None, waker: Waker::from(flag.clone()), flag });
            at
        });
        self.places[at].future = Some(Box::pin(future));
        self.places[at].waker.wake_by_ref();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.free.len() == self.places.len()
    }

    /// Polls each woken future once, and calls `after_each` after each of them.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, mut after_each: impl FnMut(&mut Context<'_>)) {
        let mut wakes = self.list.0.lock();
        wakes.parent = Some(cx.waker().clone());
        let mut woken = std::mem::take(&mut wakes.woken);
        drop(wakes);
        for at in woken.drain(..) {
            let place = &mut self.places[at];
            // Before the poll, so that a wake-up during it leads to another one. A
            // read-modify-write, so that it reads the `true` of a concurrent wake-up that did not
            // list the place, and with it what that thread wrote before.
            place.flag.woken.swap(false, Ordering::AcqRel);
            let Some(future) = &mut place.future else { continue };
            if future.as_mut().poll(&mut Context::from_waker(&place.waker)).is_ready() {
                place.future = None;
                self.free.push(at);
            }
            after_each(cx);
        }
        let mut wakes = self.list.0.lock();
        if wakes.woken.is_empty() {
            // Reuses the list's memory.
            wakes.woken = woken;
        } else if let Some(parent) = wakes.parent.take() {
            // A wake-up in between has woken the parent, unless the future woke itself while it was
            // polled.
            drop(wakes);
            parent.wake();
        }
    }
}
