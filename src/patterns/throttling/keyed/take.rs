//! How a key of a keyed rate limiter takes its permits: from its number, or from a whole limiter where it has one.
use std::{
    fmt,
    hash::{BuildHasher, Hash},
    sync::Arc,
    time::Duration,
};

use hashbrown::HashTable;

use super::{
    KeyedRateLimiter,
    limiter::{Inner, Parts, ROUNDS, SHARDS},
    shard::{Shard, Tier, Tiers, of},
};
use crate::{
    config::ConfigError,
    outcome::{PolicyKind, Reason, Rejected},
    throttling::{
        Quota, RateLimitConfig, RateLimiter, RateMode, ThrottlingEvent,
        rate::{
            gcra::Pace,
            turns::{Refusal, Taken},
        },
    },
    time::{Instant, nanos},
};

impl<K: Eq + Hash + Clone, S: BuildHasher> KeyedRateLimiter<K, S> {
    /// Waits for a permit of this key, in order of arrival.
    ///
    /// # Errors
    /// Never while the limiter lives: one permit is never too many.
    ///
    /// # Cancel safety
    /// Dropped while it waits, it gives its place back: whoever came later moves up.
    pub async fn acquire(&self, key: &K) -> Result<(), Rejected> {
        self.acquire_n(key, 1, Duration::MAX).await
    }

    /// Waits for `n` permits of this key for at most `max_wait`, in order of arrival.
    ///
    /// # Errors
    /// The rejection, at once, if its turn would come later than that: it never waits in vain.
    ///
    /// # Cancel safety
    /// Dropped while it waits, it gives its place back: whoever came later moves up.
    pub async fn acquire_n(&self, key: &K, n: u32, max_wait: Duration) -> Result<(), Rejected> {
        let latest = self.0.parts.clock.now() + max_wait;
        self.acquire_by(key, n, latest).await
    }

    /// Takes a permit, or waits for it within the call's deadline and the limit's patience.
    pub(super) async fn admit(&self, key: &K, deadline: Option<Instant>) -> Result<(), Rejected> {
        let Parts { config, clock, .. } = &self.0.parts;
        if config.max_wait.is_zero() {
            return self.check(key);
        }
        let patience = clock.now() + config.max_wait;
        self.acquire_by(key, 1, deadline.map_or(patience, |deadline| deadline.min(patience))).await
    }

    async fn acquire_by(&self, key: &K, n: u32, latest: Instant) -> Result<(), Rejected> {
        let Parts { clock, .. } = &self.0.parts;
        let now = clock.now();
        let wait = match self.take_quietly(key, n) {
            Ok(taken) => {
                _ = self.counted(key, n, Ok(taken));
                return Ok(());
            }
            Err(Refusal::Wait(wait)) if now + Duration::from_nanos(wait) <= latest => wait,
            Err(refusal) => return self.counted(key, n, Err(refusal)).map_err(|refusal| self.rejected(key, refusal)),
        };
        let event = || ThrottlingEvent::Queued { wait: Some(Duration::from_nanos(wait)) };
        self.0.events.send(self.name_of(key).as_ref(), now, event);
        let waited = self.whole(key).wait_until(n, now, latest).await;
        let answer = waited.map_err(|rejected| match rejected.retry_after() {
            Some(wait) => Refusal::Wait(nanos(wait)),
            None => Refusal::TooLarge,
        });
        self.counted(key, n, answer).map_err(|refusal| self.rejected(key, refusal))
    }

    /// Lets no call of this key pass for so long: see [`RateLimiter::pause`]. As a policy it does so itself when the other side asks for it.
    pub fn pause(&self, key: &K, time: Duration) {
        self.whole(key).pause(time);
        let now = self.0.parts.clock.now();
        self.0.events.send(self.name_of(key).as_ref(), now, || ThrottlingEvent::Paused { time });
    }

    /// Takes permits, and counts that where it is metered.
    #[inline]
    pub(super) fn take(&self, key: &K, n: u32) -> Result<Taken, Refusal> {
        let taken = self.take_quietly(key, n);
        if self.0.parts.is_metered { self.counted(key, n, taken) } else { taken }
    }

    fn counted<T>(&self, key: &K, n: u32, answer: Result<T, Refusal>) -> Result<T, Refusal> {
        let Parts { hasher, is_metered, .. } = &self.0.parts;
        if *is_metered {
            let mut held = self.0.shard(hasher.hash_one(key)).0.lock();
            held.count(hasher, self.0.most(), key, n, answer.is_ok());
        }
        answer
    }

    #[inline]
    fn take_quietly(&self, key: &K, n: u32) -> Result<Taken, Refusal> {
        let this = &*self.0;
        let (hash, now, tier) = this.place(key);
        let is_strict = this.parts.config.mode == RateMode::Strict;
        let mut held = this.shard(hash).0.lock();
        if is_strict || !held.full.is_empty() {
            let whole = held.full.find(hash, |(k, _)| k == key).map(|(_, whole)| whole.clone());
            if is_strict || whole.is_some() {
                let largest = of(&held.tiers, tier).quota.largest();
                drop(held);
                // A refusal, and no permits, leave nothing to remember.
                return match whole {
                    None if n > largest => Err(Refusal::TooLarge),
                    None if n == 0 => Ok(Taken { permits: 0, stamp: now }),
                    whole => whole.unwrap_or_else(|| self.whole(key)).turns().take(n, now),
                };
            }
        }
        let tier = *of(&held.tiers, tier);
        let taken = if let Some((_, tat)) = held.table.find_mut(hash, |(k, _)| k == key) {
            tier.pace.take(*tat, n, now).inspect(|next| *tat = *next)
        } else {
            // No permits leave nothing to remember.
            tier.pace.take(0, n, now).inspect(|next| {
                if *next > now {
                    held.remember(&this.parts.hasher, this.most(), (key, *next), now);
                }
            })
        };
        drop(held);
        match taken {
            Ok(stamp) => Ok(Taken { permits: n, stamp }),
            Err(_) if n > tier.quota.largest() => Err(Refusal::TooLarge),
            Err(wait) => Err(Refusal::Wait(wait)),
        }
    }

    pub(super) fn give_back(&self, key: &K, taken: Taken) {
        let this = &*self.0;
        let (hash, now, tier) = this.place(key);
        let mut held = this.shard(hash).0.lock();
        if let Some(meter) = &mut held.meter
            && let Some((_, metered)) = meter.find_mut(hash, |(k, _)| k == key)
        {
            metered.admitted = metered.admitted.saturating_sub(taken.permits.into());
        }
        let whole = held.full.find(hash, |(k, _)| k == key).map(|(_, whole)| whole.clone());
        let interval = of(&held.tiers, tier).pace.interval;
        match whole {
            Some(whole) => {
                drop(held);
                whole.turns().give_back(taken, now);
            }
            // At the stamp the bucket was full again as far as these permits go.
            None if taken.stamp > now => {
                if let Some((_, tat)) = held.table.find_mut(hash, |(k, _)| k == key) {
                    *tat = tat.saturating_sub(interval.saturating_mul(taken.permits.into())).max(now);
                }
            }
            None => {}
        }
    }

    /// How long a permit would have to wait now. Takes nothing.
    pub(super) fn refusal(&self, key: &K) -> Refusal {
        let (hash, now, tier) = self.0.place(key);
        let held = self.0.shard(hash).0.lock();
        if let Some((_, whole)) = held.full.find(hash, |(k, _)| k == key) {
            let whole = whole.clone();
            drop(held);
            return whole.turns().refusal(1, now);
        }
        let tat = held.table.find(hash, |(k, _)| k == key).map_or(0, |(_, tat)| *tat);
        Refusal::Wait(of(&held.tiers, tier).pace.take(tat, 1, now).err().unwrap_or(0))
    }

    /// The whole limiter of a key, which takes over from its number.
    fn whole(&self, key: &K) -> RateLimiter {
        let this = &*self.0;
        let (hash, now, tier) = this.place(key);
        let mut held = this.shard(hash).0.lock();
        if let Some((_, whole)) = held.full.find(hash, |(k, _)| k == key) {
            return whole.clone();
        }
        let quota = of(&held.tiers, tier).quota;
        let whole = RateLimiter::make(&this.parts.config_of(quota), this.parts.clock.clone(), None);
        if let Ok(entry) = held.table.find_entry(hash, |(k, _)| k == key) {
            whole.turns().start_at(entry.remove().0.1);
        }
        held.keep(&this.parts.hasher, this.most(), (key, &whole), now);
        whole
    }

    #[cold]
    pub(super) fn rejected(&self, key: &K, refusal: Refusal) -> Rejected {
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

impl<K, S> Parts<K, S> {
    /// The settings with this quota.
    pub(super) fn config_of(&self, quota: Quota) -> RateLimitConfig {
        RateLimitConfig { permits: quota.permits, per: quota.per, burst: quota.burst, ..self.config }
    }
}

/// The quotas, if all of them hold to the rules, also those of the mode.
pub(super) fn checked(config: &RateLimitConfig, quota: Quota, tiers: &[Quota]) -> Result<Tiers, ConfigError> {
    let tier = |quota: Quota| {
        RateLimitConfig { permits: quota.permits, per: quota.per, burst: quota.burst, ..*config }.check()?;
        Ok(Tier { quota, pace: Pace::new(&quota) })
    };
    let numbered =
        |(i, quota): (usize, &Quota)| tier(*quota).map_err(|e: ConfigError| e.within(&format!("tiers[{i}]")));
    std::iter::once(tier(quota)).chain(tiers.iter().enumerate().map(numbered)).collect()
}

impl<K: Eq + Hash + Clone, S: BuildHasher> Inner<K, S> {
    pub(super) fn now(&self) -> u64 {
        self.parts.clock.now().as_nanos()
    }

    /// How many keys a shard remembers at most.
    fn most(&self) -> usize {
        self.parts.max_keys.div_ceil(SHARDS)
    }

    /// A key's hash, the time, and the place of its quota among all. Calls foreign code: no lock may be held.
    #[inline]
    pub(super) fn place(&self, key: &K) -> (u64, u64, usize) {
        let hash = self.parts.hasher.hash_one(key);
        (hash, self.now(), self.tier_of(key))
    }

    #[inline]
    fn tier_of(&self, key: &K) -> usize {
        self.parts.tier_of.as_ref().and_then(|tier_of| tier_of(key)).map_or(0, |tier| tier.saturating_add(1))
    }

    /// The table takes its place from the low bits and its tag from the top seven: the shard takes bits between.
    #[inline]
    pub(super) fn shard(&self, hash: u64) -> &Shard<K> {
        &self.shards[(hash >> 48) as usize % SHARDS]
    }

    /// Sets the keys of a shard by other quotas, unless still later ones have come before.
    #[cold]
    pub(super) fn change(&self, shard: &Shard<K>, tiers: &Tiers, change: u64) {
        // Which tier a key belongs to is asked without the lock; keys that come meanwhile are asked for in the next round, of which there are few.
        let mut known: HashTable<(K, usize)> = HashTable::new();
        let hash = |key: &K| self.parts.hasher.hash_one(key);
        for round in 0.. {
            let mut held = shard.0.lock();
            let is_known = |key: &K| known.find(hash(key), |(k, _)| k == key).is_some();
            let mut unknown = Vec::new();
            if self.parts.tier_of.is_some() {
                let keys = held.table.iter().map(|(key, _)| key).chain(held.full.iter().map(|(key, _)| key));
                unknown.extend(keys.filter(|key| !is_known(key)).cloned());
            }
            if unknown.is_empty() || round == ROUNDS {
                if held.change > change {
                    return;
                }
                let now = self.now();
                let tier = |key: &K| known.find(hash(key), |(k, _)| k == key).map_or(0, |(_, tier)| *tier);
                let before = std::mem::replace(&mut held.tiers, Arc::clone(tiers));
                for (key, tat) in held.table.iter_mut() {
                    let tier = tier(key);
                    *tat = of(tiers, tier).pace.take_over(of(&before, tier).pace, *tat, now);
                }
                held.change = change;
                let whole = held.full.iter().map(|(key, whole)| (of(tiers, tier(key)).quota, whole.clone()));
                let whole: Vec<_> = whole.collect();
                drop(held);
                // Wakes who waits, which is foreign code. The quotas were checked.
                whole.into_iter().for_each(|(quota, whole)| drop(whole.set_quota(quota)));
                return;
            }
            drop(held);
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
