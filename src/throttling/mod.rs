//! Throttling: how often, and how much at once.
mod concurrency;
mod concurrency_config;
mod event;
mod gcra;
mod keyed;
mod rate;
mod rate_config;
mod semaphore;
mod strict;
#[cfg(test)]
mod tests;

pub use concurrency::{ConcurrencyLimiter, ConcurrencyPermit};
pub use concurrency_config::{ConcurrencyLimitConfig, QueueOrder};
pub use event::ThrottlingEvent;
pub use keyed::KeyedRateLimiter;
pub use rate::{RateLimiter, check_all};
pub use rate_config::{Quota, RateLimitConfig, RateMode};
