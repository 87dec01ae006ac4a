//! Leases over a store.
mod crashes;
