//! The signal that asks a handler to stop.
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::Notify;

/// Signal that asks one handler to stop. Clones belong to the same handler.
///
/// All handlers of a task share one allocation. Each handler has a number; a signal covers all
/// numbers up to its own. Handlers of a task run one after another, so a signal never reaches a
/// later handler.
#[derive(Clone)]
pub struct Cancelled {
    shared: Arc<SharedSignal>,
    number: u64,
}

#[derive(Default)]
struct SharedSignal {
    /// Highest number that was signalled. The `Release` half of the `fetch_max` in
    /// [`Cancel::signal`] and the `Acquire` load in [`Cancelled::is_cancelled`] order what the
    /// listener wrote before the signal.
    signalled: AtomicU64,
    /// The same, of the signals that are not of the time limit alone.
    stopped: AtomicU64,
    /// Highest number whose handler is past its time limit's reach. Only the number is read, so
    /// `Relaxed` suffices.
    unlimited: AtomicU64,
    notify: Notify,
}

impl Cancelled {
    /// Returns `true` if the handler was asked to stop.
    pub fn is_cancelled(&self) -> bool {
        self.shared.signalled.load(Ordering::Acquire) >= self.number
    }

    /// Ends the time limit of the handler: what it does from now on, such as to send its results,
    /// is not its own work.
    pub(crate) fn lift_limit(&self) {
        self.shared.unlimited.fetch_max(self.number, Ordering::Relaxed);
    }

    /// Returns `true` if the handler was asked to stop, and not because of its time limit alone.
    pub(crate) fn is_stopped(&self) -> bool {
        self.shared.stopped.load(Ordering::Acquire) >= self.number
    }

    /// Waits until the handler is asked to stop.
    ///
    /// # Cancel safety
    /// Cancel safe: a dropped wait loses nothing.
    pub async fn cancelled(&self) {
        self.until(Self::is_cancelled).await;
    }

    /// Waits until the handler is asked to stop, and not because of its time limit alone.
    pub(crate) async fn stopped(&self) {
        self.until(Self::is_stopped).await;
    }

    async fn until(&self, is_signalled: impl Fn(&Self) -> bool) {
        loop {
            // Created before the check, so that a signal in between is received.
            let signal = self.shared.notify.notified();
            if is_signalled(self) {
                return;
            }
            signal.await;
        }
    }
}

impl fmt::Debug for Cancelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cancelled").field(&self.is_cancelled()).finish()
    }
}

/// The sending end of a task's [`Cancelled`] signals.
pub(crate) struct Cancel {
    shared: Arc<SharedSignal>,
    number: u64,
}

impl Cancel {
    pub(crate) fn new() -> Self {
        Self { shared: Arc::default(), number: 0 }
    }

    /// Returns the signal of the next handler.
    #[inline]
    pub(crate) fn next(&mut self) -> Cancelled {
        self.number += 1;
        Cancelled { shared: self.shared.clone(), number: self.number }
    }

    /// Returns `true` if the running handler has no time limit any more.
    pub(crate) fn is_unlimited(&self) -> bool {
        self.shared.unlimited.load(Ordering::Relaxed) >= self.number
    }

    /// Signals the running handler to stop.
    pub(crate) fn signal(&self) {
        let before = self.shared.stopped.fetch_max(self.number, Ordering::AcqRel);
        self.signal_limit();
        if before < self.number {
            self.shared.notify.notify_waiters();
        }
    }

    /// Signals the running handler that its time limit has passed.
    pub(crate) fn signal_limit(&self) {
        let before = self.shared.signalled.fetch_max(self.number, Ordering::AcqRel);
        if before < self.number {
            self.shared.notify.notify_waiters();
        }
    }
}
