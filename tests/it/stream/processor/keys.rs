//! The order of keys, the limit of handlers, and the end of a term as handlers see it.
use std::{collections::BTreeMap, sync::Arc};

use steadfast::{
    entropy::Entropy,
    lease::StoreLease,
    notify::InMemoryNotifier,
    stream::{Delivered, Event, StoreTopic, StreamProcessor, StreamProcessorEvent, Topic},
    testing::faults::{FaultConfig, FaultNetwork},
    time::Clock,
    work::EventDisposition,
};

use super::world::{MS, Ran, S, World, complete, numbered};

fn sleeps(
    clock: &Clock,
    ms: u64,
) -> impl Fn(Arc<Delivered>) -> futures::future::BoxFuture<'static, EventDisposition> + use<> {
    let clock = clock.clone();
    move |_| {
        let clock = clock.clone();
        Box::pin(async move {
            clock.sleep(MS(ms)).await;
            EventDisposition::Complete
        })
    }
}

/// Returns the greatest number of handlers that ran at once.
fn most_at_once(runs: &[Ran]) -> usize {
    let at =
        |began| runs.iter().filter(|ran| ran.began <= began && ran.ended.is_none_or(|ended| ended > began)).count();
    runs.iter().map(|ran| at(ran.began)).max().unwrap_or_default()
}

// Guarantee: stream 9.
#[test]
fn events_of_one_key_run_one_at_a_time_in_order_and_others_beside_them() {
    let world = World::new(1);
    let events = (0..60).map(|i| format!("{}:{i}", ["a", "b", "c"][i % 3]));
    world.topic.add(0, events);
    world.start_as("m", World::quick(), sleeps(&world.clock, 100));
    world.pass(S(10));
    let runs = world.runs();
    assert_eq!(runs.len(), 60);
    let mut of_key: BTreeMap<String, Vec<Ran>> = BTreeMap::new();
    for ran in runs.clone() {
        of_key.entry(ran.key.clone().unwrap()).or_default().push(ran);
    }
    for runs in of_key.values() {
        assert!(runs.windows(2).all(|pair| pair[0].position < pair[1].position));
        assert!(runs.windows(2).all(|pair| pair[0].ended.unwrap() <= pair[1].began));
    }
    assert_eq!(most_at_once(&runs), 3);
}

// Guarantee: stream 9.
#[test]
fn at_most_so_many_handlers_of_a_partition_run_at_once() {
    let world = World::new(2);
    for partition in 0..2 {
        world.topic.add(partition, numbered("", 0..100));
    }
    world.start_as("m", World::quick().max_in_flight(7), sleeps(&world.clock, 100));
    world.pass(S(6));
    let runs = world.runs();
    assert_eq!(runs.len(), 200);
    for partition in 0..2 {
        let runs: Vec<_> = runs.iter().filter(|ran| ran.position.partition == partition).cloned().collect();
        assert_eq!(most_at_once(&runs), 7);
    }
}

// Guarantee: stream 9.
#[test]
fn a_failed_event_holds_up_its_key_alone() {
    let world = World::new(1);
    world.topic.add(0, ["a:1", "a:2", "b:3", "b:4"]);
    world.start_as("m", World::quick(), |event| async move {
        match &event.event.body[..] {
            b"a:1" if event.attempt() < 3 => EventDisposition::retry_after(S(2), "busy"),
            _ => EventDisposition::Complete,
        }
    });
    world.pass(S(10));
    assert_eq!(world.texts(), ["a:1", "b:3", "b:4", "a:1", "a:1", "a:2"]);
    assert_eq!(world.runs().iter().map(|ran| ran.attempt).collect::<Vec<_>>(), [1, 1, 1, 2, 3, 1]);
}

// Guarantee: stream 2.
#[test]
fn handlers_get_the_token_of_their_term_and_those_of_later_owners_a_higher_one() {
    let world = World::new(1);
    world.topic.add(0, ["1"]);
    world.start_as("a", World::quick(), |_| complete());
    world.pass(S(3));
    world.kill("a");
    world.topic.add(0, ["2"]);
    world.start_as("b", World::quick(), |_| complete());
    world.pass(S(10));
    let runs = world.runs();
    assert_eq!(world.texts(), ["1", "2"]);
    assert!(runs[0].token < runs[1].token);
    let told = world.told(|event| match event {
        StreamProcessorEvent::Claimed { token, .. } => Some(*token),
        _ => None,
    });
    assert_eq!(told, [runs[0].token, runs[1].token]);
}

// Guarantee: stream 2.
#[test]
fn handlers_are_asked_to_stop_before_the_term_ends_and_dropped_at_its_end() {
    let world = World::new(1);
    let network = FaultNetwork::new(FaultConfig::default(), 1, &world.clock).unwrap();
    let client = network.client("a");
    let store = client.store(world.store.clone());
    let member = world.builder_on("a", World::config(), store, &world.clock).build().unwrap();
    let asked = Arc::new(std::sync::Mutex::new(None));
    let (noted, clock) = (asked.clone(), world.clock.clone());
    struct Dropped(Arc<std::sync::Mutex<Option<steadfast::time::Instant>>>, Clock);
    impl Drop for Dropped {
        fn drop(&mut self) {
            *self.0.lock().unwrap() = Some(self.1.now());
        }
    }
    let dropped = Arc::new(std::sync::Mutex::new(None));
    let note = dropped.clone();
    world.start_built("a", member, move |event| {
        let (noted, clock, dropped) = (noted.clone(), clock.clone(), Dropped(note.clone(), clock.clone()));
        async move {
            let _dropped = dropped;
            event.cancelled().await;
            *noted.lock().unwrap() = Some(clock.now());
            assert!(event.is_cancelled());
            std::future::pending().await
        }
    });
    world.pass(S(5));
    world.topic.add(0, ["1"]);
    world.pass(S(5));
    let cut = world.clock.now();
    client.cut();
    world.pass(S(30));
    let (asked, dropped) = (asked.lock().unwrap().unwrap(), dropped.lock().unwrap().unwrap());
    // Of a term of 15 s, which began at most 5 s before the cut, the last second is kept free.
    assert_eq!(dropped - asked, S(1));
    assert!(dropped - cut < S(14) && dropped - cut >= S(8), "{:?}", dropped - cut);
}

// Guarantee: stream 5.
#[test]
fn a_hand_over_waits_for_handlers_then_asks_them_to_stop_then_drops_them() {
    let world = World::new(2);
    // The handler on one partition ends in time, the other one never.
    let clock = world.clock.clone();
    world.start_as("a", World::quick().drain_timeout(S(5)), move |event| {
        let clock = clock.clone();
        async move {
            clock.sleep(if event.position.partition == 0 { S(3) } else { S(3600) }).await;
            EventDisposition::Complete
        }
    });
    world.pass(S(2));
    world.topic.add(0, ["quick"]);
    world.topic.add(1, ["slow"]);
    world.pass(S(1));
    let stopped = world.clock.now();
    world.stop("a");
    world.start_as("b", World::quick(), |_| complete());
    world.pass(S(30));
    let released = world.told(|event| match event {
        StreamProcessorEvent::Released { partition, is_clean, .. } => Some((*partition, *is_clean)),
        _ => None,
    });
    assert_eq!(released, [(0, true), (1, false)]);
    let runs = world.runs();
    assert_eq!(world.texts().iter().filter(|text| *text == "quick").count(), 1);
    let slow: Vec<_> = runs.iter().filter(|ran| ran.text == "slow").collect();
    assert_eq!((slow.len(), slow[0].ended), (2, None));
    assert!(slow[1].began - stopped >= S(5), "not before it was dropped");
}

#[test]
fn a_member_on_a_topic_that_fails_goes_on_when_it_works() {
    let world = World::new(1);
    world.start_as("a", World::quick(), |_| complete());
    world.pass(S(2));
    *world.topic.fails.lock().unwrap() = Some(steadfast::port::PortErrorKind::Unavailable);
    world.pass(S(60));
    *world.topic.fails.lock().unwrap() = None;
    world.topic.add(0, ["1"]);
    world.pass(S(6));
    assert_eq!(world.texts(), ["1"]);
    let failed = world.told(|event| matches!(event, StreamProcessorEvent::CallFailed { .. }).then_some(()));
    assert!(failed.len() < 700, "{}", failed.len());
}

// Guarantee: stream 7.
#[test]
fn with_a_notifier_an_event_in_a_quiet_partition_is_processed_at_once() {
    let world = World::new(1);
    let notifier = Arc::new(InMemoryNotifier::new());
    let open = || {
        let topic = StoreTopic::builder(world.store.clone(), "quiet", 4).clock(&world.clock);
        world.time.block_on(topic.notifier(notifier.clone()).build()).unwrap()
    };
    let leases = StoreLease::builder(world.store.clone()).clock(&world.clock).build().unwrap();
    let member = StreamProcessor::builder(open(), "dispatch", Arc::new(leases), world.store.clone(), World::config())
        .clock(&world.clock)
        .entropy(&Entropy::from_seed(5))
        .notifier(notifier.clone())
        .build()
        .unwrap();
    world.start_built("m", member, |_| complete());
    world.pass(S(3600));
    let producer = open();
    for partition in [0, 3, 2] {
        world.time.block_on(producer.append(partition, vec![Event::new("x")])).unwrap();
        world.pass(MS(100));
        assert_eq!(world.runs().pop().unwrap().position.partition, partition);
    }
}
