//! Forwards between queues in memory: full targets, locks, wrappers and addresses.
use std::{collections::HashSet, sync::Arc, time::Duration};

use steadfast::{
    claim_check::{ClaimCheck, ClaimCheckConfig},
    notify::InMemoryNotifier,
    port::{Capability, ErrorClass, Failure, PortErrorKind},
    queue::{Address, AnnouncingQueue, InMemoryQueue, Message, PartitionedQueue, Queue, QueueExt, Receive, Settle},
    store::InMemoryStore,
    testing::drop_at_every_await,
    time::Clock,
};

const S: fn(u64) -> Duration = Duration::from_secs;

fn address(queue: &impl Queue) -> Address {
    queue.address().unwrap()
}

// Guarantee: queue 9, 13.
#[test]
fn a_full_target_refuses_a_forward_alone_and_the_delivery_continues() {
    let (clock, time) = Clock::manual();
    let jobs = InMemoryQueue::builder("jobs").clock(&clock).build();
    let full = InMemoryQueue::builder("results").bounded(2).clock(&clock).build();
    let other = InMemoryQueue::builder("other").clock(&clock).build();
    let to = |queue: &InMemoryQueue, body: &'static str| (address(queue), Message::new(body));
    time.block_on(async {
        jobs.send(["a", "b", "c"].map(Message::new).into()).await.unwrap();
        full.send_one(Message::new("earlier").deduplicate("known")).await.unwrap();
        let taken = jobs.receive(Receive::new(3, S(60))).await.unwrap();
        let receipts: Vec<_> = taken.into_iter().map(|taken| taken.receipt).collect();
        let too_many = Settle::forward([to(&other, "1"), to(&full, "2"), to(&full, "3")]);
        let fits = Settle::forward([to(&full, "4"), to(&other, "5")]);
        let requests = vec![
            (receipts[0].clone(), too_many),
            (receipts[1].clone(), fits),
            (receipts[2].clone(), Settle::release(Duration::ZERO)),
        ];
        let settled = jobs.settle(requests).await.unwrap();
        let error = settled[0].as_ref().unwrap_err();
        assert_eq!((error.class(), error.backend().unwrap().kind()), (ErrorClass::Throttled, PortErrorKind::Full));
        assert!(error.to_string().contains("results"), "{error}");
        assert!(settled[1].is_ok() && settled[2].is_ok());
        assert_eq!((full.depth().await.unwrap().total(), other.depth().await.unwrap().total()), (2, 1));
        // A duplicate takes no place, and the receipt of the refused one is valid.
        let known = (address(&full), Message::new("6").deduplicate("known"));
        assert!(jobs.forward(&receipts[0], [to(&full, "7")]).await.is_err());
        jobs.forward(&receipts[0], [known]).await.unwrap();
        assert_eq!((full.depth().await.unwrap().total(), jobs.depth().await.unwrap().total()), (2, 1));
    });
}

// Guarantee: queue 12.
#[test]
fn a_message_that_is_forwarded_to_its_own_full_queue_makes_room_for_one() {
    let (clock, time) = Clock::manual();
    let queue = InMemoryQueue::builder("jobs").bounded(1).clock(&clock).build();
    let to_itself = |body: &'static str| (address(&queue), Message::new(body));
    time.block_on(async {
        queue.send_one(Message::new("a")).await.unwrap();
        let taken = queue.receive_one(S(60)).await.unwrap().unwrap();
        assert!(queue.forward(&taken.receipt, [to_itself("b"), to_itself("c")]).await.is_err());
        queue.forward(&taken.receipt, [to_itself("d")]).await.unwrap();
        let next = queue.receive_one(S(60)).await.unwrap().unwrap();
        assert_eq!((&next.body[..], next.deliveries), (&b"d"[..], 1));
    });
}

/// Without one order of the locks, two forwards in opposite directions wait for each other.
#[test]
fn forwards_in_all_directions_at_once_come_to_an_end() {
    let queues: Vec<_> = (0..3).map(|i| InMemoryQueue::new(format!("queue-{i}"))).collect();
    let targets: Vec<_> = queues.iter().map(address).collect();
    let messages = |n: u32| (0..n).map(|i| Message::new(i.to_string())).collect::<Vec<_>>();
    let block = |i: usize| {
        steadfast::time::block_on(async {
            for round in 0..2000 {
                for taken in queues[i].receive(Receive::new(4, S(3600))).await.unwrap() {
                    let how = match round % 10 {
                        0 => Settle::dead_letter("set aside"),
                        _ => Settle::forward([(targets[(i + 1 + round % 2) % 3].clone(), Message::new(taken.body))]),
                    };
                    queues[i].settle(vec![(taken.receipt, how)]).await.unwrap().remove(0).unwrap();
                }
                let letters = queues[i].dead_letters().unwrap();
                for letter in letters.receive(Receive::new(4, S(3600))).await.unwrap() {
                    letters.forward(&letter.receipt, [(targets[i].clone(), Message::new(letter.body))]).await.unwrap();
                }
            }
        });
    };
    steadfast::time::block_on(queues[0].send(messages(30))).unwrap();
    std::thread::scope(|scope| {
        for i in 0..6 {
            scope.spawn(move || block(i % 3));
        }
    });
    let mut all = Vec::new();
    for queue in &queues {
        let letters = queue.dead_letters().unwrap();
        all.extend(steadfast::time::block_on(queue.peek(100)).unwrap());
        all.extend(steadfast::time::block_on(letters.peek(100)).unwrap());
    }
    let once: HashSet<_> = all.iter().map(|peeked| peeked.body.clone()).collect();
    assert_eq!((all.len(), once.len()), (30, 30));
}

// Guarantee: queue 12.
#[test]
fn a_forward_dropped_at_every_await_is_made_or_not() {
    let (clock, time) = Clock::manual();
    let make = |name: &str| InMemoryQueue::builder(name).clock(&clock).build();
    let (jobs, results) = (make("jobs"), make("results"));
    time.block_on(jobs.send_one(Message::new("a"))).unwrap();
    let total = |queue: &InMemoryQueue| time.block_on(queue.depth()).unwrap().total();
    drop_at_every_await(
        &time,
        || {
            let taken = time.block_on(jobs.receive_one(S(1))).unwrap().unwrap();
            jobs.settle(vec![(taken.receipt, Settle::forward([(address(&results), Message::new("b"))]))])
        },
        |_| {
            assert_eq!(total(&jobs) + total(&results), 1);
            time.advance(S(2));
        },
    );
    assert_eq!(total(&results), 1);
}

// Guarantee: queue 13.
#[test]
fn wrappers_that_change_a_send_have_no_address() {
    let queue = Arc::new(InMemoryQueue::new("jobs"));
    assert!(queue.capabilities().has(Capability::Forward) && queue.address().is_some());
    let announcing = AnnouncingQueue::new(queue.clone(), Arc::new(InMemoryNotifier::new()), "jobs");
    let partitioned = PartitionedQueue::new(vec![queue.clone(), queue.clone()]).unwrap();
    let checked = ClaimCheck::new(queue.clone(), Arc::new(InMemoryStore::new()), ClaimCheckConfig::default()).unwrap();
    let wrapped: [(&dyn Queue, bool); 3] = [(&announcing, true), (&partitioned, true), (&checked, false)];
    for (queue, forwards) in wrapped {
        assert_eq!((queue.address(), queue.capabilities().has(Capability::Forward)), (None, forwards), "{queue:?}");
    }
}

/// A body above the limit of the claim check is stored by its `send`; a forward would not store it.
#[test]
fn a_large_body_is_not_forwarded_past_a_claim_check() {
    let (clock, time) = Clock::manual();
    let plain = Arc::new(InMemoryQueue::builder("jobs").clock(&clock).build());
    let config = ClaimCheckConfig::default().threshold(10);
    let queue = ClaimCheck::new(plain.clone(), Arc::new(InMemoryStore::new()), config).unwrap();
    time.block_on(async {
        queue.send(vec![Message::new("a"), Message::new("b")]).await.unwrap();
        let taken = queue.receive(Receive::new(2, S(60))).await.unwrap();
        let large = (address(&plain), Message::new("x".repeat(1000)));
        let requests =
            vec![(taken[0].receipt.clone(), Settle::forward([large])), (taken[1].receipt.clone(), Settle::Complete)];
        let settled = queue.settle(requests).await.unwrap();
        let error = settled[0].as_ref().unwrap_err();
        assert_eq!(error.to_string(), "the backend `memory` lacks the capability `forward`");
        assert!(settled[1].is_ok());
        queue.complete(&taken[0].receipt).await.unwrap();
        assert_eq!(plain.depth().await.unwrap().total(), 0);
    });
}

#[test]
fn equal_addresses_are_of_one_queue_and_their_text_is_its_identity() {
    let (one, other) = (InMemoryQueue::new("jobs"), InMemoryQueue::new("jobs"));
    assert_eq!(address(&one), address(&one.clone()));
    assert_ne!(address(&one), address(&other));
    assert_ne!(address(&one), Address::new(one.identity()));
    assert_eq!(address(&one).to_string(), one.identity());
    assert_eq!(Address::new("a"), Address::new("a".to_owned()));
    let addresses = [address(&one), address(&one), address(&other), Address::new("a"), Address::new("a")];
    assert_eq!(HashSet::from(addresses).len(), 3);
}
