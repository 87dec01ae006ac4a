//! Elections by messages: five nodes on a network in memory, on a clock that the program moves.
//!
//! A leader that vanishes is replaced. When the network is divided, each part has a leader, and no token tells the
//! two apart: so the election over a lease is the default.
use std::{
    collections::BTreeSet,
    io::{self, Write as _},
    time::Duration,
};

use clap::ValueEnum;
use futures::future::join_all;
use serde_json::json;
use steadfast::{
    leader_election::by_message::{InMemoryNetwork, MessageElection, MessageElectionConfig, NodeId},
    time::Clock,
};
use tokio::sync::Notify;

/// The algorithm of an election by messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum By {
    /// Each node asks all nodes with higher numbers.
    Bully,
    /// An election goes round a ring of nodes.
    Ring,
}

/// Long enough for every election.
const A_WHILE: Duration = Duration::from_secs(60);

/// Elects leaders in a network that loses a node, is divided, and is whole again. Returns `true` if all was as expected.
pub(crate) fn show(by: By) -> Result<bool, steadfast::ConfigError> {
    let (clock, time) = Clock::manual();
    let network = InMemoryNetwork::new();
    let ids = [1, 2, 3, 4, 5].map(NodeId);
    let node = |id| {
        let (config, transport) = (MessageElectionConfig::default(), network.join(id));
        let node = match by {
            By::Bully => MessageElection::bully(id, ids, transport, config),
            By::Ring => MessageElection::ring(id, ids, transport, config),
        };
        node.clock(&clock).build()
    };
    let nodes = ids.into_iter().map(node).collect::<Result<Vec<_>, _>>()?;
    let died = Notify::new();
    // In a service, each node runs in its own process, over a transport of your own.
    let run = async |node: &MessageElection| {
        tokio::select! {
            () = node.run() => {}
            () = died.notified(), if node.id() == NodeId(5) => {}
        }
    };
    Ok(time.block_on(async {
        tokio::select! {
            expected = disturb(by, &nodes, &network, &clock, &died) => expected,
            _ = join_all(nodes.iter().map(run)) => false,
        }
    }))
}

async fn disturb(by: By, nodes: &[MessageElection], network: &InMemoryNetwork, clock: &Clock, died: &Notify) -> bool {
    let mut expected = true;
    let mut see = |what: &str, nodes: &[MessageElection], leaders: &[u64]| {
        let seen: BTreeSet<_> = nodes.iter().filter_map(MessageElection::leader).map(|NodeId(id)| id).collect();
        expected &= seen.iter().eq(leaders);
        say(&format!("{what}: leaders {seen:?}, {} messages so far", network.sent()));
    };
    clock.sleep(A_WHILE).await;
    see("five nodes", nodes, &[5]);
    died.notify_one();
    network.leave(NodeId(5));
    clock.sleep(A_WHILE).await;
    let alive = &nodes[..4];
    see("node 5 is gone", alive, &[4]);
    for (one, other) in [(1, 3), (1, 4), (2, 3), (2, 4)] {
        network.cut(NodeId(one), NodeId(other));
    }
    clock.sleep(A_WHILE).await;
    see("nodes 1 and 2 do not reach 3 and 4", alive, &[2, 4]);
    network.mend();
    clock.sleep(A_WHILE).await;
    see("the network is whole again", alive, &[4]);
    let by = by.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
    let summary =
        json!({ "by": by, "messages": network.sent(), "leaders_of_a_divided_network": 2, "expected": expected });
    say(&format!("\nsummary: {summary}"));
    expected
}

fn say(what: &str) {
    let _ = writeln!(io::stdout().lock(), "{what}");
}
