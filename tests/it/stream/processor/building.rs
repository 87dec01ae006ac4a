//! Refusals of settings and backends, and of one failure that lasts.
use std::sync::Arc;

use steadfast::{
    ConfigError,
    backoff::BackoffConfig,
    leader_election::LeaderElectionConfig,
    lease::InMemoryLease,
    port::Capability,
    queue_listener::IdleConfig,
    store::{InMemoryStore, Key, PutOptions, Store},
    stream::{StreamProcessor, StreamProcessorConfig, StreamProcessorEvent as Event},
};

use super::world::{Log, MS, S, World, complete};

fn build(group: &str, member: &str, config: StreamProcessorConfig) -> Result<StreamProcessor, ConfigError> {
    let (leases, store) = (Arc::new(InMemoryLease::new()), Arc::new(InMemoryStore::new()));
    StreamProcessor::builder(Log::new(1), group, leases, store, config).member(member).build()
}

#[test]
fn a_setting_that_breaks_a_rule_is_refused_by_name() {
    let config = StreamProcessorConfig::default;
    let cases = [
        ("max_in_flight", config().max_in_flight(0)),
        ("max_ahead", config().max_ahead(0)),
        ("max_ahead", config().max_ahead(100_001)),
        ("checkpoint_every", config().checkpoint_every(0)),
        ("checkpoint_interval", config().checkpoint_interval(MS(0))),
        ("max_deliveries", config().max_deliveries(0)),
        ("max_crashes", config().max_crashes(0)),
        ("retry.base", config().retry(BackoffConfig::default().between(S(2), S(1)))),
        ("rebalance_interval", config().rebalance_interval(MS(0))),
        ("idle.min", config().idle(IdleConfig::between(S(2), S(1)))),
        ("election.term", config().election(LeaderElectionConfig::default().term(S(1)))),
    ];
    for (field, config) in cases {
        assert_eq!(build("dispatch", "a", config).unwrap_err().field(), field);
    }
    assert_eq!(build("", "a", config()).unwrap_err().field(), "group");
    assert_eq!(build("a/b", "a", config()).unwrap_err().field(), "group");
    assert_eq!(build("dispatch", "", config()).unwrap_err().field(), "member");
    assert!(build("dispatch", "a", config()).is_ok());
}

#[test]
fn backends_that_lack_a_capability_are_refused() {
    for capability in [Capability::Fencing, Capability::Linearizable] {
        let store = crate::capabilities::lacking(capability);
        let leases = Arc::new(InMemoryLease::new());
        let refused = StreamProcessor::new(Log::new(1), "dispatch", leases, store, Default::default()).unwrap_err();
        assert_eq!(refused.field(), "checkpoints");
    }
    let names = ["x".repeat(5_000), "y".repeat(3)];
    let store = || Arc::new(InMemoryStore::new());
    let can = store().capabilities().max_key();
    for name in names {
        let built = StreamProcessor::new(
            Log::new(1),
            name.as_str(),
            Arc::new(InMemoryLease::new()),
            store(),
            Default::default(),
        );
        assert_eq!(built.is_ok(), name.len() + 40 < can, "{}", name.len());
    }
}

#[test]
fn an_owner_whose_tokens_are_refused_for_ever_makes_few_requests() {
    let world = World::new(1);
    // As if the leases had been moved to a backend whose tokens begin anew.
    let key = Key::new("stream-group/dispatch/orders", "p/0000");
    let fenced = PutOptions::new().fence(steadfast::port::FencingToken::new(u64::MAX));
    world.time.block_on(world.store.put(key, "x".into(), fenced)).unwrap();
    world
        .time
        .block_on(world.store.delete(key, steadfast::store::DeleteOptions::new().fence(fenced.fence.unwrap())))
        .unwrap();
    world.start_as("a", World::config(), |_| complete());
    world.pass(S(600));
    let released = world.told(|event| matches!(event, Event::Released { .. }).then_some(()));
    assert!((20..=600).contains(&released.len()), "{}", released.len());
}
