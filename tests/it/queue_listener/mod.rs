//! Idle costs, wake-ups, and leases of a listener.
mod control;
mod control_model;
mod crashes;
mod drops;
mod ends;
mod forwards;
mod more;
mod outages;
mod reconfigure;
mod room;
mod slowness;
mod snooze;
mod suspects;
mod unsettled;
mod waits;
pub(crate) mod world;

use std::{
    cell::{Cell, RefCell},
    sync::Arc,
    time::Duration,
};

use steadfast::{
    entropy::Entropy,
    notify::{InMemoryNotifier, Notifier},
    queue::{Message, QueueExt},
    queue_listener::{IdleConfig, QueueListener, QueueListenerConfig, QueueListenerEvent as Event, Work},
};

use crate::queue_listener::world::{MS, Mode, S, World, text, told};

/// 22 idle hours.
const DAY: Duration = Duration::from_secs(22 * 3600);

async fn nothing(work: Work) {
    panic!("there is no work, but {work:?}");
}

/// Requests of a listener that idles for this time.
fn idle_requests(world: &World, listener: &QueueListener, time: Duration) -> u64 {
    let before = listener.state().requests;
    world.time.block_on(listener.run(world.clock.sleep(time), nothing)).unwrap();
    listener.state().requests - before
}

// Guarantee: queue_listener 1.
#[test]
#[ignore = "takes seconds: `.ci/run` runs it"]
fn an_idle_day_costs_79200_requests_naively_1330_or_276_adaptively_and_none_with_a_notifier() {
    let config = QueueListenerConfig::default();
    let naive = {
        let world = World::polled();
        let listener = world.listener(config.tasks(1, 1).idle(IdleConfig::between(S(1), S(1)).delta(S(0))), 1);
        idle_requests(&world, &listener, DAY)
    };
    assert_eq!(naive, 79_200);
    let adaptive = |max, at_most| {
        let mut most = 0;
        for seed in 0..20 {
            let world = World::polled();
            let listener = world.listener(config.idle(IdleConfig::between(MS(100), max)), seed);
            most = most.max(idle_requests(&world, &listener, DAY));
        }
        assert!(most <= at_most && most > at_most - 10, "{most}");
        most
    };
    let (minute, five) = (adaptive(S(60), 1330), adaptive(S(300), 276));
    let woken = {
        let world = World::new();
        let notifier = Arc::new(InMemoryNotifier::new());
        let listener = world.builder(config.tasks(0, 16), 1).notifier(notifier, "jobs").build().unwrap();
        let run = listener.run(world.clock.sleep(DAY + S(3601)), nothing);
        let counts = async {
            world.clock.sleep(S(3600)).await;
            // A look at the state costs a request for the depth, at most each minute.
            listener.state();
            world.clock.sleep(S(1)).await;
            let before = listener.state();
            assert_eq!(before.tasks, 0);
            world.clock.sleep(DAY).await;
            listener.state().requests - before.requests
        };
        world.time.block_on(async { tokio::join!(run, counts).1 })
    };
    assert_eq!(woken, 0);
    println!("requests in 22 idle hours: each second {naive}, to 60 s {minute}, to 300 s {five}, woken {woken}");
}

/// Maximum number of polls in one second of this idle time, of sixteen listeners with these sources
/// of randomness.
fn most_polls_at_once(world: &World, time: Duration, streams: impl Iterator<Item = Option<Entropy>>) -> usize {
    let start = world.now();
    let listeners: Vec<_> = streams
        .map(|stream| {
            let builder = QueueListener::builder(world.line.clone(), Default::default()).clock(&world.clock);
            match stream {
                Some(stream) => builder.entropy(&stream),
                None => builder,
            }
        })
        .map(|builder| builder.build().unwrap())
        .collect();
    assert_eq!(listeners.len(), 16);
    let runs = listeners.iter().map(|listener| listener.run(world.clock.sleep(time), nothing));
    world.time.block_on(futures::future::join_all(runs));
    let polls: Vec<_> = world.line.calls("receive").into_iter().filter(|at| *at - start > S(180)).collect();
    assert!(polls.len() as u64 >= 16 * (time - S(300)).as_secs() / 60, "{} polls", polls.len());
    // In the second that begins with each poll.
    let (mut most, mut end) = (0, 0);
    for (begin, at) in polls.iter().enumerate() {
        while polls.get(end).is_some_and(|poll| *poll - *at < S(1)) {
            end += 1;
        }
        most = most.max(end - begin);
    }
    most
}

// Guarantee: queue_listener 1.
/// On average a quarter of a poll falls into a second. An earlier bound also held if all sixteen
/// polled at once.
#[test]
#[ignore = "takes seconds: `.ci/run` runs it"]
fn sixteen_pollers_stay_decorrelated_over_the_idle_day() {
    for seed in 0..10 {
        let time = if seed == 0 { DAY } else { S(3_600) };
        let streams = (0..16).map(|i| Some(Entropy::from_seed(seed * 16 + i)));
        let most = most_polls_at_once(&World::new(), time, streams);
        assert!(most <= 5, "seed {seed}: {most} of 16 in one second");
    }
    // Each draws from its own source if none is given.
    let most = most_polls_at_once(&World::new(), S(3_600), (0..16).map(|_| None));
    assert!(most <= 8, "streams of the system: {most} of 16 in one second");
    // One seed for all of them would be found.
    let most = most_polls_at_once(&World::new(), S(3_600), (0..16).map(|_| Some(Entropy::from_seed(1))));
    assert_eq!(most, 16);
}

// Guarantee: queue_listener 1.
#[test]
fn at_the_maximum_delay_every_task_but_one_ends_by_itself_at_its_own_time() {
    let world = World::new();
    let listener = world.listener(QueueListenerConfig::default().tasks(1, 10), 5);
    let mut events = listener.events();
    (0..20).for_each(|i| drop(world.send(&format!("{i}"))));
    let run = listener.run(world.clock.sleep(S(600)), async |_| world.clock.sleep(MS(10)).await);
    world.time.block_on(run).unwrap();
    let mut ended = Vec::new();
    while let Some(event) = events.try_recv().unwrap() {
        if let Event::ScaledDown { tasks } = event.what {
            ended.push((event.at, tasks));
        }
    }
    assert_eq!(ended.iter().map(|(_, tasks)| *tasks).collect::<Vec<_>>(), [9, 8, 7, 6, 5, 4, 3, 2, 1]);
    ended.dedup_by_key(|(at, _)| *at);
    assert_eq!(ended.len(), 9, "each draws its own delays");
    assert_eq!((listener.state().most_tasks, listener.state().handled), (10, 20));
}

// Guarantee: queue_listener 2.
#[test]
fn the_first_message_after_an_idle_hour_starts_within_50_ms_of_its_notice() {
    for min in [0, 1] {
        let world = World::new();
        let notifier = Arc::new(InMemoryNotifier::new());
        let config = QueueListenerConfig::default().tasks(min, 16);
        let listener = world.builder(config, 1).notifier(notifier.clone(), "jobs").build().unwrap();
        let started = Cell::new(None);
        let run = listener.run(world.clock.sleep(S(3700)), async |_| started.set(Some(world.now())));
        let sent = Cell::new(None);
        let send = async {
            world.clock.sleep(S(3600)).await;
            let before = listener.state().requests;
            sent.set(Some(world.now()));
            world.queue.send_one(Message::new("job")).await.unwrap();
            notifier.publish("jobs", "".into()).await.unwrap();
            before
        };
        let (ran, requests) = world.time.block_on(async { tokio::join!(run, send) });
        ran.unwrap();
        assert!(started.get().unwrap() - sent.get().unwrap() <= MS(50));
        assert!(requests <= 120, "at most two a minute: {requests}");
    }
}

// Guarantee: queue_listener 2.
#[test]
fn without_the_notifier_a_message_starts_within_the_maximum_interval() {
    let world = World::new();
    // Its notices reach no listener.
    let notifier = Arc::new(InMemoryNotifier::new());
    let listener = world.builder(QueueListenerConfig::default(), 1).notifier(notifier, "jobs").build().unwrap();
    let started = Cell::new(None);
    let run = listener.run(world.clock.sleep(S(3700)), async |_| started.set(Some(world.now())));
    let send = async {
        world.clock.sleep(S(3601)).await;
        world.queue.send_one(Message::new("job")).await.unwrap();
        world.now()
    };
    let (_, sent) = world.time.block_on(async { tokio::join!(run, send) });
    let after = started.get().unwrap() - sent;
    assert!(after <= S(60), "{after:?}");
}

// Guarantee: queue_listener 3.
#[test]
fn a_handler_of_ten_visibility_time_outs_gets_its_message_once() {
    for failing in [0.0, 0.4] {
        for seed in 0..10 {
            let world = World::new();
            world.line.fails_renewals(failing);
            world.send("long");
            let (listener, other) =
                (world.listener(QueueListenerConfig::default(), seed), world.listener(Default::default(), 99));
            let begins = RefCell::new(Vec::new());
            let handler = async |_: Work| {
                begins.borrow_mut().push(world.now());
                world.clock.sleep(S(300)).await;
            };
            // Another listener is ready to take it at once.
            let runs = async {
                tokio::join!(
                    listener.run(world.clock.sleep(S(400)), &handler),
                    other.run(world.clock.sleep(S(400)), &handler)
                )
            };
            let (one, two) = world.time.block_on(runs);
            one.and(two).unwrap();
            let begins = begins.into_inner();
            assert_eq!(begins.len(), 1);
            let renewals = world.line.calls("extend");
            assert!(renewals[0] - begins[0] <= S(10));
            if failing == 0.0 {
                assert!(renewals.windows(2).all(|pair| pair[1] - pair[0] <= S(10)), "a third of the lease");
                assert!((29..=31).contains(&renewals.len()), "and not more often: {}", renewals.len());
            }
            assert_eq!(listener.state().handled + other.state().handled, 1);
            assert_eq!(world.depth().total(), 0);
        }
    }
}

// Guarantee: queue_listener 4.
#[test]
fn a_handler_is_asked_to_stop_before_its_lease_ends_and_its_late_completion_is_refused() {
    for mode in [Mode::Hangs, Mode::Refuses] {
        let world = World::new();
        world.send("job");
        let listener = world.listener(QueueListenerConfig::default(), 1);
        let other = world.queue.clone();
        let mut events = listener.events();
        let start = world.now();
        let told_at = Cell::new(None);
        let run = listener.run(world.clock.sleep(S(100)), async |work: Work| {
            work.cancelled().await;
            told_at.set(Some(world.now() - start));
        });
        let script = async {
            world.clock.sleep(S(5)).await;
            world.line.is("", mode);
            // The lease ends, and another listener takes the message; then the backend returns.
            world.clock.sleep(S(26)).await;
            let taken = other.receive_one(S(60)).await.unwrap().expect("its lease has ended");
            assert_eq!(taken.deliveries, 2);
            world.line.is("", Mode::Well);
            world.clock.sleep(S(20)).await;
            other.complete(&taken.receipt).await.unwrap();
        };
        let (ran, ()) = world.time.block_on(async { tokio::join!(run, script) });
        ran.unwrap();
        // Received at the start, never renewed.
        assert_eq!(told_at.get(), Some(S(28)), "{mode:?}");
        let lost = told(&mut events).into_iter().filter(|event| matches!(event, Event::LeaseLost { .. })).count();
        assert_eq!((lost, listener.state().leases_lost, listener.state().handled), (1, 1, 0), "{mode:?}");
    }
}

// Guarantee: queue_listener 4.
#[test]
fn a_handler_that_does_not_stop_is_dropped_when_its_lease_ends() {
    let world = World::new();
    world.send("job");
    let listener = world.listener(QueueListenerConfig::default(), 1);
    let start = world.now();
    world.line.is("extend", Mode::Hangs);
    let (begun, dropped) = (Cell::new(0), Cell::new(None));
    struct Drops<'a>(&'a World, &'a Cell<Option<steadfast::time::Instant>>);
    impl Drop for Drops<'_> {
        fn drop(&mut self) {
            self.1.set(self.1.get().or(Some(self.0.now())));
        }
    }
    let run = listener.run(world.clock.sleep(S(29)), async |_| {
        begun.set(begun.get() + 1);
        let _drops = Drops(&world, &dropped);
        std::future::pending::<()>().await
    });
    world.time.block_on(run).unwrap();
    assert_eq!(dropped.get().unwrap() - start, S(30));
    assert_eq!((begun.get(), listener.state().leases_lost), (1, 1));
}

// Guarantee: queue_listener 5.
#[test]
fn waiting_messages_are_renewed_and_none_begins_with_less_than_the_margin() {
    for seed in 0..5 {
        let world = World::new();
        world.line.fails_renewals(0.3);
        let listener = world.listener(QueueListenerConfig::default().tasks(1, 1).batch(8), seed);
        // So quick that it takes all the others at once.
        world.send("quick");
        (0..8).for_each(|i| drop(world.send(&format!("{i}"))));
        let begun = RefCell::new(Vec::new());
        let run = listener.run(world.clock.sleep(S(250)), async |work: Work| {
            if &work.body[..] == b"quick" {
                return;
            }
            begun.borrow_mut().push(work.deliveries);
            // The listener still has the lease: no other can have the message for longer than the
            // margin.
            let left = async {
                world.clock.sleep(S(2)).await;
                world.queue.receive_one(S(1)).await.unwrap()
            };
            assert_eq!(left.await, None);
            world.clock.sleep(S(20)).await;
        });
        world.time.block_on(run).unwrap();
        assert_eq!(*begun.borrow(), [1; 8], "each is handed out once");
        assert_eq!((listener.state().handled, listener.state().leases_lost), (9, 0));
    }
}

// Guarantee: queue_listener 5.
#[test]
fn a_message_whose_lease_cannot_be_renewed_is_not_begun() {
    let world = World::new();
    let listener = world.listener(QueueListenerConfig::default().tasks(1, 1), 1);
    // So quick that it takes several at once.
    for body in ["quick", "quick", "slow", "waits"] {
        world.send(body);
    }
    let begun = RefCell::new(Vec::new());
    let run = listener.run(world.clock.sleep(S(29)), async |work: Work| {
        if &work.body[..] == b"quick" {
            return;
        }
        begun.borrow_mut().push((text(&work.body), work.deliveries));
        if &work.body[..] == b"slow" {
            world.line.is("extend", Mode::Refuses);
            world.clock.sleep(MS(28_500)).await;
        }
    });
    world.time.block_on(run).unwrap();
    // Given up, it is delivered again with a whole lease.
    assert_eq!(*begun.borrow(), [("slow".into(), 1), ("waits".into(), 2)]);
    assert_eq!((world.depth().total(), listener.state().leases_lost), (0, 1));
}
