//! The two classical elections by messages, bully and ring. They need no store, and **neither is
//! safe under partition**.
//!
//! Both elect the reachable node with the highest id, by asking each other. If the network is
//! partitioned, each part elects a leader. If a node is only slow, the others elect a second
//! leader. There is no fencing token, so no resource can tell the two apart. Use them to spread
//! work that may be done twice without harm. For everything else use the lease, the
//! [default](super).
//!
//! | | bully | ring |
//! |---|---|---|
//! | a node talks to | all | the next one that is alive |
//! | election messages of n nodes | n - 1 at best, n(n - 1)/2 at worst | 2n - 1 at best, n(n + 1)/2 at worst, about n ln n on average |
//! | messages that announce the leader | n - 1 | n |
//! | time to elect | one reply time-out | the time in which a message goes round twice |
//!
//! ```
//! use steadfast::{leader_election::by_message::{InMemoryNetwork, MessageElection}, time::Clock};
//! use steadfast::leader_election::by_message::{MessageElectionConfig, NodeId};
//! use std::time::Duration;
//!
//! let (clock, time) = Clock::manual();
//! let network = InMemoryNetwork::new();
//! let ids = [NodeId(1), NodeId(2), NodeId(3)];
//! let nodes = ids.map(|id| {
//!     let config = MessageElectionConfig::default();
//!     MessageElection::bully(id, ids, network.join(id), config).clock(&clock).build().unwrap()
//! });
//! let a_while = clock.sleep(Duration::from_secs(60));
//! time.block_on(async {
//!     tokio::select! {
//!         // In a service, each runs on its own task.
//!         _ = async { tokio::join!(nodes[0].run(), nodes[1].run(), nodes[2].run()) } => {}
//!         () = a_while => {}
//!     }
//! });
//! assert!(nodes.iter().all(|node| node.leader() == Some(NodeId(3))));
//! assert!(nodes[2].is_leader());
//! ```
//!
//! `cargo run --example leader_election -- --by bully` (or `ring`) shows it with a leader that
//! vanishes, and the two leaders of a divided network.
//!
//! # How a dead leader is noticed
//!
//! The leader sends a heartbeat to all others every
//! [`heartbeat_interval`](MessageElectionConfig::heartbeat_interval). A node that receives nothing
//! for the [`election_timeout`](MessageElectionConfig::election_timeout) starts an election. It
//! adds a random part of a heartbeat interval, so that not all nodes start at once.
//!
//! # Cancel safety
//!
//! [`MessageElection::run`] may be dropped and called again: the node keeps its state, and receives
//! the messages that the transport kept meanwhile. While it is not polled, the node sends nothing,
//! and the others elect another leader.
//!
//! # Source
//!
//! Hector Garcia-Molina, "Elections in a Distributed Computing System", 1982 (bully); Ernest Chang
//! and Rosemary Roberts, "An improved algorithm for decentralized extrema-finding in circular
//! configurations of processes", 1979 (ring).
mod bully;
mod config;
mod election;
mod machine;
mod memory;
mod ring;
mod transport;

#[cfg(all(test, not(steadfast_loom)))]
mod tests;

pub use config::MessageElectionConfig;
pub use election::MessageElection;
pub use memory::{InMemoryNetwork, InMemoryTransport};
pub use transport::{Ballot, NodeId, Transport};
