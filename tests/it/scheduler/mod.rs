//! Sagas from a queue, on a manual clock.
mod agents;
mod crashes;
mod lives;
mod world;
