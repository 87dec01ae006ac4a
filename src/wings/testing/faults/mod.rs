//! A faulty network between any backend and its clients: latency, errors, lost replies, doubled and
//! late effects, pauses, partitions. One seed determines all faults.
//!
//! ```
//! use std::sync::Arc;
//! use steadfast::{
//!     store::{InMemoryStore, Key, Store, StoreExt},
//!     testing::faults::{FaultConfig, FaultNetwork, for_each_seed},
//!     time::Clock,
//! };
//!
//! // After a panic the seed is printed; `STEADFAST_SEED` runs that seed alone.
//! for_each_seed(0..10, |seed| {
//!     let (clock, time) = Clock::manual();
//!     let backend = Arc::new(InMemoryStore::builder().clock(&clock).build());
//!     let faults = FaultConfig::default().lost_replies(0.5);
//!     let network = FaultNetwork::new(faults, seed, &clock).unwrap();
//!     let store = network.client("node-1").store(backend.clone());
//!
//!     let key = Key::new("orders", "42");
//!     let written = time.block_on(store.insert(key, "placed"));
//!     // A lost reply says nothing about the write.
//!     assert!(written.is_ok() || network.counts().lost_replies == 1);
//!     assert!(time.block_on(backend.get(key)).unwrap().is_some());
//! });
//! ```
mod config;
mod network;
mod seeds;

pub use config::{FaultConfig, FaultCounts};
pub use network::{FaultClient, FaultNetwork};
pub use seeds::for_each_seed;
