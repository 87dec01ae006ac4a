//! A queue that publishes a notice after each `send`.
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;

use super::{
    Address, Delivery, Depth, Message, MessageId, Peeked, Queue, QueueError, QueueFuture, Receipt, Receive, Settle,
};
use crate::{
    build::{Builder, Common, Component},
    config::Name,
    notify::Notifier,
    port::{Capabilities, ask},
    time::Clock,
};

/// A queue that publishes a notice after a `send`, so that a listener whose
/// [notifier](crate::queue_listener::QueueListener::builder) subscribes to the topic polls
/// at once.
///
/// Notices are at least 20 ms apart by default, so not every `send` has its own, and a flood of
/// messages is not a flood of notices. A woken listener polls again after 100 ms by default, and so
/// finds the messages in between. If the notifier fails, the messages are sent nevertheless, and
/// polling finds them.
///
/// Clones share their state.
#[derive(Clone)]
pub struct AnnouncingQueue(Arc<Inner>);

struct Inner {
    queue: Arc<dyn Queue>,
    notifier: Arc<dyn Notifier>,
    topic: Name,
    clock: Clock,
    min_interval: Duration,
    /// Nanoseconds at which the next notice may be published. Only this time is exchanged between
    /// callers, so `Relaxed` suffices.
    next: AtomicU64,
}

/// Default minimum time between two notices. It is below the 100 ms after which a woken listener
/// polls again.
const APART: Duration = Duration::from_millis(20);

/// Time limit of one notice.
const PATIENCE: Duration = Duration::from_secs(1);

/// Arguments of an announcing queue, beside name, clock and entropy.
pub struct AnnouncingSpec {
    queue: Arc<dyn Queue>,
    notifier: Arc<dyn Notifier>,
    topic: Name,
    min_interval: Duration,
}

impl Builder<AnnouncingQueue> {
    /// Sets the minimum time between two notices. 20 ms by default.
    pub fn min_interval(mut self, interval: Duration) -> Self {
        self.spec.min_interval = interval;
        self
    }
}

impl Component for AnnouncingQueue {
    type Built = Self;
    type Spec = AnnouncingSpec;

    fn assemble(spec: AnnouncingSpec, Common { clock, .. }: Common) -> Self {
        let AnnouncingSpec { queue, notifier, topic, min_interval } = spec;
        Self(Arc::new(Inner { queue, notifier, topic, clock, min_interval, next: AtomicU64::new(0) }))
    }
}

impl AnnouncingQueue {
    /// Creates this queue with notices to this topic.
    pub fn new(queue: Arc<dyn Queue>, notifier: Arc<dyn Notifier>, topic: impl Into<Name>) -> Self {
        Self::builder(queue, notifier, topic).build()
    }

    /// Creates a builder with the arguments of [`new`](Self::new).
    ///
    /// Methods of [this builder alone](crate::Builder#impl-Builder%3CAnnouncingQueue%3E):
    /// `min_interval`.
    pub fn builder(queue: Arc<dyn Queue>, notifier: Arc<dyn Notifier>, topic: impl Into<Name>) -> Builder<Self> {
        Builder::new(AnnouncingSpec { queue, notifier, topic: topic.into(), min_interval: APART })
    }

    async fn announce(&self) {
        let Inner { notifier, topic, clock, min_interval, next, .. } = &*self.0;
        let now = clock.now();
        let due = next.load(Ordering::Relaxed);
        if due > now.as_nanos() {
            return;
        }
        // Only one of several concurrent senders publishes.
        let after = (now + *min_interval).as_nanos();
        if next.compare_exchange(due, after, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        // The messages are sent, so a notifier that hangs must not block their sender.
        let publish = notifier.publish(topic.as_str(), Bytes::new());
        if ask(clock, PATIENCE, publish).await.is_err() {
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
    /// Returns `None`: a forward would publish no notice, so that a listener which waits for one
    /// would not find the message.
    fn address(&self) -> Option<Address> {
        None
    }
    fn send<'a>(&'a self, messages: Vec<Message>) -> QueueFuture<'a, Vec<MessageId>> {
        Box::pin(async move {
            let ids = self.0.queue.send(messages).await?;
            self.announce().await;
            Ok(ids)
        })
    }
    fn receive<'a>(&'a self, receive: Receive) -> QueueFuture<'a, Vec<Delivery>> {
        self.0.queue.receive(receive)
    }
    fn settle<'a>(&'a self, settlements: Vec<(Receipt, Settle)>) -> QueueFuture<'a, Vec<Result<(), QueueError>>> {
        self.0.queue.settle(settlements)
    }
    fn extend<'a>(&'a self, receipt: &'a Receipt, visibility: Duration) -> QueueFuture<'a, ()> {
        self.0.queue.extend(receipt, visibility)
    }
    fn mark_begun<'a>(&'a self, receipt: &'a Receipt, visibility: Duration, begun: bool) -> QueueFuture<'a, ()> {
        self.0.queue.mark_begun(receipt, visibility, begun)
    }
    fn depth(&self) -> QueueFuture<'_, Depth> {
        self.0.queue.depth()
    }
    fn peek(&self, max: usize) -> QueueFuture<'_, Vec<Peeked>> {
        self.0.queue.peek(max)
    }
    fn purge(&self) -> QueueFuture<'_, u64> {
        self.0.queue.purge()
    }
    fn dead_letters(&self) -> Option<Arc<dyn Queue>> {
        self.0.queue.dead_letters()
    }
}

crate::build::debug_fields!(AnnouncingQueue, |this| queue: this.0.queue, topic: this.0.topic);
