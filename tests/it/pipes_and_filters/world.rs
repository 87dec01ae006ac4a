//! Queues of one engine, and filters between them.
use std::{collections::BTreeMap, future::Future, sync::Arc, time::Duration};

use steadfast::{
    Builder,
    backend::sqlite::{Durability, Sqlite, SqliteConfig},
    backoff::BackoffConfig,
    entropy::Entropy,
    pipes_and_filters::Filter,
    queue::{Delivery, InMemoryQueue, Message, MessageId, Queue, QueueExt, Receive},
    queue_listener::{IdleConfig, QueueListenerConfig},
    testing::ScriptedPort,
    time::{Clock, ManualClock},
};

use crate::engines::Engine;

pub(crate) const MS: fn(u64) -> Duration = Duration::from_millis;
pub(crate) const S: fn(u64) -> Duration = Duration::from_secs;

/// Returns the queue as one of another engine: deliveries cannot be forwarded to it.
pub(crate) fn elsewhere(queue: Arc<dyn Queue>) -> Arc<dyn Queue> {
    ScriptedPort::elsewhere(&Clock::tokio()).queue(queue)
}

/// The way of the results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Forwarded,
    Sent,
}

impl Way {
    pub(crate) const ALL: [Self; 2] = [Self::Forwarded, Self::Sent];

    /// Returns the queue as an output that results reach in this way.
    pub(crate) fn to(self, queue: &Arc<dyn Queue>) -> Arc<dyn Queue> {
        match self {
            Self::Forwarded => queue.clone(),
            Self::Sent => elsewhere(queue.clone()),
        }
    }
}

pub(crate) struct World {
    pub(crate) clock: Clock,
    pub(crate) time: ManualClock,
    sqlite: Option<(Sqlite, tempfile::TempDir)>,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::on(Engine::Memory)
    }

    pub(crate) fn on(engine: Engine) -> Self {
        let (clock, time) = Clock::manual();
        let sqlite = (engine == Engine::Sqlite).then(|| {
            let folder = tempfile::tempdir().unwrap();
            let config = SqliteConfig::at(folder.path().join("queues.db")).durability(Durability::Relaxed);
            (Sqlite::open_with_clock(config, &clock).unwrap(), folder)
        });
        Self { clock, time, sqlite }
    }

    pub(crate) fn queue(&self, name: &str) -> Arc<dyn Queue> {
        match &self.sqlite {
            Some((sqlite, _)) => Arc::new(sqlite.queue(name).unwrap()),
            None => Arc::new(InMemoryQueue::builder(name).clock(&self.clock).build()),
        }
    }

    pub(crate) fn bounded(&self, name: &str, bound: usize) -> Arc<dyn Queue> {
        Arc::new(InMemoryQueue::builder(name).bounded(bound).clock(&self.clock).build())
    }

    /// Settings whose longest redelivery is shorter than the default window of a queue, 5 min.
    pub(crate) fn config() -> QueueListenerConfig {
        let (retry, idle) = (BackoffConfig::default().between(S(1), S(5)), IdleConfig::between(MS(100), S(5)));
        QueueListenerConfig::default().visibility(S(9)).idle(idle).retry(retry).max_attempts(5).handler_timeout(S(20))
    }

    /// A filter of at most 16 tasks.
    pub(crate) fn filter(&self, name: &str, input: &Arc<dyn Queue>) -> Builder<Filter> {
        self.filter_with(name, input, Self::config())
    }

    pub(crate) fn filter_with(
        &self,
        name: &str,
        input: &Arc<dyn Queue>,
        config: QueueListenerConfig,
    ) -> Builder<Filter> {
        let seed = name.bytes().fold(7, |seed: u64, byte| seed.wrapping_mul(31) + u64::from(byte));
        let filter = Filter::builder(name.to_owned(), input.clone(), config);
        filter.clock(&self.clock).entropy(&Entropy::from_seed(seed))
    }

    pub(crate) fn run<F: Future>(&self, future: F) -> F::Output {
        self.time.block_on(future)
    }

    pub(crate) fn send(&self, queue: &Arc<dyn Queue>, messages: impl IntoIterator<Item = Message>) -> Vec<MessageId> {
        self.run(queue.send(messages.into_iter().collect())).unwrap()
    }

    /// Removes and returns the visible messages.
    pub(crate) fn take(&self, queue: &Arc<dyn Queue>) -> Vec<Delivery> {
        let mut taken = Vec::new();
        loop {
            let some = self.run(queue.receive(Receive::new(10, S(30)))).unwrap();
            if some.is_empty() {
                return taken;
            }
            for delivery in some {
                self.run(queue.complete(&delivery.receipt)).unwrap();
                taken.push(delivery);
            }
        }
    }

    pub(crate) fn depth(&self, queue: &Arc<dyn Queue>) -> u64 {
        steadfast::time::block_on(queue.depth()).unwrap().total()
    }

    pub(crate) fn dead(&self, queue: &Arc<dyn Queue>) -> Vec<String> {
        let letters = queue.dead_letters().unwrap();
        let peeked = steadfast::time::block_on(letters.peek(100)).unwrap();
        peeked.into_iter().map(|letter| letter.reason.unwrap_or_default()).collect()
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn texts(taken: &[Delivery]) -> Vec<String> {
    taken.iter().map(|delivery| text(&delivery.body)).collect()
}

/// Returns the bodies of each group, in order.
pub(crate) fn by_group(taken: &[Delivery]) -> BTreeMap<String, Vec<String>> {
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for delivery in taken {
        groups.entry(delivery.group.clone().unwrap_or_default()).or_default().push(text(&delivery.body));
    }
    groups
}
