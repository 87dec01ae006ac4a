mod attacks;
mod building;
mod checkpoints;
mod crashes;
mod keys;
mod members;
mod poison;
mod ranges;
pub(crate) mod world;
