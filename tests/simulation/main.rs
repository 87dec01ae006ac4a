//! Protocols under seeded schedules: delays, lost and doubled messages, crashes, pauses, clocks that run at other rates.
//!
//! A seed replays its schedule (`STEADFAST_SEED=...`). In a debug build fewer seeds are run; `STEADFAST_SCHEDULES` sets how many.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "tests")]
#[macro_use]
#[path = "../it/forward.rs"]
mod forward;

use std::fmt::Debug;

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
mod scheduler;
mod sharding;
mod shared_breaker;
mod shared_limit;
mod stream;

/// How many schedules: so many in a debug build, so many in a release build; as many as asked for, if that is fewer.
fn schedules(debug: u64, release: u64) -> u64 {
    let asked = std::env::var("STEADFAST_SCHEDULES").ok().map(|n| n.parse().expect("STEADFAST_SCHEDULES is a number"));
    asked.map_or(if cfg!(debug_assertions) { debug } else { release }, |asked: u64| asked.min(release))
}

/// [`schedules`] of a suite of which one takes as long as several of another: of fewer than all, a fifth.
fn long_schedules(debug: u64, release: u64) -> u64 {
    match schedules(debug, release) {
        all if all == release => all,
        some => (some / 5).max(some.min(debug)),
    }
}

/// Asserts that a simulation without a guard shows a violation; a debug build looks for the first one only.
fn assert_missed(without: impl Debug, seeds: u64, mut violation: impl FnMut(u64) -> Option<String>) {
    let mut found = (0..seeds).filter_map(&mut violation);
    let first = found.next().unwrap_or_else(|| panic!("{without:?} is not missed in {seeds} schedules"));
    println!("without {without:?}: {first}");
    if !cfg!(debug_assertions) {
        println!("without {without:?}: {} of {seeds} schedules have a violation", found.count() + 1);
    }
}
