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
    lives::Life,
    meter::Meter,
    state::{End, time_for},
};
use crate::{
    caught::panic_text,
    time::{Clock, Instant, Sleep},
};

/// Time by which polls may be ahead of their share, and behind it. tokio's timers have a
/// resolution of a millisecond, so that a pause after each short poll would be far too long.
const SLACK: Duration = Duration::from_millis(4);

/// A task that a supervisor spawns. It reports its end, whichever way it ends.
pub(super) struct ChildTask {
    pub(super) context: ChildContext,
    factory: Factory,
    life: Option<Life>,
    /// `None` for a child without a meter.
    meter: Option<Arc<Meter>>,
    clock: Clock,
    slow_poll: Duration,
    work: Option<Work>,
    /// The waker that is registered for the signal to drop the child.
    registered: Option<Waker>,
    share: Option<Box<Share>>,
    has_ended: bool,
}

/// The pauses of a child whose polls have a maximum share of the time.
struct Share {
    max: f64,
    wakes: Arc<Wakes>,
    waker: Waker,
    /// Time until which the polls so far use up the share.
    owed_until: Instant,
    /// `true` once the child was polled after the signal to stop.
    is_told: bool,
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
        (factory, life): (Factory, Life),
        (meter, clock): (Option<Arc<Meter>>, Clock),
        slow_poll: Duration,
        max_share: Option<f64>,
    ) -> Self {
        let share = max_share.map(|max| {
            let task = futures_util::task::AtomicWaker::new();
            let wakes = Arc::new(Wakes { woken: AtomicBool::new(true), task });
            Box::new(Share {
                max,
                waker: wakes.clone().into(),
                wakes,
                owed_until: Instant::default(),
                is_told: false,
                pause: None,
            })
        });
        Self {
            context,
            factory,
            life: Some(life),
            meter,
            clock,
            slow_poll,
            work: None,
            registered: None,
            share,
            has_ended: false,
        }
    }

    /// Drops the child and reports its end.
    fn end(&mut self, end: End) -> Poll<()> {
        let work = self.work.take();
        let began = self.began();
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(work)));
        self.passed(began);
        let end = match (dropped, end) {
            (Err(panic), End::Finished | End::Dropped) => {
                End::Panicked(format!("the child panicked when it was dropped: {}", panic_text(&*panic)))
            }
            (_, end) => end,
        };
        self.has_ended = true;
        self.context.signal().end();
        // Before the report: the next run may start the child at once.
        self.life.take();
        self.context.send(Message::Ended(end));
        Poll::Ready(())
    }

    /// Returns the time at which something metered begins.
    fn began(&self) -> Option<Instant> {
        self.meter.is_some().then(|| self.clock.now())
    }

    /// Tells if what began then was slow, and returns its duration.
    fn passed(&self, began: Option<Instant>) -> Duration {
        let Some(began) = began else { return Duration::ZERO };
        let took = self.clock.now() - began;
        if took > self.slow_poll {
            self.context.send(Message::SlowPoll(took));
        }
        took
    }

    /// Polls the child, which is created by the first poll. Returns the duration, too.
    fn poll_work(&mut self, began: Option<Instant>, cx: &mut Context<'_>) -> (Poll<()>, Duration) {
        let Self { work, factory, context, .. } = self;
        let polled =
            catch_unwind(AssertUnwindSafe(|| work.get_or_insert_with(|| factory(context.clone())).as_mut().poll(cx)));
        let took = self.passed(began);
        if let Some(meter) = &self.meter {
            meter.record(took);
        }
        let polled = match polled {
            Ok(Poll::Ready(Ok(()))) => self.end(End::Finished),
            Ok(Poll::Ready(Err(cause))) => self.end(End::Failed(cause)),
            Err(panic) => self.end(End::Panicked(format!("the child panicked: {}", panic_text(&*panic)))),
            Ok(Poll::Pending) => Poll::Pending,
        };
        (polled, took)
    }

    /// Polls the child if it was woken and has time left. A stop ends the limit, so that the child
    /// can obey.
    fn poll_within_share(&mut self, share: &mut Share, cx: &mut Context<'_>) -> Poll<()> {
        share.wakes.task.register(cx.waker());
        let is_stopping = self.context.signal().is_stopping();
        let is_told = is_stopping && !std::mem::replace(&mut share.is_told, is_stopping);
        if !share.wakes.woken.load(Ordering::Acquire) && !is_told {
            return Poll::Pending;
        }
        let now = self.clock.now();
        if !is_stopping && (share.pause.is_some() || share.owed_until - now > SLACK) {
            let (clock, until) = (&self.clock, share.owed_until);
            let pause = share.pause.get_or_insert_with(|| Box::pin(clock.sleep_until(until)));
            if pause.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
        share.pause = None;
        share.wakes.woken.swap(false, Ordering::AcqRel);
        let (polled, took) = self.poll_work(Some(now), &mut Context::from_waker(&share.waker));
        // Time that was not used is kept for a few milliseconds: a timer may be late by one.
        share.owed_until = share.owed_until.max(now.saturating_sub(SLACK)) + time_for(took, share.max);
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
        // A signal takes the waker: after that to stop, the one to drop needs it again.
        let is_stopping = task.context.signal().is_stopping();
        if is_stopping || !task.registered.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            task.registered = Some(cx.waker().clone());
            task.context.signal().register(cx.waker());
        }
        if task.context.signal().is_dropped() {
            return task.end(End::Dropped);
        }
        let Some(mut share) = task.share.take() else { return task.poll_work(task.began(), cx).0 };
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
