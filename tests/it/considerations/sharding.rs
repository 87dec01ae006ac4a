//! Sharding: the considerations of the pattern's source that a default, an event, an option or a refusal
//! meets.
use std::{cell::RefCell, collections::BTreeSet};

use steadfast::{
    sharding::{Chunk, FanOut, FanOutConfig, PlannedMove, ShardFailure, ShardId, ShardMap, ShardMeter},
    time::Clock,
};

fn ids(n: u32) -> Vec<ShardId> {
    (0..n).map(ShardId).collect()
}

/// Returns the map after this plan.
fn after(mut map: ShardMap, plan: &[PlannedMove]) -> ShardMap {
    for planned in plan {
        map = map.begin(planned).unwrap();
        while map.moving().is_some() {
            map = map.advanced().unwrap();
        }
    }
    map
}

#[test]
fn a_shard_that_is_added_takes_its_share_from_all_others_and_no_more_moves() {
    let four = ShardMap::hashed(4_096, &ids(4)).unwrap();
    let five = after(four.clone(), &four.plan(&ids(5)).unwrap());
    let count = |map: &ShardMap| -> Vec<_> {
        ids(5).into_iter().map(|id| map.slots().iter().filter(|slot| **slot == Some(id)).count()).collect()
    };
    let (before, now) = (count(&four), count(&five));
    assert!(now.iter().all(|n| (810..=830).contains(n)), "{before:?} {now:?}");
    let moved = four.slots().iter().zip(five.slots()).filter(|(a, b)| a != b).count();
    assert_eq!(moved, now[4]);
}

#[test]
fn what_is_asked_together_lies_together_by_the_first_part_of_its_key() {
    let starts: Vec<_> = (0_u64..10).map(|tenant| ((tenant * 10, 0_u64), Some(ShardId(tenant as u32)))).collect();
    let map = ShardMap::ranges(&starts).unwrap();
    for tenant in 0..100_u64 {
        let shards: BTreeSet<_> = (0..1_000_u64).map(|order| map.shard_of(&(tenant, order)).unwrap()).collect();
        assert_eq!(shards.len(), 1, "tenant {tenant}");
    }
}

#[test]
fn a_fan_out_asks_all_shards_side_by_side_and_names_those_that_failed() {
    let (clock, time) = Clock::manual();
    let fan_out = FanOut::builder(FanOutConfig::default()).clock(&clock).build().unwrap();
    let began = RefCell::new(Vec::new());
    let ask = |shard: ShardId| {
        let (clock, began) = (&clock, &began);
        async move {
            began.borrow_mut().push(clock.now());
            clock.sleep(std::time::Duration::from_millis(10)).await;
            if shard == ShardId(2) { Err("away") } else { Ok(shard) }
        }
    };
    let out = time.block_on(fan_out.run(&ids(4), ask));
    assert!(began.borrow().windows(2).all(|two| two[0] == two[1]), "side by side");
    assert_eq!(out.results.len(), 3);
    assert_eq!(out.failures, [(ShardId(2), ShardFailure::Failed("away"))]);
    assert!(out.complete().is_err(), "a part is not taken for the whole");
}

#[test]
fn all_shards_and_all_chunks_can_be_listed() {
    let map = ShardMap::hashed(64, &ids(5)).unwrap();
    assert_eq!(map.shards(), ids(5));
    let owners: BTreeSet<_> = map.chunks().into_iter().filter_map(|(_, owner)| owner).collect();
    assert_eq!(owners.into_iter().collect::<Vec<_>>(), ids(5));
}

#[test]
fn the_rows_of_a_region_lie_on_the_shard_near_its_users() {
    let (america, asia, europe) = (ShardId(1), ShardId(2), ShardId(3));
    let map = ShardMap::ranges(&[(("am", 0_u64), Some(america)), (("as", 0), Some(asia)), (("eu", 0), Some(europe))]);
    let map = map.unwrap();
    for key in [0, 1, u64::MAX] {
        let shards = ["am", "as", "eu"].map(|region| map.shard_of(&(region, key)).unwrap());
        assert_eq!(shards, [america, asia, europe], "{key}");
    }
}

#[test]
fn ranges_move_by_splitting_and_merging_and_hashes_by_virtual_shards() {
    let mut ranges = ShardMap::ranges(&[(0_u64, Some(ShardId(0)))]).unwrap();
    ranges.split(&50_u64).unwrap();
    let half = PlannedMove::new(Chunk::keys(&50_u64, None::<&u64>), ShardId(0), ShardId(1));
    let mut ranges = after(ranges, &[half]);
    assert_eq!([49_u64, 50].map(|key| ranges.shard_of(&key)), [Some(ShardId(0)), Some(ShardId(1))]);
    let back = PlannedMove::new(Chunk::keys(&50_u64, None::<&u64>), ShardId(1), ShardId(0));
    ranges = after(ranges, &[back]);
    ranges.merge(&50_u64).unwrap();
    let hashed = ShardMap::hashed(64, &ids(2)).unwrap();
    let plan = hashed.plan(&ids(3)).unwrap();
    assert!(plan.iter().all(|planned| matches!(planned.chunk, Chunk::Range { .. })), "{plan:?}");
    assert_eq!(after(hashed, &plan).shards(), ids(3));
}

#[test]
fn a_hot_tenant_is_named_by_the_meter_and_lies_apart_when_it_is_pinned() {
    let map = ShardMap::hashed(64, &ids(4)).unwrap();
    let meter = ShardMeter::new(16);
    for n in 0..1_000_u32 {
        let tenant = if n % 2 == 0 { "hot".to_owned() } else { format!("tenant-{n}") };
        meter.record(map.shard_of(&*tenant).unwrap(), tenant.as_bytes());
    }
    assert_eq!(meter.load(1).hottest[0].key, b"hot");
    let home = map.shard_of("hot").unwrap();
    let apart = after(map, &[PlannedMove::new(Chunk::key("hot"), home, ShardId(9))]);
    assert_eq!(apart.shard_of("hot"), Some(ShardId(9)));
}

#[test]
fn a_key_that_has_a_shard_is_given_no_other_by_naming_it_again() {
    let mut map = ShardMap::lookup();
    map.pin("order 7", ShardId(1)).unwrap();
    assert!(map.pin("order 7", ShardId(2)).is_err());
    assert_eq!(map.shard_of("order 7"), Some(ShardId(1)));
}
