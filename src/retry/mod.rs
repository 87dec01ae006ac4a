//! Retry: does it again when the failure is of a kind that passes.
mod budget;
mod config;
mod event;
mod policy;
mod state;
#[cfg(test)]
mod tests;

pub use budget::{RetryBudget, RetryBudgetConfig};
pub use config::RetryConfig;
pub use event::RetryEvent;
pub use policy::Retry;
