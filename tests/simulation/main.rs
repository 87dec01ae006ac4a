//! Protocols under seeded schedules: delays, lost and doubled messages, crashes, pauses, clocks that run at other rates.
//!
//! A seed replays its schedule (`STEADFAST_SEED=...`). In a debug build fewer seeds are run; `STEADFAST_SCHEDULES` sets how many a room runs.
//! Plain `cargo test` leaves this target out: `.ci/run` runs it optimized.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "tests")]
#[macro_use]
#[path = "../it/forward.rs"]
mod forward;

use std::fmt::Debug;

#[cfg(feature = "object_store")]
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../it/bucket.rs"]
mod bucket;
mod cache;
mod cache_soak;
mod events;
mod fleet_guard;
mod index;
mod leader;
mod lease;
mod listener;
mod listener_storm;
mod listener_world;
#[path = "../it/moody_store.rs"]
mod moody_store;
mod pipes;
mod poor;
mod rollout;
mod rollout_parts;
mod saga;
mod scheduler;
mod services;
mod sharding;
mod shared_breaker;
mod shared_limit;
#[cfg(feature = "object_store")]
mod site;
mod stream;
mod view;

/// Number of schedules in an optimized build. `.ci/run` runs as many, `scripts/release-checks` 100,000.
const SCHEDULES: u64 = 5_000;

fn asked() -> Option<u64> {
    std::env::var("STEADFAST_SCHEDULES").ok().map(|n| n.parse().expect("STEADFAST_SCHEDULES is a number"))
}

/// Returns `true` if `STEADFAST_SEED` names the one schedule that is run.
fn is_one_seed() -> bool {
    std::env::var_os("STEADFAST_SEED").is_some()
}

/// Returns the number of schedules of a room: that of `STEADFAST_SCHEDULES`, else `debug` in a debug build. Each test prints it.
fn schedules(debug: u64) -> u64 {
    match is_one_seed() {
        true => 1,
        false => asked().unwrap_or(if cfg!(debug_assertions) { debug } else { SCHEDULES }),
    }
}

/// Asserts that the schedules have met what they are for. One seed alone need not.
fn assert_met(have_met: bool, counts: impl Debug) {
    assert!(have_met || is_one_seed(), "the schedules meet too little: {counts:?}");
}

/// Returns the number of schedules of a control, which looks for a violation that a missing guard causes: at most `release`.
fn controls(debug: u64, release: u64) -> u64 {
    if cfg!(debug_assertions) {
        debug
    } else {
        asked().map_or(release, |asked| asked.clamp(debug.min(release), release))
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
