//! Messages that a handler snoozes, and the errors of failed attempts.
use std::{
    cell::{Cell, RefCell},
    future::pending,
    sync::Arc,
    time::Duration,
};

use steadfast::{
    backend::sqlite::{Durability, Sqlite, SqliteConfig},
    queue::{AttemptErrorKind as Kind, Message, Queue, QueueExt, redrive},
    queue_listener::{Disposition, QueueListener, QueueListenerConfig, QueueListenerEvent as Event, Work},
    time::Clock,
};

use crate::queue_listener::world::{MS, Mode, S, World, answer, text, told};

// Guarantee: queue_listener 17.
#[test]
fn a_snoozed_message_returns_after_its_delay_and_no_attempt_is_counted() {
    let world = World::new();
    let listener = world.listener(QueueListenerConfig::default().max_attempts(1), 1);
    let mut events = listener.events();
    let id = world.send("early");
    let began = RefCell::new(Vec::new());
    let run = listener.run(world.clock.sleep(S(60 * 600)), async |work: Work| {
        began.borrow_mut().push(world.now());
        assert_eq!((work.attempt(), work.errors.len()), (1, 0));
        if work.deliveries <= 50 { Disposition::snooze(S(600)) } else { Disposition::Complete }
    });
    world.time.block_on(run).unwrap();
    let began = began.into_inner();
    assert_eq!((began.len(), world.dead()), (51, Vec::new()));
    // Its return is known, so that a poll finds it at once.
    assert!(began.windows(2).all(|two| (S(600)..S(602)).contains(&(two[1] - two[0]))), "{began:?}");
    let state = listener.state();
    assert_eq!((state.snoozed, state.handled, state.failed, state.refused), (50, 1, 0, 0));
    let snoozed = Event::Snoozed { id, after: S(600) };
    assert_eq!(told(&mut events).into_iter().filter(|event| *event == snoozed).count(), 50);
}

// Guarantee: queue_listener 17.
#[test]
fn the_delay_of_a_snooze_lies_within_its_bounds() {
    for (asked, expected) in [(Duration::ZERO, MS(100)), (Duration::MAX, Disposition::LONGEST_SNOOZE)] {
        let world = World::new();
        let listener = world.listener(QueueListenerConfig::default(), 1);
        let mut events = listener.events();
        let id = world.send("early");
        let run = listener.run(world.clock.sleep(MS(50)), async |_: Work| Disposition::snooze(asked));
        world.time.block_on(run).unwrap();
        assert!(told(&mut events).contains(&Event::Snoozed { id, after: expected }));
        assert_eq!((world.depth().total(), world.dead()), (1, Vec::new()));
    }
}

// Guarantee: queue_listener 17.
#[test]
fn messages_of_its_group_wait_behind_a_snoozed_one_and_others_do_not() {
    let world = World::new();
    let listener = world.listener(QueueListenerConfig::default(), 1);
    for (body, group) in [("first", "a"), ("second", "a"), ("other", "b")] {
        world.time.block_on(world.queue.send_one(Message::new(body).group(group))).unwrap();
    }
    let start = world.now();
    let handled = RefCell::new(Vec::new());
    let run = listener.run(world.clock.sleep(S(3600)), async |work: Work| {
        if &work.body[..] == b"first" && work.deliveries == 1 {
            return Disposition::snooze(S(600));
        }
        handled.borrow_mut().push((text(&work.body), world.now() - start));
        Disposition::Complete
    });
    world.time.block_on(run).unwrap();
    let handled = handled.into_inner();
    let order: Vec<_> = handled.iter().map(|(body, _)| &body[..]).collect();
    assert_eq!(order, ["other", "first", "second"]);
    assert!(handled[0].1 < S(1) && handled[1].1 >= S(600), "{handled:?}");
}

/// A snooze does not prove that a handler is harmless: expiries count on.
#[test]
fn a_snooze_keeps_the_expiries_of_a_suspect_message() {
    let world = World::new();
    world.send("deadly");
    let config = QueueListenerConfig::default().max_expiries(3);
    for life in 0..3 {
        // Each process snoozes the message once, and dies at its second delivery.
        let listener = world.listener(config, life);
        let run = listener.run(pending(), async |work: Work| match work.expiries {
            expiries if work.deliveries == 2 * expiries + 1 => Disposition::snooze(S(60)),
            _ => pending().await,
        });
        assert!(world.run(S(100), run).is_none());
        world.time.advance(S(60));
    }
    let listener = world.listener(config, 9);
    world.time.block_on(listener.run(world.clock.sleep(S(60)), async |_: Work| Disposition::Complete)).unwrap();
    assert!(world.dead()[0].1.starts_with("exceeded max expiries"), "{:?}", world.dead());
}

#[test]
fn a_snooze_that_could_not_be_settled_is_settled_later_without_its_handler() {
    let world = World::new();
    let listener = world.listener(QueueListenerConfig::default(), 1);
    world.send("early");
    let (runs, outage) = (Cell::new(0), S(100));
    world.line.is("settle", Mode::Refuses);
    let run = listener.run(world.clock.sleep(S(900)), async |_: Work| {
        runs.set(runs.get() + 1);
        if runs.get() == 1 { Disposition::snooze(S(300)) } else { Disposition::Complete }
    });
    let ends = async {
        world.clock.sleep(outage).await;
        assert_eq!(runs.get(), 1);
        world.line.is("settle", Mode::Well);
        world.clock.sleep(S(150)).await;
        assert_eq!((runs.get(), listener.state().snoozed), (1, 1), "its handler was not asked again");
    };
    world.time.block_on(async { tokio::join!(run, ends).0 }).unwrap();
    assert_eq!((runs.get(), listener.state().handled, world.depth().total()), (2, 1, 0));
}

/// Errors of a message: attempt, kind and text.
fn errors(errors: &[steadfast::queue::AttemptError]) -> Vec<(u32, Kind, &str)> {
    errors.iter().map(|error| (error.attempt, error.kind, &error.text[..])).collect()
}

/// Runs a handler that fails in four ways, on this queue.
fn fails_in_four_ways(clock: &Clock, time: &steadfast::time::ManualClock, queue: &Arc<dyn Queue>) {
    time.set_wall(steadfast::time::Timestamp::from_millis(1_000_000));
    let config = QueueListenerConfig::default().handler_timeout(S(5)).max_attempts(5);
    let listener = QueueListener::builder(queue.clone(), config).clock(clock).build().unwrap();
    time.block_on(queue.send_one(Message::new("bad"))).unwrap();
    let seen = RefCell::new(Vec::new());
    let run = listener.run(clock.sleep(S(600)), async |work: Work| {
        seen.borrow_mut().push(work.errors.clone());
        match work.deliveries {
            1 => Disposition::retry("no connection"),
            2 => panic!("index out of bounds"),
            3 => Disposition::snooze(S(5)),
            4 => Disposition::refused(None, "the breaker is open"),
            5 => pending().await,
            6 => Disposition::Release,
            // Not the third attempt at a time when the breaker is open again.
            7 | 8 => Disposition::retry("x".repeat(5000)),
            _ => Disposition::dead_letter("no such account"),
        }
    });
    time.block_on(run).unwrap();
    let letters = answer(queue.dead_letters().unwrap().peek(10)).unwrap();
    let [letter] = &letters[..] else { panic!("{letters:?}") };
    let long = "x".repeat(1024);
    let all = errors(&letter.errors);
    assert_eq!(all[0], (1, Kind::Failed, "no connection"));
    assert_eq!(all[1], (2, Kind::Panicked, "the handler panicked: index out of bounds"));
    assert_eq!(all.iter().filter(|error| error.2 == long).count(), all.len() - 3, "{all:?}");
    assert_eq!(all.last().map(|last| (last.1, last.2)), Some((Kind::DeadLettered, "no such account")));
    let attempts: Vec<_> = all.iter().map(|error| error.0).collect();
    assert_eq!(attempts, (1..=all.len() as u32).collect::<Vec<_>>(), "snoozes and refusals have no entry");
    let at: Vec<_> = letter.errors.iter().map(|error| error.at.as_millis()).collect();
    assert!(at[0] >= 1_000_000 && at.windows(2).all(|two| two[0] < two[1]) && at[0] < 1_002_000, "{at:?}");
    // Each delivery had the errors of all attempts before it.
    for seen in seen.borrow().iter() {
        assert_eq!(seen[..], letter.errors[..seen.len()]);
    }
    assert_eq!(seen.borrow().last().unwrap().len(), all.len() - 1);
    // Sent again, it begins anew.
    assert_eq!(answer(redrive(queue, 10, |_| true)).unwrap(), 1);
    let again = answer(queue.peek(1)).unwrap();
    assert_eq!((again[0].errors.len(), again[0].attempts), (0, 0));
}

// Guarantee: queue_listener 18.
#[test]
fn a_handler_and_the_dead_letter_have_the_errors_of_all_attempts() {
    let world = World::new();
    let queue: Arc<dyn Queue> = world.queue.clone();
    fails_in_four_ways(&world.clock, &world.time, &queue);
}

// Guarantee: queue_listener 18.
#[test]
fn in_a_file_too_a_handler_and_the_dead_letter_have_the_errors_of_all_attempts() {
    let (clock, time) = Clock::manual();
    let folder = tempfile::tempdir().unwrap();
    let sqlite = Sqlite::open_with_clock(
        SqliteConfig::at(folder.path().join("jobs.db")).durability(Durability::Relaxed),
        &clock,
    )
    .unwrap();
    let queue: Arc<dyn Queue> = Arc::new(sqlite.queue("jobs").unwrap());
    fails_in_four_ways(&clock, &time, &queue);
}

// Guarantee: queue_listener 18.
#[test]
fn a_message_without_attempts_left_has_its_last_error_too() {
    let world = World::new();
    let listener = world.listener(QueueListenerConfig::default().max_attempts(3), 1);
    world.send("bad");
    let fails = async |work: Work| Err::<(), _>(format!("no {}", work.attempt()));
    world.time.block_on(listener.run(world.clock.sleep(S(60)), fails)).unwrap();
    let letters = world.time.block_on(world.queue.dead_letters().unwrap().peek(1)).unwrap();
    let expected = [(1, Kind::Failed, "no 1"), (2, Kind::Failed, "no 2"), (3, Kind::Failed, "no 3")];
    assert_eq!(errors(&letters[0].errors), expected);
    assert!(letters[0].reason.as_ref().unwrap().starts_with("exceeded max attempts: no 3"));
}

// Guarantee: queue_listener 17.
/// A handler that releases its message again and again does not spin.
#[test]
fn a_message_that_its_handler_releases_returns_ever_later() {
    let world = World::new();
    let listener = world.listener(QueueListenerConfig::default(), 1);
    world.send("not for this process");
    let at = RefCell::new(Vec::new());
    let run = listener.run(world.clock.sleep(S(600)), async |_: Work| {
        at.borrow_mut().push(world.now());
        Disposition::Release
    });
    world.time.block_on(run).unwrap();
    let at = at.into_inner();
    let gaps: Vec<_> = at.windows(2).map(|two| two[1] - two[0]).collect();
    for (n, gap) in gaps.iter().enumerate() {
        let least = Duration::from_millis(100 << n.min(16)).min(S(30));
        assert!(*gap >= least && *gap <= least * 2 + S(1), "release {n}: {gap:?}");
    }
    assert!((20..40).contains(&at.len()), "{}", at.len());
}
