//! The queue in memory: its limit, and waiting receivers.
use std::{
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use steadfast::{
    port::{ErrorClass, Failure, PortErrorKind},
    queue::{InMemoryQueue, Message, Queue, QueueExt, Receive, Settle},
    testing::drop_at_every_await,
    time::Clock,
};

const S: fn(u64) -> Duration = Duration::from_secs;

// Guarantee: queue 9.
#[test]
fn a_full_queue_refuses_all_messages_of_a_send_until_there_is_room() {
    let (clock, time) = Clock::manual();
    let queue = InMemoryQueue::builder("jobs").bounded(3).clock(&clock).build();
    time.block_on(async {
        queue.send(vec![Message::new("a"), Message::new("b")]).await.unwrap();
        let full = queue.send(vec![Message::new("c"), Message::new("d")]).await.unwrap_err();
        assert_eq!((full.class(), full.backend().unwrap().kind()), (ErrorClass::Throttled, PortErrorKind::Full));
        assert!(full.to_string().contains("jobs"), "{full}");
        assert_eq!(queue.depth().await.unwrap().total(), 2);
        let taken = queue.receive_one(S(60)).await.unwrap().unwrap();
        queue.send_one(Message::new("c")).await.unwrap();
        assert!(queue.send_one(Message::new("d")).await.is_err(), "what is hidden counts");
        queue.complete(&taken.receipt).await.unwrap();
        queue.send_one(Message::new("d").deduplicate("x")).await.unwrap();
        queue.send_one(Message::new("d").deduplicate("x")).await.unwrap();
        assert_eq!(queue.depth().await.unwrap().total(), 3);
        // More than it ever holds: no waiting helps.
        let never = queue.send(vec![Message::new("e"); 4]).await.unwrap_err();
        assert_eq!((never.class(), never.backend().unwrap().kind()), (ErrorClass::Permanent, PortErrorKind::Invalid));
    });
}

/// Regression test: without a window, both messages were accepted, and one more than there was room
/// for.
// Guarantee: queue 7.
#[test]
fn duplicates_within_a_request_are_recognized_without_a_window() {
    let queue = InMemoryQueue::builder("jobs").deduplicating_for(Duration::ZERO).bounded(1).build();
    let twice = vec![Message::new("a").deduplicate("x"), Message::new("b").deduplicate("x")];
    let ids = steadfast::time::block_on(queue.send(twice)).unwrap();
    assert_eq!(ids[0], ids[1]);
    assert_eq!(steadfast::time::block_on(queue.depth()).unwrap().total(), 1);
}

/// Regression test: a receiver that waited for a redelivery, and was dropped, left no timer for the
/// next receiver.
#[test]
fn a_dropped_receiver_leaves_the_timer_of_a_redelivery_to_the_next() {
    let (clock, time) = Clock::manual();
    let queue = InMemoryQueue::builder("jobs").clock(&clock).build();
    time.block_on(queue.send_one(Message::new("a"))).unwrap();
    let held = time.block_on(queue.receive_one(S(5))).unwrap().unwrap();
    let mut cx = Context::from_waker(Waker::noop());
    let mut patient = pin!(queue.receive(Receive::new(1, S(60)).wait(S(60))));
    let mut hasty = Box::pin(queue.receive(Receive::new(1, S(60)).wait(S(60))));
    assert!(hasty.as_mut().poll(&mut cx).is_pending());
    assert!(patient.as_mut().poll(&mut cx).is_pending());
    time.block_on(queue.abandon(&held.receipt, S(1))).unwrap();
    // The first waiting receiver is notified, learns the time of the redelivery, and is dropped.
    assert!(hasty.as_mut().poll(&mut cx).is_pending());
    drop(hasty);
    assert!(patient.as_mut().poll(&mut cx).is_pending());
    assert_eq!(time.next_timer(), Some(clock.now() + S(1)));
    time.advance(S(1));
    assert!(matches!(patient.poll(&mut cx), Poll::Ready(Ok(taken)) if taken.len() == 1));
}

// Guarantee: queue 6.
#[test]
fn futures_of_the_queue_dropped_at_every_await_lose_no_message() {
    let (clock, time) = Clock::manual();
    let queue = InMemoryQueue::builder("jobs").clock(&clock).build();
    let total = || time.block_on(queue.depth()).unwrap().total();
    // A receive that waits for the redelivery of the only message loses nothing, wherever it is
    // dropped.
    time.block_on(queue.send_one(Message::new("a"))).unwrap();
    drop_at_every_await(
        &time,
        || {
            let held = time.block_on(queue.receive_one(S(1))).unwrap();
            assert!(held.is_some());
            let queue = &queue;
            async move {
                let taken = queue.receive(Receive::new(1, S(1)).wait(S(10))).await.unwrap();
                queue.abandon(&taken[0].receipt, Duration::ZERO).await.unwrap();
            }
        },
        |_| {
            assert_eq!(total(), 1);
            time.advance(S(20));
        },
    );
    drop_at_every_await(&time, || queue.send_one(Message::new("b")), |_| assert!(total() >= 1));
}

/// A receiver that waits for a minute, and has been polled once.
macro_rules! waiting {
    ($name:ident, $queue:expr) => {
        let queue = $queue.clone();
        let mut $name = pin!(async move { queue.receive(Receive::new(1, S(60)).wait(S(60))).await.unwrap() });
        assert!($name.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    };
}

/// Returns the messages that the receiver has without time passing.
fn at_once(receiver: std::pin::Pin<&mut impl Future<Output = Vec<steadfast::queue::Delivery>>>) -> Vec<String> {
    match receiver.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(taken) => taken.iter().map(|d| String::from_utf8_lossy(&d.body).into_owned()).collect(),
        Poll::Pending => Vec::new(),
    }
}

#[test]
fn a_waiting_receiver_gets_sent_abandoned_and_unblocked_messages_at_once() {
    let (clock, time) = Clock::manual();
    let queue = std::sync::Arc::new(InMemoryQueue::builder("jobs").clock(&clock).build());
    waiting!(sent, queue);
    time.block_on(queue.send_one(Message::new("a"))).unwrap();
    assert_eq!(at_once(sent), ["a"]);
    time.block_on(queue.purge()).unwrap();

    time.block_on(queue.send_one(Message::new("b"))).unwrap();
    let held = time.block_on(queue.receive_one(S(60))).unwrap().unwrap();
    waiting!(abandoned, queue);
    time.block_on(queue.abandon(&held.receipt, Duration::ZERO)).unwrap();
    assert_eq!(at_once(abandoned), ["b"]);
    time.block_on(queue.purge()).unwrap();

    for how in [Settle::Complete, Settle::dead_letter("no")] {
        time.block_on(queue.send(vec![Message::new("c").group("g"), Message::new("d").group("g")])).unwrap();
        let first = time.block_on(queue.receive_one(S(60))).unwrap().unwrap();
        waiting!(behind, queue);
        time.block_on(queue.settle(vec![(first.receipt, how)])).unwrap();
        assert_eq!(at_once(behind), ["d"]);
        time.block_on(queue.purge()).unwrap();
    }

    let letters = queue.dead_letters().unwrap();
    time.block_on(letters.purge()).unwrap();
    time.block_on(queue.send_one(Message::new("e"))).unwrap();
    let bad = time.block_on(queue.receive_one(S(60))).unwrap().unwrap();
    waiting!(operator, letters);
    time.block_on(queue.dead_letter(&bad.receipt, "no")).unwrap();
    assert_eq!(at_once(operator), ["e"]);
}

#[test]
fn a_waiting_receiver_gets_a_message_whose_visibility_was_shortened() {
    let (clock, time) = Clock::manual();
    let queue = std::sync::Arc::new(InMemoryQueue::builder("jobs").clock(&clock).build());
    time.block_on(queue.send_one(Message::new("a"))).unwrap();
    let held = time.block_on(queue.receive_one(S(50))).unwrap().unwrap();
    waiting!(receiver, queue);
    time.block_on(queue.extend(&held.receipt, S(2))).unwrap();
    assert_eq!(at_once(receiver.as_mut()), Vec::<String>::new());
    time.advance(S(2));
    assert_eq!(at_once(receiver), ["a"]);
}

#[test]
fn a_receipt_of_a_queue_is_stale_for_its_dead_letters() {
    let (clock, time) = Clock::manual();
    let queue = InMemoryQueue::builder("jobs").clock(&clock).build();
    let letters = queue.dead_letters().unwrap();
    time.block_on(async {
        queue.send_one(Message::new("a")).await.unwrap();
        let old = queue.receive_one(S(60)).await.unwrap().unwrap().receipt;
        queue.dead_letter(&old, "no").await.unwrap();
        let letter = letters.receive_one(S(60)).await.unwrap().unwrap();
        assert!(letters.complete(&old).await.is_err_and(|e| e.is_lease_lost()));
        letters.complete(&letter.receipt).await.unwrap();
    });
}

// Guarantee: queue 7, 9.
#[test]
fn duplicates_within_one_send_take_one_place() {
    let (clock, time) = Clock::manual();
    let queue = InMemoryQueue::builder("jobs").bounded(1).clock(&clock).build();
    let message = || Message::new("a").deduplicate("x");
    let ids = time.block_on(queue.send(vec![message(), message()])).unwrap();
    assert_eq!(ids[0], ids[1]);
    assert_eq!(time.block_on(queue.depth()).unwrap().total(), 1);
}
