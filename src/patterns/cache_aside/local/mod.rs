//! The local tier: its table, its entries, and the invalidation of tags.
pub(super) mod entry;
pub(super) mod table;
pub(super) mod tags;
