//! What a suite is given of the backend under test.
use std::{any::Any, fmt, future::Future, sync::Arc, time::Duration};

use crate::time::{Clock, ManualClock};

/// A backend under test: one or two doors to the same empty state, and the time that it lives in.
pub struct Fixture<P: ?Sized> {
    port: Arc<P>,
    other: Option<Arc<P>>,
    hand: Option<ManualClock>,
    kept: Vec<Box<dyn Any + Send + Sync>>,
}

impl<P: ?Sized> Fixture<P> {
    /// One door, in real time.
    pub fn new(port: Arc<P>) -> Self {
        Self { port, other: None, hand: None, kept: Vec::new() }
    }

    /// A second door to the same state, as a second process has it: another connection, another handle of the file.
    #[must_use]
    pub fn with_other_door(mut self, other: Arc<P>) -> Self {
        self.other = Some(other);
        self
    }

    /// The backend reads the time from a clock that this hand moves.
    #[must_use]
    pub fn on_manual_time(mut self, hand: &ManualClock) -> Self {
        self.hand = Some(hand.clone());
        self
    }

    /// Keeps something for as long as the fixture lives: a temporary folder, a server.
    #[must_use]
    pub fn keeping(mut self, kept: impl Any + Send + Sync) -> Self {
        self.kept.push(Box::new(kept));
        self
    }

    /// The backend.
    pub fn port(&self) -> &P {
        &self.port
    }

    /// The second door, where there is one; else the first.
    pub fn other(&self) -> &P {
        self.other.as_ref().unwrap_or(&self.port)
    }

    /// The backend, to share with a task.
    pub fn shared(&self) -> Arc<P> {
        self.port.clone()
    }

    /// The second door to share with a task, where there is one; else the first.
    pub fn shared_other(&self) -> Arc<P> {
        self.other.as_ref().unwrap_or(&self.port).clone()
    }

    /// Lets so much time pass for the backend: moves the hand, or waits.
    pub async fn pass(&self, time: Duration) {
        match &self.hand {
            Some(hand) => {
                // First let whoever is to wait begin to.
                settle().await;
                hand.advance(time);
                settle().await;
            }
            None => Clock::tokio().sleep(time).await,
        }
    }
}

/// Gives other tasks a chance to get as far as they can.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// Runs a case to its end, on a runtime of its own with several threads.
///
/// # Panics
/// If the case does, or if no runtime can be made.
pub fn run<F: Future>(case: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build();
    match runtime {
        Ok(runtime) => runtime.block_on(case),
        Err(error) => panic!("a runtime for the case: {error}"),
    }
}

impl<P: ?Sized + fmt::Debug> fmt::Debug for Fixture<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fixture")
            .field("port", &self.port)
            .field("manual", &self.hand.is_some())
            .finish_non_exhaustive()
    }
}
