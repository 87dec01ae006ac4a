//! Keys that are pinned to a shard.
use std::{
    fmt,
    hash::{BuildHasherDefault, Hash, Hasher},
};

use hashbrown::{Equivalent, HashMap};

use super::map::ShardId;
use crate::hash::stable_hash;

/// Pinned keys, by the hash that routing uses. Operators choose these keys, so an attacker cannot
/// make them collide.
///
/// Keys of eight bytes, as numbers of 64 bits are, have a table of their own: its entries are half
/// as long, and one comparison tells such keys apart.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Pins {
    words: HashMap<[u8; 8], ShardId, BuildHasherDefault<KeyHasher>>,
    others: HashMap<PinnedKey, ShardId, BuildHasherDefault<KeyHasher>>,
}

impl Pins {
    /// Returns `true` if the table for keys of this length is empty.
    #[inline]
    pub(super) fn has_none_like(&self, key: &[u8]) -> bool {
        if key.len() == 8 { self.words.is_empty() } else { self.others.is_empty() }
    }

    /// Finds a key for a look-up. A search that has one caller is compiled into it, which saves 50
    /// instructions, so others use [`get`](Self::get).
    #[inline]
    pub(super) fn find(&self, key: &[u8]) -> Option<ShardId> {
        match key.try_into() {
            Ok(word) => self.words.get::<[u8; 8]>(word).copied(),
            Err(_) => self.others.get(&Wanted::new(key)).copied(),
        }
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<ShardId> {
        match key.try_into() {
            Ok(word) => self.words.get::<[u8; 8]>(word).copied(),
            Err(_) => self.others.get(&PinnedKey::from(key)).copied(),
        }
    }

    pub(super) fn contains(&self, key: &[u8]) -> bool {
        self.get(key).is_some()
    }

    pub(super) fn insert(&mut self, key: &[u8], shard: ShardId) {
        match key.try_into() {
            Ok(word) => self.words.insert(word, shard),
            Err(_) => self.others.insert(key.into(), shard),
        };
    }

    pub(super) fn remove(&mut self, key: &[u8]) {
        match key.try_into() {
            Ok(word) => self.words.remove::<[u8; 8]>(word),
            Err(_) => self.others.remove(&PinnedKey::from(key)),
        };
    }

    /// Removes the keys whose shard is not `kept`.
    pub(super) fn retain(&mut self, kept: impl Fn(ShardId) -> bool) {
        self.words.retain(|_, shard| kept(*shard));
        self.others.retain(|_, shard| kept(*shard));
    }

    /// Returns the keys with their shards, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], ShardId)> {
        let words = self.words.iter().map(|(key, shard)| (key.as_slice(), *shard));
        words.chain(self.others.iter().map(|(key, shard)| (key.as_slice(), *shard)))
    }
}

/// Number of bytes of a key that an entry holds without an allocation: an entry is half a cache
/// line.
const INLINE: usize = 22;

/// The bytes of a pinned key. Most keys are inline in the entry of the hash map, because following
/// a pointer would cost one more cache miss.
#[derive(Clone)]
enum PinnedKey {
    Inline { len: u8, bytes: [u8; INLINE] },
    Heap(Box<[u8]>),
}

impl PinnedKey {
    #[inline]
    fn as_slice(&self) -> &[u8] {
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
struct Wanted<'a> {
    key: &'a [u8],
    hash: u64,
}

impl<'a> Wanted<'a> {
    #[inline]
    fn new(key: &'a [u8]) -> Self {
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
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn keys_of_any_length_are_found_kept_and_removed() {
        let keys: Vec<Vec<u8>> = (0..2 * INLINE).map(|len| vec![7; len]).collect();
        let mut pins = Pins::default();
        for (i, key) in (0..).zip(&keys) {
            assert!(!pins.contains(key));
            pins.insert(key, ShardId(i));
        }
        for (i, key) in (0..).zip(&keys) {
            assert_eq!(pins.get(key), Some(ShardId(i)));
            assert_eq!(pins.find(key), Some(ShardId(i)));
            assert!(!pins.has_none_like(key));
        }
        // The bytes behind a short key do not belong to it.
        assert_eq!((pins.get(&[7, 0]), pins.find(&[7, 0])), (None, None));
        let sorted: BTreeMap<_, _> = pins.iter().collect();
        assert!(sorted.into_keys().eq(keys.iter().map(Vec::as_slice)));

        pins.retain(|shard| shard.0 % 2 == 0);
        for (i, key) in (0..).zip(&keys) {
            assert_eq!(pins.contains(key), i % 2 == 0);
            pins.remove(key);
            assert!(!pins.contains(key));
        }
        assert_eq!(pins, Pins::default());
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
