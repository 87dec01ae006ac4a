//! How one connects, on each engine, and what a failure to connect tells.
mod exposure;
#[cfg(feature = "nats")]
mod nats;
mod passwords;
#[cfg(feature = "nats")]
mod rights;
#[cfg(feature = "postgres")]
mod tls;
mod traces;
mod urls;
