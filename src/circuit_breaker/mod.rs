//! Circuit breaker: stops asking a service that fails, and finds out gently when it is well again.
mod config;
mod event;
mod permit;
mod policy;
mod state;
mod tally;
#[cfg(test)]
mod tests;
mod word;

pub use config::{CircuitBreakerConfig, HalfOpenConfig, OpenConfig, TripConfig, Undecided, WindowConfig};
pub use event::CircuitBreakerEvent;
pub use permit::Permit;
pub use policy::{CircuitBreaker, Snapshot};
pub use word::State;
