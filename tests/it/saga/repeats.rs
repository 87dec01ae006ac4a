//! `testing::repeated`: steps that run several times under one key.
use std::sync::{Arc, Mutex};

use steadfast::{
    saga::{Action, Compensation, Plan, Saga, SagaOutcome, Step, StepOutcome},
    store::{Precondition, Write},
    testing::repeated,
};

use crate::saga::world::{Answer, State, World, codec, completed};

// Guarantee: testing 6.
#[test]
fn each_attempt_runs_as_often_as_asked_and_changes_the_state_once() {
    let world = World::new();
    let node = world.node("a", repeated(world.trip(), 3));
    assert_eq!(world.block_on(node.run("42")).unwrap(), completed(&["seat", "room", "charge", "mail"]));
    assert_eq!(world.services.log(), "seat seat seat room room room charge charge charge mail mail mail");
    let row = || Answer::Writes(vec![Write::put("u/seat", "12A", Precondition::Absent)]);
    world.services.answer("seat", [row(), row(), row()]);
    world.services.answer("room", vec![Answer::Failed; 3]);
    assert!(matches!(world.block_on(node.run("43")), Ok(SagaOutcome::Compensated { .. })));
    assert!(world.services.log().ends_with("mail seat seat seat room room room -seat -seat -seat"));
    assert_eq!(world.row("u/seat").as_deref(), Some("12A"));
}

// Guarantee: testing 6.
#[test]
fn a_step_that_is_not_idempotent_is_found_by_repetition() {
    let world = World::new();
    let node = world.node("a", repeated(world.trip(), 2));
    world.services.answer("room", [Answer::Completed, Answer::Failed]);
    let SagaOutcome::Compensated { step, reason } = world.block_on(node.run("42")).unwrap() else {
        panic!("not found")
    };
    assert_eq!(step.as_deref(), Some("room"));
    assert_eq!(reason, "not idempotent: `room`: run 1 is completed, run 2 is failed: sold out");

    /// Books another seat each time.
    struct Counts(Arc<Mutex<u32>>);
    impl Action<State> for Counts {
        async fn execute(&self, _: &Step<State>) -> StepOutcome<State> {
            let mut seats = self.0.lock().unwrap();
            *seats += 1;
            let seat = seats.to_string();
            StepOutcome::changed(|state: &mut State| state.push(seat))
        }
    }
    impl Compensation<State> for Counts {
        async fn compensate(&self, _: &Step<State>) -> StepOutcome<State> {
            StepOutcome::changed(State::clear)
        }
    }
    let plan = repeated(Plan::new().step("seat", Counts(Arc::default())), 2);
    let saga = Saga::builder("trip", world.store.clone(), codec(), plan, World::config()).clock(&world.clock).build();
    let ran = world.block_on(saga.unwrap().run("43", State::new())).unwrap();
    let SagaOutcome::Compensated { reason, .. } = ran else { panic!("not found") };
    assert!(reason.contains("run 1 of 2 changed the state to [\"1\"], run 2 to [\"2\"]"), "{reason}");
}
