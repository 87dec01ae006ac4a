//! A breaker's change of state, for who waits for one.
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use tokio::sync::{Notify, futures::Notified};

/// Tells a change of state once. Off the way of calls that succeed; a failure reads one number.
pub(in super::super) struct Changed {
    generation: AtomicU32,
    notify: Notify,
}

impl Changed {
    pub(in super::super) fn new() -> Self {
        Self { generation: AtomicU32::new(0), notify: Notify::new() }
    }

    /// The state is of this generation.
    #[inline]
    pub(in super::super) fn tell(&self, generation: u32) {
        if self.generation.load(Relaxed) != generation && self.generation.swap(generation, Relaxed) != generation {
            self.notify.notify_waiters();
        }
    }

    /// Ready at the next change after this was made.
    pub(super) fn next(&self) -> Notified<'_> {
        self.notify.notified()
    }
}
