//! Messages that were handled before, remembered in a store.
use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::Delivery;
use crate::store::{Key, PutOptions, Store, StoreError};

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

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    pub(crate) fn window(&self) -> Duration {
        self.window
    }

    /// The identity under which a message is remembered.
    pub(crate) fn id(&self, delivery: &Delivery) -> String {
        (self.id)(delivery)
    }

    /// Reads whether the message of this identity was handled.
    pub(crate) async fn was_handled(&self, id: &str) -> Result<bool, StoreError> {
        Ok(self.store.get(Key::new(&self.partition, id)).await?.is_some())
    }

    /// Records that the message of this identity was handled.
    pub(crate) async fn record(&self, id: &str) -> Result<(), StoreError> {
        let options = PutOptions::new().ttl(self.window);
        self.store.put(Key::new(&self.partition, id), Bytes::from_static(b"handled"), options).await.map(drop)
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
