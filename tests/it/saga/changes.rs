//! Sagas that outlive a deployment: another plan, and another form of the state.
use std::future::pending;

use steadfast::{
    codec::Codec,
    saga::{Plan, Saga, SagaError, SagaEvent as Event, SagaOutcome, Step, StepOutcome},
};

use crate::saga::world::{Answer, Node, S, State, World, completed, told};

/// A saga that began with the steps seat, room, charge, mail, and whose process died in the room's.
fn old() -> World {
    let world = World::new();
    let node = world.node("old", world.trip());
    world.services.answer("room", [Answer::Hangs]);
    assert!(world.within(S(1), node.run("42")).is_none());
    world
}

// Guarantee: saga 11.
#[test]
fn a_saga_keeps_the_plan_that_it_began_with() {
    let world = old();
    let call = || world.calls();
    // Another order, a step more, two steps less.
    let plan = Plan::new()
        .step("visa", call())
        .retired("room", call())
        .step("seat", call())
        .pivot("charge", call())
        .retired_without_compensation("mail", call());
    let node = world.node("new", plan);
    assert_eq!(world.block_on(node.saga.resume("42")).unwrap(), completed(&["seat", "room", "charge", "mail"]));
    assert_eq!(world.block_on(node.run("43")).unwrap(), completed(&["visa", "seat", "charge"]));
}

// Guarantee: saga 11.
#[test]
fn a_process_that_does_not_know_a_step_leaves_the_saga_as_it_is() {
    let world = old();
    let record = world.row("r/42");
    let incompatible = |node: &Node, reason: &str| {
        let mut events = node.saga.events();
        for ran in [world.block_on(node.saga.resume("42")), world.block_on(node.run("42"))] {
            assert!(matches!(&ran, Err(SagaError::Incompatible(told)) if told == reason), "{ran:?}");
        }
        assert!(world.within(S(300), node.saga.recover(pending())).is_none());
        let event = Event::Incompatible { id: "42".to_owned(), reason: reason.to_owned() };
        assert!(told(&world, &mut events).contains(&event));
        assert_eq!(world.row("r/42"), record, "unchanged");
    };
    let without = Plan::new().step("seat", world.calls()).pivot("charge", world.calls()).step("mail", world.calls());
    incompatible(&world.node("without", without), "this process does not know the step `room`");
    let plain = Plan::new()
        .step("seat", world.calls())
        .step_without_compensation("room", world.calls())
        .pivot("charge", world.calls())
        .step("mail", world.calls());
    incompatible(&world.node("plain", plain), "the step `room` has no compensation in this process");
    let node = world.node("knows", world.trip());
    assert!(matches!(world.block_on(node.saga.resume("42")), Ok(SagaOutcome::Completed(_))));
}

// Guarantee: saga 11.
#[test]
fn a_process_that_cannot_read_the_state_leaves_the_saga_as_it_is() {
    struct Nothing;
    impl steadfast::saga::Action<u32> for Nothing {
        async fn execute(&self, _: &Step<u32>) -> StepOutcome<u32> {
            StepOutcome::completed()
        }
    }
    impl steadfast::saga::Compensation<u32> for Nothing {
        async fn compensate(&self, _: &Step<u32>) -> StepOutcome<u32> {
            StepOutcome::completed()
        }
    }
    let world = old();
    let record = world.row("r/42");
    let codec: Codec<u32> = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
    let plan = Plan::new().step("seat", Nothing).step("room", Nothing).pivot("charge", Nothing).step("mail", Nothing);
    let saga =
        Saga::builder("trip", world.store.clone(), codec, plan, World::config()).clock(&world.clock).build().unwrap();
    let Err(SagaError::Incompatible(reason)) = world.block_on(saga.resume("42")) else { panic!("it was run") };
    assert!(reason.starts_with("the state of the saga: cannot decode: invalid type"), "{reason}");
    assert!(matches!(world.block_on(saga.read("42")), Err(SagaError::Incompatible(_))));
    assert_eq!(world.row("r/42"), record);
}

#[test]
fn a_step_that_had_no_compensation_when_the_saga_began_gets_none() {
    let world = World::new();
    let plain = Plan::new().step_without_compensation("look", world.calls()).step("seat", world.calls());
    let node = world.node("old", plain);
    world.services.answer("seat", [Answer::Hangs]);
    assert!(world.within(S(1), node.run("42")).is_none());
    let node = world.node("new", world.steps(&["look", "seat"]));
    world.services.answer("seat", [Answer::Failed]);
    assert!(matches!(world.block_on(node.saga.resume("42")), Ok(SagaOutcome::Compensated { .. })));
    assert_eq!(world.services.log(), "look seat seat -seat");
    let _: State = State::new();
}
