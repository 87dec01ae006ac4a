//! The backends: the ports, on engines that outlive a process. Each stands behind a feature of its name.
//!
//! They implement [ports](crate::port) and know no pattern: a pattern that works on one works on all that can do what it needs.
#[cfg(feature = "sqlite")]
pub mod sqlite;
