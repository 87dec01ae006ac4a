//! Keys, hash routers, maps, plans, fan-out and hot keys of sharding.
mod changes;
mod crashes;
mod drops;
mod moves;

use std::{cell::Cell, collections::BTreeMap, future::pending, ops::Bound, time::Duration};

use proptest::prelude::*;
use steadfast::{
    sharding::{
        Chunk, FanOut, FanOutConfig, HashRouter, HotKeys, Jump, KeyBytes, Maglev, PlannedMove, Rendezvous, Ring,
        ShardFailure, ShardId, ShardKey, ShardMap, ShardMeter, hash_bytes, hash_key, jump, merge_sorted, skew,
    },
    time::{Clock, Timestamp},
};

fn names(n: usize) -> Vec<String> {
    (0..n).map(|i| format!("node-{i}")).collect()
}

fn ids(n: u32) -> Vec<ShardId> {
    (0..n).map(ShardId).collect()
}

// Guarantee: sharding 14.
#[test]
fn the_hash_of_a_key_never_changes() {
    assert_eq!(hash_bytes(b""), 0x2d06_8005_38d3_94c2);
    assert_eq!(hash_key("abc"), hash_bytes(b"abc"));
    assert_eq!(hash_bytes(b"abc"), 0x78af_5f94_892f_3950);
    // Computed by another implementation of XXH3.
    let golden = [
        (0_u64, 0xc77b_3abb_6f87_acd9),
        (1, 0xf36b_4a1a_44f7_8bf3),
        (42, 0x2e4f_e982_b689_10ac),
        (u64::MAX, 0x5111_c7e4_7d78_4413),
    ];
    for (key, hash) in golden {
        assert_eq!(hash_key(&key), hash, "{key}");
    }
    assert_eq!(hash_key("tenant-0001"), 0x08cc_e988_40d8_99a7);
    assert_eq!(hash_key(&("eu", 42_i64)), 0xc78c_43c7_3be5_7304);
    assert_eq!(hash_key(&"k".repeat(300)), 0x3e90_1c94_ff54_faa0);
    let map = ShardMap::hashed(4_096, &ids(5)).unwrap();
    assert_eq!([1, 2, 3, 4, 5, 6, 7, 8].map(|k: u64| map.shard_of(&k).unwrap().0), [4, 1, 4, 2, 3, 1, 4, 2]);
}

// Guarantee: sharding 1.
#[test]
fn jump_returns_the_published_results() {
    for (key, buckets, bucket) in [
        (1, 1, 0),
        (42, 57, 43),
        (256, 1024, 520),
        (0xDEAD_10CC, 1, 0),
        (0xDEAD_10CC, 666, 361),
        (10_863_919_174_838_991, 11, 6),
        (2_016_238_256_797_177_309, 11, 3),
        (1_673_758_223_894_951_030, 11, 5),
    ] {
        assert_eq!(jump(key, buckets), bucket, "{key} {buckets}");
    }
}

/// The nodes of 20,000 keys, combined into one number.
fn routes(node: impl Fn(u64) -> u32) -> u64 {
    (0..20_000_u64).fold(0, |all: u64, key| all.wrapping_mul(31).wrapping_add(u64::from(node(hash_key(&key)))))
}

// Guarantee: sharding 14.
/// Other releases of this crate route by the same results, so they must never change.
#[test]
fn the_results_of_routers_never_change() {
    let of = |n: usize| {
        let names = names(n);
        let weights: Vec<(&String, f64)> = names.iter().zip((1..).map(|w: u32| f64::from(w % 7 + 1))).collect();
        let (plain, weighted) = (Rendezvous::new(&names).unwrap(), Rendezvous::weighted(&weights).unwrap());
        let (few, many) = (Ring::new(&names, 1).unwrap(), Ring::new(&names, 100).unwrap());
        let maglev = Maglev::new(&names).unwrap();
        let loads: Vec<u64> = (0..n as u64).map(|i| i * i % 11).collect();
        [
            ("jump", routes(|hash| jump(hash, n as u32))),
            ("jump, more buckets", routes(|hash| jump(hash, n as u32 * 1_000_003))),
            ("rendezvous", routes(|hash| plain.node(hash))),
            ("weighted", routes(|hash| weighted.node(hash))),
            ("ring of 1 point", routes(|hash| few.node(hash))),
            ("ring of 100 points", routes(|hash| many.node(hash))),
            ("bounded", routes(|hash| many.bounded(hash, &loads, 0.1).unwrap())),
            ("maglev", routes(|hash| maglev.node(hash))),
        ]
    };
    let golden = [
        (
            7,
            [
                0xf91e_cb3e_1ccd_a1c6,
                0x9e13_4683_5b83_2113,
                0x54eb_6684_3087_97e7,
                0x0a19_5392_e725_25c5,
                0x51e4_73a2_fac7_c6ca,
                0xd577_9796_bc6b_3988,
                0xa41b_2225_b2cb_88c4,
                0xbad9_f668_d8a7_86ea,
            ],
        ),
        (
            16,
            [
                0xa337_65f5_27fb_9121,
                0x62c8_04b9_b490_37ae,
                0x1d11_dc36_ffb2_2fc7,
                0xc64a_f315_5a19_8dce,
                0x7c3a_b44b_10c3_6ba3,
                0xdfd0_8c2a_47ae_cfa1,
                0x69b5_470a_d751_75d3,
                0x3c6f_9196_a051_580e,
            ],
        ),
        (
            1_000,
            [
                0x9ad1_fb1d_4660_8fb3,
                0x7c18_34b8_9eca_a88e,
                0x197e_9fb6_a309_79e3,
                0xecac_99ae_e80b_2ea6,
                0xd602_a4bb_5f19_4796,
                0xe827_f6ee_b960_2461,
                0x87a2_2bb3_16c9_1b5e,
                0xa308_c671_4ac0_3627,
            ],
        ),
    ];
    for (n, golden) in golden {
        for ((router, routes), golden) in of(n).into_iter().zip(golden) {
            assert_eq!(routes, golden, "{router} of {n}: {routes:#x}");
        }
    }
}

proptest! {
    // Guarantee: sharding 3.
    /// The shortcut of the search never skips the right node, whatever the weights.
    #[test]
    fn weighted_rendezvous_agrees_with_its_formula(
        weights in prop::collection::vec(prop_oneof![0.5_f64..5.0, prop::num::f64::POSITIVE | prop::num::f64::SUBNORMAL], 1..60),
        keys in prop::collection::vec(any::<u64>(), 50),
    ) {
        let nodes: Vec<(String, f64)> = names(weights.len()).into_iter().zip(weights).collect();
        let router = Rendezvous::weighted(&nodes).unwrap();
        let mix = |z: u64| {
            let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        for key in keys {
            let mut best = (f64::NEG_INFINITY, 0);
            for ((name, weight), i) in nodes.iter().zip(0..) {
                let unit = ((mix(key ^ hash_bytes(name.as_bytes())) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
                let score = -weight / unit.ln();
                if score > best.0 {
                    best = (score, i);
                }
            }
            prop_assert_eq!(router.node(key), best.1);
        }
    }
}

// Guarantee: sharding 2.
#[test]
fn a_new_bucket_of_jump_takes_its_share_and_no_other_key_moves() {
    let moved = (0..100_000_u64).map(|k| hash_key(&k)).filter(|k| jump(*k, 10) != jump(*k, 11));
    let moved: Vec<u64> = moved.collect();
    assert!(moved.iter().all(|k| jump(*k, 11) == 10));
    assert!((8_800..9_400).contains(&moved.len()), "{}", moved.len());
}

// Guarantee: sharding 3.
#[test]
fn rendezvous_moves_only_the_keys_of_a_removed_node_and_follows_weights() {
    let (all, less) = (Rendezvous::new(&names(11)).unwrap(), Rendezvous::new(&names(10)).unwrap());
    for key in (0..20_000_u64).map(|k| hash_key(&k)) {
        let (before, after) = (all.node(key), less.node(key));
        assert!(before == 10 || before == after);
    }
    let weighted = Rendezvous::weighted(&[("a", 1.0), ("b", 2.0), ("c", 3.0)]).unwrap();
    let mut counts = [0_u32; 3];
    (0..1_000_000_u64).for_each(|k| counts[weighted.node(hash_key(&k)) as usize] += 1);
    for (count, share) in counts.iter().zip([1.0, 2.0, 3.0]) {
        assert!((f64::from(*count) / 1e6 * 6.0 / share - 1.0).abs() < 0.01, "{counts:?}");
    }
}

// Guarantee: sharding 4.
#[test]
fn the_balance_of_a_ring_improves_with_its_points() {
    // The balance depends on the names: with 100 points the largest share is 1.31 to 1.45 times the mean.
    // So the median of several sets of names is checked.
    for (points, error, largest, sets) in [(100, 0.10, 1.40, 9), (1_000, 0.03, 1.13, 1)] {
        let mut drawn: Vec<(f64, f64)> = (0..sets).map(|set| ring_shares(&format!("set-{set}"), points)).collect();
        drawn.sort_by(|a, b| a.1.total_cmp(&b.1));
        let sd = drawn.iter().map(|d| d.0).sum::<f64>() / f64::from(sets);
        let middle = drawn[drawn.len() / 2].1;
        println!(
            "ring, {points} points: standard error {sd:.4} (expected: about {error}), largest {middle:.3} (at most {largest})"
        );
        assert!((sd - error).abs() < 0.005, "{points}: {drawn:?}");
        assert!(middle <= largest, "{points}: {drawn:?}");
    }
}

/// Returns the standard deviation of the shares of 1,000 nodes, and the largest share, in units of the mean.
fn ring_shares(set: &str, points: u32) -> (f64, f64) {
    // Several hashes for each arc.
    let hashes = 4_000 * u64::from(points).max(250);
    let names: Vec<String> = (0..1_000).map(|i| format!("{set}-{i}")).collect();
    let ring = Ring::new(&names, points).unwrap();
    // Evenly spaced hashes measure the lengths of the arcs.
    let mut counts = vec![0_u64; names.len()];
    (0..hashes).for_each(|k| counts[ring.node(k * (u64::MAX / hashes)) as usize] += 1);
    let mean = hashes as f64 / names.len() as f64;
    let variance = counts.iter().map(|c| (*c as f64 / mean - 1.0).powi(2)).sum::<f64>() / names.len() as f64;
    (variance.sqrt(), skew(&counts))
}

// Guarantee: sharding 5.
#[test]
fn maglev_is_even_and_a_bounded_ring_keeps_its_bound() {
    let (all, less) = (Maglev::new(&names(1000)).unwrap(), Maglev::new(&names(999)).unwrap());
    let mut counts = vec![0_u64; 1000];
    all.slots().iter().for_each(|node| counts[*node as usize] += 1);
    let moved = all.slots().iter().zip(less.slots()).filter(|(a, b)| **a != 999 && a != b).count();
    println!("maglev: largest {:.4}, moved of the others {:.4} %", skew(&counts), moved as f64 / 655.37);
    assert!(*counts.iter().max().unwrap() <= 66);
    assert!((moved as f64) / 65_537.0 <= 0.006, "{moved}");
    let ring = Ring::new(&names(10), 100).unwrap();
    let mut loads = [0_u64; 10];
    for m in 1..=1000_u64 {
        loads[ring.bounded(hash_key(&m), &loads, 0.1).unwrap() as usize] += 1;
        assert!(*loads.iter().max().unwrap() as f64 <= (1.1 * m as f64 / 10.0).ceil());
    }
}

// Guarantee: sharding 6.
#[test]
fn ranges_are_half_open_and_have_only_declared_gaps() {
    let map = ShardMap::ranges(&[(10_u64, Some(ShardId(0))), (20, None), (30, Some(ShardId(1)))]).unwrap();
    let at = |k: u64| map.shard_of(&k).map(|s| s.0);
    assert_eq!([9, 10, 19, 20, 29, 30, u64::MAX].map(at), [None, Some(0), Some(0), None, None, Some(1), Some(1)]);
    assert!(ShardMap::ranges(&[(1_u64, None), (1, None)]).is_err());
}

fn order<K: ShardKey>(a: &K, b: &K) -> std::cmp::Ordering {
    KeyBytes::of(a).as_slice().cmp(KeyBytes::of(b).as_slice())
}

proptest! {
    // Guarantee: sharding 6.
    #[test]
    fn the_order_of_encoded_keys_is_that_of_their_values(
        (a, b) in any::<(i64, i64)>(),
        (x, y) in any::<((String, Vec<u8>), (String, Vec<u8>))>(),
    ) {
        prop_assert_eq!(order(&a, &b), a.cmp(&b));
        prop_assert_eq!(order(&(a as u64), &(b as u64)), (a as u64).cmp(&(b as u64)));
        prop_assert_eq!(order(&x, &y), (x.0.as_bytes(), &x.1).cmp(&(y.0.as_bytes(), &y.1)));
        prop_assert_eq!(order(&x.1, &y.1), x.1.cmp(&y.1));
        let at = |n: i64| Timestamp::from_millis(n.unsigned_abs());
        prop_assert_eq!(order(&at(a), &at(b)), at(a).cmp(&at(b)));
    }

    // Guarantee: sharding 6.
    #[test]
    fn range_maps_agree_with_a_naive_model(
        starts in prop::collection::btree_map(prop::collection::vec(0_u8..3, 0..12), prop::option::of(0_u32..4), 0..20),
        keys in prop::collection::vec(prop::collection::vec(0_u8..3, 0..12), 20),
    ) {
        let list: Vec<_> = starts.iter().map(|(k, s)| (k.clone(), s.map(ShardId))).collect();
        let map = ShardMap::ranges(&list).unwrap();
        for key in keys {
            let naive = starts.range(..=key.clone()).next_back().and_then(|r| r.1.map(ShardId));
            prop_assert_eq!(map.shard_of(&key), naive);
        }
        prop_assert_eq!(ShardMap::from_text(&map.to_text()), Some(map));
    }

    // Guarantee: sharding 6.
    /// Evenly spread keys, keys at one end, keys in two clusters, and keys with a longer common prefix than the
    /// first comparison covers.
    #[test]
    fn range_maps_find_keys_of_any_distribution(
        numbers in prop::collection::btree_set(0_u64..400, 1..200),
        (times, plus) in (prop::sample::select(vec![1, 3, 1 << 20, u64::MAX / 400]), any::<u64>()),
        common in prop::sample::select(vec!["", "tenant-", "a long common beginning "]),
        tail in prop::sample::select(vec!["", "x", "123456789"]),
    ) {
        let number = |n: u64| if n.is_multiple_of(7) { n } else { n.wrapping_mul(times).wrapping_add(plus) };
        let text = |n: u64| format!("{common}{}{n:03}{tail}", if n.is_multiple_of(5) { "\0" } else { "" });
        let of_numbers: BTreeMap<u64, u32> = numbers.iter().map(|n| (number(*n), *n as u32)).collect();
        let of_texts: BTreeMap<String, u32> = numbers.iter().map(|n| (text(*n), *n as u32)).collect();
        let starts: Vec<_> = of_numbers.iter().map(|(k, s)| (*k, Some(ShardId(*s)))).collect();
        let map = ShardMap::ranges(&starts).unwrap();
        let starts: Vec<_> = of_texts.iter().map(|(k, s)| (k.clone(), Some(ShardId(*s)))).collect();
        let text_map = ShardMap::ranges(&starts).unwrap();
        for n in 0..400 {
            for key in [number(n), number(n).wrapping_add(1), number(n).wrapping_sub(1), n, !n] {
                let naive = of_numbers.range(..=key).next_back().map(|r| ShardId(*r.1));
                prop_assert_eq!(map.shard_of(&key), naive, "{}", key);
            }
            let key = text(n);
            for key in [&key[..key.len() - 1], &key, &format!("{key}\0"), &key[..common.len()], "", "zzz"] {
                let naive = of_texts.range::<str, _>((Bound::Unbounded, Bound::Included(key))).next_back().map(|r| ShardId(*r.1));
                prop_assert_eq!(text_map.shard_of(key), naive, "{}", key);
            }
        }
    }
}

// Guarantee: sharding 7.
#[test]
fn pinning_a_key_twice_fails_and_changes_nothing() {
    let mut map = ShardMap::lookup();
    map.pin("a", ShardId(1)).unwrap();
    let before = map.clone();
    assert!(map.pin("a", ShardId(2)).is_err());
    assert_eq!(map, before);
    assert_eq!(map.shard_of("b"), None);
}

// Guarantee: sharding 10.
#[test]
fn a_fan_out_names_the_failed_shards_and_keeps_its_limits() {
    let (clock, time) = Clock::manual();
    let (under_way, most) = (Cell::new(0), Cell::new(0));
    let op = |shard: ShardId| {
        let (clock, under_way, most) = (&clock, &under_way, &most);
        async move {
            under_way.set(under_way.get() + 1);
            most.set(most.get().max(under_way.get()));
            match shard.0 {
                9 => pending::<()>().await,
                _ => clock.sleep(Duration::from_millis(10)).await,
            }
            under_way.set(under_way.get() - 1);
            if shard.0 == 4 { Err("broken") } else { Ok(shard.0) }
        }
    };
    let fan_out = |max_concurrency, timeout| {
        FanOut::builder(FanOutConfig::default().max_concurrency(max_concurrency).timeout(timeout))
            .clock(&clock)
            .build()
            .unwrap()
    };
    let start = clock.now();
    let out = time.block_on(fan_out(8, Duration::from_secs(1)).run(&ids(32), op));
    assert_eq!(clock.now() - start, Duration::from_secs(1));
    assert_eq!((out.results.len(), most.get()), (30, 8));
    let failures = vec![(ShardId(4), ShardFailure::Failed("broken")), (ShardId(9), ShardFailure::TimedOut)];
    let error = out.complete().unwrap_err();
    assert_eq!(error.failures, failures);
    assert_eq!(error.to_string(), "2 of 32 shards failed: shard-4: broken; shard-9: not finished by the deadline");
    // One at a time: shard 9 hangs, so the shards behind it are not started.
    under_way.set(0);
    let out = time.block_on(fan_out(1, Duration::from_secs(1)).run(&ids(32), op));
    assert_eq!((out.results.len(), out.failures.len()), (8, 24));
    assert_eq!(out.failures.last(), Some(&(ShardId(31), ShardFailure::NotStarted)));
    assert_eq!(out.failures.iter().filter(|f| f.1 == ShardFailure::TimedOut).count(), 1);
    let none = time.block_on(fan_out(8, Duration::from_secs(1)).run(&[], op));
    assert_eq!(none.complete().unwrap(), []);
    assert_eq!(
        FanOut::new(FanOutConfig::default().max_concurrency(0)).unwrap_err().to_string(),
        "invalid `max_concurrency`: must be at least 1"
    );
}

// Guarantee: sharding 11.
#[test]
fn an_ordered_merge_reads_at_most_its_limit_from_each_source() {
    let read = [0, 1, 2].map(|_| Cell::new(0));
    let source = |i: usize| {
        (0..).map(move |n| n * 3 + i).inspect({
            let read = &read;
            move |_| read[i].set(read[i].get() + 1)
        })
    };
    assert_eq!(merge_sorted([0, 1, 2].map(source), 5), [0, 1, 2, 3, 4]);
    assert!(read.iter().all(|r| r.get() <= 5));
    assert_eq!(merge_sorted([vec![1; 9].into_iter(), vec![2].into_iter()], 3), [1, 1, 1]);
}

fn zipf(n: usize) -> Vec<f64> {
    let add = |sum: &mut f64, i: usize| {
        *sum += 1.0 / i as f64;
        Some(*sum)
    };
    (1..=n).scan(0.0, add).collect()
}

// Guarantee: sharding 12.
#[test]
#[ignore = "takes seconds: `.ci/run` runs it"]
fn a_sketch_names_the_hottest_keys() {
    let harmonic = zipf(1_000_000);
    let (mut hot, mut exact) = (HotKeys::new(1_000), BTreeMap::<usize, u64>::new());
    for i in 0..1_000_000_u64 {
        let unit = (hash_key(&i) >> 11) as f64 / (1_u64 << 53) as f64 * harmonic[harmonic.len() - 1];
        let key = harmonic.partition_point(|sum| *sum < unit);
        *exact.entry(key).or_default() += 1;
        hot.record(&key.to_be_bytes());
    }
    let mut heaviest: Vec<_> = exact.iter().map(|(key, n)| (std::cmp::Reverse(*n), *key)).collect();
    heaviest.sort_unstable();
    for (named, (std::cmp::Reverse(n), key)) in hot.heaviest(10).iter().zip(&heaviest) {
        assert_eq!(named.key, key.to_be_bytes());
        assert!((named.count as f64 / *n as f64 - 1.0).abs() <= 0.05, "{named:?}: {n}");
        assert!(named.count - named.over <= *n && *n <= named.count, "its stated error: {named:?}: {n}");
    }
}

proptest! {
    // Guarantee: sharding 12.
    #[test]
    fn the_counts_of_a_sketch_are_within_their_error(keys in prop::collection::vec(0_u8..30, 0..400), counters in 1_usize..20) {
        let (mut hot, mut exact) = (HotKeys::new(counters), [0_u64; 30]);
        for key in &keys {
            hot.record(&[*key]);
            exact[*key as usize] += 1;
        }
        let named = hot.heaviest(usize::MAX);
        prop_assert!(named.len() <= counters);
        prop_assert_eq!(named.iter().map(|k| k.count).sum::<u64>(), keys.len() as u64);
        for key in &named {
            let n = exact[key.key[0] as usize];
            prop_assert!(key.count - key.over <= n && n <= key.count);
            prop_assert!(key.over <= keys.len() as u64 / counters as u64);
        }
        // Each key with more occurrences than the maximum error is listed.
        for (key, n) in (0_u8..).zip(exact) {
            prop_assert!(n <= keys.len() as u64 / counters as u64 || named.iter().any(|k| k.key == [key]));
        }
    }
}

// Guarantee: sharding 12.
#[test]
fn a_meter_counts_calls_by_shard() {
    let meter = ShardMeter::new(100);
    for i in 0..100_u64 {
        meter.record(ShardId((i % 4 == 0).into()), &(i % 10).to_be_bytes());
    }
    let load = meter.take(1);
    assert_eq!(load.shards, [(ShardId(0), 75), (ShardId(1), 25)]);
    assert_eq!((load.hottest[0].count, load.hottest[0].over), (10, 0));
    assert!((load.skew(2) - 1.5).abs() < 1e-9 && (load.skew(4) - 3.0).abs() < 1e-9);
    assert!(meter.load(1).shards.is_empty());
    assert!((meter.load(1).skew(4) - 1.0).abs() < 1e-9);
}

// Guarantee: sharding 13.
#[test]
fn routing_allocates_nothing() {
    let mut hashed = ShardMap::hashed(4096, &ids(16)).unwrap();
    hashed.pin("a tenant apart", ShardId(99)).unwrap();
    let starts: Vec<_> = (0..1_000_u64).map(|k| (("tenant", k * 7), Some(ShardId((k % 7) as u32)))).collect();
    let ranges = ShardMap::ranges(&starts).unwrap();
    let routers =
        (Rendezvous::new(&names(16)).unwrap(), Ring::new(&names(16), 100).unwrap(), Maglev::new(&names(16)).unwrap());
    let long = "tenant".repeat(50);
    let used = allocation_counter::measure(|| {
        for k in 0..100_u64 {
            let key = ("tenant", k);
            assert!(hashed.shard_of(&key).is_some() && ranges.shard_of(&key).is_some());
            let hash = hash_key(&key);
            let all: [&dyn HashRouter; 4] = [&routers.0, &routers.1, &routers.2, &Jump(16)];
            assert!(all.iter().all(|router| router.node(hash) < 16));
            assert!(hashed.shard_of(&long).is_some() && ranges.shard_of(long.as_str()).is_some());
        }
    });
    assert_eq!(used.count_total, 0);
}

#[test]
fn keys_of_any_length_are_encoded_alike() {
    for n in [0, 1, 63, 64, 65, 1_000] {
        let (long, longer) = ("k".repeat(n), "k".repeat(n + 1));
        assert_eq!(KeyBytes::of(&long).as_slice(), long.as_bytes());
        assert_eq!(KeyBytes::of(&(long.clone(), 1_u8)).as_slice().len(), n + 3);
        assert!(KeyBytes::of(&(long, 9_u8)).as_slice() < KeyBytes::of(&(longer, 1_u8)).as_slice());
    }
    // Bytes that are used in place equal the encoded ones.
    let (text, bytes) = ("a\0b".to_owned(), vec![0_u8, 255, 0]);
    let keys: [&dyn ShardKey; 5] = [&text, &text.as_str(), &bytes, &bytes.as_slice(), &[0_u8; 4]];
    for key in keys {
        assert_eq!(key.in_place(), Some(KeyBytes::of(key).as_slice()));
    }
    let written: [&dyn ShardKey; 4] = [&1_u64, &-1_i64, &("a", "b"), &Timestamp::from_millis(7)];
    assert!(written.iter().all(|key| key.in_place().is_none()));
    // So do those of numbers, which are hashed without a buffer.
    let numbers: [&dyn ShardKey; 10] =
        [&7_u8, &-7_i8, &7_u16, &-7_i16, &7_u32, &-7_i32, &7_u64, &-7_i64, &7_u128, &-7_i128];
    for key in numbers {
        assert_eq!(hash_key(key), hash_bytes(KeyBytes::of(key).as_slice()));
    }
    let id = uuid::Uuid::from_u128(7);
    assert_eq!(KeyBytes::of(id.as_bytes()).as_slice(), id.as_bytes());
}

#[test]
fn impossible_and_damaged_maps_are_refused() {
    let refused = |map: Result<ShardMap, steadfast::config::ConfigError>| map.unwrap_err().to_string();
    assert_eq!(refused(ShardMap::hashed(8, &[])), "invalid `shards`: must not be empty, nor list a shard twice");
    assert_eq!(
        refused(ShardMap::hashed(8, &[ShardId(1), ShardId(1)])),
        "invalid `shards`: must not be empty, nor list a shard twice"
    );
    assert_eq!(refused(ShardMap::hashed(3, &ids(4))), "invalid `slots`: must be from the number of shards to 2^20");
    assert_eq!(
        refused(ShardMap::hashed(1 << 21, &ids(4))),
        "invalid `slots`: must be from the number of shards to 2^20"
    );
    assert_eq!(
        refused(ShardMap::routed(64, &ids(4), &Jump(5))),
        "invalid `router`: must have as many nodes as there are shards"
    );
    let damaged = [
        "",
        "steadfast-shards 1",
        "steadfast-shards 1\nversion 1\nslots 0\nrange xzz 1",
        "steadfast-shards 1\nversion 1\nslots 0\nrange x -\nrange x0 1",
        "steadfast-shards 1\nversion 1\nslots 0\nrange x -\nrange x0_ 1",
        "steadfast-shards 2\nversion 1\nslots 0\n",
    ];
    assert!(damaged.iter().all(|text| ShardMap::from_text(text).is_none()));
    // The stored format must stay readable.
    let mut map = ShardMap::ranges(&[(0x0f_u8, Some(ShardId(3))), (0xa0, None)]).unwrap();
    map.pin(&0xff_u8, ShardId(12)).unwrap();
    let text = "steadfast-shards 1\nversion 1\nslots 0\nrange x -\nrange x0f 3\nrange xa0 -\npin xff 12\n";
    assert_eq!((map.to_text().as_str(), ShardMap::from_text(text)), (text, Some(map)));
}

#[test]
fn a_range_map_splits_and_merges() {
    let mut map = ShardMap::ranges(&[(0_u64, Some(ShardId(0))), (100, Some(ShardId(1)))]).unwrap();
    map.split(&50_u64).unwrap();
    assert!(map.split(&50_u64).is_err() && map.split(&100_u64).is_err());
    assert_eq!(map.shard_of(&50_u64), Some(ShardId(0)));
    // Half of the range moves. It cannot be merged while its owner differs.
    let work = PlannedMove::new(Chunk::keys(&50_u64, Some(&100)), ShardId(0), ShardId(2));
    let mut moved = map.begin(&work).unwrap();
    while moved.moving().is_some() {
        moved = moved.advanced().unwrap();
    }
    assert_eq!([49_u64, 50, 99, 100].map(|k| moved.shard_of(&k).unwrap().0), [0, 2, 2, 1]);
    assert_eq!(moved.merge(&50_u64).unwrap_err().to_string(), "invalid `at`: must have the same owner on both sides");
    assert_eq!(moved.merge(&51_u64).unwrap_err().to_string(), "invalid `at`: must be a range's start");
    map.merge(&50_u64).unwrap();
    assert_eq!(map.chunks().len(), 3, "the gap below 0, and the two ranges: {:?}", map.chunks());
}

#[test]
fn a_pinned_key_overrides_any_strategy_until_it_is_moved_back() {
    for mut map in [ShardMap::hashed(64, &ids(4)).unwrap(), ShardMap::ranges(&[("", Some(ShardId(0)))]).unwrap()] {
        let home = map.shard_of("big").unwrap();
        let apart = PlannedMove::new(Chunk::key("big"), home, ShardId(9));
        while map.owner_of(&apart.chunk) != Some(ShardId(9)) || map.moving().is_some() {
            map = map.moving().map_or_else(|| map.begin(&apart).unwrap(), |_| map.advanced().unwrap());
        }
        assert_eq!(map.shard_of("big"), Some(ShardId(9)));
        assert_eq!(map.shards().last(), Some(&ShardId(9)));
        let back = PlannedMove::new(Chunk::key("big"), ShardId(9), home);
        while map.owner_of(&back.chunk) != Some(home) || map.moving().is_some() {
            map = map.moving().map_or_else(|| map.begin(&back).unwrap(), |_| map.advanced().unwrap());
        }
        assert_eq!(
            map.chunks().iter().filter(|(chunk, _)| matches!(chunk, Chunk::Key(_))).count(),
            0,
            "the pin is removed"
        );
    }
}

/// Carries out the moves of a plan in order.
fn carry_out(mut map: ShardMap, plan: &[PlannedMove]) -> ShardMap {
    for planned in plan {
        map = map.begin(planned).unwrap();
        while map.moving().is_some() {
            map = map.advanced().unwrap();
        }
    }
    map
}

proptest! {
    #[test]
    fn a_plan_balances_the_shards_with_the_fewest_moves(
        before in prop::collection::btree_set(0_u32..12, 1..8),
        after in prop::collection::btree_set(0_u32..12, 1..8),
        slots in 12_u32..300,
        pins in prop::collection::btree_map("[a-d]", 0_u32..12, 0..4),
    ) {
        let shards = |set: &std::collections::BTreeSet<u32>| set.iter().map(|s| ShardId(*s)).collect::<Vec<_>>();
        let mut map = ShardMap::hashed(slots, &shards(&before)).unwrap();
        for (key, shard) in &pins {
            map.pin(key, ShardId(*shard)).unwrap();
        }
        let plan = map.plan(&shards(&after)).unwrap();
        // Slots that must move: those above the largest even share of remaining shards, and all of removed ones.
        let share = |count: usize| count.saturating_sub(slots as usize / after.len() + 1);
        let counts = before.iter().map(|s| (s, map.slots().iter().filter(|o| **o == Some(ShardId(*s))).count()));
        let must: usize = counts.map(|(s, n)| if after.contains(s) { share(n) } else { n }).sum();
        let done = carry_out(map.clone(), &plan);
        let moved = map.slots().iter().zip(done.slots()).filter(|(a, b)| a != b).count();
        prop_assert!(moved >= must && moved <= must + after.len(), "{moved} moved, {must} must");
        let counts: Vec<usize> = after.iter().map(|s| done.slots().iter().filter(|o| **o == Some(ShardId(*s))).count()).collect();
        prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{counts:?}");
        prop_assert!(done.shards().iter().all(|s| after.contains(&s.0)));
        for (key, shard) in &pins {
            prop_assert!(!after.contains(shard) || done.shard_of(key) == Some(ShardId(*shard)), "a pin stays");
        }
        prop_assert_eq!(ShardMap::from_text(&done.to_text()), Some(done.clone()));
        for halfway in 0..=plan.len() {
            let left = carry_out(map.clone(), &plan[..halfway]).plan(&shards(&after)).unwrap();
            prop_assert_eq!(&left, &plan[halfway..], "a plan made halfway equals the rest of the first plan");
        }
    }

    #[test]
    fn a_plan_between_range_maps_leads_to_the_wanted_owners(
        a in prop::collection::btree_map(prop::collection::vec(0_u8..3, 0..4), 0_u32..4, 0..8),
        b in prop::collection::btree_map(prop::collection::vec(0_u8..3, 0..4), 0_u32..4, 0..8),
        pins in prop::collection::btree_map(prop::collection::vec(0_u8..3, 0..4), (prop::option::of(0_u32..4), prop::option::of(0_u32..4)), 0..4),
    ) {
        let map = |starts: &BTreeMap<Vec<u8>, u32>, pins: Vec<(&Vec<u8>, u32)>| {
            let mut list: Vec<_> = starts.iter().map(|(k, s)| (k.clone(), Some(ShardId(*s)))).collect();
            if starts.keys().next().is_none_or(|first| !first.is_empty()) {
                list.push((Vec::new(), Some(ShardId(0))));
            }
            let mut map = ShardMap::ranges(&list).unwrap();
            pins.into_iter().for_each(|(key, shard)| map.pin(key, ShardId(shard)).unwrap());
            map
        };
        let now = map(&a, pins.iter().filter_map(|(k, p)| Some((k, p.0?))).collect());
        let wanted = map(&b, pins.iter().filter_map(|(k, p)| Some((k, p.1?))).collect());
        let done = carry_out(now.clone(), &now.plan_to(&wanted).unwrap());
        let starts = a.keys().chain(b.keys()).chain(pins.keys());
        for key in starts.flat_map(|k| [k.clone(), [k.as_slice(), &[1]].concat(), [k.as_slice(), &[0, 0]].concat()]) {
            prop_assert_eq!(done.shard_of(&key), wanted.shard_of(&key), "{:?}", key);
        }
    }
}

#[test]
fn a_plan_between_maps_of_a_router_moves_only_the_keys_of_its_guarantee() {
    let shards = ids(11);
    let names: Vec<String> = shards.iter().map(ShardId::to_string).collect();
    let moved = |before: &ShardMap, after: &ShardMap| {
        before.slots().iter().zip(after.slots()).filter(|(a, b)| a != b).map(|(_, to)| *to).collect::<Vec<_>>()
    };
    let map = |router: &dyn Fn(usize) -> ShardMap| moved(&router(10), &router(11));
    let slots = 65_536;
    let of_jump = map(&|n| ShardMap::routed(slots, &shards[..n], &Jump(n as u32)).unwrap());
    let of_rendezvous =
        map(&|n| ShardMap::routed(slots, &shards[..n], &Rendezvous::new(&names[..n]).unwrap()).unwrap());
    for moved in [of_jump, of_rendezvous] {
        assert!(moved.iter().all(|to| *to == Some(ShardId(10))));
        assert!((moved.len() as f64 / f64::from(slots) - 1.0 / 11.0).abs() < 0.005, "{}", moved.len());
    }
    let gaps = ShardMap::ranges(&[(1_u64, Some(ShardId(0)))]).unwrap();
    let whole = ShardMap::ranges(&[(0_u64, Some(ShardId(0)))]).unwrap();
    assert_eq!(gaps.plan_to(&whole).unwrap_err().to_string(), "invalid `map`: must have the same gaps");
}
