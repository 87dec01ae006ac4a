//! The supervisor as an instance of a child sees it.
//
// `is_ready` publishes no other memory: the channel does. So `Relaxed` suffices.
use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::sync::mpsc::UnboundedSender;

use super::{
    StopReport,
    checkpoint::{CheckpointError, CheckpointRow},
    handle::Reply,
    signal::Signal,
    state::End,
};
use crate::{config::Name, sync::Mutex, time::Instant};

/// A report of an instance to its supervisor.
pub(super) enum Message {
    Ready,
    Ended(End),
    SlowPoll(Duration),
    /// Not a report: another task asks for a restart.
    Restart(Reply),
}

/// A message, with the number of the child and of its instance.
pub(super) type Numbered = (usize, u64, Message);

/// The supervisor, as an instance of a child sees it. A clone belongs to the same instance.
#[derive(Clone)]
pub struct ChildContext(Arc<Inner>);

struct Inner {
    name: Name,
    /// Position of the child, and number of its instance.
    number: (usize, u64),
    signal: Signal,
    reports: UnboundedSender<Numbered>,
    checkpoint: Option<CheckpointRow>,
    is_ready: AtomicBool,
    /// The report of a nested supervisor.
    nested: Mutex<StopReport>,
}

impl ChildContext {
    pub(super) fn new(
        name: Name,
        number: (usize, u64),
        reports: UnboundedSender<Numbered>,
        checkpoint: Option<CheckpointRow>,
    ) -> Self {
        let (signal, is_ready, nested) = (Signal::default(), AtomicBool::default(), Mutex::default());
        Self(Arc::new(Inner { name, number, signal, reports, checkpoint, is_ready, nested }))
    }

    /// Returns the name of the child.
    pub fn name(&self) -> &str {
        self.0.name.as_str()
    }

    /// Returns the number of this instance, from 1.
    pub fn instance(&self) -> u64 {
        self.0.number.1
    }

    /// Reports that the child is ready. Children that wait for it are started.
    pub fn ready(&self) {
        if !self.0.is_ready.swap(true, Ordering::Relaxed) {
            self.send(Message::Ready);
        }
    }

    /// Returns a future that is ready once the child is asked to stop, for the `shutdown` of what
    /// it runs.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub fn stopping(&self) -> impl Future<Output = ()> + Send + 'static {
        let inner = self.0.clone();
        async move { inner.signal.stopping().await }
    }

    /// Returns `true` once the child was asked to stop.
    pub fn is_stopping(&self) -> bool {
        self.0.signal.is_stopping()
    }

    /// Returns the checkpoint that the last instance saved, in whichever process, and takes the
    /// checkpoint over: each later save of an earlier instance is
    /// [`Superseded`](CheckpointError::Superseded). Returns `None` if none was saved.
    ///
    /// # Errors
    /// [`NotConfigured`](CheckpointError::NotConfigured) without a store for checkpoints. The
    /// store's error if it fails; the call may be repeated.
    ///
    /// # Cancel safety
    /// If the future is dropped, the checkpoint may be taken over. The call may be repeated.
    pub async fn checkpoint(&self) -> Result<Option<Bytes>, CheckpointError> {
        self.row()?.claim().await
    }

    /// Saves a checkpoint, by compare-and-set. One save of an instance runs at a time.
    ///
    /// # Errors
    /// [`Superseded`](CheckpointError::Superseded) if a later instance has taken the checkpoint
    /// over: this one must end. Otherwise those of [`checkpoint`](Self::checkpoint).
    ///
    /// # Cancel safety
    /// If the future is dropped, the checkpoint is saved or not. A later save succeeds all the
    /// same.
    pub async fn save_checkpoint(&self, bytes: impl Into<Bytes>) -> Result<(), CheckpointError> {
        let bytes = bytes.into();
        self.row()?.save(bytes).await
    }

    /// Returns the row, unless the instance has ended or is being dropped: another may run by now.
    fn row(&self) -> Result<&CheckpointRow, CheckpointError> {
        let row = self.0.checkpoint.as_ref().ok_or(CheckpointError::NotConfigured)?;
        if self.0.signal.is_dropped() { Err(CheckpointError::Superseded) } else { Ok(row) }
    }

    pub(super) fn send(&self, message: Message) {
        let (child, instance) = self.0.number;
        // Without a receiver the supervisor does not run any more.
        let _ = self.0.reports.send((child, instance, message));
    }

    pub(super) fn signal(&self) -> &Signal {
        &self.0.signal
    }

    /// Returns the time until which the child must stop, once it was asked to.
    pub(super) fn stop_by(&self) -> Option<Instant> {
        self.0.signal.stop_by()
    }

    pub(super) fn set_nested(&self, report: StopReport) {
        *self.0.nested.lock() = report;
    }

    pub(super) fn take_nested(&self) -> StopReport {
        std::mem::take(&mut self.0.nested.lock())
    }
}

crate::build::debug_fields!(ChildContext, |this| name: this.0.name, instance: this.0.number.1);
