//! Our hash behind the traits that the rivals take, and no hash at all.

use consistent_hash::RingHash;
use rendezvous_hash::NodeHasher;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use steadfast::sharding::{hash_bytes, hash_key};

/// Hashes as steadfast does.
#[derive(Clone, Default)]
pub struct SameHash(u64);

pub type BuildSame = BuildHasherDefault<SameHash>;

impl Hasher for SameHash {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        self.0 = self.0.rotate_left(1) ^ hash_bytes(bytes);
    }

    #[inline]
    fn write_u64(&mut self, key: u64) {
        self.0 = self.0.rotate_left(1) ^ hash_key(&key);
    }

    /// Maglev's seed.
    #[inline]
    fn write_u32(&mut self, seed: u32) {
        self.0 ^= mix(u64::from(seed));
    }

    /// The mark that a string ends.
    #[inline]
    fn write_u8(&mut self, _: u8) {}

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

impl RingHash for SameHash {
    fn hash_item<T: Hash>(&self, item: &T) -> u64 {
        let mut hasher = SameHash(0);
        item.hash(&mut hasher);
        hasher.finish()
    }

    fn hash_vnode<K: Hash>(&self, node: &K, point: usize) -> u64 {
        mix(self.hash_item(node) ^ mix(point as u64 + 1))
    }
}

/// Of nodes that are hashes already.
impl NodeHasher<u64> for SameHash {
    fn hash<T: Hash>(&self, node: &u64, item: &T) -> u64 {
        mix(node ^ self.hash_item(item))
    }
}

/// The key is the hash.
#[derive(Clone, Default)]
pub struct NoHash(u64);

impl Hasher for NoHash {
    fn write(&mut self, _: &[u8]) {
        unreachable!("only u64 keys");
    }

    #[inline]
    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// SplitMix64's finaliser.
#[inline]
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
