//! The patterns. No pattern imports another: code that two of them need belongs to a lower floor.

#[cfg(feature = "data")]
pub mod cache_aside;
#[cfg(feature = "chaos")]
pub mod chaos;
pub mod circuit_breaker;
#[cfg(feature = "work")]
pub mod claim_check;
pub mod coalesce;
#[cfg(feature = "operations")]
pub mod config_store;
pub mod fallback;
#[cfg(feature = "jwt")]
pub mod federated_identity;
#[cfg(feature = "jwt")]
pub mod gatekeeper;
#[cfg(feature = "operations")]
pub mod health;
pub mod hedge;
#[cfg(feature = "data")]
pub mod index_table;
#[cfg(any(feature = "stream", feature = "work"))]
pub mod leader_election;
#[cfg(any(feature = "work", feature = "workflow"))]
#[cfg_attr(not(feature = "work"), allow(dead_code))] // `pipes_and_filters` alone uses a part
pub mod queue_listener;
pub mod retry;
#[cfg(feature = "workflow")]
pub mod saga;
#[cfg(feature = "data")]
pub mod sharding;
#[cfg(feature = "object_store")]
pub mod static_content;
#[cfg(feature = "operations")]
pub mod supervisor;
pub mod throttling;
pub mod timeout;
#[cfg(feature = "jwt")]
pub mod valet_key;
