//! Changes of a shard map without a move: a change never takes a key from its shard.
use std::{collections::BTreeMap, sync::Arc};

use proptest::prelude::*;
use steadfast::{
    config::ConfigError,
    port::PortErrorKind,
    sharding::{
        Access, Chunk, PlannedMove, ShardDirectory, ShardGuard, ShardId, ShardMap, ShardingError, ShardingEvent, Step,
    },
    store::{InMemoryStore, Key, Store, StoreError},
    time::Clock,
};

const NAME: Key<'static> = Key::new("shard-maps", "orders");

fn ids(n: u32) -> Vec<ShardId> {
    (0..n).map(ShardId).collect()
}

/// Returns a change that replaces any map by this one.
fn becomes(next: &ShardMap) -> impl FnMut(&mut ShardMap) -> Result<(), ConfigError> + Send + use<> {
    let next = next.clone();
    move |map| {
        *map = next.clone();
        Ok(())
    }
}

/// Runs the test with a directory whose first map is this one.
fn with_directory<T>(first: &ShardMap, test: impl AsyncFnOnce(&ShardDirectory, &Arc<InMemoryStore>) -> T) -> T {
    let (clock, time) = Clock::manual();
    let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
    time.block_on(async {
        let builder = ShardDirectory::builder(store.clone(), "orders", Default::default()).clock(&clock);
        test(&builder.create(first).await.unwrap(), &store).await
    })
}

fn text(map: &ShardMap) -> String {
    map.to_text()
}

/// Regression: the change of a map with the last number as its version panicked.
#[test]
fn a_map_at_its_last_version_is_read_and_not_changed_and_one_beyond_it_is_damaged() {
    let map = ShardMap::hashed(64, &ids(2)).unwrap();
    with_directory(&map, async |directory, store| {
        let last = u64::MAX >> 1;
        for (version, is_read) in [(last, true), (last + 1, false), (u64::MAX, false)] {
            let text = text(&map).replacen("version 1\n", &format!("version {version}\n"), 1);
            store.put(NAME, text.clone().into(), Default::default()).await.unwrap();
            let refused = directory.change(|map| map.pin("large", map.shard_of("large").unwrap())).await.unwrap_err();
            assert_eq!(matches!(refused, ShardingError::Change(_)), is_read, "{version}: {refused}");
            assert_eq!(directory.refresh().await.is_ok(), is_read, "{version}");
            assert_eq!(store.get(NAME).await.unwrap().unwrap().value, text, "nothing was changed");
        }
    });
}

#[test]
fn a_change_cannot_pin_an_owned_key_to_another_shard() {
    let ranges = ShardMap::ranges(&[("", Some(ShardId(0)))]).unwrap();
    for map in [ShardMap::hashed(64, &ids(2)).unwrap(), ranges] {
        let (before, home) = (map.clone(), map.shard_of("large").unwrap());
        with_directory(&map, async |directory, _| {
            let error = directory.change(|map| map.pin("large", ShardId(9))).await.unwrap_err();
            let said = error.to_string();
            assert!(said.contains("plan a move") && said.contains(&home.to_string()), "{said}");
            assert!(said.contains("x6c61726765"), "it names the key: {said}");
            let now = directory.refresh().await.unwrap();
            assert_eq!((now.version(), text(&now)), (1, text(&before)), "nothing was changed");

            // A move can be planned instead, also for a key without rows.
            let mut wanted = before.clone();
            wanted.pin("large", ShardId(9)).unwrap();
            let plan = before.plan_to(&wanted).unwrap();
            assert_eq!(plan, [PlannedMove::new(Chunk::key("large"), home, ShardId(9))]);
            // A pin to the key's own shard does not change its owner.
            directory.change(|map| map.pin("large", home)).await.unwrap();
        });
    }
}

#[test]
fn a_range_whose_every_key_is_pinned_may_change_its_owner() {
    // No key is between `a` and `a` followed by a zero byte.
    let ranges = |owner| ShardMap::ranges(&[("", None), ("a", owner), ("a\0", None)]).unwrap();
    let mut pinned = ranges(None);
    pinned.pin("a", ShardId(2)).unwrap();
    with_directory(&ranges(Some(ShardId(2))), async |directory, _| {
        directory.change(becomes(&pinned)).await.unwrap();
        assert_eq!(directory.map().shard_of("a"), Some(ShardId(2)));
        let error = directory.change(becomes(&ranges(None))).await.unwrap_err();
        assert!(error.to_string().contains("plan a move"), "{error}");
    });
}

#[test]
fn a_change_may_give_an_owner_to_a_key_without_one() {
    with_directory(&ShardMap::lookup(), async |directory, _| {
        let guards = [1, 2].map(|shard| ShardGuard::new(ShardId(shard), directory.map()));
        directory.change(|map| map.pin("a", ShardId(1))).await.unwrap();
        assert!(guards.iter().all(|guard| guard.enter("a", Access::Write, 2).is_err()), "their maps are stale");
        let without = ShardMap::lookup();
        for next in [without.clone(), ShardMap::ranges(&[("", Some(ShardId(2)))]).unwrap()] {
            let error = directory.change(becomes(&next)).await.unwrap_err();
            assert!(error.to_string().contains("plan a move"), "{error}");
        }
        let error = directory.change(becomes(&ShardMap::hashed(8, &ids(2)).unwrap())).await.unwrap_err();
        assert!(matches!(&error, ShardingError::Change(error) if error.field() == "map"), "{error}");
        assert_eq!(directory.refresh().await.unwrap().version(), 2);
    });
}

#[test]
fn a_change_cannot_advance_or_abort_a_move_or_pin_a_key_during_it() {
    let map = ShardMap::hashed(64, &ids(2)).unwrap();
    with_directory(&map, async |directory, _| {
        let plan = map.plan(&ids(3)).unwrap();
        let refused = async |change: &(dyn Fn(&ShardMap) -> Option<ShardMap> + Sync)| {
            let before = directory.refresh().await.unwrap();
            let error = directory.change(becomes(&change(&before).unwrap())).await.unwrap_err();
            assert!(matches!(&error, ShardingError::Change(error) if error.field() == "move"), "{error}");
            assert_eq!(directory.refresh().await.unwrap(), before);
        };
        // A change may begin a move; the next run carries it out.
        directory.change(|map| map.begin(&plan[0]).map(|next| *map = next)).await.unwrap();
        refused(&ShardMap::advanced).await;
        refused(&ShardMap::rolled_back).await;
        let quiet = map.clone();
        refused(&move |_| Some(quiet.clone())).await;
        let of_another = map.begin(&plan[1]).unwrap();
        refused(&move |_| Some(of_another.clone())).await;
        // A pin during a move would split the chunk that is being copied.
        let mut text = directory.map().to_text();
        let at = text.find("move ").unwrap();
        text.insert_str(at, &format!("pin x61 {}\n", map.shard_of("a").unwrap().0));
        refused(&move |_| ShardMap::from_text(&text)).await;
        assert_eq!(directory.map().moving().unwrap().step, Step::Copying);
    });
}

#[test]
fn chunks_that_a_map_does_not_have_are_refused() {
    let map = ShardMap::hashed(16, &ids(2)).unwrap();
    let begin = |chunk: Chunk| map.begin(&PlannedMove::new(chunk, ShardId(1), ShardId(7)));
    let refused = [
        (Chunk::slots(10, 99), "must not end above the last virtual shard"),
        (Chunk::slots(17, 99), "must not end above the last virtual shard"),
        (Chunk::slots(0, 0), "must begin before it ends"),
        (Chunk::slots(9, 9), "must begin before it ends"),
        (Chunk::slots(12, 9), "must begin before it ends"),
        (Chunk::slots(16, 16), "must begin before it ends"),
        (Chunk::keys("a", Some("b")), "must be a range of virtual shards"),
        (Chunk::keys("a", None), "must be a range of virtual shards"),
    ];
    for (chunk, rule) in refused {
        let error = begin(chunk.clone()).unwrap_err();
        assert_eq!((error.field(), error.rule()), ("chunk", rule), "{chunk:?}");
        assert_eq!(map.owner_of(&chunk), None, "{chunk:?}");
    }
    let ranges = ShardMap::ranges(&[("", Some(ShardId(0)))]).unwrap();
    for chunk in [Chunk::keys("b", Some("b")), Chunk::keys("b", Some("a")), Chunk::keys("", Some(""))] {
        let error = ranges.begin(&PlannedMove::new(chunk, ShardId(0), ShardId(1))).unwrap_err();
        assert_eq!((error.field(), error.rule()), ("chunk", "must begin before it ends"));
    }
}

fn carried_out(map: &ShardMap, planned: &PlannedMove) -> ShardMap {
    let mut map = map.begin(planned).unwrap();
    while map.moving().is_some() {
        map = map.advanced().unwrap();
    }
    map
}

#[test]
fn a_shard_that_gave_away_all_its_virtual_shards_is_not_listed() {
    let map = ShardMap::hashed(16, &ids(2)).unwrap();
    let last = carried_out(&map, &PlannedMove::new(Chunk::slots(8, 16), ShardId(1), ShardId(7)));
    assert_eq!(last.shards(), [ShardId(0), ShardId(7)]);
    assert_eq!(last.chunks().len(), 2, "{:?}", last.chunks());
    let first = Chunk::Range { low: vec![0; 4], high: Some(8_u32.to_be_bytes().to_vec()) };
    let first = carried_out(&last, &PlannedMove::new(first, ShardId(0), ShardId(7)));
    assert_eq!(first.shards(), [ShardId(7)]);
    assert!(first.slots().iter().all(|owner| *owner == Some(ShardId(7))));
    // A range beyond the last virtual shard, stored by an earlier release, is ignored.
    let stored = "steadfast-shards 1\nversion 6\nslots 16\nrange x 0\nrange x00000000 1\nrange x00000010 4\n";
    let read = ShardMap::from_text(stored).unwrap();
    assert_eq!((read.shards(), read.version()), (vec![ShardId(1)], 6));
}

proptest! {
    #[test]
    fn after_any_moves_the_listed_shards_are_those_of_the_virtual_shards(
        moves in prop::collection::vec((0_u32..20, 0_u32..20, 0_u32..5, any::<bool>()), 0..20),
    ) {
        let mut map = ShardMap::hashed(16, &ids(3)).unwrap();
        for (low, high, to, open) in moves {
            let chunk = match Chunk::slots(low, high) {
                Chunk::Range { low, .. } if open => Chunk::Range { low, high: None },
                chunk => chunk,
            };
            let owner = map.owner_of(&chunk);
            let end = if open { 16 } else { high };
            let owners: std::collections::BTreeSet<_> = (low..end).filter_map(|s| map.slots().get(s as usize)).collect();
            let whole = low < end && end <= 16 && owners.len() == 1;
            prop_assert_eq!(owner.is_some(), whole, "{:?} of {:?}", chunk, map);
            if let Some(from) = owner.filter(|from| *from != ShardId(to)) {
                map = carried_out(&map, &PlannedMove::new(chunk, from, ShardId(to)));
            }
            let owners: std::collections::BTreeSet<_> = map.slots().iter().flatten().copied().collect();
            prop_assert_eq!(map.shards(), owners.into_iter().collect::<Vec<_>>());
        }
    }

    /// Compared with the owners of all keys, one by one.
    #[test]
    fn a_change_is_made_if_and_only_if_each_key_keeps_its_owner(
        a in prop::collection::btree_map(prop::collection::vec(0_u8..3, 0..3), prop::option::of(0_u32..3), 0..6),
        b in prop::collection::btree_map(prop::collection::vec(0_u8..3, 0..3), prop::option::of(0_u32..3), 0..6),
        same in any::<bool>(),
        pins in prop::collection::btree_map(prop::collection::vec(0_u8..3, 0..3), (prop::option::of(0_u32..3), prop::option::of(0_u32..3)), 0..4),
    ) {
        let map = |starts: &BTreeMap<Vec<u8>, Option<u32>>, pins: Vec<(&Vec<u8>, u32)>| {
            let list: Vec<_> = starts.iter().map(|(k, s)| (k.clone(), s.map(ShardId))).collect();
            let mut map = ShardMap::ranges(&list).unwrap();
            pins.into_iter().for_each(|(key, shard)| map.pin(key, ShardId(shard)).unwrap());
            map
        };
        let now = map(&a, pins.iter().filter_map(|(k, p)| Some((k, p.0?))).collect());
        let next = map(if same { &a } else { &b }, pins.iter().filter_map(|(k, p)| Some((k, p.1?))).collect());
        let starts = a.keys().chain(b.keys()).chain(pins.keys()).cloned().chain([vec![]]);
        let keeps = starts.flat_map(|k| [k.clone(), [k.as_slice(), &[1]].concat(), [k.as_slice(), &[0]].concat()])
            .all(|key| now.shard_of(&key).is_none_or(|owner| next.shard_of(&key) == Some(owner)));
        let changed = with_directory(&now, async |directory, _| {
            directory.change(becomes(&next)).await.map(drop)
        });
        prop_assert_eq!(changed.is_ok(), keeps, "{:?} to {:?}: {:?}", now, next, changed);
    }
}

#[test]
fn a_plan_is_refused_if_a_pinned_key_has_no_owner_in_one_of_the_maps() {
    let mut listed = ShardMap::lookup();
    listed.pin("a", ShardId(1)).unwrap();
    for (from, to) in [(ShardMap::lookup(), listed.clone()), (listed, ShardMap::lookup())] {
        assert_eq!(from.plan_to(&to).unwrap_err().to_string(), "invalid `map`: must have the same gaps");
    }
}

#[test]
fn a_map_in_a_newer_format_is_too_new_and_stays_unchanged() {
    with_directory(&ShardMap::lookup(), async |directory, store| {
        let newer = "steadfast-shards 2\nwhatever follows";
        store.put(NAME, newer.into(), Default::default()).await.unwrap();
        let mut events = directory.events();
        let too_new = |error: &ShardingError| matches!(error, ShardingError::Store(StoreError::Failed(error)) if error.kind() == PortErrorKind::TooNew);
        let error = directory.refresh().await.unwrap_err();
        assert!(too_new(&error), "{error:?}");
        assert!(error.to_string().contains("`orders`"), "{error}");
        let told = events.recv().await.unwrap().what;
        assert_eq!(told, ShardingEvent::RefreshFailed { kind: Some(PortErrorKind::TooNew) });
        assert!(too_new(&directory.change(|map| map.pin("a", ShardId(1))).await.unwrap_err()));
        let builder = || ShardDirectory::builder(store.clone(), "orders", Default::default());
        assert!(too_new(&builder().create(&ShardMap::lookup()).await.unwrap_err()));
        assert_eq!(store.get(NAME).await.unwrap().unwrap().value, newer.as_bytes());
        // A damaged map is not taken for a newer format.
        for damaged in ["steadfast-shards 1\nversion", "steadfast-shards two\n", "steadfast-shards 0\n", "\u{1}"] {
            store.put(NAME, damaged.into(), Default::default()).await.unwrap();
            let error = builder().open().await.unwrap_err();
            assert!(matches!(error, ShardingError::NoMap(_)), "{damaged}: {error:?}");
        }
    });
}
