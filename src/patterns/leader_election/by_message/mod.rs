//! The two classical elections by messages: bully and ring. They need no store, and **neither is safe under partition**.
//!
//! Both elect the reachable node with the highest id, by asking each other. Where the network falls in two, each half elects a leader; where a node
//! is only slow, the others elect a second one. There is no fencing token, so no resource can tell the two apart. Take them to
//! spread work that may be done twice without harm; for everything else take the lease, which is this module's
//! [default](super).
//!
//! | | bully | ring |
//! |---|---|---|
//! | a node talks to | all | the next one that is alive |
//! | election messages of n nodes | n - 1 at best, n(n - 1)/2 at worst | 2n - 1 at best, n(n + 1)/2 at worst, about n ln n on average |
//! | messages that announce the leader | n - 1 | n |
//! | time to elect | one reply time-out | as long as a message takes to go round twice |
//!
//! ```
//! use steadfast::{leader_election::by_message::{InMemoryNetwork, MessageElection, MessageElectionConfig, NodeId}, time::Clock};
//! use std::time::Duration;
//!
//! let (clock, hand) = Clock::manual();
//! let network = InMemoryNetwork::new();
//! let ids = [NodeId(1), NodeId(2), NodeId(3)];
//! let nodes = ids.map(|id| {
//!     MessageElection::bully(id, ids, network.join(id), MessageElectionConfig::default()).unwrap().with_clock(&clock)
//! });
//! let a_while = clock.sleep(Duration::from_secs(60));
//! hand.block_on(async {
//!     tokio::select! {
//!         // Each on a task of its own, in a service.
//!         never = async { tokio::join!(nodes[0].run(), nodes[1].run(), nodes[2].run()) } => { never; }
//!         () = a_while => {}
//!     }
//! });
//! assert!(nodes.iter().all(|node| node.leader() == Some(NodeId(3))));
//! assert!(nodes[2].is_leader());
//! ```
//!
//! # How a dead leader is noticed
//!
//! The leader tells all others every [`beat`](MessageElectionConfig::beat) that it lives; who hears nothing for
//! [`silence`](MessageElectionConfig::silence) starts an election, after a random part of a beat, so that not all start at once.
//!
//! # Cancel safety
//!
//! [`MessageElection::run`] may be dropped and called again: the node's standing stays, its messages of meanwhile are those that the
//! transport kept. While it is not polled, the node is silent, and the others elect another.
//!
//! # Source
//!
//! Hector Garcia-Molina, "Elections in a Distributed Computing System", 1982 (bully); Ernest Chang and Rosemary Roberts, "An improved
//! algorithm for decentralized extrema-finding in circular configurations of processes", 1979 (ring).
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
