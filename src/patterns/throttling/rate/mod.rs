//! The rate limit of one process: the limiter, its two algorithms, and the queue of waiting calls.
mod config;
pub(crate) mod gcra;
mod limit;
mod limiter;
mod strict;
#[cfg(all(test, not(steadfast_loom)))]
mod tests;
pub(crate) mod turns;

pub(crate) use config::MAX_HINT;
pub use config::{Quota, RateLimitConfig, RateMode};
pub(crate) use limit::sealed;
pub use limit::{Limit, try_acquire_all};
pub use limiter::RateLimiter;
