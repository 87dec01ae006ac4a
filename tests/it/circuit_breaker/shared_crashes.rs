//! A process that crashes at each of its requests for sharing its breaker, or fails in each.
use std::{future::pending, sync::Arc, time::Duration};

use futures::future::join;
use steadfast::{
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, SharedCircuitBreaker, SharedCircuitBreakerConfig, State},
    entropy::Entropy,
    notify::Notifier,
    store::Store,
    testing::{CrashingProcess, crash_at_every_write, fail_at_every_write},
};

use crate::cache_aside::world::{MS, S, World};

const OPEN: Duration = Duration::from_secs(10);

fn shared(world: &World, name: &str, store: Arc<dyn Store>, notifier: Arc<dyn Notifier>) -> SharedCircuitBreaker {
    let rules: CircuitBreakerConfig = toml::from_str(
        r#"
        trip = { consecutive_failures = 3 }
        open = { initial_delay = "10s", max_delay = "10s", jitter = 0.0 }
        half_open = { permitted_calls = 1, success_rate = 1.0 }
        "#,
    )
    .unwrap();
    let breaker = CircuitBreaker::builder(rules).clock(&world.clock).entropy(&Entropy::from_seed(3)).build().unwrap();
    let config = SharedCircuitBreakerConfig::default();
    SharedCircuitBreaker::builder(breaker, store, "payments", config).process(name).notifier(notifier).build().unwrap()
}

/// Opens a breaker, and closes it again after its open time, beside another process.
fn opens_and_closes(process: &CrashingProcess) {
    let world = World::new();
    let beside = shared(&world, "beside", world.store.clone(), world.notifier.clone());
    let loops = beside.clone();
    world.background.spawn(async move { loops.run(pending()).await });
    world.turn();
    let own = shared(&world, "own", process.store(world.store.clone()), process.notifier(world.notifier.clone()));
    let start = world.time.now();
    let scenario = async {
        world.clock.sleep(MS(1500)).await;
        for _ in 0..3 {
            let _ = own.breaker().call(async || Err::<(), _>("down")).await;
        }
        world.clock.sleep(S(3)).await;
        assert_eq!(own.breaker().state(), State::Open);
        assert_eq!(beside.breaker().state(), State::Open, "it follows, one failed request or not");
        world.clock.sleep(OPEN).await;
        assert!(own.breaker().call(async || Ok::<_, ()>(())).await.is_ok());
        world.clock.sleep(S(2)).await;
    };
    let lives = join(scenario, own.run(world.clock.sleep(S(18))));
    let ended = world.run(process.run(lives));
    assert_eq!(ended.is_none(), process.has_crashed());

    // A report outlives its process by `stale_after` at most, and an opening its report by one poll.
    world.pass(S(5) + S(1));
    assert!(beside.reports().is_empty(), "{:?}", beside.reports());
    world.pass(OPEN.saturating_sub(world.time.now() - start));
    assert!(world.run(beside.breaker().call(async || Ok::<_, ()>(()))).is_ok());
    // A process that starts now follows nobody.
    let new = shared(&world, "new", world.store.clone(), world.notifier.clone());
    world.run(new.run(world.clock.sleep(S(2))));
    assert_eq!(new.breaker().state(), State::Closed);
}

// Guarantee: circuit_breaker 11.
#[test]
fn a_process_that_crashes_at_any_request_leaves_no_breaker_open_beyond_its_report() {
    let requests = crash_at_every_write(opens_and_closes);
    assert!((15..=200).contains(&requests), "{requests}");
}

// Guarantee: circuit_breaker 11.
#[test]
fn a_failure_of_any_request_keeps_no_opening_and_no_closing_from_the_other_processes() {
    fail_at_every_write(opens_and_closes);
}
