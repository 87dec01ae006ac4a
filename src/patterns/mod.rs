//! The patterns. No pattern imports another: code that two of them need belongs to a lower floor.

pub mod cache_aside;
#[cfg(feature = "chaos")]
pub mod chaos;
pub mod circuit_breaker;
pub mod claim_check;
pub mod coalesce;
pub mod fallback;
pub mod hedge;
pub mod leader_election;
pub mod queue_listener;
pub mod retry;
pub mod saga;
pub mod sharding;
pub mod throttling;
pub mod timeout;
