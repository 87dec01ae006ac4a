//! Members that die again and again, halted partitions, long pages, and names and reasons at the limits.
use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use steadfast::{
    lease::StoreLease,
    port::PortFuture,
    store::{InMemoryStore, Key, PutOptions, Store},
    stream::{Bounds, Event, StoreTopic, StreamProcessor, StreamProcessorConfig, StreamProcessorEvent, Topic},
    time::Clock,
    work::EventDisposition,
};

use super::world::{Log, MS, S, World, complete, numbered};

const CHECKPOINT: Key<'static> = Key::new("stream-group/dispatch/orders", "p/0000");

// Guarantee: stream 8.
#[test]
fn the_partitions_of_a_process_that_dies_again_and_again_fall_to_those_that_live() {
    for lives in [1, 5, 13, 20] {
        let world = World::new(9);
        let mut names = vec!["b".to_owned(), "c".to_owned(), "a 0".to_owned()];
        names.iter().for_each(|name| world.start(name));
        world.pass(S(60));
        assert_eq!(world.shares(), [3, 3, 3]);
        let began = world.clock.now();
        let (mut changes_at, mut owned_at, mut longest) = (began, [began; 9], S(0));
        for life in 1.. {
            let now = world.clock.now();
            if now - began > S(200) {
                break;
            }
            if now >= changes_at && names.len() == 3 {
                world.kill(&names.pop().unwrap());
                changes_at = now + S(2);
            } else if now >= changes_at {
                names.push(format!("a {life}"));
                world.start(&names[2]);
                changes_at = now + S(lives);
            }
            names.iter().flat_map(|name| world.owned(name)).for_each(|owned| owned_at[usize::from(owned)] = now);
            longest = owned_at.into_iter().map(|at| now - at).fold(longest, Duration::max);
            world.pass(MS(100));
        }
        // 27 s, and an interval for one that asks for its share and dies, and is taken for alive.
        assert!(longest <= S(45), "{longest:?} without an owner, with lives of {lives} s");
    }
}

#[test]
fn a_partition_that_halted_at_its_claim_goes_on_when_it_is_resumed() {
    let world = World::new(2);
    world.topic.add(0, numbered("", 1..4));
    let put = |text: &str| {
        let value = bytes::Bytes::from(text.to_owned());
        world.time.block_on(world.store.put(CHECKPOINT, value, PutOptions::new())).unwrap();
    };
    put("nonsense");
    world.start_as("a", World::quick(), |_| complete());
    world.pass(S(10));
    assert_eq!(world.halted().len(), 1);
    let member = world.processor("a");
    assert!(!member.resume(1), "it is not halted");
    assert!(!member.resume(7), "it is not there");
    assert!(member.resume(0));
    world.pass(S(5));
    assert_eq!((world.halted().len(), world.runs().len()), (2, 0), "the record is still damaged");
    world.time.block_on(world.store.delete(CHECKPOINT, steadfast::store::DeleteOptions::new())).unwrap();
    world.pass(S(60));
    assert_eq!(world.runs().len(), 0, "nothing goes on by itself");
    assert!(member.resume(0));
    world.pass(S(5));
    assert_eq!(world.texts(), ["1", "2", "3"]);
    assert_eq!((world.state("a")[0].halted.clone(), world.watermark(0)), (None, 3));
}

/// A member without a queue for dead letters.
fn without_letters(world: &World, topic: impl Topic + 'static, config: StreamProcessorConfig) -> StreamProcessor {
    let (store, clock) = (world.store.clone(), world.clock.clone());
    let leases = Arc::new(StoreLease::builder(store.clone()).clock(&clock).build().unwrap());
    let told = world.told.clone();
    let member = StreamProcessor::builder(topic, "dispatch", leases, store, config).clock(&clock).on_event(
        move |event: &steadfast::observe::Event<StreamProcessorEvent>| {
            told.lock().unwrap().push((String::new(), event.what.clone()));
        },
    );
    member.build().unwrap()
}

#[test]
fn a_partition_that_an_event_halted_goes_on_with_it_when_it_is_resumed() {
    let world = World::new(1);
    world.topic.add(0, ["a:1", "b:2"]);
    let runs = Arc::new(AtomicUsize::new(0));
    let member = without_letters(&world, world.topic.clone(), World::quick().max_deliveries(1));
    world.start_built("a", member, {
        let runs = runs.clone();
        move |event| {
            let is_first = event.position.offset == 1 && runs.fetch_add(1, SeqCst) == 0;
            async move { if is_first { EventDisposition::retry("away") } else { EventDisposition::Complete } }
        }
    });
    world.pass(S(5));
    world.topic.add(0, ["c:3"]);
    world.pass(S(60));
    assert_eq!((world.halted().len(), world.watermark(0)), (1, 0));
    assert!(world.processor("a").resume(0));
    let took = world.pass_until(S(20), || world.watermark(0) == 3);
    assert!(took <= S(1), "{took:?}");
    assert_eq!(world.texts().last().map(String::as_str), Some("c:3"));
}

#[test]
fn the_state_of_a_partition_that_halted_at_its_claim_is_that_of_its_checkpoint() {
    let world = World::new(1);
    world.topic.add(0, numbered("", 1..6));
    world.start_as("a", World::quick(), |_| complete());
    world.pass(S(3));
    world.stop("a");
    world.pass(S(1));
    world.topic.add(0, numbered("", 6..10));
    world.time.block_on(world.topic.trim(0, 8)).unwrap();
    world.start_as("b", World::quick(), |_| complete());
    world.pass(S(5));
    let state = world.time.block_on(world.processor("b").read_state()).unwrap().remove(0);
    assert_eq!((state.watermark, state.lag, state.halted.is_some()), (5, 4, true));
    assert_eq!(state.owner.as_deref(), Some(world.processor("b").member()));
}

/// A topic whose bounds take a second.
#[derive(Debug)]
struct Slow(Arc<Log>, Clock);

impl Topic for Slow {
    forward_topic! { 0: constants, append, read, trim }

    fn bounds(&self, partition: u16) -> PortFuture<'_, Bounds> {
        Box::pin(async move {
            self.1.sleep(S(1)).await;
            self.0.bounds(partition).await
        })
    }
}

#[test]
fn reading_the_state_asks_for_several_partitions_at_a_time() {
    let world = World::new(64);
    world.topic.add(40, ["1", "2"]);
    let reader = without_letters(&world, Slow(world.topic.clone(), world.clock.clone()), World::config());
    let began = world.clock.now();
    let states = world.time.block_on(reader.read_state()).unwrap();
    let took = world.clock.now() - began;
    assert!(took <= S(5), "{took:?} for 64 partitions");
    let lags: Vec<_> = states.iter().map(|state| (state.partition, state.lag)).filter(|(_, lag)| *lag > 0).collect();
    assert_eq!((states.len(), lags), (64, vec![(40, 2)]));
}

#[test]
fn events_that_were_appended_one_by_one_are_read_without_pauses() {
    let world = World::new(1);
    let topic = world.time.block_on(StoreTopic::builder(world.store.clone(), "t", 1).clock(&world.clock).build());
    let topic = topic.unwrap();
    let add = |count: u32| {
        let appends = async {
            for n in 0..count {
                topic.append(0, vec![Event::new(n.to_string())]).await.unwrap();
            }
        };
        world.time.block_on(appends);
    };
    add(2_000);
    world.start_built("a", without_letters(&world, topic.clone(), World::quick()), |_| complete());
    let begun = |count: usize| world.runs().len() >= count;
    world.pass_until(S(10), || begun(1));
    let took = world.pass_until(S(10), || begun(2_000));
    assert!(took <= MS(100), "{took:?} after a claim");
    add(2_000);
    world.pass_until(S(10), || begun(2_001));
    let took = world.pass_until(S(10), || begun(4_000));
    assert!(took <= MS(100), "{took:?} while it is owned");
}

#[test]
fn a_group_whose_name_is_too_long_for_the_last_partition_is_refused_at_once() {
    let build = |partitions: u16, length: usize| {
        let store = Arc::new(InMemoryStore::new());
        let leases = Arc::new(StoreLease::new(store.clone()).unwrap());
        let (group, config) = ("g".repeat(length), StreamProcessorConfig::default());
        StreamProcessor::builder(Log::new(partitions), group, leases, store, config).build()
    };
    let longest = (1..2_000).rev().find(|length| build(1, *length).is_ok()).unwrap();
    assert_eq!(build(1_000, longest).unwrap_err().field(), "group");
    assert!(build(1_000, longest - 3).is_ok());
}

// Guarantee: stream 10.
#[test]
fn a_reason_of_any_length_keeps_no_event_from_the_dead_letters() {
    let world = World::new(1);
    world.topic.add(0, ["1", "2"]);
    world.start_as("a", World::quick(), |event| async move {
        if event.position.offset == 1 {
            EventDisposition::dead_letter("é".repeat(33 << 20))
        } else {
            EventDisposition::Complete
        }
    });
    world.pass(S(5));
    assert_eq!(world.halted(), Vec::<String>::new());
    let letters = world.dead_letters();
    assert_eq!((letters.len(), letters[0].1.chars().count()), (1, 2_000));
    assert_eq!(world.watermark(0), 2);
}

/// Kills two owners in a row before they have finished an event: the next one is careful.
fn careful(world: &World) {
    for name in ["x", "y"] {
        world.start_as(name, World::quick(), |_| pending());
        world.pass_until(S(30), || !world.owned(name).is_empty());
        world.pass(S(1));
        world.kill(name);
    }
}

// Guarantee: stream 11.
#[test]
fn an_event_that_is_snoozed_in_the_careful_mode_holds_up_no_other_one() {
    let world = World::new(1);
    world.topic.add(0, ["a:1", "a:2", "b:3", "b:4"]);
    careful(&world);
    world.start_as("m", World::quick(), |event| async move {
        if event.position.offset == 1 { EventDisposition::snooze(S(3600)) } else { EventDisposition::Complete }
    });
    world.pass(S(20));
    assert_eq!(world.told(|event| matches!(event, StreamProcessorEvent::Careful { .. }).then_some(())).len(), 1);
    let of_m = world.runs().into_iter().filter(|ran| ran.member == "m").map(|ran| ran.text).collect::<Vec<_>>();
    assert_eq!(of_m, ["a:1", "b:3", "b:4"]);
}

// Guarantee: stream 11.
#[test]
fn an_event_that_waits_while_its_process_dies_is_not_blamed() {
    let world = World::new(1);
    world.topic.add(0, ["a:1"]);
    careful(&world);
    for life in 0..5 {
        let name = format!("m{life}");
        world.start_as(&name, World::quick(), |_| async { EventDisposition::snooze(S(60)) });
        world.pass(S(20));
        world.kill(&name);
    }
    world.start_as("last", World::quick(), |_| complete());
    world.pass(S(20));
    assert_eq!(world.dead_letters(), []);
    assert_eq!(world.watermark(0), 1);
}

#[test]
fn the_lag_of_an_owner_counts_what_it_has_no_room_to_read() {
    let world = World::new(1);
    world.topic.add(0, numbered("", 0..10));
    world.start_as("a", World::quick().max_ahead(64), |_| std::future::pending());
    world.pass(S(2));
    for round in 1..=3 {
        world.topic.add(0, numbered("", 0..100));
        let requests = world.topic.requests.load(SeqCst);
        world.pass(S(6));
        assert_eq!(world.state("a")[0].lag, 10 + 100 * round);
        let requests = world.topic.requests.load(SeqCst) - requests;
        assert!(requests <= 3, "an owner that waits asks seldom: {requests}");
    }
}

#[test]
fn the_lag_of_a_halted_partition_counts_what_arrives() {
    let world = World::new(1);
    world.topic.add(0, ["1"]);
    let member = without_letters(&world, world.topic.clone(), World::quick().max_deliveries(1));
    world.start_built("a", member, |_| async { EventDisposition::retry("away") });
    world.pass(S(5));
    assert_eq!((world.halted().len(), world.state("a")[0].lag), (1, 1));
    world.topic.add(0, numbered("", 2..100));
    world.pass(S(6));
    assert_eq!(world.state("a")[0].lag, 99);
}
