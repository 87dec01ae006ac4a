//! The subscription of a cache to the notices of others.
use steadfast::{
    cache_aside::{CacheAsideEvent, RemoteCall},
    testing::{PortAnswer, ScriptedPort},
};

use super::world::{MIN, World, codec, plain};

/// Bug: subscribing had no time limit. If it hung, the cache received no notice until its process
/// ended, and reported nothing.
#[test]
fn a_subscription_that_hangs_is_reported_and_made_again() {
    let world = World::new();
    let script = ScriptedPort::new(&world.clock);
    script.by(|call| if call.number == 1 { PortAnswer::hang() } else { PortAnswer::pass() });
    let builder = world.builder(plain()).name("numbers").remote(world.store.clone(), codec());
    let cache = builder.backplane(script.notifier(world.notifier.clone())).build().unwrap();
    let mut events = cache.events();
    let loops = cache.clone();
    world.background.spawn(async move {
        loops.run(std::future::pending()).await;
    });
    world.pass(MIN(5));
    assert_eq!(script.calls("subscribe").len(), 2, "subscribed at the second attempt");
    let failed = CacheAsideEvent::RemoteFailed { call: RemoteCall::Notify, kind: None };
    assert_eq!(events.try_recv().unwrap().map(|event| event.what), Some(failed));
}
