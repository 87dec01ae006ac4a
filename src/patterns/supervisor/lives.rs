//! The instances of a child that live, in whichever run they were started.
use std::sync::Arc;

use tokio::sync::Notify;

use crate::sync::Mutex;

/// Counts the living instances of one child. A clone is the same.
#[derive(Clone, Default)]
pub(super) struct Lives(Arc<Count>);

#[derive(Default)]
struct Count {
    living: Mutex<usize>,
    ended: Notify,
}

/// One living instance, until it is dropped.
pub(super) struct Life(Lives);

impl Lives {
    pub(super) fn begin(&self) -> Life {
        *self.0.living.lock() += 1;
        Life(self.clone())
    }

    pub(super) fn is_any(&self) -> bool {
        *self.0.living.lock() > 0
    }

    /// Waits until no instance lives.
    pub(super) async fn ended(&self) {
        loop {
            // Created before the check, so that an end in between is received.
            let ended = self.0.ended.notified();
            if !self.is_any() {
                return;
            }
            ended.await;
        }
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        *self.0.0.living.lock() -= 1;
        self.0.0.ended.notify_waiters();
    }
}
