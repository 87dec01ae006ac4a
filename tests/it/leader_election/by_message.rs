//! Elections by messages, over a transport.
use std::{future::Future, pin::Pin, time::Duration};

use steadfast::{
    leader_election::by_message::{
        Ballot, InMemoryNetwork, InMemoryTransport, MessageElection, MessageElectionConfig, NodeId, Transport,
    },
    port::{BoxFuture, PortFuture},
    testing::drop_at_every_await,
    time::{Clock, ManualClock},
};

const IDS: [NodeId; 4] = [NodeId(1), NodeId(2), NodeId(3), NodeId(4)];

fn nodes(ring: bool, clock: &Clock, network: &InMemoryNetwork) -> Vec<MessageElection> {
    let config = MessageElectionConfig::default();
    let make = |id| match ring {
        true => MessageElection::ring(id, IDS, network.join(id), config),
        false => MessageElection::bully(id, IDS, network.join(id), config),
    };
    IDS.map(|id| make(id).clock(clock).build().unwrap()).into()
}

/// Runs these nodes for this time.
fn run(driver: &ManualClock, nodes: &[MessageElection], time: Duration) {
    let mut all: Vec<Pin<Box<dyn Future<Output = ()>>>> =
        nodes.iter().map(|node| Box::pin(node.run()) as Pin<Box<dyn Future<Output = ()>>>).collect();
    let clock = driver.clock();
    driver.block_on(async {
        let mut end = std::pin::pin!(clock.sleep(time));
        std::future::poll_fn(|cx| {
            for node in &mut all {
                let _never = node.as_mut().poll(cx);
            }
            end.as_mut().poll(cx)
        })
        .await;
    });
}

fn leaders(nodes: &[MessageElection]) -> Vec<NodeId> {
    nodes.iter().filter(|node| node.is_leader()).map(MessageElection::id).collect()
}

#[test]
fn elections_by_messages_have_two_leaders_under_partition_and_one_after_it() {
    for ring in [false, true] {
        let (clock, driver) = Clock::manual();
        let network = InMemoryNetwork::new();
        let nodes = nodes(ring, &clock, &network);
        run(&driver, &nodes, Duration::from_secs(20));
        assert_eq!(leaders(&nodes), [NodeId(4)]);
        for (one, other) in [(1, 3), (1, 4), (2, 3), (2, 4)] {
            network.cut(NodeId(one), NodeId(other));
        }
        run(&driver, &nodes, Duration::from_secs(60));
        assert_eq!(leaders(&nodes), [NodeId(2), NodeId(4)], "ring: {ring}");
        network.mend();
        run(&driver, &nodes, Duration::from_secs(60));
        assert_eq!(leaders(&nodes), [NodeId(4)], "ring: {ring}");
        assert!(nodes.iter().all(|node| node.leader() == Some(NodeId(4))));
    }
}

#[test]
fn a_stopped_node_sends_nothing_and_continues_when_it_runs_again() {
    for ring in [false, true] {
        let (clock, driver) = Clock::manual();
        let network = InMemoryNetwork::new();
        let nodes = nodes(ring, &clock, &network);
        run(&driver, &nodes, Duration::from_secs(20));
        network.leave(NodeId(4));
        run(&driver, &nodes[..3], Duration::from_secs(20));
        assert_eq!(leaders(&nodes[..3]), [NodeId(3)]);
        let _ = network.join(NodeId(4));
        run(&driver, &nodes, Duration::from_secs(20));
        assert_eq!(leaders(&nodes), [NodeId(4)]);
    }
}

#[test]
fn a_change_of_leader_wakes_waiting_tasks() {
    let (clock, driver) = Clock::manual();
    let node = MessageElection::bully(
        NodeId(1),
        IDS,
        InMemoryNetwork::new().join(NodeId(1)),
        MessageElectionConfig::default(),
    )
    .clock(&clock)
    .build();
    let node = node.unwrap();
    let changed = driver.block_on(async {
        tokio::select! {
            leader = node.changed() => leader,
            () = node.run() => None,
        }
    });
    assert_eq!(changed, Some(NodeId(1)));
}

#[test]
fn settings_that_break_a_rule_are_refused_by_name() {
    let transport = InMemoryNetwork::new().join(NodeId(1));
    let config = MessageElectionConfig::default();
    let bully = |config| MessageElection::bully(NodeId(1), IDS, transport.clone(), config).build().unwrap_err();
    assert_eq!(
        bully(config.heartbeat_interval(Duration::ZERO)).to_string(),
        "invalid `heartbeat_interval`: must be longer than zero"
    );
    assert_eq!(bully(config.heartbeat_interval(Duration::from_secs(3))).field(), "election_timeout");
    assert_eq!(bully(config.reply(Duration::from_secs(4))).field(), "election_timeout");
    let ring = |ring: &[NodeId]| {
        MessageElection::ring(NodeId(1), ring.to_vec(), transport.clone(), config).build().unwrap_err()
    };
    assert_eq!(ring(&IDS[1..]).to_string(), "invalid `ring`: must name the node's own id, 1");
    assert_eq!(ring(&[NodeId(1), NodeId(2), NodeId(2)]).to_string(), "invalid `ring`: must name each id once");
}

/// A transport with a delay, so that a send can be dropped.
#[derive(Debug)]
struct Slow(InMemoryTransport, Clock);

impl Transport for Slow {
    fn send(&self, to: NodeId, ballot: Ballot) -> PortFuture<'_, ()> {
        Box::pin(async move {
            self.1.sleep(Duration::from_millis(3)).await;
            self.0.send(to, ballot).await
        })
    }
    fn recv(&self) -> BoxFuture<'_, (NodeId, Ballot)> {
        self.0.recv()
    }
}

#[test]
fn a_node_dropped_at_every_await_keeps_its_state_and_takes_part_again() {
    for ring in [false, true] {
        let (clock, driver) = Clock::manual();
        let network = InMemoryNetwork::new();
        let config = MessageElectionConfig::default();
        let slow = |id| Slow(network.join(id), clock.clone());
        let make = |id| match ring {
            true => MessageElection::ring(id, IDS, slow(id), config),
            false => MessageElection::bully(id, IDS, slow(id), config),
        };
        let nodes: Vec<MessageElection> = IDS.map(|id| make(id).clock(&clock).build().unwrap()).into();
        let time = Duration::from_secs(12);
        let mut agreed = 0;
        let polls = drop_at_every_await(
            &driver,
            || async {
                // All nodes run and all are dropped, also the highest in the middle of its election.
                let all = futures::future::join_all(nodes.iter().map(MessageElection::run));
                tokio::select! {
                    biased;
                    _ = all => unreachable!(),
                    () = clock.sleep(time) => {}
                }
            },
            |_| {
                // While no node runs, each keeps the leader that it knew before.
                let believed: Vec<_> = nodes.iter().map(MessageElection::leader).collect();
                driver.advance(Duration::from_millis(1));
                assert_eq!(nodes.iter().map(MessageElection::leader).collect::<Vec<_>>(), believed);
                agreed += u64::from(believed.iter().all(|leader| *leader == Some(NodeId(4))));
            },
        );
        assert!(polls > 10 && agreed > 0, "ring: {ring}: {polls} polls, {agreed} agreed");
        run(&driver, &nodes, Duration::from_secs(60));
        assert_eq!(leaders(&nodes), [NodeId(4)], "ring: {ring}");
        assert!(nodes.iter().all(|node| node.leader() == Some(NodeId(4))));
    }
}
