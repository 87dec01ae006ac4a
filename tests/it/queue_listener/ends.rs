//! The end of messages that fail, and the stop of a listener.
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    future::pending,
    sync::Arc,
};

use steadfast::{
    entropy::Entropy,
    port::PortErrorKind,
    queue::{IdempotencyFilter, InMemoryQueue, Message, Queue, QueueExt},
    queue_listener::{Disposition, Level, PriorityOrder, QueueListenerConfig, QueueListenerEvent as Event, Work},
    store::{InMemoryStore, Key, Store},
};

use crate::queue_listener::world::{MS, Mode, S, World, text, told};

// Guarantee: queue_listener 6.
#[test]
fn a_message_whose_handler_never_ends_becomes_a_dead_letter_after_its_deliveries() {
    let world = World::new();
    world.send("kills");
    world.send("is well");
    let begun = RefCell::new(Vec::new());
    // Each listener is dropped midway, as if its process had died.
    for seed in 0..10 {
        let listener = world.listener(QueueListenerConfig::default().max_attempts(3), seed);
        let killed = Cell::new(false);
        let run = listener.run(pending(), async |work: Work| {
            begun.borrow_mut().push(text(&work.body));
            if &work.body[..] == b"kills" {
                killed.set(true);
                pending().await
            }
        });
        let dies = async {
            while !killed.get() {
                world.clock.sleep(MS(10)).await;
            }
        };
        world.run(S(1), async {
            tokio::select! { _ = run => {}, () = dies => {} }
        });
        world.time.advance(S(31));
    }
    assert_eq!(begun.borrow().iter().filter(|body| *body == "kills").count(), 3);
    assert_eq!(world.depth().total(), 0);
    let dead = world.dead();
    assert_eq!(dead.len(), 1);
    assert!(dead[0].0 == "kills" && dead[0].1.starts_with("exceeded max attempts"), "{dead:?}");
}

// Guarantee: queue_listener 6.
#[test]
fn a_failing_message_is_retried_with_growing_delays_and_becomes_a_dead_letter_with_its_error() {
    let world = World::new();
    world.send("bad");
    let listener = world.listener(QueueListenerConfig::default().max_attempts(4), 1);
    let mut events = listener.events();
    let tries = Cell::new(0);
    let run = listener.run(world.clock.sleep(S(600)), async |work: Work| {
        tries.set(tries.get() + 1);
        assert_eq!(work.deliveries, tries.get());
        Err::<(), _>(format!("no such account, try {}", tries.get()))
    });
    world.time.block_on(run).unwrap();
    assert_eq!(tries.get(), 4);
    let (body, reason) = world.dead().remove(0);
    assert_eq!(body, "bad");
    assert!(
        reason.starts_with(
            "exceeded max attempts: no such account, try 4 (attempt 4, delivery 4, dead-lettered at 1970-01-01T"
        ),
        "{reason}"
    );
    let told = told(&mut events);
    let failed = told.iter().filter(|event| matches!(event, Event::Failed { .. })).count();
    let dead = told.iter().filter(|event| matches!(event, Event::DeadLettered { .. })).count();
    assert_eq!((failed, dead), (3, 1), "{told:?}");
    let state = listener.state();
    assert_eq!((state.failed, state.dead_lettered, state.handled), (3, 1, 0));
}

// Guarantee: queue_listener 6.
#[test]
fn a_panic_is_a_failure_of_its_message_and_of_nothing_else() {
    let world = World::new();
    for body in ["at once", "later", "fine"] {
        world.send(body);
    }
    let listener = world.listener(QueueListenerConfig::default().max_attempts(1), 1);
    let run = listener.run(world.clock.sleep(S(60)), async |work: Work| match &work.body[..] {
        b"at once" => panic!("oh"),
        b"later" => {
            world.clock.sleep(S(1)).await;
            panic!("{}", "dear")
        }
        _ => {}
    });
    world.time.block_on(run).unwrap();
    let mut dead = world.dead();
    dead.sort();
    assert!(dead[0].1.contains("the handler panicked: oh"), "{dead:?}");
    assert!(dead[1].1.contains("the handler panicked: dear"), "{dead:?}");
    assert_eq!((dead.len(), listener.state().handled), (2, 1));
}

// Guarantee: queue_listener 7.
#[test]
fn a_listener_dropped_while_it_dead_letters_a_message_leaves_one_dead_letter() {
    for mode in [Mode::Well, Mode::LosesReplies] {
        let world = World::new();
        world.send("bad");
        for polls in 0..40 {
            world.line.is("settle", mode);
            // Each drop leaves a delivery without a settlement.
            let config = QueueListenerConfig::default().max_expiries(u32::MAX);
            let listener = world.listener(config, polls);
            let mut run = Box::pin(listener.run(pending(), async |_| Disposition::dead_letter("bad")));
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            for _ in 0..polls {
                let _ = run.as_mut().poll(&mut cx);
                world.time.advance(MS(20));
            }
            drop(run);
            world.time.advance(S(31));
            assert_eq!(world.depth().total() + world.dead().len() as u64, 1);
        }
        assert_eq!(world.dead().len(), 1);
        assert!(world.dead()[0].1.starts_with("bad"));
    }
}

// Guarantee: queue_listener 8.
#[test]
fn a_stop_releases_waiting_messages_then_cancels_and_drops_handlers_and_settles() {
    let world = World::new();
    let config = QueueListenerConfig::default().tasks(1, 3).batch(8).stop_within(S(10), S(12));
    let listener = world.listener(config, 1);
    for body in ["quick", "obeys", "hangs", "d", "e", "f", "g"] {
        world.send(body);
    }
    let start = world.now();
    let ends = RefCell::new(BTreeMap::new());
    let run = listener.run(world.clock.sleep(S(1)), async |work: Work| {
        match &work.body[..] {
            b"quick" => world.clock.sleep(S(5)).await,
            b"obeys" => work.cancelled().await,
            b"hangs" => pending().await,
            other => panic!("nobody begins with {other:?}"),
        }
        ends.borrow_mut().insert(text(&work.body), world.now() - start);
    });
    let looks = async {
        world.clock.sleep(MS(1001)).await;
        (world.queue.depth().await.unwrap(), world.line.calls("receive").len())
    };
    let (ran, (depth, receives)) = world.time.block_on(async { tokio::join!(run, looks) });
    ran.unwrap();
    assert_eq!((depth.visible, depth.in_flight), (4, 3), "what nobody began with is back at once");
    assert_eq!(world.line.calls("receive").len(), receives, "no new dequeue");
    assert_eq!(*ends.borrow(), BTreeMap::from([("quick".to_owned(), S(5)), ("obeys".to_owned(), S(11))]));
    assert_eq!(world.now() - start, S(13), "dropped at the hard limit");
    assert_eq!(listener.state().handled, 2, "settled, also after it was told");
    assert_eq!(world.depth().visible, 5, "and what was dropped is back at once");
}

// Guarantee: queue_listener 8.
#[test]
fn handled_messages_are_settled_though_the_queue_fails_for_a_while() {
    let world = World::new();
    world.send("a");
    world.line.is("settle", Mode::Refuses);
    let listener = world.listener(QueueListenerConfig::default(), 1);
    let run = listener.run(world.clock.sleep(S(2)), async |_| {});
    let mends = async {
        world.clock.sleep(S(9)).await;
        world.line.is("settle", Mode::Well);
    };
    world.time.block_on(async { tokio::join!(run, mends).0 }).unwrap();
    assert_eq!((listener.state().handled, world.depth().total()), (1, 0));
}

// Guarantee: queue_listener 9.
#[test]
#[ignore = "takes seconds: `.ci/run` runs it"]
fn messages_of_a_group_are_handled_in_order_and_groups_in_parallel() {
    let world = World::new();
    let (keys, each) = (10, 1000);
    for i in 0..each {
        let batch = (0..keys).map(|key| Message::new(format!("{i}")).group(format!("key-{key}"))).collect();
        world.time.block_on(world.queue.send(batch)).unwrap();
    }
    let entropy = Entropy::from_seed(7);
    let config = QueueListenerConfig::default().tasks(16, 16).max_attempts(u32::MAX);
    let listener = world.listener(config, 1);
    let (now, most) = (RefCell::new(BTreeSet::new()), Cell::new(0));
    let done = RefCell::new(BTreeMap::<String, Vec<u32>>::new());
    let all = Cell::new(0);
    let run = listener.run(
        async {
            while all.get() < keys * each {
                world.clock.sleep(S(1)).await;
            }
        },
        async |work: Work| {
            let key = work.group.clone().unwrap();
            assert!(now.borrow_mut().insert(key.clone()), "one at a time");
            most.set(most.get().max(now.borrow().len()));
            world.clock.sleep(MS(1 + entropy.up_to(20))).await;
            now.borrow_mut().remove(&key);
            if entropy.unit() < 0.05 {
                return Disposition::retry_after(MS(entropy.up_to(50)), "at random");
            }
            done.borrow_mut().entry(key).or_default().push(text(&work.body).parse().unwrap());
            all.set(all.get() + 1);
            Disposition::Complete
        },
    );
    world.time.block_on(run).unwrap();
    assert!(done.borrow().values().all(|done| done.iter().copied().eq(0..each)), "in order within each key");
    assert!(most.get() > 8, "{} keys at once", most.get());
}

/// Returns the longest wait of a low-priority message: a flood of high priority, and one low
/// message each ten seconds.
fn longest_wait(low: Level) -> (usize, std::time::Duration) {
    let world = World::new();
    let second = Arc::new(InMemoryQueue::builder("low").clock(&world.clock).build());
    let config = QueueListenerConfig::default().tasks(1, 4).batch(4);
    let builder = world.builder(config, 1).level(Level::default().priority(1)).source(second.clone(), low);
    let listener = builder.order(PriorityOrder::Strict).build().unwrap();
    let sent = RefCell::new(BTreeMap::new());
    let waits = RefCell::new(Vec::new());
    let run = listener.run(world.clock.sleep(S(300)), async |work: Work| {
        let body = text(&work.body);
        if let Some(sent) = sent.borrow().get(&body) {
            waits.borrow_mut().push(world.now() - *sent);
        }
        world.clock.sleep(MS(100)).await;
    });
    // 80 a second, where 40 can be handled.
    let flood = async {
        for i in 0..3000 {
            let batch = (0..8).map(|_| Message::new("high")).collect();
            world.queue.send(batch).await.unwrap();
            if i % 100 == 50 {
                sent.borrow_mut().insert(format!("low-{i}"), world.now());
                second.send_one(Message::new(format!("low-{i}"))).await.unwrap();
            }
            world.clock.sleep(MS(100)).await;
        }
    };
    world.time.block_on(async { tokio::join!(run, flood).0 }).unwrap();
    (waits.borrow().len(), waits.borrow().iter().max().copied().unwrap_or_default())
}

// Guarantee: queue_listener 10.
#[test]
#[ignore = "takes seconds: `.ci/run` runs it"]
fn ageing_bounds_the_wait_of_the_lowest_priority_which_starves_without_it() {
    let (handled, longest) = longest_wait(Level::default().priority(0).max_wait(S(5)));
    // The bound, plus the time of the batches before it.
    assert!(handled >= 29 && longest <= S(5) + S(1), "{handled} handled, waited {longest:?}");
    let (handled, _) = longest_wait(Level::default().priority(0));
    assert_eq!(handled, 0, "starved");
}

// Guarantee: queue_listener 10.
#[test]
fn under_weighted_order_each_queue_has_its_share() {
    let world = World::new();
    let second = Arc::new(InMemoryQueue::builder("other").clock(&world.clock).build());
    for queue in [&world.queue, &second] {
        for _ in 0..20 {
            world.time.block_on(queue.send((0..100).map(|_| Message::new("x")).collect())).unwrap();
        }
    }
    let config = QueueListenerConfig::default().tasks(1, 1).batch(1);
    let builder =
        world.builder(config, 1).level(Level::default().weight(3)).source(second.clone(), Level::default().weight(1));
    let listener = builder.order(PriorityOrder::Weighted).build().unwrap();
    let run = listener.run(world.clock.sleep(S(100)), async |_| world.clock.sleep(MS(100)).await);
    world.time.block_on(run).unwrap();
    let left = world.time.block_on(second.depth()).unwrap().total();
    assert_eq!((2000 - world.depth().total(), 2000 - left), (750, 250));
}

// Guarantee: queue_listener 11.
#[test]
fn if_3_of_a_batch_of_10_fail_those_3_are_delivered_again() {
    let world = World::new();
    (0..10).for_each(|i| drop(world.send(&format!("{i}"))));
    let listener = world.listener(QueueListenerConfig::default().tasks(1, 1), 1);
    let seen = RefCell::new(Vec::new());
    let run = listener.run_batches(world.clock.sleep(S(300)), async |works: Vec<Work>| {
        world.clock.sleep(S(40)).await; // renewed meanwhile
        let bodies: Vec<_> = works.iter().map(|work| text(&work.body)).collect();
        let first = seen.borrow().is_empty();
        seen.borrow_mut().push(bodies.clone());
        let fails = |body: &String| first && ["2", "5", "7"].contains(&body.as_str());
        bodies.iter().map(|body| if fails(body) { Disposition::retry("no") } else { Disposition::Complete }).collect()
    });
    world.time.block_on(run).unwrap();
    let seen = seen.into_inner();
    assert_eq!(seen[0].len(), 10);
    let mut again: Vec<_> = seen[1..].concat();
    again.sort();
    assert_eq!(again, ["2", "5", "7"]);
    assert_eq!((world.depth().total(), listener.state().handled, listener.state().failed), (0, 10, 3));
}

// Guarantee: queue_listener 14.
#[test]
fn a_message_that_the_filter_knows_is_completed_without_its_handler() {
    let world = World::new();
    let store = Arc::new(InMemoryStore::builder().clock(&world.clock).build());
    let filter = IdempotencyFilter::new(store.clone(), "seen", S(600)).by(|delivery| delivery.headers["order"].clone());
    let listener = world.builder(QueueListenerConfig::default(), 1).idempotency_filter(filter).build().unwrap();
    let handled = RefCell::new(Vec::new());
    let run = listener.run(world.clock.sleep(S(2000)), async |work: Work| {
        handled.borrow_mut().push(work.headers["order"].clone());
        if handled.borrow().len() == 1 { Err("not yet") } else { Ok(()) }
    });
    let send = async {
        for (after, order) in [(1, "a"), (60, "a"), (60, "b"), (1000, "a")] {
            world.clock.sleep(S(after)).await;
            world.queue.send_one(Message::new("charge").header("order", order)).await.unwrap();
        }
    };
    world.time.block_on(async { tokio::join!(run, send).0 }).unwrap();
    // It failed once, which is not recorded; and the window is over at the end.
    assert_eq!(*handled.borrow(), ["a", "a", "b", "a"]);
    assert_eq!(listener.state().duplicates, 1);
    assert!(world.time.block_on(store.get(Key::new("seen", "b"))).unwrap().is_none(), "its window is over");
}

#[test]
fn a_paused_listener_releases_waiting_messages_takes_none_and_resumes_at_once() {
    let world = World::new();
    (0..4).for_each(|i| drop(world.send(&format!("{i}"))));
    let listener = world.listener(QueueListenerConfig::default().tasks(1, 2), 1);
    let run = listener.run(world.clock.sleep(S(200)), async |_| world.clock.sleep(S(10)).await);
    let script = async {
        world.clock.sleep(S(1)).await;
        assert_eq!(listener.state().in_flight, 2);
        listener.drain().await;
        let (now, state) = (world.now(), listener.state());
        assert_eq!((state.handled, state.in_flight, state.buffered, state.paused), (2, 0, 0, true));
        assert_eq!(world.queue.depth().await.unwrap().visible, 2);
        // Nothing is received, however long the pause is, and though the queue cannot be reached
        // meanwhile.
        let receives = world.line.calls("receive").len();
        world.line.is("", Mode::Refuses);
        world.clock.sleep(S(100)).await;
        world.line.is("", Mode::Well);
        assert_eq!(world.line.calls("receive").len(), receives);
        listener.resume();
        world.clock.sleep(MS(1)).await;
        assert_eq!(listener.state().in_flight, 2);
        now
    };
    let (ran, _) = world.time.block_on(async { tokio::join!(run, script) });
    ran.unwrap();
    assert_eq!(listener.state().handled, 4);
}

#[test]
fn a_busy_queue_is_polled_less_often_and_a_permanent_error_ends_the_run() {
    let world = World::new();
    world.line.is("receive", Mode::Refuses);
    let listener = world.listener(QueueListenerConfig::default().tasks(1, 1), 1);
    let run = listener.run(world.clock.sleep(S(600)), async |_| {});
    world.time.block_on(run).unwrap();
    let polls = world.line.calls("receive").len();
    assert!((40..120).contains(&polls), "up to 20 s, full jitter: {polls}");
    world.line.is("receive", Mode::Denied);
    let denied = world.listener(QueueListenerConfig::default(), 1);
    let ended = world.run(S(60), denied.run(pending(), async |_| {})).expect("it ends by itself");
    assert_eq!(ended.unwrap_err().kind(), PortErrorKind::Denied);
}

#[test]
fn a_handler_that_times_out_is_asked_to_stop_then_dropped_and_its_message_fails() {
    let world = World::new();
    world.send("slow");
    let config = QueueListenerConfig::default().handler_timeout(S(5)).max_attempts(1);
    let listener = world.listener(config, 1);
    let (start, told_at) = (world.now(), Cell::new(None));
    let run = listener.run(world.clock.sleep(S(60)), async |work: Work| {
        work.cancelled().await;
        told_at.set(Some(world.now() - start));
        pending::<()>().await
    });
    world.time.block_on(run).unwrap();
    assert_eq!(told_at.get(), Some(S(5)));
    assert!(world.dead()[0].1.contains("the handler timed out"));
}
