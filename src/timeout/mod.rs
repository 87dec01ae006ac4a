//! Time-out: gives the work a bounded time, and drops it when that is over.
mod event;
mod policy;
#[cfg(test)]
mod tests;

pub use event::TimeoutEvent;
pub use policy::Timeout;
