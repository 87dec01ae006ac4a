//! The subscription of a cache to the notices of others.
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use bytes::Bytes;
use steadfast::{
    cache_aside::{CacheAsideEvent, RemoteCall},
    notify::{InMemoryNotifier, Notices, Notifier},
    port::{BoxFuture, Capabilities, PortError},
};

use super::world::{MIN, World, codec, plain};

/// A notifier whose first subscription never returns.
#[derive(Debug, Default)]
struct HangsOnce(InMemoryNotifier, AtomicUsize);

impl Notifier for HangsOnce {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    fn publish<'a>(&'a self, topic: &'a str, notice: Bytes) -> BoxFuture<'a, Result<(), PortError>> {
        self.0.publish(topic, notice)
    }
    fn subscribe<'a>(&'a self, topic: &'a str) -> BoxFuture<'a, Result<Notices, PortError>> {
        if self.1.fetch_add(1, SeqCst) == 0 {
            return Box::pin(std::future::pending());
        }
        self.0.subscribe(topic)
    }
}

/// Bug: subscribing had no time limit. If it hung, the cache received no notice until its process
/// ended, and reported nothing.
#[test]
fn a_subscription_that_hangs_is_reported_and_made_again() {
    let world = World::new();
    let notifier = Arc::new(HangsOnce::default());
    let builder = world.builder(plain()).name("numbers").remote(world.store.clone(), codec());
    let cache = builder.backplane(notifier.clone()).build().unwrap();
    let mut events = cache.events();
    let loops = cache.clone();
    world.background.spawn(async move {
        loops.run(std::future::pending()).await;
    });
    world.pass(MIN(5));
    assert_eq!(notifier.1.load(SeqCst), 2, "subscribed at the second attempt");
    let failed = CacheAsideEvent::RemoteFailed { call: RemoteCall::Notify, kind: None };
    assert_eq!(events.try_recv().unwrap().map(|event| event.what), Some(failed));
}
