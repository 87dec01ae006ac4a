//! A log whose topic another one takes the place of, as by a restore from a backup.
use std::sync::{Arc, Mutex};

use steadfast::{
    event_sourcing::{EventStore, LogTopic},
    port::{Capabilities, PortFuture},
    stream::{Appended, Bounds, Event, Read, Recorded, Topic},
};

use super::{Fact, commit, memory};

/// A topic that another one takes the place of, and whose answers have this many events at most.
#[derive(Debug, Clone)]
pub(super) struct Changed {
    topic: Arc<Mutex<LogTopic>>,
    identity: String,
    most: usize,
}

impl Changed {
    pub(super) fn new(log: &EventStore, most: usize) -> Self {
        let topic = log.topic();
        Self { identity: topic.identity(), topic: Arc::new(Mutex::new(topic)), most }
    }

    /// Returns the topic of a log of these facts, and a log of others, which may take its place.
    pub(super) async fn of(before: &[Fact], after: &[Fact]) -> (Self, EventStore) {
        let (now, later) = (crate::log(&memory()).await, crate::log(&memory()).await);
        commit(&now, before).await;
        commit(&later, after).await;
        (Self::new(&now, 1_000), later)
    }

    pub(super) fn becomes(&self, log: &EventStore) {
        *self.topic.lock().unwrap() = log.topic();
    }

    fn now(&self) -> LogTopic {
        self.topic.lock().unwrap().clone()
    }
}

impl Topic for Changed {
    fn capabilities(&self) -> Capabilities {
        self.now().capabilities()
    }
    fn identity(&self) -> String {
        self.identity.clone()
    }
    fn name(&self) -> &str {
        "log"
    }
    fn partitions(&self) -> u16 {
        1
    }
    fn append(&self, _: u16, _: Vec<Event>) -> PortFuture<'_, Vec<Appended>> {
        unreachable!()
    }
    fn read(&self, partition: u16, read: Read) -> PortFuture<'_, Vec<Recorded>> {
        let most = read.max.min(self.most);
        Box::pin(async move { self.now().read(partition, read.max(most)).await })
    }
    fn bounds(&self, partition: u16) -> PortFuture<'_, Bounds> {
        Box::pin(async move { self.now().bounds(partition).await })
    }
    fn trim(&self, _: u16, _: u64) -> PortFuture<'_, u64> {
        unreachable!()
    }
}
