//! Shard keys as bytes in the order of their values, and their permanent hash.
use crate::hash::stable_hash;

const INLINE: usize = 64;

/// The encoded bytes of a key: up to 64 without an allocation.
#[derive(Debug, Clone)]
pub struct KeyBytes {
    inline: [u8; INLINE],
    len: usize,
    heap: Vec<u8>,
}

impl Default for KeyBytes {
    fn default() -> Self {
        Self { inline: [0; INLINE], len: 0, heap: Vec::new() }
    }
}

impl KeyBytes {
    /// Encodes a key.
    #[inline]
    pub fn of(key: &(impl ShardKey + ?Sized)) -> Self {
        let mut bytes = Self::default();
        key.encode(true, &mut bytes);
        bytes
    }

    /// Appends bytes.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        if self.heap.is_empty() && end <= INLINE {
            self.inline[self.len..end].copy_from_slice(bytes);
        } else {
            self.push_on_heap(bytes);
        }
        self.len = end;
    }

    #[cold]
    fn push_on_heap(&mut self, bytes: &[u8]) {
        if self.heap.is_empty() {
            self.heap.extend_from_slice(&self.inline[..self.len]);
        }
        self.heap.extend_from_slice(bytes);
    }

    /// Returns the bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        if self.heap.is_empty() { &self.inline[..self.len] } else { &self.heap }
    }
}

/// A type that can be a shard key. The order of the bytes is that of the values. Do not mix keys of
/// different types in one map.
pub trait ShardKey {
    /// Appends the key's bytes. `last` is `false` if another part of a tuple follows.
    fn encode(&self, last: bool, out: &mut KeyBytes);

    /// Returns the bytes that [`encode`](Self::encode) appends for the last part, if they are in
    /// memory already. Routing then copies nothing.
    #[inline]
    fn in_place(&self) -> Option<&[u8]> {
        None
    }

    /// Returns the bytes of a number, and how many they are. Routing then needs no buffer for keys
    /// of any length.
    #[doc(hidden)]
    #[inline]
    fn as_number(&self) -> Option<([u8; 16], usize)> {
        None
    }
}

/// Calls `act` with a key's bytes.
#[inline]
pub(super) fn with_bytes<R>(key: &(impl ShardKey + ?Sized), act: impl FnOnce(&[u8]) -> R) -> R {
    match (key.in_place(), key.as_number()) {
        (Some(bytes), _) => act(bytes),
        (None, Some((bytes, len))) => act(&bytes[..len]),
        (None, None) => act(KeyBytes::of(key).as_slice()),
    }
}

#[inline]
fn number<const N: usize>(bytes: [u8; N]) -> Option<([u8; 16], usize)> {
    let mut all = [0; 16];
    all[..N].copy_from_slice(&bytes);
    Some((all, N))
}

impl ShardKey for [u8] {
    #[inline]
    fn encode(&self, last: bool, out: &mut KeyBytes) {
        if last {
            return out.push(self);
        }
        // A zero byte becomes 00 FF and the end is 00 00, so that a prefix sorts before longer
        // values.
        for part in self.split_inclusive(|byte| *byte == 0) {
            out.push(part);
            if part.ends_with(&[0]) {
                out.push(&[0xff]);
            }
        }
        out.push(&[0, 0]);
    }

    #[inline]
    fn in_place(&self) -> Option<&[u8]> {
        Some(self)
    }
}

impl ShardKey for str {
    #[inline]
    fn encode(&self, last: bool, out: &mut KeyBytes) {
        self.as_bytes().encode(last, out);
    }

    #[inline]
    fn in_place(&self) -> Option<&[u8]> {
        Some(self.as_bytes())
    }
}

impl ShardKey for String {
    #[inline]
    fn encode(&self, last: bool, out: &mut KeyBytes) {
        self.as_bytes().encode(last, out);
    }

    #[inline]
    fn in_place(&self) -> Option<&[u8]> {
        Some(self.as_bytes())
    }
}

impl ShardKey for Vec<u8> {
    #[inline]
    fn encode(&self, last: bool, out: &mut KeyBytes) {
        self.as_slice().encode(last, out);
    }

    #[inline]
    fn in_place(&self) -> Option<&[u8]> {
        Some(self)
    }
}

/// Fixed length: a UUID is its 16 bytes.
impl<const N: usize> ShardKey for [u8; N] {
    #[inline]
    fn encode(&self, _: bool, out: &mut KeyBytes) {
        out.push(self);
    }

    #[inline]
    fn in_place(&self) -> Option<&[u8]> {
        Some(self)
    }
}

impl<K: ShardKey + ?Sized> ShardKey for &K {
    #[inline]
    fn encode(&self, last: bool, out: &mut KeyBytes) {
        (**self).encode(last, out);
    }

    #[inline]
    fn in_place(&self) -> Option<&[u8]> {
        (**self).in_place()
    }

    #[inline]
    fn as_number(&self) -> Option<([u8; 16], usize)> {
        (**self).as_number()
    }
}

macro_rules! integers {
    ($($unsigned:ty, $signed:ty;)*) => {$(
        impl ShardKey for $unsigned {
            #[inline]
            fn encode(&self, _: bool, out: &mut KeyBytes) {
                out.push(&self.to_be_bytes());
            }

            #[inline]
            fn as_number(&self) -> Option<([u8; 16], usize)> {
                number(self.to_be_bytes())
            }
        }
        /// The sign bit is inverted, so that negative values sort first.
        impl ShardKey for $signed {
            #[inline]
            fn encode(&self, _: bool, out: &mut KeyBytes) {
                out.push(&(*self ^ <$signed>::MIN).to_be_bytes());
            }

            #[inline]
            fn as_number(&self) -> Option<([u8; 16], usize)> {
                number((*self ^ <$signed>::MIN).to_be_bytes())
            }
        }
    )*};
}
integers! { u8, i8; u16, i16; u32, i32; u64, i64; u128, i128; }

/// Milliseconds since 1970, so that ranges of times are ranges of keys.
impl ShardKey for crate::time::Timestamp {
    #[inline]
    fn encode(&self, last: bool, out: &mut KeyBytes) {
        self.as_millis().encode(last, out);
    }
}

impl<A: ShardKey, B: ShardKey> ShardKey for (A, B) {
    #[inline]
    fn encode(&self, last: bool, out: &mut KeyBytes) {
        self.0.encode(false, out);
        self.1.encode(last, out);
    }
}

impl<A: ShardKey, B: ShardKey, C: ShardKey> ShardKey for (A, B, C) {
    #[inline]
    fn encode(&self, last: bool, out: &mut KeyBytes) {
        self.0.encode(false, out);
        self.1.encode(false, out);
        self.2.encode(last, out);
    }
}

/// Returns the XXH3 hash of 64 bits with seed 0. It is the same on every machine and in every
/// release.
///
/// ```
/// assert_eq!(steadfast::sharding::hash_bytes(b""), 0x2d06_8005_38d3_94c2);
/// ```
#[inline]
pub fn hash_bytes(bytes: &[u8]) -> u64 {
    stable_hash(bytes)
}

/// Returns the [hash](hash_bytes) of a key's bytes.
#[inline]
pub fn hash_key(key: &(impl ShardKey + ?Sized)) -> u64 {
    with_bytes(key, hash_bytes)
}
