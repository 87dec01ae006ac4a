//! Sagas from a queue, on a manual clock.
mod agents;
mod attacks;
mod crashes;
mod drops;
mod lives;
pub(crate) mod world;
