//! Several executors of one saga: attaching, taking over, recovery, and late writes of an old one.
use std::{cell::Cell, future::pending, time::Duration};

use steadfast::{
    saga::{SagaError, SagaEvent as Event, SagaOutcome, SagaPhase, StepState},
    store::{Key, Store},
    testing::{drop_at_every_await, faults::FaultConfig},
};

use crate::saga::world::{Answer, S, World, completed, state, told};

const ALL: [&str; 4] = ["seat", "room", "charge", "mail"];

// Guarantee: saga 7.
#[test]
fn a_second_run_waits_for_the_first_and_runs_no_action() {
    let world = World::new();
    let (node, other) = (world.node("a", world.trip()), world.node("b", world.trip()));
    world.services.answer("room", [Answer::Takes(S(29)), Answer::Takes(S(29))]);
    let later = async |node: &crate::saga::world::Node| {
        world.clock.sleep(S(1)).await;
        node.run("42").await.unwrap()
    };
    let (ran, here, there) = world.block_on(async { tokio::join!(node.run("42"), later(&node), later(&other)) });
    assert_eq!([ran.unwrap(), here, there], [completed(&ALL), completed(&ALL), completed(&ALL)]);
    assert_eq!(world.services.log(), "seat room charge mail");
    // The one in the same process is told, the other one looks now and then.
    assert!(world.requests() < 22, "{}", world.requests());
}

// Guarantee: saga 7.
#[test]
fn a_saga_is_taken_over_only_when_its_record_has_not_changed_for_the_configured_time_beyond_its_delay() {
    for (answer, least) in [(Answer::Hangs, 60), (Answer::Refused(S(1000)), 1060), (Answer::Refused(S(4)), 64)] {
        let world = World::new();
        let (node, other) = (world.node("a", world.trip()), world.node("b", world.trip()));
        world.services.answer("room", [answer]);
        assert!(world.within(S(2), node.run("42")).is_none());
        let began = world.clock.now();
        let mut events = other.saga.events();
        assert_eq!(world.block_on(other.run("42")).unwrap(), completed(&ALL));
        let waited = world.clock.now() - began;
        assert!(waited >= S(least) && waited <= S(least + 6), "{waited:?}");
        let taken = |event: &Event| matches!(event, Event::TakenOver { epoch, .. } if epoch.as_u64() == 2);
        assert!(told(&world, &mut events).iter().any(taken));
        assert_eq!(world.services.log(), "seat room room charge mail");
    }
}

// Guarantee: saga 7.
#[test]
fn a_saga_that_advances_is_not_taken_over_however_long_it_takes() {
    let world = World::new();
    let (node, other) = (world.node("a", world.trip()), world.node("b", world.trip()));
    world.services.answer("room", vec![Answer::Refused(S(200)); 10]);
    world.services.answer("charge", vec![Answer::Pending(S(4)); 100]);
    let (one, two) = world.block_on(async { tokio::join!(node.run("42"), other.run("42")) });
    assert_eq!((one.unwrap(), two.unwrap()), (completed(&ALL), completed(&ALL)));
    assert!(world.services.calls().iter().all(|call| call.token.as_u64() == 1));
}

// Guarantee: saga 7.
#[test]
fn the_component_whose_run_was_dropped_continues_at_once() {
    let world = World::new();
    let node = world.node("a", world.trip());
    world.services.answer("room", [Answer::Hangs]);
    assert!(world.within(S(2), node.run("42")).is_none());
    let began = world.clock.now();
    assert_eq!(world.block_on(node.run("42")).unwrap(), completed(&ALL));
    assert_eq!(world.clock.now(), began);
    assert_eq!(world.services.log(), "seat room room charge mail");
}

// Guarantee: saga 3, 7.
#[test]
fn resume_takes_a_saga_over_at_once_and_with_the_write_that_starts_the_attempt() {
    let world = World::new();
    let (node, other) = (world.node("a", world.trip()), world.node("b", world.trip()));
    world.services.answer("room", [Answer::Hangs]);
    assert!(world.within(S(2), node.run("42")).is_none());
    let (began, before) = (world.clock.now(), world.requests());
    assert_eq!(world.block_on(other.saga.resume("42")).unwrap(), completed(&ALL));
    // A read, the claim, three steps.
    assert_eq!((world.clock.now(), world.requests() - before), (began, 5));
    assert_eq!(world.block_on(other.saga.resume("42")).unwrap(), completed(&ALL), "its result");
    assert!(matches!(world.block_on(other.saga.resume("43")), Err(SagaError::NotFound)));
}

// Guarantee: saga 8.
#[test]
fn an_executor_that_was_paused_writes_nothing_and_starts_no_step_after_another_took_over() {
    let world = World::new();
    let (node, other) = (world.node("a", world.trip()), world.node("b", world.trip()));
    let mut events = node.saga.events();
    // The answer comes while the process is cut off from the store.
    world.services.answer("room", [Answer::Takes(S(10))]);
    let (paused, taken) = world.block_on(async {
        let meanwhile = async {
            world.clock.sleep(S(5)).await;
            node.client.pause();
            let taken = other.saga.resume("42").await;
            node.client.resume();
            taken
        };
        tokio::join!(node.run("42"), meanwhile)
    });
    // The run attaches, and returns the same result.
    assert_eq!((paused.unwrap(), taken.unwrap()), (completed(&ALL), completed(&ALL)));
    let by = |token| world.services.calls().iter().filter(|call| call.token.as_u64() == token).count();
    assert_eq!((by(1), by(2)), (2, 3), "{}", world.services.log());
    assert!(told(&world, &mut events).contains(&Event::Superseded { id: "42".to_owned() }));
}

// Guarantee: saga 7.
#[test]
fn recovery_runs_stalled_sagas_and_leaves_those_that_run() {
    let world = World::new();
    let (node, other) = (world.node("a", world.trip()), world.node("b", world.trip()));
    world.services.answer("seat", vec![Answer::Hangs; 3]);
    for id in ["1", "2", "3"] {
        assert!(world.within(S(1), node.run(id)).is_none());
    }
    // It runs for long in the process that recovers, and in another one.
    world.services.answer("seat", [Answer::Takes(S(28)), Answer::Takes(S(28))]);
    world.services.answer("room", [Answer::Refused(S(300)), Answer::Refused(S(300))]);
    let (own, theirs) = world.block_on(async {
        let runs = async { tokio::join!(other.run("own"), node.run("theirs")) };
        tokio::select! {
            ended = other.saga.recover(pending()) => panic!("{ended:?}"),
            ran = runs => ran,
        }
    });
    assert_eq!((own.unwrap(), theirs.unwrap()), (completed(&ALL), completed(&ALL)));
    assert!(world.rows().iter().all(|row| row.starts_with("r/")), "{:?}", world.rows());
    let again = world.services.calls().iter().filter(|call| call.token.as_u64() > 1).count();
    assert_eq!(again, 3 * 4, "the stalled ones once each, the others by their executors alone");
}

// Guarantee: saga 7, 11.
#[test]
fn an_unreadable_record_does_not_stop_the_recovery_and_is_reported_once() {
    let world = World::new();
    let node = world.node("a", world.trip());
    world.services.answer("seat", vec![Answer::Hangs; 3]);
    for id in ["1", "2", "3"] {
        assert!(world.within(S(1), node.run(id)).is_none());
    }
    world.edit("r/1", "saga 1", "saga 9");
    world.edit("r/2", "step", "stop");
    let other = world.node("b", world.trip());
    let mut events = other.saga.events();
    assert!(world.within(S(600), other.saga.recover(pending())).is_none());
    assert_eq!(world.block_on(other.saga.read("3")).unwrap().unwrap().phase, SagaPhase::Completed);
    let told: Vec<_> =
        told(&world, &mut events).into_iter().filter(|event| matches!(event, Event::Incompatible { .. })).collect();
    let unreadable = |id: &str, reason: &str| Event::Incompatible { id: id.to_owned(), reason: reason.to_owned() };
    let newer = unreadable("1", "the record was written by a newer release");
    assert_eq!(told, [newer, unreadable("2", "the record is damaged")]);
    assert!(world.row("r/1").unwrap().starts_with("saga 9"), "it is left as it is");
}

#[test]
fn a_recovered_saga_that_waits_is_released_and_woken_by_any_process() {
    let world = World::new();
    let (node, other, third) =
        (world.node("a", world.trip()), world.node("b", world.trip()), world.node("c", world.trip()));
    world.services.answer("seat", [Answer::Hangs]);
    assert!(world.within(S(1), node.run("42")).is_none());
    world.services.answer("seat", [Answer::Refused(S(1000))]);
    world.block_on(async {
        tokio::select! {
            _ = other.saga.recover(pending()) => {}
            () = world.clock.sleep(S(200)) => {}
        }
    });
    let status = world.block_on(third.saga.read("42")).unwrap().unwrap();
    assert_eq!((status.is_owned, status.steps[0].state), (false, StepState::Waiting));
    // Another process takes it when its delay is over, without the time for stalled ones.
    let began = world.clock.now();
    assert_eq!(world.block_on(third.run("42")).unwrap(), completed(&ALL));
    assert!(world.clock.now() - began <= S(1005), "{:?}", world.clock.now() - began);
    // One that was released is cancelled at once.
    world.services.answer("seat", [Answer::Hangs]);
    assert!(world.within(S(1), node.run("43")).is_none());
    world.services.answer("seat", [Answer::Refused(S(1000))]);
    assert!(world.within(S(200), other.saga.recover(pending())).is_none());
    let began = world.clock.now();
    assert!(matches!(world.block_on(third.saga.cancel("43", "no")), Ok(SagaOutcome::Compensated { .. })));
    assert_eq!(world.clock.now(), began);
}

#[test]
fn a_recovery_that_ends_waits_for_the_attempts_under_way_and_releases_the_sagas() {
    let world = World::new();
    let (node, other) = (world.node("a", world.trip()), world.node("b", world.trip()));
    world.services.answer("seat", [Answer::Hangs]);
    assert!(world.within(S(1), node.run("42")).is_none());
    world.services.answer("seat", [Answer::Takes(S(20))]);
    // Taken over after 60 s; told to end during the attempt.
    world.block_on(other.saga.recover(world.clock.sleep(S(70)))).unwrap();
    assert_eq!((world.services.log().as_str(), other.saga.running()), ("seat seat", 0));
    let status = world.block_on(node.saga.read("42")).unwrap().unwrap();
    assert_eq!((status.is_owned, status.steps[0].state, status.steps[1].attempts), (false, StepState::Completed, 0));
    let began = world.clock.now();
    assert!(world.within(S(31), node.saga.recover(pending())).is_none());
    assert_eq!(world.block_on(node.saga.resume("42")).unwrap(), completed(&ALL));
    assert!(world.clock.now() - began < S(32) && world.services.log() == "seat seat room charge mail");
}

// Guarantee: saga 9.
#[test]
fn one_id_is_one_saga_while_its_record_is_kept() {
    let world = World::new();
    let (node, other) = (world.node("a", world.trip()), world.node("b", world.trip()));
    world.block_on(node.run("42")).unwrap();
    let before = world.requests();
    world.time.advance(S(7 * 24 * 3600 - 1));
    assert_eq!(world.block_on(other.run("42")).unwrap(), completed(&ALL));
    assert_eq!((world.services.calls().len(), world.requests() - before), (4, 2));
    let mismatch = world.block_on(other.saga.run("42", state(&["another"])));
    assert!(matches!(mismatch, Err(SagaError::InputMismatch)));
    world.time.advance(S(1));
    world.block_on(node.run("42")).unwrap();
    assert_eq!(world.services.calls().len(), 8);
}

#[test]
fn a_run_that_is_dropped_at_any_await_is_continued_by_the_next_one() {
    let world = World::new();
    let (node, runs) = (world.node("a", world.trip()), Cell::new(0));
    slow_down(&world);
    let polls = drop_at_every_await(
        &world.time,
        || {
            runs.set(runs.get() + 1);
            for step in ALL {
                world.services.answer(step, [Answer::Takes(S(1))]);
            }
            let id = runs.get().to_string();
            let saga = node.saga.clone();
            async move { saga.run(&id, state(&[])).await }
        },
        |_| {
            assert_eq!(node.saga.running(), 0);
            assert_eq!(world.block_on(node.run(&runs.get().to_string())).unwrap(), completed(&ALL));
        },
    );
    assert!(polls >= 5, "{polls}");
}

#[test]
fn recover_cancel_and_retry_that_are_dropped_at_any_await_leave_a_saga_that_can_go_on() {
    let world = World::new();
    let (node, n) = (world.node("a", world.steps(&["seat", "room"])), Cell::new(0));
    slow_down(&world);
    let id = || n.get().to_string();
    let compensated = |world: &World| {
        let ended = world.block_on(node.saga.cancel(&id(), "no")).unwrap();
        assert!(matches!(ended, SagaOutcome::Compensated { .. }), "{ended:?}");
    };
    let polls = drop_at_every_await(
        &world.time,
        || {
            n.set(n.get() + 1);
            world.block_on(node.run(&id())).unwrap();
            world.services.undo("room", [Answer::Takes(S(1))]);
            world.services.undo("seat", [Answer::Takes(S(1))]);
            let (saga, id) = (node.saga.clone(), id());
            async move { saga.cancel(&id, "no").await }
        },
        |_| compensated(&world),
    );
    assert!(polls >= 3, "{polls}");
    let polls = drop_at_every_await(
        &world.time,
        || {
            n.set(n.get() + 1);
            world.services.undo("seat", vec![Answer::Failed]);
            world.services.answer("room", vec![Answer::Failed]);
            assert!(matches!(world.block_on(node.run(&id())), Ok(SagaOutcome::Stuck { .. })));
            world.services.undo("seat", [Answer::Takes(S(1))]);
            let (saga, id) = (node.saga.clone(), id());
            async move { saga.retry(&id).await }
        },
        |_| {
            // The dropped call was recorded or not.
            let retried = world.block_on(node.saga.retry(&id()));
            assert!(matches!(retried, Ok(_) | Err(SagaError::NotStuck)), "{retried:?}");
            world.block_on(node.saga.resume(&id())).unwrap();
            compensated(&world);
        },
    );
    assert!(polls >= 2, "{polls}");
    let polls = drop_at_every_await(
        &world.time,
        || {
            n.set(n.get() + 1);
            world.services.answer("seat", vec![Answer::Hangs]);
            assert!(world.within(S(1), node.run(&id())).is_none());
            world.services.answer("seat", [Answer::Takes(S(1))]);
            let (saga, end) = (node.saga.clone(), world.clock.sleep(S(3)));
            async move { saga.recover(end).await }
        },
        |_| {
            assert_eq!(node.saga.running(), 0);
            world.block_on(node.saga.resume(&id())).unwrap();
        },
    );
    assert!(polls >= 3, "{polls}");
}

/// Lets each request to the store take time, so that it has await points.
fn slow_down(world: &World) {
    let ms = Duration::from_millis(1);
    world.network.configure(FaultConfig::default().latency(ms, ms)).unwrap();
}

#[test]
fn resume_skip_and_wake_that_are_dropped_at_any_await_leave_a_saga_that_can_go_on() {
    let world = World::new();
    let (node, n) = (world.node("a", world.steps(&["seat", "room"])), Cell::new(0));
    slow_down(&world);
    let id = || n.get().to_string();
    let interrupted = || {
        n.set(n.get() + 1);
        world.services.answer("seat", [Answer::Hangs]);
        assert!(world.within(S(1), node.run(&id())).is_none());
    };
    let done = |polls: usize| {
        assert_eq!(node.saga.running(), 0, "{polls}");
        assert_eq!(world.block_on(node.saga.resume(&id())).unwrap(), completed(&["seat", "room"]));
    };
    let polls = drop_at_every_await(
        &world.time,
        || {
            interrupted();
            let (saga, id) = (node.saga.clone(), id());
            async move { saga.resume(&id).await }
        },
        done,
    );
    assert!(polls >= 5, "{polls}");
    let polls = drop_at_every_await(
        &world.time,
        || {
            interrupted();
            let (saga, id) = (node.saga.clone(), id());
            async move { saga.wake(&id).await }
        },
        done,
    );
    assert!(polls >= 3, "{polls}");
    let polls = drop_at_every_await(
        &world.time,
        || {
            n.set(n.get() + 1);
            world.services.undo("seat", [Answer::Failed]);
            world.services.answer("room", [Answer::Failed]);
            assert!(matches!(world.block_on(node.run(&id())), Ok(SagaOutcome::Stuck { .. })));
            let (saga, id) = (node.saga.clone(), id());
            async move { saga.skip(&id, "seat", "by hand").await }
        },
        |_| {
            let skipped = world.block_on(node.saga.skip(&id(), "seat", "by hand"));
            assert!(matches!(skipped, Ok(_) | Err(SagaError::NotStuck)), "{skipped:?}");
            assert!(matches!(world.block_on(node.saga.resume(&id())), Ok(SagaOutcome::Compensated { .. })));
        },
    );
    assert!(polls >= 3, "{polls}");
}

#[test]
fn an_undo_that_is_dropped_is_recorded_or_not() {
    let world = World::new();
    let node = world.node("a", world.trip());
    let n = Cell::new(0);
    let id = || format!("trip-{}", n.get());
    let polls = drop_at_every_await(
        &world.time,
        || {
            n.set(n.get() + 1);
            world.services.answer("charge", [Answer::Unknown, Answer::Failed]);
            world.services.undo("room", [Answer::Takes(S(1))]);
            world.services.undo("seat", [Answer::Takes(S(1))]);
            assert!(matches!(world.block_on(node.run(&id())), Ok(SagaOutcome::Stuck { .. })));
            let (saga, id) = (node.saga.clone(), id());
            async move { saga.undo(&id, "charge", "no payment").await }
        },
        |_| {
            let undone = world.block_on(node.saga.undo(&id(), "charge", "no payment"));
            assert!(matches!(undone, Ok(_) | Err(SagaError::NotStuck)), "{undone:?}");
            assert!(matches!(world.block_on(node.saga.resume(&id())), Ok(SagaOutcome::Compensated { .. })));
        },
    );
    assert!(polls >= 3, "{polls}");
}

#[test]
fn a_saga_whose_record_was_deleted_stops() {
    let world = World::new();
    let node = world.node("a", world.trip());
    world.services.answer("seat", [Answer::Takes(S(5))]);
    let ran = world.block_on(async {
        let delete = async {
            world.clock.sleep(S(1)).await;
            let _ = world.store.delete(Key::new("saga/trip", "r/42"), Default::default()).await;
        };
        let resumed = async {
            world.clock.sleep(Duration::ZERO).await;
            node.run("42").await
        };
        tokio::join!(resumed, delete).0
    });
    // `run` starts it anew, as if it had never been.
    assert_eq!(ran.unwrap(), completed(&ALL));
    assert_eq!(world.services.log(), "seat seat room charge mail");
}
