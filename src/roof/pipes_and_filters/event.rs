//! Events of a filter.
use std::time::Duration;

use crate::{observe::Traced, port::PortErrorKind, queue::MessageId};

/// An event of a [`Filter`](super::Filter). Those of its listener are
/// [`QueueListenerEvent`](crate::queue_listener::QueueListenerEvent)s.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FilterEvent {
    /// A send to an output of another engine failed. It is repeated until it succeeds, unless its
    /// kind is permanent.
    SendFailed {
        /// Name of the output; empty for the one without a name.
        output: String,
        /// Id of the message whose results were to be sent.
        id: MessageId,
        /// Kind of the failure, or `None` if the request timed out.
        kind: Option<PortErrorKind>,
    },
    /// Results were sent so late that an earlier delivery, or a request whose reply was lost, may
    /// have sent them before the window of the output began: its readers may see them twice, with
    /// one lineage id.
    MayRepeat {
        /// Name of the output; empty for the one without a name.
        output: String,
        /// Id of the message whose results were sent.
        id: MessageId,
        /// Lineage id of the message whose results were sent.
        lineage: String,
        /// Age of that message.
        age: Duration,
    },
}

impl Traced for FilterEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: "steadfast::pipes_and_filters", tracing::Level::INFO)
    }

    fn trace(&self, filter: &str) {
        const TARGET: &str = "steadfast::pipes_and_filters";
        match self {
            Self::SendFailed { output, id, kind } => {
                tracing::warn!(target: TARGET, filter, output, %id, ?kind, "results not sent");
            }
            Self::MayRepeat { output, id, lineage, age } => {
                tracing::warn!(target: TARGET, filter, output, %id, lineage, ?age, "results may be sent twice");
            }
        }
    }
}
