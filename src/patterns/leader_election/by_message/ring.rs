//! Ring: each node passes the highest id on; the node whose own id comes back leads.
use super::{
    Ballot, NodeId,
    machine::{Machine, Node, Outbox},
};
use crate::time::Instant;

/// A node of a ring election. The ring follows the order in which the ids were given.
pub(super) struct Ring {
    node: Node,
    /// The other nodes, starting with the next one.
    after: Vec<NodeId>,
    /// `true` while this node has sent an id on and waits for the result.
    takes_part: bool,
}

impl Ring {
    /// Creates a node; `after` lists the others in the order of the ring, from the next one on.
    pub(super) fn new(node: Node, after: Vec<NodeId>) -> Self {
        Self { node, after, takes_part: false }
    }

    fn pass(&self, ballot: Ballot, out: &mut Outbox) {
        out.extend(self.after.first().map(|next| (*next, ballot)));
    }

    fn lead(&mut self, now: Instant, out: &mut Outbox) {
        self.takes_part = false;
        self.node.follow(self.node.id, now);
        self.pass(Ballot::Elected(self.node.id), out);
    }
}

impl Machine for Ring {
    fn start(&mut self, now: Instant, out: &mut Outbox) {
        self.node.leader = None;
        self.takes_part = true;
        self.node.wait(now);
        if self.after.is_empty() {
            self.lead(now, out);
        } else {
            self.pass(Ballot::Elect(self.node.id), out);
        }
    }

    fn receive(&mut self, now: Instant, _: NodeId, ballot: Ballot, out: &mut Outbox) {
        let own = self.node.id;
        match ballot {
            Ballot::Elect(id) if id == own => {
                // If this node leads already, its id came round before and was announced.
                if self.node.leader != Some(own) {
                    self.lead(now, out);
                }
            }
            Ballot::Elect(id) if id > own => {
                if self.node.leader == Some(own) {
                    self.node.leader = None;
                }
                self.takes_part = true;
                self.node.wait(now);
                self.pass(ballot, out);
            }
            // A lower id: this node sends its own instead, unless it has done so already.
            Ballot::Elect(_) if !self.takes_part => self.start(now, out),
            Ballot::Elected(id) if id == own => {}
            Ballot::Elected(id) if id < own => self.start(now, out),
            Ballot::Elected(id) => {
                self.takes_part = false;
                self.node.follow(id, now);
                self.pass(ballot, out);
            }
            Ballot::Alive(id) if id < own => self.start(now, out),
            Ballot::Alive(id) => self.node.follow(id, now),
            Ballot::Elect(_) | Ballot::Answer => {}
        }
    }

    fn tick(&mut self, now: Instant, out: &mut Outbox) {
        if self.node.tick(now, out) {
            self.start(now, out);
        }
    }

    /// Sends to the node behind the one that was not reached, round the whole ring if necessary.
    fn unreached(&mut self, now: Instant, to: NodeId, ballot: Ballot, out: &mut Outbox) {
        if matches!(ballot, Ballot::Alive(_)) {
            return;
        }
        let behind = self.after.iter().position(|id| *id == to).map_or(self.after.len(), |i| i + 1);
        match (self.after.get(behind), ballot) {
            (Some(next), _) => out.push((*next, ballot)),
            // No other node is left, so an id that is passed on would come back to this node.
            (None, Ballot::Elect(id)) if id == self.node.id => self.lead_alone(now),
            (None, _) => {}
        }
    }

    fn next_tick(&self) -> Instant {
        self.node.due
    }

    fn leader(&self) -> Option<NodeId> {
        self.node.leader
    }
}

impl Ring {
    /// Leads without an announcement, since no node was reached.
    fn lead_alone(&mut self, now: Instant) {
        self.takes_part = false;
        self.node.follow(self.node.id, now);
    }
}
