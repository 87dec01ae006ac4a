//! Bully: ask all who are higher; if none answers, lead.
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
    /// No election of this node's is under way.
    Calm,
    /// The higher ones were asked; whoever is alive answers before this.
    Asked(Instant),
    /// A higher one answered, and is to announce itself.
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
            // Who is lower does not lead while this one lives.
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
        // Who cannot be reached does not answer, and that is all that counts.
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
