//! The behaviour of each room, through the public API. One binary, a file or a folder for each room.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "tests")]
#[macro_use]
mod forward;

mod backend;
mod cache_aside;
mod call;
mod capabilities;
mod capability_table;
mod chaos;
mod circuit_breaker;
mod claim_check;
mod coalesce;
mod codec;
mod config;
mod considerations;
mod engines;
mod fallback;
mod first_steps;
mod hedge;
mod http;
mod journal;
mod leader_election;
mod lease;
mod metrics;
mod moody_store;
mod pipes_and_filters;
mod queue_listener;
mod queues;
mod reqwest;
mod retry;
mod saga;
mod scheduler;
mod sharding;
mod standard;
mod stream;
mod testing;
mod throttling;
mod time;
mod timeout;
mod tower;
