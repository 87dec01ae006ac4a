//! Tables and functions of leases.

/// The statements that create them. `{s}` stands for the schema.
pub(super) const LEASE: &str = "";
