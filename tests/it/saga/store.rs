//! A store that fails, and rows that are written together with a saga.
use std::sync::Arc;

use steadfast::{
    port::PortErrorKind,
    saga::{SagaConfig, SagaError, SagaEvent as Event, SagaOutcome},
    store::{Precondition, Write},
    testing::{CrashingProcess, crash_at_every_write, fail_at_every_write, faults::FaultConfig},
};

use crate::{
    engines::Engine,
    saga::world::{Answer, Calls, S, State, World, codec, completed, told},
};

const ALL: [&str; 4] = ["seat", "room", "charge", "mail"];

// Guarantee: saga 8.
#[test]
fn a_lost_reply_of_the_store_repeats_no_action_and_no_write() {
    let world = World::new();
    let node = world.node("a", world.trip());
    world.network.configure(FaultConfig::default().lost_replies(0.5)).unwrap();
    let user = |name: &str| Answer::Writes(vec![Write::append(format!("u/{name}/"), "done")]);
    for i in 0..20 {
        for step in ALL {
            world.services.answer(step, [user(step)]);
        }
        assert_eq!(world.block_on(node.run(&i.to_string())).unwrap(), completed(&ALL));
    }
    assert!(world.network.counts().lost_replies > 40);
    assert_eq!(world.services.log(), ["seat room charge mail"; 20].join(" "));
    let rows = world.rows();
    for step in ALL {
        assert_eq!(rows.iter().filter(|row| row.starts_with(&format!("u/{step}/"))).count(), 20, "{step}");
    }
}

// Guarantee: saga 8.
#[test]
fn a_store_that_fails_for_long_ends_the_run_and_fails_no_step() {
    let world = World::new();
    let (node, other) = (world.node("a", world.trip()), world.node("b", world.trip()));
    let mut events = node.saga.events();
    world.services.answer("room", [Answer::Takes(S(5))]);
    let began = world.clock.now();
    let ran = world.block_on(async {
        let cut = async {
            world.clock.sleep(S(1)).await;
            node.client.cut();
        };
        tokio::join!(node.run("42"), cut).0
    });
    let waited = world.clock.now() - began;
    let failed = matches!(&ran, Err(SagaError::Store(error)) if error.kind() == PortErrorKind::Unavailable);
    assert!(failed && ran.unwrap_err().is_transient());
    assert!(waited > S(20) && waited <= S(35), "{waited:?}");
    let failures = told(&world, &mut events);
    assert!(failures.contains(&Event::StoreFailed { kind: Some(PortErrorKind::Unavailable) }));
    assert!(!failures.iter().any(|event| matches!(event, Event::AttemptFailed { .. })), "{failures:?}");
    assert_eq!(world.block_on(other.saga.resume("42")).unwrap(), completed(&ALL));
    assert_eq!(world.services.log(), "seat room room charge mail");
}

// Guarantee: saga 8.
#[test]
fn a_short_outage_of_the_store_is_waited_for() {
    let world = World::new();
    let node = world.node("a", world.trip());
    world.services.answer("room", [Answer::Takes(S(5))]);
    let ran = world.block_on(async {
        let cut = async {
            world.clock.sleep(S(1)).await;
            node.client.cut();
            world.clock.sleep(S(20)).await;
            node.client.heal();
        };
        tokio::join!(node.run("42"), cut).0
    });
    assert_eq!(ran.unwrap(), completed(&ALL));
    assert_eq!(world.services.log(), "seat room charge mail");
}

// Guarantee: saga 10.
#[test]
fn rows_of_the_start_and_of_a_step_are_written_with_the_record() {
    let world = World::new();
    let node = world.node("a", world.trip());
    let order = |when| Write::put("u/order", "placed", when);
    let seat = |id: &str| Answer::Writes(vec![Write::put("u/seat-12A", id.to_owned(), Precondition::Absent)]);
    // An attempt that does not complete writes nothing.
    world.services.answer("seat", [Answer::Unknown, seat("42")]);
    let ran = world.block_on(node.saga.run_with_rows("42", State::new(), vec![order(Precondition::Absent)]));
    assert_eq!(ran.unwrap(), completed(&ALL));
    assert_eq!((world.row("u/order").unwrap(), world.row("u/seat-12A").unwrap()), ("placed".into(), "42".into()));

    // A row that the store refuses keeps the saga from its start.
    let refused = world.block_on(node.saga.run_with_rows("43", State::new(), vec![order(Precondition::Absent)]));
    assert!(matches!(refused, Err(SagaError::RowRefused(error)) if error.is_conflict()));
    assert!(world.row("r/43").is_none() && world.row("i/43").is_none());
    // A row of a step that the store refuses compensates the saga, the step included.
    world.services.answer("seat", [seat("44")]);
    assert!(
        matches!(world.block_on(node.run("44")), Ok(SagaOutcome::Compensated { step: Some(step), .. }) if step == "seat")
    );
    assert_eq!(world.row("u/seat-12A").unwrap(), "42");
    assert!(world.services.log().ends_with("seat -seat"));
}

// Guarantee: saga 10.
#[test]
fn rows_outside_those_of_users_are_refused() {
    let world = World::new();
    let node = world.node("a", world.trip());
    let rows = || {
        vec![
            Write::put("r/43", "x", Precondition::Any),
            Write::append("log/", "x"),
            Write::put("u", "x", Precondition::Any),
        ]
    };
    for row in rows() {
        let started = world.block_on(node.saga.run_with_rows("42", State::new(), vec![row]));
        assert!(matches!(started, Err(SagaError::Invalid(_))));
    }
    assert_eq!(world.rows(), Vec::<String>::new());
    for (i, row) in rows().into_iter().enumerate() {
        world.services.answer("room", [Answer::Writes(vec![row])]);
        let ran = world.block_on(node.run(&i.to_string())).unwrap();
        let SagaOutcome::Compensated { reason, .. } = ran else { panic!("{ran:?}") };
        assert!(reason.starts_with("the row of a step must begin with `u/`"), "{reason}");
    }
}

fn saga(world: &World, store: Arc<dyn steadfast::store::Store>, seed: u64) -> steadfast::saga::Saga<State> {
    use steadfast::{entropy::Entropy, saga::Saga};
    Saga::builder("trip", store, codec(), plan(&world.calls()), World::config())
        .clock(&world.clock)
        .entropy(&Entropy::from_seed(seed))
        .build()
        .unwrap()
}

/// A step, a group of two, and a step that fails.
fn plan(call: &Calls) -> steadfast::saga::Plan<State> {
    let (a, b, c, d) = (call.clone(), call.clone(), call.clone(), call.clone());
    steadfast::saga::Plan::new().step("seat", a).parallel(|plan| plan.step("room", b).step("car", c)).step("guide", d)
}

/// Effects by the services' logs: an action adds one if its compensation has not come, and a
/// compensation ends it. Repeated calls have the key of the first.
fn effects(world: &World) -> Vec<String> {
    let (mut effects, mut barred) = (std::collections::BTreeSet::new(), std::collections::BTreeSet::new());
    for call in world.services.calls() {
        let key = call.key.trim_end_matches(":undo").to_owned();
        if call.compensates {
            effects.remove(&key);
            barred.insert(key);
        } else {
            assert!(!barred.contains(&key), "{key} runs after its compensation");
            if call.has_effect {
                effects.insert(key);
            }
        }
    }
    effects.into_iter().collect()
}

fn crash_test(engine: Engine, fails: bool, process: &CrashingProcess) {
    let engine = engine.world();
    let world = World::over(&engine.clock, &engine.time, engine.store.clone());
    let row = |name: &str| Answer::Writes(vec![Write::append(format!("u/{name}/"), "x")]);
    for step in ["seat", "room", "car"] {
        world.services.answer(step, [row(step), row(step)]);
    }
    if fails {
        world.services.answer("guide", vec![Answer::Failed; 2]);
    }
    let order = || vec![Write::append("u/order/", "x")];
    let crashes = saga(&world, process.store(world.store.clone()), 1);
    let ran = world.block_on(process.run(crashes.run_with_rows("42", State::new(), order())));
    let other = saga(&world, world.store.clone(), 2);
    // The caller has no result, and asks another process.
    let end = match ran {
        Some(Ok(end)) => end,
        _ => world.block_on(other.run_with_rows("42", State::new(), order())).unwrap(),
    };
    let rows = world.rows();
    let count = |name: &str| rows.iter().filter(|row| row.starts_with(&format!("u/{name}/"))).count();
    assert_eq!((count("order"), count("seat"), count("room"), count("car")), (1, 1, 1, 1), "{rows:?}");
    if fails {
        assert!(matches!(end, SagaOutcome::Compensated { .. }), "{end:?}");
        assert_eq!(effects(&world), Vec::<String>::new());
    } else {
        let SagaOutcome::Completed(state) = end else { panic!("{end:?}") };
        assert_eq!((state.len(), effects(&world).len()), (4, 4), "{state:?}");
    }
    assert!(!rows.iter().any(|row| row.starts_with("i/")), "{rows:?}");
    assert!(world.block_on(other.run("42", State::new())).is_ok());
}

// Guarantee: saga 8, 10.
#[test]
fn a_saga_whose_process_crashes_at_any_request_ends_with_each_effect_once_or_none() {
    for engine in Engine::ALL {
        // Start, seat, room, car, guide.
        assert_eq!(crash_at_every_write(|process| crash_test(engine, false, process)), 5);
        // Start, seat, room, car, the failure; car and room together, seat.
        assert_eq!(crash_at_every_write(|process| crash_test(engine, true, process)), 8);
    }
}

// Guarantee: saga 8, 10.
#[test]
fn a_saga_ends_with_each_effect_once_or_none_whichever_request_fails() {
    for engine in Engine::ALL {
        fail_at_every_write(|process| crash_test(engine, false, process));
        fail_at_every_write(|process| crash_test(engine, true, process));
    }
}

#[test]
fn a_store_without_what_a_saga_needs_is_refused() {
    use steadfast::port::Capability;
    let world = World::new();
    for lacks in [Capability::AtomicBatch, Capability::Linearizable, Capability::TimeToLive] {
        let store = crate::capabilities::lacking(lacks);
        let refused = steadfast::saga::Saga::new("trip", store, codec(), world.trip(), SagaConfig::default());
        assert_eq!(refused.unwrap_err().rule(), format!("needs `{lacks}`, which the backend `memory` lacks"));
    }
}
