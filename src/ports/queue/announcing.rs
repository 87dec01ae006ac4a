//! Telling listeners that something was sent.
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;

use super::{Delivery, Depth, Message, MessageId, Peeked, Queue, QueueError, Receipt, Receive, Settle};
use crate::{
    config::Name,
    notify::Notifier,
    port::{BoxFuture, Capabilities},
    race::{First, race},
    time::Clock,
};

/// A queue that publishes a notice after a `send`, so that a listener that is [woken by](crate::queue_listener::QueueListenerBuilder::woken_by) the topic
/// looks at once.
///
/// Not every `send` has its notice: none follows another within a short time, in which a listener that was woken looks again by itself. So a flood of
/// messages is none of notices. Where the notifier fails, the messages are sent all the same, and found by polling.
///
/// A clone is the same.
#[derive(Clone)]
pub struct AnnouncingQueue(Arc<Inner>);

struct Inner {
    queue: Arc<dyn Queue>,
    notifier: Arc<dyn Notifier>,
    topic: Name,
    clock: Clock,
    apart: Duration,
    /// When the next notice may be published.
    next: AtomicU64,
}

/// How far notices are apart, if nothing else is set: below the 100 ms after which a listener that was woken looks again.
const APART: Duration = Duration::from_millis(20);

/// How long a notice may take.
const PATIENCE: Duration = Duration::from_secs(1);

impl AnnouncingQueue {
    /// This queue, announced to this topic.
    pub fn new(queue: Arc<dyn Queue>, notifier: Arc<dyn Notifier>, topic: impl Into<Name>) -> Self {
        let (topic, clock) = (topic.into(), Clock::default());
        Self(Arc::new(Inner { queue, notifier, topic, clock, apart: APART, next: AtomicU64::new(0) }))
    }

    /// The same with notices at least so far apart. 20 ms by default.
    #[must_use]
    pub fn apart(self, apart: Duration) -> Self {
        let clock = self.0.clock.clone();
        self.with(clock, apart)
    }

    /// The same on this clock. tokio's by default.
    #[must_use]
    pub fn with_clock(self, clock: &Clock) -> Self {
        let apart = self.0.apart;
        self.with(clock.clone(), apart)
    }

    fn with(self, clock: Clock, apart: Duration) -> Self {
        let Inner { queue, notifier, topic, .. } = &*self.0;
        let (queue, notifier, topic) = (queue.clone(), notifier.clone(), topic.clone());
        Self(Arc::new(Inner { queue, notifier, topic, clock, apart, next: AtomicU64::new(0) }))
    }

    async fn announce(&self) {
        let Inner { notifier, topic, clock, apart, next, .. } = &*self.0;
        let now = clock.now();
        let due = next.load(Ordering::Relaxed);
        if due > now.as_nanos() {
            return;
        }
        // Of several at once one publishes.
        let after = (now + *apart).as_nanos();
        if next.compare_exchange(due, after, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        // The messages are sent: a notifier that hangs must not hold their sender up.
        let publish = notifier.publish(topic.as_str(), Bytes::new());
        if !matches!(race(publish, async { clock.sleep(PATIENCE).await }).await, First::One(Ok(()))) {
            // The next `send` tries again.
            next.store(0, Ordering::Relaxed);
        }
    }
}

impl Queue for AnnouncingQueue {
    fn capabilities(&self) -> Capabilities {
        self.0.queue.capabilities()
    }
    fn identity(&self) -> String {
        self.0.queue.identity()
    }
    fn send<'a>(&'a self, messages: Vec<Message>) -> BoxFuture<'a, Result<Vec<MessageId>, QueueError>> {
        Box::pin(async move {
            let ids = self.0.queue.send(messages).await?;
            self.announce().await;
            Ok(ids)
        })
    }
    fn receive<'a>(&'a self, receive: Receive) -> BoxFuture<'a, Result<Vec<Delivery>, QueueError>> {
        self.0.queue.receive(receive)
    }
    fn settle<'a>(
        &'a self,
        settlements: Vec<(Receipt, Settle)>,
    ) -> BoxFuture<'a, Result<Vec<Result<(), QueueError>>, QueueError>> {
        self.0.queue.settle(settlements)
    }
    fn extend<'a>(&'a self, receipt: &'a Receipt, visibility: Duration) -> BoxFuture<'a, Result<(), QueueError>> {
        self.0.queue.extend(receipt, visibility)
    }
    fn depth(&self) -> BoxFuture<'_, Result<Depth, QueueError>> {
        self.0.queue.depth()
    }
    fn peek(&self, max: usize) -> BoxFuture<'_, Result<Vec<Peeked>, QueueError>> {
        self.0.queue.peek(max)
    }
    fn purge(&self) -> BoxFuture<'_, Result<u64, QueueError>> {
        self.0.queue.purge()
    }
    fn dead_letters(&self) -> Option<Arc<dyn Queue>> {
        self.0.queue.dead_letters()
    }
}

impl fmt::Debug for AnnouncingQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnnouncingQueue")
            .field("queue", &self.0.queue)
            .field("topic", &self.0.topic)
            .finish_non_exhaustive()
    }
}
