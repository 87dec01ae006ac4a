//! Backends: implementations of the ports on engines that outlive a process. Each one is behind a
//! feature of its name.
//!
//! A backend implements [ports](crate::port) and knows no pattern. A pattern works on each backend
//! that has the capabilities it needs.
#[cfg(feature = "sqlite")]
pub mod sqlite;
