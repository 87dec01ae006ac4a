//! The rate limit for each of many keys.
mod config;
mod key_limit;
mod limiter;
mod shard;
mod take;

pub use config::KeyedRateLimitConfig;
pub use key_limit::KeyLimit;
pub use limiter::{KeyUsage, KeyedRateLimiter};
pub use shard::Metered;
