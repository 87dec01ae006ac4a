//! A day of a cache in three processes, while its tiers are slow, down, hanging or damaged, notices
//! are lost, loaders are slow or fail, and processes are killed.
//!
//! Three guarantees are checked for every get:
//!
//! - It ends within `hard_timeout` + `remote.timeout` + `remote.wait`. A get that loads by itself
//!   is delayed by the remote tier for `remote.timeout` + `remote.wait` at most.
//! - Its value is one that the source had, and not older than the write of an update that had
//!   returned before the get began: at once in the process that made the update, and in each
//!   process that has received its notice; after the longest load and the local time to live if the
//!   update has reached the remote tier and its notice was lost; after the longest load and all
//!   times to live, including the remote tier's, if the update was pending. With `stale`, the last
//!   two last for `max_age` at most.
//! - If the remote tier answers 999 of 1,000 requests in time, at most 1 % of the gets that find
//!   nothing in their own process load without an answer of it.
//!
//! A dropped call guarantees nothing to other processes: no floor is raised for it.
mod exec;
mod line;
mod truth;
mod world;

use truth::Truth;
use world::{Without, World};

use std::time::Duration;
use steadfast::testing::faults::for_each_seed;

/// One hour of the virtual day.
const HOUR: Duration = Duration::from_secs(3600);

/// The result of a run, in one line.
fn told(what: &str, truth: &Truth) -> String {
    let Truth { gets, hits, led, loads, past, errors, updates, pending, heard, kills, slowest, .. } = truth;
    format!(
        "{what}: {gets} gets ({hits} hits, {led} led, {loads} loads, {errors} errors), the slowest {slowest:?}; {updates} updates, \
         {pending} of them pending, {heard} heard elsewhere; {kills} kills; past a healthy tier {past} of {} ({:.2} %), {} never asked it",
        truth.led_healthy,
        truth.share_past() * 100.0,
        truth.never_asked,
    )
}

#[test]
fn for_a_day_no_get_is_late_or_stale_or_passes_a_healthy_tier() {
    let days = super::controls(1, 2);
    for_each_seed(0..days, |seed| {
        let truth = World::new(seed, Without::Nothing).run(HOUR * 24);
        println!("{}", told(&format!("day {seed}"), &truth));
        assert!(truth.violations.is_empty(), "{} violations: {:#?}", truth.total, truth.violations);
        assert!(truth.share_past() <= 0.01, "{} of {} gets passed a healthy tier", truth.past, truth.led_healthy);
        // Each kind of event has occurred.
        assert!(truth.gets > 50_000 && truth.led_healthy > 5_000 && truth.loads > 1_000, "{truth:?}");
        assert!(truth.pending > 20 && truth.heard > 500 && truth.kills > 10 && truth.flips > 50, "{truth:?}");
    });
}

#[test]
fn a_seed_replays_its_hour() {
    let run = || {
        let Truth { gets, hits, loads, updates, heard, past, slowest, .. } = World::new(3, Without::Nothing).run(HOUR);
        (gets, hits, loads, updates, heard, past, slowest)
    };
    assert_eq!(run(), run());
}

#[test]
fn a_removed_guard_is_detected_within_hours() {
    for without in Without::ALL {
        let found = (0..4).find_map(|seed| {
            let truth = World::new(seed, without).run(HOUR * 3);
            println!("{}", told(&format!("without {without:?}, seed {seed}"), &truth));
            let past = (truth.share_past() > 0.01).then(|| "gets pass a healthy tier".to_owned());
            truth.violations.into_iter().chain(past).find(|found| found.contains(without.shows()))
        });
        println!("  found: {}", found.unwrap_or_else(|| panic!("without {without:?} nothing was found")));
    }
}
