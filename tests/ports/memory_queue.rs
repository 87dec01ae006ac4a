//! The queue in memory: its bound, and who waits.
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

#[test]
fn a_full_queue_refuses_before_it_accepts_any_and_takes_again_when_there_is_room() {
    let (clock, hand) = Clock::manual();
    let queue = InMemoryQueue::new("jobs").bounded(3).with_clock(&clock);
    hand.block_on(async {
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
    });
}

/// Was: who had slept on the return of a message, and went, took the knowledge of it along.
#[test]
fn a_receiver_that_goes_leaves_its_knowledge_to_the_next() {
    let (clock, hand) = Clock::manual();
    let queue = InMemoryQueue::new("jobs").with_clock(&clock);
    hand.block_on(queue.send_one(Message::new("a"))).unwrap();
    let held = hand.block_on(queue.receive_one(S(5))).unwrap().unwrap();
    let mut cx = Context::from_waker(Waker::noop());
    let mut patient = pin!(queue.receive(Receive::new(1, S(60)).wait(S(60))));
    let mut hasty = Box::pin(queue.receive(Receive::new(1, S(60)).wait(S(60))));
    assert!(hasty.as_mut().poll(&mut cx).is_pending());
    assert!(patient.as_mut().poll(&mut cx).is_pending());
    hand.block_on(queue.abandon(&held.receipt, S(1))).unwrap();
    // The first who waits is told, sees when the message comes back, and goes.
    assert!(hasty.as_mut().poll(&mut cx).is_pending());
    drop(hasty);
    assert!(patient.as_mut().poll(&mut cx).is_pending());
    assert_eq!(hand.next_timer(), Some(clock.now() + S(1)));
    hand.advance(S(1));
    assert!(matches!(patient.poll(&mut cx), Poll::Ready(Ok(taken)) if taken.len() == 1));
}

#[test]
fn every_future_of_the_queue_may_be_dropped_at_every_await() {
    let (clock, hand) = Clock::manual();
    let queue = InMemoryQueue::new("jobs").with_clock(&clock);
    let total = || hand.block_on(queue.depth()).unwrap().total();
    // One that waits for the return of the only message: dropped wherever, the message is there.
    hand.block_on(queue.send_one(Message::new("a"))).unwrap();
    drop_at_every_await(
        &hand,
        || {
            let held = hand.block_on(queue.receive_one(S(1))).unwrap();
            assert!(held.is_some());
            let queue = &queue;
            async move {
                let taken = queue.receive(Receive::new(1, S(1)).wait(S(10))).await.unwrap();
                queue.abandon(&taken[0].receipt, Duration::ZERO).await.unwrap();
            }
        },
        |_| {
            assert_eq!(total(), 1);
            hand.advance(S(20));
        },
    );
    drop_at_every_await(&hand, || queue.send_one(Message::new("b")), |_| assert!(total() >= 1));
}

/// A receiver that waits for a minute, and has looked once.
macro_rules! waiting {
    ($name:ident, $queue:expr) => {
        let queue = $queue.clone();
        let mut $name = pin!(async move { queue.receive(Receive::new(1, S(60)).wait(S(60))).await.unwrap() });
        assert!($name.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    };
}

/// What it has now, without any time having passed.
fn at_once(receiver: std::pin::Pin<&mut impl Future<Output = Vec<steadfast::queue::Delivery>>>) -> Vec<String> {
    match receiver.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(taken) => taken.iter().map(|d| String::from_utf8_lossy(&d.body).into_owned()).collect(),
        Poll::Pending => Vec::new(),
    }
}

#[test]
fn who_waits_is_told_at_once_of_what_is_sent_abandoned_or_freed() {
    let (clock, hand) = Clock::manual();
    let queue = std::sync::Arc::new(InMemoryQueue::new("jobs").with_clock(&clock));
    waiting!(sent, queue);
    hand.block_on(queue.send_one(Message::new("a"))).unwrap();
    assert_eq!(at_once(sent), ["a"]);
    hand.block_on(queue.purge()).unwrap();

    hand.block_on(queue.send_one(Message::new("b"))).unwrap();
    let held = hand.block_on(queue.receive_one(S(60))).unwrap().unwrap();
    waiting!(abandoned, queue);
    hand.block_on(queue.abandon(&held.receipt, Duration::ZERO)).unwrap();
    assert_eq!(at_once(abandoned), ["b"]);
    hand.block_on(queue.purge()).unwrap();

    for how in [Settle::Complete, Settle::dead_letter("no")] {
        hand.block_on(queue.send(vec![Message::new("c").group("g"), Message::new("d").group("g")])).unwrap();
        let first = hand.block_on(queue.receive_one(S(60))).unwrap().unwrap();
        waiting!(behind, queue);
        hand.block_on(queue.settle(vec![(first.receipt, how)])).unwrap();
        assert_eq!(at_once(behind), ["d"]);
        hand.block_on(queue.purge()).unwrap();
    }

    let letters = queue.dead_letters().unwrap();
    hand.block_on(letters.purge()).unwrap();
    hand.block_on(queue.send_one(Message::new("e"))).unwrap();
    let bad = hand.block_on(queue.receive_one(S(60))).unwrap().unwrap();
    waiting!(operator, letters);
    hand.block_on(queue.dead_letter(&bad.receipt, "no")).unwrap();
    assert_eq!(at_once(operator), ["e"]);
}

#[test]
fn who_waits_learns_that_a_message_comes_back_earlier() {
    let (clock, hand) = Clock::manual();
    let queue = std::sync::Arc::new(InMemoryQueue::new("jobs").with_clock(&clock));
    hand.block_on(queue.send_one(Message::new("a"))).unwrap();
    let held = hand.block_on(queue.receive_one(S(50))).unwrap().unwrap();
    waiting!(receiver, queue);
    hand.block_on(queue.extend(&held.receipt, S(2))).unwrap();
    assert_eq!(at_once(receiver.as_mut()), Vec::<String>::new());
    hand.advance(S(2));
    assert_eq!(at_once(receiver), ["a"]);
}

#[test]
fn a_receipt_of_the_queue_is_worth_nothing_among_its_dead_letters() {
    let (clock, hand) = Clock::manual();
    let queue = InMemoryQueue::new("jobs").with_clock(&clock);
    let letters = queue.dead_letters().unwrap();
    hand.block_on(async {
        queue.send_one(Message::new("a")).await.unwrap();
        let old = queue.receive_one(S(60)).await.unwrap().unwrap().receipt;
        queue.dead_letter(&old, "no").await.unwrap();
        let letter = letters.receive_one(S(60)).await.unwrap().unwrap();
        assert!(letters.complete(&old).await.is_err_and(|e| e.is_lease_lost()));
        letters.complete(&letter.receipt).await.unwrap();
    });
}

#[test]
fn what_repeats_within_one_request_needs_room_once() {
    let (clock, hand) = Clock::manual();
    let queue = InMemoryQueue::new("jobs").bounded(1).with_clock(&clock);
    let message = || Message::new("a").deduplicate("x");
    let ids = hand.block_on(queue.send(vec![message(), message()])).unwrap();
    assert_eq!(ids[0], ids[1]);
    assert_eq!(hand.block_on(queue.depth()).unwrap().total(), 1);
}
