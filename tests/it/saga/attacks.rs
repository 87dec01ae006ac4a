//! Hostile states, texts, delays and records.
use std::time::Duration;

use steadfast::saga::{Action, Plan, SagaError, SagaOutcome, SagaPhase, Step, StepOutcome};

use super::world::{Answer, LARGE, S, State, World, state};

/// A step whose every attempt fails with a long text.
struct Verbose(&'static str);

impl Action<State> for Verbose {
    async fn execute(&self, step: &Step<State>) -> StepOutcome<State> {
        match self.0 {
            "failed" if step.attempt() == 3 => StepOutcome::failed("no ".repeat(10_000)),
            _ => StepOutcome::not_sent("no ".repeat(10_000)),
        }
    }
}

/// Regression: the texts of failures did not fit beside a large state, so that no failure could be recorded.
#[test]
fn a_saga_ends_although_the_texts_of_its_failures_do_not_fit_beside_its_state() {
    for room in [500, 600, 700, 1_000, 2_000] {
        let world = World::new();
        let plan = || Plan::new().step("seat", world.calls()).step_without_compensation("room", Verbose("failed"));
        let node = world.node("a", plan());
        let large = state(&["x".repeat(LARGE - room).as_str()]);
        let ran = world.block_on(node.saga.run("42", large.clone()));
        assert!(matches!(ran, Ok(SagaOutcome::Compensated { .. })), "{room}: {ran:?}");
        assert_eq!(world.services.log(), "seat -seat");
        let cancelled = world.block_on(async {
            let wait = async {
                world.clock.sleep(Duration::from_millis(1500)).await;
                node.saga.cancel("43", &"too late ".repeat(1_000)).await
            };
            tokio::join!(node.saga.run("43", large), wait)
        });
        assert!(matches!(cancelled, (Ok(SagaOutcome::Compensated { .. }), Ok(_))), "{room}: {cancelled:?}");
    }
}

/// A state that leaves no room for the progress of its saga would leave the saga without an end.
#[test]
fn a_state_without_room_for_the_progress_is_refused_at_the_start_and_compensated_later() {
    let world = World::new();
    let node = world.node("a", world.trip());
    for size in [LARGE - 1, LARGE - 50, LARGE - 200] {
        let refused = world.block_on(node.saga.run("42", state(&["x".repeat(size).as_str()])));
        assert!(matches!(refused, Err(SagaError::Invalid(_))), "{size}: {refused:?}");
    }
    assert_eq!(world.rows(), Vec::<String>::new());
}

/// Regression: a stuck record without a stuck step was reported as compensated.
#[test]
fn a_damaged_record_is_never_taken_for_an_end() {
    for (from, to) in [("forward", "stuck-forward"), ("forward", "stuck-compensating"), ("state ", "state 1")] {
        let world = World::new();
        let node = world.node("a", world.trip());
        world.services.answer("room", [Answer::Hangs]);
        assert!(world.within(S(5), node.run("42")).is_none());
        world.edit("r/42", from, to);
        let read = world.block_on(node.saga.read("42"));
        let resumed = world.block_on(node.saga.resume("42"));
        assert!(matches!(read, Err(SagaError::Incompatible(_))), "{to}: {read:?}");
        assert!(matches!(resumed, Err(SagaError::Incompatible(_))), "{to}: {resumed:?}");
        assert_eq!(world.services.log(), "seat room");
    }
}

/// Regression: the largest numbers overflowed at the next claim.
#[test]
fn a_record_with_the_largest_numbers_is_run_to_its_end() {
    let world = World::new();
    let node = world.node("a", world.trip());
    world.services.answer("room", [Answer::Hangs]);
    assert!(world.within(S(5), node.run("42")).is_none());
    world.edit("r/42", "at 1 2 ", "at 18446744073709551615 18446744073709551615 ");
    let resumed = world.block_on(node.saga.resume("42"));
    assert!(matches!(resumed, Ok(SagaOutcome::Completed(_))), "{resumed:?}");
}

#[test]
fn a_delay_without_end_is_stored_and_ended_by_a_wake() {
    let world = World::new();
    let node = world.node("a", world.trip());
    world.services.answer("room", [Answer::Pending(Duration::MAX), Answer::Refused(Duration::MAX), Answer::Completed]);
    let (ran, ()) = world.block_on(async {
        let wake = async {
            for _ in 0..2 {
                world.clock.sleep(S(3600)).await;
                node.saga.wake("42").await.unwrap();
            }
        };
        tokio::join!(node.run("42"), wake)
    });
    assert!(matches!(ran, Ok(SagaOutcome::Completed(_))), "{ran:?}");
}

/// Ids with the separators of keys and records.
#[test]
fn any_text_is_an_id_and_the_keys_of_two_sagas_never_meet() {
    let world = World::new();
    let node = world.node("a", world.trip());
    let ids = ["a", "a/seat", "a:undo", "a\nstep 0 done", " ", "\u{0}", "\u{1f681}", "i/a", "r/a", "../a"];
    for id in ids {
        let ran = world.block_on(node.saga.run(id, state(&[]))).unwrap();
        assert!(matches!(ran, SagaOutcome::Completed(_)), "{id:?}");
        assert_eq!(world.block_on(node.saga.read(id)).unwrap().unwrap().phase, SagaPhase::Completed);
    }
    let mut keys: Vec<_> = world.services.calls().into_iter().map(|call| call.key).collect();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 4 * ids.len());
}
