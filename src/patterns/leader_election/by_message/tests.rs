//! The state machines alone: the number of messages, and the leader they agree on.
#![allow(clippy::unwrap_used, reason = "tests")]
use std::collections::{BTreeSet, VecDeque};

use proptest::prelude::*;

use super::{
    Ballot, MessageElectionConfig, NodeId,
    bully::Bully,
    machine::{Machine, Node, Outbox},
    ring::Ring,
};
use crate::{entropy::Entropy, time::Instant};

const NOW: Instant = Instant::from_nanos(1_000_000_000);

/// Nodes, the ballots between them, and the numbers of ballots sent by kind.
struct World {
    nodes: Vec<(NodeId, Box<dyn Machine>)>,
    dead: BTreeSet<NodeId>,
    wire: VecDeque<(NodeId, NodeId, Ballot)>,
    elects: usize,
    announcements: usize,
    now: Instant,
}

impl World {
    fn new(ids: &[u64], make: impl Fn(NodeId, &[NodeId]) -> Box<dyn Machine>) -> Self {
        let ids: Vec<NodeId> = ids.iter().map(|id| NodeId(*id)).collect();
        let nodes = ids.iter().map(|id| (*id, make(*id, &ids))).collect();
        Self { nodes, dead: BTreeSet::new(), wire: VecDeque::new(), elects: 0, announcements: 0, now: NOW }
    }

    fn ring(ids: &[u64]) -> Self {
        Self::new(ids, |id, ids| {
            let at = ids.iter().position(|other| *other == id).unwrap();
            Box::new(Ring::new(node(id, ids), [&ids[at + 1..], &ids[..at]].concat()))
        })
    }

    fn bully(ids: &[u64]) -> Self {
        Self::new(ids, |id, ids| Box::new(Bully::new(node(id, ids))))
    }

    fn with(&mut self, id: NodeId, act: impl FnOnce(&mut dyn Machine, Instant, &mut Outbox)) {
        let mut out = Outbox::new();
        let now = self.now;
        let at = self.nodes.iter().position(|(other, _)| *other == id).unwrap();
        act(&mut *self.nodes[at].1, now, &mut out);
        // A ballot to a dead node counts as no message, but may cause another one.
        while !out.is_empty() {
            for (to, ballot) in std::mem::take(&mut out) {
                if self.dead.contains(&to) {
                    self.nodes[at].1.unreached(now, to, ballot, &mut out);
                } else {
                    self.elects += usize::from(matches!(ballot, Ballot::Elect(_)));
                    self.announcements += usize::from(matches!(ballot, Ballot::Elected(_)));
                    self.wire.push_back((id, to, ballot));
                }
            }
        }
    }

    /// Delivers ballots until none is left.
    fn settle(&mut self) {
        while let Some((from, to, ballot)) = self.wire.pop_front() {
            self.with(to, |node, now, out| node.receive(now, from, ballot, out));
        }
    }

    fn start(&mut self, ids: impl IntoIterator<Item = u64>) {
        for id in ids {
            self.with(NodeId(id), |node, now, out| node.start(now, out));
        }
        self.settle();
    }

    /// Advances the time by this many seconds, from tick to tick.
    fn pass(&mut self, seconds: u64) {
        let end = self.now + std::time::Duration::from_secs(seconds);
        loop {
            let alive = self.nodes.iter().filter(|(id, _)| !self.dead.contains(id));
            let (next, id) = alive.map(|(id, node)| (node.next_tick(), *id)).min().unwrap();
            if next > end {
                break;
            }
            self.now = self.now.max(next);
            self.with(id, |node, now, out| node.tick(now, out));
            self.settle();
        }
        self.now = end;
    }

    fn leaders(&self) -> BTreeSet<Option<NodeId>> {
        self.nodes.iter().filter(|(id, _)| !self.dead.contains(id)).map(|(_, node)| node.leader()).collect()
    }
}

fn node(id: NodeId, ids: &[NodeId]) -> Node {
    let peers = ids.iter().copied().filter(|other| *other != id);
    let mut peers: Vec<NodeId> = peers.collect();
    peers.sort_unstable();
    Node::new(id, peers, MessageElectionConfig::default(), Entropy::from_seed(id.0))
}

fn messages_of_a_ring(ids: &[u64]) -> usize {
    let mut world = World::ring(ids);
    world.start(ids.iter().copied());
    assert_eq!(world.leaders(), [Some(NodeId(8))].into());
    assert_eq!(world.announcements, ids.len(), "one to announce for each node");
    world.elects
}

// Guarantee: leader_election 14.
#[test]
fn a_ring_of_8_takes_15_messages_at_best_and_36_at_worst() {
    assert_eq!(messages_of_a_ring(&[1, 2, 3, 4, 5, 6, 7, 8]), 15);
    assert_eq!(messages_of_a_ring(&[8, 7, 6, 5, 4, 3, 2, 1]), 36);
}

// Guarantee: leader_election 14.
#[test]
fn a_ring_of_8_takes_21_74_messages_on_average() {
    let entropy = Entropy::from_seed(14);
    let mut ids = [1, 2, 3, 4, 5, 6, 7, 8];
    let rounds = 20_000;
    let mut all = 0;
    for _ in 0..rounds {
        for i in (1..ids.len()).rev() {
            ids.swap(i, entropy.up_to(i as u64) as usize);
        }
        all += messages_of_a_ring(&ids);
    }
    let mean = all as f64 / f64::from(rounds);
    // The standard deviation of one is about 4.4: of the mean about 0.03.
    assert!((mean - 21.74).abs() < 0.12, "{mean}");
}

// Guarantee: leader_election 14.
#[test]
fn a_bully_takes_half_of_n_times_n_minus_one_messages_at_worst() {
    for n in 2..=12 {
        let ids: Vec<u64> = (1..=n).collect();
        let mut world = World::bully(&ids);
        world.start([1]);
        world.pass(1);
        assert_eq!(world.leaders(), [Some(NodeId(n))].into());
        assert_eq!(world.elects as u64, n * (n - 1) / 2);
        // The best case: the highest live node notices first.
        world.pass(1);
        world.dead.insert(NodeId(n));
        (world.elects, world.announcements) = (0, 0);
        world.start([n - 1]);
        world.pass(1);
        assert_eq!(world.leaders(), [Some(NodeId(n - 1))].into());
        assert_eq!((world.elects, world.announcements as u64), (0, n - 2));
    }
}

#[test]
fn a_dead_leader_is_noticed_and_one_that_comes_back_leads_again() {
    for make in [World::ring, World::bully] {
        let mut world = make(&[3, 1, 4, 2]);
        world.pass(10);
        assert_eq!(world.leaders(), [Some(NodeId(4))].into());
        world.dead.insert(NodeId(4));
        world.pass(20);
        assert_eq!(world.leaders(), [Some(NodeId(3))].into());
        world.dead.remove(&NodeId(4));
        world.pass(20);
        assert_eq!(world.leaders(), [Some(NodeId(4))].into());
    }
}

#[test]
fn a_node_without_live_peers_leads() {
    for make in [World::ring, World::bully] {
        let mut world = make(&[1]);
        world.pass(5);
        assert_eq!(world.leaders(), [Some(NodeId(1))].into());
        let mut world = make(&[1, 2, 3]);
        world.dead.extend([NodeId(2), NodeId(3)]);
        world.pass(20);
        assert_eq!(world.leaders(), [Some(NodeId(1))].into());
    }
}

proptest! {
    /// After any sequence of deaths and returns, all live nodes follow the highest live node.
    #[test]
    fn all_live_nodes_follow_the_highest_in_the_end(
        ring: bool,
        order in Just((1u64..=6).collect::<Vec<_>>()).prop_shuffle(),
        changes in proptest::collection::vec((1u64..=6, 0u64..9), 0..12),
    ) {
        let mut world = if ring { World::ring(&order) } else { World::bully(&order) };
        for (id, seconds) in changes {
            let id = NodeId(id);
            if !world.dead.remove(&id) && world.dead.len() < 5 {
                world.dead.insert(id);
            }
            world.wire.retain(|(_, to, _)| !world.dead.contains(to));
            world.pass(seconds);
        }
        world.pass(40);
        let highest = order.iter().map(|id| NodeId(*id)).filter(|id| !world.dead.contains(id)).max();
        prop_assert_eq!(world.leaders(), [highest].into());
    }
}
