//! Events of a backend's connection to its server.
use std::time::Duration;

use crate::{observe::Traced, port::Capability};

/// An event of a connection to a server.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionEvent {
    /// The connection was lost. Requests fail as
    /// [`Unavailable`](crate::port::PortErrorKind::Unavailable) until it is restored.
    Lost {
        /// Reason, without secrets.
        reason: String,
    },
    /// The connection was restored.
    Restored {
        /// Time since the loss.
        after: Duration,
    },
    /// The server no longer has the settings of a capability that the ports state, because it was
    /// replaced or set anew.
    Weakened {
        /// The capability that the ports still state.
        capability: Capability,
    },
}

const TARGET: &str = "steadfast::backend";

impl Traced for ConnectionEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: "steadfast::backend", tracing::Level::INFO)
    }

    fn trace(&self, server: &str) {
        match self {
            Self::Lost { reason } => tracing::warn!(target: TARGET, server, reason, "connection lost"),
            Self::Restored { after } => tracing::info!(target: TARGET, server, ?after, "connection restored"),
            Self::Weakened { capability } => {
                tracing::warn!(target: TARGET, server, %capability, "the server no longer has a stated capability");
            }
        }
    }
}
