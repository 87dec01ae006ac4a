//! Running a listener: its tasks, and what goes on beside them.
mod batch;
pub(crate) mod caught;
mod filter;
pub(crate) mod intake;
mod request;
pub(crate) mod scaler;
pub(crate) mod state;
mod task_set;
mod waits;
pub(crate) mod worker;

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
};

use tokio::sync::oneshot;

use crate::{
    port::{BoxFuture, PortError},
    queue::Depth,
    queue_listener::{
        Handled, QueueCall, QueueListener, Work,
        poll::Poller,
        run::{
            scaler::Staff,
            state::{Shift, Stage},
            task_set::Crew,
            worker::Worker,
        },
    },
    race::{First, race},
};

impl QueueListener {
    /// Takes messages and has them handled, until `shutdown` is ready; then stops in order.
    ///
    /// The handlers are polled within this future, so they may borrow, and share one thread; [`run_on`](Self::run_on) gives each task its own.
    ///
    /// Stopping, it takes no more messages, hands back at once those that no handler has begun with, lets the others end, tells them to end after
    /// [`soft_limit`](crate::queue_listener::QueueListenerConfig::soft_limit), and drops them after [`hard_limit`](crate::queue_listener::QueueListenerConfig::hard_limit).
    /// What was handled is settled, also then.
    ///
    /// # Errors
    /// Only what does not pass by itself: no permission, a queue that was closed. It stops in order before.
    ///
    /// # Cancel safety
    /// Dropped, it drops its handlers with it. Their messages, and those that waited, are visible again after their visibility time-out. Prefer
    /// `shutdown`.
    pub async fn run<F, H>(&self, shutdown: impl Future<Output = ()>, handler: F) -> Result<(), PortError>
    where
        F: Fn(Work) -> H,
        H: Future<Output: Into<Handled>>,
    {
        let handler = &handler;
        self.drive(false, shutdown, |shift| Worker::new(shift, false).work(handler)).await
    }

    /// The same for a handler of many messages at once, those of one poll: it says of each what came of it, in their order.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Cancel safety
    /// As [`run`](Self::run).
    pub async fn run_batches<F, H>(&self, shutdown: impl Future<Output = ()>, handler: F) -> Result<(), PortError>
    where
        F: Fn(Vec<Work>) -> H,
        H: Future<Output = Vec<Handled>>,
    {
        let handler = &handler;
        self.drive(true, shutdown, |shift| Worker::new(shift, false).work_in_batches(handler)).await
    }

    /// The same as [`run`](Self::run), with each task handed to `spawn`: `|task| drop(tokio::spawn(task))`. For handlers that compute.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Cancel safety
    /// As [`run`](Self::run): a spawned task ends when this future is dropped, at its next await.
    pub async fn run_on<F, H>(
        &self,
        spawn: impl Fn(BoxFuture<'static, ()>),
        shutdown: impl Future<Output = ()>,
        handler: F,
    ) -> Result<(), PortError>
    where
        F: Fn(Work) -> H + Send + Sync + 'static,
        H: Future<Output: Into<Handled> + Send> + Send + 'static,
    {
        let (handler, spawn) = (Arc::new(handler), &spawn);
        self.drive(false, shutdown, |shift| {
            let (end, ended) = oneshot::channel();
            let (handler, of) = (handler.clone(), shift.clone());
            spawn(Box::pin(async move {
                let mut stage = of.watch();
                let dropped = async move { drop(stage.wait_for(|stage| *stage == Stage::Dropped).await) };
                if let First::Other(()) = race(dropped, Worker::new(of, true).work(move |work| handler(work))).await {
                    // An error means that the run is gone.
                    let _ = end.send(());
                }
            }));
            async move {
                if ended.await.is_err() {
                    // It was aborted, or its spawner took none.
                    shift.staff(Staff::ended);
                    // The others may rest by now.
                    shift.rests();
                }
            }
        })
        .await
    }

    /// Runs tasks that are made like this.
    async fn drive<W: Future<Output = ()>>(
        &self,
        is_batched: bool,
        shutdown: impl Future<Output = ()>,
        make: impl Fn(Arc<Shift>) -> W,
    ) -> Result<(), PortError> {
        let shift = Arc::new(Shift::new(self.0.clone(), is_batched));
        let _ends = Ends(&shift);
        {
            let mut shifts = self.0.shifts.lock();
            shifts.retain(|shift| shift.strong_count() > 0);
            shifts.push(Arc::downgrade(&shift));
        }
        let (mut crew, mut settlers, mut waiters) = (Crew::new(), Crew::new(), Crew::new());
        (0..self.0.sources.len()).for_each(|source| settlers.add(shift.settle_all(source)));
        if self.0.sources.len() > 1 && !self.0.config.receive_wait.is_zero() {
            (0..self.0.sources.len()).for_each(|source| waiters.add(wait_in(&shift, source)));
        }
        let over = AtomicBool::new(false);
        let mut control = pin!(shift.control(shutdown, &over));
        // Not beside handlers that run on when the listener stops: they would call for tasks that nobody begins any more.
        let mut aids =
            pin!(race(race(shift.hear(), shift.scale()), race(shift.keep_waiting(), shift.wait_for_hires())));
        let shift = &shift;
        // Somebody looks for what was sent before.
        shift.call();
        shift.hire(self.0.config.min_tasks, None);
        poll_fn(|cx| {
            if !over.load(Ordering::Relaxed) && control.as_mut().poll(cx).is_ready() {
                over.store(true, Ordering::Relaxed);
            }
            // None of them ends.
            let _ = aids.as_mut().poll(cx).is_ready();
            loop {
                for _ in 0..shift.staff(Staff::beginners) {
                    crew.add(make(shift.clone()));
                }
                crew.poll(cx, |cx| {
                    // Handlers that compute hold the thread: leases are kept and messages settled between them.
                    if !shift.room.is_quick(1) {
                        let _ = aids.as_mut().poll(cx).is_ready();
                        settlers.poll(cx, |_| {});
                    }
                });
                if !shift.staff(|staff| staff.has_beginners()) {
                    break;
                }
            }
            waiters.poll(cx, |_| {});
            settlers.poll(cx, |_| {});
            let stops = matches!(shift.stage(), Stage::Stops { .. });
            let done = stops && crew.is_empty() && waiters.is_empty() && shift.room.unsettled() == 0;
            if done || over.load(Ordering::Relaxed) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        shift.error().map_or(Ok(()), Err)
    }
}

/// Waits in one of several queues, for all tasks.
async fn wait_in(shift: &Shift, source: usize) {
    Poller::new(shift).wait_in(shift, source).await;
}

/// Whatever goes on beside the run ends with it.
struct Ends<'a>(&'a Arc<Shift>);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.enter(Stage::Dropped);
        self.0.staff(|staff| staff.tasks = 0);
        let this: Weak<Shift> = Arc::downgrade(self.0);
        self.0.inner.shifts.lock().retain(|shift| !shift.ptr_eq(&this));
        // After it has left: who drains and looks again does not wait for it any more.
        self.0.inner.rests.notify_waiters();
    }
}

impl Shift {
    /// Has the run work, pause and stop; ends when it must be over.
    async fn control(&self, shutdown: impl Future<Output = ()>, over: &AtomicBool) {
        let mut paused = self.inner.paused.subscribe();
        let mut stage = self.watch();
        let mut shutdown = pin!(shutdown);
        loop {
            self.enter(if *paused.borrow_and_update() { Stage::Paused } else { Stage::Works });
            if self.halts() {
                self.hand_back_waiting();
            }
            let stops = stage.wait_for(|stage| matches!(stage, Stage::Stops { .. }));
            match race(shutdown.as_mut(), race(paused.changed(), stops)).await {
                First::One(()) => break self.stop(),
                First::Other(First::One(_)) => {}
                First::Other(First::Other(_)) => break,
            }
        }
        self.hand_back_waiting();
        if let Stage::Stops { hard, .. } = self.stage() {
            // Handlers are dropped at the limit, and what they leave is settled once more.
            self.inner.clock.sleep_until(hard + self.inner.config.call_limit()).await;
        }
        over.store(true, Ordering::Relaxed);
    }

    /// Asks for the depth when there is a reason to, and has as many tasks begin as it asks for.
    async fn scale(&self) {
        loop {
            self.to_scale.notified().await;
            let mut depth = Depth::default();
            let mut knows = false;
            for source in &self.inner.sources {
                let asked = self.request(QueueCall::Depth, self.inner.config.call_limit(), source.queue.depth()).await;
                if let Some(Ok(one)) = asked {
                    depth.visible += one.visible;
                    depth.delayed += one.delayed;
                    depth.in_flight += one.in_flight;
                    knows = true;
                }
            }
            if knows {
                *self.inner.depth.lock() = Some(depth);
                let waiting = depth.visible + self.backlog(|backlog| backlog.len()) as u64;
                if waiting > 0 {
                    self.hire((self.inner.rule)(waiting), Some(depth));
                }
            }
        }
    }

    /// Wakes the run when another thread has tasks begin.
    async fn wait_for_hires(&self) {
        loop {
            self.hires.notified().await;
        }
    }
}
