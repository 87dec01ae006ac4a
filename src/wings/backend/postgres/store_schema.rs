//! Tables and functions of the store.

/// The statements that create them. `{s}` stands for the schema.
pub(super) const STORE: &str = "";
