//! The hash that is the same on every machine and in every release: for routes and checksums, not
//! against malicious input.

/// Returns XXH3 of 64 bits (Yann Collet), with seed 0.
#[inline]
pub(crate) fn stable_hash(bytes: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(bytes)
}
