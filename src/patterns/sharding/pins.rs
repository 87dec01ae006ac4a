//! Keys that are pinned to a shard.
use std::{
    borrow::Borrow,
    fmt,
    hash::{BuildHasherDefault, Hash, Hasher},
};

use hashbrown::{Equivalent, HashMap};

use super::map::ShardId;
use crate::hash::stable_hash;

/// Pinned keys, by the hash that routing uses. Operators choose these keys, so an attacker cannot
/// make them collide.
pub(super) type Pins = HashMap<PinnedKey, ShardId, BuildHasherDefault<KeyHasher>>;

/// Number of bytes of a key that an entry holds without an allocation: an entry is half a cache
/// line.
const INLINE: usize = 22;

/// The bytes of a pinned key. Most keys are inline in the entry of the hash map, because following
/// a pointer would cost one more cache miss.
#[derive(Clone)]
pub(super) enum PinnedKey {
    Inline { len: u8, bytes: [u8; INLINE] },
    Heap(Box<[u8]>),
}

impl PinnedKey {
    #[inline]
    pub(super) fn as_slice(&self) -> &[u8] {
        match self {
            Self::Inline { len, bytes } => bytes.get(..usize::from(*len)).unwrap_or(bytes),
            Self::Heap(bytes) => bytes,
        }
    }
}

#[allow(clippy::cast_possible_truncation, reason = "at most `INLINE`")]
impl From<&[u8]> for PinnedKey {
    fn from(key: &[u8]) -> Self {
        let mut bytes = [0; INLINE];
        match bytes.get_mut(..key.len()) {
            Some(place) => {
                place.copy_from_slice(key);
                Self::Inline { len: key.len() as u8, bytes }
            }
            None => Self::Heap(key.into()),
        }
    }
}

/// The bytes of a key that is looked up, with their hash. The hash is computed before the search,
/// where the compiler knows the length of a number.
pub(super) struct Wanted<'a> {
    key: &'a [u8],
    hash: u64,
}

impl<'a> Wanted<'a> {
    #[inline]
    pub(super) fn new(key: &'a [u8]) -> Self {
        Self { key, hash: stable_hash(key) }
    }
}

impl Hash for Wanted<'_> {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl Equivalent<PinnedKey> for Wanted<'_> {
    /// Compares up to 16 bytes as two overlapping words: numbers, UUIDs and short names need no
    /// call.
    #[inline]
    fn equivalent(&self, key: &PinnedKey) -> bool {
        let (a, b) = (self.key, key.as_slice());
        match (a.first_chunk::<8>(), b.first_chunk::<8>(), a.last_chunk::<8>(), b.last_chunk::<8>()) {
            (Some(a_first), Some(b_first), Some(a_last), Some(b_last)) if a.len() <= 16 => {
                a.len() == b.len() && a_first == b_first && a_last == b_last
            }
            _ => a == b,
        }
    }
}

impl Borrow<[u8]> for PinnedKey {
    #[inline]
    fn borrow(&self) -> &[u8] {
        self.as_slice()
    }
}

impl Hash for PinnedKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_slice().hash(state);
    }
}

impl PartialEq for PinnedKey {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for PinnedKey {}

impl PartialOrd for PinnedKey {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for PinnedKey {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_slice().cmp(other.as_slice())
    }
}

impl fmt::Debug for PinnedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().fmt(f)
    }
}

#[derive(Default)]
pub(super) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        self.0 = self.0.rotate_left(1) ^ stable_hash(bytes);
    }

    /// Takes the hash of a whole key.
    #[inline]
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    /// The `Hash` of a slice writes its length first, which the hash of a key does not include.
    #[inline]
    fn write_usize(&mut self, _: usize) {}

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_any_length_are_found_and_keep_their_order() {
        let keys: Vec<Vec<u8>> = (0..2 * INLINE).map(|len| vec![7; len]).collect();
        let pins: Pins = (0..).zip(&keys).map(|(i, key)| (key.as_slice().into(), ShardId(i))).collect();
        assert_eq!(pins.len(), keys.len());
        for (i, key) in (0..).zip(&keys) {
            assert_eq!(pins.get(key.as_slice()), Some(&ShardId(i)));
            assert_eq!(pins.get(&Wanted::new(key)), Some(&ShardId(i)));
        }
        // The bytes behind a short key do not belong to it.
        assert_eq!(pins.get([7, 0].as_slice()), None);
        let mut sorted: Vec<_> = pins.keys().collect();
        sorted.sort_unstable();
        assert!(sorted.iter().map(|key| key.as_slice()).eq(keys.iter().map(Vec::as_slice)));
    }

    #[test]
    fn keys_that_differ_in_one_byte_or_in_length_are_different() {
        for key in (1..2 * INLINE).map(|len| vec![7; len]) {
            let pinned = PinnedKey::from(key.as_slice());
            assert!(Wanted::new(&key).equivalent(&pinned));
            for at in 0..key.len() {
                let mut other = key.clone();
                other[at] = 8;
                assert!(!Wanted::new(&other).equivalent(&pinned), "{at} of {}", key.len());
                assert!(!Wanted::new(&key[..at]).equivalent(&pinned), "{at} of {}", key.len());
            }
        }
    }

    #[test]
    fn an_entry_is_half_a_cache_line() {
        assert_eq!(size_of::<(PinnedKey, ShardId)>(), 32);
    }
}
