//! The gate, and the hand-over behind it.
mod hand_over;
mod paths;
pub(crate) mod requests;
mod smuggling;
