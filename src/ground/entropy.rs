//! Randomness as a value: seeded and passed as an argument, so that a seed replays a run.
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// A stream of random numbers that tasks share without a lock.
///
/// The generator is SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
/// generators", OOPSLA 2014): one atomic addition a number. It is good for spreading delays and
/// drawing samples, not for secrets. Clones draw from the same stream.
///
/// ```
/// use steadfast::entropy::Entropy;
///
/// let (a, b) = (Entropy::from_seed(7), Entropy::from_seed(7));
/// assert_eq!(a.next_u64(), b.next_u64());
/// ```
#[derive(Clone, Debug)]
pub struct Entropy(Arc<AtomicU64>);

impl Entropy {
    /// Creates a stream that the seed determines.
    pub fn from_seed(seed: u64) -> Self {
        Self(Arc::new(AtomicU64::new(seed)))
    }

    /// Creates a stream with a seed from the operating system, different in each process.
    pub fn from_os() -> Self {
        #[expect(clippy::disallowed_methods, reason = "this is the one place that draws ambient randomness")]
        Self::from_seed(rand::random())
    }

    /// Returns the next number, uniform over all of `u64`.
    pub fn next_u64(&self) -> u64 {
        // The golden ratio in 64 bits: an odd step, which visits every state (the paper's `GOLDEN_GAMMA`).
        const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
        // `Relaxed`: each addition draws another state, and no other memory is published by it.
        mix(self.0.fetch_add(GAMMA, Ordering::Relaxed).wrapping_add(GAMMA))
    }

    /// Returns an identity of 32 hexadecimal digits.
    pub(crate) fn id(&self) -> String {
        format!("{:016x}{:016x}", self.next_u64(), self.next_u64())
    }

    /// Returns a number in `0.0..1.0`.
    pub fn unit(&self) -> f64 {
        // A double has a fraction of 53 bits.
        const SCALE: f64 = 1.0 / (1u64 << 53) as f64;
        (self.next_u64() >> 11) as f64 * SCALE
    }

    /// Returns a number in `0..=max`, without bias (Lemire, "Fast random integer generation in an
    /// interval", 2019).
    pub fn up_to(&self, max: u64) -> u64 {
        let Some(n) = max.checked_add(1) else { return self.next_u64() };
        loop {
            let wide = u128::from(self.next_u64()) * u128::from(n);
            if (wide as u64) >= n.wrapping_neg() % n {
                return (wide >> 64) as u64;
            }
        }
    }
}

/// Returns a key that nobody can guess, as long as a block of SHA-256, from a generator for
/// cryptography that the system has seeded. It is no part of a seeded stream: a run is not replayed
/// by its keys.
#[cfg(feature = "console")]
pub(crate) fn secret() -> [u8; 64] {
    #[expect(clippy::disallowed_methods, reason = "this is the one place that draws ambient randomness")]
    rand::random()
}

/// Applies SplitMix64's finaliser: every bit of the result depends on every bit of `z`.
#[inline]
pub(crate) const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Default for Entropy {
    fn default() -> Self {
        Self::from_os()
    }
}
