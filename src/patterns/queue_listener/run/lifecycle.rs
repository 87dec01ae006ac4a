//! The stages of a run: it runs or pauses, then stops, and is dropped.
//
// Concurrency. `is_halted` mirrors `stage` and is written under the lock of the watch channel, so
// that a later change is never overwritten. A `Release` store and `Acquire` loads publish what came
// before.
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

use crate::{port::PortError, sync::Mutex, time::Instant};

/// Stage of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Running,
    Paused,
    /// The run stops: handlers are asked to stop at `cancel_at`, and dropped at `kill_at`.
    Stopping {
        cancel_at: Instant,
        kill_at: Instant,
    },
    /// The future of the run was dropped.
    Dropped,
}

/// The stage of one run, and the error that stops it.
pub(crate) struct Lifecycle {
    stage: watch::Sender<Stage>,
    /// `true` if the stage is not `Running`. Read for each message, without a lock.
    is_halted: AtomicBool,
    failed: Mutex<Option<PortError>>,
}

impl Lifecycle {
    pub(crate) fn new() -> Self {
        Self { stage: watch::Sender::new(Stage::Running), is_halted: AtomicBool::new(false), failed: Mutex::default() }
    }

    #[inline]
    pub(crate) fn is_halted(&self) -> bool {
        self.is_halted.load(Ordering::Acquire)
    }

    pub(crate) fn stage(&self) -> Stage {
        *self.stage.borrow()
    }

    pub(crate) fn stops(&self) -> bool {
        matches!(self.stage(), Stage::Stopping { .. })
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Stage> {
        self.stage.subscribe()
    }

    /// Changes the stage. A run that stops can neither pause nor resume.
    pub(crate) fn enter(&self, stage: Stage) {
        self.stage.send_if_modified(|now| {
            let changes = match *now {
                Stage::Running | Stage::Paused => *now != stage,
                Stage::Stopping { .. } => stage == Stage::Dropped,
                Stage::Dropped => false,
            };
            if changes {
                *now = stage;
            }
            // Under the lock of the channel, so that a concurrent change cannot be overwritten.
            self.is_halted.store(*now != Stage::Running, Ordering::Release);
            changes
        });
    }

    /// Wakes all futures that watch the stage, which stays as it is.
    pub(crate) fn nudge(&self) {
        self.stage.send_modify(|_| {});
    }

    /// Records the error with which the run ends, unless there is one.
    pub(crate) fn failed(&self, error: PortError) {
        self.failed.lock().get_or_insert(error);
    }

    pub(crate) fn error(&self) -> Option<PortError> {
        self.failed.lock().take()
    }

    /// Waits for the stop of a run that does not stop yet.
    pub(crate) async fn begins_to_stop(&self) {
        let mut stage = self.watch();
        let stops = |stage: &Stage| matches!(stage, Stage::Stopping { .. });
        let has_begun = stops(&stage.borrow_and_update());
        // An error means that the run was dropped.
        if has_begun || stage.wait_for(stops).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
