//! A holder that crashes at any of its requests to the store of the leases.
use std::{cell::Cell, sync::Arc, time::Duration};

use steadfast::{
    lease::{Acquired, Lease, LeaseError, StoreLease},
    port::{Failure, FencingToken},
    store::Store,
    testing::{CrashingProcess, crash_at_every_write, fail_at_every_write},
    time::Instant,
};

use crate::engines::{Engine, World};

const S: fn(u64) -> Duration = Duration::from_secs;
const TERM: Duration = Duration::from_secs(15);

fn lease(world: &World, store: Arc<dyn Store>) -> StoreLease {
    StoreLease::builder(store).clock(&world.clock).build().unwrap()
}

fn granted(acquired: Acquired) -> FencingToken {
    let Acquired::Granted(token) = acquired else { panic!("not granted: {acquired:?}") };
    token
}

/// Asks a second time if the first request or its reply was lost.
async fn twice<T>(mut ask: impl AsyncFnMut() -> Result<T, LeaseError>) -> Result<T, LeaseError> {
    match ask().await {
        Err(error) if error.backend().is_some() => ask().await,
        answered => answered,
    }
}

/// A holder's knowledge of its grants.
#[derive(Default)]
struct Known {
    /// The newest grant, with the end of its term.
    grant: Cell<Option<(FencingToken, Instant)>>,
    /// The holder began to release that grant.
    gave_up: Cell<bool>,
}

impl Known {
    /// Acquires, renews and releases the name, twice.
    async fn live(&self, world: &World, lease: &StoreLease) {
        for _ in 0..2 {
            let start = world.clock.now();
            let token = granted(twice(async || lease.acquire("nightly", "node-1", TERM).await).await.unwrap());
            assert!(self.grant.get().is_none_or(|(earlier, _)| token > earlier));
            self.grant.set(Some((token, start + TERM)));
            self.gave_up.set(false);
            for _ in 0..2 {
                world.time.advance(S(4));
                let start = world.clock.now();
                twice(async || lease.renew("nightly", "node-1", token, TERM).await).await.unwrap();
                self.grant.set(Some((token, start + TERM)));
            }
            world.time.advance(S(4));
            self.gave_up.set(true);
            match twice(async || lease.release("nightly", "node-1", token).await).await {
                // The release was applied, and its reply was lost.
                Err(error) if error.is_not_held() => {}
                released => released.unwrap(),
            }
        }
    }
}

fn test(engine: Engine, process: &CrashingProcess) {
    let world = engine.world();
    let known = Known::default();
    world.run(process.run(known.live(&world, &lease(&world, process.store(world.store.clone())))));
    let crashed = world.clock.now();
    let others = lease(&world, world.store.clone());
    let ask = |holder| world.run(others.acquire("nightly", holder, TERM)).unwrap();
    let holds = known.grant.get().filter(|_| !known.gave_up.get());
    let token = match ask("node-2") {
        Acquired::Granted(token) => {
            assert!(holds.is_none(), "another holder is granted the name within the term");
            token
        }
        Acquired::Held(held) => {
            assert!(held.free_in <= TERM, "{held:?}");
            world.time.advance(held.free_in);
            granted(ask("node-2"))
        }
    };
    let now = world.clock.now();
    assert!(now - crashed <= TERM, "it took {:?}", now - crashed);
    if let Some((earlier, ends)) = known.grant.get() {
        assert!(token > earlier, "tokens grow");
        assert!(now >= ends || known.gave_up.get(), "{:?} too early", ends - now);
        // A delayed renewal of the crashed process changes nothing.
        assert!(world.run(others.renew("nightly", "node-1", earlier, TERM)).unwrap_err().is_not_held());
    }
    assert!(matches!(ask("node-1"), Acquired::Held(_)));
}

#[test]
fn after_a_crash_at_any_request_another_holder_gets_the_name_within_the_term() {
    for engine in Engine::ALL {
        let requests = crash_at_every_write(|process| test(engine, process));
        // Twice: read and write; two writes, and two reads of requests to release; a deletion.
        assert_eq!(requests, 14);
    }
}

#[test]
fn a_holder_keeps_its_grant_whichever_request_fails() {
    for engine in Engine::ALL {
        assert_eq!(fail_at_every_write(|process| test(engine, process)), 14);
    }
}
