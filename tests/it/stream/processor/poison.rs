//! Events that fail, and events that kill their process.
use std::{
    future::{Future, pending},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
};

use futures::FutureExt;
use steadfast::{
    store::{Key, Store},
    stream::{Delivered, StreamProcessorEvent as Event},
    time::{Clock, Instant},
    work::EventDisposition,
};

use super::world::{MS, S, World, complete, numbered};
use crate::moody_store::{Mode, Moody};

// Guarantee: stream 10.
#[test]
fn an_event_whose_attempts_fail_becomes_a_dead_letter_and_the_others_go_on() {
    let world = World::new(1);
    world.topic.add(0, ["a:1", "a:2", "b:3"]);
    world.start_as("m", World::quick().max_deliveries(3), |event| async move {
        if event.position.offset == 1 { EventDisposition::retry("no such tenant") } else { EventDisposition::Complete }
    });
    world.pass(S(20));
    assert_eq!(world.dead_letters(), [("0/1".to_owned(), "no such tenant".to_owned())]);
    assert_eq!(world.texts(), ["a:1", "b:3", "a:1", "a:1", "a:2"]);
    assert_eq!(world.watermark(0), 3);
    let failed = world.told(|event| match event {
        Event::AttemptFailed { attempt, retry_in, .. } => Some((*attempt, retry_in.is_some())),
        _ => None,
    });
    assert_eq!(failed, [(1, true), (2, true), (3, false)]);
}

// Guarantee: stream 10.
#[test]
fn a_panic_is_a_failed_attempt() {
    let world = World::new(1);
    world.topic.add(0, ["1", "2"]);
    world.start_as("m", World::quick().max_deliveries(2), |event| async move {
        assert!(event.position.offset != 1, "a bug");
        EventDisposition::Complete
    });
    world.pass(S(5));
    let letters = world.dead_letters();
    assert!(letters.len() == 1 && letters[0].1.contains("panicked"), "{letters:?}");
    assert_eq!(world.watermark(0), 2);
}

// Guarantee: stream 10.
#[test]
fn without_a_queue_for_dead_letters_the_partition_halts_and_keeps_its_owner() {
    let world = World::new(2);
    let (store, clock) = (world.store.clone(), world.clock.clone());
    let leases = Arc::new(steadfast::lease::StoreLease::builder(store.clone()).clock(&clock).build().unwrap());
    let told = world.told.clone();
    let member = steadfast::stream::StreamProcessor::builder(
        world.topic.clone(),
        "dispatch",
        leases,
        store,
        World::quick().max_deliveries(1),
    );
    let member = member.clock(&clock).entropy(&steadfast::entropy::Entropy::from_seed(3)).on_event(
        move |event: &steadfast::observe::Event<Event>| told.lock().unwrap().push(("m".to_owned(), event.what.clone())),
    );
    world.topic.add(0, ["1", "2"]);
    world.start_built("m", member.build().unwrap(), |event| async move {
        if event.position.partition == 0 && event.position.offset == 1 {
            EventDisposition::retry("bad")
        } else {
            EventDisposition::Complete
        }
    });
    world.pass(S(10));
    assert_eq!(world.halted(), ["event 0/1: bad; there is no queue for dead letters"]);
    // Nothing starts there any more, and the other partition goes on.
    world.topic.add(0, ["3"]);
    world.topic.add(1, ["4"]);
    world.pass(S(60));
    assert_eq!(world.texts(), ["1", "4"]);
    let state = world.state("m");
    assert_eq!((state[0].halted.as_deref(), state[1].halted.as_deref()), (Some(&*world.halted()[0]), None));
    assert_eq!(world.watermark(0), 0);
    assert_eq!(world.claims(), 2, "no owner after owner");
}

// Guarantee: stream 10.
#[test]
fn an_event_that_was_not_tried_counts_no_attempt() {
    let world = World::new(1);
    world.topic.add(0, ["1"]);
    world.start_as("m", World::quick().max_deliveries(1), {
        let turn = Arc::new(Mutex::new(0));
        move |event| {
            let turn = turn.clone();
            async move {
                let mut turn = turn.lock().unwrap();
                *turn += 1;
                assert_eq!(event.attempt(), 1);
                match *turn {
                    1 => EventDisposition::Release,
                    2 => EventDisposition::refused(Some(S(2)), "breaker open"),
                    3 => EventDisposition::snooze(S(3)),
                    _ => EventDisposition::Complete,
                }
            }
        }
    });
    world.pass(S(10));
    let began: Vec<Instant> = world.runs().iter().map(|ran| ran.began).collect();
    let waits: Vec<_> = began.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(waits, [MS(100), S(2), S(3)]);
    assert!(world.dead_letters().is_empty());
}

// Guarantee: stream 10.
#[test]
fn an_event_that_the_handler_gives_up_is_a_dead_letter_at_once() {
    let world = World::new(1);
    world.topic.add(0, ["1", "2"]);
    world.start_as("m", World::quick(), |event| async move {
        if event.position.offset == 1 { EventDisposition::dead_letter("not JSON") } else { EventDisposition::Complete }
    });
    world.pass(S(2));
    assert_eq!(world.dead_letters(), [("0/1".to_owned(), "not JSON".to_owned())]);
}

/// Starts members one after another, each of which dies when `kills` is `true` for an event that it began.
fn lives_of(world: &World, lives: usize, kills: impl Fn(&Delivered) -> bool + Clone + Send + Sync + 'static) -> usize {
    for life in 0..lives {
        let died = Arc::new(Mutex::new(false));
        let (noted, kills, clock) = (died.clone(), kills.clone(), world.clock.clone());
        let name = format!("life-{life}");
        world.start_as(&name, World::quick().max_in_flight(8), move |event| {
            let dies = kills(&event);
            let (noted, clock) = (noted.clone(), clock.clone());
            let handled: std::pin::Pin<Box<dyn Future<Output = EventDisposition> + Send>> = Box::pin(async move {
                clock.sleep(MS(20)).await;
                if dies {
                    *noted.lock().unwrap() = true;
                    pending::<()>().await;
                }
                clock.sleep(MS(20)).await;
                EventDisposition::Complete
            });
            handled
        });
        for _ in 0..400 {
            world.pass(MS(50));
            if *died.lock().unwrap() {
                break;
            }
        }
        if !*died.lock().unwrap() {
            return life;
        }
        world.kill(&name);
    }
    lives
}

// Guarantee: stream 11.
#[test]
fn an_event_that_kills_its_process_becomes_a_dead_letter_and_no_other_event_does() {
    for killer in [1, 5, 12] {
        let world = World::new(1);
        world.topic.add(0, numbered("", 1..21));
        let deaths = lives_of(&world, 12, move |event| event.position.offset == killer);
        // Until the careful mode begins, those before it may have been recorded.
        assert!((5..=6).contains(&deaths), "{deaths} deaths of {killer}");
        world.pass(S(10));
        let letters = world.dead_letters();
        assert_eq!(letters, [(format!("0/{killer}"), "its process died 3 times while it ran".to_owned())]);
        assert_eq!(world.watermark(0), 20);
        let mut ended: Vec<u64> =
            world.runs().iter().filter(|ran| ran.ended.is_some()).map(|ran| ran.position.offset).collect();
        ended.sort_unstable();
        ended.dedup();
        assert_eq!(ended, (1..21).filter(|offset| *offset != killer).collect::<Vec<_>>());
    }
}

// Guarantee: stream 11.
#[test]
fn after_two_claims_without_progress_events_run_one_at_a_time() {
    let world = World::new(1);
    world.topic.add(0, numbered("", 1..21));
    for _ in 0..2 {
        world.start_as("dies", World::quick(), |_| pending());
        world.pass(S(6));
        world.kill("dies");
    }
    world.runs.lock().unwrap().clear();
    let clock = world.clock.clone();
    world.start_as("m", World::quick().max_ahead(30), move |_| {
        let clock = clock.clone();
        async move {
            clock.sleep(MS(50)).await;
            EventDisposition::Complete
        }
    });
    world.pass(S(10));
    let runs = world.runs();
    assert_eq!(runs.len(), 20);
    assert!(runs.windows(2).all(|pair| pair[0].ended.unwrap() <= pair[1].began));
    assert!(!world.told(|event| matches!(event, Event::Careful { .. }).then_some(())).is_empty());
    // Behind those that may have run, events run beside each other again.
    world.topic.add(0, numbered("", 21..61));
    world.pass(S(10));
    let runs = world.runs().split_off(40);
    assert!(runs[0].ended.unwrap() > runs[1].began);
}

/// Returns a world with one partition, whose store takes 200 ms for each request.
fn world_of_a_slow_store() -> (World, Arc<Moody>) {
    let (clock, time) = Clock::manual();
    let store = Arc::new(Moody::new(&clock));
    store.is(Mode::Slow(MS(200)));
    (World::over(&clock, &time, store.clone(), 1), store)
}

// Guarantee: stream 11.
#[test]
fn where_the_store_is_slow_a_careful_owner_still_records_each_event_before_it_runs() {
    let (world, store) = world_of_a_slow_store();
    world.topic.add(0, numbered("", 1..21));
    for _ in 0..2 {
        world.start_as("dies", World::quick(), |_| pending());
        world.pass(S(10));
        world.kill("dies");
    }
    world.runs.lock().unwrap().clear();
    let unrecorded = Arc::new(Mutex::new(Vec::new()));
    let noted = unrecorded.clone();
    world.start_as("m", World::quick().max_ahead(20), move |event| {
        let checkpoint = store.store.get(Key::new("stream-group/dispatch/orders", "p/0000")).now_or_never();
        let checkpoint = String::from_utf8(checkpoint.unwrap().unwrap().unwrap().value.to_vec()).unwrap();
        if !checkpoint.contains(&format!("\nsuspect {} 0 running\n", event.position.offset)) {
            noted.lock().unwrap().push((event.position.offset, checkpoint));
        }
        complete()
    });
    world.pass(S(30));
    assert_eq!(world.runs().len(), 20);
    let unrecorded = unrecorded.lock().unwrap();
    assert!(unrecorded.is_empty(), "{} of 20 ran unrecorded: {unrecorded:?}", unrecorded.len());
}

// Guarantee: stream 11.
#[test]
fn where_the_store_is_slow_an_event_that_kills_its_process_is_still_found() {
    for killer in [1, 5] {
        let (world, _) = world_of_a_slow_store();
        world.topic.add(0, numbered("", 1..11));
        let deaths = lives_of(&world, 12, move |event| event.position.offset == killer);
        assert!((5..=6).contains(&deaths), "{deaths} deaths of {killer}");
        world.pass(S(20));
        assert_eq!(world.dead_letters(), [(format!("0/{killer}"), "its process died 3 times while it ran".to_owned())]);
        assert_eq!(world.watermark(0), 10);
    }
}

// Guarantee: stream 11.
#[test]
fn owners_that_die_but_finish_events_before_are_followed_by_no_careful_one() {
    let world = World::new(1);
    world.topic.add(0, numbered("", 1..41));
    for life in 1..9 {
        // It finishes three events, writes its checkpoint, and dies.
        let left = Arc::new(AtomicU32::new(3));
        let config = World::quick().max_in_flight(1).checkpoint_interval(MS(100));
        world.start_as("m", config, move |_| {
            let left = left.clone();
            async move {
                if left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_err() {
                    pending::<()>().await;
                }
                EventDisposition::Complete
            }
        });
        world.pass_until(S(20), || world.watermark(0) == life * 3);
        world.kill("m");
    }
    let careful = world.told(|event| match event {
        Event::Careful { until, .. } => Some(*until),
        _ => None,
    });
    assert!(careful.is_empty(), "careful up to {careful:?}, though each owner finished three events");
}

// Guarantee: stream 11.
#[test]
fn a_process_that_is_stopped_or_has_nothing_to_do_is_no_crash() {
    let world = World::new(1);
    for _ in 0..4 {
        // Killed without an event to process.
        world.start_as("idle", World::quick(), |_| complete());
        world.pass(S(6));
        world.kill("idle");
    }
    world.topic.add(0, ["1"]);
    for _ in 0..4 {
        // Stopped while the event runs.
        world.start_as("stopped", World::quick().drain_timeout(MS(100)), |_| pending());
        world.pass(S(6));
        world.stop("stopped");
        world.pass(S(3));
    }
    world.start_as("m", World::quick(), |_| complete());
    world.pass(S(10));
    assert!(world.told(|event| matches!(event, Event::Careful { .. }).then_some(())).is_empty());
    assert_eq!(world.watermark(0), 1);
    assert!(world.dead_letters().is_empty());
}
