//! Waits in queues that wake their receivers.
use std::{
    cell::{Cell, RefCell},
    sync::Arc,
    time::Duration,
};

use steadfast::{
    queue::{InMemoryQueue, Message, PartitionedQueue, Queue, QueueExt},
    queue_listener::{Disposition, Level, QueueListener, QueueListenerConfig, Work},
    time::Instant,
};

use crate::queue_listener::{
    control::Place,
    world::{MS, Mode, S, World, never_wakes, text},
};

const DEFAULT: fn() -> QueueListenerConfig = QueueListenerConfig::default;

/// Lets a listener with the default settings run for a while beside this future.
fn beside<T, H: Future<Output = ()>>(
    world: &World,
    listener: &QueueListener,
    handler: impl Fn(Work) -> H,
    future: impl Future<Output = T>,
) -> T {
    let stop = tokio::sync::Notify::new();
    let run = listener.run(stop.notified(), handler);
    let future = async {
        let output = future.await;
        stop.notify_one();
        output
    };
    world.time.block_on(async { tokio::join!(async { run.await.unwrap() }, future).1 })
}

// Guarantee: queue_listener 2.
#[test]
fn a_message_is_handled_at_once_by_a_wait_that_began_before() {
    // At the end of the wait, the lease of the message counts as long over.
    for late in [S(1), S(20), S(59)] {
        let world = World::new();
        let listener = world.listener(DEFAULT(), 1);
        let handled = RefCell::new(Vec::new());
        let handler = async |work: Work| handled.borrow_mut().push((work.deliveries, world.now()));
        beside(&world, &listener, handler, async {
            world.clock.sleep(S(3600)).await;
            let begun = *world.line.calls("receive").last().unwrap();
            world.clock.sleep(S(60) + late - (world.now() - begun)).await;
            let polls = listener.state().polls;
            world.queue.send_one(Message::new("job")).await.unwrap();
            let sent = world.now();
            world.clock.sleep(MS(1)).await;
            assert_eq!(*handled.borrow(), [(1, sent)], "{late:?} after the begin of the wait");
            // The wait that took it, and the next one.
            assert_eq!(listener.state().polls, polls + 1);
            assert_eq!(world.line.calls("extend").len(), usize::from(late > S(15)));
        });
        assert_eq!((listener.state().handled, listener.state().leases_lost), (1, 0));
    }
}

// Guarantee: queue_listener 1.
#[test]
fn an_idle_day_costs_as_many_waits_as_polls_whatever_the_number_of_tasks() {
    for (config, seed) in (0..20).map(|seed| (DEFAULT(), seed)).chain([(DEFAULT().tasks(16, 16), 20)]) {
        let world = World::new();
        let listener = world.listener(config, seed);
        beside(&world, &listener, async |_: Work| {}, world.clock.sleep(S(22 * 3600)));
        let requests = world.line.calls("receive").len();
        assert_eq!(listener.state().requests, requests as u64);
        // The first poll of each task that starts finds the queue empty, before it is waited in.
        let polled = config.min_tasks as usize;
        assert!((1320..=1329 + polled).contains(&requests), "{requests}");
    }
}

/// A process that dies leaves its message hidden for the visibility time-out, not for the wait, too.
// Guarantee: queue_listener 16.
#[test]
fn a_message_that_a_wait_took_returns_after_its_visibility_time_out() {
    let world = World::new();
    let listener = world.listener(DEFAULT(), 1);
    let process = listener.run(std::future::pending(), async |_| std::future::pending::<()>().await);
    let send = async {
        world.clock.sleep(S(3650)).await;
        world.queue.send_one(Message::new("job")).await.unwrap();
        world.clock.sleep(MS(1)).await;
        assert_eq!(listener.state().in_flight, 1);
    };
    world.time.block_on(async {
        tokio::select! { _ = process => {}, () = send => {} }
    });
    world.time.advance(S(29));
    assert_eq!(world.depth().visible, 0);
    world.time.advance(S(1));
    assert_eq!(world.depth().visible, 1);
}

#[test]
fn a_message_whose_lease_cannot_be_renewed_at_the_end_of_a_wait_is_not_begun() {
    for (mode, lost) in [(Mode::Refuses, 1), (Mode::Hangs, 1), (Mode::Well, 0)] {
        let world = World::new();
        let listener = world.listener(DEFAULT(), 1);
        let begun = RefCell::new(Vec::new());
        beside(&world, &listener, async |work: Work| begun.borrow_mut().push(work.deliveries), async {
            world.clock.sleep(S(3600)).await;
            world.line.is("extend", mode);
            world.clock.sleep(S(60)).await;
            let begin = *world.line.calls("receive").last().unwrap();
            world.clock.sleep(S(50) - (world.now() - begin)).await;
            world.queue.send_one(Message::new("job")).await.unwrap();
            world.clock.sleep(S(6)).await;
            world.line.is("extend", Mode::Well);
            world.clock.sleep(S(60)).await;
        });
        assert_eq!(*begun.borrow(), [1 + lost], "{mode:?}");
        assert_eq!((listener.state().leases_lost, world.depth().total()), (u64::from(lost), 0));
    }
}

// Guarantee: queue_listener 8.
#[test]
fn a_stop_ends_a_wait_and_releases_what_it_took() {
    let world = World::new();
    let listener = world.listener(DEFAULT(), 1);
    let ends = beside(&world, &listener, async |_: Work| {}, async {
        world.clock.sleep(S(3610)).await;
        world.now()
    });
    assert!(world.now() - ends <= MS(50), "{:?}", world.now() - ends);
    // A request takes a message in this moment.
    world.line.takes("receive", MS(20));
    let handled = Cell::new(0);
    beside(&world, &listener, async |_: Work| handled.set(handled.get() + 1), async {
        world.clock.sleep(MS(145)).await;
        world.queue.send_one(Message::new("job")).await.unwrap();
    });
    assert_eq!((handled.get(), listener.state().released, world.depth().visible), (0, 1, 1));
}

// Guarantee: queue_listener 19.
#[test]
fn a_pause_ends_a_wait() {
    let world = World::new();
    let listener = world.listener(DEFAULT(), 1);
    let handled = RefCell::new(Vec::new());
    beside(&world, &listener, async |work: Work| handled.borrow_mut().push(work.deliveries), async {
        world.clock.sleep(S(3610)).await;
        listener.pause();
        world.clock.sleep(MS(60)).await;
        let polls = listener.state().polls;
        world.queue.send_one(Message::new("job")).await.unwrap();
        world.clock.sleep(S(3600)).await;
        assert_eq!((handled.borrow().len(), listener.state().polls), (0, polls));
        listener.resume();
        world.clock.sleep(MS(1)).await;
    });
    assert_eq!(*handled.borrow(), [1], "it was not received and released meanwhile");
}

/// The wait began before the pause, which has no notice.
// Guarantee: queue_listener 19.
#[test]
fn a_wait_hands_no_message_of_a_queue_that_was_paused_meanwhile_to_a_handler() {
    let place = Place::new();
    let (control, operator) = (place.silent(), place.silent());
    let listener = place.listener(&control, DEFAULT());
    let handled = Cell::new(0);
    let handler = async |_: Work| {
        handled.set(handled.get() + 1);
        Disposition::Complete
    };
    place.beside(&listener, handler, async {
        place.clock.sleep(S(3600)).await;
        operator.pause(&place.queue).await.unwrap();
        place.clock.sleep(S(30)).await;
        place.queue.send_one(Message::new("job")).await.unwrap();
        place.clock.sleep(S(3600)).await;
        assert_eq!((handled.get(), place.queue.depth().await.unwrap().visible), (0, 1));
        operator.resume(&place.queue).await.unwrap();
        place.clock.sleep(S(11)).await;
        assert_eq!(handled.get(), 1);
    });
}

/// A task that waited in the queue itself would leave the message to the task that polled it.
#[test]
fn an_idle_task_takes_a_message_that_was_offered_to_it_while_the_queue_is_waited_in() {
    let world = World::new();
    let listener = world.listener(DEFAULT().tasks(2, 2), 1);
    let begun = RefCell::new(Vec::new());
    let handler = async |work: Work| {
        begun.borrow_mut().push((text(&work.body), world.now()));
        world.clock.sleep(S(600)).await;
    };
    let sent = beside(&world, &listener, handler, async {
        world.clock.sleep(S(100)).await;
        world.queue.send(["a", "b"].map(Message::new).into()).await.unwrap();
        let sent = world.now();
        world.clock.sleep(S(700)).await;
        sent
    });
    assert_eq!(*begun.borrow(), [("a".to_owned(), sent), ("b".to_owned(), sent)]);
}

/// A waiter that received it again before a task did would never leave it to one.
// Guarantee: queue_listener 6.
#[test]
fn a_suspect_message_that_a_wait_took_is_handled_alone() {
    let world = World::new();
    for (what, takes) in [("receive", MS(1)), ("settle", MS(20))] {
        world.line.takes(what, takes);
    }
    let dies = world.listener(DEFAULT(), 1);
    let process = dies.run(std::future::pending(), async |_| std::future::pending::<()>().await);
    world.send("kills its process");
    world.time.block_on(async {
        tokio::select! { _ = process => {}, () = world.clock.sleep(S(1)) => {} }
    });
    let listener = world.listener(DEFAULT(), 2);
    let (at_once, handled) = (Cell::new(0), RefCell::new(Vec::new()));
    let handler = async |work: Work| {
        at_once.set(at_once.get() + 1);
        if work.expiries > 0 {
            world.clock.sleep(S(10)).await;
            assert_eq!(at_once.get(), 1, "it is alone");
        }
        handled.borrow_mut().push(text(&work.body));
        at_once.set(at_once.get() - 1);
    };
    beside(&world, &listener, handler, async {
        // It returns after 30 s.
        world.clock.sleep(S(31)).await;
        world.queue.send_one(Message::new("another")).await.unwrap();
        world.clock.sleep(S(30)).await;
    });
    assert_eq!(*handled.borrow(), ["kills its process", "another"]);
    let requests = listener.state().requests;
    assert!(requests < 40, "{requests}");
}

/// A waiter of one queue held the capacity of the others.
#[test]
fn a_wait_in_one_queue_leaves_the_capacity_to_the_others() {
    let polls = |world: World| {
        let other = Arc::new(InMemoryQueue::builder("other").clock(&world.clock).build());
        let listener = world.builder(DEFAULT(), 1).source(never_wakes(&other), Level::default()).build().unwrap();
        beside(&world, &listener, async |_: Work| world.clock.sleep(MS(100)).await, async {
            world.clock.sleep(S(100)).await;
            other.send((0..320).map(|i| Message::new(format!("{i}"))).collect()).await.unwrap();
            let polls = listener.state().polls;
            world.clock.sleep(S(90)).await;
            assert_eq!(listener.state().handled, 320);
            listener.state().polls - polls
        })
    };
    let (beside_a_wait, alone) = (polls(World::new()), polls(World::polled()));
    assert!(beside_a_wait <= alone, "{beside_a_wait} polls beside a wait, {alone} without");
}

/// The partitions may be on a server. A wait in several of them that is dropped may have taken messages.
#[test]
fn a_listener_of_a_partitioned_queue_polls() {
    let world = World::new();
    let part =
        |name: &'static str| Arc::new(InMemoryQueue::builder(name).clock(&world.clock).build()) as Arc<dyn Queue>;
    let queue = Arc::new(PartitionedQueue::new(vec![part("one"), part("two")]).unwrap());
    let builder = QueueListener::builder(queue.clone(), DEFAULT()).clock(&world.clock);
    let listener = builder.build().unwrap();
    let handled = RefCell::new(Vec::<Instant>::new());
    let late = beside(&world, &listener, async |_: Work| handled.borrow_mut().push(world.now()), async {
        world.clock.sleep(S(3600)).await;
        queue.send_one(Message::new("job")).await.unwrap();
        let sent = world.now();
        world.clock.sleep(S(60)).await;
        sent
    });
    let waited: Duration = handled.borrow()[0] - late;
    assert!(waited > Duration::ZERO && waited <= S(60), "{waited:?}");
}
