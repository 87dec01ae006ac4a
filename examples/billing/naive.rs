//! The pollers that the listener is compared with, and hours without work, on a clock that is moved by hand: what they ask is counted.
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use futures::future::{join_all, select};
use steadfast::{
    notify::InMemoryNotifier,
    queue::{InMemoryQueue, Message, Queue, QueueExt},
    queue_listener::{QueueListener, Work},
    time::{Clock, ManualClock},
};

use crate::{
    Result,
    processor::{ITEMS, config},
};

struct World {
    clock: Clock,
    hand: ManualClock,
    queue: Arc<InMemoryQueue>,
}

impl World {
    fn new() -> Self {
        let (clock, hand) = Clock::manual();
        Self { queue: Arc::new(InMemoryQueue::new(ITEMS).with_clock(&clock)), clock, hand }
    }

    /// Takes one item and completes it, and asks each second when there is none.
    async fn poll(&self, requests: &AtomicU64) -> Result<()> {
        loop {
            requests.fetch_add(1, Relaxed);
            match self.queue.receive_one(config().visibility).await? {
                Some(item) => {
                    requests.fetch_add(1, Relaxed);
                    self.queue.complete(&item.receipt).await?;
                }
                None => self.clock.sleep(Duration::from_secs(1)).await,
            }
        }
    }

    /// Counts the requests of as many pollers as the processes may have tasks, until `end` is ready.
    fn pollers(&self, processes: u32, end: impl Future<Output = ()>) -> u64 {
        let requests = AtomicU64::new(0);
        let polls = join_all((0..processes * config().max_tasks).map(|_| self.poll(&requests)));
        self.hand.block_on(select(Box::pin(polls), Box::pin(end)));
        requests.into_inner()
    }
}

/// What pollers ask until all of so many items are done.
pub(crate) fn pollers_busy(processes: u32, items: usize) -> Result<u64> {
    let world = World::new();
    let mut left = items;
    while left > 0 {
        let some = left.min(1_000);
        world.hand.block_on(world.queue.send((0..some).map(|_| Message::new("item")).collect()))?;
        left -= some;
    }
    let is_done = async {
        while world.queue.depth().await.is_ok_and(|depth| depth.total() > 0) {
            world.clock.sleep(Duration::from_millis(1)).await;
        }
    };
    Ok(world.pollers(processes, is_done))
}

/// What pollers ask in so long without an item.
pub(crate) fn pollers_idle(processes: u32, time: Duration) -> u64 {
    let world = World::new();
    world.pollers(processes, world.clock.sleep(time))
}

/// What the listeners of so many processes ask in so long without an item.
pub(crate) fn listeners_idle(processes: u32, time: Duration) -> Result<u64> {
    let world = World::new();
    let notifier = Arc::new(InMemoryNotifier::new());
    let listener = || {
        let builder = QueueListener::builder(world.queue.clone()).config(config()).clock(&world.clock);
        builder.notifier(notifier.clone(), ITEMS).build()
    };
    let listeners = (0..processes).map(|_| listener()).collect::<std::result::Result<Vec<_>, _>>()?;
    let runs = listeners.iter().map(|listener| listener.run(world.clock.sleep(time), async |_: Work| {}));
    world.hand.block_on(join_all(runs)).into_iter().collect::<std::result::Result<Vec<_>, _>>()?;
    Ok(listeners.iter().map(|listener| listener.state().requests).sum())
}
