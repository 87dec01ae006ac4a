//! Sagas from a queue, on a manual clock.
mod agents;
mod attacks;
mod crashes;
mod lives;
pub(crate) mod world;
