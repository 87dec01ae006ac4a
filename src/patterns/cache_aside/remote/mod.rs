//! The remote tier and the backplane, which several processes share.
pub(super) mod background;
pub(super) mod backplane;
pub(super) mod fill;
pub(super) mod health;
pub(super) mod lookup;
pub(super) mod pending;
pub(super) mod record;
pub(super) mod shared;
mod write;
