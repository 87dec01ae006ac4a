//! The backend under test, as a suite receives it.
use std::{any::Any, cell::Cell, fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use crate::{
    port::{Capabilities, Capability},
    race::{First, race},
    time::{Clock, ManualClock, Timestamp},
};

/// A backend under test: one or two handles to the same empty state, its source of time, and hooks
/// that disturb it.
///
/// The [page of the module](super) has the hooks.
pub struct Fixture<P: ?Sized> {
    /// `None` only while the backend restarts.
    handles: Option<Handles<P>>,
    time: Option<ManualClock>,
    bound: Option<usize>,
    kept: Vec<Box<dyn Any + Send + Sync>>,
    restart: Option<Box<dyn Hook<Fixture<P>>>>,
    cut: Option<Box<dyn Hook<()>>>,
    set_wall: Option<Box<dyn Fn(Timestamp)>>,
}

struct Handles<P: ?Sized> {
    port: Arc<P>,
    other: Option<Arc<P>>,
    neighbour: Option<Arc<P>>,
}

/// An object-safe [`AsyncFn`].
trait Hook<T> {
    fn call(&self) -> Pin<Box<dyn Future<Output = T> + '_>>;
}

impl<T, F: AsyncFn() -> T> Hook<T> for F {
    fn call(&self) -> Pin<Box<dyn Future<Output = T> + '_>> {
        Box::pin(self())
    }
}

/// Real time that a case on manual time spends on a wait that seems to be in vain: a backend with
/// threads of its own needs some.
const GRACE: Duration = Duration::from_secs(10);

impl<P: ?Sized> Fixture<P> {
    /// Creates a fixture with one handle, in real time.
    pub fn new(port: Arc<P>) -> Self {
        let handles = Some(Handles { port, other: None, neighbour: None });
        Self { handles, time: None, bound: None, kept: Vec::new(), restart: None, cut: None, set_wall: None }
    }

    /// Adds a second handle to the same state, as a second process has it: another connection,
    /// another handle of the file.
    #[must_use]
    pub fn with_second_handle(mut self, other: Arc<P>) -> Self {
        if let Some(handles) = &mut self.handles {
            handles.other = Some(other);
        }
        self
    }

    /// Adds another, empty instance of the same backend. For a queue: one that it can
    /// [forward](crate::queue::Settle::Forward) to. Without it, such cases forward to the dead
    /// letters.
    #[must_use]
    pub fn with_neighbour(mut self, neighbour: Arc<P>) -> Self {
        if let Some(handles) = &mut self.handles {
            handles.neighbour = Some(neighbour);
        }
        self
    }

    /// Tells the suite that the backend reads the time from a clock that `time` moves.
    #[must_use]
    pub fn on_manual_time(mut self, time: &ManualClock) -> Self {
        self.time = Some(time.clone());
        self
    }

    /// Tells the suite that the queue is full at this number of messages, at least 1,500.
    #[must_use]
    pub fn full_at(mut self, messages: usize) -> Self {
        self.bound = Some(messages);
        self
    }

    /// Keeps a value for the lifetime of the fixture: a temporary folder, a server.
    #[must_use]
    pub fn keeping(mut self, kept: impl Any + Send + Sync) -> Self {
        self.kept.push(Box::new(kept));
        self
    }

    /// Sets the hook that restarts the backend, and returns a fixture with new handles to its
    /// state.
    ///
    /// The suite drops its handles, calls the hook, and expects everything that was accepted
    /// before. A file is closed and opened anew; a server is ended and started, or at least all
    /// connections to it are closed.
    #[must_use]
    pub fn with_restart(mut self, restart: impl AsyncFn() -> Self + 'static) -> Self {
        self.restart = Some(Box::new(restart));
        self
    }

    /// Sets the hook that cuts all connections of the first handle, once: the handle can connect
    /// again at any time after. It returns when they are closed. Connections of the second handle
    /// may be cut as well.
    #[must_use]
    pub fn with_cut(mut self, cut: impl AsyncFn() + 'static) -> Self {
        self.cut = Some(Box::new(cut));
        self
    }

    /// Sets the hook that sets the wall clock of the process of the first handle. On manual time
    /// the suite has one already.
    #[must_use]
    pub fn with_wall_clock(mut self, set: impl Fn(Timestamp) + 'static) -> Self {
        self.set_wall = Some(Box::new(set));
        self
    }

    fn handles(&self) -> &Handles<P> {
        match &self.handles {
            Some(handles) => handles,
            None => panic!("the backend is restarting"),
        }
    }

    /// Returns the first handle.
    pub fn port(&self) -> &P {
        &self.handles().port
    }

    /// Returns the second handle; without one, the first.
    pub fn other(&self) -> &P {
        self.handles().other.as_ref().unwrap_or(&self.handles().port)
    }

    /// Returns the first handle, shared.
    pub fn shared(&self) -> Arc<P> {
        self.handles().port.clone()
    }

    /// Returns the second handle, shared; without one, the first.
    pub fn shared_other(&self) -> Arc<P> {
        self.handles().other.as_ref().unwrap_or(&self.handles().port).clone()
    }

    /// Returns the other instance of the backend, if there is one.
    pub fn neighbour(&self) -> Option<Arc<P>> {
        self.handles().neighbour.clone()
    }

    /// Returns the number of messages at which the queue is full, if the author told it.
    pub(super) fn bound(&self) -> Option<usize> {
        self.bound
    }

    /// Lets `duration` pass for the backend: moves the manual clock, or waits.
    pub async fn pass(&self, duration: Duration) {
        match &self.time {
            Some(time) => {
                // Lets tasks reach their waits first.
                settle().await;
                time.advance(duration);
                settle().await;
            }
            None => Clock::tokio().sleep(duration).await,
        }
    }

    /// Waits for `future`, while `limit` passes for the backend in small steps.
    ///
    /// # Panics
    /// If the future does not end within `limit`, with `what` as the subject of the message.
    pub async fn within<T>(&self, limit: Duration, what: &str, future: impl Future<Output = T>) -> T {
        const STEPS: u32 = 50;
        let passes = async {
            for _ in 0..STEPS {
                self.pass(limit / STEPS).await;
            }
            if self.time.is_some() {
                // Requests of a backend with threads take real time, and begin their waits later.
                for _ in 0..STEPS {
                    Clock::tokio().sleep(GRACE / STEPS).await;
                    self.pass(limit / STEPS).await;
                }
            }
        };
        match race(future, passes).await {
            First::One(done) => done,
            First::Other(()) => panic!("{what} did not end within {limit:?}"),
        }
    }

    /// Waits for requests that race: whoever loses waits shortly by the backend's clock and tries
    /// again, perhaps often, so that much real time may pass, and some of that clock.
    ///
    /// # Panics
    /// If the future does not end, with `what` as the subject of the message.
    pub async fn within_patience<T>(&self, what: &str, future: impl Future<Output = T>) -> T {
        const STEP: Duration = Duration::from_millis(20);
        let passes = async {
            for _ in 0..1000 {
                Clock::tokio().sleep(STEP).await;
                if self.time.is_some() {
                    self.pass(STEP * 2).await;
                }
            }
        };
        match race(future, passes).await {
            First::One(done) => done,
            First::Other(()) => panic!("{what} did not end within {:?}", STEP * 1000),
        }
    }

    /// Returns `true` if the suite moves the backend's time, so that long times may pass.
    pub fn is_on_manual_time(&self) -> bool {
        self.time.is_some()
    }

    /// Returns `true` if the fixture has the hook of a restart.
    pub fn can_restart(&self) -> bool {
        self.restart.is_some()
    }

    /// Returns `true` if the fixture has the hook that cuts connections.
    pub fn can_cut(&self) -> bool {
        self.cut.is_some()
    }

    /// Asserts that a backend that states `Durable` comes with the hook that holds it to that.
    pub(super) fn assert_can_restart(&self, can: Capabilities) {
        assert!(
            self.can_restart() || !can.has(Capability::Durable),
            "the backend `{}` states `Durable`, and no case holds it to that: give the fixture `with_restart`",
            can.backend()
        );
    }

    /// Restarts the backend and replaces the handles. Returns `false`, and does nothing, without
    /// [`with_restart`](Self::with_restart).
    pub async fn restart(&mut self) -> bool {
        let Some(restart) = self.restart.take() else { return false };
        self.handles = None;
        let mut restarted = restart.call().await;
        self.handles = restarted.handles.take();
        self.kept.append(&mut restarted.kept);
        self.restart = Some(restart);
        true
    }

    /// Cuts the connections of the first handle. Returns `false`, and does nothing, without
    /// [`with_cut`](Self::with_cut).
    pub async fn cut(&self) -> bool {
        match &self.cut {
            Some(cut) => {
                cut.call().await;
                true
            }
            None => false,
        }
    }

    /// Sets the wall clock of the process of the first handle. Returns `false`, and does nothing,
    /// without [`with_wall_clock`](Self::with_wall_clock) and manual time.
    pub fn set_wall(&self, wall: Timestamp) -> bool {
        match (&self.set_wall, &self.time) {
            (Some(set), _) => set(wall),
            (None, Some(time)) => time.set_wall(wall),
            (None, None) => return false,
        }
        true
    }
}

/// Waits for a call of the backend that needs no time of its clock to pass.
///
/// # Panics
/// If the call does not return within ten seconds of real time.
pub(super) async fn in_time<T>(what: &str, call: impl Future<Output = T>) -> T {
    let limit = stretched(Duration::from_secs(10));
    match race(call, Clock::tokio().sleep(limit)).await {
        First::One(done) => done,
        First::Other(()) => panic!("{what} did not return within {limit:?} of real time"),
    }
}

/// Lets other tasks run until they wait.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// Runs a case on a multi-threaded runtime of its own.
///
/// # Panics
/// If the case panics, or if the runtime cannot be created.
pub fn run<F: Future>(case: F) -> F::Output {
    runtime(1).block_on(case)
}

thread_local! {
    /// The factor of the durations of a case, on all threads of its runtime.
    static STRETCH: Cell<u32> = const { Cell::new(1) };
}

/// Returns a duration of a case: longer where the case is run again on a machine that stalls.
pub(super) fn stretched(duration: Duration) -> Duration {
    duration * STRETCH.get()
}

/// Returns a runtime for a case whose durations are so many times as long, also on this thread.
pub(super) fn runtime(stretch: u32) -> tokio::runtime::Runtime {
    STRETCH.set(stretch);
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(4).on_thread_start(move || STRETCH.set(stretch)).enable_all().build();
    runtime.unwrap_or_else(|error| panic!("no runtime for the case: {error}"))
}

impl<P: ?Sized + fmt::Debug> fmt::Debug for Fixture<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fixture")
            .field("port", &self.handles.as_ref().map(|handles| &handles.port))
            .field("manual", &self.time.is_some())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_that_is_run_again_has_longer_durations_on_all_of_its_threads() {
        for stretch in [4, 1] {
            let expected = Duration::from_millis(100) * stretch;
            let seen = runtime(stretch).block_on(async {
                let here = stretched(Duration::from_millis(100));
                let there = tokio::spawn(async { stretched(Duration::from_millis(100)) });
                (here, there.await.expect("it ends"))
            });
            assert_eq!(seen, (expected, expected));
        }
    }
}
