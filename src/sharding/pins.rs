//! Keys that are listed one by one.
use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

use super::map::ShardId;
use crate::hash::stable_hash;

/// By the one hash that routing knows: an operator lists these keys, so nobody can choose them to collide.
pub(super) type Pins = HashMap<Vec<u8>, ShardId, BuildHasherDefault<KeyHasher>>;

#[derive(Default)]
pub(super) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = self.0.rotate_left(1) ^ stable_hash(bytes);
    }

    /// A slice tells its length first; a key is one slice.
    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}
