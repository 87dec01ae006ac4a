//! The behaviours of the listener's specification, 1 to 3: how quiet it is, how soon it wakes, how it keeps what it has.
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use steadfast::{
    entropy::Entropy,
    notify::{InMemoryNotifier, Notifier},
    queue::{InMemoryQueue, Message, Queue, QueueExt},
    queue_listener::{IdleConfig, QueueListener, QueueListenerConfig, Work},
    time::{Clock, Instant, ManualClock},
};

pub(crate) const MS: fn(u64) -> Duration = Duration::from_millis;
pub(crate) const S: fn(u64) -> Duration = Duration::from_secs;

/// 22 idle hours.
const DAY: Duration = Duration::from_secs(22 * 3600);

struct World {
    clock: Clock,
    hand: ManualClock,
    queue: Arc<InMemoryQueue>,
}

impl World {
    fn new() -> Self {
        let (clock, hand) = Clock::manual();
        let queue = Arc::new(InMemoryQueue::new("jobs").with_clock(&clock));
        Self { clock, hand, queue }
    }

    fn listener(&self, config: QueueListenerConfig, seed: u64) -> QueueListener {
        let builder = QueueListener::builder(self.queue.clone()).config(config).clock(&self.clock);
        builder.entropy(&Entropy::from_seed(seed)).build().unwrap()
    }
}

async fn nothing(work: Work) {
    panic!("there is no work, but {work:?}");
}

/// Requests of a listener that idles for so long.
fn idle_requests(world: &World, listener: &QueueListener, time: Duration) -> u64 {
    let before = listener.state().requests;
    world.hand.block_on(listener.run(world.clock.sleep(time), nothing)).unwrap();
    listener.state().requests - before
}

#[test]
fn listener_01_an_idle_day_costs_79200_requests_naively_1330_or_276_adaptively_and_none_with_wake_ups() {
    let config = QueueListenerConfig::default();
    let naive = {
        let world = World::new();
        let listener = world.listener(config.tasks(1, 1).idle(IdleConfig::between(S(1), S(1)).delta(S(0))), 1);
        idle_requests(&world, &listener, DAY)
    };
    assert_eq!(naive, 79_200);
    let adaptive = |max, at_most| {
        let mut most = 0;
        for seed in 0..20 {
            let world = World::new();
            let listener = world.listener(config.idle(IdleConfig::between(MS(100), max)), seed);
            most = most.max(idle_requests(&world, &listener, DAY));
        }
        assert!(most <= at_most && most > at_most - 10, "{most}");
        most
    };
    let (minute, five) = (adaptive(S(60), 1330), adaptive(S(300), 276));
    let woken = {
        let world = World::new();
        let builder = QueueListener::builder(world.queue.clone()).clock(&world.clock).entropy(&Entropy::from_seed(1));
        let builder = builder.woken_by(Arc::new(InMemoryNotifier::new()), "jobs").config(config.tasks(0, 16));
        let listener = builder.build().unwrap();
        let run = listener.run(world.clock.sleep(DAY + S(3600)), nothing);
        let counts = async {
            world.clock.sleep(S(3600)).await;
            let before = listener.state();
            assert_eq!(before.tasks, 0);
            world.clock.sleep(DAY).await;
            listener.state().requests - before.requests
        };
        world.hand.block_on(async { tokio::join!(run, counts).1 })
    };
    assert_eq!(woken, 0);
    println!("requests in 22 idle hours: each second {naive}, to 60 s {minute}, to 300 s {five}, woken {woken}");
}
