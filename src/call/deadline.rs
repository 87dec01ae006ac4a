//! The deadline that a time-out adds to a call's surroundings, and the work that runs until then.
use std::{
    future::{Future, pending, poll_fn},
    pin::{Pin, pin},
    ptr,
    sync::atomic::{AtomicPtr, AtomicU64, Ordering::Relaxed},
    task::{Poll, Waker},
    time::Duration,
};

use super::{CallContext, Cold};
use crate::time::{Clock, Instant};

/// A deadline that is not computed before somebody needs it, so that a call that is ready at once reads no clock.
///
/// The time counts from the moment when the call first waits, or when something inside first asks for the deadline.
///
/// Everything here is relaxed: one task at a time polls a call, and a task's moves between threads are synchronised by its
/// executor.
#[derive(Debug)]
pub(crate) struct Deadline<'a> {
    /// Nanoseconds; 0 while nobody has asked.
    at: AtomicU64,
    /// How long the work was given, in nanoseconds: from the first question to this deadline, or to an outer one that is nearer.
    given: AtomicU64,
    clock: &'a Clock,
    /// The time-out in nanoseconds, which may change; read once.
    timeout: &'a AtomicU64,
    outer: CallContext<'a>,
    /// The address of the waker of the current poll, if an inner timer has been registered with it
    /// in this poll and is still armed. An inner deadline is never later than an outer one, so that
    /// timer wakes the task in time for this deadline too.
    ///
    /// The address suffices: the waker of the poll is alive until this is read, so that no other
    /// waker can be at its place.
    covered_by: AtomicPtr<Waker>,
}

impl<'a> Deadline<'a> {
    #[inline]
    pub(crate) const fn new(clock: &'a Clock, timeout: &'a AtomicU64, outer: CallContext<'a>) -> Self {
        let covered_by = AtomicPtr::new(ptr::null_mut());
        Self { at: AtomicU64::new(0), given: AtomicU64::new(u64::MAX), clock, timeout, outer, covered_by }
    }

    /// The deadline: this one's or an outer one's, whichever is nearer.
    pub(crate) fn at(&self) -> Instant {
        self.at_by(None)
    }

    /// The same, with a reading of a clock: one reading serves all deadlines that begin now.
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

    /// How long the work was given: the time-out, or what was left of an outer one.
    pub(crate) fn given(&self) -> Duration {
        Duration::from_nanos(self.given.load(Relaxed))
    }

    /// Waits for the deadline. To be polled after the work, in each poll that leaves the work waiting.
    ///
    /// The timer is armed unless an inner one wakes this task in time. (It is made here, and not
    /// put into a place that was kept for it: that would copy it.)
    #[inline]
    pub(crate) fn over(&self) -> Cold<impl Future<Output = ()>> {
        Cold::new(self.passes())
    }

    async fn passes(&self) {
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
    }

    /// Returns whether an inner timer wakes this task in time. Asked once a poll.
    fn is_covered(&self, waker: &Waker) -> bool {
        let covered_by = self.covered_by.load(Relaxed);
        // (A swap would lock the bus.)
        self.covered_by.store(ptr::null_mut(), Relaxed);
        ptr::eq(covered_by, waker)
    }

    /// Tells the next deadline outwards that a timer wakes this task in time for it.
    fn cover_outer(&self, waker: &Waker) {
        if let Some(outer) = self.outer.nearest_deadline()
            && outer.clock.is_same(self.clock)
        {
            outer.covered_by.store(ptr::from_ref(waker).cast_mut(), Relaxed);
        }
    }

    /// Tells all deadlines outwards that the timer in here does not wake for them any more.
    #[cold]
    fn uncover_outer(&self) {
        let mut next = self.outer.nearest_deadline();
        while let Some(outer) = next {
            outer.covered_by.store(ptr::null_mut(), Relaxed);
            next = outer.outer.nearest_deadline();
        }
    }
}

/// A timer that is armed: while it is polled, the deadlines outwards need none.
struct Armed<'d>(&'d Deadline<'d>);

impl Drop for Armed<'_> {
    fn drop(&mut self) {
        self.0.uncover_outer();
    }
}

/// Runs work until a deadline is [over](Deadline::over): gives the work's output, or `None` where the
/// time is over first. The work is polled before the time is looked at.
///
/// Nested time-outs arm one timer, the innermost: the others arm theirs when that one is gone.
///
/// Both are lent, so that the type of a call nests no deeper for it.
#[inline]
pub(crate) fn timed<'f, W: Future, T: Future<Output = ()>>(
    mut work: Pin<&'f mut W>,
    mut over: Pin<&'f mut T>,
) -> impl Future<Output = Option<W::Output>> + use<'f, W, T> {
    poll_fn(move |cx| match work.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => over.as_mut().poll(cx).map(|()| None),
    })
}
