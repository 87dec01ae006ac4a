//! The async shell, which carries ballots between a state machine and a transport.
use std::sync::Arc;

use tokio::sync::watch;

use super::{
    MessageElectionConfig, NodeId, Transport,
    bully::Bully,
    machine::{Machine, Node, Outbox},
    ring::Ring,
};
use crate::{
    build::{Builder, Common, Component},
    config::{ConfigError, require},
    entropy::Entropy,
    race::{First, race},
    sync::{Mutex, MutexGuard},
    time::Clock,
};

/// One node of an election by messages. The [module's page](super) states its limits.
///
/// A clone is the same node; only one of them may [`run`](Self::run) at a time.
#[derive(Clone)]
pub struct MessageElection {
    id: NodeId,
    machine: Arc<Mutex<Box<dyn Machine>>>,
    transport: Arc<dyn Transport>,
    leader: watch::Sender<Option<NodeId>>,
    clock: Clock,
}

impl MessageElection {
    /// Creates a builder of a node of a bully election among `nodes`, which may include its own id.
    pub fn bully(
        id: NodeId,
        nodes: impl IntoIterator<Item = NodeId>,
        transport: impl Transport + 'static,
        config: MessageElectionConfig,
    ) -> Builder<Self> {
        Self::of(id, nodes.into_iter().collect(), transport, config, false)
    }

    /// Creates a builder of a node of a ring election. All nodes must be given the same `ring`, in
    /// the same order, with each id once, and their own ids in it.
    pub fn ring(
        id: NodeId,
        ring: impl IntoIterator<Item = NodeId>,
        transport: impl Transport + 'static,
        config: MessageElectionConfig,
    ) -> Builder<Self> {
        Self::of(id, ring.into_iter().collect(), transport, config, true)
    }

    fn of(
        id: NodeId,
        nodes: Vec<NodeId>,
        transport: impl Transport + 'static,
        config: MessageElectionConfig,
        is_ring: bool,
    ) -> Builder<Self> {
        Builder::new(MessageElectionSpec { id, nodes, transport: Arc::new(transport), config, is_ring })
    }

    /// Returns this node's id.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// Returns the leader, as far as this node knows.
    pub fn leader(&self) -> Option<NodeId> {
        *self.leader.borrow()
    }

    /// Returns `true` if this node considers itself the leader. Another may do so at the same time:
    /// see the [module's page](super).
    pub fn is_leader(&self) -> bool {
        self.leader() == Some(self.id)
    }

    /// Waits until the leader that this node knows of changes, and returns the new one, or `None`
    /// if there is none.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing. Changes between two calls appear as one.
    pub async fn changed(&self) -> Option<NodeId> {
        let mut leader = self.leader.subscribe();
        // The sender is a field of this node, so it outlives this borrow.
        let _ = leader.changed().await;
        *leader.borrow()
    }

    /// Takes part in elections until the future is dropped.
    ///
    /// # Cancel safety
    /// If the future is dropped, a later call continues from the same state; in between the node
    /// sends nothing.
    pub async fn run(&self) {
        let mut out = Outbox::new();
        loop {
            let due = self.machine().next_tick();
            let came = race(self.clock.sleep_until(due), self.transport.recv()).await;
            let now = self.clock.now();
            match came {
                First::Other((from, ballot)) => self.machine().receive(now, from, ballot, &mut out),
                First::One(()) => self.machine().tick(now, &mut out),
            }
            self.tell();
            self.send(&mut out).await;
        }
    }

    async fn send(&self, out: &mut Outbox) {
        while !out.is_empty() {
            for (to, ballot) in std::mem::take(out) {
                if self.transport.send(to, ballot).await.is_err() {
                    let now = self.clock.now();
                    self.machine().unreached(now, to, ballot, out);
                }
            }
            self.tell();
        }
    }

    fn tell(&self) {
        let leader = self.machine().leader();
        self.leader.send_if_modified(|known| std::mem::replace(known, leader) != leader);
    }

    fn machine(&self) -> MutexGuard<'_, Box<dyn Machine>> {
        self.machine.lock()
    }
}

fn node(id: NodeId, nodes: Vec<NodeId>, config: MessageElectionConfig) -> Result<Node, ConfigError> {
    config.check()?;
    let mut peers: Vec<NodeId> = nodes.into_iter().filter(|other| *other != id).collect();
    peers.sort_unstable();
    peers.dedup();
    // Seeded by id, so that the nodes do not all start at the same moment.
    Ok(Node::new(id, peers, config, Entropy::from_seed(id.0)))
}

/// Arguments of a node, beside name, clock and entropy.
pub struct MessageElectionSpec {
    id: NodeId,
    nodes: Vec<NodeId>,
    transport: Arc<dyn Transport>,
    config: MessageElectionConfig,
    is_ring: bool,
}

impl Component for MessageElection {
    type Built = Result<Self, ConfigError>;
    type Spec = MessageElectionSpec;

    fn assemble(spec: MessageElectionSpec, Common { clock, .. }: Common) -> Self::Built {
        let MessageElectionSpec { id, nodes, transport, config, is_ring } = spec;
        let machine: Box<dyn Machine> = if is_ring {
            let at = nodes.iter().position(|other| *other == id);
            let at = at.ok_or_else(|| ConfigError::new("ring", format!("must name the node's own id, {id}")))?;
            let mut sorted = nodes.clone();
            sorted.sort_unstable();
            require(sorted.windows(2).all(|pair| pair[0] != pair[1]), "ring", "must name each id once")?;
            let after = [&nodes[at + 1..], &nodes[..at]].concat();
            Box::new(Ring::new(node(id, nodes, config)?, after))
        } else {
            Box::new(Bully::new(node(id, nodes, config)?))
        };
        let machine = Arc::new(Mutex::new(machine));
        Ok(Self { id, machine, transport, leader: watch::Sender::new(None), clock })
    }
}

crate::build::debug_fields!(MessageElection, |this| id: this.id, leader: this.leader());
