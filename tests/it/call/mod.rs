//! Tests of calls and pipelines.
mod boxed;
mod doors;
mod drop_doors;
mod drops;
mod errors;
mod event_senders;
mod events;
mod lease_drops;
mod nested;
mod pipeline;
mod timeout_nesting;
mod wrappers;
