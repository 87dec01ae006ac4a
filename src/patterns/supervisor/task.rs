//! The task of one instance of a child: it creates, polls, meters and drops the child's future.
use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use super::{
    ChildContext,
    child::{Factory, Work},
    context::Message,
    meter::Meter,
    state::{End, pause_after},
};
use crate::{
    caught::panic_text,
    time::{Clock, Instant, Sleep},
};

/// A task that a supervisor spawns. It reports its end, whichever way it ends.
pub(super) struct ChildTask {
    pub(super) context: ChildContext,
    factory: Factory,
    meter: Arc<Meter>,
    clock: Clock,
    slow_poll: Duration,
    work: Option<Work>,
    /// The waker that is registered for the signal to drop the child.
    registered: Option<Waker>,
    share: Option<Share>,
    has_ended: bool,
}

/// The pauses of a child whose polls have a maximum share of the time.
struct Share {
    max: f64,
    wakes: Arc<Wakes>,
    waker: Waker,
    not_before: Instant,
    pause: Option<Pin<Box<Sleep>>>,
}

/// Remembers that the child was woken during a pause. The task polls it afterwards, and only then.
//
// `woken` is set before the task is woken, and taken by the task. `AcqRel` makes what was written before the wake
// visible to the poll.
struct Wakes {
    woken: AtomicBool,
    task: futures_util::task::AtomicWaker,
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.task.wake();
    }
}

impl ChildTask {
    pub(super) fn new(
        context: ChildContext,
        factory: Factory,
        (meter, clock): (Arc<Meter>, Clock),
        slow_poll: Duration,
        max_share: Option<f64>,
    ) -> Self {
        let share = max_share.map(|max| {
            let task = futures_util::task::AtomicWaker::new();
            let wakes = Arc::new(Wakes { woken: AtomicBool::new(true), task });
            Share { max, waker: wakes.clone().into(), wakes, not_before: Instant::default(), pause: None }
        });
        Self { context, factory, meter, clock, slow_poll, work: None, registered: None, share, has_ended: false }
    }

    /// Drops the child and reports its end.
    fn end(&mut self, end: End) -> Poll<()> {
        let work = self.work.take();
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(work)));
        let end = match (dropped, end) {
            (Err(panic), End::Finished | End::Dropped) => {
                End::Panicked(format!("the child panicked when it was dropped: {}", panic_text(&*panic)))
            }
            (_, end) => end,
        };
        self.has_ended = true;
        self.context.send(Message::Ended(end));
        Poll::Ready(())
    }

    /// Polls the child, which is created by the first poll.
    fn poll_work(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Self { work, factory, context, .. } = self;
        let began = self.clock.now();
        let polled =
            catch_unwind(AssertUnwindSafe(|| work.get_or_insert_with(|| factory(context.clone())).as_mut().poll(cx)));
        let took = self.clock.now() - began;
        self.meter.record(took);
        if took > self.slow_poll {
            self.context.send(Message::SlowPoll(took));
        }
        match polled {
            Ok(Poll::Ready(Ok(()))) => self.end(End::Finished),
            Ok(Poll::Ready(Err(cause))) => self.end(End::Failed(cause)),
            Err(panic) => self.end(End::Panicked(format!("the child panicked: {}", panic_text(&*panic)))),
            Ok(Poll::Pending) => Poll::Pending,
        }
    }

    /// Polls the child if it was woken and its pause is over.
    fn poll_within_share(&mut self, share: &mut Share, cx: &mut Context<'_>) -> Poll<()> {
        share.wakes.task.register(cx.waker());
        if !share.wakes.woken.load(Ordering::Acquire) {
            return Poll::Pending;
        }
        if self.clock.now() < share.not_before {
            let (clock, until) = (&self.clock, share.not_before);
            let pause = share.pause.get_or_insert_with(|| Box::pin(clock.sleep_until(until)));
            if pause.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
        share.pause = None;
        share.wakes.woken.swap(false, Ordering::AcqRel);
        let began = self.clock.now();
        let polled = self.poll_work(&mut Context::from_waker(&share.waker));
        let now = self.clock.now();
        share.not_before = now + pause_after(now - began, share.max);
        polled
    }
}

impl Future for ChildTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let task = &mut *self;
        if task.has_ended {
            return Poll::Ready(());
        }
        if !task.registered.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            task.registered = Some(cx.waker().clone());
            task.context.signal().register(cx.waker());
        }
        if task.context.signal().is_dropped() {
            return task.end(End::Dropped);
        }
        let Some(mut share) = task.share.take() else { return task.poll_work(cx) };
        let polled = task.poll_within_share(&mut share, cx);
        task.share = Some(share);
        polled
    }
}

impl Drop for ChildTask {
    fn drop(&mut self) {
        if !self.has_ended {
            let end = match self.context.signal().is_dropped() {
                true => End::Dropped,
                false => End::Failed("the task was dropped by its runtime".to_owned()),
            };
            let _ = self.end(end);
        }
    }
}
