//! Replies of the store that are lost after the write was applied, at each request in turn, and signals of callers that
//! reach an executor which another one has superseded.
use std::{collections::BTreeSet, time::Duration};

use steadfast::{
    saga::{AfterPivot, Plan, SagaEvent as Event, SagaOutcome, SagaPhase},
    scheduler::Scheduler,
    store::Write,
    testing::{CrashingProcess, fail_at_every_write},
};

use crate::{
    saga::world::{Answer, Node, S, State, World, completed, told},
    scheduler::world::{World as Scheduled, order},
};

const ALL: [&str; 4] = ["seat", "room", "charge", "mail"];

/// A saga, the answers of its services, its calls and its end.
struct Case {
    plan: fn(&World) -> Plan<State, AfterPivot>,
    answers: &'static [(&'static str, Answer)],
    calls: &'static str,
    phase: SagaPhase,
}

/// Ends after the pivot and before it, with a pivot and a first step that are refused, a step that is tried again, and one
/// that is under way while the result of another one is recorded.
const CASES: [Case; 7] = [
    Case { plan: World::trip, answers: &[], calls: "seat room charge mail", phase: SagaPhase::Completed },
    Case {
        plan: World::trip,
        answers: &[("room", Answer::Failed)],
        calls: "seat room -seat",
        phase: SagaPhase::Compensated,
    },
    Case {
        plan: World::trip,
        answers: &[("charge", Answer::Failed)],
        calls: "seat room charge -room -seat",
        phase: SagaPhase::Compensated,
    },
    Case { plan: World::trip, answers: &[("seat", Answer::Failed)], calls: "seat", phase: SagaPhase::Compensated },
    Case { plan: pivot_first, answers: &[("charge", Answer::Failed)], calls: "charge", phase: SagaPhase::Compensated },
    Case {
        plan: World::trip,
        answers: &[("room", Answer::NotSent), ("charge", Answer::Failed)],
        calls: "seat room room charge -room -seat",
        phase: SagaPhase::Compensated,
    },
    Case {
        plan: together,
        answers: &[("seat", Answer::Takes(Duration::from_secs(5)))],
        calls: "seat room charge",
        phase: SagaPhase::Completed,
    },
];

fn pivot_first(world: &World) -> Plan<State, AfterPivot> {
    Plan::new().pivot("charge", world.calls()).step("mail", world.calls())
}

fn together(world: &World) -> Plan<State, AfterPivot> {
    let call = || world.calls();
    Plan::new().parallel(|plan| plan.step("seat", call()).step("room", call())).pivot("charge", call())
}

impl Case {
    fn world(&self) -> World {
        let world = World::new();
        for (step, answer) in self.answers {
            world.services.answer(step, [answer.clone()]);
        }
        world
    }

    /// Asserts that the saga ended as if no request had failed, under its first owner.
    fn check(&self, world: &World, node: &Node) {
        assert_eq!(world.services.log(), self.calls);
        let status = world.block_on(node.saga.read("42")).unwrap().unwrap();
        assert_eq!((status.phase, status.epoch.as_u64()), (self.phase, 1), "{status:?}");
        let calls = world.services.calls();
        let attempts: BTreeSet<_> = calls.iter().map(|call| (&call.key, call.attempt)).collect();
        assert_eq!(attempts.len(), calls.len(), "an attempt ran twice: {calls:?}");
    }
}

fn node_of(world: &World, process: &CrashingProcess, plan: Plan<State, AfterPivot>) -> Node {
    world.node_over("a", process.store(world.store.clone()), plan)
}

/// Without the recognition of the own write an executor takes the saga over from itself: it repeats the attempt that is
/// under way, and a pivot whose refusal was recorded counts as one that may have taken effect.
// Guarantee: saga 8.
#[test]
fn a_request_that_fails_before_or_after_its_write_repeats_no_action_and_changes_no_end() {
    for case in &CASES {
        let requests = fail_at_every_write(|process| {
            let world = case.world();
            let node = node_of(&world, process, (case.plan)(&world));
            let mut events = node.saga.events();
            let ran = world.block_on(process.run(node.run("42"))).unwrap().unwrap();
            let phase = match ran {
                SagaOutcome::Completed(_) => SagaPhase::Completed,
                SagaOutcome::Compensated { .. } => SagaPhase::Compensated,
                other => panic!("{other:?}"),
            };
            assert_eq!(phase, case.phase);
            case.check(&world, &world.node("b", (case.plan)(&world)));
            let told = told(&world, &mut events);
            let is_taken = |event: &Event| matches!(event, Event::TakenOver { .. } | Event::Superseded { .. });
            assert!(!told.iter().any(is_taken), "{told:?}");
        });
        assert!(requests >= 2, "{requests}");
    }
}

/// The write of a takeover that begins an attempt, and those after it.
// Guarantee: saga 8.
#[test]
fn a_request_of_a_takeover_that_fails_before_or_after_its_write_begins_no_attempt_twice() {
    let requests = fail_at_every_write(|process| {
        let world = World::new();
        let dead = world.node("dead", world.trip());
        world.services.answer("room", [Answer::Hangs]);
        assert!(world.within(S(1), dead.run("42")).is_none());
        let node = node_of(&world, process, world.trip());
        let ran = world.block_on(process.run(node.saga.resume("42"))).unwrap();
        assert_eq!(ran.unwrap(), completed(&ALL));
        let tokens: Vec<_> = world.services.calls().iter().map(|call| call.token.as_u64()).collect();
        assert_eq!((world.services.log().as_str(), &*tokens), ("seat room room charge mail", &[1, 1, 2, 2, 2][..]));
    });
    // A look, the takeover, three steps.
    assert_eq!(requests, 5);
}

/// A scheduler starts and takes over through the same writes.
// Guarantee: saga 8.
// Guarantee: scheduler 1.
#[test]
fn a_request_of_a_scheduled_saga_that_fails_before_or_after_its_write_repeats_no_action() {
    for case in &CASES {
        fail_at_every_write(|process| {
            let world = Scheduled::over(case.world());
            let plan = || (case.plan)(&world.saga);
            let store = process.store(world.saga.store.clone());
            let orders: Scheduler<State> = world.process_on("a", plan(), store, world.queue.clone());
            world.submit(&orders, order("42"));
            world.block_on(process.run(orders.run(world.clock.sleep(S(90))))).unwrap().unwrap();
            case.check(&world.saga, &world.saga.node("b", plan()));
            assert_eq!(world.depths(), (0, 0));
        });
    }
}

/// Rows of a step and of the start go with the write whose reply is lost.
// Guarantee: saga 8, 10.
#[test]
fn rows_are_written_once_though_the_reply_to_their_write_is_lost() {
    fail_at_every_write(|process| {
        let world = World::new();
        for step in ALL {
            world.services.answer(step, [Answer::Writes(vec![Write::append(format!("u/{step}/"), "x")])]);
        }
        let node = node_of(&world, process, world.trip());
        let start = vec![Write::append("u/start/", "x")];
        let ran = world.block_on(process.run(node.saga.run_with_rows("42", State::new(), start))).unwrap();
        assert_eq!(ran.unwrap(), completed(&ALL));
        let rows = world.rows();
        let count = |name: &str| rows.iter().filter(|row| row.starts_with(&format!("u/{name}/"))).count();
        assert_eq!(["start", "seat", "room", "charge", "mail"].map(count), [1; 5], "{rows:?}");
        assert_eq!(world.services.log(), "seat room charge mail");
    });
}

/// An executor that waits for its next attempt, and does not know that another one has taken its saga over. A call in its
/// process then wakes it.
fn superseded() -> (World, Node, Node) {
    let world = World::new();
    let (node, other) = (world.node("a", world.trip()), world.node("b", world.trip()));
    // The first executor waits for long; the attempts of others take their time.
    world.services.answer("room", [Answer::Refused(S(1000)), Answer::Takes(S(20)), Answer::Takes(S(20))]);
    (world, node, other)
}

/// Without the comparison of owner and epoch the woken executor adopts the record of the other one, and runs the attempt
/// that is under way there a second time.
// Guarantee: saga 8.
#[test]
fn an_executor_that_is_woken_after_another_took_over_adopts_nothing() {
    let (world, node, other) = superseded();
    let mut events = node.saga.events();
    let (ran, resumed, ()) = world.block_on(async {
        let resume = async {
            world.clock.sleep(S(5)).await;
            other.saga.resume("42").await
        };
        let wake = async {
            world.clock.sleep(S(10)).await;
            node.saga.wake("42").await.unwrap();
        };
        tokio::join!(node.run("42"), resume, wake)
    });
    assert_eq!((ran.unwrap(), resumed.unwrap()), (completed(&ALL), completed(&ALL)));
    let tokens: Vec<_> = world.services.calls().iter().map(|call| call.token.as_u64()).collect();
    assert_eq!((world.services.log().as_str(), &*tokens), ("seat room room charge mail", &[1, 1, 2, 2, 2][..]));
    assert!(told(&world, &mut events).contains(&Event::Superseded { id: "42".to_owned() }));
    assert_eq!(world.block_on(other.saga.read("42")).unwrap().unwrap().epoch.as_u64(), 2);
}

// Guarantee: saga 8.
#[test]
fn an_executor_that_hears_of_a_cancellation_after_another_took_over_compensates_nothing() {
    let (world, node, other) = superseded();
    world.services.undo("seat", [Answer::Takes(S(20)), Answer::Takes(S(20))]);
    let mut events = node.saga.events();
    let (ran, resumed, cancelled) = world.block_on(async {
        let resume = async {
            world.clock.sleep(S(5)).await;
            other.saga.resume("42").await
        };
        let cancel = async {
            world.clock.sleep(S(10)).await;
            node.saga.cancel("42", "no more").await
        };
        tokio::join!(node.run("42"), resume, cancel)
    });
    for end in [ran, resumed, cancelled] {
        assert!(matches!(end, Ok(SagaOutcome::Compensated { .. })), "{end:?}");
    }
    // The attempt of the second executor is under way when the cancellation comes, and may have an effect.
    let tokens: Vec<_> = world.services.calls().iter().map(|call| call.token.as_u64()).collect();
    assert_eq!((world.services.log().as_str(), &*tokens), ("seat room room -room -seat", &[1, 1, 2, 2, 2][..]));
    assert!(told(&world, &mut events).contains(&Event::Superseded { id: "42".to_owned() }));
}
