//! Checkpoints: never ahead of an unfinished event, never back, never in the way of handlers.
use std::sync::{Arc, Mutex};

use steadfast::{
    store::{Key, Store},
    stream::StreamProcessorEvent as Event,
    testing::faults::{FaultConfig, FaultNetwork},
    work::EventDisposition,
};

use super::world::{MS, S, World, complete, numbered};

// Guarantee: stream 4.
#[test]
fn a_checkpoint_never_passes_an_event_that_is_not_finished() {
    let world = World::new(1);
    world.topic.add(0, numbered("", 1..51));
    let clock = world.clock.clone();
    world.start_as("a", World::quick(), move |event| {
        let clock = clock.clone();
        async move {
            // The seventh takes long.
            clock.sleep(if event.position.offset == 7 { S(20) } else { MS(10) }).await;
            EventDisposition::Complete
        }
    });
    world.pass(S(10));
    assert_eq!(world.watermark(0), 6);
    let state = world.state("a");
    assert_eq!((state[0].watermark, state[0].lag, state[0].in_flight), (6, 1, 1));
    // Killed now, the others do not run again.
    world.kill("a");
    world.runs.lock().unwrap().clear();
    world.start_as("b", World::quick(), |_| complete());
    world.pass(S(15));
    assert_eq!(world.texts(), ["7"]);
    assert_eq!(world.watermark(0), 50);
}

// Guarantee: stream 4.
#[test]
fn reading_pauses_above_a_stuck_event() {
    let world = World::new(1);
    world.topic.add(0, numbered("", 1..501));
    world.start_as("a", World::quick().max_ahead(100), |event| async move {
        if event.position.offset == 3 { std::future::pending().await } else { EventDisposition::Complete }
    });
    world.pass(S(10));
    let highest = world.runs().iter().map(|ran| ran.position.offset).max();
    assert_eq!((world.runs().len(), highest), (102, Some(102)));
}

// Guarantee: stream 5.
#[test]
fn after_a_crash_only_events_since_the_last_checkpoint_run_again() {
    let world = World::new(1);
    let clock = world.clock.clone();
    world.start_as("a", World::quick().max_in_flight(1), move |_| {
        let clock = clock.clone();
        async move {
            clock.sleep(MS(10)).await;
            EventDisposition::Complete
        }
    });
    world.pass(S(2));
    world.topic.add(0, numbered("", 0..1_000));
    world.pass(S(5));
    let before = world.texts();
    world.kill("a");
    world.runs.lock().unwrap().clear();
    world.start_as("b", World::quick(), |_| complete());
    world.pass(S(15));
    let after = world.texts();
    let again: Vec<_> = after.iter().filter(|text| before.contains(text)).collect();
    // Those of the last second, the one in flight, and those of the checkpoint that was on its way.
    assert!(again.len() <= 103, "{}", again.len());
    assert_eq!(after.last().unwrap(), "999");
}

// Guarantee: stream 5.
#[test]
fn a_shutdown_and_a_hand_over_write_a_last_checkpoint() {
    let world = World::new(2);
    world.start("a");
    world.pass(S(2));
    for partition in 0..2 {
        world.topic.add(partition, numbered("", 0..10));
    }
    let checkpointed = World::config().checkpoint_interval(S(3600));
    world.stop("a");
    world.pass(S(1));
    world.start_as("b", checkpointed, |_| complete());
    world.pass_until(S(30), || world.runs().len() == 20);
    world.start_as("c", checkpointed, |_| complete());
    world.pass(S(30));
    assert_eq!(world.shares(), [1, 1]);
    world.stop("b");
    world.stop("c");
    world.pass(S(1));
    assert_eq!((world.watermark(0), world.watermark(1)), (10, 10));
    assert_eq!(world.runs().len(), 20, "none ran again");
}

// Guarantee: stream 5.
#[test]
#[ignore = "takes seconds: `.ci/run` runs it"]
fn a_checkpoint_is_written_after_so_many_events_or_so_long() {
    let world = World::new(1);
    let key = Key::new("stream-group/dispatch/orders", "p/0000");
    let version = || world.time.block_on(world.store.get(key)).unwrap().unwrap().version;
    let config = World::quick().checkpoint_every(10).checkpoint_interval(S(5));
    world.start_as("a", config, |_| complete());
    world.pass(S(2));
    let claimed = version();
    world.topic.add(0, numbered("", 0..9));
    world.pass(S(2));
    assert_eq!(version(), claimed);
    world.pass(S(4));
    let timed = version();
    assert!(timed > claimed);
    world.topic.add(0, numbered("", 0..10));
    world.pass(MS(200));
    assert!(version() > timed);
    let counted = version();
    world.pass(S(3600));
    assert_eq!(version(), counted, "nothing was finished since");
}

// Guarantee: stream 5.
#[test]
fn a_slow_store_holds_up_no_handler() {
    let world = World::new(1);
    let slow = FaultConfig::default().latency(MS(900), MS(900));
    let network = FaultNetwork::new(FaultConfig::default(), 1, &world.clock).unwrap();
    let store = network.client("a").store(world.store.clone());
    let config = World::config().checkpoint_every(1).max_ahead(100_000);
    let member = world.builder_on("a", config, store, &world.clock).build().unwrap();
    world.start_built("a", member, |_| complete());
    world.pass(S(10));
    network.configure(slow).unwrap();
    world.topic.add(0, numbered("", 0..5_000));
    world.pass(S(6));
    assert_eq!(world.runs().len(), 5_000);
    world.pass(S(10));
    assert_eq!(world.watermark(0), 5_000);
}

// Guarantee: stream 4.
#[test]
fn lost_replies_and_failures_of_the_store_move_no_checkpoint_back_and_end_no_term() {
    let world = World::new(1);
    let faults = FaultConfig::default().errors(0.2).lost_replies(0.3).latency(MS(1), MS(40));
    let network = FaultNetwork::new(faults, 3, &world.clock).unwrap();
    let store = network.client("a").store(world.store.clone());
    let leases = world.store.clone();
    let leases = steadfast::lease::StoreLease::builder(leases).clock(&world.clock).build().unwrap();
    let member = steadfast::stream::StreamProcessor::builder(
        world.topic.clone(),
        "dispatch",
        Arc::new(leases),
        store,
        World::quick(),
    );
    let member = member.clock(&world.clock).entropy(&steadfast::entropy::Entropy::from_seed(3)).build().unwrap();
    world.start_built("a", member, |_| complete());
    let seen = Mutex::new(0);
    for i in 0..100 {
        world.topic.add(0, numbered("", i * 10..i * 10 + 10));
        world.pass(MS(300));
        if i > 20 {
            let now = world.watermark(0);
            assert!(now >= std::mem::replace(&mut *seen.lock().unwrap(), now));
        }
    }
    world.pass(S(20));
    assert_eq!((world.watermark(0), world.runs().len()), (1_000, 1_000));
    let released = world.told(|event| matches!(event, Event::Released { .. }).then_some(()));
    assert!(released.is_empty());
}

// Guarantee: stream 5.
#[test]
fn a_handler_that_is_dropped_at_a_shutdown_is_not_in_the_last_checkpoint() {
    let world = World::new(1);
    world.start_as("a", World::quick().drain_timeout(S(1)), |event| async move {
        if event.position.offset == 2 { std::future::pending().await } else { EventDisposition::Complete }
    });
    world.pass(S(1));
    world.topic.add(0, ["1", "2", "3"]);
    world.pass(MS(500));
    world.stop("a");
    world.pass(S(5));
    assert_eq!(world.watermark(0), 1);
    world.runs.lock().unwrap().clear();
    world.start_as("b", World::quick(), |_| complete());
    world.pass(S(5));
    assert_eq!(world.texts(), ["2"]);
}
