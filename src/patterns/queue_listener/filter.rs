//! Messages that were handled before, remembered in a store.
use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::{QueueCall, shift::Shift};
use crate::{
    queue::Delivery,
    store::{Key, PutOptions, Store},
};

/// Remembers in a store which messages were handled, so that one that is delivered again is completed, and not handled again.
///
/// It remembers after the handler is done and before the message is completed. A listener that is killed in between has handled a message
/// that nobody remembers; and two deliveries at the same moment may both be handled. What must not happen twice at all has to be refused by
/// whatever it changes.
#[derive(Clone)]
pub struct IdempotencyFilter {
    store: Arc<dyn Store>,
    partition: String,
    window: Duration,
    id: Arc<dyn Fn(&Delivery) -> String + Send + Sync>,
}

impl IdempotencyFilter {
    /// Remembers under this partition of this store for so long. What tells two messages apart is the queue's id, so that a message that was
    /// sent twice is two.
    pub fn new(store: Arc<dyn Store>, partition: impl Into<String>, window: Duration) -> Self {
        Self { store, partition: partition.into(), window, id: Arc::new(|delivery| delivery.id.to_string()) }
    }

    /// Tells messages apart by this: a header, a part of the body.
    #[must_use]
    pub fn by(mut self, id: impl Fn(&Delivery) -> String + Send + Sync + 'static) -> Self {
        self.id = Arc::new(id);
        self
    }

    pub(super) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    pub(super) fn window(&self) -> Duration {
        self.window
    }
}

impl std::fmt::Debug for IdempotencyFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IdempotencyFilter")
            .field("partition", &self.partition)
            .field("window", &self.window)
            .finish_non_exhaustive()
    }
}

impl Shift {
    /// What a message is remembered by, if it is.
    #[inline]
    pub(super) fn filter_key(&self, delivery: &Delivery) -> Option<String> {
        self.inner.filter.as_ref().map(|filter| (filter.id)(delivery))
    }

    /// Whether the message was handled before. Where the store does not say, it is handled: rather twice than never.
    pub(super) async fn is_duplicate(&self, delivery: &Delivery) -> bool {
        let Some(filter) = &self.inner.filter else { return false };
        let id = (filter.id)(delivery);
        let get = filter.store.get(Key::new(&filter.partition, &id));
        let known = self.request(QueueCall::Filter, self.inner.config.call_limit(), get).await;
        matches!(known, Some(Ok(Some(_))))
    }

    /// The message was handled.
    pub(super) async fn remember(&self, id: &str) {
        let Some(filter) = &self.inner.filter else { return };
        let put = filter.store.put(
            Key::new(&filter.partition, id),
            Bytes::from_static(b"handled"),
            PutOptions::new().ttl(filter.window),
        );
        // Its failure is told; the message is completed all the same.
        let _ = self.request(QueueCall::Filter, self.inner.config.call_limit(), put).await;
    }
}
