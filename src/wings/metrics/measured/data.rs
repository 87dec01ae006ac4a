//! Metrics of caches, indexes and shards.
use std::hash::Hash;

use super::super::registry::{Measured, Sample, Scope};
use crate::{
    cache_aside::CacheAside,
    index_table::{IndexTable, IndexTableEvent},
    sharding::{ShardDirectory, ShardMeter, ShardingEvent},
};

impl<K, V> Measured for CacheAside<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    const KIND: &'static str = "cache";

    fn measure(&self, scope: &Scope) -> Sample {
        let requests = |result| scope.counter("steadfast_cache_requests_total", &[("result", result)]);
        let (hits, misses, stale) = (requests("hit"), requests("miss"), requests("stale"));
        let counter = |metric| scope.counter(metric, &[]);
        let remote_hits = counter("steadfast_cache_remote_hits_total");
        let loads = counter("steadfast_cache_loads_total");
        let load_failures = counter("steadfast_cache_load_failures_total");
        let superseded = counter("steadfast_cache_superseded_total");
        let evictions = counter("steadfast_cache_evictions_total");
        let invalidations = counter("steadfast_cache_invalidations_total");
        let faults = counter("steadfast_cache_faults_total");
        let entries = scope.gauge("steadfast_cache_entries", &[]);
        let up = ["remote", "backplane"].map(|tier| scope.gauge("steadfast_cache_tier_up", &[("tier", tier)]));
        let cache = self.clone();
        Box::new(move || {
            let now = cache.stats();
            hits.absolute(now.hits);
            misses.absolute(now.misses);
            stale.absolute(now.stale_hits);
            remote_hits.absolute(now.remote_hits);
            loads.absolute(now.loads);
            load_failures.absolute(now.load_failures);
            superseded.absolute(now.superseded);
            evictions.absolute(now.evictions);
            invalidations.absolute(now.invalidations);
            faults.absolute(now.faults);
            entries.set(now.entries as f64);
            up.iter().zip(cache.tiers_up()).for_each(|(gauge, up)| gauge.set(f64::from(u8::from(up != Some(false)))));
        })
    }
}

impl<V: Send + Sync + 'static> Measured for IndexTable<V> {
    const KIND: &'static str = "index_table";

    fn measure(&self, scope: &Scope) -> Sample {
        let stale = scope.counter("steadfast_index_table_stale_total", &[]);
        let of = |entry| scope.counter("steadfast_index_table_repaired_total", &[("entry", entry)]);
        let (all_added, all_removed) = (of("added"), of("removed"));
        let names = ["took_over", "never_looked_up", "coarse_key"];
        let events = scope.by_label("steadfast_index_table_events_total", "event", &names);
        self.events().tap(move |event| match event {
            IndexTableEvent::StaleEntries { entries, .. } => stale.increment(*entries),
            IndexTableEvent::Repaired { added, removed, .. } => {
                all_added.increment(*added);
                all_removed.increment(*removed);
            }
            IndexTableEvent::TookOver { .. } => events.increment("took_over"),
            IndexTableEvent::NeverLookedUp { .. } => events.increment("never_looked_up"),
            IndexTableEvent::CoarseKey { .. } => events.increment("coarse_key"),
        });
        Box::new(|| ())
    }
}

impl Measured for ShardDirectory {
    const KIND: &'static str = "shard_directory";

    fn measure(&self, scope: &Scope) -> Sample {
        let changes = scope.counter("steadfast_sharding_map_changes_total", &[]);
        let refreshes = scope.counter("steadfast_sharding_refresh_failures_total", &[]);
        let steps = scope.counter("steadfast_sharding_steps_total", &[]);
        let movers = scope.counter("steadfast_sharding_mover_failures_total", &[]);
        self.events().tap(move |event| match event {
            ShardingEvent::MapChanged { .. } => changes.increment(1),
            ShardingEvent::RefreshFailed { .. } => refreshes.increment(1),
            ShardingEvent::StepRecorded { .. } => steps.increment(1),
            ShardingEvent::MoverFailed { .. } => movers.increment(1),
        });
        let (directory, version) = (self.clone(), scope.gauge("steadfast_sharding_map_version", &[]));
        Box::new(move || version.set(directory.map().version() as f64))
    }
}

impl Measured for ShardMeter {
    const KIND: &'static str = "shard_meter";

    fn measure(&self, scope: &Scope) -> Sample {
        let (meter, scope) = (self.clone(), scope.clone());
        Box::new(move || {
            for (shard, calls) in meter.load(0).shards {
                scope.counter("steadfast_sharding_calls_total", &[("shard", &shard.to_string())]).absolute(calls);
            }
        })
    }
}
