//! Three times the capacity for a minute: the served calls, and the recovery. The example of the
//! same name prints and plots it.
#[path = "../../../examples/overload/simulation.rs"]
mod simulation;

use std::time::Duration;

use simulation::{BEGINS, CLASSES, Client, ENDS, LASTS, Report, STEP, run};
use steadfast::Priority::{High, Low, Normal};

const SEEDS: std::ops::Range<u64> = 1..4;

/// Checks what both ways of shedding promise. `measured` is the share of lower calls that may be
/// rejected beside the overload.
fn is_fair_and_steady(report: &Report, solo: &Report, measured: f64) {
    // High priority keeps its throughput.
    let (kept, alone) = (report.of(High, BEGINS, ENDS), solo.of(High, BEGINS, ENDS));
    assert_eq!(kept.offered, alone.offered);
    assert!(f64::from(kept.served) >= 0.95 * f64::from(alone.served), "{kept:?} of {alone:?}");
    // Its latency stays far below the callers' patience: half of that is more than enough.
    assert!(report.high_p99() < Duration::from_millis(500), "{:?}", report.high_p99());
    // Low calls are shed first, in every step, and the service is never idle.
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
    // No oscillation: each step serves about as much as the others.
    let served = &report.served()[first / STEP as usize..(ENDS / STEP) as usize];
    let mean = served.iter().sum::<u32>() / served.len() as u32;
    assert!(mean > 450, "of 500 that could be: {served:?}");
    assert!(served.iter().all(|n| n.abs_diff(mean) < mean / 8), "{served:?}");
    // From the second step after the overload on, and before it, no call is rejected without need.
    for class in CLASSES {
        for (from, to) in [(ENDS + 2 * STEP, LASTS), (STEP, BEGINS)] {
            let count = report.of(class, from, to);
            let allowed = if class == High { 0.0 } else { measured * f64::from(count.offered) };
            assert!(count.late == 0 && f64::from(count.shed) <= allowed, "{class} from {from} s: {count:?}");
        }
    }
}

// Guarantee: throttling 15.
/// Once a minute the limiter measures the base latency under a limit of three; it rejects some
/// lower calls then.
#[test]
fn a_limit_with_shares_serves_important_calls_under_three_times_the_capacity() {
    for seed in SEEDS {
        is_fair_and_steady(&run(Client::Limiter, &CLASSES, seed), &run(Client::Limiter, &[High], seed), 0.07);
    }
}

// Guarantee: throttling 17.
#[test]
fn a_shedder_serves_important_calls_under_three_times_the_capacity() {
    for seed in SEEDS {
        is_fair_and_steady(&run(Client::Shedder, &CLASSES, seed), &run(Client::Shedder, &[High], seed), 0.0);
    }
}

/// The contrast: with a time-out alone the same load is not served, not even after it has ended.
#[test]
fn with_a_time_out_alone_no_call_is_served() {
    let report = run(Client::Naive, &CLASSES, 1);
    for class in CLASSES {
        let (under, after) = (report.of(class, BEGINS + STEP, ENDS), report.of(class, ENDS, LASTS));
        assert_eq!((under.served, after.served), (0, 0), "{class}: {:?}", report.steps);
        assert_eq!((under.late, after.late), (under.offered, after.offered));
    }
}

#[test]
fn a_seed_reproduces_the_whole_simulation() {
    assert_eq!(run(Client::Shedder, &CLASSES, 7), run(Client::Shedder, &CLASSES, 7));
}
