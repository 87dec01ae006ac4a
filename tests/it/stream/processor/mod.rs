mod checkpoints;
mod keys;
mod members;
mod poison;
mod ranges;
pub(crate) mod world;
