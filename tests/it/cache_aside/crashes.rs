//! A process with a remote tier and a backplane that crashes at each of its requests, or fails in
//! each, and another process that goes on.
use std::{cell::Cell, future::pending, sync::atomic::Ordering::SeqCst};

use futures::future::{Either, select};
use steadfast::{
    cache_aside::{CacheAside, Reached},
    entropy::Entropy,
    testing::{CrashingProcess, crash_at_every_write, fail_at_every_write},
};

use crate::cache_aside::world::{Cache, MIN, MS, S, World, codec, plain};

/// Writes four values to the source, and removes the old one from the cache in four ways. A process
/// beside it reads after each, and after a crash.
fn writes_and_invalidates(process: &CrashingProcess) {
    let world = World::new();
    let beside = world.process(plain(), 2);
    // It spawns nothing that would outlive it.
    let cache: Cache = CacheAside::builder(plain())
        .clock(&world.clock)
        .entropy(&Entropy::from_seed(1))
        .spawner(drop)
        .name("numbers")
        .remote(process.store(world.store.clone()), codec())
        .backplane(process.notifier(world.notifier.clone()))
        .build()
        .unwrap();
    // The value that an invalidation has confirmed: none older may be read from then on.
    let confirmed = Cell::new(1);
    let read = async |cache: &Cache| {
        let value = cache.get_or_load(&1, || world.source.tagged("t")).await.unwrap();
        assert!(value >= confirmed.get(), "{value} was read after {} was confirmed", confirmed.get());
        value
    };
    let scenario = async {
        for value in 2..=5 {
            read(&cache).await;
            read(&beside).await;
            world.source.set(value);
            let reached = match value {
                2 => cache.invalidate(&1).await,
                3 => cache.invalidate_tag("t").await,
                4 => cache.clear().await,
                _ => cache.put(&1, value).await,
            };
            if reached != Reached::Everywhere {
                // The loop delivers what is pending.
                world.clock.sleep(S(10)).await;
            }
            confirmed.set(value);
            // The notice is on its way.
            world.clock.sleep(MS(1)).await;
        }
        assert_eq!((read(&cache).await, read(&beside).await), (5, 5));
    };
    let lives = async {
        match select(Box::pin(scenario), Box::pin(cache.run(pending()))).await {
            Either::Left(((), _)) => {}
            Either::Right(_) => unreachable!("the loop ends only with the process"),
        }
    };
    let ended = world.run(process.run(lives));
    assert_eq!(ended.is_none(), process.has_crashed());

    // No claim of the dead process keeps another one waiting beyond `remote.wait`.
    for cache in [&beside, &world.process(plain(), 3)] {
        let start = world.time.now();
        world.run(read(cache));
        let took = world.time.now() - start;
        assert!(took <= S(1) + MS(100), "{took:?}");
    }
    // What it left undelivered holds for the times to live at most, and then the tier serves again.
    world.pass(MIN(61));
    let newest = world.source.value.load(SeqCst);
    let loads = world.source.loads();
    assert_eq!(world.run(read(&beside)), newest);
    assert_eq!(world.run(read(&world.process(plain(), 4))), newest);
    assert!(world.source.loads() - loads <= 1, "the second process found the value in the remote tier");
}

// Guarantee: cache_aside 3.
#[test]
fn a_process_that_crashes_at_any_request_to_the_remote_tier_leaves_no_value_that_was_invalidated() {
    let requests = crash_at_every_write(writes_and_invalidates);
    assert!((20..=100).contains(&requests), "{requests}");
}

// Guarantee: cache_aside 15.
#[test]
fn a_failure_of_any_request_to_the_remote_tier_leaves_no_value_that_was_invalidated() {
    fail_at_every_write(writes_and_invalidates);
}
