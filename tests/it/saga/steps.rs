//! The course of a saga: order, attempts, compensation, stuck sagas, cancellation.
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use steadfast::{
    saga::{
        Plan, Saga, SagaConfig, SagaError, SagaEvent as Event, SagaOutcome, SagaPhase, Step, StepOutcome, StepState,
    },
    store::{PutOptions, Write},
};

use crate::saga::world::{Answer, LARGE, S, State, World, codec, completed, state, told};

// Guarantee: saga 1.
#[test]
fn a_plan_without_steps_with_equal_names_or_with_too_many_steps_is_refused() {
    let world = World::new();
    let refused = |plan: Plan<State>| world.node_with("a", plan, World::config()).err().unwrap().to_string();
    assert_eq!(refused(Plan::new()), "invalid `plan`: must have a step");
    assert_eq!(refused(world.steps(&["seat", "seat"])), "invalid `plan`: must not have two steps of the name `seat`");
    let retired = world.steps(&["seat"]).retired("seat", world.calls());
    assert_eq!(refused(retired), "invalid `plan`: must not have two steps of the name `seat`");
    let names: Vec<_> = (0..256).map(|i| i.to_string()).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    assert_eq!(refused(world.steps(&names)), "invalid `plan`: must have at most 255 steps, retired ones included");
    for name in ["", "a b", "a/b", "a:b", "a\n", &"x".repeat(65)] {
        assert!(
            refused(world.steps(&[name])).starts_with("invalid `plan`: the name of a step must have 1 to 64 bytes")
        );
        let named = Saga::new(name, world.store.clone(), codec(), world.trip(), World::config());
        assert!(named.unwrap_err().to_string().starts_with("invalid `name`: the name of a saga must have"), "{name}");
    }
    assert!(world.node_with("a", world.steps(&names[1..]), World::config()).is_ok());
}

// Guarantee: saga 9.
#[test]
fn an_id_that_is_empty_or_too_long_is_refused() {
    let world = World::new();
    let node = world.node("a", world.trip());
    for id in ["", &"x".repeat(1023)] {
        assert!(matches!(world.block_on(node.run(id)), Err(SagaError::Invalid(_))), "{id}");
        assert!(matches!(world.block_on(node.saga.resume(id)), Err(SagaError::Invalid(_))), "{id}");
    }
    assert_eq!(world.block_on(node.run(&"x".repeat(1022))).unwrap(), completed(&["seat", "room", "charge", "mail"]));
}

#[test]
fn a_saga_completes_with_the_changes_of_all_its_steps() {
    let world = World::new();
    let node = world.node("a", world.trip());
    let mut events = node.saga.events();
    assert_eq!(world.block_on(node.run("42")).unwrap(), completed(&["seat", "room", "charge", "mail"]));
    assert_eq!(world.services.log(), "seat room charge mail");
    let calls = world.services.calls();
    assert_eq!((calls[1].key.as_str(), calls[1].attempt, calls[1].token.as_u64()), ("trip/42/room", 1, 1));
    let id = || "42".to_owned();
    assert_eq!(told(&world, &mut events), [Event::Started { id: id() }, Event::Completed { id: id() }]);
    assert_eq!((world.rows(), node.saga.running()), (vec!["r/42".to_owned()], 0));
}

#[test]
fn steps_of_closures_are_tried_again_compensated_and_write_rows_like_others() {
    let world = World::new();
    let (calls, log) = (Arc::new(AtomicU32::new(0)), Arc::new(Mutex::new(Vec::new())));
    let tells = |word: &'static str| {
        let log = log.clone();
        move |step: &Step<State>| log.lock().unwrap().push(format!("{word} {} {}", step.key(), step.attempt()))
    };
    let (books, cancels, charges) = (tells("book"), tells("cancel"), tells("charge"));
    let plan = Plan::<State>::new()
        .step_fn(
            "seat",
            move |step| {
                books(&step);
                let is_first = calls.fetch_add(1, Ordering::Relaxed) == 0;
                async move {
                    if is_first {
                        return StepOutcome::unknown("no reply");
                    }
                    step.write(Write::put("u/seat", "12A", PutOptions::new()));
                    StepOutcome::changed(|state: &mut State| state.push("seat".to_owned()))
                }
            },
            move |step| {
                cancels(&step);
                async { StepOutcome::completed() }
            },
        )
        .pivot("charge", move |step: Step<State>| {
            charges(&step);
            async move { StepOutcome::failed(format_args!("no money for {:?}", *step)) }
        });
    let node = world.node("a", plan);
    let SagaOutcome::Compensated { step, reason } = world.block_on(node.run("42")).unwrap() else { panic!() };
    assert_eq!((step.as_deref(), reason.as_str()), (Some("charge"), "no money for [\"seat\"]"));
    assert_eq!(
        *log.lock().unwrap(),
        ["book trip/42/seat 1", "book trip/42/seat 2", "charge trip/42/charge 1", "cancel trip/42/seat:undo 1"]
    );
    assert_eq!(world.rows(), ["r/42", "u/seat"]);
}

// Guarantee: saga 2.
#[test]
fn steps_of_a_parallel_group_run_and_are_compensated_together_in_reverse_order() {
    let world = World::new();
    let call = || world.calls();
    let plan = Plan::new()
        .step("visa", call())
        .parallel(|plan| plan.step("seat", call()).step("room", call()).step("car", call()))
        .step("guide", call())
        .step("last", call())
        .compensate_first();
    let node = world.node("a", plan.step("ticket", call()));
    for step in ["seat", "room", "car"] {
        world.services.answer(step, [Answer::Takes(S(3))]);
    }
    world.services.answer("ticket", [Answer::Failed]);
    let began = world.clock.now();
    let step = Some("ticket".to_owned());
    let reason = "sold out".to_owned();
    assert_eq!(world.block_on(node.run("42")).unwrap(), SagaOutcome::Compensated { step, reason });
    assert_eq!(world.services.log(), "visa seat room car guide last ticket -last -guide -seat -room -car -visa");
    assert_eq!((world.services.most(), world.clock.now() - began), (3, S(3)));
    let status = world.block_on(node.saga.read("42")).unwrap().unwrap();
    assert_eq!((status.phase, status.state), (SagaPhase::Compensated, State::new()));
}

// Guarantee: saga 3.
#[test]
fn a_saga_makes_one_request_for_each_step_and_one_more() {
    let world = World::new();
    let names: Vec<_> = (0..7).map(|i| format!("step-{i}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let node = world.node("a", world.steps(&names));
    world.block_on(node.run("42")).unwrap();
    assert_eq!(world.requests(), 8);
    for (failed, name) in names.iter().copied().enumerate() {
        let before = world.requests();
        world.services.answer(name, [Answer::Failed]);
        world.block_on(node.run(&format!("fails at {failed}"))).unwrap();
        assert_eq!(world.requests() - before, 2 * failed as u64 + 2, "{failed}");
    }
}

// Guarantee: saga 4.
#[test]
fn a_step_with_an_unknown_attempt_is_compensated_whatever_later_attempts_returned() {
    for last in [Answer::Failed, Answer::Abandoned] {
        for unknown in [Answer::Unknown, Answer::Panics, Answer::Hangs] {
            let world = World::new();
            let node = world.node("a", world.trip());
            world.services.answer("room", [unknown, last.clone()]);
            assert!(matches!(world.block_on(node.run("42")), Ok(SagaOutcome::Compensated { .. })));
            assert_eq!(world.services.log(), "seat room room -room -seat");
        }
    }
    let world = World::new();
    let node = world.node("a", world.trip());
    world.services.answer("room", [Answer::NotSent, Answer::Refused(S(1)), Answer::Failed]);
    world.block_on(node.run("42")).unwrap();
    assert_eq!(world.services.log(), "seat room room room -seat");
}

#[test]
fn each_attempt_has_the_key_of_its_step_and_a_compensation_one_of_its_own() {
    let world = World::new();
    let node = world.node("a", world.steps(&["seat"]));
    world.services.answer("seat", [Answer::Unknown, Answer::Pending(S(9)), Answer::Failed]);
    world.services.undo("seat", [Answer::Unknown]);
    world.block_on(node.run("42")).unwrap();
    let calls = world.services.calls();
    let shown: Vec<_> = calls.iter().map(|call| (call.key.as_str(), call.attempt)).collect();
    let (action, undo) = ("trip/42/seat", "trip/42/seat:undo");
    assert_eq!(shown, [(action, 1), (action, 2), (action, 2), (undo, 1), (undo, 2)]);
}

#[test]
fn an_attempt_is_repeated_after_growing_delays_and_ends_after_its_time_limit() {
    let world = World::new();
    let node = world.node("a", world.trip());
    let mut events = node.saga.events();
    world.services.answer("seat", [Answer::NotSent, Answer::NotSent, Answer::Hangs, Answer::NotSent]);
    let began = world.clock.now();
    assert!(matches!(world.block_on(node.run("42")), Ok(SagaOutcome::Completed(_))));
    // 1 s, 2 s, 30 s of the attempt that hangs, 4 s, 8 s.
    assert_eq!(world.clock.now() - began, S(45));
    let failed = told(&world, &mut events).into_iter().filter_map(|event| match event {
        Event::AttemptFailed { outcome, reason, retry_in, .. } => Some((outcome, reason, retry_in.unwrap())),
        _ => None,
    });
    let failed: Vec<_> = failed.collect();
    let not_sent = |delay| ("not_sent", "no connection".to_owned(), S(delay));
    let hung = ("unknown", "no outcome within 30s".to_owned(), S(4));
    assert_eq!(failed, [not_sent(1), not_sent(2), hung, not_sent(8)]);
}

#[test]
fn a_step_has_as_many_attempts_as_configured_and_refusals_are_none() {
    let world = World::new();
    let node = world.node("a", world.trip());
    let refused = [const { Answer::Refused(Duration::from_secs(30)) }; 20];
    world.services.answer("room", refused.into_iter().chain(vec![Answer::NotSent; 8]));
    assert!(matches!(world.block_on(node.run("42")), Ok(SagaOutcome::Compensated { .. })));
    assert_eq!(world.services.log(), format!("seat {}-seat", "room ".repeat(28)));
}

// Guarantee: saga 5.
#[test]
fn a_step_that_kills_its_process_each_time_is_compensated_and_not_started_again() {
    let world = World::new();
    world.services.answer("room", vec![Answer::Hangs; 8]);
    for death in 1..=8 {
        let node = world.node(&format!("node-{death}"), world.trip());
        // Each process dies during the attempt; the next one resumes.
        let ran =
            if death == 1 { world.within(S(5), node.run("42")) } else { world.within(S(5), node.saga.resume("42")) };
        assert!(ran.is_none());
    }
    let node = world.node("last", world.trip());
    assert!(matches!(world.block_on(node.saga.resume("42")), Ok(SagaOutcome::Compensated { .. })));
    assert_eq!(world.services.log(), format!("seat {}-room -seat", "room ".repeat(8)));
    let tokens: Vec<_> = world.services.calls().iter().map(|call| call.token.as_u64()).collect();
    assert_eq!(tokens, [1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9]);
}

// Guarantee: saga 6.
#[test]
fn a_pivot_that_surely_had_no_effect_leads_back_and_any_other_final_failure_is_stuck() {
    let ran = |step: &str, answers: Vec<Answer>| {
        let world = World::new();
        let node = world.node("a", world.trip());
        world.services.answer(step, answers);
        let outcome = world.block_on(node.run("42")).unwrap();
        (outcome, world.services.log())
    };
    let (outcome, log) = ran("charge", vec![Answer::NotSent, Answer::Failed]);
    assert!(matches!(outcome, SagaOutcome::Compensated { step: Some(step), .. } if step == "charge"));
    assert_eq!(log, "seat room charge charge -room -seat");
    for answers in [vec![Answer::Unknown, Answer::Failed], vec![Answer::Abandoned], vec![Answer::Unknown; 8]] {
        let (outcome, log) = ran("charge", answers);
        assert!(matches!(outcome, SagaOutcome::Stuck { step, .. } if step == "charge"));
        assert!(!log.contains('-'), "{log}");
    }
    let (outcome, log) = ran("mail", vec![Answer::Failed]);
    assert_eq!(outcome, SagaOutcome::Stuck { step: "mail".to_owned(), reason: "sold out".to_owned() });
    assert_eq!(log, "seat room charge mail");
}

// Guarantee: saga 6.
#[test]
fn a_stuck_compensation_is_an_event_and_is_retried_or_skipped() {
    let stuck = || {
        let world = World::new();
        let node = world.node("a", world.trip());
        let mut events = node.saga.events();
        world.services.answer("charge", [Answer::Failed]);
        world.services.undo("room", vec![Answer::Unknown; 20]);
        let outcome = world.block_on(node.run("42")).unwrap();
        assert_eq!(outcome, SagaOutcome::Stuck { step: "room".to_owned(), reason: "no reply".to_owned() });
        let (id, step, reason) = ("42".to_owned(), "room".to_owned(), "no reply".to_owned());
        let stuck = Event::Stuck { id, step, compensates: true, reason, attempts: 20 };
        assert_eq!(told(&world, &mut events).last(), Some(&stuck));
        (world, node)
    };
    let compensated = |outcome| {
        let (step, reason) = (Some("charge".to_owned()), "sold out".to_owned());
        assert_eq!(outcome, SagaOutcome::Compensated { step, reason });
    };
    let (world, node) = stuck();
    // It is kept, listed, and `run` returns it, however long ago it was.
    world.time.advance(S(100 * 24 * 3600));
    assert!(matches!(world.block_on(node.run("42")), Ok(SagaOutcome::Stuck { .. })));
    assert_eq!(world.block_on(node.saga.list_open()).unwrap(), [("42".to_owned(), true)]);
    let before = world.services.calls().len();
    world.services.undo("room", [Answer::Unknown]);
    compensated(world.block_on(node.saga.retry("42")).unwrap());
    let calls = world.services.calls();
    let attempts: Vec<_> = calls[before..].iter().map(|call| (call.name.as_str(), call.attempt)).collect();
    assert_eq!(attempts, [("room", 1), ("room", 2), ("seat", 1)]);
    assert!(matches!(world.block_on(node.saga.retry("42")), Err(SagaError::NotStuck)));
    assert_eq!(world.block_on(node.saga.list_open()).unwrap(), []);

    let (world, node) = stuck();
    let calls = world.services.calls().len();
    for step in ["seat", "nothing"] {
        assert!(matches!(world.block_on(node.saga.skip("42", step, "by hand")), Err(SagaError::NotStuck)));
    }
    compensated(world.block_on(node.saga.skip("42", "room", "called the hotel")).unwrap());
    assert_eq!(world.services.calls().len(), calls + 1, "only the seat");
    let status = world.block_on(node.saga.read("42")).unwrap().unwrap();
    assert_eq!((status.steps[1].state, status.steps[1].note.as_str()), (StepState::Skipped, "called the hotel"));
    assert!(matches!(world.block_on(node.saga.retry("43")), Err(SagaError::NotFound)));
}

// Guarantee: saga 6.
#[test]
fn a_saga_that_is_stuck_at_a_pivot_without_effect_is_compensated_when_that_is_undone() {
    let world = World::new();
    let node = world.node("a", world.trip());
    world.services.answer("charge", [Answer::Unknown, Answer::Failed]);
    assert!(matches!(world.block_on(node.run("42")), Ok(SagaOutcome::Stuck { step, .. }) if step == "charge"));
    assert!(matches!(world.block_on(node.saga.undo("42", "seat", "-")), Err(SagaError::NotStuck)));
    let other = world.node("b", world.trip());
    let ended = world.block_on(other.saga.undo("42", "charge", "the bank has no payment")).unwrap();
    assert!(matches!(ended, SagaOutcome::Compensated { step, .. } if step.as_deref() == Some("charge")));
    assert_eq!(world.services.log(), "seat room charge charge -room -seat");
    let status = world.block_on(other.saga.read("42")).unwrap().unwrap();
    assert_eq!(status.steps[2].note, "the bank has no payment");
    assert!(matches!(world.block_on(node.saga.undo("42", "charge", "-")), Err(SagaError::NotStuck)));

    // A step past a pivot that took effect cannot be undone, and stays as it is.
    let world = World::new();
    let node = world.node("a", world.trip());
    world.services.answer("mail", [Answer::Failed]);
    assert!(matches!(world.block_on(node.run("42")), Ok(SagaOutcome::Stuck { .. })));
    assert!(matches!(world.block_on(node.saga.undo("42", "mail", "-")), Err(SagaError::NotStuck)));
    assert!(matches!(world.block_on(node.saga.skip("42", "mail", "phoned")), Ok(SagaOutcome::Completed(_))));
}

#[test]
fn a_saga_that_is_stuck_after_its_pivot_goes_on_when_the_step_is_retried_or_skipped() {
    for skips in [false, true] {
        let world = World::new();
        let node = world.node("a", world.trip().step("survey", world.calls()));
        world.services.answer("mail", [Answer::Failed]);
        assert!(matches!(world.block_on(node.run("42")), Ok(SagaOutcome::Stuck { .. })));
        let (ended, effects) = if skips {
            (world.block_on(node.saga.skip("42", "mail", "phoned")), vec!["seat", "room", "charge", "survey"])
        } else {
            (world.block_on(node.saga.retry("42")), vec!["seat", "room", "charge", "mail", "survey"])
        };
        assert_eq!(ended.unwrap(), completed(&effects));
    }
}

// Guarantee: saga 12.
#[test]
fn a_running_saga_is_cancelled_from_its_next_step_boundary() {
    let world = World::new();
    let (node, other) = (world.node("a", world.trip()), world.node("b", world.trip()));
    for canceller in [&node, &other] {
        let before = world.services.calls().len();
        world.services.answer("room", [Answer::Takes(S(10))]);
        let id = format!("by {:?}", canceller.client.name());
        let cancelled = || SagaOutcome::Compensated { step: None, reason: "no money".to_owned() };
        let (ran, stopped) = world.block_on(async {
            let cancel = async {
                world.clock.sleep(S(5)).await;
                canceller.saga.cancel(&id, "no money").await
            };
            tokio::join!(node.run(&id), cancel)
        });
        assert_eq!((ran.unwrap(), stopped.unwrap()), (cancelled(), cancelled()));
        let calls = world.services.calls()[before..]
            .iter()
            .map(|call| (call.name.clone(), call.compensates))
            .collect::<Vec<_>>();
        let call = |name: &str, undoes| (name.to_owned(), undoes);
        assert_eq!(calls, [call("seat", false), call("room", false), call("room", true), call("seat", true)]);
    }
}

// Guarantee: saga 12.
#[test]
fn a_saga_that_waits_is_cancelled_at_once_in_its_own_process() {
    let world = World::new();
    let node = world.node("a", world.trip());
    world.services.answer("charge", [Answer::Refused(S(3600))]);
    let began = world.clock.now();
    let (ran, _) = world.block_on(async {
        let cancel = async {
            world.clock.sleep(S(5)).await;
            node.saga.cancel("42", "no money").await
        };
        tokio::join!(node.run("42"), cancel)
    });
    assert!(matches!(ran, Ok(SagaOutcome::Compensated { step: None, .. })));
    assert_eq!(world.services.log(), "seat room charge -room -seat");
    assert!(world.clock.now() - began < S(6));
}

// Guarantee: saga 12.
#[test]
fn a_completed_saga_is_cancelled_while_its_record_is_kept_and_none_past_its_pivot() {
    let world = World::new();
    let node = world.node("a", world.steps(&["seat", "room"]));
    world.block_on(node.run("42")).unwrap();
    world.time.advance(S(6 * 24 * 3600));
    let reason = || "the trip is off".to_owned();
    let cancelled = SagaOutcome::Compensated { step: None, reason: reason() };
    for _ in 0..2 {
        assert_eq!(world.block_on(node.saga.cancel("42", &reason())).unwrap(), cancelled);
    }
    assert_eq!(world.services.log(), "seat room -room -seat");
    // The compensated record is kept for as long again, and no longer.
    world.time.advance(S(7 * 24 * 3600 - 1));
    assert_eq!(world.block_on(node.run("42")).unwrap(), cancelled);
    world.time.advance(S(1));
    assert!(matches!(world.block_on(node.saga.cancel("42", &reason())), Err(SagaError::NotFound)));
    assert_eq!(world.rows(), Vec::<String>::new());

    let world = World::new();
    let node = world.node("a", world.trip());
    world.block_on(node.run("42")).unwrap();
    assert!(matches!(world.block_on(node.saga.cancel("42", "late")), Err(SagaError::PastPivot)));
    // While the pivot is under way, and also if its outcome is unknown.
    world.services.answer("charge", [Answer::Unknown, Answer::Takes(S(10))]);
    let (ran, cancelled) = world.block_on(async {
        let cancel = async {
            world.clock.sleep(S(5)).await;
            node.saga.cancel("43", "late").await
        };
        tokio::join!(node.run("43"), cancel)
    });
    assert!(matches!((ran, cancelled), (Ok(SagaOutcome::Completed(_)), Err(SagaError::PastPivot))));
}

// Guarantee: saga 12.
#[test]
fn a_state_that_cannot_be_stored_compensates_the_saga_with_the_step_that_made_it() {
    for answer in [Answer::Unstorable, Answer::BadChange] {
        let world = World::new();
        let node = world.node("a", world.trip());
        world.services.answer("room", [answer.clone()]);
        let outcome = world.block_on(node.run("42")).unwrap();
        assert!(matches!(&outcome, SagaOutcome::Compensated { step: Some(step), .. } if step == "room"), "{outcome:?}");
        assert_eq!(world.services.log(), "seat room -room -seat");
    }
    let world = World::new();
    let node = world.node("a", world.trip());
    let large = node.saga.run("42", state(&["x".repeat(LARGE).as_str()]));
    assert!(matches!(world.block_on(large), Err(SagaError::Invalid(_))));
    assert_eq!(world.rows(), Vec::<String>::new());
}

#[test]
fn a_saga_that_waits_for_a_decision_goes_on_when_it_is_woken() {
    let world = World::new();
    let node = world.node("a", world.trip());
    let day = S(24 * 3600);
    world.services.answer("room", [Answer::Pending(day), Answer::Completed]);
    let began = world.clock.now();
    let (ran, woken) = world.block_on(async {
        let wake = async {
            world.clock.sleep(S(600)).await;
            let status = node.saga.read("42").await?.unwrap();
            assert_eq!((status.phase, status.steps[1].state), (SagaPhase::Forward, StepState::Waiting));
            assert!(status.steps[1].is_unknown && status.steps[1].wait == day && status.is_owned);
            node.saga.wake("42").await
        };
        tokio::join!(node.run("42"), wake)
    });
    assert!(matches!((ran, woken), (Ok(SagaOutcome::Completed(_)), Ok(()))));
    assert_eq!(world.clock.now() - began, S(600));
    assert!(matches!(world.block_on(node.saga.wake("43")), Err(SagaError::NotFound)));
    assert_eq!(world.block_on(node.saga.read("43")).unwrap(), None);
}

#[test]
fn a_wake_that_comes_before_the_delay_is_written_skips_it() {
    let world = World::new();
    let node = world.node("a", world.trip());
    let other = world.node("b", world.trip());
    world.services.answer("room", [Answer::Pending(S(3600)), Answer::Completed]);
    world.services.answer("seat", [Answer::Takes(S(2))]);
    let began = world.clock.now();
    let (ran, woken) = world.block_on(async {
        let wake = async {
            world.clock.sleep(S(1)).await;
            other.saga.wake("42").await
        };
        tokio::join!(node.run("42"), wake)
    });
    assert!(matches!((ran, woken), (Ok(SagaOutcome::Completed(_)), Ok(()))));
    assert_eq!(world.clock.now() - began, S(2));
}

#[test]
fn settings_that_let_a_living_executor_be_taken_over_are_refused() {
    let world = World::new();
    let refused = |config: SagaConfig| world.node_with("a", world.trip(), config).err().map(|e| e.field().to_owned());
    let config = SagaConfig::default();
    assert_eq!(refused(config.takeover_after(S(40))).as_deref(), Some("takeover_after"));
    assert_eq!(refused(config.takeover_after(S(41))), None);
    assert_eq!(refused(config.step_timeout(S(50))).as_deref(), Some("takeover_after"));
    assert_eq!(refused(config.retention(S(0))).as_deref(), Some("retention"));
}
