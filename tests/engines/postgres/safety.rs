//! Safety behind a faulty network: requests fail, replies are lost, effects come twice or late.
use std::sync::Arc;

use steadfast::{
    store::Store,
    testing::{
        conformance::Fixture,
        faults::{FaultConfig, FaultNetwork},
    },
    time::Clock,
};

use super::{connect, shared};

mod of_store {
    use super::*;

    steadfast::store_safety!(async || {
        let faults = FaultConfig::default().errors(0.15).lost_replies(0.15).doubled(0.15).late(0.2);
        let network = FaultNetwork::new(faults, 1, &Clock::tokio()).unwrap();
        let store: Arc<dyn Store> = Arc::new(connect(&shared()).await.store());
        Fixture::new(network.client("client").store(store.clone())).with_second_handle(store)
    });
}
