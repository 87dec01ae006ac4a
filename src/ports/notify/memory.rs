//! Notices within this process.
use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use tokio::sync::broadcast;

use super::{Notice, NoticeSource, Notices, Notifier};
use crate::port::{BoxFuture, Capabilities, Capability, PortError, check_part};

/// Notices within this process. A clone shares the topics.
///
/// A subscriber that falls behind by more than 1,024 notices is told of a gap.
#[derive(Clone, Default)]
pub struct InMemoryNotifier(Arc<Mutex<HashMap<String, broadcast::Sender<Bytes>>>>);

const CAN: Capabilities = Capabilities::of("memory", &[Capability::Push]).largest_value(1 << 20).largest_key(1024);

/// How many notices a slow subscriber may be behind before it misses any.
const RING: usize = 1024;

impl InMemoryNotifier {
    /// A notifier without subscribers.
    pub fn new() -> Self {
        Self::default()
    }

    fn topics(&self) -> MutexGuard<'_, HashMap<String, broadcast::Sender<Bytes>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Notifier for InMemoryNotifier {
    fn capabilities(&self) -> Capabilities {
        CAN
    }

    fn publish<'a>(&'a self, topic: &'a str, notice: Bytes) -> BoxFuture<'a, Result<(), PortError>> {
        Box::pin(async move {
            super::check(topic, &notice, &CAN)?;
            let mut topics = self.topics();
            // An error means that the last subscriber is gone, and with it the topic.
            if topics.get(topic).is_some_and(|sender| sender.send(notice).is_err()) {
                topics.remove(topic);
            }
            Ok(())
        })
    }

    fn subscribe<'a>(&'a self, topic: &'a str) -> BoxFuture<'a, Result<Notices, PortError>> {
        Box::pin(async move {
            check_part("topic", topic, &CAN)?;
            let mut topics = self.topics();
            let sender = topics.entry(topic.to_owned()).or_insert_with(|| broadcast::Sender::new(RING));
            Ok(Notices::new(Source { notices: sender.subscribe(), _keeps_the_topic: self.clone() }))
        })
    }
}

struct Source {
    notices: broadcast::Receiver<Bytes>,
    /// A sender that is dropped would end the subscription.
    _keeps_the_topic: InMemoryNotifier,
}

impl NoticeSource for Source {
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
