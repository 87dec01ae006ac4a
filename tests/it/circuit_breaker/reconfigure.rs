//! Circuit breaker: replacing the configuration while it is in use.
use std::time::Duration;

use steadfast::{
    FailureKind, Hint, Verdict,
    circuit_breaker::{
        CircuitBreaker, CircuitBreakerConfig, CircuitBreakerEvent, HalfOpenConfig, OnTimeout, OpenConfig,
        SlowStartConfig, State, TripConfig,
    },
};

use crate::{
    circuit_breaker::states::{probes, ready},
    circuit_breaker::{breaker, record},
};

const S: fn(u64) -> Duration = Duration::from_secs;
const FAILED: Verdict = Verdict::failure(FailureKind::Server);
const OK: Verdict = Verdict::success();

fn rate(share: f64) -> CircuitBreakerConfig {
    CircuitBreakerConfig::default().trip(TripConfig::default().failure_rate(share))
}

#[test]
fn an_invalid_configuration_is_refused_as_a_whole_and_later_valid_ones_apply() {
    let (breaker, _hand) = breaker(rate(0.5).count_window(10, 10));
    record(&breaker, FAILED, 4);
    let before = (breaker.config(), breaker.snapshot());
    // The window is valid, the rule is not.
    let refused = breaker.reconfigure(rate(1.5).count_window(3, 3)).unwrap_err();
    assert_eq!(refused.field(), "trip.failure_rate");
    assert_eq!((breaker.config(), breaker.snapshot()), before);
    breaker.reconfigure(rate(0.4).count_window(20, 10)).unwrap();
    assert_eq!(breaker.config(), rate(0.4).count_window(20, 10));
    record(&breaker, OK, 5);
    assert_eq!(breaker.state(), State::Closed);
    record(&breaker, OK, 1); // 4 of 10
    assert_eq!(breaker.state(), State::Open);
}

#[test]
fn clones_share_the_new_configuration() {
    let (breaker, _hand) = breaker(rate(0.5).count_window(10, 10));
    let clone = breaker.clone();
    breaker.reconfigure(rate(0.5).count_window(2, 2)).unwrap();
    assert_eq!(clone.config(), breaker.config());
    record(&clone, FAILED, 2);
    assert_eq!(breaker.state(), State::Open);
}

#[test]
fn kept_outcomes_are_judged_by_the_new_rules_at_once() {
    for config in [rate(0.9).count_window(10, 4), rate(0.9).time_window(S(10), 10, 4)] {
        let (breaker, _hand) = breaker(config);
        let mut events = breaker.events();
        record(&breaker, FAILED, 3);
        record(&breaker, OK, 3);
        let lower = TripConfig::default().failure_rate(0.5);
        breaker.reconfigure(config.trip(lower)).unwrap();
        assert_eq!(breaker.state(), State::Open);
        let told: Vec<_> = std::iter::from_fn(|| events.try_recv().unwrap()).map(|e| e.what).collect();
        assert_eq!(told[3], CircuitBreakerEvent::Reconfigured);
        assert!(matches!(told[4], CircuitBreakerEvent::Opened { .. }), "{told:?}");
    }
}

#[test]
fn a_count_window_keeps_its_last_outcomes_at_any_new_size() {
    // From a full window to a larger, a smaller, and an equal one.
    for (size, filled) in [(20, 10), (4, 4), (10, 10)] {
        let (breaker, _hand) = breaker(rate(1.0).count_window(10, 10));
        record(&breaker, FAILED, 9);
        record(&breaker, OK, 90);
        record(&breaker, FAILED, 3);
        breaker.reconfigure(rate(1.0).count_window(size, size)).unwrap();
        let snapshot = breaker.snapshot();
        assert_eq!((snapshot.calls, snapshot.failures), (filled, 3), "{size}");
        // The failures leave the new window after as many calls as it holds.
        record(&breaker, OK, size as usize - 3);
        assert_eq!(breaker.snapshot().failures, 3, "{size}");
        record(&breaker, OK, 3);
        assert_eq!(breaker.snapshot().failures, 0, "{size}");
    }
}

#[test]
fn a_time_window_of_another_shape_starts_empty() {
    let (breaker, driver) = breaker(rate(1.0).time_window(S(10), 10, 1000));
    for (time, buckets) in [(10, 20), (1000, 1000), (10, 3), (10, 10), (20, 1)] {
        record(&breaker, FAILED, 5);
        assert_eq!(breaker.snapshot().failures, 5);
        breaker.reconfigure(rate(1.0).time_window(S(time), buckets, 1000)).unwrap();
        assert_eq!(breaker.snapshot().failures, 0);
        driver.advance(S(1000));
        record(&breaker, FAILED, 2);
        driver.advance((S(time) - S(time) / buckets).saturating_sub(Duration::from_nanos(1)));
        if buckets > 1 {
            assert_eq!(breaker.snapshot().failures, 2, "{time} s in {buckets}");
        }
        driver.advance(S(time) / buckets + Duration::from_nanos(1));
        assert_eq!(breaker.snapshot().failures, 0, "{time} s in {buckets}");
    }
    record(&breaker, FAILED, 3);
    // Same shape, another rule: kept.
    breaker.reconfigure(rate(0.9).time_window(S(20), 1, 1000)).unwrap();
    assert_eq!(breaker.snapshot().failures, 3);
}

#[test]
fn a_change_between_count_window_and_time_window_starts_empty() {
    let (breaker, _hand) = breaker(rate(1.0).count_window(10, 10));
    for config in
        [rate(0.5).time_window(S(10), 10, 4), rate(0.5).count_window(4, 4), rate(0.5).time_window(S(10), 10, 4)]
    {
        record(&breaker, FAILED, 1);
        breaker.reconfigure(config).unwrap();
        assert_eq!((breaker.state(), breaker.snapshot().calls), (State::Closed, 0));
        record(&breaker, OK, 2);
    }
    record(&breaker, FAILED, 2);
    assert_eq!(breaker.state(), State::Open);
}

#[test]
fn consecutive_failures_are_kept_while_their_rule_stays() {
    let row = |n| CircuitBreakerConfig::default().trip(TripConfig::default().consecutive_failures(n));
    let (breaker, _hand) = breaker(row(10));
    record(&breaker, FAILED, 4);
    breaker.reconfigure(row(6)).unwrap();
    record(&breaker, FAILED, 1);
    assert_eq!(breaker.state(), State::Closed);
    record(&breaker, FAILED, 1);
    assert_eq!(breaker.state(), State::Open);
    breaker.reset();
    // Off and on again, the count restarts: without the rule no success ended it.
    record(&breaker, FAILED, 5);
    breaker.reconfigure(rate(1.0)).unwrap();
    record(&breaker, OK, 1);
    breaker.reconfigure(row(6)).unwrap();
    record(&breaker, FAILED, 5);
    assert_eq!(breaker.state(), State::Closed);
}

#[test]
fn calls_in_flight_count_under_the_new_configuration() {
    let (breaker, _hand) = breaker(rate(1.0).count_window(10, 10));
    let flying: Vec<_> = (0..4).map(|_| breaker.try_acquire().unwrap()).collect();
    breaker.reconfigure(rate(0.5).count_window(4, 4)).unwrap();
    breaker.reconfigure(rate(0.5).count_window(5, 4)).unwrap();
    for (permit, verdict) in flying.into_iter().zip([OK, FAILED, FAILED, OK]) {
        assert_eq!(breaker.state(), State::Closed);
        permit.record(verdict);
    }
    assert_eq!(breaker.state(), State::Open, "2 of 4, judged at a success from before");
}

#[test]
fn calls_in_flight_from_before_an_opening_do_not_count() {
    let (breaker, _hand) = breaker(rate(1.0).count_window(10, 10));
    let flying: Vec<_> = (0..4).map(|_| breaker.try_acquire().unwrap()).collect();
    breaker.isolate();
    breaker.close();
    breaker.reconfigure(rate(0.5).count_window(4, 2)).unwrap();
    flying.into_iter().for_each(|permit| permit.record(FAILED));
    assert_eq!((breaker.state(), breaker.snapshot().calls), (State::Closed, 0));
}

#[test]
fn an_open_breaker_keeps_its_open_time_and_opens_by_the_new_times_next() {
    let (breaker, driver) =
        breaker(probes(1, 1.0).open(OpenConfig::default().initial_delay(S(10)).max_delay(S(10)).jitter(0.0)));
    breaker.force_open(S(10));
    driver.advance(S(4));
    let other =
        probes(2, 1.0).open(OpenConfig::default().initial_delay(S(30)).max_delay(S(60)).jitter(0.0).factor(1.0));
    breaker.reconfigure(other).unwrap();
    assert_eq!(breaker.try_acquire().unwrap_err().retry_after(), Some(S(6)));
    driver.advance(S(6));
    let (one, two) = (breaker.try_acquire().unwrap(), breaker.try_acquire().unwrap());
    one.record(OK);
    assert_eq!(breaker.state(), State::HalfOpen);
    two.record(FAILED);
    assert_eq!(breaker.try_acquire().unwrap_err().retry_after(), Some(S(30)));
}

/// A smaller number that has already been reached decides at once; a larger one lets more calls pass.
#[test]
fn a_half_open_breaker_is_decided_by_the_new_number_of_probes() {
    let (breaker, _hand) = ready(probes(5, 1.0));
    (0..2).for_each(|_| breaker.try_acquire().unwrap().record(OK));
    breaker.reconfigure(probes(2, 1.0)).unwrap();
    assert_eq!(breaker.state(), State::Closed);

    let (breaker, _hand) = ready(probes(2, 1.0));
    let flying = [breaker.try_acquire().unwrap(), breaker.try_acquire().unwrap()];
    assert!(breaker.try_acquire().is_err());
    breaker.reconfigure(probes(3, 1.0)).unwrap();
    breaker.try_acquire().unwrap().record(OK);
    flying.into_iter().for_each(|probe| probe.record(OK));
    assert_eq!(breaker.state(), State::Closed);
}

/// The configuration changes 400 times while four threads record: no outcome is lost, and the breaker
/// opens by the last rules.
#[test]
fn the_configuration_can_be_replaced_under_load() {
    let (breaker, _hand) = breaker(rate(1.0).count_window(100, 100));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..20_000).for_each(|i| record(&breaker, if i % 3 == 0 { FAILED } else { OK }, 1)));
        }
        for n in 0..400u32 {
            let size = 50 + n % 7 * 10;
            let window = rate(1.0).count_window(size, size);
            breaker
                .reconfigure(if n % 10 == 9 { rate(1.0).time_window(S(10), 1 + n % 30, size) } else { window })
                .unwrap();
        }
    });
    breaker.reconfigure(rate(1.0).count_window(60, 60)).unwrap();
    record(&breaker, OK, 60);
    assert_eq!((breaker.state(), breaker.snapshot().calls, breaker.snapshot().failures), (State::Closed, 60, 0));
    assert_eq!(breaker.snapshot().total_failures, 4 * 6667);
    record(&breaker, FAILED, 60);
    assert_eq!(breaker.state(), State::Open);
}

#[test]
fn the_setters_of_the_parts_set_their_fields() {
    let open = OpenConfig::default()
        .initial_delay(S(1))
        .max_delay(S(2))
        .factor(3.0)
        .jitter(0.4)
        .reset_after(S(5))
        .max_hint(S(6));
    assert_eq!((open.initial_delay, open.max_delay, open.factor, open.jitter), (S(1), S(2), 3.0, 0.4));
    assert_eq!((open.reset_after, open.max_hint), (S(5), S(6)));
    let half =
        HalfOpenConfig::default().permitted_calls(7).success_rate(0.8).max_duration(S(9)).on_timeout(OnTimeout::Close);
    assert_eq!(
        (half.permitted_calls, half.success_rate, half.max_duration, half.on_timeout),
        (7, 0.8, S(9), OnTimeout::Close)
    );
    const SLOW_START: SlowStartConfig = SlowStartConfig::stepped(Duration::from_secs(10), 0.5, 5);
    assert_eq!((SLOW_START.window, SLOW_START.min_share, SLOW_START.steps), (S(10), 0.5, 5));
    assert!(
        CircuitBreaker::new(CircuitBreakerConfig::default().open(open).half_open(half).slow_start(SLOW_START)).is_ok()
    );
}

#[test]
fn the_new_kinds_of_failure_count() {
    let (breaker, _hand) = breaker(rate(0.5).count_window(2, 2));
    let timeouts = steadfast::KindSet::of(&[FailureKind::Timeout]);
    breaker.reconfigure(rate(0.5).count_window(2, 2).failures(timeouts)).unwrap();
    record(&breaker, FAILED, 10);
    assert_eq!(breaker.state(), State::Closed);
    record(&breaker, Verdict::failure(FailureKind::Timeout).with_hint(Hint::None), 1);
    assert_eq!(breaker.state(), State::Open);
}
