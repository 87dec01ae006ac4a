//! An idempotency filter: a record in a store of the messages that were handled.
use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::Delivery;
use crate::store::{Key, PutOptions, Store, StoreError};

/// Records in a store which messages were handled, so that a repeated delivery is completed and not
/// handled again.
///
/// A message is recorded after its handler and before its completion. If a listener is killed in
/// between, the message was handled but not recorded, and two concurrent deliveries may both be
/// handled. A message whose handler forwards its results is not recorded: another message of its
/// identity is handled, too, and only de-duplication ids keep its results from being sent again.
/// An effect that must never happen twice has to be refused where it takes place.
#[derive(Clone)]
pub struct IdempotencyFilter {
    store: Arc<dyn Store>,
    partition: String,
    window: Duration,
    id: Arc<dyn Fn(&Delivery) -> String + Send + Sync>,
}

impl IdempotencyFilter {
    /// Returns a filter that keeps its records in this partition of the store for `window`. The
    /// queue's message id identifies a message, so one that was sent twice counts as two.
    pub fn new(store: Arc<dyn Store>, partition: impl Into<String>, window: Duration) -> Self {
        Self { store, partition: partition.into(), window, id: Arc::new(|delivery| delivery.id.to_string()) }
    }

    /// Sets the identity of a message, such as a header or a part of its body.
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

    /// Returns the identity under which a message is recorded.
    pub(crate) fn id(&self, delivery: &Delivery) -> String {
        (self.id)(delivery)
    }

    /// Returns `true` if a message of this identity was handled.
    pub(crate) async fn was_handled(&self, id: &str) -> Result<bool, StoreError> {
        Ok(self.store.get(Key::new(&self.partition, id)).await?.is_some())
    }

    /// Records that the message of this identity was handled.
    pub(crate) async fn record(&self, id: &str) -> Result<(), StoreError> {
        let options = PutOptions::new().ttl(self.window);
        self.store.put(Key::new(&self.partition, id), Bytes::from_static(b"handled"), options).await.map(drop)
    }
}

crate::build::debug_fields!(IdempotencyFilter, |this| partition: this.partition, window: this.window);
