//! Cache-aside.
mod backplane;
mod builder;
mod cache;
mod change;
mod codec;
mod config;
mod debts;
mod entry;
mod error;
mod event;
mod inner;
mod load;
mod loaded;
mod local;
mod remote;
mod remote_change;
mod report;
mod run;
mod shared;
mod spawner;
mod stats;
mod tags;
#[cfg(all(test, not(steadfast_loom)))]
mod tests;
mod wire;

pub use builder::CacheAsideBuilder;
pub use cache::CacheAside;
pub use change::Reached;
pub use codec::Codec;
pub use config::{CacheAsideConfig, RemoteConfig, StaleConfig, Unattended};
pub use error::LoadError;
pub use event::{CacheAsideEvent, RemoteCall};
pub use loaded::Loaded;
pub use stats::CacheAsideStats;
