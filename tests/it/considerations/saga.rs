//! The considerations of a saga. The others are shown in `tests/it/saga`.
use std::sync::{Arc, Mutex};

use steadfast::{
    saga::{Action, Compensation, Plan, Saga, SagaOutcome, Step, StepOutcome, StepState},
    time::Clock,
};

use crate::saga::world::{Answer, S, State, World, codec};

/// Books a seat under a number of its own, and frees the seat of that number unless its guest has left already.
#[derive(Clone)]
struct Books {
    next: Arc<Mutex<u32>>,
    freed: Arc<Mutex<Vec<String>>>,
    has_left: bool,
}

impl Action<State> for Books {
    async fn execute(&self, _: &Step<State>) -> StepOutcome<State> {
        let mut next = self.next.lock().unwrap();
        *next += 1;
        let seat = format!("seat {next}");
        StepOutcome::changed(|state: &mut State| state.push(seat))
    }
}

impl Compensation<State> for Books {
    async fn compensate(&self, step: &Step<State>) -> StepOutcome<State> {
        if !self.has_left {
            self.freed.lock().unwrap().push(format!("{} of {}", step.join(" "), step.action_key()));
        }
        StepOutcome::completed()
    }
}

/// 2 (refusal): it is code, which gets the state that its step left, and the key of its action. A step before the pivot
/// without one does not compile: `tests/compile_fail/step_without_compensation.rs`.
#[test]
fn a_compensation_gets_what_its_step_knew_and_decides_what_to_undo() {
    for (has_left, expected) in [(false, vec!["seat 7 of trip/42/seat"]), (true, vec![])] {
        let world = World::new();
        let books = Books { next: Arc::new(Mutex::new(6)), freed: Arc::default(), has_left };
        let plan = Plan::new().step("seat", books.clone()).step("room", world.calls());
        world.services.answer("room", [Answer::Failed]);
        let store = world.store.clone();
        let saga = Saga::builder("trip", store, codec(), plan, World::config()).clock(&world.clock).build().unwrap();
        let ran = world.block_on(saga.run("42", State::new()));
        assert!(matches!(ran, Ok(SagaOutcome::Compensated { .. })), "{ran:?}");
        assert_eq!(*books.freed.lock().unwrap(), expected);
    }
    let program = std::fs::read_to_string("tests/compile_fail/step_without_compensation.rs").unwrap();
    assert!(program.contains("step("), "{program}");
}

/// Reads its own record while it runs.
struct Reads {
    saga: Arc<Mutex<Option<Saga<State>>>>,
    seen: Arc<Mutex<Vec<Vec<StepState>>>>,
}

impl Reads {
    async fn read(&self, step: &Step<State>) -> StepOutcome<State> {
        let saga = self.saga.lock().unwrap().clone().unwrap();
        let status = saga.read(step.id()).await.unwrap().unwrap();
        self.seen.lock().unwrap().push(status.steps.iter().map(|step| step.state).collect());
        StepOutcome::completed()
    }
}

impl Action<State> for Reads {
    async fn execute(&self, step: &Step<State>) -> StepOutcome<State> {
        self.read(step).await
    }
}

impl Compensation<State> for Reads {
    async fn compensate(&self, step: &Step<State>) -> StepOutcome<State> {
        self.read(step).await
    }
}

/// 10 (default): an attempt is recorded before it begins and its result before the next one does, and the record says which
/// steps have a compensation, though the process that goes on has another plan.
#[test]
fn each_step_is_recorded_as_it_goes_with_how_it_is_undone() {
    use StepState::{Compensated, Compensating, Completed, Failed, Ready, Started};
    let world = World::new();
    let (this, seen): (Arc<Mutex<_>>, Arc<Mutex<_>>) = Default::default();
    let reads = || Reads { saga: this.clone(), seen: seen.clone() };
    let plan = Plan::new().step("seat", reads()).step_without_compensation("look", reads()).step("room", world.calls());
    let clock: &Clock = &world.clock;
    let saga = Saga::builder("trip", world.store.clone(), codec(), plan, World::config()).clock(clock).build().unwrap();
    *this.lock().unwrap() = Some(saga.clone());
    world.services.answer("room", [Answer::Failed]);
    assert!(matches!(world.block_on(saga.run("42", State::new())), Ok(SagaOutcome::Compensated { .. })));
    let expected =
        [[Started, Ready, Ready], [Completed, Started, Ready], [Compensating, Completed, Failed]].map(Vec::from);
    assert_eq!(*seen.lock().unwrap(), expected);
    let status = world.block_on(saga.read("42")).unwrap().unwrap();
    assert_eq!(status.steps.iter().map(|step| step.state).collect::<Vec<_>>(), [Compensated, Completed, Failed]);

    // One that dies at its second step, before a deployment that changes the plan.
    let old = world.node("old", world.steps(&["seat", "room"]));
    world.services.answer("room", [Answer::Hangs]);
    assert!(world.within(S(1), old.run("43")).is_none());
    let plan = Plan::new().step("visa", world.calls()).retired("seat", world.calls()).retired("room", world.calls());
    let new = world.node("new", plan);
    assert!(matches!(world.block_on(new.saga.cancel("43", "no")), Ok(SagaOutcome::Compensated { .. })));
    assert_eq!(world.services.log(), "room seat room -room -seat");
}
