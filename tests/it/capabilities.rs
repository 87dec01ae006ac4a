//! A store that lacks a needed capability is refused when a component is built, not at the first
//! request.
use std::{sync::Arc, time::Duration};

use steadfast::{
    ConfigError, backend,
    cache_aside::{CacheAside, CacheAsideConfig},
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, SharedCircuitBreaker, SharedCircuitBreakerConfig},
    claim_check::{ClaimCheck, ClaimCheckConfig},
    journal::{Journal, JournalConfig},
    lease::StoreLease,
    port::Capability,
    queue::{IdempotencyFilter, InMemoryQueue},
    queue_listener::{QueueListener, QueueListenerConfig},
    sharding::{ShardDirectory, ShardDirectoryConfig, ShardId, ShardMap, ShardingError},
    store::{InMemoryStore, Store},
    testing::ScriptedPort,
    throttling::{Quota, SharedRateLimiter},
    time::Clock,
};

use crate::{
    cache_aside::world::codec,
    capability_table::{column, is_documented},
};

const NEEDED: [Capability; 4] =
    [Capability::Linearizable, Capability::OrderedVersions, Capability::TimeToLive, Capability::AtomicBatch];
const MINUTE: Duration = Duration::from_secs(60);

/// Returns a store that lacks one capability.
pub(crate) fn lacking(capability: Capability) -> Arc<dyn Store> {
    ScriptedPort::changing(&Clock::tokio(), move |can| can.without(capability)).store(Arc::new(InMemoryStore::new()))
}

/// Builds a component on a store without each capability in turn. It must refuse those that lack a
/// needed one, by the names of the setting and of the capability, and accept the others.
fn refuses(setting: &str, needed: &[Capability], build: impl Fn(Arc<dyn Store>) -> Result<(), ConfigError>) {
    for capability in NEEDED {
        let built = build(lacking(capability));
        match built {
            Ok(()) => assert!(!needed.contains(&capability), "`{capability}` was not missed"),
            Err(refused) => {
                assert!(needed.contains(&capability), "{refused}");
                assert_eq!(refused.field(), setting);
                assert!(refused.rule().contains(capability.as_str()), "{refused}");
            }
        }
    }
}

#[test]
fn a_cache_refuses_a_store_that_lacks_what_its_versions_and_claims_need() {
    use Capability::{Linearizable, OrderedVersions, TimeToLive};
    refuses("remote", &[Linearizable, OrderedVersions, TimeToLive], |store| {
        let cache = CacheAside::<u32, u64>::builder(CacheAsideConfig::default()).name("numbers");
        cache.remote(store, codec()).build().map(drop)
    });
}

#[test]
fn a_listener_refuses_an_idempotency_filter_whose_records_would_never_expire() {
    refuses("filter", &[Capability::TimeToLive], |store| {
        let queue = Arc::new(InMemoryQueue::new("jobs"));
        let listener = QueueListener::builder(queue, QueueListenerConfig::default());
        listener.idempotency_filter(IdempotencyFilter::new(store, "seen", MINUTE)).build().map(drop)
    });
}

#[test]
fn a_journal_refuses_a_store_whose_records_would_never_expire() {
    refuses("filter", &[Capability::TimeToLive], |store| {
        let journal = Journal::builder(Arc::new(InMemoryQueue::new("orders")), JournalConfig::default());
        journal.remembering(store, MINUTE).build().map(drop)
    });
}

#[test]
fn a_shard_directory_refuses_a_store_that_is_not_linearizable() {
    let map = ShardMap::hashed(16, &[ShardId(1)]).unwrap();
    let (_, time) = Clock::manual();
    refuses("store", &[Capability::Linearizable], |store| {
        match time.block_on(ShardDirectory::builder(store, "users", ShardDirectoryConfig::default()).create(&map)) {
            Err(ShardingError::Change(refused)) => Err(refused),
            created => {
                created.unwrap();
                Ok(())
            }
        }
    });
}

#[test]
fn a_shared_breaker_refuses_a_store_whose_reports_would_never_expire() {
    refuses("store", &[Capability::TimeToLive], |store| {
        let breaker = CircuitBreaker::new(CircuitBreakerConfig::default())?;
        SharedCircuitBreaker::new(breaker, store, "payments", SharedCircuitBreakerConfig::default()).map(drop)
    });
}

#[test]
fn a_shared_rate_limit_refuses_a_store_that_cannot_count_for_all() {
    refuses("store", &[Capability::Linearizable, Capability::TimeToLive], |store| {
        SharedRateLimiter::new(store, "payments", Quota::per_second(10)).map(drop)
    });
}

#[test]
fn a_claim_check_that_keeps_bodies_for_a_time_refuses_a_store_without_expiry() {
    let built = |store, config| ClaimCheck::new(Arc::new(InMemoryQueue::new("jobs")), store, config).map(drop);
    let (kept, plain) = (ClaimCheckConfig::default().keep(MINUTE), ClaimCheckConfig::default());
    refuses("keep", &[Capability::TimeToLive], |store| built(store, kept.clone()));
    refuses("keep", &[], |store| built(store, plain.clone()));
}

#[test]
fn leases_over_a_store_need_versions_that_grow() {
    let needed = [Capability::Linearizable, Capability::OrderedVersions];
    refuses("store", &needed, |store| StoreLease::new(store).map(drop));
}

#[test]
fn the_documented_capabilities_of_memory_and_sqlite_are_those_of_the_code() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = format!("sqlite:{}", folder.path().join("file").display());
    runtime.block_on(async {
        let memory = column("memory", &backend::open("memory:").await.unwrap()).await;
        let sqlite = column("SQLite", &backend::open(&file).await.unwrap()).await;
        is_documented(&[memory, sqlite]);
    });
}
