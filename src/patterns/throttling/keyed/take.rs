//! The ways in which a key takes permits: from its arrival time, or from a complete limiter if it
//! has one.
use std::{
    fmt,
    hash::{BuildHasher, Hash},
    sync::Arc,
    time::Duration,
};

use hashbrown::HashTable;

use super::{
    KeyedRateLimiter,
    limiter::{KeyedCore, KeyedParts, MAX_ROUNDS},
    shard::{ShardState, Tiers, of},
};
use crate::{
    build::Common,
    key_ref::KeyRef,
    outcome::{PolicyKind, Reason, Rejected},
    sync::Mutex,
    throttling::{
        Quota, RateLimitConfig, RateLimiter, RateMode, ThrottlingEvent,
        rate::turns::{Refusal, Taken},
    },
    time::{Instant, nanos},
};

impl<K: Eq + Hash + Clone, S: BuildHasher> KeyedRateLimiter<K, S> {
    /// Waits for one permit of `key`, in order of arrival.
    ///
    /// # Errors
    /// None in practice: one permit is never too large, and the wait is unlimited.
    ///
    /// # Cancel safety
    /// A future that is dropped while it waits gives back its turn, and later callers move up.
    pub async fn acquire(&self, key: &(impl KeyRef<K> + ?Sized)) -> Result<(), Rejected> {
        self.acquire_n(key, 1, Duration::MAX).await
    }

    /// Waits for `n` permits of this key for at most `max_wait`, in order of arrival.
    ///
    /// # Errors
    /// The rejection, at once, if the turn would come later than `max_wait`: a caller never waits
    /// in vain.
    ///
    /// # Cancel safety
    /// A future that is dropped while it waits gives back its turn, and later callers move up.
    pub async fn acquire_n(&self, key: &(impl KeyRef<K> + ?Sized), n: u32, max_wait: Duration) -> Result<(), Rejected> {
        let latest = self.0.parts.clock.now() + max_wait;
        self.acquire_by(key, n, latest).await
    }

    /// Takes a permit, or waits for it until the call's deadline and for at most `max_wait`.
    pub(super) async fn acquire_for(
        &self,
        key: &(impl KeyRef<K> + ?Sized),
        deadline: Option<Instant>,
    ) -> Result<(), Rejected> {
        let max_wait = self.0.max_wait();
        if max_wait.is_zero() {
            return self.try_acquire(key);
        }
        let patience = self.0.parts.clock.now() + max_wait;
        self.acquire_by(key, 1, deadline.map_or(patience, |deadline| deadline.min(patience))).await
    }

    async fn acquire_by(&self, key: &(impl KeyRef<K> + ?Sized), n: u32, latest: Instant) -> Result<(), Rejected> {
        let KeyedParts { clock, .. } = &self.0.parts;
        let now = clock.now();
        let wait = match self.take_unmetered(key, n) {
            Ok(taken) => {
                _ = self.counted(key, n, Ok(taken));
                return Ok(());
            }
            Err(Refusal::Wait(wait)) if now + Duration::from_nanos(wait) <= latest => wait,
            Err(refusal) => return self.counted(key, n, Err(refusal)).map_err(|refusal| self.rejected(key, refusal)),
        };
        let event = || ThrottlingEvent::Queued { wait: Some(Duration::from_nanos(wait)) };
        self.0.events.send(self.name_of(key).as_ref(), now, event);
        let waited = self.limiter(key).wait_until(n, now, latest).await;
        let answer = waited.map_err(|rejected| match rejected.retry_after() {
            Some(wait) => Refusal::Wait(nanos(wait)),
            None => Refusal::TooLarge,
        });
        self.counted(key, n, answer).map_err(|refusal| self.rejected(key, refusal))
    }

    /// Admits no call of `key` for `time`: see [`RateLimiter::pause`]. As a policy the limit of a
    /// key pauses itself if a failure carries a server's hint.
    pub fn pause(&self, key: &(impl KeyRef<K> + ?Sized), time: Duration) {
        self.limiter(key).pause(time);
        let now = self.0.parts.clock.now();
        self.0.events.send(self.name_of(key).as_ref(), now, || ThrottlingEvent::Paused { time });
    }

    /// Ends a running pause of `key` now: see [`RateLimiter::resume`].
    pub fn resume(&self, key: &(impl KeyRef<K> + ?Sized)) {
        let (hash, now, _) = self.0.locate(key);
        let state = self.0.shards.of(hash).lock();
        // A key without a complete limiter has no pause.
        let limiter = state.limiters.find(hash, |(k, _)| key.is(k)).map(|(_, limiter)| limiter.clone());
        drop(state);
        if limiter.is_some_and(|limiter| limiter.turns().resume(now)) {
            let at = Instant::from_nanos(now);
            self.0.events.send(self.name_of(key).as_ref(), at, || ThrottlingEvent::Resumed);
        }
    }

    /// Takes permits, and counts them if the limiter is metered.
    #[inline]
    pub(super) fn take(&self, key: &(impl KeyRef<K> + ?Sized), n: u32) -> Result<Taken, Refusal> {
        let taken = self.take_unmetered(key, n);
        if self.0.parts.is_metered { self.counted(key, n, taken) } else { taken }
    }

    fn counted<T>(&self, key: &(impl KeyRef<K> + ?Sized), n: u32, answer: Result<T, Refusal>) -> Result<T, Refusal> {
        let KeyedParts { hasher, is_metered, .. } = &self.0.parts;
        if *is_metered {
            let mut state = self.0.shards.of(hasher.hash_one(key)).lock();
            state.count(hasher, self.0.most(), key, n, answer.is_ok());
        }
        answer
    }

    #[inline]
    fn take_unmetered(&self, key: &(impl KeyRef<K> + ?Sized), n: u32) -> Result<Taken, Refusal> {
        let this = &*self.0;
        let (hash, now, tier) = this.locate(key);
        let is_strict = this.parts.mode == RateMode::Strict;
        let mut state = this.shards.of(hash).lock();
        if is_strict || !state.limiters.is_empty() {
            let limiter = state.limiters.find(hash, |(k, _)| key.is(k)).map(|(_, limiter)| limiter.clone());
            if is_strict || limiter.is_some() {
                let largest = of(&state.tiers, tier).quota.largest();
                drop(state);
                // A rejected call, and one for zero permits, leave no entry.
                return match limiter {
                    None if n > largest => Err(Refusal::TooLarge),
                    None if n == 0 => Ok(Taken { permits: 0, stamp: now }),
                    limiter => limiter.unwrap_or_else(|| self.limiter(key)).turns().take(n, now),
                };
            }
        }
        let tier = *of(&state.tiers, tier);
        let taken = if let Some((_, tat)) = state.table.find_mut(hash, |(k, _)| key.is(k)) {
            tier.pace.take(*tat, n, now).inspect(|next| *tat = *next)
        } else {
            // Zero permits leave no entry.
            tier.pace.take(0, n, now).inspect(|next| {
                if *next > now {
                    state.remember(&this.parts.hasher, this.most(), (key, hash, *next), now);
                }
            })
        };
        drop(state);
        match taken {
            Ok(stamp) => Ok(Taken { permits: n, stamp }),
            Err(_) if n > tier.quota.largest() => Err(Refusal::TooLarge),
            Err(wait) => Err(Refusal::Wait(wait)),
        }
    }

    pub(super) fn give_back(&self, key: &(impl KeyRef<K> + ?Sized), taken: Taken) {
        let this = &*self.0;
        let (hash, now, tier) = this.locate(key);
        let mut state = this.shards.of(hash).lock();
        if let Some(meter) = &mut state.meter
            && let Some((_, metered)) = meter.find_mut(hash, |(k, _)| key.is(k))
        {
            metered.admitted = metered.admitted.saturating_sub(taken.permits.into());
        }
        let limiter = state.limiters.find(hash, |(k, _)| key.is(k)).map(|(_, limiter)| limiter.clone());
        let interval = of(&state.tiers, tier).pace.interval;
        match limiter {
            Some(limiter) => {
                drop(state);
                limiter.turns().give_back(taken, now);
            }
            // At the stamp the bucket had refilled these permits.
            None if taken.stamp > now => {
                if let Some((_, tat)) = state.table.find_mut(hash, |(k, _)| key.is(k)) {
                    *tat = tat.saturating_sub(interval.saturating_mul(taken.permits.into())).max(now);
                }
            }
            None => {}
        }
    }

    /// Returns the time that one permit would have to wait now. Takes nothing.
    pub(super) fn refusal(&self, key: &(impl KeyRef<K> + ?Sized)) -> Refusal {
        let (hash, now, tier) = self.0.locate(key);
        let state = self.0.shards.of(hash).lock();
        if let Some((_, limiter)) = state.limiters.find(hash, |(k, _)| key.is(k)) {
            let limiter = limiter.clone();
            drop(state);
            return limiter.turns().refusal(1, now);
        }
        let tat = state.table.find(hash, |(k, _)| key.is(k)).map_or(0, |(_, tat)| *tat);
        Refusal::Wait(of(&state.tiers, tier).pace.take(tat, 1, now).err().unwrap_or(0))
    }

    /// Returns the complete limiter of a key, and creates it from the key's arrival time if needed.
    fn limiter(&self, key: &(impl KeyRef<K> + ?Sized)) -> RateLimiter {
        let this = &*self.0;
        let (hash, now, tier) = this.locate(key);
        let mut state = this.shards.of(hash).lock();
        if let Some((_, limiter)) = state.limiters.find(hash, |(k, _)| key.is(k)) {
            return limiter.clone();
        }
        let quota = of(&state.tiers, tier).quota;
        let limiter = RateLimiter::make(
            &this.parts.config_of(quota),
            Common { clock: this.parts.clock.clone(), ..Common::default() },
        );
        if let Ok(entry) = state.table.find_entry(hash, |(k, _)| key.is(k)) {
            limiter.turns().start_at(entry.remove().0.1);
        }
        state.keep(&this.parts.hasher, this.most(), (key, hash, &limiter), now);
        limiter
    }

    #[cold]
    pub(super) fn rejected(&self, key: &(impl KeyRef<K> + ?Sized), refusal: Refusal) -> Rejected {
        let (reason, wait) = match refusal {
            Refusal::TooLarge => (Reason::TooLarge, None),
            Refusal::Wait(wait) => (Reason::RateLimited, Some(wait)),
        };
        let name = self.name_of(key);
        if self.0.events.wanted() {
            let event = || ThrottlingEvent::Rejected { reason, retry_after: wait.map(Duration::from_nanos) };
            self.0.events.send(name.as_ref(), self.0.parts.clock.now(), event);
        }
        Rejected::by_policy(PolicyKind::RateLimit, name.as_ref(), reason, wait)
    }
}

impl<K, S> KeyedParts<K, S> {
    /// Returns a limit of this quota in the mode of all keys.
    pub(super) fn config_of(&self, quota: Quota) -> RateLimitConfig {
        RateLimitConfig { mode: self.mode, ..RateLimitConfig::from(quota) }
    }
}

impl<K: Eq + Hash + Clone, S: BuildHasher> KeyedCore<K, S> {
    pub(super) fn now(&self) -> u64 {
        self.parts.clock.now().as_nanos()
    }

    /// Returns the key's hash, the time, and the index of its quota. Calls foreign code: the caller
    /// must hold no lock.
    #[inline]
    pub(super) fn locate(&self, key: &(impl KeyRef<K> + ?Sized)) -> (u64, u64, usize) {
        let hash = self.parts.hasher.hash_one(key);
        (hash, self.now(), self.tier_of(key))
    }

    #[inline]
    fn tier_of(&self, key: &(impl KeyRef<K> + ?Sized)) -> usize {
        self.parts.tier_of.as_ref().and_then(|tier_of| key.with_key(tier_of)).map_or(0, |tier| tier.saturating_add(1))
    }

    /// Converts the keys of a shard to new quotas, unless a later change was applied before.
    #[cold]
    pub(super) fn change(&self, shard: &Mutex<ShardState<K>>, tiers: &Tiers, change: u64) {
        // Tiers are asked for without the lock. Keys that appear meanwhile are asked for in the
        // next round, of which there are few.
        let mut known: HashTable<(K, usize)> = HashTable::new();
        let hash = |key: &K| self.parts.hasher.hash_one(key);
        for round in 0.. {
            let mut state = shard.lock();
            let is_known = |key: &K| known.find(hash(key), |(k, _)| k == key).is_some();
            let mut unknown = Vec::new();
            if self.parts.tier_of.is_some() {
                let keys = state.table.iter().map(|(key, _)| key).chain(state.limiters.iter().map(|(key, _)| key));
                unknown.extend(keys.filter(|key| !is_known(key)).cloned());
            }
            if unknown.is_empty() || round == MAX_ROUNDS {
                if state.change > change {
                    return;
                }
                let now = self.now();
                let tier = |key: &K| known.find(hash(key), |(k, _)| k == key).map_or(0, |(_, tier)| *tier);
                let before = std::mem::replace(&mut state.tiers, Arc::clone(tiers));
                for (key, tat) in state.table.iter_mut() {
                    let tier = tier(key);
                    *tat = of(tiers, tier).pace.take_over(of(&before, tier).pace, *tat, now);
                }
                state.change = change;
                let limiter = state.limiters.iter().map(|(key, limiter)| (of(tiers, tier(key)).quota, limiter.clone()));
                let limiter: Vec<_> = limiter.collect();
                drop(state);
                // Wakes waiting calls, which is foreign code. The quotas were validated before.
                limiter
                    .into_iter()
                    .for_each(|(quota, limiter)| drop(limiter.reconfigure(limiter.config().with_quota(quota))));
                return;
            }
            drop(state);
            for key in unknown {
                let tier = self.tier_of(&key);
                known.insert_unique(hash(&key), (key, tier), |(key, _)| hash(key));
            }
        }
    }
}

impl<K, S> fmt::Debug for KeyedRateLimiter<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedRateLimiter")
            .field("name", &self.0.parts.name)
            .field("quotas", &self.0.tiers.lock().1.iter().map(|tier| tier.quota).collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}
