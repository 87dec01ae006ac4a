//! Hash routers beside the crates that do the same.

use super::hashers::{BuildSame, NoHash, SameHash, mix};
use super::{Numbers, Source, again, look_up, names};
use crate::works::{Subject, beside, ours, rival};
use consistent_hash::{DefaultHash, Node, StaticHashRing};
use hashring::HashRing;
use hrw_hash::{HrwNode, HrwNodes};
use jumphash::{CustomJumpHasher, JumpHasher};
use maglev::ConsistentHasher;
use rendezvous_hash::{Capacity, IdNode, RendezvousNodes, WeightedNode};
use siphasher::sip::SipHasher13;
use std::hash::{BuildHasher, Hash, Hasher};
use steadfast::sharding::{Maglev, Rendezvous, Ring, hash_bytes, hash_key, jump};

/// Points that a node has on a ring.
const POINTS: u32 = 100;

pub fn jumps_raw(n: u32) -> Vec<Subject> {
    vec![
        ours("steadfast", move || look_up::<Numbers, _, _>(n, |n, key| jump(*key, *n))),
        rival("jump-consistent-hash 0.1", move || {
            look_up::<Numbers, _, _>(n as usize, |n, key| jump_consistent_hash::hash(*key, *n))
        }),
        rival("jumphash 0.1 (no hash)", move || {
            let hasher = CustomJumpHasher::new(NoHash::default());
            look_up::<Numbers, _, _>((hasher, n), |(hasher, n), key| hasher.slot(key, *n))
        }),
    ]
}

pub fn jumps<S: Source>(n: u32) -> Vec<Subject> {
    vec![
        ours("steadfast", move || look_up::<S, _, _>(n, |n, key| jump(hash_key(key), *n))),
        rival("jump-consistent-hash 0.1 (our hash)", move || {
            look_up::<S, _, _>(n as usize, |n, key| jump_consistent_hash::hash(hash_key(key), *n))
        }),
        rival("jumphash 0.1 (SipHash-1-3)", move || {
            let hasher = JumpHasher::new_with_keys(0, 0);
            look_up::<S, _, _>((hasher, n), |(hasher, n), key| hasher.slot(key, *n))
        }),
        rival("jumphash 0.1 (our hash)", move || {
            let hasher = CustomJumpHasher::new(SameHash::default());
            look_up::<S, _, _>((hasher, n), |(hasher, n), key| hasher.slot(key, *n))
        }),
    ]
}

/// The hashes of the nodes' names.
fn hashes(n: usize) -> Vec<u64> {
    names(n).iter().map(|name| hash_bytes(name.as_bytes())).collect()
}

pub fn rendezvous<S: Source>(n: usize) -> Vec<Subject> {
    vec![
        ours("steadfast", move || {
            let router = Rendezvous::new(&names(n)).expect("valid");
            look_up::<S, _, _>(router, |router, key| router.node(hash_key(key)))
        }),
        rival("by hand: arg-max of mixed hashes", move || {
            look_up::<S, _, _>(hashes(n), |nodes, key| {
                let (hash, mut best, mut highest) = (hash_key(key), 0, 0);
                for (i, node) in nodes.iter().enumerate() {
                    let score = mix(hash ^ node);
                    if score > highest {
                        (best, highest) = (i, score);
                    }
                }
                best
            })
        }),
        rival("hrw-hash 2.0 (rapidhash)", move || {
            look_up::<S, _, _>(HrwNodes::new(names(n)), |nodes, key| nodes.sorted(key).next())
        }),
        rival("hrw-hash 2.0 (our hash)", move || {
            let nodes = HrwNodes::with_build_hasher(BuildSame::default(), names(n));
            look_up::<S, _, _>(nodes, |nodes, key| nodes.sorted(key).next())
        }),
        rival("rendezvous_hash 0.3 (SipHash-1-3)", move || {
            let mut nodes = RendezvousNodes::default();
            nodes.extend(names(n).into_iter().map(IdNode::new));
            look_up::<S, _, _>(nodes, |nodes, key| nodes.calc_candidates(key).next())
        }),
        rival("rendezvous_hash 0.3 (our hash)", move || {
            let mut nodes = RendezvousNodes::new(SameHash::default());
            nodes.extend(hashes(n).into_iter().map(IdNode::new));
            look_up::<S, _, _>(nodes, |nodes, key| nodes.calc_candidates(key).next())
        }),
    ]
}

/// Weights 1, 2, 3, 4, and again.
fn weight(i: usize) -> usize {
    i % 4 + 1
}

/// A node with its weight, for hrw-hash.
#[derive(PartialEq, Eq)]
struct Weighted(String, usize);

impl Hash for Weighted {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl HrwNode for Weighted {
    fn capacity(&self) -> usize {
        self.1
    }
}

pub fn weighted(n: usize) -> Vec<Subject> {
    let heavy = move || names(n).into_iter().enumerate().map(|(i, name)| Weighted(name, weight(i)));
    let capacity = |i: usize| Capacity::new(weight(i) as f64).expect("above zero");
    vec![
        ours("steadfast", move || {
            let nodes: Vec<(String, f64)> =
                names(n).into_iter().enumerate().map(|(i, name)| (name, weight(i) as f64)).collect();
            let router = Rendezvous::weighted(&nodes).expect("valid");
            look_up::<Numbers, _, _>(router, |router, key| router.node(hash_key(key)))
        }),
        rival("by hand: arg-max of -w / ln(u)", move || {
            let nodes: Vec<(u64, f64)> =
                hashes(n).into_iter().enumerate().map(|(i, node)| (node, weight(i) as f64)).collect();
            look_up::<Numbers, _, _>(nodes, |nodes, key| {
                let (hash, mut best, mut highest) = (hash_key(key), 0, f64::NEG_INFINITY);
                for (i, (node, weight)) in nodes.iter().enumerate() {
                    let unit = ((mix(hash ^ node) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
                    let score = -weight / unit.ln();
                    if score > highest {
                        (best, highest) = (i, score);
                    }
                }
                best
            })
        }),
        rival("hrw-hash 2.0 (rapidhash)", move || {
            look_up::<Numbers, _, _>(HrwNodes::new(heavy()), |nodes, key| nodes.sorted(key).next())
        }),
        rival("hrw-hash 2.0 (our hash)", move || {
            let nodes = HrwNodes::with_build_hasher(BuildSame::default(), heavy());
            look_up::<Numbers, _, _>(nodes, |nodes, key| nodes.sorted(key).next())
        }),
        rival("rendezvous_hash 0.3 (SipHash-1-3)", move || {
            let mut nodes = RendezvousNodes::default();
            let named = names(n).into_iter().enumerate();
            nodes.extend(named.map(|(i, name)| WeightedNode::new(IdNode::new(name), capacity(i))));
            look_up::<Numbers, _, _>(nodes, |nodes, key| nodes.calc_candidates(key).next())
        }),
        rival("rendezvous_hash 0.3 (our hash)", move || {
            let mut nodes = RendezvousNodes::new(SameHash::default());
            let hashed = hashes(n).into_iter().enumerate();
            nodes.extend(hashed.map(|(i, hash)| WeightedNode::new(IdNode::new(hash), capacity(i))));
            look_up::<Numbers, _, _>(nodes, |nodes, key| nodes.calc_candidates(key).next())
        }),
    ]
}

/// A node's point, for hashring, which has no points of its own.
#[derive(Clone, Copy)]
struct Point {
    node: u32,
    point: u32,
}

impl Hash for Point {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(u64::from(self.node) << 32 | u64::from(self.point));
    }
}

fn hash_ring<S: BuildHasher>(mut ring: HashRing<Point, S>, n: usize) -> HashRing<Point, S> {
    ring.batch_add((0..n as u32).flat_map(|node| (0..POINTS).map(move |point| Point { node, point })).collect());
    ring
}

fn static_ring<H: consistent_hash::RingHash>(hash: H, n: usize) -> StaticHashRing<'static, String, (), H> {
    StaticHashRing::new(hash, names(n).into_iter().map(|name| Node::new(name).quantity(POINTS as usize)))
}

pub fn rings<S: Source>(n: usize) -> Vec<Subject> {
    vec![
        ours("steadfast", move || {
            let ring = Ring::new(&names(n), POINTS).expect("valid");
            look_up::<S, _, _>(ring, |ring, key| ring.node(hash_key(key)))
        }),
        rival("hashring 0.3 (SipHash-2-4)", move || {
            look_up::<S, _, _>(hash_ring(HashRing::new(), n), |ring, key| ring.get(key).map(|point| point.node))
        }),
        rival("hashring 0.3 (our hash)", move || {
            let ring = hash_ring(HashRing::with_hasher(BuildSame::default()), n);
            look_up::<S, _, _>(ring, |ring, key| ring.get(key).map(|point| point.node))
        }),
        rival("consistent_hash 0.1 (SipHash-1-3)", move || {
            look_up::<S, _, _>(static_ring(DefaultHash, n), |ring, key| ring.calc_candidates(key).next())
        }),
        rival("consistent_hash 0.1 (our hash)", move || {
            look_up::<S, _, _>(static_ring(SameHash::default(), n), |ring, key| ring.calc_candidates(key).next())
        }),
    ]
}

pub fn tables<S: Source>(n: usize) -> Vec<Subject> {
    let size = Maglev::SIZE as usize;
    vec![
        ours("steadfast", move || {
            let table = Maglev::new(&names(n)).expect("valid");
            look_up::<S, _, _>(table, |table, key| table.node(hash_key(key)))
        }),
        rival("maglev 0.2 (SipHash-1-3)", move || {
            look_up::<S, _, _>(maglev::Maglev::with_capacity(names(n), size), |table, key| table.get(key))
        }),
        rival("maglev 0.2 (our hash)", move || {
            let table = maglev::Maglev::with_capacity_and_hasher(names(n), size, BuildSame::default());
            look_up::<S, _, _>(table, |table, key| table.get(key))
        }),
        beside("(floor) SipHash-1-3 modulo, moves nearly all", move || {
            look_up::<S, _, _>(n as u64, |n, key| {
                let mut hasher = SipHasher13::new();
                key.hash(&mut hasher);
                hasher.finish() % n
            })
        }),
    ]
}

pub fn new_rings(n: usize) -> Vec<Subject> {
    vec![
        ours("steadfast", move || again(names(n), |names| Ring::new(names, POINTS).expect("valid"))),
        rival("hashring 0.3 (SipHash-2-4)", move || again(n, |n| hash_ring(HashRing::new(), *n))),
        rival("hashring 0.3 (our hash)", move || {
            again(n, |n| hash_ring(HashRing::with_hasher(BuildSame::default()), *n))
        }),
        rival("consistent_hash 0.1 (SipHash-1-3)", move || again(n, |n| static_ring(DefaultHash, *n))),
        rival("consistent_hash 0.1 (our hash)", move || again(n, |n| static_ring(SameHash::default(), *n))),
    ]
}

pub fn new_tables(n: usize) -> Vec<Subject> {
    let size = Maglev::SIZE as usize;
    vec![
        ours("steadfast", move || again(names(n), |names| Maglev::new(names).expect("valid"))),
        rival("maglev 0.2 (SipHash-1-3)", move || {
            again(names(n), move |names| maglev::Maglev::with_capacity(names.iter(), size))
        }),
        rival("maglev 0.2 (our hash)", move || {
            again(names(n), move |names| {
                maglev::Maglev::with_capacity_and_hasher(names.iter(), size, BuildSame::default())
            })
        }),
    ]
}
