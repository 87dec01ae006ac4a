//! Messages between nodes, and the transport that carries them.
use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::port::{BoxFuture, PortFuture};

/// A node's id. The highest id that can be reached leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u64);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A message between two nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Ballot {
    /// Proposes this node, unless the receiver knows a live one with a higher id.
    Elect(NodeId),
    /// Says that the sender is alive, has a higher id and takes over the election. (Bully only.)
    Answer,
    /// Announces that this node was elected.
    Elected(NodeId),
    /// Heartbeat of this leader.
    Alive(NodeId),
}

/// A transport of ballots between nodes, over HTTP, UDP or any other connection. Ballots may be
/// lost, duplicated or late.
pub trait Transport: Send + Sync + fmt::Debug {
    /// Sends a ballot to a node.
    ///
    /// # Errors
    /// If the node is known not to have received it. A ring then goes on to the next node. A
    /// transport that cannot tell returns `Ok`.
    ///
    /// # Cancel safety
    /// If the future is dropped, the ballot was either sent or not.
    fn send(&self, to: NodeId, ballot: Ballot) -> PortFuture<'_, ()>;

    /// Waits for the next ballot for this node and returns it with its sender.
    ///
    /// # Cancel safety
    /// Implementations must lose no ballot when the future is dropped.
    fn recv(&self) -> BoxFuture<'_, (NodeId, Ballot)>;
}

impl<T: Transport + ?Sized> Transport for Arc<T> {
    fn send(&self, to: NodeId, ballot: Ballot) -> PortFuture<'_, ()> {
        (**self).send(to, ballot)
    }
    fn recv(&self) -> BoxFuture<'_, (NodeId, Ballot)> {
        (**self).recv()
    }
}
