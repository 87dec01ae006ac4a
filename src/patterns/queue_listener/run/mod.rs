//! The run of a listener: its tasks, and the futures beside them.
mod batch;
pub(crate) mod intake;
pub(crate) mod lifecycle;
pub(crate) mod requests;
pub(crate) mod scaler;
pub(crate) mod scaling;
pub(crate) mod state;
mod task_set;
pub(crate) mod tasks;
mod waits;
pub(crate) mod worker;

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
};

use tokio::sync::oneshot;

use crate::{
    port::{BoxFuture, PortError},
    queue_listener::{
        Disposition, QueueListener, Work,
        poll::{Poller, hints::hear_hints},
        run::{lifecycle::Stage, scaler::Scaler, state::RunState, task_set::TaskSet, worker::Worker},
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
                let mut stage = of.lifecycle.watch();
                let dropped = async move { drop(stage.wait_for(|stage| *stage == Stage::Dropped).await) };
                if let First::Other(()) = race(dropped, Worker::new(of, true).work(move |work| handler(work))).await {
                    // An error means that the run was dropped.
                    let _ = end.send(());
                }
            }));
            async move {
                if ended.await.is_err() {
                    // The task was aborted, or its spawner did not run it.
                    run.tasks.scaler(Scaler::ended);
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
        self.0.runs.add(&run);
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
            race(hear_hints(&run), run.scaling.run(&run)),
            race(race(run.renew_waiting(), wait_for_spawns(&run)), run.requests.watch_control()),
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
                for _ in 0..run.tasks.scaler(Scaler::take_to_start) {
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
                if !run.tasks.scaler(|scaler| scaler.has_to_start()) {
                    break;
                }
            }
            waiters.poll(cx, |_| {});
            settlers.poll(cx, |_| {});
            let stops = run.lifecycle.stops();
            let done = stops && tasks.is_empty() && waiters.is_empty() && run.intake.unsettled() == 0;
            if done || over.load(Ordering::Relaxed) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        run.lifecycle.error().map_or(Ok(()), Err)
    }
}

/// Waits in one of the queues, on behalf of all tasks.
async fn wait_in(run: &RunState, source: usize) {
    Poller::new(run).wait_in(run, source).await;
}

/// Wakes the run when another thread asks for more tasks.
async fn wait_for_spawns(run: &RunState) {
    loop {
        run.tasks.to_spawn.notified().await;
    }
}

/// Ends the futures beside the run when it is dropped.
struct EndOnDrop<'a>(&'a Arc<RunState>);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.enter(Stage::Dropped);
        self.0.tasks.scaler(|scaler| scaler.tasks = 0);
        self.0.inner.runs.remove(self.0);
    }
}
