//! A network in this process's memory, for tests and examples.
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
    future::poll_fn,
    sync::Arc,
    task::{Poll, Waker},
};

use super::{Ballot, NodeId, Transport};
use crate::{
    port::{BoxFuture, PortError, PortErrorKind, PortFuture},
    sync::{Mutex, MutexGuard},
};

/// A network between nodes of this process. A clone is the same network.
#[derive(Clone, Default)]
pub struct InMemoryNetwork(Arc<Mutex<NetworkState>>);

#[derive(Default)]
struct NetworkState {
    boxes: BTreeMap<NodeId, Inbox>,
    /// Pairs of nodes that cannot reach each other.
    cut: BTreeSet<(NodeId, NodeId)>,
    sent: u64,
}

#[derive(Default)]
struct Inbox {
    ballots: VecDeque<(NodeId, Ballot)>,
    waker: Option<Waker>,
}

impl InMemoryNetwork {
    /// Creates a network without nodes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a node, or brings it back with an empty inbox.
    pub fn join(&self, id: NodeId) -> InMemoryTransport {
        self.state().boxes.insert(id, Inbox::default());
        InMemoryTransport { network: self.clone(), id }
    }

    /// Removes a node. Sending to it fails from now on.
    pub fn leave(&self, id: NodeId) {
        self.state().boxes.remove(&id);
    }

    /// Cuts the connection between two nodes. Sending between them fails from now on.
    pub fn cut(&self, one: NodeId, other: NodeId) {
        self.state().cut.extend([(one, other), (other, one)]);
    }

    /// Restores all connections.
    pub fn mend(&self) {
        self.state().cut.clear();
    }

    /// Returns the number of delivered ballots.
    pub fn sent(&self) -> u64 {
        self.state().sent
    }

    fn state(&self) -> MutexGuard<'_, NetworkState> {
        self.0.lock()
    }
}

/// The transport of one node in an [`InMemoryNetwork`].
#[derive(Clone, Debug)]
pub struct InMemoryTransport {
    network: InMemoryNetwork,
    id: NodeId,
}

impl Transport for InMemoryTransport {
    fn send(&self, to: NodeId, ballot: Ballot) -> PortFuture<'_, ()> {
        Box::pin(async move {
            let mut state = self.network.state();
            if state.cut.contains(&(self.id, to)) {
                return Err(PortError::new(PortErrorKind::Unavailable, format!("node {to} is unreachable")));
            }
            let Some(inbox) = state.boxes.get_mut(&to) else {
                return Err(PortError::new(PortErrorKind::Unavailable, format!("node {to} does not exist")));
            };
            inbox.ballots.push_back((self.id, ballot));
            let waker = inbox.waker.take();
            state.sent += 1;
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
            Ok(())
        })
    }

    fn recv(&self) -> BoxFuture<'_, (NodeId, Ballot)> {
        Box::pin(poll_fn(|cx| {
            let mut state = self.network.state();
            // A removed node receives nothing more.
            let Some(inbox) = state.boxes.get_mut(&self.id) else { return Poll::Pending };
            match inbox.ballots.pop_front() {
                Some(ballot) => Poll::Ready(ballot),
                None => {
                    inbox.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        }))
    }
}

impl fmt::Debug for InMemoryNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("InMemoryNetwork").field("nodes", &state.boxes.len()).field("sent", &state.sent).finish()
    }
}
