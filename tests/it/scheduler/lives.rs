//! The life of a submission: started once, resumed after a crash, delayed, late, woken, supervised.
use std::{future::pending, sync::Arc};

use steadfast::{
    entropy::Entropy,
    port::{Failure, PortErrorKind},
    queue::{InMemoryQueue, Message, QueueExt},
    saga::{Plan, Saga, SagaConfig, SagaPhase, Step, StepOutcome, StepState},
    scheduler::{Scheduler, SchedulerConfig, SchedulerEvent as Event, Submission},
    store::{Precondition, Write},
};

use crate::{
    saga::world::{Answer, S, State, codec},
    scheduler::world::{World, order},
};

const ALL: &str = "seat room charge mail";

fn phase(world: &World, orders: &Scheduler<State>, id: &str) -> Option<SagaPhase> {
    world.block_on(orders.read(id)).unwrap().map(|status| status.phase)
}

// Guarantee: scheduler 1.
#[test]
fn a_submission_is_run_once_however_often_it_is_submitted() {
    let world = World::new();
    let (orders, other) = (world.process("a", world.saga.trip()), world.process("b", world.saga.trip()));
    world.submit(&orders, order("42"));
    world.submit(&other, order("42"));
    assert_eq!((world.depths(), phase(&world, &orders, "42")), ((1, 0), None));
    world.run(&[&orders, &other], S(60));
    assert_eq!((world.saga.services.log().as_str(), world.depths()), (ALL, (0, 0)));
    assert_eq!(phase(&world, &other, "42"), Some(SagaPhase::Completed));
    // After the queue has forgotten the id.
    world.saga.time.advance(S(24 * 3600));
    world.submit(&orders, order("42"));
    world.run(&[&orders], S(60));
    assert_eq!((world.saga.services.log().as_str(), world.depths()), (ALL, (0, 0)));
}

// Guarantee: scheduler 1.
#[test]
fn a_full_queue_and_an_invalid_id_refuse_a_submission() {
    let world = World::new();
    let queue = Arc::new(InMemoryQueue::builder("orders").bounded(1).clock(&world.clock).build());
    let orders = world.process_on("a", world.saga.trip(), world.saga.store.clone(), queue);
    world.submit(&orders, order("1"));
    let kind = |id: &str| {
        let refused = world.block_on(orders.submit(order(id))).unwrap_err();
        refused.backend().unwrap().kind()
    };
    assert_eq!((kind("2"), kind("")), (PortErrorKind::Full, PortErrorKind::Invalid));
}

// Guarantee: scheduler 1.
#[test]
fn a_saga_whose_process_dies_goes_on_when_its_message_comes_back() {
    let world = World::new();
    let (orders, other) = (world.process("a", world.saga.trip()), world.process("b", world.saga.trip()));
    world.submit(&orders, order("42"));
    world.saga.services.answer("room", [Answer::Hangs]);
    world.kill_after(&orders, S(5));
    let began = world.clock.now();
    world.run(&[&other], S(32));
    assert_eq!(phase(&world, &other, "42"), Some(SagaPhase::Completed));
    assert_eq!(world.saga.services.log(), "seat room room charge mail");
    assert!(world.clock.now() - began < S(61), "the lease, not the time after which sagas are stalled");
}

// Guarantee: scheduler 1.
#[test]
fn a_second_message_for_a_saga_that_runs_has_no_effect() {
    let world = World::new();
    let (orders, other) = (world.process("a", world.saga.trip()), world.process("b", world.saga.trip()));
    world.submit(&orders, order("42"));
    world.saga.services.answer("room", [Answer::Takes(S(25))]);
    world.block_on(async {
        let second = async {
            world.clock.sleep(S(5)).await;
            // Of the same id, without de-duplication, as after its window.
            let mut message = world.queue.peek(1).await.unwrap().remove(0);
            message.headers.remove("none");
            let again = message.headers.into_iter().fold(Message::new(message.body), |m, (k, v)| m.header(k, v));
            world.queue.send_one(again).await.unwrap();
            other.run(world.clock.sleep(S(10))).await.unwrap();
        };
        let (ran, ()) = tokio::join!(orders.run(world.clock.sleep(S(40))), second);
        ran.unwrap();
    });
    assert_eq!((world.saga.services.log().as_str(), world.depths()), (ALL, (0, 0)));
}

#[test]
fn a_shutdown_releases_sagas_at_their_next_step_and_another_process_goes_on_at_once() {
    let world = World::new();
    let (orders, other) = (world.process("a", world.saga.trip()), world.process("b", world.saga.trip()));
    world.submit(&orders, order("42"));
    world.saga.services.answer("room", [Answer::Takes(S(20))]);
    world.run(&[&orders], S(5));
    let status = world.block_on(other.read("42")).unwrap().unwrap();
    assert_eq!((status.is_owned, status.steps[1].state), (false, StepState::Completed));
    world.run(&[&other], S(3));
    assert_eq!((world.saga.services.log().as_str(), world.depths()), (ALL, (0, 0)));
}

/// A longer time limit of the steps did not reach the listener, which dropped the step at the end of the shorter one.
#[test]
fn a_shutdown_waits_for_a_step_as_long_as_the_settings_of_the_saga_say_by_then() {
    let world = World::new();
    let orders = world.process("a", world.saga.trip());
    world.submit(&orders, order("42"));
    world.saga.services.answer("seat", [Answer::Takes(S(10))]);
    world.saga.services.answer("room", [Answer::Takes(S(100))]);
    let began = world.clock.now();
    world.block_on(async {
        let change = async {
            world.clock.sleep(S(5)).await;
            let saga = orders.saga();
            saga.reconfigure(saga.config().step_timeout(S(200)).takeover_after(S(300))).unwrap();
        };
        let (ran, ()) = tokio::join!(orders.run(world.clock.sleep(S(15))), change);
        ran.unwrap();
    });
    let status = world.block_on(orders.read("42")).unwrap().unwrap();
    assert_eq!((world.saga.services.log().as_str(), status.is_owned), ("seat room", false));
    assert!((S(109)..S(115)).contains(&(world.clock.now() - began)), "{:?}", world.clock.now() - began);
}

#[test]
fn a_shutdown_shortens_no_delay() {
    let world = World::new();
    let (orders, other) = (world.process("a", world.saga.trip()), world.process("b", world.saga.trip()));
    world.submit(&orders, order("42"));
    // The answer comes when the process is told to stop.
    world.saga.services.answer("seat", [Answer::Takes(S(10)), Answer::Completed]);
    world.saga.services.answer("room", [Answer::Refused(S(1000))]);
    world.run(&[&orders], S(11));
    world.run(&[&orders], S(1));
    let began = world.clock.now();
    world.run(&[&other], S(900));
    assert_eq!(world.saga.services.log(), "seat room", "{:?}", world.clock.now() - began);
    world.run(&[&other], S(200));
    assert_eq!(phase(&world, &orders, "42"), Some(SagaPhase::Completed));
}

// Guarantee: scheduler 2.
#[test]
fn the_rows_of_an_order_are_written_with_its_start() {
    let world = World::new();
    let saga = Saga::builder("trip", world.saga.store.clone(), codec(), world.saga.trip(), SagaConfig::default());
    let saga = saga.clock(&world.clock).build().unwrap();
    let orders = Scheduler::builder(saga, world.queue.clone(), World::config())
        .clock(&world.clock)
        .rows(|id, state: &State| vec![Write::put(format!("u/{id}"), state.join(" "), Precondition::Absent)])
        .build()
        .unwrap();
    world.submit(&orders, Submission::new("42", vec!["two books".to_owned()]));
    world.run(&[&orders], S(5));
    assert_eq!(world.saga.row("u/42").as_deref(), Some("two books"));
    // A row that is there refuses the start for good.
    world
        .block_on(world.saga.store.put(steadfast::store::Key::new("saga/trip", "u/43"), "x".into(), Default::default()))
        .unwrap();
    world.submit(&orders, order("43"));
    world.run(&[&orders], S(5));
    assert_eq!((phase(&world, &orders, "43"), world.depths()), (None, (0, 1)));
}

// Guarantee: scheduler 2.
#[test]
fn a_message_that_cannot_be_decoded_becomes_a_dead_letter_at_once() {
    let world = World::new();
    let orders = world.process("a", world.saga.trip());
    let mut events = orders.events();
    world.submit(&orders, order("42"));
    let peeked = world.block_on(world.queue.peek(1)).unwrap().remove(0);
    world.block_on(world.queue.purge()).unwrap();
    let broken = peeked.headers.into_iter().fold(Message::new("{"), |m, (k, v)| m.header(k, v));
    world.block_on(world.queue.send(vec![broken, Message::new("not an order")])).unwrap();
    world.run(&[&orders], S(5));
    assert_eq!(world.depths(), (0, 2));
    let dead = world.block_on(world.queue.dead_letters().unwrap().peek(2)).unwrap();
    let reasons: Vec<_> = dead.iter().map(|dead| dead.reason.clone().unwrap_or_default()).collect();
    assert!(reasons[0].contains("cannot decode") && reasons[1].contains("no message of a scheduler"), "{reasons:?}");
    let event = world.block_on(events.recv()).unwrap().what;
    assert!(matches!(event, Event::DeadLettered { id, .. } if id == "42"));
}

// Guarantee: scheduler 3.
#[test]
fn a_saga_that_waits_takes_no_task_and_consumes_no_limit() {
    let world = World::new();
    let orders = world.process("a", world.saga.trip());
    world.submit(&orders, order("42"));
    world.saga.services.answer("room", vec![Answer::Refused(S(100)); 30]);
    world.run(&[&orders], S(50));
    assert_eq!(orders.saga().running(), 0);
    // Another process takes it when it is due.
    world.run(&[&world.process("b", world.saga.trip())], S(4000));
    assert_eq!(phase(&world, &orders, "42"), Some(SagaPhase::Completed));
    assert_eq!(world.saga.services.log(), format!("seat {}room charge mail", "room ".repeat(30)));
    assert_eq!(world.depths(), (0, 0));
}

// Guarantee: scheduler 3.
#[test]
fn a_message_whose_process_dies_before_it_claims_the_saga_becomes_a_dead_letter() {
    let world = World::new();
    let orders = world.process("a", world.saga.trip());
    world.submit(&orders, order("42"));
    // It comes to no store, so that the saga is not claimed.
    let client = world.saga.network.client("dies");
    client.pause();
    let dies = world.process_on("dies", world.saga.trip(), client.store(world.saga.store.clone()), world.queue.clone());
    for death in 0..5 {
        assert_eq!(world.depths(), (1, 0), "{death}");
        world.kill_after(&dies, S(25));
        world.saga.time.advance(S(61));
    }
    world.run(&[&orders], S(15));
    assert_eq!((world.depths(), phase(&world, &orders, "42")), ((0, 1), None));

    // A step that kills its process is counted by the saga, which is compensated in the end.
    world.submit(&orders, order("43"));
    world.saga.services.answer("seat", vec![Answer::Hangs; 8]);
    for death in 0..8 {
        world.kill_after(&world.process(&format!("dies {death}"), world.saga.trip()), S(10));
        world.saga.time.advance(S(31));
    }
    world.run(&[&orders], S(10));
    assert_eq!((phase(&world, &orders, "43"), world.depths()), (Some(SagaPhase::Compensated), (0, 1)));
}

/// Regression: the fifth answer of the queue that was lost made it a dead letter that no process ever saw.
// Guarantee: scheduler 3.
#[test]
fn a_message_whose_deliveries_are_lost_on_their_way_is_run() {
    let world = World::new();
    let orders = world.process("a", world.saga.trip());
    world.submit(&orders, order("42"));
    for _ in 0..20 {
        world.saga.time.advance(S(31));
        assert!(world.block_on(world.queue.receive_one(S(30))).unwrap().is_some());
    }
    world.saga.time.advance(S(31));
    world.run(&[&orders], S(60));
    assert_eq!((world.depths(), phase(&world, &orders, "42")), ((0, 0), Some(SagaPhase::Completed)));
}

// Guarantee: scheduler 3.
#[test]
fn a_store_that_fails_consumes_no_limit() {
    let world = World::new();
    let client = world.saga.network.client("a");
    let orders = world.process_on("a", world.saga.trip(), client.store(world.saga.store.clone()), world.queue.clone());
    world.submit(&orders, order("42"));
    client.cut();
    world.run(&[&orders], S(3600));
    assert_eq!(world.depths(), (1, 0));
    client.heal();
    world.run(&[&orders], S(60));
    assert_eq!((world.saga.services.log().as_str(), world.depths()), (ALL, (0, 0)));
}

// Guarantee: scheduler 4.
#[test]
fn a_saga_whose_deadline_has_passed_is_compensated_before_its_pivot_and_completed_after_it() {
    let world = World::new();
    let orders = world.process("a", world.saga.trip());
    let late = |id: &str| order(id).deadline(S(100)).reply_to("web-1", id);
    // During an attempt, during a delay, before the start, and after the pivot.
    world.saga.services.answer("room", [Answer::Refused(S(90)), Answer::Takes(S(20))]);
    world.submit(&orders, late("attempt"));
    world.run(&[&orders], S(200));
    assert_eq!(world.saga.services.log(), "seat room room -room -seat");
    world.saga.services.answer("room", [Answer::Refused(S(3000))]);
    world.submit(&orders, late("delay"));
    world.run(&[&orders], S(110));
    assert_eq!(phase(&world, &orders, "delay"), Some(SagaPhase::Compensated));
    let calls = world.saga.services.calls().len();
    world.submit(&orders, late("start"));
    world.saga.time.advance(S(101));
    world.run(&[&orders], S(10));
    assert_eq!(
        (phase(&world, &orders, "start"), world.saga.services.calls().len()),
        (Some(SagaPhase::Compensated), calls)
    );
    world.saga.services.answer("mail", [Answer::Refused(S(200))]);
    world.submit(&orders, late("pivot"));
    world.run(&[&orders], S(300));
    assert_eq!(phase(&world, &orders, "pivot"), Some(SagaPhase::Completed));
    let told = world.told();
    let ends: Vec<_> = told.iter().filter(|told| !told.ends_with("received")).collect();
    assert_eq!(ends, ["attempt compensated", "delay compensated", "start compensated", "pivot completed"]);
}

/// Regression: the request to cancel was given up when the store had failed for long, and the attempt ended later.
// Guarantee: scheduler 4.
#[test]
fn a_deadline_that_passes_while_the_store_is_away_is_obeyed_when_it_is_back() {
    let world = World::new();
    let client = world.saga.network.client("a");
    let config = SagaConfig::default().step_timeout(S(200)).takeover_after(S(300));
    let saga = Saga::builder("trip", client.store(world.saga.store.clone()), codec(), world.saga.trip(), config);
    let saga = saga.clock(&world.clock).entropy(&Entropy::from_seed(1)).build().unwrap();
    let orders = Scheduler::builder(saga, world.queue.clone(), World::config()).clock(&world.clock);
    let orders = orders.entropy(&Entropy::from_seed(2)).build().unwrap();
    world.saga.services.answer("room", [Answer::Takes(S(180))]);
    world.submit(&orders, order("42").deadline(S(100)));
    let away = async {
        world.clock.sleep(S(95)).await;
        client.cut();
        world.clock.sleep(S(60)).await;
        client.heal();
    };
    world.block_on(async { tokio::join!(orders.run(world.clock.sleep(S(300))), away) }).0.unwrap();
    assert_eq!(world.saga.services.log(), "seat room -room -seat");
    assert_eq!((phase(&world, &orders, "42"), world.depths()), (Some(SagaPhase::Compensated), (0, 0)));
}

// Guarantee: scheduler 4.
#[test]
fn sagas_of_one_ordering_key_run_one_at_a_time_and_in_order() {
    let world = World::new();
    let (orders, other) =
        (world.process("a", world.saga.steps(&["seat"])), world.process("b", world.saga.steps(&["seat"])));
    for id in ["1", "2", "3"] {
        world.submit(&orders, order(id).ordering_key("customer-9"));
    }
    world.submit(&orders, order("other").ordering_key("customer-8"));
    world.saga.services.answer("seat", [Answer::Refused(S(100)), Answer::Completed, Answer::Takes(S(10))]);
    world.run(&[&orders, &other], S(300));
    let ids: Vec<_> =
        world.saga.services.calls().into_iter().map(|call| call.key.split('/').nth(1).unwrap().to_owned()).collect();
    assert_eq!(ids, ["1", "other", "1", "2", "3"]);
}

// Guarantee: scheduler 4.
#[test]
fn a_wake_ends_the_wait_of_a_saga_in_any_process() {
    for key in [None, Some("customer-9")] {
        let world = World::new();
        let (orders, other) = (world.process("a", world.saga.trip()), world.process("b", world.saga.trip()));
        let submission = key.into_iter().fold(order("42"), |order, key| order.ordering_key(key));
        world.submit(&orders, submission);
        world.saga.services.answer("room", [Answer::Pending(S(3600)), Answer::Takes(S(20))]);
        world.run(&[&orders], S(10));
        world.block_on(other.wake("42")).unwrap();
        world.run(&[&orders], S(60));
        assert_eq!(phase(&world, &orders, "42"), Some(SagaPhase::Completed));
        // The submission comes back later, and finds its saga ended.
        world.run(&[&orders], S(3600));
        assert_eq!((world.saga.services.log().as_str(), world.depths()), ("seat room room charge mail", (0, 0)));
    }
}

// Guarantee: scheduler 5.
#[test]
fn a_saga_whose_message_is_lost_is_resumed_by_the_supervisor() {
    let world = World::new();
    let (orders, other) = (world.process("a", world.saga.trip()), world.process("b", world.saga.trip()));
    world.submit(&orders, order("42"));
    world.saga.services.answer("room", [Answer::Hangs]);
    world.kill_after(&orders, S(5));
    world.block_on(world.queue.purge()).unwrap();
    let mut events = other.events();
    world.block_on(async {
        let stop = || world.clock.sleep(S(200));
        let third = world.process("c", world.saga.trip());
        let (ran, one, two) = tokio::join!(other.run(stop()), other.supervise(stop()), third.supervise(stop()));
        ran.unwrap();
        one.unwrap();
        two.unwrap();
    });
    assert_eq!((phase(&world, &other, "42"), world.depths()), (Some(SagaPhase::Completed), (0, 0)));
    assert_eq!(world.saga.services.log(), "seat room room charge mail");
    let resent = world.saga.within(S(1), events.recv());
    let is_resent = |event| matches!(event, Event::Resent { failures: 1, cancels: false, .. });
    assert!(resent.is_none_or(|event| is_resent(event.unwrap().what)));
}

/// Steps did not see the headers of their submission, so that a trace ended at the scheduler.
// Guarantee: scheduler 8.
#[test]
fn the_headers_of_a_submission_reach_each_step_also_in_another_process_and_by_another_message() {
    let world = World::new();
    let (told, mut telling) = tokio::sync::mpsc::unbounded_channel();
    let step = move |hangs: bool| {
        let told = told.clone();
        move |step: Step<State>| {
            told.send(format!("{} {:?}", step.name(), step.headers().get("traceparent"))).unwrap();
            let is_first = step.attempt() == 1;
            async move { if hangs && is_first { pending().await } else { StepOutcome::completed() } }
        }
    };
    let plan = || Plan::<State>::new().pivot("charge", step(true)).step("mail", step(false));
    let (orders, other) = (world.process("a", plan()), world.process("b", plan()));
    world.submit(&orders, order("42").header("traceparent", "00-1-1-01").header("baggage", "a=b c"));
    world.kill_after(&orders, S(5));
    world.block_on(world.queue.purge()).unwrap();
    world.saga.within(S(130), other.supervise(pending()));
    world.run(&[&other], S(60));
    let steps: Vec<_> = std::iter::from_fn(|| telling.try_recv().ok()).collect();
    let trace = "Some(\"00-1-1-01\")";
    assert_eq!(steps, ["charge", "charge", "mail"].map(|step| format!("{step} {trace}")));
}

// Guarantee: scheduler 1.
#[test]
fn a_submission_whose_headers_are_the_schedulers_own_or_too_large_is_refused() {
    let world = World::new();
    let orders = world.process("a", world.saga.trip());
    let refused = |name: &str, value: &str| {
        world.block_on(orders.submit(order("42").header(name, value))).unwrap_err().to_string()
    };
    for name in ["saga-id", "reply-to", "correlation-id", "expires-after"] {
        let rule = format!("invalid `headers`: must not have {name:?}, one of the scheduler's own");
        assert_eq!(refused(name, "x"), rule);
    }
    let (most, more) = ("x".repeat((16 << 10) - 7), "x".repeat((16 << 10) - 6));
    assert_eq!(refused("baggage", &more), "invalid `headers`: must have at most 16384 bytes together, has 16385");
    world.submit(&orders, order("42").header("baggage", most));
    world.run(&[&orders], S(60));
    assert_eq!((phase(&world, &orders, "42"), world.depths()), (Some(SagaPhase::Completed), (0, 0)));
}

// Guarantee: scheduler 5.
#[test]
fn a_saga_whose_message_is_lost_keeps_its_reply_address_its_deadline_and_its_key() {
    let world = World::new();
    let orders = world.process("a", world.saga.trip());
    let submission = |id: &str| order(id).reply_to("web-1", format!("request\n{id}")).ordering_key("customer-9");
    world.submit(&orders, submission("1").deadline(S(1000)));
    world.saga.services.answer("room", [Answer::Hangs, Answer::Refused(S(3000))]);
    world.kill_after(&orders, S(5));
    world.block_on(world.queue.purge()).unwrap();
    // A second one of the same key waits behind the message that replaces the lost one.
    world.saga.within(S(130), orders.supervise(pending()));
    world.submit(&orders, submission("2"));
    world.run(&[&orders], S(800));
    assert_eq!((phase(&world, &orders, "1"), phase(&world, &orders, "2")), (Some(SagaPhase::Forward), None));
    world.run(&[&orders], S(400));
    let ended = [phase(&world, &orders, "1"), phase(&world, &orders, "2")];
    assert_eq!(ended, [Some(SagaPhase::Compensated), Some(SagaPhase::Completed)]);
    let told = ["1 received", "1 compensated", "2 received", "2 completed"];
    assert_eq!(world.told(), told.map(|told| format!("request\n{told}")));
    assert_eq!(world.block_on(orders.read("1")).unwrap().unwrap().failures, 1);
}

/// Regression: the message of a wake had no deadline, and it alone carried the saga on.
// Guarantee: scheduler 4, 5.
#[test]
fn a_saga_that_was_woken_and_whose_submission_is_lost_keeps_its_deadline() {
    let world = World::new();
    let orders = world.process("a", world.saga.trip());
    world.saga.services.answer("room", [Answer::Pending(S(1000))]);
    world.saga.services.answer("room", vec![Answer::Pending(S(4)); 100]);
    world.submit(&orders, order("42").deadline(S(100)).reply_to("web-1", "1"));
    world.run(&[&orders], S(10));
    world.block_on(world.queue.purge()).unwrap();
    world.block_on(orders.wake("42")).unwrap();
    world.run(&[&orders], S(600));
    assert_eq!(phase(&world, &orders, "42"), Some(SagaPhase::Compensated));
    assert_eq!((world.told(), world.depths()), (vec!["1 received".to_owned(), "1 compensated".to_owned()], (0, 0)));
}

// Guarantee: scheduler 7.
#[test]
fn two_messages_of_one_saga_tell_its_end_once() {
    let world = World::new();
    let orders = world.process("a", world.saga.trip());
    world.submit(&orders, order("42").reply_to("web-1", "request 42"));
    world.saga.services.answer("room", [Answer::Hangs]);
    // The message is delayed for longer than the supervisor waits, and comes back.
    world.kill_after(&orders, S(5));
    let taken = world.block_on(async {
        world.clock.sleep(S(60)).await;
        world.queue.receive_one(S(200)).await.unwrap()
    });
    assert!(taken.is_some());
    world.saga.within(S(150), orders.supervise(pending()));
    world.run(&[&orders], S(700));
    assert_eq!(world.told(), ["request 42 received", "request 42 completed"]);
    assert_eq!((world.saga.services.log().as_str(), world.depths()), ("seat room room charge mail", (0, 0)));
}

// Guarantee: scheduler 5.
#[test]
fn the_supervisor_leaves_sagas_alone_that_run_or_wait() {
    let world = World::new();
    let orders = world.process("a", world.saga.trip());
    world.submit(&orders, order("42"));
    world.submit(&orders, order("43"));
    world.saga.services.answer("seat", vec![Answer::Refused(S(500)); 4]);
    world.saga.services.answer("room", vec![Answer::Pending(S(4)); 60]);
    let mut events = orders.events();
    world.block_on(async {
        let stop = || world.clock.sleep(S(2500));
        let (ran, supervised) = tokio::join!(orders.run(stop()), orders.supervise(stop()));
        ran.unwrap();
        supervised.unwrap();
    });
    assert_eq!(phase(&world, &orders, "42"), Some(SagaPhase::Completed));
    assert!(world.saga.within(S(1), events.recv()).is_none());
}

// Guarantee: scheduler 5.
#[test]
fn a_saga_whose_message_waits_behind_others_is_not_cancelled() {
    let world = World::new();
    let orders = world.process("a", world.saga.trip());
    world.submit(&orders, order("42"));
    world.saga.services.answer("room", [Answer::Hangs]);
    world.kill_after(&orders, S(5));
    // All processes are busy for long: nothing is received.
    let supervised = world.saga.within(S(3600), orders.supervise(pending()));
    assert!(supervised.is_none());
    world.run(&[&orders], S(60));
    assert_eq!(phase(&world, &orders, "42"), Some(SagaPhase::Completed));
    assert_eq!(world.depths(), (0, 0));
}

// Guarantee: scheduler 5.
#[test]
fn a_saga_that_nothing_can_carry_on_is_cancelled_and_at_last_stuck() {
    let world = World::new();
    let orders = world.process("a", world.saga.trip());
    world.submit(&orders, order("42"));
    world.saga.services.answer("room", [Answer::Hangs]);
    world.kill_after(&orders, S(5));
    let mut events = orders.events();
    // Each message is lost.
    let supervised = async {
        loop {
            world.queue.purge().await.unwrap();
            world.clock.sleep(S(1)).await;
        }
    };
    world.block_on(async {
        tokio::select! {
            ended = orders.supervise(pending()) => panic!("{ended:?}"),
            () = supervised => {}
            () = world.clock.sleep(S(1000)) => {}
        }
    });
    let told = crate::scheduler::lives::told(&world, &mut events);
    let resent = |failures| Event::Resent { id: "42".into(), failures, cancels: failures > 3 };
    let all: Vec<_> = (1..=6).map(resent).chain([Event::Stranded { id: "42".into(), failures: 7 }]).collect();
    assert_eq!(told, all);
    let status = world.block_on(orders.read("42")).unwrap().unwrap();
    assert_eq!((status.phase, status.steps[1].state), (SagaPhase::Stuck, StepState::Failed));
    assert!(world.block_on(orders.saga().retry("42")).is_ok());
    assert_eq!(phase(&world, &orders, "42"), Some(SagaPhase::Completed));
}

// Guarantee: scheduler 5.
#[test]
fn a_saga_that_was_found_too_often_is_compensated_by_its_next_message() {
    let world = World::new();
    let orders = world.process("a", world.saga.trip());
    world.submit(&orders, order("42"));
    world.saga.services.answer("room", [Answer::Hangs]);
    world.kill_after(&orders, S(5));
    let lost = async {
        while world.clock.now() < steadfast::time::Instant::from_nanos(0) + S(300) {
            world.queue.purge().await.unwrap();
            world.clock.sleep(S(1)).await;
        }
        orders.run(pending()).await
    };
    world.block_on(async {
        tokio::select! {
            ended = orders.supervise(pending()) => panic!("{ended:?}"),
            ended = lost => panic!("{ended:?}"),
            () = world.clock.sleep(S(700)) => {}
        }
    });
    assert_eq!(phase(&world, &orders, "42"), Some(SagaPhase::Compensated));
    assert_eq!(world.saga.services.log(), "seat room -room -seat");
}

// Guarantee: scheduler 7.
#[test]
fn status_messages_come_in_order_with_their_correlation_id() {
    let world = World::new();
    let orders = world.process("a", world.saga.trip());
    let ask = |id: &str| order(id).reply_to("web-1", format!("request {id}"));
    for id in ["1", "2", "3"] {
        world.submit(&orders, ask(id));
        match id {
            "2" => world.saga.services.answer("room", [Answer::Failed]),
            "3" => world.saga.services.answer("mail", [Answer::Failed]),
            _ => {}
        }
        world.run(&[&orders], S(5));
    }
    let expected = ["1 received", "1 completed", "2 received", "2 compensated", "3 received", "3 stuck"];
    assert_eq!(world.told(), expected.map(|told| format!("request {told}")));
    // An unknown name.
    world.submit(&orders, order("4").reply_to("web-9", "x"));
    world.run(&[&orders], S(5));
    assert_eq!((world.told(), world.depths()), (Vec::<String>::new(), (0, 0)));
}

#[test]
fn a_queue_without_de_duplication_and_settings_out_of_range_are_refused() {
    let world = World::new();
    let built = |config: SchedulerConfig| {
        let saga = world.process("a", world.saga.trip()).saga().clone();
        Scheduler::new(saga, world.queue.clone(), config).err().map(|error| error.field().to_owned())
    };
    let config = SchedulerConfig::default();
    assert_eq!(built(config.concurrency(0)).as_deref(), Some("concurrency"));
    assert_eq!(built(config.max_failures(0)).as_deref(), Some("max_failures"));
    assert_eq!(built(config.max_deliveries(0)).as_deref(), Some("max_deliveries"));
    assert_eq!(built(config), None);
}

fn told(world: &World, events: &mut steadfast::observe::Subscription<Event>) -> Vec<Event> {
    let mut told = Vec::new();
    while let Some(Ok(event)) = world.saga.within(S(0), events.recv()) {
        told.push(event.what);
    }
    told
}
