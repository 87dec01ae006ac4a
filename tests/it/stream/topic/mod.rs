//! The topic over a store, and its producer.
mod attacks;
mod crashes;
mod model;
mod opening;
mod producer;
mod requests;
mod turns;
