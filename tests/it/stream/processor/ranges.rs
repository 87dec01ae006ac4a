//! Positions that the topic does not have, checkpoints that cannot be read, and the state.
use std::sync::Arc;

use steadfast::{
    store::{Key, Store, StoreExt},
    stream::{OutOfRange, PartitionState, StreamProcessorEvent as Event, StreamStart, Topic},
};

use super::world::{MS, S, World, complete, numbered};

const CHECKPOINT: Key<'static> = Key::new("stream-group/dispatch/orders", "p/0000");

fn skipped(world: &World) -> Vec<(u64, u64, u64)> {
    world.told(|event| match event {
        Event::Skipped { from, to, lost, .. } => Some((*from, *to, *lost)),
        _ => None,
    })
}

/// A world whose group has finished five events, and has stopped.
fn at_five() -> World {
    let world = World::new(1);
    world.topic.add(0, numbered("", 1..6));
    world.start_as("a", World::quick(), |_| complete());
    world.pass(S(3));
    world.stop("a");
    world.pass(S(1));
    assert_eq!(world.watermark(0), 5);
    world.runs.lock().unwrap().clear();
    world
}

// Guarantee: stream 12.
#[test]
fn a_gap_before_the_next_event_halts_the_partition_or_is_skipped_and_counted() {
    for (policy, texts) in [(OutOfRange::Halt, 0), (OutOfRange::Earliest, 2)] {
        let world = at_five();
        world.topic.add(0, numbered("", 6..11));
        world.time.block_on(world.topic.trim(0, 9)).unwrap();
        world.start_as("b", World::quick().on_out_of_range(policy), |_| complete());
        world.pass(S(60));
        assert_eq!(world.runs().len(), texts);
        match policy {
            OutOfRange::Halt => {
                assert_eq!(world.halted(), ["the next event is 6, and the topic begins at 9"]);
                assert_eq!(world.watermark(0), 5);
            }
            _ => {
                assert_eq!(skipped(&world), [(6, 9, 3)]);
                assert_eq!((world.watermark(0), world.state("b")[0].lost), (10, 3));
            }
        }
    }
}

// Guarantee: stream 12.
#[test]
fn events_that_are_trimmed_before_a_running_owner_reads_them_halt_it_or_are_counted() {
    for policy in [OutOfRange::Halt, OutOfRange::Earliest] {
        let world = World::new(1);
        world.topic.add(0, numbered("", 1..31));
        let clock = world.clock.clone();
        let config = World::quick().on_out_of_range(policy).max_ahead(10).max_in_flight(1);
        world.start_as("a", config, move |_| {
            let clock = clock.clone();
            async move {
                clock.sleep(MS(100)).await;
                steadfast::work::EventDisposition::Complete
            }
        });
        world.pass_until(S(5), || !world.runs().is_empty());
        world.time.block_on(world.topic.trim(0, 26)).unwrap();
        world.pass(S(30));
        let state = world.state("a").remove(0);
        let ran: Vec<u64> = world.runs().iter().map(|ran| ran.position.offset).collect();
        assert!(ran.starts_with(&(1..11).collect::<Vec<_>>()), "what it had read runs: {ran:?}");
        match policy {
            OutOfRange::Halt => {
                assert!(state.halted.unwrap().contains("the topic goes on at 26"));
                assert_eq!(world.watermark(0), 10);
            }
            _ => {
                assert_eq!(ran[ran.len() - 5..], [26, 27, 28, 29, 30]);
                assert_eq!(state.lost, 30 - ran.len() as u64);
                assert_eq!(world.watermark(0), 30);
            }
        }
    }
}

// Guarantee: stream 12.
#[test]
fn a_position_beyond_the_end_halts_the_partition_or_begins_at_the_earliest_event() {
    for policy in [OutOfRange::Halt, OutOfRange::Earliest] {
        let world = at_five();
        world.topic.lose(0, 3);
        world.start_as("b", World::quick().on_out_of_range(policy), |_| complete());
        world.pass(S(30));
        match policy {
            OutOfRange::Halt => {
                assert_eq!(world.halted(), ["the next event is 6, and the topic ends before 3"]);
                assert!(world.runs().is_empty());
            }
            _ => assert_eq!((world.texts(), world.watermark(0)), (vec!["1".to_owned(), "2".to_owned()], 2)),
        }
    }
}

// Guarantee: stream 12.
#[test]
fn a_checkpoint_that_cannot_be_read_halts_the_partition_and_stays_as_it_is() {
    for record in ["checkpoint 1\ndamaged", "checkpoint 2\nof the future\n", "anything"] {
        let world = at_five();
        let put = world.store.put(CHECKPOINT, record.into(), Default::default());
        world.time.block_on(put).unwrap();
        for policy in [OutOfRange::Halt, OutOfRange::Earliest] {
            world.start_as("b", World::quick().on_out_of_range(policy), |_| complete());
            world.pass(S(60));
            assert!(world.runs().is_empty());
            let state = world.state("b");
            assert!(state.len() == 1 && state[0].halted.is_some(), "{state:?}");
            let stored = world.time.block_on(world.store.get(CHECKPOINT)).unwrap().unwrap();
            assert_eq!(stored.value, record);
            world.stop("b");
            world.pass(S(5));
        }
        assert_eq!(world.halted().len(), 2, "once for each owner");
    }
}

// Guarantee: stream 12.
#[test]
fn a_checkpoint_of_another_topic_with_the_same_name_halts_the_partition() {
    let world = at_five();
    *world.topic.identity.lock().unwrap() = "orders, created again".to_owned();
    world.start_as("b", World::quick(), |_| complete());
    world.pass(S(10));
    assert_eq!(world.halted(), ["the checkpoint is of another topic with this name"]);
    assert!(world.runs().is_empty());
}

// Guarantee: stream 12.
#[test]
fn an_event_that_cannot_be_read_halts_its_partition() {
    let world = World::new(1);
    world.start_as("a", World::quick(), |_| complete());
    world.pass(S(2));
    *world.topic.fails.lock().unwrap() = Some(steadfast::port::PortErrorKind::Corrupt);
    world.pass(S(10));
    assert_eq!(world.halted(), ["the event 1 cannot be read: the topic fails"]);
    let before = world.claims();
    world.pass(S(60));
    assert_eq!(world.claims(), before);
}

// Guarantee: stream 12.
#[test]
fn a_new_group_begins_at_the_earliest_event_or_at_the_latest() {
    for (start, texts) in [(StreamStart::Earliest, vec!["3", "4", "5"]), (StreamStart::Latest, vec!["5"])] {
        let world = World::new(1);
        world.topic.add(0, numbered("", 1..5));
        world.time.block_on(world.topic.trim(0, 3)).unwrap();
        world.start_as("a", World::quick().start(start), |_| complete());
        world.pass(S(2));
        world.topic.add(0, ["5"]);
        world.pass(S(2));
        assert_eq!(world.texts(), texts);
        // From then on the checkpoint decides.
        world.stop("a");
        world.pass(S(1));
        world.topic.add(0, ["6"]);
        world.start_as("b", World::quick().start(start), |_| complete());
        world.pass(S(4));
        assert_eq!(world.texts().last().unwrap(), "6");
    }
}

// Guarantee: stream 12.
#[test]
fn the_state_of_all_partitions_shows_owner_position_lag_and_handlers() {
    let world = World::new(3);
    for partition in 0..3 {
        world.topic.add(partition, numbered("", 0..10));
    }
    for name in ["a", "b"] {
        world.start_as(name, World::quick(), |event| async move {
            if event.position.offset == 4 { std::future::pending().await } else { complete().await }
        });
    }
    world.pass(S(20));
    let reader = world.builder("reader", World::quick()).build().unwrap();
    let states = world.time.block_on(reader.read_state()).unwrap();
    for (partition, state) in (0..).zip(&states) {
        let name = if world.owned("a").contains(&partition) { "a" } else { "b" };
        assert_eq!(state.owner.as_deref(), Some(world.processor(name).member()));
        assert_eq!((state.partition, state.watermark, state.lag, state.in_flight), (partition, 3, 1, 0));
        let seen: Vec<PartitionState> = world.state(name);
        let own = seen.iter().find(|own| own.partition == partition).unwrap();
        assert_eq!((own.watermark, own.lag, own.in_flight), (3, 1, 1));
    }
    // A new group has no owners, and everything before it.
    let leases = steadfast::lease::StoreLease::builder(world.store.clone()).clock(&world.clock).build().unwrap();
    let topic = world.topic.clone();
    let other =
        steadfast::stream::StreamProcessor::new(topic, "audit", Arc::new(leases), world.store.clone(), World::quick());
    let states = world.time.block_on(other.unwrap().read_state()).unwrap();
    assert!(states.iter().all(|state| state.owner.is_none() && state.lag == 10 && state.watermark == 0));
    let none =
        world.time.block_on(world.store.scan_all(steadfast::store::Scan::partition("stream-group/audit/orders")));
    assert!(none.unwrap().is_empty(), "looking writes nothing");
}
