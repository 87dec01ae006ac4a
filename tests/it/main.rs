//! The numbered behaviours of the specification, each in a test that names it. One binary, a file for each pattern.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "tests")]
mod backoff;
mod circuit_breaker;
mod circuit_breaker_edges;
mod circuit_breaker_states;
mod concurrency_limit;
mod concurrency_limit_edges;
mod config;
mod config_in_code;
mod considerations;
mod doors;
mod drop_doors;
mod drops;
mod event_senders;
mod events;
mod keyed_rate_limit;
mod leader_election_by_message;
mod pipeline;
mod rate_limit;
mod rate_limit_change;
mod retry;
mod retry_edges;
mod standard;
mod testing;
mod timeout;
