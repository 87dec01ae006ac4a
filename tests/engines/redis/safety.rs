//! The safety suite of the store behind a faulty network.
use std::sync::Arc;

use steadfast::{
    store::Store,
    testing::{
        conformance::Fixture,
        faults::{FaultConfig, FaultNetwork},
    },
    time::Clock,
};

use super::{connect, prefix};
use crate::server;

async fn faulty(seed: u64) -> Fixture<dyn Store> {
    let faults = FaultConfig::default().errors(0.15).lost_replies(0.15).doubled(0.15).late(0.2);
    let network = FaultNetwork::new(faults, seed, &Clock::tokio()).unwrap();
    let store: Arc<dyn Store> = Arc::new(connect(server::Redis::shared().url(), &prefix()).await.store());
    Fixture::new(network.client("client").store(store.clone())).with_second_handle(store)
}

mod seed_1 {
    steadfast::store_safety!(async || super::faulty(1).await);
}

mod seed_2 {
    steadfast::store_safety!(async || super::faulty(2).await);
}
