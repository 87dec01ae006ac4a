//! Redrive of dead letters: each is examined once, however long that takes and whichever are
//! refused.
use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    sync::Arc,
    time::Duration,
};

use steadfast::{
    claim_check::{ClaimCheck, ClaimCheckConfig},
    queue::{InMemoryQueue, Message, Queue, QueueExt, Receive, Settle, redrive},
    store::{InMemoryStore, Key, Scan, Store, StoreExt},
    testing::{
        drop_at_every_await,
        faults::{FaultConfig, FaultNetwork},
    },
    time::{Clock, ManualClock},
};

const S: fn(u64) -> Duration = Duration::from_secs;
const MS: fn(u64) -> Duration = Duration::from_millis;

fn queue(clock: &Clock) -> Arc<InMemoryQueue> {
    Arc::new(InMemoryQueue::builder("jobs").deduplicating_for(S(1_000_000)).clock(clock).build())
}

/// Sends this number of messages and makes each a dead letter.
fn set_aside(time: &ManualClock, queue: &dyn Queue, n: usize) {
    for i in 0..n {
        time.block_on(queue.send_one(Message::new(format!("{i:04}-{}", "x".repeat(20))))).unwrap();
    }
    let mut left = n;
    while left > 0 {
        let taken = time.block_on(queue.receive(Receive::new(100, S(30)))).unwrap();
        left -= taken.len();
        let dead = taken.into_iter().map(|taken| (taken.receipt, Settle::dead_letter("bad"))).collect();
        assert!(time.block_on(queue.settle(dead)).unwrap().iter().all(Result::is_ok));
    }
}

fn numbers(time: &ManualClock, queue: &dyn Queue) -> Vec<u32> {
    let peeked = time.block_on(queue.peek(1000)).unwrap();
    peeked.iter().filter_map(|peeked| String::from_utf8_lossy(peeked.body.get(..4)?).parse().ok()).collect()
}

fn number(letter: &steadfast::queue::Delivery) -> u32 {
    String::from_utf8_lossy(&letter.body[..4]).parse().unwrap()
}

#[test]
fn a_redrive_examines_each_letter_once_though_it_takes_longer_than_letters_stay_hidden() {
    let (clock, time) = Clock::manual();
    let queue = queue(&clock);
    set_aside(&time, &*queue, 150);
    let looks = RefCell::new(BTreeMap::<u32, u32>::new());
    let chosen = |letter: &steadfast::queue::Delivery| {
        time.advance(S(61));
        let total: u32 = {
            *looks.borrow_mut().entry(number(letter)).or_default() += 1;
            looks.borrow().values().sum()
        };
        assert!(total < 1000, "it does not end");
        number(letter).is_multiple_of(3)
    };
    assert_eq!(time.block_on(redrive(&*queue, usize::MAX, chosen)).unwrap(), 50);
    assert_eq!(looks.borrow().len(), 150);
    let most = looks.borrow().values().copied().max();
    assert!(most <= Some(1), "a letter was looked at {most:?} times");
    let mut sent = numbers(&time, &*queue);
    sent.sort_unstable();
    assert!(sent.into_iter().eq((0..150).step_by(3)), "each of the chosen once");
    let dead = queue.dead_letters().unwrap();
    assert_eq!(time.block_on(dead.depth()).unwrap().visible, 100, "the others are back");
}

#[test]
fn a_redrive_ends_though_each_request_takes_seconds() {
    let (clock, time) = Clock::manual();
    let queue = queue(&clock);
    set_aside(&time, &*queue, 300);
    let network = FaultNetwork::new(FaultConfig::default().latency(S(2), S(2)), 1, &clock).unwrap();
    let slow = network.client("a").queue(queue.clone());
    assert_eq!(time.block_on(redrive(&*slow, usize::MAX, |letter| number(letter).is_multiple_of(2))).unwrap(), 150);
    assert_eq!(numbers(&time, &*queue).len(), 150);
    let dead = queue.dead_letters().unwrap();
    assert_eq!(time.block_on(dead.depth()).unwrap().total(), 150);
    assert!(network.counts().requests < 2000, "{:?}", network.counts());
}

/// Regression: letters that were examined early returned, and hid those that were not examined yet.
#[test]
fn a_redrive_finds_the_last_of_5000_letters_though_each_request_takes_seconds() {
    let (clock, time) = Clock::manual();
    let queue = queue(&clock);
    set_aside(&time, &*queue, 5000);
    let network = FaultNetwork::new(FaultConfig::default().latency(MS(1500), MS(1500)), 1, &clock).unwrap();
    let slow = network.client("a").queue(queue.clone());
    assert_eq!(time.block_on(redrive(&*slow, usize::MAX, |letter| number(letter) >= 4999)).unwrap(), 1);
    assert_eq!(numbers(&time, &*queue), [4999]);
    let dead = queue.dead_letters().unwrap();
    assert_eq!(time.block_on(dead.depth()).unwrap().visible, 4999, "the others can be seen at once");
}

/// Regression: each batch of known letters doubled the time for which later ones were hidden, to
/// years.
#[test]
fn the_letters_of_a_slow_redrive_that_is_dropped_return_within_two_hours() {
    let (clock, time) = Clock::manual();
    let queue = queue(&clock);
    set_aside(&time, &*queue, 5000);
    let network = FaultNetwork::new(FaultConfig::default().latency(MS(1500), MS(1500)), 1, &clock).unwrap();
    let slow = network.client("a").queue(queue.clone());
    let dropped = async {
        tokio::select! {
            ended = redrive(&*slow, usize::MAX, |_| false) => panic!("it ended: {ended:?}"),
            () = clock.sleep(Duration::from_secs(200)) => {}
        }
    };
    time.block_on(dropped);
    time.advance(Duration::from_secs(2 * 3600));
    let dead = queue.dead_letters().unwrap();
    assert_eq!(time.block_on(dead.depth()).unwrap().visible, 5000);
}

#[test]
fn dead_letters_with_missing_bodies_stay_and_the_others_are_sent() {
    let (clock, time) = Clock::manual();
    let (plain, store) = (queue(&clock), Arc::new(InMemoryStore::builder().clock(&clock).build()));
    let config = ClaimCheckConfig::default().threshold(10).compress(false);
    let queue = ClaimCheck::builder(plain.clone(), store.clone(), config).clock(&clock).build().unwrap();
    set_aside(&time, &queue, 40);
    for row in time.block_on(store.scan_all(Scan::partition("claim-check"))).unwrap() {
        let number: u32 = String::from_utf8_lossy(&row.value[..4]).parse().unwrap();
        if number < 3 || number == 20 {
            time.block_on(store.delete(Key::new("claim-check", &row.row), Default::default())).unwrap();
        }
    }
    assert_eq!(time.block_on(redrive(&queue, 100, |_| true)).unwrap(), 36);
    let mut sent = numbers(&time, &queue);
    sent.sort_unstable();
    assert!(sent.into_iter().eq((3..40).filter(|n| *n != 20)));
    let dead = plain.dead_letters().unwrap();
    assert_eq!(time.block_on(dead.depth()).unwrap().visible, 4);
    // If none was sent, it returns the reason.
    let error = time.block_on(redrive(&queue, 100, |_| true)).unwrap_err();
    assert!(error.to_string().contains("claim"), "{error}");
    assert_eq!(time.block_on(dead.depth()).unwrap().visible, 4);
}

#[test]
fn a_redrive_to_a_full_queue_sends_as_many_as_fit_and_the_others_stay() {
    let (clock, time) = Clock::manual();
    let queue = Arc::new(InMemoryQueue::builder("jobs").bounded(10).clock(&clock).build());
    for _ in 0..2 {
        set_aside(&time, &*queue, 10);
    }
    assert_eq!(time.block_on(redrive(&*queue, 100, |_| true)).unwrap(), 10);
    let error = time.block_on(redrive(&*queue, 100, |_| true)).unwrap_err();
    assert!(error.to_string().contains("full"), "{error}");
    assert_eq!(time.block_on(queue.dead_letters().unwrap().depth()).unwrap().visible, 10);
}

/// The queue forgets de-duplication ids at once: only that sending a letter and completing it are one
/// step keeps it from being sent twice.
// Guarantee: queue 12.
#[test]
fn a_redrive_whose_replies_are_lost_sends_no_letter_twice() {
    for seed in 0..20 {
        let (clock, time) = Clock::manual();
        let builder = InMemoryQueue::builder("jobs").deduplicating_for(Duration::ZERO);
        let queue = Arc::new(builder.clock(&clock).build());
        set_aside(&time, &*queue, 40);
        let faults = FaultConfig::default().errors(0.1).lost_replies(0.2).doubled(0.2);
        let far = FaultNetwork::new(faults, seed, &clock).unwrap().client("a").queue(queue.clone());
        let dead = queue.dead_letters().unwrap();
        for _ in 0..1000 {
            // An error may have sent some.
            let _ = time.block_on(redrive(&*far, 100, |_| true));
            time.advance(S(61));
            if time.block_on(dead.depth()).unwrap().total() == 0 {
                break;
            }
        }
        let mut sent = numbers(&time, &*queue);
        sent.sort_unstable();
        assert!(sent.iter().copied().eq(0..40), "seed {seed}: {sent:?}");
    }
}

#[test]
fn a_redrive_dropped_at_any_await_loses_no_letter_and_sends_none_twice() {
    let (clock, time) = Clock::manual();
    let queue = queue(&clock);
    set_aside(&time, &*queue, 5);
    let network = FaultNetwork::new(FaultConfig::default().latency(MS(1), MS(1)), 1, &clock).unwrap();
    let far = network.client("a").queue(queue.clone());
    let (dead, drops) = (queue.dead_letters().unwrap(), Cell::new(0));
    let polls = drop_at_every_await(
        &time,
        || redrive(&*far, 10, |letter| number(letter) != 2),
        |_| {
            drops.set(drops.get() + 1);
            time.advance(S(61));
            let (sent, left) = (numbers(&time, &*queue), numbers(&time, &*dead));
            assert!((0..5).all(|n| sent.contains(&n) || left.contains(&n)), "lost: {sent:?} {left:?}");
            let mut once = sent.clone();
            once.sort_unstable();
            once.dedup();
            assert_eq!(once.len(), sent.len(), "sent twice: {sent:?}");
            assert!(left.contains(&2), "it was not chosen");
        },
    );
    assert!(polls >= 5 && drops.get() > 10, "{polls} {}", drops.get());
    assert_eq!(numbers(&time, &*dead), [2]);
}
