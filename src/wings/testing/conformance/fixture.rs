//! The backend under test, as a suite receives it.
use std::{any::Any, fmt, future::Future, sync::Arc, time::Duration};

use crate::time::{Clock, ManualClock};

/// A backend under test: one or two handles to the same empty state, and its source of time.
pub struct Fixture<P: ?Sized> {
    port: Arc<P>,
    other: Option<Arc<P>>,
    time: Option<ManualClock>,
    kept: Vec<Box<dyn Any + Send + Sync>>,
}

impl<P: ?Sized> Fixture<P> {
    /// Creates a fixture with one handle, in real time.
    pub fn new(port: Arc<P>) -> Self {
        Self { port, other: None, time: None, kept: Vec::new() }
    }

    /// Adds a second handle to the same state, as a second process has it: another connection,
    /// another handle of the file.
    #[must_use]
    pub fn with_second_handle(mut self, other: Arc<P>) -> Self {
        self.other = Some(other);
        self
    }

    /// Tells the suite that the backend reads the time from a clock that `time` moves.
    #[must_use]
    pub fn on_manual_time(mut self, time: &ManualClock) -> Self {
        self.time = Some(time.clone());
        self
    }

    /// Keeps a value for the lifetime of the fixture: a temporary folder, a server.
    #[must_use]
    pub fn keeping(mut self, kept: impl Any + Send + Sync) -> Self {
        self.kept.push(Box::new(kept));
        self
    }

    /// Returns the first handle.
    pub fn port(&self) -> &P {
        &self.port
    }

    /// Returns the second handle; without one, the first.
    pub fn other(&self) -> &P {
        self.other.as_ref().unwrap_or(&self.port)
    }

    /// Returns the first handle, shared.
    pub fn shared(&self) -> Arc<P> {
        self.port.clone()
    }

    /// Returns the second handle, shared; without one, the first.
    pub fn shared_other(&self) -> Arc<P> {
        self.other.as_ref().unwrap_or(&self.port).clone()
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
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build();
    match runtime {
        Ok(runtime) => runtime.block_on(case),
        Err(error) => panic!("no runtime for the case: {error}"),
    }
}

impl<P: ?Sized + fmt::Debug> fmt::Debug for Fixture<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fixture")
            .field("port", &self.port)
            .field("manual", &self.time.is_some())
            .finish_non_exhaustive()
    }
}
