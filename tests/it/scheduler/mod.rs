//! Sagas from a queue, on a manual clock.
mod crashes;
mod lives;
mod world;
