//! A hash that is the same on every machine and in every release: for routes and checksums, not against people who mean harm.

use crate::entropy::mix;

/// FNV-1a of 64 bits (Fowler, Noll, Vo; RFC 9923), its bits mixed by the finaliser of `SplitMix64`, so that the lowest and the highest are as
/// good as the others.
pub(crate) fn stable_hash(bytes: &[u8]) -> u64 {
    mix(bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)))
}
