//! The async shell: carries ballots between a machine and a transport.
use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

use super::{
    MessageElectionConfig, NodeId, Transport,
    bully::Bully,
    machine::{Machine, Node, Outbox},
    ring::Ring,
};
use crate::{
    config::{ConfigError, require},
    entropy::Entropy,
    race::{First, race},
    time::Clock,
};

/// One node of an election by messages. The [module's page](super) says what it is not good for.
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
    /// A node of a bully election among these; its own id may be one of them.
    ///
    /// # Errors
    /// Where a setting breaks a rule.
    pub fn bully(
        id: NodeId,
        nodes: impl IntoIterator<Item = NodeId>,
        transport: impl Transport + 'static,
        config: MessageElectionConfig,
    ) -> Result<Self, ConfigError> {
        let node = node(id, nodes.into_iter().collect(), config)?;
        Ok(Self::new(id, Box::new(Bully::new(node)), transport))
    }

    /// A node of a ring election among these, which all nodes must name in the same order; its own id is one of them.
    ///
    /// # Errors
    /// Where a setting breaks a rule, or where its own id is not in the ring, or an id is in it twice.
    pub fn ring(
        id: NodeId,
        ring: impl IntoIterator<Item = NodeId>,
        transport: impl Transport + 'static,
        config: MessageElectionConfig,
    ) -> Result<Self, ConfigError> {
        let ring: Vec<NodeId> = ring.into_iter().collect();
        let at = ring.iter().position(|other| *other == id);
        let at = at.ok_or_else(|| ConfigError::new("ring", format!("must name the node's own id, {id}")))?;
        let mut sorted = ring.clone();
        sorted.sort_unstable();
        require(sorted.windows(2).all(|pair| pair[0] != pair[1]), "ring", "must name each id once")?;
        let after = [&ring[at + 1..], &ring[..at]].concat();
        let node = node(id, ring, config)?;
        Ok(Self::new(id, Box::new(Ring::new(node, after)), transport))
    }

    fn new(id: NodeId, machine: Box<dyn Machine>, transport: impl Transport + 'static) -> Self {
        let machine = Arc::new(Mutex::new(machine));
        Self { id, machine, transport: Arc::new(transport), leader: watch::Sender::new(None), clock: Clock::default() }
    }

    /// Reads the time from this clock. tokio's by default.
    #[must_use]
    pub fn with_clock(mut self, clock: &Clock) -> Self {
        self.clock = clock.clone();
        self
    }

    /// This node's id.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// Who leads, as far as this node knows.
    pub fn leader(&self) -> Option<NodeId> {
        *self.leader.borrow()
    }

    /// Whether this node takes itself for the leader. Another may do so at the same time: see the [module's page](super).
    pub fn is_leader(&self) -> bool {
        self.leader() == Some(self.id)
    }

    /// Waits until this node knows of another leader, or of none, than it did when this was called; gives it.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing. Changes between two calls are seen as one.
    pub async fn changed(&self) -> Option<NodeId> {
        let mut leader = self.leader.subscribe();
        // The sender lives as long as this node.
        let _ = leader.changed().await;
        *leader.borrow()
    }

    /// Takes part, until it is dropped.
    ///
    /// # Cancel safety
    /// Dropped and called again, it goes on where it was; meanwhile the node is silent.
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
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn node(id: NodeId, nodes: Vec<NodeId>, config: MessageElectionConfig) -> Result<Node, ConfigError> {
    config.check()?;
    let mut peers: Vec<NodeId> = nodes.into_iter().filter(|other| *other != id).collect();
    peers.sort_unstable();
    peers.dedup();
    // Spread by id: nodes of one seed do not start at the same moment.
    Ok(Node::new(id, peers, config, Entropy::from_seed(id.0)))
}

impl fmt::Debug for MessageElection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageElection").field("id", &self.id).field("leader", &self.leader()).finish_non_exhaustive()
    }
}
