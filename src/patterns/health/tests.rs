//! Thresholds against a naive model, and the table of readiness.
use std::time::Duration;

use proptest::prelude::*;

use super::{
    CheckFailure, CheckKind, GroupReason, HealthConfig, HealthStatus as Is,
    state::{Around, CheckState, slots, status},
};
use crate::time::Instant;

proptest! {
    // Guarantee: health 3.
    #[test]
    fn a_check_is_as_healthy_as_the_naive_model_of_thresholds_says(
        failures in 1u32..5, successes in 1u32..5, results in prop::collection::vec((any::<bool>(), 0u64..20), 0..40),
    ) {
        let config = HealthConfig::default().failure_threshold(failures).success_threshold(successes);
        let (mut state, mut now, mut seen) = (CheckState::default(), Instant::from_nanos(1), Vec::<bool>::new());
        prop_assert_eq!(state.failure(&config, now), Some(CheckFailure::NoResult));
        for (is_well, seconds) in results {
            now = now + Duration::from_secs(seconds);
            if seconds > 15 {
                seen.clear(); // after a gap as at the start
            }
            let failure = (!is_well).then_some(CheckFailure::Error);
            state.record(&config, (now, Duration::ZERO), failure);
            seen.push(is_well);
            // The model reads the whole history: the first result counts, then each run of equal ones that is long enough.
            let (mut healthy, mut run) = (seen[0], 0);
            for i in 1..seen.len() {
                run = if seen[i] == seen[i - 1] { run + 1 } else { 1 };
                if seen[i] != healthy && run >= if healthy { failures } else { successes } {
                    healthy = seen[i];
                }
            }
            prop_assert_eq!(state.failure(&config, now).is_none(), healthy, "{:?}", seen);
            // Whatever it was, it is too old later.
            let later = now + config.stale_after + Duration::from_nanos(1);
            prop_assert_eq!(state.failure(&config, later), Some(CheckFailure::Stale));
            let still = state.failure(&config, now + config.stale_after);
            prop_assert_eq!(still.is_none(), healthy);
        }
    }
}

// Guarantee: health 2, 4.
#[test]
fn readiness_follows_the_table_of_checks_stop_and_fleet() {
    let around = |is_stopping, is_ejected| Around { is_stopping, is_ejected };
    let of = |failed: &[(CheckKind, bool)], around| status(failed.iter().copied(), around);
    let (local, dependency) = (CheckKind::Local, CheckKind::Dependency);
    let alone = around(false, None);
    assert_eq!(of(&[], alone), (Is::Healthy, None));
    assert_eq!(of(&[(dependency, false), (local, false)], alone), (Is::Degraded, None));
    assert_eq!(of(&[(dependency, true)], alone), (Is::Unhealthy, None));
    assert_eq!(of(&[(local, true)], alone), (Is::Unhealthy, None));
    // In a fleet, a dependency ejects with a slot alone, and a local failure always.
    assert_eq!(of(&[(dependency, true)], around(false, Some(false))), (Is::Degraded, Some(GroupReason::Stayed)));
    assert_eq!(of(&[(dependency, true)], around(false, Some(true))), (Is::Unhealthy, Some(GroupReason::Ejected)));
    assert_eq!(of(&[(local, true)], around(false, Some(false))), (Is::Unhealthy, None));
    let both = [(dependency, true), (local, true)];
    // The reason is that of the worst failure.
    assert_eq!(of(&both, around(false, Some(false))), (Is::Unhealthy, None));
    let optional_first = [(local, false), (dependency, true)];
    assert_eq!(of(&optional_first, around(false, Some(false))), (Is::Degraded, Some(GroupReason::Stayed)));
    // A slot that is still held after the dependency is back ejects nobody.
    assert_eq!(of(&[], around(false, Some(true))), (Is::Healthy, None));
    assert_eq!(of(&[], around(true, None)), (Is::Unhealthy, Some(GroupReason::Stopping)));
}

#[test]
fn half_of_a_fleet_has_slots_and_a_member_alone_has_none() {
    let of = |share, members| slots(share, members);
    assert_eq!((of(0.5, 0), of(0.5, 1), of(0.5, 2), of(0.5, 3), of(0.5, 20)), (0, 0, 1, 1, 10));
    assert_eq!((of(1.0, 3), of(0.0, 100)), (3, 0));
    // Shares that are no binary numbers.
    assert_eq!((of(0.29, 100), of(0.57, 100), of(0.07, 100)), (29, 57, 7));
}
