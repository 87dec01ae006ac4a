//! The adaptive concurrency limit: the limiter, the algorithms that find the limit, and shares of
//! it by priority.
mod config;
mod gradient;
mod limiter;
mod shares;

pub use config::{Adaptation, AdaptiveLimitConfig};
pub use limiter::AdaptiveLimiter;
pub(crate) use limiter::AdaptivePermit;
pub use shares::PriorityShares;
