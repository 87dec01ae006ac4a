//! Sagas through their public API, on a manual clock.
mod attacks;
mod changes;
mod lost_replies;
mod owners;
mod participants;
mod repeats;
mod steps;
mod store;
pub(crate) mod world;
