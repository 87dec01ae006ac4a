//! Bully: a node asks all nodes with higher ids; if none answers, it leads.
use super::{
    Ballot, NodeId,
    machine::{Machine, Node, Outbox},
};
use crate::time::Instant;

/// A node of a bully election.
pub(super) struct Bully {
    node: Node,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// This node runs no election.
    Calm,
    /// The higher nodes were asked; live ones answer before this time.
    Asked(Instant),
    /// A higher node answered and is expected to announce itself.
    Outdone,
}

impl Bully {
    pub(super) fn new(node: Node) -> Self {
        Self { node, phase: Phase::Calm }
    }

    fn higher(&self) -> impl Iterator<Item = NodeId> {
        self.node.peers.iter().copied().filter(|peer| *peer > self.node.id)
    }

    fn lead(&mut self, now: Instant, out: &mut Outbox) {
        self.phase = Phase::Calm;
        self.node.follow(self.node.id, now);
        out.extend(self.node.peers.iter().map(|peer| (*peer, Ballot::Elected(self.node.id))));
    }
}

impl Machine for Bully {
    fn start(&mut self, now: Instant, out: &mut Outbox) {
        if matches!(self.phase, Phase::Asked(_)) {
            return;
        }
        self.node.leader = None;
        self.node.wait(now);
        let ask = out.len();
        out.extend(self.higher().map(|peer| (peer, Ballot::Elect(self.node.id))));
        if out.len() == ask {
            self.lead(now, out);
        } else {
            self.phase = Phase::Asked(now + self.node.config.reply);
        }
    }

    fn receive(&mut self, now: Instant, from: NodeId, ballot: Ballot, out: &mut Outbox) {
        match ballot {
            Ballot::Elect(_) if from < self.node.id => {
                out.push((from, Ballot::Answer));
                if self.node.leader == Some(self.node.id) {
                    out.push((from, Ballot::Elected(self.node.id)));
                } else {
                    self.start(now, out);
                }
            }
            Ballot::Answer if from > self.node.id && matches!(self.phase, Phase::Asked(_)) => {
                self.phase = Phase::Outdone;
                self.node.wait(now);
            }
            // A node with a lower id must not lead while this one is alive.
            Ballot::Elected(leader) | Ballot::Alive(leader) if leader < self.node.id => {
                if self.node.leader == Some(self.node.id) {
                    out.push((leader, Ballot::Elected(self.node.id)));
                } else {
                    self.start(now, out);
                }
            }
            Ballot::Elected(leader) | Ballot::Alive(leader) => {
                self.phase = Phase::Calm;
                self.node.follow(leader, now);
            }
            Ballot::Elect(_) | Ballot::Answer => {}
        }
    }

    fn tick(&mut self, now: Instant, out: &mut Outbox) {
        if let Phase::Asked(until) = self.phase
            && now >= until
        {
            return self.lead(now, out);
        }
        if self.node.tick(now, out) {
            self.phase = Phase::Calm;
            self.start(now, out);
        }
    }

    fn unreached(&mut self, _: Instant, _: NodeId, _: Ballot, _: &mut Outbox) {
        // An unreachable node gives no answer, which the reply time-out covers.
    }

    fn next_tick(&self) -> Instant {
        match self.phase {
            Phase::Asked(until) => until.min(self.node.due),
            Phase::Calm | Phase::Outdone => self.node.due,
        }
    }

    fn leader(&self) -> Option<NodeId> {
        self.node.leader
    }
}
