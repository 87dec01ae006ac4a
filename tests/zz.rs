#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
#[path = "it/cache_aside.rs"]
mod cache_aside;
#[path = "it/cache_guard.rs"]
mod cache_guard;
#[path = "it/cache_processes.rs"]
mod cache_processes;
#[path = "it/cache_slowness.rs"]
mod cache_slowness;
#[path = "it/cache_tiers.rs"]
mod cache_tiers;
#[path = "it/cache_world.rs"]
mod cache_world;
