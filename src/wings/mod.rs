//! The edges of the crate: engines for the ports, bridges to other libraries, tools for tests.

pub mod backend;
#[cfg(feature = "console")]
pub mod console;
#[cfg(all(feature = "http", feature = "operations"))]
mod health_http;
#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(feature = "tower")]
pub mod tower;
