//! Events of connections to a server.
use crate::{
    observe::Traced,
    port::{Capability, PortErrorKind},
};

/// The purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConnectionRole {
    /// Requests of the ports.
    Requests,
    /// Notices from the server, which wake subscribers and waiting receivers.
    Notices,
}

impl ConnectionRole {
    /// Returns the role as a word: `requests`, `notices`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Notices => "notices",
        }
    }
}

/// An event of the connections of a backend's handle.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionEvent {
    /// The server cannot be reached. Requests fail at once until it is.
    Lost {
        /// The connections that are affected.
        role: ConnectionRole,
        /// Kind of the failure.
        kind: PortErrorKind,
        /// The failure, without a password.
        reason: String,
    },
    /// The server is reached again.
    Restored {
        /// The connections that were affected.
        role: ConnectionRole,
        /// Number of attempts that it took.
        attempts: u32,
    },
    /// An attempt to restore the connection failed in another way than the failures before it: the
    /// server is there again and refuses the password, for example.
    NotRestored {
        /// The connections that are affected.
        role: ConnectionRole,
        /// Kind of the failure.
        kind: PortErrorKind,
        /// The failure, without a password.
        reason: String,
    },
    /// The connection leads to another machine, and a third party on the way can read or change
    /// its content: it is not encrypted, or the server's certificate is not verified.
    Exposed {
        /// The server.
        server: String,
        /// The weakness, and the setting that ends it.
        reason: String,
    },
    /// The server that is reached again lacks a capability that the ports state: its settings were
    /// changed, or another server took over.
    Weakened {
        /// The capability.
        capability: Capability,
    },
    /// The server does not tell its settings, so the ports do not state this capability.
    Unverified {
        /// The capability.
        capability: Capability,
    },
    /// No notice arrives, so that a subscription is refused, and waiting receivers look at
    /// intervals.
    NoNotices {
        /// The cause, and the setting that ends it.
        reason: String,
    },
    /// A stored message could not be read, and was set aside: its neighbours are delivered. On NATS
    /// it is a claim of a message, which is delivered without it.
    SetAside {
        /// The message, as the server names it.
        message: String,
        /// The place on the server that holds what is left of it.
        place: String,
    },
}

impl Traced for ConnectionEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: "steadfast::backend", tracing::Level::INFO)
    }

    fn trace(&self, name: &str) {
        const TARGET: &str = "steadfast::backend";
        match self {
            Self::Lost { role, kind, reason } => {
                tracing::warn!(target: TARGET, name, role = role.as_str(), ?kind, reason, "connection lost");
            }
            Self::Restored { role, attempts } => {
                tracing::info!(target: TARGET, name, role = role.as_str(), attempts, "connection restored");
            }
            Self::NotRestored { role, kind, reason } => {
                tracing::warn!(target: TARGET, name, role = role.as_str(), ?kind, reason, "connection not restored");
            }
            Self::Exposed { server, reason } => {
                tracing::warn!(target: TARGET, name, server, reason, "the connection can be read or changed on its way");
            }
            Self::Weakened { capability } => {
                tracing::warn!(target: TARGET, name, %capability, "the server lacks a stated capability");
            }
            Self::Unverified { capability } => {
                tracing::warn!(target: TARGET, name, %capability, "the server does not tell its settings");
            }
            Self::NoNotices { reason } => {
                tracing::warn!(target: TARGET, name, reason, "notices do not arrive");
            }
            Self::SetAside { message, place } => {
                tracing::error!(target: TARGET, name, message, place, "a message that cannot be read was set aside");
            }
        }
    }
}
