//! Sharding: from a key to one of 16, 256 or 4,096 nodes, and through shard maps of 10,000 entries.
//!
//! Everybody hashes the key itself, unless the work is named "raw". Keys are drawn by a xorshift that each worker steps, or are strings
//! `tenant-000001` made before. A rival that takes a hasher is there twice: with its own, and with ours, so that the search alone differs.

mod hashers;
mod maps;
mod routers;

use super::{Instance, Subject, Work, call_loop, instance, leak};
use maps::{deal, decode, encode, moved, new_pins, new_ranges, pins, plan, ranges, slots};
use routers::{jumps, jumps_raw, new_rings, new_tables, rendezvous, rings, tables, weighted};
use std::hash::Hash;
use std::hint::black_box;
use std::sync::OnceLock;
use steadfast::sharding::ShardKey;

const fn work(name: &'static str, about: &'static str, subjects: fn() -> Vec<Subject>) -> Work {
    Work { name, about, subjects, light: true }
}

/// Building these, or doing them once, takes too long under an instruction counter.
const fn heavy(name: &'static str, about: &'static str, subjects: fn() -> Vec<Subject>) -> Work {
    Work { name, about, subjects, light: false }
}

pub const WORKS: &[Work] = &[
    work("shard_jump_raw_16", "jump hash of a drawn u64 as it is, 16 buckets", || jumps_raw(16)),
    work("shard_jump_raw_256", "jump hash of a drawn u64 as it is, 256 buckets", || jumps_raw(256)),
    work("shard_jump_raw_4096", "jump hash of a drawn u64 as it is, 4,096 buckets", || jumps_raw(4_096)),
    work("shard_jump_16", "jump hash of a u64 key, 16 buckets", || jumps::<Numbers>(16)),
    work("shard_jump_256", "jump hash of a u64 key, 256 buckets", || jumps::<Numbers>(256)),
    work("shard_jump_4096", "jump hash of a u64 key, 4,096 buckets", || jumps::<Numbers>(4_096)),
    work("shard_jump_256_str", "jump hash of a string, 256 buckets", || jumps::<Tenants>(256)),
    work("shard_rendezvous_16", "rendezvous of a u64 key, 16 nodes", || rendezvous::<Numbers>(16)),
    work("shard_rendezvous_256", "rendezvous of a u64 key, 256 nodes", || rendezvous::<Numbers>(256)),
    work("shard_rendezvous_4096", "rendezvous of a u64 key, 4,096 nodes", || rendezvous::<Numbers>(4_096)),
    work("shard_rendezvous_16_str", "rendezvous of a string, 16 nodes", || rendezvous::<Tenants>(16)),
    work("shard_weighted_16", "weighted rendezvous of a u64 key, 16 nodes", || weighted(16)),
    work("shard_weighted_256", "weighted rendezvous of a u64 key, 256 nodes", || weighted(256)),
    work("shard_weighted_4096", "weighted rendezvous of a u64 key, 4,096 nodes", || weighted(4_096)),
    work("shard_ring_16", "ring of 100 points a node, a u64 key, 16 nodes", || rings::<Numbers>(16)),
    work("shard_ring_256", "ring of 100 points a node, a u64 key, 256 nodes", || rings::<Numbers>(256)),
    heavy("shard_ring_4096", "ring of 100 points a node, a u64 key, 4,096 nodes", || rings::<Numbers>(4_096)),
    work("shard_ring_256_str", "ring of 100 points a node, a string, 256 nodes", || rings::<Tenants>(256)),
    work("shard_maglev_16", "table of 65,537, a u64 key, 16 nodes", || tables::<Numbers>(16)),
    heavy("shard_maglev_256", "table of 65,537, a u64 key, 256 nodes", || tables::<Numbers>(256)),
    heavy("shard_maglev_4096", "table of 65,537, a u64 key, 4,096 nodes", || tables::<Numbers>(4_096)),
    work("shard_maglev_16_str", "table of 65,537, a string, 16 nodes", || tables::<Tenants>(16)),
    work("shard_slots_16", "a map of 4,096 virtual shards, a u64 key, 16 shards", || slots::<Numbers>(16)),
    work("shard_slots_256", "a map of 4,096 virtual shards, a u64 key, 256 shards", || slots::<Numbers>(256)),
    work("shard_slots_4096", "a map of 4,096 virtual shards, a u64 key, 4,096 shards", || slots::<Numbers>(4_096)),
    work("shard_slots_256_str", "a map of 4,096 virtual shards, a string, 256 shards", || slots::<Tenants>(256)),
    work("shard_pins_u64", "a map of 10,000 listed u64 keys, a listed one", || pins::<Listed>()),
    work("shard_pins_str", "a map of 10,000 listed strings, a listed one", || pins::<Tenants>()),
    work("shard_ranges_u64", "a map of 10,000 ranges of u64 keys, anywhere in them", || ranges::<Numbers>()),
    work("shard_ranges_str", "a map of 10,000 ranges of strings, a start of one", || ranges::<Tenants>()),
    heavy("shard_new_ring_256", "a new ring of 100 points a node, 256 nodes", || new_rings(256)),
    heavy("shard_new_maglev_256", "a new table of 65,537, 256 nodes", || new_tables(256)),
    heavy("shard_new_slots", "a new map of 4,096 virtual shards, 256 shards", deal),
    heavy("shard_new_ranges", "a new map of 10,000 ranges of strings", new_ranges),
    heavy("shard_new_pins", "a new map of 10,000 listed strings", new_pins),
    heavy("shard_move", "a move in a map of 10,000 ranges of strings, from begun to ended, five maps", moved),
    heavy("shard_plan", "a plan for a 17th shard, 4,096 virtual shards", plan),
    heavy("shard_encode", "a map of 10,000 ranges of strings as text", encode),
    heavy("shard_decode", "the same from text", decode),
];

/// A key that everybody takes.
pub trait Key: Hash + Eq + Ord + Copy + ShardKey + Send + Sync + 'static {}
impl<K: Hash + Eq + Ord + Copy + ShardKey + Send + Sync + 'static> Key for K {}

/// Where a worker's keys come from.
pub trait Source: 'static {
    type Key: Key;

    /// Each worker's own order.
    fn of(thread: usize) -> Self;

    fn draw(&mut self) -> Self::Key;

    /// The `i`th of [`ENTRIES`] keys that a map lists.
    fn listed(i: usize) -> Self::Key;
}

/// What a map has: keys that are listed, or ranges.
const ENTRIES: usize = 10_000;

/// Any u64.
pub struct Numbers(u64);

impl Source for Numbers {
    type Key = u64;

    fn of(thread: usize) -> Self {
        Numbers(0x9e37_79b9_7f4a_7c15 ^ thread as u64)
    }

    fn draw(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn listed(i: usize) -> u64 {
        i as u64 * (u64::MAX / ENTRIES as u64)
    }
}

/// One of the listed numbers.
pub struct Listed(Numbers);

impl Source for Listed {
    type Key = u64;

    fn of(thread: usize) -> Self {
        Listed(Numbers::of(thread))
    }

    fn draw(&mut self) -> u64 {
        Numbers::listed(one_of_them(&mut self.0))
    }

    fn listed(i: usize) -> u64 {
        Numbers::listed(i)
    }
}

/// One of the listed strings, `tenant-000000` and so on.
pub struct Tenants(Numbers, &'static [String]);

impl Source for Tenants {
    type Key = &'static str;

    fn of(thread: usize) -> Self {
        Tenants(Numbers::of(thread), all_tenants())
    }

    fn draw(&mut self) -> &'static str {
        &self.1[one_of_them(&mut self.0)]
    }

    fn listed(i: usize) -> &'static str {
        &all_tenants()[i]
    }
}

/// The high bits of a draw, and no division.
fn one_of_them(numbers: &mut Numbers) -> usize {
    ((u128::from(numbers.draw()) * ENTRIES as u128) >> 64) as usize
}

fn all_tenants() -> &'static [String] {
    static ALL: OnceLock<Vec<String>> = OnceLock::new();
    ALL.get_or_init(|| (0..ENTRIES).map(|i| format!("tenant-{i:06}")).collect())
}

/// The nodes' names.
fn names(n: usize) -> Vec<String> {
    (0..n).map(|i| format!("node-{i:04}")).collect()
}

/// Looks drawn keys up in what was built.
fn look_up<S: Source, R: Sync + 'static, O>(
    router: R,
    find: impl Fn(&'static R, &S::Key) -> O + Copy + Send + Sync + 'static,
) -> Instance {
    let router: &'static R = leak(router);
    instance(move |thread| {
        let mut keys = S::of(thread);
        call_loop(move || find(black_box(router), &keys.draw()))
    })
}

/// Does it again and again, to the same thing.
fn again<T: Sync + 'static, O>(to: T, make: impl Fn(&'static T) -> O + Copy + Send + Sync + 'static) -> Instance {
    let to: &'static T = leak(to);
    instance(move |_| call_loop(move || make(black_box(to))))
}
