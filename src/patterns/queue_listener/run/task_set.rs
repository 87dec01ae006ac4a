//! A set of futures polled within one task: each when it was woken, and only then.
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

/// Futures that end with nothing. They keep their place, and a place is used again.
pub(crate) struct Crew<F> {
    places: Vec<Place<F>>,
    free: Vec<usize>,
    bell: Arc<Bell>,
}

struct Place<F> {
    future: Option<Pin<Box<F>>>,
    waker: Waker,
    flag: Arc<Flag>,
}

/// Who was woken since the last look, and whom to tell.
#[derive(Default)]
struct Bell(Mutex<Rung>);

#[derive(Default)]
struct Rung {
    woken: Vec<usize>,
    parent: Option<Waker>,
}

struct Flag {
    at: usize,
    /// Is in the list already.
    woken: AtomicBool,
    bell: Arc<Bell>,
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.woken.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut rung = self.bell.0.lock();
        rung.woken.push(self.at);
        let parent = rung.parent.take();
        drop(rung); // a waker may run code that comes back here
        if let Some(parent) = parent {
            parent.wake();
        }
    }
}

impl<F: Future<Output = ()>> Crew<F> {
    pub(crate) fn new() -> Self {
        Self { places: Vec::new(), free: Vec::new(), bell: Arc::default() }
    }

    /// One more; it is polled at the next [`poll`](Self::poll).
    pub(crate) fn add(&mut self, future: F) {
        let at = self.free.pop().unwrap_or_else(|| {
            let at = self.places.len();
            let flag = Arc::new(Flag { at, woken: AtomicBool::new(false), bell: self.bell.clone() });
            self.places.push(Place { future: None, waker: Waker::from(flag.clone()), flag });
            at
        });
        self.places[at].future = Some(Box::pin(future));
        self.places[at].waker.wake_by_ref();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.free.len() == self.places.len()
    }

    /// Polls each that was woken, once; and calls this after each.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, mut after_each: impl FnMut(&mut Context<'_>)) {
        let mut rung = self.bell.0.lock();
        rung.parent = Some(cx.waker().clone());
        let mut woken = std::mem::take(&mut rung.woken);
        drop(rung);
        for at in woken.drain(..) {
            let place = &mut self.places[at];
            // Before the poll: who is woken during it is polled again.
            place.flag.woken.store(false, Ordering::Release);
            let Some(future) = &mut place.future else { continue };
            if future.as_mut().poll(&mut Context::from_waker(&place.waker)).is_ready() {
                place.future = None;
                self.free.push(at);
            }
            after_each(cx);
        }
        let mut rung = self.bell.0.lock();
        if rung.woken.is_empty() {
            // The list's room is used again.
            rung.woken = woken;
        } else if let Some(parent) = rung.parent.take() {
            // Whoever was woken meanwhile has told the parent, unless it was woken by itself while it was polled.
            drop(rung);
            parent.wake();
        }
    }
}
