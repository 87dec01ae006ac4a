//! Pollers for the comparison with the listener, and hours without work, on a manual clock; their requests are counted.
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
    time: ManualClock,
    queue: Arc<InMemoryQueue>,
}

impl World {
    fn new() -> Self {
        let (clock, time) = Clock::manual();
        Self { queue: Arc::new(InMemoryQueue::builder(ITEMS).clock(&clock).build()), clock, time }
    }

    /// Takes one item and completes it; without an item it polls each second.
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

    /// Counts the requests of one poller for each task of the processes, until `end` is ready.
    fn pollers(&self, processes: u32, end: impl Future<Output = ()>) -> u64 {
        let requests = AtomicU64::new(0);
        let polls = join_all((0..processes * config().max_tasks).map(|_| self.poll(&requests)));
        self.time.block_on(select(Box::pin(polls), Box::pin(end)));
        requests.into_inner()
    }
}

/// Counts the requests of pollers until all items are done.
pub(crate) fn pollers_busy(processes: u32, items: usize) -> Result<u64> {
    let world = World::new();
    let mut left = items;
    while left > 0 {
        let some = left.min(1_000);
        world.time.block_on(world.queue.send((0..some).map(|_| Message::new("item")).collect()))?;
        left -= some;
    }
    let is_done = async {
        while world.queue.depth().await.is_ok_and(|depth| depth.total() > 0) {
            world.clock.sleep(Duration::from_millis(1)).await;
        }
    };
    Ok(world.pollers(processes, is_done))
}

/// Counts the requests of pollers in an idle period.
pub(crate) fn pollers_idle(processes: u32, time: Duration) -> u64 {
    let world = World::new();
    world.pollers(processes, world.clock.sleep(time))
}

/// Counts the requests of the processes' listeners in an idle period.
pub(crate) fn listeners_idle(processes: u32, time: Duration) -> Result<u64> {
    let world = World::new();
    let notifier = Arc::new(InMemoryNotifier::new());
    let listener = || {
        let builder = QueueListener::builder(world.queue.clone(), config()).clock(&world.clock);
        builder.notifier(notifier.clone(), ITEMS).build()
    };
    let listeners = (0..processes).map(|_| listener()).collect::<std::result::Result<Vec<_>, _>>()?;
    let runs = listeners.iter().map(|listener| listener.run(world.clock.sleep(time), async |_: Work| {}));
    world.time.block_on(join_all(runs)).into_iter().collect::<std::result::Result<Vec<_>, _>>()?;
    Ok(listeners.iter().map(|listener| listener.state().requests).sum())
}
