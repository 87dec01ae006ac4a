//! The contention simulation of Brooker's article: clients that each must write the same row once.
use std::{collections::BinaryHeap, time::Duration};

use steadfast::{
    ConfigError,
    backoff::{Backoff, BackoffConfig, Jitter},
    entropy::Entropy,
};

/// Published figures of the article for one hundred clients: calls, and seconds.
pub(crate) const PUBLISHED: [(Jitter, f64, f64); 4] = [
    (Jitter::Full, 798.0, 5.0),
    (Jitter::Decorrelated, 1009.0, 5.0),
    (Jitter::Equal, 811.0, 6.5),
    (Jitter::None, 1870.0, 64.6),
];

/// Simulates the contention: of concurrent writes one succeeds; the other clients back off, read again, and
/// write. Returns the number of writes, and the time at which each client finished, in order.
pub(crate) fn contention(jitter: Jitter, clients: usize, seed: u64) -> Result<(usize, Vec<Duration>), ConfigError> {
    let entropy = Entropy::from_seed(seed);
    // The network takes 10 ms each way, and 2 ms more or less (normally distributed: the sum of twelve uniform numbers).
    let network = || {
        let sum: f64 = (0..12).map(|_| entropy.unit()).sum();
        Duration::from_secs_f64((10.0 + (sum - 6.0) * 2.0).abs() / 1e3)
    };
    // The article's base is 5 ms, and its exponents begin at 1, ours at 0.
    let base = Duration::from_millis(if jitter == Jitter::Decorrelated { 5 } else { 10 });
    let config = BackoffConfig::default().between(base, Duration::from_secs(2)).jitter(jitter);
    #[derive(PartialEq, Eq, PartialOrd, Ord)]
    enum At {
        Read,
        Write { version: u64 },
    }
    let backoffs: Result<Vec<_>, _> = (0..clients).map(|_| Backoff::new(config, &entropy)).collect();
    let (mut backoffs, mut queue) = (backoffs?, BinaryHeap::new());
    let push = |queue: &mut BinaryHeap<_>, at: Duration, client: usize, what: At| {
        queue.push(std::cmp::Reverse((at, client, what)));
    };
    for client in 0..clients {
        push(&mut queue, network(), client, At::Read);
    }
    let (mut version, mut writes, mut done) = (0, 0, Vec::new());
    while let Some(std::cmp::Reverse((now, client, what))) = queue.pop() {
        match what {
            At::Read => push(&mut queue, now + network() + network(), client, At::Write { version }),
            At::Write { version: seen } => {
                writes += 1;
                if seen == version {
                    version += 1;
                    done.push(now + network());
                } else {
                    let delay = backoffs[client].next().unwrap_or_default();
                    push(&mut queue, now + network() + delay + network(), client, At::Read);
                }
            }
        }
    }
    done.sort();
    Ok((writes, done))
}

/// Returns the means over `runs` runs: calls, and seconds until all clients finished.
pub(crate) fn means(jitter: Jitter, clients: usize, runs: u64) -> Result<(f64, f64), ConfigError> {
    let (mut calls, mut seconds) = (0.0, 0.0);
    for seed in 0..runs {
        let (writes, done) = contention(jitter, clients, seed)?;
        calls += writes as f64 / runs as f64;
        seconds += done.last().map_or(0.0, Duration::as_secs_f64) / runs as f64;
    }
    Ok((calls, seconds))
}
