//! What both algorithms have in common: who leads, and when to ask for an election.
use super::{Ballot, MessageElectionConfig, NodeId};
use crate::{
    entropy::Entropy,
    time::{Instant, scaled},
};

/// A node of one of the algorithms: takes the time, a ballot, a failed sending, and says what to send.
pub(super) trait Machine: Send {
    /// Begins an election.
    fn start(&mut self, now: Instant, out: &mut Outbox);
    /// A ballot came.
    fn receive(&mut self, now: Instant, from: NodeId, ballot: Ballot, out: &mut Outbox);
    /// Time has passed.
    fn tick(&mut self, now: Instant, out: &mut Outbox);
    /// A ballot did not reach its node.
    fn unreached(&mut self, now: Instant, to: NodeId, ballot: Ballot, out: &mut Outbox);
    /// When to call `tick` next.
    fn next_tick(&self) -> Instant;
    /// Who leads, as far as this node knows.
    fn leader(&self) -> Option<NodeId>;
}

/// What a machine wants sent, in order.
pub(super) type Outbox = Vec<(NodeId, Ballot)>;

/// A node, its peers, and what it knows of the leader.
pub(super) struct Node {
    pub(super) id: NodeId,
    /// All others, ascending.
    pub(super) peers: Vec<NodeId>,
    pub(super) config: MessageElectionConfig,
    pub(super) leader: Option<NodeId>,
    /// Leading: when to tell the others again. Following: when silence has lasted too long.
    pub(super) due: Instant,
    entropy: Entropy,
}

impl Node {
    /// A node that knows nothing, and asks for an election at its first tick.
    pub(super) fn new(id: NodeId, peers: Vec<NodeId>, config: MessageElectionConfig, entropy: Entropy) -> Self {
        Self { id, peers, config, leader: None, due: Instant::default(), entropy }
    }

    /// Takes this one for the leader.
    pub(super) fn follow(&mut self, leader: NodeId, now: Instant) {
        self.leader = Some(leader);
        self.due =
            if leader == self.id { now + self.config.beat } else { now + self.config.silence + self.some_of_a_beat() };
    }

    /// Waits for what was begun, and begins again if it comes to nothing.
    pub(super) fn wait(&mut self, now: Instant) {
        self.due = now + self.config.silence + self.some_of_a_beat();
    }

    /// A leader tells the others that it lives; whoever has heard nothing for too long gives its leader up. True if an election is
    /// due.
    pub(super) fn tick(&mut self, now: Instant, out: &mut Outbox) -> bool {
        if now < self.due {
            return false;
        }
        if self.leader == Some(self.id) {
            out.extend(self.peers.iter().map(|peer| (*peer, Ballot::Alive(self.id))));
            self.due = now + self.config.beat;
            return false;
        }
        self.leader = None;
        true
    }

    /// Not all at once.
    fn some_of_a_beat(&self) -> std::time::Duration {
        scaled(self.config.beat, self.entropy.unit())
    }
}
