//! The deadline that a time-out adds to the context, and the work that runs until then.
//
// `Deadline` is shared by reference with everything inside a time-out, so its fields are atomics.
// All accesses are `Relaxed`. One task at a time polls a call, so in practice no two threads access
// a deadline at once, and the executor synchronises when the task moves to another thread. Safety
// never depends on that: each field is a plain number, and `covered_by` is compared, never
// dereferenced.
//
// States of `at`: 0 until the first use, then the deadline. `given` is stored before `at`; only the
// time-out itself reads it, after its own `at` is set.
//
// `covered_by` avoids one timer per nested time-out. Invariant: if it equals the waker of the
// current poll, then an inner timer is armed with that waker and fires no later than this deadline.
//   set      by `over` of the next inner deadline, in the poll in which its timer is pending
//   read     by `over` of this deadline, in the same poll and after the work, then reset to null
//   cleared  by `Armed::drop` for all outer deadlines, when the inner timer goes away
// An address is enough: the waker lives until the end of the poll, so no other waker can have its
// address in between. If an inner policy does not poll its work, or polls it with another waker,
// nothing is set or the addresses differ, and this deadline arms its own timer.
use std::{
    future::{Future, pending, poll_fn},
    pin::{Pin, pin},
    ptr,
    sync::atomic::{AtomicPtr, AtomicU64, Ordering::Relaxed},
    task::{Context, Poll, Waker},
    time::Duration,
};

use super::{CallContext, Cold};
use crate::time::{Clock, Instant};

/// A deadline that is computed on its first use, so that a call that is ready at once reads no
/// clock.
///
/// The time counts from the moment when the call first waits, or when an inner policy or the
/// operation first reads the deadline.
#[derive(Debug)]
pub(crate) struct Deadline<'a> {
    /// Nanoseconds; 0 until the deadline is computed.
    at: AtomicU64,
    /// Time that the work was given, in nanoseconds: from the first use to this deadline, or to a
    /// nearer outer one.
    given: AtomicU64,
    clock: &'a Clock,
    /// The time-out in nanoseconds. It may change while in use; a deadline reads it once.
    timeout: &'a AtomicU64,
    outer: CallContext<'a>,
    /// Address of the waker of the current poll, if an inner timer was registered with it in this
    /// poll and is still armed. An inner deadline is never later than an outer one, so that timer
    /// wakes the task in time for this deadline, too.
    covered_by: AtomicPtr<Waker>,
}

impl<'a> Deadline<'a> {
    #[inline]
    pub(crate) const fn new(clock: &'a Clock, timeout: &'a AtomicU64, outer: CallContext<'a>) -> Self {
        let covered_by = AtomicPtr::new(ptr::null_mut());
        Self { at: AtomicU64::new(0), given: AtomicU64::new(u64::MAX), clock, timeout, outer, covered_by }
    }

    /// Returns the deadline: this one's or an outer one's, whichever is nearer.
    pub(crate) fn at(&self) -> Instant {
        self.at_by(None)
    }

    /// As [`at`](Self::at), with a reading of a clock: one reading serves all deadlines that begin
    /// now.
    pub(super) fn at_by(&self, reading: Option<(&Clock, Instant)>) -> Instant {
        match self.at.load(Relaxed) {
            0 => {
                let now = match reading {
                    Some((clock, now)) if clock.is_same(self.clock) => now,
                    _ => self.clock.now(),
                };
                let mut given = self.timeout.load(Relaxed);
                let mut at = Instant::from_nanos(now.as_nanos().saturating_add(given));
                if let Some(outer) = self.outer.deadline_by(Some((self.clock, now)))
                    && outer < at
                {
                    at = outer;
                    given = at.as_nanos().saturating_sub(now.as_nanos());
                }
                self.given.store(given, Relaxed);
                self.at.store(at.as_nanos().max(1), Relaxed);
                at
            }
            nanos => Instant::from_nanos(nanos),
        }
    }

    /// Returns the time that the work was given: the time-out, or the rest of an outer one.
    pub(crate) fn given(&self) -> Duration {
        Duration::from_nanos(self.given.load(Relaxed))
    }

    /// Waits for the deadline. The caller polls it after the work, in each poll that leaves the
    /// work pending.
    ///
    /// It arms a timer unless an inner one wakes this task in time. The future is created here and
    /// not stored in a slot, as storing would copy it.
    #[inline]
    pub(crate) fn over(&self) -> Cold<impl Future<Output = ()>> {
        Cold::new(async move {
            let at = self.at();
            if at == Instant::FAR_FUTURE {
                return pending().await;
            }
            poll_fn(|cx| {
                if !self.is_covered(cx.waker()) {
                    return Poll::Ready(());
                }
                self.cover_outer(cx.waker());
                Poll::Pending
            })
            .await;
            let _armed = Armed(self);
            let mut timer = pin!(self.clock.sleep_until(at));
            poll_fn(|cx| {
                let over = timer.as_mut().poll(cx);
                if over.is_pending() {
                    self.cover_outer(cx.waker());
                }
                over
            })
            .await;
        })
    }

    /// Returns `true` if an inner timer wakes this task in time, and resets the mark. Called once
    /// per poll.
    fn is_covered(&self, waker: &Waker) -> bool {
        let covered_by = self.covered_by.load(Relaxed);
        // Load and store, as a swap would lock the bus. No other thread writes in between (see the
        // header).
        self.covered_by.store(ptr::null_mut(), Relaxed);
        ptr::eq(covered_by, waker)
    }

    /// Marks the next outer deadline: a timer wakes this task in time for it.
    fn cover_outer(&self, waker: &Waker) {
        if let Some(outer) = self.outer.nearest_deadline()
            && outer.clock.is_same(self.clock)
        {
            outer.covered_by.store(ptr::from_ref(waker).cast_mut(), Relaxed);
        }
    }

    /// Clears the marks of all outer deadlines: the inner timer no longer wakes the task for them.
    #[cold]
    fn uncover_outer(&self) {
        let mut next = self.outer.nearest_deadline();
        while let Some(outer) = next {
            outer.covered_by.store(ptr::null_mut(), Relaxed);
            next = outer.outer.nearest_deadline();
        }
    }
}

/// Guard of an armed timer: while it is polled, outer deadlines need no timer.
struct Armed<'d>(&'d Deadline<'d>);

impl Drop for Armed<'_> {
    fn drop(&mut self) {
        self.0.uncover_outer();
    }
}

pin_project_lite::pin_project! {
    /// Runs work until a deadline is [over](Deadline::over). Returns the work's output, or `None`
    /// if the time ends first. The work is polled before the timer.
    ///
    /// Nested time-outs arm one timer, the innermost. The outer ones arm theirs when that one is
    /// gone.
    ///
    /// The future owns the work, so that the work's type stands once in the type of the call. The
    /// compiler proves anew for each place of a type that it is `Send`. With the work pinned in the
    /// caller and borrowed here, it stood in four places, and the time to compile a call grew
    /// exponentially with the number of its time-outs (twelve: nine seconds, where it is one now).
    pub(crate) struct Timed<W, T> {
        #[pin]
        work: W,
        #[pin]
        over: T,
    }
}

impl<W: Future, T: Future<Output = ()>> Timed<W, T> {
    #[inline]
    pub(crate) const fn new(work: W, over: T) -> Self {
        Self { work, over }
    }
}

impl<W: Future, T: Future<Output = ()>> Future for Timed<W, T> {
    type Output = Option<W::Output>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        match this.work.poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => this.over.poll(cx).map(|()| None),
        }
    }
}
