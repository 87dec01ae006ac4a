//! The run of a listener: its tasks, and the futures beside them.
mod answers;
mod batch;
mod filter;
pub(crate) mod guards;
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
    queue::{Depth, Queue},
    queue_listener::{
        Disposition, QueueCall, QueueListener, Work,
        poll::Poller,
        run::{
            scaler::Scaler,
            state::{RunState, Stage},
            task_set::TaskSet,
            worker::Worker,
        },
    },
    race::{First, race},
};

impl QueueListener {
    /// Takes messages and runs the handler for each, until `shutdown` completes; then stops.
    ///
    /// Handlers are polled within this future, so they may borrow, and they share one thread.
    /// [`run_on`](Self::run_on) spawns each task.
    ///
    /// A stop takes no more messages and releases at once those that no handler has begun. It lets
    /// running handlers finish, asks them to stop after
    /// [`drain_timeout`](crate::queue_listener::QueueListenerConfig::drain_timeout), and drops them
    /// after [`kill_timeout`](crate::queue_listener::QueueListenerConfig::kill_timeout). Handled
    /// messages are settled in any case.
    ///
    /// # Errors
    /// Only permanent ones: no permission, or a closed queue. The run stops in the same way first.
    ///
    /// # Cancel safety
    /// A dropped run drops its handlers. Their messages, and those that waited, are visible again
    /// after their visibility time-out. Prefer `shutdown`.
    pub async fn run<F, H>(&self, shutdown: impl Future<Output = ()>, handler: F) -> Result<(), PortError>
    where
        F: Fn(Work) -> H,
        H: Future<Output: Into<Disposition>>,
    {
        let handler = &handler;
        self.drive(false, shutdown, |run| Worker::new(run, false).work(handler)).await
    }

    /// Runs a handler that takes the messages of one poll together and returns their dispositions
    /// in the same order.
    ///
    /// # Errors
    /// See [`run`](Self::run).
    ///
    /// # Cancel safety
    /// See [`run`](Self::run).
    pub async fn run_batches<F, H>(&self, shutdown: impl Future<Output = ()>, handler: F) -> Result<(), PortError>
    where
        F: Fn(Vec<Work>) -> H,
        H: Future<Output = Vec<Disposition>>,
    {
        let handler = &handler;
        self.drive(true, shutdown, |run| Worker::new(run, false).work_in_batches(handler)).await
    }

    /// Runs like [`run`](Self::run), but passes each task to `spawn`:
    /// `|task| drop(tokio::spawn(task))`. For CPU-bound handlers.
    ///
    /// # Errors
    /// See [`run`](Self::run).
    ///
    /// # Cancel safety
    /// See [`run`](Self::run). A spawned task ends at its next await after this future is dropped.
    pub async fn run_on<F, H>(
        &self,
        spawn: impl Fn(BoxFuture<'static, ()>),
        shutdown: impl Future<Output = ()>,
        handler: F,
    ) -> Result<(), PortError>
    where
        F: Fn(Work) -> H + Send + Sync + 'static,
        H: Future<Output: Into<Disposition> + Send> + Send + 'static,
    {
        let (handler, spawn) = (Arc::new(handler), &spawn);
        self.drive(false, shutdown, |run| {
            let (end, ended) = oneshot::channel();
            let (handler, of) = (handler.clone(), run.clone());
            spawn(Box::pin(async move {
                let mut stage = of.watch();
                let dropped = async move { drop(stage.wait_for(|stage| *stage == Stage::Dropped).await) };
                if let First::Other(()) = race(dropped, Worker::new(of, true).work(move |work| handler(work))).await {
                    // An error means that the run was dropped.
                    let _ = end.send(());
                }
            }));
            async move {
                if ended.await.is_err() {
                    // The task was aborted, or its spawner did not run it.
                    run.scaler(Scaler::ended);
                    // The other tasks may be idle already.
                    run.check_idle();
                }
            }
        })
        .await
    }

    /// Runs tasks made by `make`.
    async fn drive<W: Future<Output = ()>>(
        &self,
        is_batched: bool,
        shutdown: impl Future<Output = ()>,
        make: impl Fn(Arc<RunState>) -> W,
    ) -> Result<(), PortError> {
        let run = Arc::new(RunState::new(self.0.clone(), is_batched));
        let _end = EndOnDrop(&run);
        {
            let mut runs = self.0.runs.lock();
            runs.retain(|run| run.strong_count() > 0);
            runs.push(Arc::downgrade(&run));
        }
        // The settings may have changed before the run was in the list.
        run.take_bounds();
        let (mut tasks, mut settlers, mut waiters) = (TaskSet::new(), TaskSet::new(), TaskSet::new());
        (0..self.0.sources.len()).for_each(|source| settlers.add(run.settle_all(source)));
        let wake = self.0.sources.iter().enumerate().filter(|(_, source)| source.wakes);
        wake.for_each(|(source, _)| waiters.add(wait_in(&run, source)));
        let over = AtomicBool::new(false);
        let mut control = pin!(run.control(shutdown, &over));
        // Not beside handlers that finish during a stop: these futures would call for tasks that no
        // longer start.
        let mut aids = pin!(race(
            race(run.hear_hints(), run.scale()),
            race(race(run.renew_waiting(), run.wait_for_spawns()), run.watch_control()),
        ));
        let run = &run;
        // A task polls for messages that were sent before.
        run.call();
        run.grow(None, |_| self.0.config.load().min_tasks);
        poll_fn(|cx| {
            if !over.load(Ordering::Relaxed) && control.as_mut().poll(cx).is_ready() {
                over.store(true, Ordering::Relaxed);
            }
            // None of these futures completes.
            let _ = aids.as_mut().poll(cx).is_ready();
            loop {
                for _ in 0..run.scaler(Scaler::take_to_start) {
                    tasks.add(make(run.clone()));
                }
                tasks.poll(cx, |cx| {
                    // CPU-bound handlers block the thread, so leases are renewed and messages
                    // settled between them.
                    if !run.intake.is_quick(1) {
                        let _ = aids.as_mut().poll(cx).is_ready();
                        waiters.poll(cx, |_| {});
                        settlers.poll(cx, |_| {});
                    }
                });
                if !run.scaler(|scaler| scaler.has_to_start()) {
                    break;
                }
            }
            waiters.poll(cx, |_| {});
            settlers.poll(cx, |_| {});
            let stops = matches!(run.stage(), Stage::Stopping { .. });
            let done = stops && tasks.is_empty() && waiters.is_empty() && run.intake.unsettled() == 0;
            if done || over.load(Ordering::Relaxed) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        run.error().map_or(Ok(()), Err)
    }
}

/// Waits in one of the queues, on behalf of all tasks.
async fn wait_in(run: &RunState, source: usize) {
    Poller::new(run).wait_in(run, source).await;
}

/// Ends the futures beside the run when it is dropped.
struct EndOnDrop<'a>(&'a Arc<RunState>);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.enter(Stage::Dropped);
        self.0.scaler(|scaler| scaler.tasks = 0);
        let this: Weak<RunState> = Arc::downgrade(self.0);
        self.0.inner.runs.lock().retain(|run| !run.ptr_eq(&this));
        // After the run was removed, so that a `drain` that checks again does not wait for it.
        self.0.inner.idle.notify_waiters();
    }
}

impl RunState {
    /// Starts, pauses and stops the run. Completes when the run has to end.
    async fn control(&self, shutdown: impl Future<Output = ()>, over: &AtomicBool) {
        let mut paused = self.inner.paused.subscribe();
        let mut stage = self.watch();
        let mut shutdown = pin!(shutdown);
        loop {
            self.enter(if paused.borrow_and_update().halts() { Stage::Paused } else { Stage::Running });
            if self.is_halted() {
                self.release_waiting();
            }
            let stops = stage.wait_for(|stage| matches!(stage, Stage::Stopping { .. }));
            match race(shutdown.as_mut(), race(paused.changed(), stops)).await {
                First::One(()) => break self.stop(),
                First::Other(First::One(_)) => {}
                First::Other(First::Other(_)) => break,
            }
        }
        self.release_waiting();
        if let Stage::Stopping { kill_at, .. } = self.stage() {
            // Handlers are dropped at `kill_at`; their messages get one more settle request.
            self.inner.clock.sleep_until(kill_at + self.inner.call_limit()).await;
        }
        over.store(true, Ordering::Relaxed);
    }

    /// Requests the depth of the queues when notified, and starts as many tasks as the rule asks
    /// for if that was the reason.
    async fn scale(&self) {
        loop {
            self.to_scale.notified().await;
            let wants_tasks = self.wants_tasks.swap(false, Ordering::AcqRel);
            self.inner.depth_at.store(self.now().as_nanos(), Ordering::Relaxed);
            let mut depth = None;
            for source in &self.inner.sources {
                if let Some(one) = self.depth_of(&*source.queue).await {
                    let all = depth.get_or_insert_with(Depth::default);
                    all.visible += one.visible;
                    all.delayed += one.delayed;
                    all.in_flight += one.in_flight;
                }
            }
            if let Some(depth) = depth {
                self.inner.depth.lock().0 = Some(depth);
                let waiting = depth.visible + self.backlog(|backlog| backlog.len()) as u64;
                if wants_tasks && waiting > 0 {
                    let wanted = (self.inner.rule)(waiting);
                    self.grow(Some(depth), |_| wanted);
                }
            }
            let mut dead_letters = None;
            for dead in self.inner.sources.iter().filter_map(|source| source.queue.dead_letters()) {
                if let Some(depth) = self.depth_of(&*dead).await {
                    *dead_letters.get_or_insert(0) += depth.total();
                }
            }
            if dead_letters.is_some() {
                self.inner.depth.lock().1 = dead_letters;
            }
        }
    }

    async fn depth_of(&self, queue: &dyn Queue) -> Option<Depth> {
        self.request(QueueCall::Depth, self.call_limit(), queue.depth()).await?.ok()
    }

    /// Wakes the run when another thread asks for more tasks.
    async fn wait_for_spawns(&self) {
        loop {
            self.to_spawn.notified().await;
        }
    }
}
