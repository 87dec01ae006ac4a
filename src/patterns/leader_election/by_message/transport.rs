//! What nodes tell each other, and how it gets there.
use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::port::{BoxFuture, PortError};

/// A node's id. The highest that can be reached leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u64);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What one node tells another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ballot {
    /// Elect this one, unless you know a higher one that is alive.
    Elect(NodeId),
    /// I am alive and higher than you: leave it to me. (Bully only.)
    Answer,
    /// This one is elected.
    Elected(NodeId),
    /// The leader is alive.
    Alive(NodeId),
}

/// Carries ballots between nodes: over HTTP, UDP, whatever connects them. Ballots may be lost, doubled, late.
pub trait Transport: Send + Sync + fmt::Debug {
    /// Sends a ballot to a node.
    ///
    /// # Errors
    /// Where the node is known not to have got it. A ring then goes on to the next node; a transport that cannot tell returns `Ok`.
    ///
    /// # Cancel safety
    /// Dropping the future sends it or not.
    fn send(&self, to: NodeId, ballot: Ballot) -> BoxFuture<'_, Result<(), PortError>>;

    /// The next ballot that came for this node, with its sender; waits for it, for ever if none comes.
    ///
    /// # Cancel safety
    /// Must lose nothing when the future is dropped.
    fn recv(&self) -> BoxFuture<'_, (NodeId, Ballot)>;
}

impl<T: Transport + ?Sized> Transport for Arc<T> {
    fn send(&self, to: NodeId, ballot: Ballot) -> BoxFuture<'_, Result<(), PortError>> {
        (**self).send(to, ballot)
    }
    fn recv(&self) -> BoxFuture<'_, (NodeId, Ballot)> {
        (**self).recv()
    }
}
