//! Tokens of other issuers.
mod drops;
mod keys;
mod outages;
mod refusals;
mod settings;
mod world;

pub(crate) use world::{A, B, S, World, claims, issuer};
