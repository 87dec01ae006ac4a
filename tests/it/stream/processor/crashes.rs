//! A member that crashes, fails or is dropped at any point: another one goes on, and every event that runs again is
//! explained.
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use steadfast::{
    entropy::Entropy,
    lease::StoreLease,
    queue::{InMemoryQueue, Queue},
    store::{Key, Store},
    stream::{Delivered, Event, StoreTopic, StreamProcessor, StreamProcessorConfig, Topic},
    testing::{CrashingProcess, crash_at_every_write, drop_at_every_await, fail_at_every_write},
    time::Clock,
    work::{EventDisposition, IdleConfig},
};

use super::world::{MS, S, World};
use crate::engines::Engine;

const EVENTS: u64 = 6;
const POISON: u64 = 4;

type Ended = Arc<Mutex<Vec<u64>>>;

fn config() -> StreamProcessorConfig {
    let idle = IdleConfig::between(S(1), S(1));
    World::quick().checkpoint_every(2).max_deliveries(1).idle(idle).rebalance_interval(S(8))
}

struct Parts {
    store: Arc<dyn Store>,
    dead: Arc<dyn Queue>,
    clock: Clock,
    ended: Ended,
}

impl Parts {
    async fn run(&self, name: &str, seed: u64) {
        let entropy = Entropy::from_seed(seed);
        let topic = loop {
            let topic = StoreTopic::builder(self.store.clone(), "orders", 1).clock(&self.clock).entropy(&entropy);
            if let Ok(topic) = topic.build().await {
                break Arc::new(topic);
            }
        };
        let leases = StoreLease::builder(self.store.clone()).clock(&self.clock).build().unwrap();
        let processor = StreamProcessor::builder(topic, "dispatch", Arc::new(leases), self.store.clone(), config())
            .member(name)
            .clock(&self.clock)
            .entropy(&entropy)
            .dead_letters(self.dead.clone())
            .build()
            .unwrap();
        let done = async {
            for _ in 0..400 {
                let ended: BTreeSet<u64> = self.ended.lock().unwrap().iter().copied().collect();
                if ended.len() as u64 == EVENTS {
                    break;
                }
                self.clock.sleep(MS(100)).await;
            }
            // For the last dead letter and checkpoint.
            self.clock.sleep(S(2)).await;
        };
        let ran = processor.run(done, |event: Delivered| {
            let (ended, clock) = (self.ended.clone(), self.clock.clone());
            async move {
                clock.sleep(MS(50)).await;
                ended.lock().unwrap().push(event.position.offset);
                if event.position.offset == POISON {
                    EventDisposition::retry("bad")
                } else {
                    EventDisposition::Complete
                }
            }
        });
        ran.await.unwrap();
    }
}

fn test(engine: Engine, process: &CrashingProcess) {
    let world = engine.world();
    let topic = world.run(async {
        let topic = StoreTopic::builder(world.store.clone(), "orders", 1).clock(&world.clock);
        let topic = topic.entropy(&Entropy::from_seed(9)).build().await.unwrap();
        let events = (0..EVENTS).map(|i| Event::new(i.to_string()).key(["a", "b"][i as usize % 2]));
        topic.append(0, events.collect()).await.unwrap();
        topic
    });
    let dead: Arc<dyn Queue> = Arc::new(InMemoryQueue::builder("dead").clock(&world.clock).build());
    let (ended, clock) = (Ended::default(), world.clock.clone());
    let (store, letters) = (process.store(world.store.clone()), process.queue(dead.clone()));
    let crashes = Parts { store, dead: letters, clock: clock.clone(), ended: ended.clone() };
    world.run(process.run(crashes.run("a", 1)));
    let key = Key::new("stream-group/dispatch/orders", "p/0000");
    let watermark = || {
        let record = world.run(world.store.get(key)).unwrap();
        let at = record.map(|record| String::from_utf8_lossy(&record.value).into_owned()).unwrap_or_default();
        let at = at.lines().find_map(|line| line.strip_prefix("at ")?.split(' ').next()?.parse::<u64>().ok());
        at.unwrap_or_default()
    };
    let (first, before) = (std::mem::take(&mut *ended.lock().unwrap()), watermark());
    let healthy = Parts { store: world.store.clone(), dead: dead.clone(), clock, ended: ended.clone() };
    if before < EVENTS {
        world.run(healthy.run("b", 2));
    }
    let second = ended.lock().unwrap().clone();
    assert_eq!(watermark(), EVENTS);
    let all: BTreeSet<u64> = first.iter().chain(&second).copied().collect();
    assert!(all.into_iter().eq(1..=EVENTS), "{first:?} {second:?}");
    for ended in [&first, &second] {
        for key in [0, 1] {
            let of_key: Vec<_> = ended.iter().filter(|offset| **offset % 2 == key).collect();
            assert!(of_key.is_sorted(), "{ended:?}");
        }
    }
    // Each that ran again was above the watermark.
    assert!(second.iter().all(|offset| *offset > before), "{second:?} above {before}");
    let letters = world.run(dead.peek(10)).unwrap();
    assert_eq!(letters.len(), 1, "once, although it may have been sent twice");
    drop(topic);
}

// Guarantee: stream 3, 5.
#[test]
fn a_member_that_crashes_at_any_request_loses_no_event_and_its_successor_goes_on_at_the_checkpoint() {
    for engine in Engine::ALL {
        let requests = crash_at_every_write(|process| test(engine, process));
        println!("{engine:?}: {requests} requests");
        assert!(requests >= 15, "{requests}");
    }
}

// Guarantee: stream 5.
#[test]
fn a_member_whose_requests_fail_in_turn_goes_on() {
    for engine in Engine::ALL {
        let requests = fail_at_every_write(|process| test(engine, process));
        assert!(requests >= 15, "{requests}");
    }
}

#[test]
fn a_member_can_be_dropped_at_every_await_and_run_again() {
    let world = World::new(2);
    let processor = world.builder("a", World::quick()).build().unwrap();
    let (runs, clock) = (world.runs.clone(), world.clock.clone());
    let polls = drop_at_every_await(
        &world.time,
        || {
            runs.lock().unwrap().clear();
            world.topic.add(0, ["a:1", "a:2", "b:3"]);
            processor.run(clock.sleep(S(4)), |event: Delivered| {
                let clock = clock.clone();
                async move {
                    clock.sleep(MS(100)).await;
                    if event.position.offset.is_multiple_of(3) {
                        EventDisposition::retry("busy")
                    } else {
                        EventDisposition::Complete
                    }
                }
            })
        },
        |_| assert!(processor.state().is_empty()),
    );
    assert!(polls > 30, "{polls}");
    // Nothing of the dropped runs is left: this one finishes all.
    let end = world.time.block_on(world.topic.bounds(0)).unwrap().next - 1;
    let shutdown = world.clock.sleep(S(60));
    world.time.block_on(processor.run(shutdown, async |_| ())).unwrap();
    assert_eq!(world.watermark(0), end);
}
