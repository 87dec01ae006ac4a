//! Removal of idle keys from a registry.
use std::{
    hash::{BuildHasher, Hash},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use super::{CircuitBreaker, CircuitBreakerConfig, KeyedBreakers, KeyedBreakersConfig, State, keyed::Keys};
use crate::time::Instant;

/// Pause before a full table is searched again for removable keys.
const LOOKS_AGAIN: Duration = Duration::from_secs(1);

impl<K: Eq + Hash + Clone, S: BuildHasher> KeyedBreakers<K, S> {
    /// Removes every key without use since the last sweep, if that was at least `idle` ago, and
    /// releases the memory.
    ///
    /// Breakers are kept if they are held elsewhere, isolated, or open or half-open (until
    /// `reset_after` past the time at which a call would have ended that state), or if they still
    /// have consecutive openings to remember.
    ///
    /// There is no need to call this: each part of the table does so before it grows. A key that is
    /// never used again is removed after twice `idle` at the latest, if its place is needed.
    pub fn forget_idle(&self) {
        for shard in self.0.shards.iter() {
            let mut keys = shard.lock();
            self.sweep(&mut keys);
            keys.table.shrink_to_fit(|(k, _)| self.0.hasher.hash_one(k));
        }
    }

    /// Removes closed breakers to make room for new ones. Returns `false` if none could be removed.
    pub(super) fn make_room(&self, keys: &mut Keys<K>, most: usize) -> bool {
        let now = self.0.shared.clock.now();
        if now < keys.full_until {
            return false;
        }
        let mut excess = keys.table.len() - (most - most.div_ceil(8));
        for is_used in [false, true] {
            keys.table.retain(|(_, breaker)| {
                let forgotten = excess > 0
                    && breaker.0.core.used.load(Relaxed) == is_used
                    && !breaker.is_held()
                    && breaker.state() == State::Closed;
                excess -= usize::from(forgotten);
                !forgotten
            });
        }
        keys.table.iter().for_each(|(_, breaker)| breaker.0.core.used.store(false, Relaxed));
        let has_room = keys.table.len() < most;
        if !has_room {
            // Not searched again for each new key.
            keys.full_until = now + LOOKS_AGAIN;
        }
        has_room
    }

    pub(super) fn sweep(&self, keys: &mut Keys<K>) {
        let KeyedBreakersConfig { breaker: config, idle, .. } = self.config();
        let now = self.0.shared.clock.now();
        if now - keys.swept < idle {
            return;
        }
        keys.swept = now;
        // While the shard is locked, a breaker can be cloned only from a clone held elsewhere: a strong
        // count of one stays one.
        keys.table.retain(|(_, breaker)| {
            breaker.0.core.used.swap(false, Relaxed) || breaker.is_held() || !breaker.is_forgettable(&config, now)
        });
    }
}

impl CircuitBreaker {
    /// Returns whether the breaker is held outside the registry.
    fn is_held(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    fn is_forgettable(&self, config: &CircuitBreakerConfig, now: Instant) -> bool {
        self.0.core.is_forgettable(config, now)
    }
}
