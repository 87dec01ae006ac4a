//! Long ids, large states, delays without end, and two queues.
use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use steadfast::{
    port::{Capabilities, PortError, PortErrorKind},
    queue::{Address, InMemoryQueue, Message, MessageId, Queue, QueueExt, QueueFuture},
    saga::{Action, Plan, Saga, SagaOutcome, SagaPhase, Step, StepOutcome},
    scheduler::{STATUS, Scheduler, SchedulerEvent},
};

use super::world::{World, order};
use crate::saga::world::{Answer, S, State, World as Services, codec};

/// Longest id of a saga in memory.
const LONGEST: usize = 1022;

/// Regression: the de-duplication ids of status messages and of the supervisor's messages were longer than a queue takes,
/// so that the submission was delivered for ever, and a lost one never found.
#[test]
fn a_saga_with_the_longest_id_is_replied_to_and_supervised() {
    let world = World::new();
    let orders = world.process("a", world.saga.trip());
    let id = "x".repeat(LONGEST);
    world.submit(&orders, order(&id).reply_to("web-1", "1"));
    world.saga.services.answer("room", [Answer::Hangs]);
    world.kill_after(&orders, S(5));
    world.block_on(world.queue.purge()).unwrap();
    let ran =
        async { tokio::join!(orders.run(world.clock.sleep(S(300))), orders.supervise(world.clock.sleep(S(300)))) };
    let (ran, supervised) = world.block_on(ran);
    ran.unwrap();
    supervised.unwrap();
    assert_eq!(world.block_on(orders.read(&id)).unwrap().unwrap().phase, SagaPhase::Completed);
    assert_eq!((world.told(), world.depths()), (vec!["1 received".to_owned(), "1 completed".to_owned()], (0, 0)));

    let id = "y".repeat(LONGEST);
    world.submit(&orders, order(&id).reply_to("web-1", "2"));
    world.run(&[&orders], S(60));
    assert_eq!((world.told(), world.depths()), (vec!["2 received".to_owned(), "2 completed".to_owned()], (0, 0)));
}

/// A step that makes the state larger than a message may be.
struct Grows;

impl Action<State> for Grows {
    async fn execute(&self, _: &Step<State>) -> StepOutcome<State> {
        StepOutcome::changed(|state: &mut State| state.push("x".repeat(15_000)))
    }
}

/// Regression: the message of a saga whose result no reply queue takes was delivered for ever.
#[test]
fn a_result_that_is_too_large_for_its_status_message_makes_the_submission_a_dead_letter() {
    let world = World::new();
    let queue = InMemoryQueue::builder("small").clock(&world.clock).build();
    let replies = Arc::new(Limited { queue, largest: 1_000, failures: AtomicU32::new(0) });
    let saga = world.process("a", Plan::new().pivot("grows", Grows)).saga().clone();
    let orders = Scheduler::builder(saga, world.queue.clone(), World::config())
        .clock(&world.clock)
        .replies(move |_| Some(replies.clone()))
        .build()
        .unwrap();
    world.submit(&orders, order("42").reply_to("small", "1"));
    world.run(&[&orders], S(600));
    assert_eq!(world.block_on(orders.read("42")).unwrap().unwrap().phase, SagaPhase::Completed);
    assert_eq!(world.depths(), (0, 1));
    let dead = world.queue.dead_letters().unwrap();
    let dead = world.block_on(dead.receive_one(S(30))).unwrap().unwrap();
    assert!(format!("{dead:?}").contains("status message was refused"), "{dead:?}");
}

/// A queue of messages of at most so many bytes, whose first sends fail.
#[derive(Debug)]
struct Limited {
    queue: InMemoryQueue,
    largest: usize,
    failures: AtomicU32,
}

impl Queue for Limited {
    forward_queue! { queue: identity, receive, extend, depth, peek, purge, dead_letters, settle }

    // A forward would not pass through it.
    fn address(&self) -> Option<Address> {
        None
    }

    fn capabilities(&self) -> Capabilities {
        self.queue.capabilities().largest_value(self.largest)
    }

    fn send<'a>(&'a self, messages: Vec<Message>) -> QueueFuture<'a, Vec<MessageId>> {
        Box::pin(async move {
            Message::check(&messages, &self.capabilities())?;
            if self.failures.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok() {
                return Err(PortError::new(PortErrorKind::Unavailable, "the reply queue is away").into());
            }
            self.queue.send(messages).await
        })
    }
}

/// Regression: the next delivery was taken for one that had told it, and the customer never heard of the receipt.
#[test]
fn a_receipt_that_the_reply_queue_refuses_is_told_by_a_later_delivery() {
    let world = World::new();
    let queue = InMemoryQueue::builder("away").clock(&world.clock).build();
    let replies = Arc::new(Limited { queue, largest: 10_000, failures: AtomicU32::new(2) });
    let told = replies.clone();
    let saga = world.process("a", world.saga.trip()).saga().clone();
    let orders = Scheduler::builder(saga, world.queue.clone(), World::config())
        .clock(&world.clock)
        .replies(move |_| Some(replies.clone()))
        .build()
        .unwrap();
    world.submit(&orders, order("42").reply_to("away", "1"));
    world.saga.services.answer("room", [Answer::Refused(S(20)), Answer::Refused(S(600))]);
    world.run(&[&orders], S(1000));
    let told = world.block_on(told.peek(9)).unwrap();
    let told: Vec<_> = told.iter().map(|told| told.headers[STATUS].as_str()).collect();
    assert_eq!(told, ["received", "completed"]);
}

#[test]
fn a_saga_that_waits_without_end_is_woken_or_ends_at_its_deadline() {
    let world = World::new();
    let orders = world.process("a", world.saga.trip());
    world.saga.services.answer("room", [Answer::Pending(Duration::MAX)]);
    world.submit(&orders, order("42").deadline(Duration::MAX));
    world.run(&[&orders], S(60));
    assert!(world.block_on(orders.read("42")).unwrap().unwrap().steps[1].wait > S(1_000_000_000));
    world.block_on(orders.wake("42")).unwrap();
    world.run(&[&orders], S(60));
    assert_eq!(world.block_on(orders.read("42")).unwrap().unwrap().phase, SagaPhase::Completed);

    world.saga.services.answer("room", [Answer::Pending(Duration::MAX)]);
    world.submit(&orders, order("43").deadline(S(600)));
    world.run(&[&orders], S(700));
    assert_eq!(world.block_on(orders.read("43")).unwrap().unwrap().phase, SagaPhase::Compensated);
}

/// Regression: the message ids of two queues may be equal, and each message took the saga over from the other.
#[test]
fn a_message_of_another_queue_with_the_same_id_leaves_a_saga_that_runs_alone() {
    let world = World::new();
    let other = Arc::new(InMemoryQueue::builder("others").clock(&world.clock).build());
    let orders = world.process("a", world.saga.trip());
    let others = world.process_on("b", world.saga.trip(), world.saga.store.clone(), other);
    world.saga.services.answer("room", [Answer::Takes(S(20))]);
    world.submit(&orders, order("42"));
    world.submit(&others, order("42"));
    world.run(&[&orders, &others], S(100));
    assert_eq!(world.saga.services.log(), "seat room charge mail");
}

/// Regression: an operator could only retry it.
#[test]
fn a_saga_that_was_given_up_before_its_pivot_is_cancelled_by_an_operator() {
    let world = World::new();
    let orders = world.process("a", world.saga.trip());
    world.submit(&orders, order("42"));
    world.saga.services.answer("room", [Answer::Hangs]);
    world.kill_after(&orders, S(5));
    world.block_on(async {
        let lost = async {
            loop {
                world.queue.purge().await.unwrap();
                world.clock.sleep(S(1)).await;
            }
        };
        tokio::select! {
            ended = orders.supervise(pending()) => panic!("{ended:?}"),
            () = lost => {}
            () = world.clock.sleep(S(1000)) => {}
        }
    });
    assert_eq!(world.block_on(orders.read("42")).unwrap().unwrap().phase, SagaPhase::Stuck);
    let cancelled = world.block_on(orders.saga().cancel("42", "by an operator"));
    let Ok(SagaOutcome::Compensated { step: None, reason }) = cancelled else { panic!("{cancelled:?}") };
    assert_eq!((reason.as_str(), &*world.saga.services.log()), ("by an operator", "seat room -room -seat"));
    assert_eq!(world.block_on(orders.saga().list_open()).unwrap(), []);
}

/// Regression: their status messages had the same de-duplication ids, and the second caller heard nothing.
// Guarantee: scheduler 7.
#[test]
fn sagas_of_two_names_and_one_id_both_tell_one_reply_queue() {
    let world = World::new();
    let orders = world.process("a", world.saga.trip());
    let replies = world.replies.clone();
    let returns = InMemoryQueue::builder("returns").clock(&world.clock).build();
    let saga = Saga::builder("return", world.saga.store.clone(), codec(), world.saga.trip(), Services::config());
    let returns = Scheduler::builder(saga.clock(&world.clock).build().unwrap(), Arc::new(returns), World::config())
        .clock(&world.clock)
        .replies(move |_| Some(replies.clone()))
        .build()
        .unwrap();
    world.submit(&orders, order("42").reply_to("web-1", "1"));
    world.submit(&returns, order("42").reply_to("web-1", "2"));
    world.run(&[&orders, &returns], S(10));
    let mut told = world.told();
    told.sort();
    assert_eq!(told, ["1 completed", "1 received", "2 completed", "2 received"]);
}

/// Regression: its status message was taken for that of the first submission.
// Guarantee: scheduler 7.
#[test]
fn a_second_submission_of_a_saga_that_just_ended_is_told_its_end() {
    let world = World::new();
    let orders = world.process("a", world.saga.trip());
    world.saga.services.answer("room", [Answer::Refused(S(250))]);
    world.submit(&orders, order("42").reply_to("web-1", "1"));
    world.run(&[&orders], S(310));
    assert_eq!(world.told(), ["1 received", "1 completed"]);
    // The queue has forgotten the first one.
    world.submit(&orders, order("42").reply_to("web-1", "2"));
    world.run(&[&orders], S(10));
    assert_eq!(world.told(), ["2 received", "2 completed"]);
}

/// Regression: the supervisor's message for the one had the de-duplication id of the other.
// Guarantee: scheduler 1, 5.
#[test]
fn a_submission_whose_id_is_that_of_another_saga_with_numbers_is_started() {
    let world = World::new();
    let orders = world.process("a", world.saga.trip());
    world.saga.services.answer("room", [Answer::Hangs]);
    world.submit(&orders, order("42"));
    world.kill_after(&orders, S(5));
    world.block_on(world.queue.purge()).unwrap();
    let mut events = orders.events();
    world.saga.within(S(130), orders.supervise(pending()));
    assert!(matches!(events.try_recv(), Ok(Some(event)) if matches!(event.what, SchedulerEvent::Resent { .. })));
    let others = ["42#1#1", "s/42#1#1", "r/42#1#1"];
    for id in others {
        world.submit(&orders, order(id));
    }
    world.run(&[&orders], S(60));
    for id in others.into_iter().chain(["42"]) {
        assert_eq!(
            world.block_on(orders.read(id)).unwrap().map(|found| found.phase),
            Some(SagaPhase::Completed),
            "{id}"
        );
    }
}

/// Regression: a wake carried the saga on, and the submission came back meanwhile and was taken for a second one: its
/// caller never heard of the end, and its deadline was forgotten.
// Guarantee: scheduler 4, 7.
#[test]
fn a_submission_that_comes_back_while_a_woken_saga_runs_keeps_its_deadline_and_its_reply() {
    for deadline in [None, Some(S(105))] {
        let world = World::new();
        let (orders, other) = (world.process("a", world.saga.trip()), world.process("b", world.saga.trip()));
        world.saga.services.answer("room", [Answer::Pending(S(100)), Answer::Takes(S(20))]);
        let submission = order("42").reply_to("web-1", "1");
        world.submit(&orders, deadline.into_iter().fold(submission, |submission, at| submission.deadline(at)));
        world.run(&[&orders], S(89));
        world.block_on(orders.wake("42")).unwrap();
        world.run(&[&orders, &other], S(60));
        let (phase, end) = match deadline {
            None => (SagaPhase::Completed, "1 completed"),
            Some(_) => (SagaPhase::Compensated, "1 compensated"),
        };
        assert_eq!(world.block_on(orders.read("42")).unwrap().unwrap().phase, phase);
        assert_eq!((world.told(), world.depths()), (vec!["1 received".to_owned(), end.to_owned()], (0, 0)));
    }
}

/// Regression: its caller heard of the end when the wait would have ended.
// Guarantee: scheduler 7.
#[test]
fn the_end_of_a_saga_that_was_woken_is_told_at_once() {
    let world = World::new();
    let orders = world.process("a", world.saga.trip());
    world.saga.services.answer("room", [Answer::Pending(S(100_000))]);
    world.submit(&orders, order("42").reply_to("web-1", "1").ordering_key("customer-9"));
    world.run(&[&orders], S(10));
    world.block_on(orders.wake("42")).unwrap();
    world.run(&[&orders], S(10));
    assert_eq!(world.told(), ["1 received", "1 completed"]);
}

/// Regression: the only task was busy, so that no other submission was received until the first saga ended.
#[test]
fn a_submission_that_comes_while_another_saga_runs_is_started_at_once() {
    let world = World::new();
    let orders = world.process("a", world.saga.trip());
    world.saga.services.answer("seat", [Answer::Takes(S(25))]);
    world.submit(&orders, order("1"));
    let later = async {
        world.clock.sleep(S(5)).await;
        orders.submit(order("2")).await.unwrap();
        world.clock.sleep(S(2)).await;
        assert_eq!(orders.read("2").await.unwrap().map(|found| found.phase), Some(SagaPhase::Completed));
    };
    world.block_on(async { tokio::join!(orders.run(world.clock.sleep(S(60))), later) }).0.unwrap();
}
