//! The notifier in memory.
use std::{collections::HashMap, fmt, sync::Arc};

use bytes::Bytes;
use tokio::sync::broadcast;

use super::{Notice, NoticeSource, Notices, Notifier, check_notice};
use crate::{
    port::{BoxFuture, Capabilities, Capability, PortFuture},
    sync::{Mutex, MutexGuard},
};

/// A notifier within this process. A clone shares the topics.
///
/// A subscriber that falls behind by more than 1,024 notices receives a [`Gap`](Notice::Gap).
#[derive(Clone, Default)]
pub struct InMemoryNotifier(Arc<Mutex<HashMap<String, broadcast::Sender<Bytes>>>>);

const CAN: Capabilities = Capabilities::of("memory", &[Capability::Push]).largest_value(1 << 20).largest_key(1024);

/// Number of notices that a slow subscriber may fall behind before it misses any.
const BUFFERED: usize = 1024;

impl InMemoryNotifier {
    /// Creates a notifier without subscribers.
    pub fn new() -> Self {
        Self::default()
    }

    fn topics(&self) -> MutexGuard<'_, HashMap<String, broadcast::Sender<Bytes>>> {
        self.0.lock()
    }
}

impl Notifier for InMemoryNotifier {
    fn capabilities(&self) -> Capabilities {
        CAN
    }

    fn publish<'a>(&'a self, topic: &'a str, notice: Bytes) -> PortFuture<'a, ()> {
        Box::pin(async move {
            check_notice(topic, &notice, &CAN)?;
            let mut topics = self.topics();
            // A send fails only after the last subscriber was dropped, so the topic is removed too.
            if topics.get(topic).is_some_and(|sender| sender.send(notice).is_err()) {
                topics.remove(topic);
            }
            Ok(())
        })
    }

    fn subscribe<'a>(&'a self, topic: &'a str) -> PortFuture<'a, Notices> {
        Box::pin(async move {
            CAN.check_key("topic", topic)?;
            let mut topics = self.topics();
            let sender = topics.entry(topic.to_owned()).or_insert_with(|| broadcast::Sender::new(BUFFERED));
            Ok(Notices::new(TopicSubscription { notices: sender.subscribe(), _keeps_the_topic: self.clone() }))
        })
    }
}

struct TopicSubscription {
    notices: broadcast::Receiver<Bytes>,
    /// Keeps the sender of the topic: dropping it would end the subscription.
    _keeps_the_topic: InMemoryNotifier,
}

impl NoticeSource for TopicSubscription {
    fn recv(&mut self) -> BoxFuture<'_, Notice> {
        Box::pin(async {
            match self.notices.recv().await {
                Ok(notice) => Notice::Message(notice),
                Err(broadcast::error::RecvError::Lagged(_)) => Notice::Gap,
                Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
            }
        })
    }
}

impl fmt::Debug for InMemoryNotifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InMemoryNotifier").field("topics", &self.topics().len()).finish()
    }
}
