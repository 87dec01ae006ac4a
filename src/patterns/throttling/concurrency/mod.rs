//! The concurrency limit (bulkhead): the limiter, and the semaphore inside it.
mod config;
mod limiter;
pub(crate) mod semaphore;
#[cfg(all(test, not(steadfast_loom)))]
mod tests;

pub use config::{ConcurrencyLimitConfig, QueueOrder};
pub use limiter::{ConcurrencyLimiter, ConcurrencyPermit};
