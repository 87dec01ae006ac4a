//! The client-side adaptive throttle.
mod config;
mod odds;
mod throttle;

pub use config::ClientThrottleConfig;
pub use throttle::{ClientThrottle, ClientThrottlePermit, ClientThrottleSnapshot};
