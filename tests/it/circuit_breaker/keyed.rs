//! Circuit breaker: the registry of breakers per key.
use std::{sync::Barrier, time::Duration};

use steadfast::{
    FailureKind, Pipeline, Verdict,
    circuit_breaker::{
        CircuitBreaker, CircuitBreakerConfig, CircuitBreakerEvent, KeyedBreakers, KeyedBreakersConfig, OpenConfig,
        State, TripConfig,
    },
    outcome::TripRule,
    testing::{ManualClock, ScriptedService, drop_at_every_await},
    time::Clock,
};

const S: fn(u64) -> Duration = Duration::from_secs;
const FAILED: Verdict = Verdict::failure(FailureKind::Server);
const OK: Verdict = Verdict::success();

fn registry(config: impl Into<KeyedBreakersConfig>) -> (KeyedBreakers<u32>, ManualClock) {
    let (clock, time) = Clock::manual();
    (KeyedBreakers::builder(config).clock(&clock).name_by(|key| format!("host-{key}").into()).build().unwrap(), time)
}

/// Returns a configuration that opens after two failures of two calls.
fn quick() -> CircuitBreakerConfig {
    let open = OpenConfig::default().initial_delay(S(10)).max_delay(S(10)).jitter(0.0).reset_after(S(60));
    CircuitBreakerConfig::default().count_window(2, 2).half_open_calls(1, 1.0).open(open)
}

fn record(breaker: &CircuitBreaker, verdict: Verdict, times: usize) {
    (0..times).for_each(|_| breaker.try_acquire().unwrap().record(verdict));
}

// Guarantee: circuit_breaker 10.
#[test]
fn each_key_has_its_own_breaker_created_on_first_use() {
    let (hosts, time) = registry(quick());
    assert!(hosts.is_empty() && hosts.peek(&1).is_none());
    record(&hosts.get(&1), FAILED, 2);
    record(&hosts.get(&2), OK, 2);
    assert_eq!((hosts.len(), hosts.open_now()), (2, 1));
    assert_eq!((hosts.get(&1).state(), hosts.get(&2).state()), (State::Open, State::Closed));
    assert!(time.block_on(hosts.call(&1, async || Ok::<_, ()>(()))).unwrap_err().is_rejected());
    assert!(time.block_on(hosts.call(&2, async || Ok::<_, ()>(()))).is_ok());
    // A clone of the registry has the same keys, and a key's breaker is a policy like any other.
    let pipeline = Pipeline::new().then(hosts.clone().get(&1));
    assert!(time.block_on(pipeline.call(async || Ok::<_, ()>(()))).unwrap_err().is_rejected());
    assert_eq!(hosts.get(&1).try_acquire().unwrap_err().name(), Some("host-1"));
}

// Guarantee: circuit_breaker 10.
#[test]
fn racing_callers_get_the_same_breaker() {
    let (hosts, _hand) = registry(quick());
    let barrier = Barrier::new(8);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                barrier.wait();
                for key in 0..500 {
                    hosts.get(&key).try_acquire().unwrap().record(OK);
                }
            });
        }
    });
    assert_eq!(hosts.len(), 500);
    assert!(
        hosts.iter().all(|(_, breaker)| breaker.snapshot().calls == 2),
        "a window of two, filled by all eight threads"
    );
}

// Guarantee: circuit_breaker 10.
#[test]
fn all_keys_are_enumerable() {
    let (hosts, _hand) = registry(quick());
    (0..1000).for_each(|key| drop(hosts.get(&key)));
    hosts.get(&7).isolate();
    record(&hosts.get(&8), FAILED, 2);
    assert_eq!(hosts.states(), [998, 1, 0, 1]);
    let mut keys: Vec<_> = hosts.iter().map(|(key, _)| key).collect();
    keys.sort_unstable();
    assert!(keys.into_iter().eq(0..1000));
    let not_closed: Vec<_> = hosts.iter().filter(|(_, breaker)| breaker.state() != State::Closed).collect();
    assert_eq!(not_closed.len(), hosts.open_now());
    drop(not_closed); // a breaker that is held is kept
    // Keys may be removed during the iteration.
    hosts.iter().for_each(|(key, _)| assert!(hosts.forget(&key)));
    assert!(hosts.is_empty() && hosts.open_now() == 0);
}

// Guarantee: circuit_breaker 10.
#[test]
fn an_idle_key_is_removed_and_a_used_one_is_not() {
    let (hosts, time) = registry(KeyedBreakersConfig::from(quick()).idle(S(100)));
    (0..100).for_each(|key| record(&hosts.get(&key), OK, 1));
    time.advance(S(99));
    hosts.forget_idle();
    assert_eq!(hosts.len(), 100, "too early to be idle");
    time.advance(S(1));
    hosts.forget_idle(); // all were used since the start
    assert_eq!(hosts.len(), 100);
    (0..10).for_each(|key| drop(hosts.get(&key)));
    time.advance(S(100));
    hosts.forget_idle();
    assert_eq!(hosts.len(), 10);
    time.advance(S(100));
    hosts.forget_idle();
    assert!(hosts.is_empty());
}

// Guarantee: circuit_breaker 10.
#[test]
fn breakers_that_are_held_isolated_open_or_have_openings_to_remember_are_not_removed() {
    let (hosts, time) = registry(KeyedBreakersConfig::from(quick()).idle(S(1)));
    let held = hosts.get(&0); //          held outside the registry
    hosts.get(&1).isolate(); //           until it is closed manually
    hosts.get(&2).force_open(S(1000)); // still open
    record(&hosts.get(&3), FAILED, 2); // has an opening to remember
    hosts.get(&3).close();
    drop(hosts.get(&4)); //               has nothing to remember
    let sweep = |after| {
        for _ in 0..2 {
            time.advance(after);
            hosts.forget_idle();
        }
        let mut keys: Vec<_> = hosts.iter().map(|(key, _)| key).collect();
        keys.sort_unstable();
        keys
    };
    assert_eq!(sweep(S(1)), [0, 1, 2, 3]);
    assert_eq!(sweep(S(100)), [0, 1, 2], "after `reset_after` the opening is forgotten");
    drop(held);
    assert_eq!(sweep(S(100)), [1, 2]);
    // Long after its open time, without a call that probed.
    assert_eq!(sweep(S(1000)), [1]);
    assert_eq!(hosts.open_now(), 1);
}

// Guarantee: circuit_breaker 10.
/// New keys without end do not grow the table beyond the keys that are not idle.
#[test]
fn idle_keys_are_removed_before_the_table_grows() {
    let (hosts, time) = registry(KeyedBreakersConfig::from(quick()).idle(S(1)));
    for round in 0..50u32 {
        (0..1000).for_each(|key| drop(hosts.get(&(round * 1000 + key))));
        time.advance(S(1));
    }
    assert!(hosts.len() <= 10_000, "{}", hosts.len());
}

// Guarantee: circuit_breaker 10.
#[test]
fn rules_open_at_most_max_open_of_a_registry() {
    let (hosts, time) = registry(KeyedBreakersConfig::from(quick()).max_open(0.3));
    (0..10).for_each(|key| drop(hosts.get(&key)));
    let mut events = hosts.events();
    (0..10).for_each(|key| record(&hosts.get(&key), FAILED, 4 - 2 * usize::from(hosts.open_now() < 3)));
    assert_eq!((hosts.open_now(), hosts.states()[1]), (3, 3));
    let told: Vec<_> = std::iter::from_fn(|| events.try_recv().unwrap()).collect();
    let suppressed: Vec<_> = told
        .iter()
        .filter(|event| matches!(event.what, CircuitBreakerEvent::Suppressed { rule: TripRule::FailureRate }))
        .collect();
    assert_eq!(suppressed.len(), 7, "sent once per breaker, not at every failure");
    assert_eq!(suppressed[0].source.as_ref().unwrap().as_str(), "host-3");
    let snapshot = hosts.get(&9).snapshot();
    assert_eq!((snapshot.total_suppressed, snapshot.failures, snapshot.state), (3, 2, State::Closed));
    // When another one closes, one of those that still fail may open.
    time.advance(S(10));
    hosts.get(&0).try_acquire().unwrap().record(OK);
    assert_eq!(hosts.open_now(), 2);
    record(&hosts.get(&9), FAILED, 1);
    assert_eq!((hosts.get(&9).state(), hosts.open_now()), (State::Open, 3));
}

// Guarantee: circuit_breaker 10.
#[test]
fn max_open_counts_half_open_and_isolated_breakers_and_permits_manual_openings() {
    let (hosts, time) = registry(KeyedBreakersConfig::from(quick()).max_open(0.5));
    (0..4).for_each(|key| drop(hosts.get(&key)));
    hosts.get(&0).isolate();
    record(&hosts.get(&1), FAILED, 2);
    time.advance(S(10));
    let breaker = hosts.get(&1);
    let probe = breaker.try_acquire().unwrap();
    assert_eq!((hosts.get(&1).state(), hosts.open_now()), (State::HalfOpen, 2));
    record(&hosts.get(&2), FAILED, 3);
    assert_eq!(hosts.get(&2).state(), State::Closed);
    probe.record(FAILED); // open again: it was counted already
    assert_eq!(hosts.open_now(), 2);
    hosts.get(&3).force_open(S(1));
    hosts.get(&3).force_open(S(1));
    assert_eq!(hosts.open_now(), 3);
    (0..4).for_each(|key| hosts.get(&key).reset());
    assert_eq!(hosts.open_now(), 0);
}

// Guarantee: circuit_breaker 10.
#[test]
fn at_least_one_may_be_open() {
    let (hosts, _hand) = registry(KeyedBreakersConfig::from(quick()).max_open(0.01));
    record(&hosts.get(&0), FAILED, 2);
    record(&hosts.get(&1), FAILED, 2);
    assert_eq!((hosts.get(&0).state(), hosts.get(&1).state()), (State::Open, State::Closed));
}

// Guarantee: circuit_breaker 10.
#[test]
fn racing_openings_do_not_exceed_max_open() {
    let (hosts, _hand) = registry(KeyedBreakersConfig::from(quick()).max_open(0.25));
    let breakers: Vec<_> = (0..64).map(|key| hosts.get(&key)).collect();
    let barrier = Barrier::new(8);
    std::thread::scope(|scope| {
        for mine in breakers.chunks(8) {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                for breaker in mine {
                    (0..5).filter_map(|_| breaker.try_acquire().ok()).for_each(|permit| permit.record(FAILED));
                }
            });
        }
    });
    assert_eq!((hosts.open_now(), hosts.states()), (16, [48, 16, 0, 0]));
}

// Guarantee: circuit_breaker 10.
#[test]
fn the_configuration_is_replaced_for_all_keys_or_for_none() {
    let (hosts, _hand) = registry(quick());
    (0..100).for_each(|key| record(&hosts.get(&key), if key % 2 == 0 { FAILED } else { OK }, 1));
    let before = hosts.config();
    let bad = KeyedBreakersConfig::from(quick().count_window(0, 0)).max_open(0.5);
    assert_eq!(hosts.reconfigure(bad).unwrap_err().field(), "breaker.window.calls");
    assert_eq!(hosts.reconfigure(before.max_open(0.0)).unwrap_err().field(), "max_open");
    assert_eq!(hosts.reconfigure(before.idle(Duration::ZERO)).unwrap_err().field(), "idle");
    assert_eq!(hosts.config(), before);
    // A breaker's configuration is the registry's.
    assert!(hosts.get(&0).reconfigure(CircuitBreakerConfig::default()).is_err());
    // One failure is enough now: breakers that have one open at once, up to `max_open`.
    let mut events = hosts.events();
    let row = quick().count_window(2, 1).trip(TripConfig::default().failure_rate(0.5));
    hosts.reconfigure(KeyedBreakersConfig::from(row).max_open(0.25)).unwrap();
    assert_eq!(events.try_recv().unwrap().unwrap().what, CircuitBreakerEvent::Reconfigured);
    assert_eq!(hosts.states(), [75, 25, 0, 0]);
    assert_eq!(hosts.get(&1).config(), row);
    record(&hosts.get(&1000), OK, 1);
    assert_eq!(hosts.get(&1000).snapshot().calls, 1);
}

// Guarantee: circuit_breaker 10.
#[test]
fn events_and_transitions_of_all_keys_come_in_one_stream_by_name() {
    let (hosts, _hand) = registry(quick());
    let (mut events, mut transitions) = (hosts.events(), hosts.transitions());
    std::thread::scope(|scope| {
        for n in 0..4u32 {
            let hosts = &hosts;
            scope.spawn(move || (0..20).for_each(|i| record(&hosts.get(&(n * 100 + i)), FAILED, 2)));
        }
    });
    let mut opened = 0;
    while let Some(event) = events.try_recv().unwrap() {
        assert!(event.source.as_ref().unwrap().as_str().starts_with("host-"));
        opened += usize::from(matches!(event.what, CircuitBreakerEvent::Opened { .. }));
    }
    let mut names: Vec<_> = std::iter::from_fn(|| transitions.try_recv().unwrap())
        .map(|event| event.source.unwrap().as_str().to_owned())
        .collect();
    names.sort();
    names.dedup();
    assert_eq!((opened, names.len()), (80, 80));
}

// Guarantee: circuit_breaker 10.
#[test]
fn shadow_mode_can_be_set_for_one_breaker_and_for_the_registry() {
    let (hosts, _hand) = registry(quick());
    (0..2).for_each(|key| hosts.get(&key).isolate());
    hosts.get(&0).set_shadow(true);
    assert!(hosts.get(&0).try_acquire().is_ok() && hosts.get(&1).try_acquire().is_err());
    hosts.set_shadow(true);
    assert!(hosts.get(&1).try_acquire().is_ok());
}

#[test]
fn a_call_by_key_dropped_at_any_await_frees_its_permit() {
    let (clock, time) = Clock::manual();
    let hosts = KeyedBreakers::<u32>::builder(quick()).clock(&clock).build().unwrap();
    let kept = hosts.get(&1);
    kept.force_open(S(1));
    time.advance(S(1));
    let service = ScriptedService::new("ok in 1s", &clock).unwrap();
    let polls = drop_at_every_await(
        &time,
        || hosts.call(&1, || service.call()),
        |polls| {
            assert_eq!(service.running(), 0);
            match kept.state() {
                State::Open => assert_eq!(polls, 0),
                State::HalfOpen => assert!(kept.try_acquire().is_ok(), "the permit is free again"),
                state => assert_eq!((polls, state), (2, State::Closed)),
            }
        },
    );
    assert_eq!((polls, hosts.open_now()), (2, 0));
    drop(kept);
    time.advance(S(3600));
    hosts.forget_idle();
    time.advance(S(3600));
    hosts.forget_idle();
    assert!(hosts.is_empty(), "no dropped call holds a key");
}

/// Regression: `named_by` callbacks ran under a shard's lock, so that one that used another key or
/// panicked blocked the shard.
#[test]
fn the_name_of_a_key_is_made_outside_the_locks() {
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let registry: std::sync::OnceLock<KeyedBreakers<u32>> = std::sync::OnceLock::new();
        let registry = std::sync::Arc::new(registry);
        let inside = registry.clone();
        let named = KeyedBreakers::builder(quick())
            .name_by(move |key: &u32| {
                // It iterates over all keys, and creates another before it returns.
                if let (Some(registry), 0..10) = (inside.get(), *key) {
                    let others = registry.iter().count();
                    registry.get(&(key + 1));
                    return format!("host-{key} after {others}").into();
                }
                format!("host-{key}").into()
            })
            .build()
            .unwrap();
        registry.set(named.clone()).unwrap();
        named.get(&0);
        done.send(named.len()).unwrap();
    });
    assert_eq!(ended.recv_timeout(S(20)).expect("a lock is held while a name is made"), 11);
}
