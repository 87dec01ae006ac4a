//! Ports without one of their guards, to show that the guard is needed.
use std::{
    fmt,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use steadfast::{
    queue::{Address, Message, MessageId, Queue, QueueFuture},
    store::{Key, Precondition, PutOptions, Store, StoreFuture, Version, Write},
};

/// A store that changes its puts.
pub(crate) struct Poor<F> {
    store: Arc<dyn Store>,
    change: F,
}

impl<F: Fn(&mut PutOptions) + Send + Sync> Poor<F> {
    pub(crate) fn new(store: impl Store + 'static, change: F) -> Self {
        Self { store: Arc::new(store), change }
    }
}

/// Returns the store without the comparison of versions.
pub(crate) fn without_versions(store: Arc<dyn Store>) -> Arc<dyn Store> {
    Arc::new(Poor::new(store, |options| {
        if matches!(options.when, Precondition::Version(_)) {
            options.when = Precondition::Any;
        }
    }))
}

impl<F> fmt::Debug for Poor<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poor").finish_non_exhaustive()
    }
}

impl<F: Fn(&mut PutOptions) + Send + Sync> Store for Poor<F> {
    forward_store! { store: capabilities, get, delete, scan }

    fn put<'a>(&'a self, key: Key<'a>, value: Bytes, mut options: PutOptions) -> StoreFuture<'a, Version> {
        (self.change)(&mut options);
        self.store.put(key, value, options)
    }

    fn batch<'a>(&'a self, partition: &'a str, mut writes: Vec<Write>) -> StoreFuture<'a, Vec<Option<Version>>> {
        for write in &mut writes {
            if let Write::Put { options, .. } = write {
                (self.change)(options);
            }
        }
        self.store.batch(partition, writes)
    }
}

/// A queue that changes its messages, and may say that it accepted them before it does. Forwards to it are sent.
pub(crate) struct PoorQueue<F> {
    queue: Arc<dyn Queue>,
    change: F,
    accepts_early: bool,
    /// Messages that were said to be accepted.
    pending: Mutex<Vec<Message>>,
}

impl<F: Fn(&mut Message) + Send + Sync> PoorQueue<F> {
    pub(crate) fn new(queue: Arc<dyn Queue>, accepts_early: bool, change: F) -> Self {
        Self { queue, change, accepts_early, pending: Mutex::default() }
    }
}

impl<F> fmt::Debug for PoorQueue<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoorQueue").finish_non_exhaustive()
    }
}

impl<F: Fn(&mut Message) + Send + Sync> Queue for PoorQueue<F> {
    forward_queue! { queue: capabilities, identity, receive, extend, depth, peek, purge, dead_letters, settle }

    // A forward would not pass through it.
    fn address(&self) -> Option<Address> {
        None
    }

    fn send<'a>(&'a self, mut messages: Vec<Message>) -> QueueFuture<'a, Vec<MessageId>> {
        messages.iter_mut().for_each(&self.change);
        if !self.accepts_early {
            return self.queue.send(messages);
        }
        let ids = messages.iter().map(|_| MessageId::new("later")).collect();
        let earlier = std::mem::replace(&mut *self.pending.lock().unwrap(), messages);
        Box::pin(async move {
            if !earlier.is_empty() {
                self.queue.send(earlier).await?;
            }
            Ok(ids)
        })
    }
}
