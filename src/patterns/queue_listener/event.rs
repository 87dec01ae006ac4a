//! What a listener tells.
use std::time::Duration;

use crate::{
    observe::Traced,
    port::PortErrorKind,
    queue::{Depth, MessageId},
};

/// Something a [`QueueListener`](super::QueueListener) did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueListenerEvent {
    /// A poll found nothing, where the one before it had found something.
    QueueEmpty,
    /// A poll found something, where the one before it had found nothing.
    WorkDetected {
        /// How many messages it took.
        messages: usize,
    },
    /// Tasks begin.
    ScaledUp {
        /// How many there are then.
        tasks: u32,
        /// What the queue held, where that was asked for.
        depth: Option<Depth>,
    },
    /// A task ended, because it found nothing for long.
    ScaledDown {
        /// How many are left.
        tasks: u32,
    },
    /// A request to the queue failed, or took too long.
    CallFailed {
        /// Which.
        call: QueueCall,
        /// How; `None` where it took too long.
        kind: Option<PortErrorKind>,
    },
    /// A message failed, and comes back.
    Failed {
        /// Which.
        id: MessageId,
        /// Number of the attempt that failed.
        attempt: u32,
        /// How often it was handed out so far.
        deliveries: u32,
        /// How it failed.
        error: String,
        /// After how long it comes back.
        after: Duration,
    },
    /// What a message's handler needs refused it, or is away: it comes back, and no attempt is counted.
    Refused {
        /// Which.
        id: MessageId,
        /// Why it was refused, or how it failed.
        error: String,
        /// After how long it comes back.
        after: Duration,
    },
    /// A message was set aside.
    DeadLettered {
        /// Which.
        id: MessageId,
        /// Why.
        reason: String,
    },
    /// A message's lease was lost: it was, or will be, handed out again. What its handler did stands, but could not be recorded.
    LeaseLost {
        /// Which.
        id: MessageId,
        /// How often it had been handed out.
        deliveries: u32,
        /// Whether a settlement of it may have been applied after all: its reply was lost.
        may_be_settled: bool,
    },
    /// A handler was dropped, because it did not end when it was told to.
    HandlerDropped {
        /// Whose message.
        id: MessageId,
    },
    /// Messages that no handler had begun with were handed back: the listener pauses or stops, or another message has to be
    /// handled alone.
    HandedBack {
        /// How many.
        messages: usize,
    },
    /// The listener was told to stop.
    Stopping,
}

/// A request to the queue, or to what goes with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QueueCall {
    /// Asking for messages.
    Receive,
    /// Ending their hiding.
    Settle,
    /// Renewing a lease.
    Extend,
    /// Asking for the depth.
    Depth,
    /// Listening for hints.
    Notify,
    /// Asking the filter of duplicates.
    Filter,
}

const TARGET: &str = "steadfast::queue_listener";

impl Traced for QueueListenerEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: TARGET, tracing::Level::INFO)
    }

    fn trace(&self, name: &str) {
        match self {
            Self::QueueEmpty => tracing::info!(target: TARGET, name, "queue empty"),
            Self::WorkDetected { messages } => tracing::info!(target: TARGET, name, messages, "work detected"),
            Self::ScaledUp { tasks, .. } => tracing::info!(target: TARGET, name, tasks, "scaled up"),
            Self::ScaledDown { tasks } => tracing::info!(target: TARGET, name, tasks, "scaled down"),
            Self::CallFailed { call, kind } => tracing::warn!(target: TARGET, name, ?call, ?kind, "call failed"),
            Self::Failed { id, attempt, deliveries, error, after } => {
                tracing::warn!(target: TARGET, name, %id, attempt, deliveries, error, ?after, "message failed");
            }
            Self::Refused { id, error, after } => tracing::info!(target: TARGET, name, %id, error, ?after, "refused"),
            Self::DeadLettered { id, reason } => tracing::warn!(target: TARGET, name, %id, reason, "dead-lettered"),
            Self::LeaseLost { id, deliveries, may_be_settled } => {
                tracing::warn!(target: TARGET, name, %id, deliveries, may_be_settled, "lease lost");
            }
            Self::HandlerDropped { id } => tracing::warn!(target: TARGET, name, %id, "handler dropped"),
            Self::HandedBack { messages } => tracing::info!(target: TARGET, name, messages, "handed back"),
            Self::Stopping => tracing::info!(target: TARGET, name, "stopping"),
        }
    }
}
