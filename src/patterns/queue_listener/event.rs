//! Events of a queue listener.
use std::time::Duration;

use crate::{
    observe::Traced,
    port::PortErrorKind,
    queue::{Depth, MessageId},
};

/// An event of a [`QueueListener`](super::QueueListener).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueListenerEvent {
    /// A poll found no message, after one that had found some.
    QueueEmpty,
    /// A poll found messages, after one that had found none.
    WorkDetected {
        /// Number of messages that the poll received.
        messages: usize,
    },
    /// Tasks are being started.
    ScaledUp {
        /// Number of tasks, including the new ones.
        tasks: u32,
        /// Depth of the queue, if it was requested.
        depth: Option<Depth>,
    },
    /// A task ended because its polls found nothing for a long time.
    ScaledDown {
        /// Number of tasks that remain.
        tasks: u32,
    },
    /// A request to the queue, the filter or the notifier failed or timed out.
    CallFailed {
        /// Kind of the request.
        call: QueueCall,
        /// Kind of the failure, or `None` if the request timed out.
        kind: Option<PortErrorKind>,
    },
    /// A message failed and will be delivered again.
    Failed {
        /// Id of the message.
        id: MessageId,
        /// Number of the attempt that failed.
        attempt: u32,
        /// Number of deliveries so far.
        deliveries: u32,
        /// Error text of the handler.
        error: String,
        /// Delay until the next delivery.
        after: Duration,
    },
    /// A dependency of the handler refused the message or is away. The message is delivered again,
    /// and no attempt is counted.
    Refused {
        /// Id of the message.
        id: MessageId,
        /// Text of the refusal or of the failure.
        error: String,
        /// Delay until the next delivery.
        after: Duration,
    },
    /// A handler snoozed the message: it is delivered again later, and no attempt is counted.
    Snoozed {
        /// Id of the message.
        id: MessageId,
        /// Delay until the next delivery.
        after: Duration,
    },
    /// A cancelled message ended.
    Cancelled {
        /// Id of the message.
        id: MessageId,
    },
    /// A [`QueueControl`](super::QueueControl) paused a queue of the listener.
    QueuePaused {
        /// Identity of the queue.
        queue: String,
    },
    /// A [`QueueControl`](super::QueueControl) resumed a queue of the listener.
    QueueResumed {
        /// Identity of the queue.
        queue: String,
    },
    /// A message was moved to the dead letters.
    DeadLettered {
        /// Id of the message.
        id: MessageId,
        /// Reason that the dead letter carries.
        reason: String,
    },
    /// The lease of a message was lost: the message was delivered again, or will be. Effects of its
    /// handler remain, but could not be recorded.
    LeaseLost {
        /// Id of the message.
        id: MessageId,
        /// Number of deliveries so far.
        deliveries: u32,
        /// `true` if a settlement may have been applied although its reply was lost.
        may_be_settled: bool,
    },
    /// A handler was dropped because it did not stop when asked to.
    HandlerDropped {
        /// Id of its message.
        id: MessageId,
    },
    /// Messages were released before a handler began: the listener pauses or stops, or another
    /// message must be handled alone.
    Released {
        /// Number of messages.
        messages: usize,
    },
    /// The listener stops.
    Stopping,
}

/// Kind of a request of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QueueCall {
    /// Receiving messages.
    Receive,
    /// Settling deliveries.
    Settle,
    /// Renewing a lease.
    Extend,
    /// Requesting the depth of the queue.
    Depth,
    /// Subscribing to notices.
    Notify,
    /// Reading or writing the idempotency filter.
    Filter,
    /// Reading or deleting records of the queue control.
    Control,
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
            Self::Snoozed { id, after } => tracing::info!(target: TARGET, name, %id, ?after, "snoozed"),
            Self::Cancelled { id } => tracing::info!(target: TARGET, name, %id, "cancelled"),
            Self::QueuePaused { queue } => tracing::info!(target: TARGET, name, queue, "queue paused"),
            Self::QueueResumed { queue } => tracing::info!(target: TARGET, name, queue, "queue resumed"),
            Self::DeadLettered { id, reason } => tracing::warn!(target: TARGET, name, %id, reason, "dead-lettered"),
            Self::LeaseLost { id, deliveries, may_be_settled } => {
                tracing::warn!(target: TARGET, name, %id, deliveries, may_be_settled, "lease lost");
            }
            Self::HandlerDropped { id } => tracing::warn!(target: TARGET, name, %id, "handler dropped"),
            Self::Released { messages } => tracing::info!(target: TARGET, name, messages, "released"),
            Self::Stopping => tracing::info!(target: TARGET, name, "stopping"),
        }
    }
}
