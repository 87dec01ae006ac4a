//! Shard maps: looked up, built, changed, and as text. No crate has them; what stands beside is what one would write by hand.

use super::hashers::BuildSame;
use super::{ENTRIES, Source, Tenants, again, look_up, names};
use crate::works::{Subject, beside, ours, rival};
use maglev::ConsistentHasher;
use std::collections::{BTreeMap, HashMap};
use steadfast::sharding::{Chunk, PlannedMove, ShardId, ShardMap, hash_key};

/// Virtual shards.
const SLOTS: u32 = 4_096;

fn ids(n: usize) -> Vec<ShardId> {
    (0..n as u32).map(ShardId).collect()
}

/// Whose the `i`th entry is.
fn owner(i: usize) -> ShardId {
    ShardId(i as u32 % 16)
}

fn listed<S: Source>() -> impl Iterator<Item = (S::Key, ShardId)> {
    (0..ENTRIES).map(|i| (S::listed(i), owner(i)))
}

fn dealt(n: usize) -> ShardMap {
    ShardMap::hashed(SLOTS, &ids(n)).expect("valid")
}

pub fn slots<S: Source>(n: usize) -> Vec<Subject> {
    vec![
        ours("steadfast", move || look_up::<S, _, _>(dealt(n), |map, key| map.shard_of(key))),
        rival("maglev 0.2 (SipHash-1-3), table of 65,537", move || {
            let table = maglev::Maglev::with_capacity(names(n), 65_537);
            look_up::<S, _, _>(table, |table, key| table.get(key))
        }),
        rival("maglev 0.2 (our hash), table of 65,537", move || {
            let table = maglev::Maglev::with_capacity_and_hasher(names(n), 65_537, BuildSame::default());
            look_up::<S, _, _>(table, |table, key| table.get(key))
        }),
        beside("steadfast, one key pinned", move || {
            let mut map = dealt(n);
            map.pin("a tenant apart", ShardId(99_999)).expect("not listed yet");
            look_up::<S, _, _>(map, |map, key| map.shard_of(key))
        }),
        beside("(floor) our hash, a place in a Vec", move || {
            let table: Vec<ShardId> = dealt(n).slots().iter().flatten().copied().collect();
            look_up::<S, _, _>(table, |table, key| {
                table[((u128::from(hash_key(key)) * table.len() as u128) >> 64) as usize]
            })
        }),
    ]
}

fn pinned<S: Source>() -> ShardMap {
    let mut map = ShardMap::lookup();
    listed::<S>().for_each(|(key, shard)| map.pin(&key, shard).expect("not listed yet"));
    map
}

pub fn pins<S: Source>() -> Vec<Subject> {
    vec![
        ours("steadfast", || look_up::<S, _, _>(pinned::<S>(), |map, key| map.shard_of(key))),
        rival("by hand: HashMap (SipHash-1-3)", || {
            look_up::<S, _, _>(listed::<S>().collect::<HashMap<_, _>>(), |map, key| map.get(key))
        }),
        rival("by hand: HashMap (our hash)", || {
            look_up::<S, _, _>(listed::<S>().collect::<HashMap<_, _, BuildSame>>(), |map, key| map.get(key))
        }),
        rival("by hand: BTreeMap", || {
            look_up::<S, _, _>(listed::<S>().collect::<BTreeMap<_, _>>(), |map, key| map.get(key))
        }),
    ]
}

fn starts<S: Source>() -> Vec<(S::Key, Option<ShardId>)> {
    listed::<S>().map(|(key, shard)| (key, Some(shard))).collect()
}

pub fn ranges<S: Source>() -> Vec<Subject> {
    vec![
        ours("steadfast", || {
            let map = ShardMap::ranges(&starts::<S>()).expect("valid");
            look_up::<S, _, _>(map, |map, key| map.shard_of(key))
        }),
        rival("by hand: BTreeMap", || {
            let map: BTreeMap<_, _> = starts::<S>().into_iter().collect();
            look_up::<S, _, _>(map, |map, key| map.range(..=key).next_back())
        }),
        rival("by hand: binary search in a Vec", || {
            look_up::<S, _, _>(starts::<S>(), |list, key| {
                list.partition_point(|(start, _)| start <= key).checked_sub(1).and_then(|at| list[at].1)
            })
        }),
    ]
}

pub fn deal() -> Vec<Subject> {
    vec![ours("steadfast", || again(ids(256), |ids| ShardMap::hashed(SLOTS, ids).expect("valid")))]
}

pub fn new_ranges() -> Vec<Subject> {
    vec![
        ours("steadfast", || again(starts::<Tenants>(), |starts| ShardMap::ranges(starts).expect("valid"))),
        beside("BTreeMap of owned strings", || {
            again(starts::<Tenants>(), |starts| {
                starts.iter().map(|(start, shard)| (start.to_string(), *shard)).collect::<BTreeMap<_, _>>()
            })
        }),
    ]
}

pub fn new_pins() -> Vec<Subject> {
    vec![
        ours("steadfast", || again((), |()| pinned::<Tenants>())),
        beside("HashMap of owned strings (SipHash-1-3)", || {
            again((), |()| listed::<Tenants>().map(|(key, shard)| (key.to_string(), shard)).collect::<HashMap<_, _>>())
        }),
    ]
}

fn of_tenants() -> ShardMap {
    ShardMap::ranges(&starts::<Tenants>()).expect("valid")
}

pub fn moved() -> Vec<Subject> {
    // From the middle one's start to the next one's.
    let (low, high) = (Tenants::listed(ENTRIES / 2), Tenants::listed(ENTRIES / 2 + 1));
    let planned = move || PlannedMove::new(Chunk::keys(low, Some(high)), owner(ENTRIES / 2), ShardId(99));
    vec![
        ours("steadfast", move || {
            again((of_tenants(), planned()), |(map, planned)| {
                let mut map = map.begin(planned).expect("the chunk is all that shard's");
                while map.moving().is_some() {
                    map = map.advanced().expect("a move is under way");
                }
                map
            })
        }),
        beside("five copies of such a map, and no more", || {
            again(of_tenants(), |map| (0..4).fold(map.clone(), |_, _| map.clone()))
        }),
    ]
}

pub fn plan() -> Vec<Subject> {
    vec![ours("steadfast", || again((dealt(16), ids(17)), |(map, shards)| map.plan(shards).expect("valid")))]
}

pub fn encode() -> Vec<Subject> {
    vec![ours("steadfast", || again(of_tenants(), ShardMap::to_text))]
}

pub fn decode() -> Vec<Subject> {
    vec![ours("steadfast", || again(of_tenants().to_text(), |text| ShardMap::from_text(text).expect("whole")))]
}
