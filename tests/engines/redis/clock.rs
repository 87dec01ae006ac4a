//! Steps of the server's clock.
use std::time::Duration;

use steadfast::{
    lease::{Acquired, Lease},
    store::{Key, PutOptions, Store, StoreExt},
};

use super::{connect, run};
use crate::server;

const HOUR: i64 = 3600;
const MINUTE: Duration = Duration::from_secs(60);
const STAYS: Key<'static> = Key::new("p", "stays");
const ENDS: Key<'static> = Key::new("p", "ends");

async fn grant(lease: &dyn Lease, holder: &str) -> u64 {
    match lease.acquire("n", holder, MINUTE).await.unwrap() {
        Acquired::Granted(token) => token.as_u64(),
        Acquired::Held(held) => panic!("it is free, and not {held:?}"),
    }
}

#[test]
fn a_step_forward_ends_lives_and_terms_early_and_a_step_back_repeats_nothing() {
    run(async {
        let (server, clock) = server::Redis::with_clock(&[]);
        let redis = connect(server.url(), "clock").await;
        let (store, lease) = (redis.store(), redis.lease());
        let mortal = || PutOptions::new().ttl(MINUTE);
        let mut versions = vec![store.insert(STAYS, "x").await.unwrap()];
        store.put(ENDS, "x".into(), mortal()).await.unwrap();
        let mut tokens = vec![grant(&lease, "a").await];

        clock.set(HOUR);
        assert_eq!(store.get(ENDS).await.unwrap(), None);
        assert!(store.get(STAYS).await.unwrap().is_some());
        tokens.push(grant(&lease, "b").await);
        versions.push(store.put(STAYS, "y".into(), PutOptions::new()).await.unwrap());
        store.put(ENDS, "y".into(), mortal()).await.unwrap();

        clock.set(-HOUR);
        // Its minute is two hours and a minute now, and so is the term.
        assert!(store.get(ENDS).await.unwrap().is_some());
        let Acquired::Held(held) = lease.acquire("n", "c", MINUTE).await.unwrap() else { panic!("it is held") };
        assert!(held.holder == "b" && held.free_in > MINUTE * 100, "{held:?}");
        tokens.push(grant(&lease, "b").await);
        assert!(store.delete(STAYS, Default::default()).await.unwrap());
        versions.push(store.insert(STAYS, "z").await.unwrap());

        assert!(versions.is_sorted_by(|one, next| one < next), "{versions:?}");
        assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    });
}
