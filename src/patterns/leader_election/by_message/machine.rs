//! The part that both algorithms share: the known leader, heartbeats and the election time-out.
use super::{Ballot, MessageElectionConfig, NodeId};
use crate::{
    entropy::Entropy,
    time::{Instant, scaled},
};

/// The state machine of a node. It takes the time, a ballot or a failed send, and puts the ballots
/// to send into an outbox.
pub(super) trait Machine: Send {
    /// Begins an election.
    fn start(&mut self, now: Instant, out: &mut Outbox);
    /// Handles a ballot.
    fn receive(&mut self, now: Instant, from: NodeId, ballot: Ballot, out: &mut Outbox);
    /// Handles the passing of time.
    fn tick(&mut self, now: Instant, out: &mut Outbox);
    /// Handles a ballot that did not reach its node.
    fn unreached(&mut self, now: Instant, to: NodeId, ballot: Ballot, out: &mut Outbox);
    /// Returns the time of the next `tick`.
    fn next_tick(&self) -> Instant;
    /// Returns the leader, as far as this node knows.
    fn leader(&self) -> Option<NodeId>;
}

/// The ballots to send, in order.
pub(super) type Outbox = Vec<(NodeId, Ballot)>;

/// A node, its peers and its view of the leader.
pub(super) struct Node {
    pub(super) id: NodeId,
    /// All other nodes, in ascending order.
    pub(super) peers: Vec<NodeId>,
    pub(super) config: MessageElectionConfig,
    pub(super) leader: Option<NodeId>,
    /// The time of the next heartbeat if this node leads, or else the end of the election time-out.
    pub(super) due: Instant,
    entropy: Entropy,
}

impl Node {
    /// Creates a node that knows no leader and starts an election at its first tick.
    pub(super) fn new(id: NodeId, peers: Vec<NodeId>, config: MessageElectionConfig, entropy: Entropy) -> Self {
        Self { id, peers, config, leader: None, due: Instant::default(), entropy }
    }

    /// Records this node as the leader.
    pub(super) fn follow(&mut self, leader: NodeId, now: Instant) {
        self.leader = Some(leader);
        self.due = if leader == self.id {
            now + self.config.heartbeat_interval
        } else {
            now + self.config.election_timeout + self.random_part_of_a_heartbeat()
        };
    }

    /// Restarts the election time-out, so that an election without a result is started again.
    pub(super) fn wait(&mut self, now: Instant) {
        self.due = now + self.config.election_timeout + self.random_part_of_a_heartbeat();
    }

    /// Sends heartbeats if this node leads, or else forgets a leader whose time-out is over.
    /// Returns `true` if an election is due.
    pub(super) fn tick(&mut self, now: Instant, out: &mut Outbox) -> bool {
        if now < self.due {
            return false;
        }
        if self.leader == Some(self.id) {
            out.extend(self.peers.iter().map(|peer| (*peer, Ballot::Alive(self.id))));
            self.due = now + self.config.heartbeat_interval;
            return false;
        }
        self.leader = None;
        true
    }

    /// Returns a random part of a heartbeat interval, so that not all nodes start at once.
    fn random_part_of_a_heartbeat(&self) -> std::time::Duration {
        scaled(self.config.heartbeat_interval, self.entropy.unit())
    }
}
