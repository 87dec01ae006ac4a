//! Protocols under seeded schedules: delays, lost and doubled messages, crashes, pauses, clocks that run at other rates.
//!
//! A seed replays its schedule (`STEADFAST_SEED=...`). In a debug build fewer seeds are run; `STEADFAST_SCHEDULES` sets how many.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "tests")]
#[macro_use]
#[path = "../it/forward.rs"]
mod forward;

mod cache;
mod cache_soak;
mod leader;
mod lease;
mod listener;
mod listener_storm;
mod listener_world;
#[path = "../it/moody_store.rs"]
mod moody_store;
mod pipes;
mod poor;
mod saga;
mod sharding;
mod shared_breaker;
mod shared_limit;
mod stream;

/// How many schedules: so many in a debug build, so many in a release build; as many as asked for, if that is fewer.
fn schedules(debug: u64, release: u64) -> u64 {
    let asked = std::env::var("STEADFAST_SCHEDULES").ok().map(|n| n.parse().expect("STEADFAST_SCHEDULES is a number"));
    asked.map_or(if cfg!(debug_assertions) { debug } else { release }, |asked: u64| asked.min(release))
}
