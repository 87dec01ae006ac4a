//! Three times the capacity for a minute: who is served, and what comes after. The example of the same name prints and plots it.
#[path = "../../../examples/overload/simulation.rs"]
mod simulation;

use std::time::Duration;

use simulation::{BEGINS, CLASSES, Client, ENDS, LASTS, Report, STEP, run};
use steadfast::Priority::{High, Low, Normal};

const SEEDS: std::ops::Range<u64> = 1..4;

/// What both ways of shedding promise. `measured` is the share of lower calls that may be refused beside the overload.
fn is_fair_and_steady(report: &Report, solo: &Report, measured: f64) {
    // High priority keeps its throughput.
    let (kept, alone) = (report.of(High, BEGINS, ENDS), solo.of(High, BEGINS, ENDS));
    assert_eq!(kept.offered, alone.offered);
    assert!(f64::from(kept.served) >= 0.95 * f64::from(alone.served), "{kept:?} of {alone:?}");
    // And is answered soon: half of the patience of those who wait is more than enough.
    assert!(report.high_p99() < Duration::from_millis(500), "{:?}", report.high_p99());
    // Low is shed first, in every step; and the service is never idle for it.
    let first = (BEGINS + STEP) as usize;
    for from in (first as u64..ENDS).step_by(STEP as usize) {
        let share = |class| {
            let count = report.of(class, from, from + STEP);
            f64::from(count.served) / f64::from(count.offered)
        };
        let shares = [High, Normal, Low].map(share);
        assert!(shares[0] >= 0.9 && shares[0] >= shares[1] && shares[1] > shares[2], "at {from} s: {shares:?}");
        assert!(shares[1] > 0.2, "at {from} s normal work goes on: {shares:?}");
    }
    // Without swinging: in each step about as much is served as in the others.
    let served = &report.served()[first / STEP as usize..(ENDS / STEP) as usize];
    let mean = served.iter().sum::<u32>() / served.len() as u32;
    assert!(mean > 450, "of 500 that could be: {served:?}");
    assert!(served.iter().all(|n| n.abs_diff(mean) < mean / 8), "{served:?}");
    // And when it is over, it is over, from the second step after it on; and before it nobody is refused without need.
    for class in CLASSES {
        for (from, to) in [(ENDS + 2 * STEP, LASTS), (STEP, BEGINS)] {
            let count = report.of(class, from, to);
            let allowed = if class == High { 0.0 } else { measured * f64::from(count.offered) };
            assert!(count.late == 0 && f64::from(count.shed) <= allowed, "{class} from {from} s: {count:?}");
        }
    }
}

// Guarantee: throttling 6.
/// The limiter measures once a minute, under a limit of three places, what a call takes alone: it refuses some lower calls then.
#[test]
fn under_three_times_the_capacity_a_limit_with_shares_serves_what_matters() {
    for seed in SEEDS {
        is_fair_and_steady(&run(Client::Limiter, &CLASSES, seed), &run(Client::Limiter, &[High], seed), 0.07);
    }
}

// Guarantee: throttling 6.
#[test]
fn under_three_times_the_capacity_a_shedder_serves_what_matters() {
    for seed in SEEDS {
        is_fair_and_steady(&run(Client::Shedder, &CLASSES, seed), &run(Client::Shedder, &[High], seed), 0.0);
    }
}

// Guarantee: throttling 6.
/// The contrast: with a time-out alone the same load serves nobody, and goes on doing so when it is over.
#[test]
fn a_naive_client_serves_nobody() {
    let report = run(Client::Naive, &CLASSES, 1);
    for class in CLASSES {
        let (under, after) = (report.of(class, BEGINS + STEP, ENDS), report.of(class, ENDS, LASTS));
        assert_eq!((under.served, after.served), (0, 0), "{class}: {:?}", report.steps);
        assert_eq!((under.late, after.late), (under.offered, after.offered));
    }
}

// Guarantee: throttling 6.
#[test]
fn a_seed_replays_the_whole_of_it() {
    assert_eq!(run(Client::Shedder, &CLASSES, 7), run(Client::Shedder, &CLASSES, 7));
}
