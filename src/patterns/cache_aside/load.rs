//! A load: the work of a flight, from the lookup in the remote tier to the entry in the local one.
use std::{any::Any, future::Future, hash::Hash, sync::Arc, time::Duration};

use super::{
    CacheAsideEvent as Event, Loaded,
    local::entry::Birth,
    remote::lookup::{LookupPurpose, RemoteFill, RemoteLookup, RemoteValue},
    remote::shared::ClaimGuard,
    state::{Inner, LoadOutcome, LoadResult, SharedOutcome},
    stats::count,
};
use crate::{
    flight::FlightHandle,
    race::{First, race},
    store::Version,
    time::Instant,
};

/// The result of a loader, with its error type erased.
pub(super) type LoaderResult<V> = Result<Option<Loaded<V>>, Arc<dyn Any + Send + Sync>>;

/// The purpose of a load.
#[derive(Clone, Copy)]
pub(super) enum LoadPurpose {
    /// A caller waits for the value.
    Load,
    /// A valid value is to be refreshed, with this version in the remote tier.
    Refresh(Option<Version>),
}

/// One load.
pub(super) struct Load<K: Hash + Eq, V> {
    pub(super) inner: Arc<Inner<K, V>>,
    pub(super) handle: FlightHandle<K, SharedOutcome<V>>,
    /// Number of the tags' sequence before the remote tier or the source was asked.
    pub(super) born: u64,
}

/// Data about a loaded value.
struct ValueInfo<'a> {
    ttl: Duration,
    tags: &'a [String],
    /// Start of its time to live.
    now: Instant,
    age: Duration,
    took: Duration,
    version: Option<Version>,
}

impl<K: Hash + Eq + Clone, V: Clone> Load<K, V> {
    /// Asks the remote tier and then the source, and stores the value unless it was superseded.
    pub(super) async fn run(
        self,
        purpose: LoadPurpose,
        loader: impl Future<Output = LoaderResult<V>>,
    ) -> SharedOutcome<V> {
        let (inner, key) = (&*self.inner, self.handle.key());
        let mut claim_guard = None;
        if let Some(shared) = &inner.shared {
            let purpose = match purpose {
                LoadPurpose::Refresh(version) => LookupPurpose::Refresh(version),
                // A value that was loaded while the remote tier was unavailable is newer than the one there.
                LoadPurpose::Load => LookupPurpose::Load {
                    takes: inner.local.peek(key).is_none_or(|entry| entry.rest.version.is_some()),
                },
            };
            match shared.look(&inner.report, key, purpose).await {
                RemoteLookup::Found(found) => return self.found(found),
                RemoteLookup::Claimed(claim) => claim_guard = Some(ClaimGuard::new(shared, &inner.report, claim)),
                RemoteLookup::Elsewhere | RemoteLookup::Nothing => return self.nothing(),
                RemoteLookup::Without => {}
            }
        }
        count(&inner.report.stats.loads);
        let asked = inner.report.now();
        let result = match inner.config.hard_timeout {
            // The timer is created only if the loader is not ready at once.
            Some(limit) => race(loader, async { inner.report.clock.sleep_until(asked + limit).await }).await,
            None => First::One(loader.await),
        };
        let loaded = inner.report.now();
        let took = loaded - asked;
        let known = ValueInfo { ttl: Duration::ZERO, tags: &[], now: loaded, age: Duration::ZERO, took, version: None };
        match result {
            First::One(Ok(Some(Loaded { value, ttl, tags }))) => {
                let known = ValueInfo { ttl: ttl.unwrap_or(inner.config.ttl), tags: &tags, ..known };
                self.fill(claim_guard, Some(value), known).await
            }
            First::One(Ok(None)) => {
                let known = ValueInfo { ttl: inner.config.negative_ttl.unwrap_or_default(), ..known };
                self.fill(claim_guard, None, known).await
            }
            First::One(Err(error)) => self.failed(claim_guard, LoadResult::Failed(error), took).await,
            First::Other(()) => self.failed(claim_guard, LoadResult::TimedOut, took).await,
        }
    }

    /// Looks the key up in the remote tier, without asking the source.
    pub(super) async fn look_up(self) -> SharedOutcome<V> {
        let (inner, key) = (&*self.inner, self.handle.key());
        let Some(shared) = &inner.shared else { return self.nothing() };
        match shared.look(&inner.report, key, LookupPurpose::LookUp).await {
            RemoteLookup::Found(found) => self.found(found),
            _ => self.nothing(),
        }
    }

    fn found(&self, found: RemoteValue<V>) -> SharedOutcome<V> {
        let RemoteValue { value, tags, ttl, age, version } = found;
        let inner = &*self.inner;
        count(&inner.report.stats.remote_hits);
        let now = inner.report.now();
        // For a version that was seen before, the age is known without wall clocks.
        let before = inner.local.peek(self.handle.key()).filter(|entry| entry.rest.version == Some(version));
        let (age, took) = before.map_or((age, Duration::ZERO), |entry| (entry.age(now), entry.rest.took));
        self.keep(value, ValueInfo { ttl, tags: &tags, now, age, took, version: Some(version) })
    }

    /// Stores a loaded value, first in the remote tier and then in the local one.
    async fn fill(
        &self,
        claim_guard: Option<ClaimGuard<'_, K, V>>,
        value: Option<V>,
        mut known: ValueInfo<'_>,
    ) -> SharedOutcome<V> {
        let inner = &*self.inner;
        if self.slid(&known) {
            return self.superseded(value, known.tags);
        }
        if let (Some(remote), Some(claim_guard)) = (self.remote(), claim_guard) {
            let filled = remote.fill(&inner.report, &claim_guard.claim, value.as_ref(), known.ttl, known.tags).await;
            match filled {
                RemoteFill::Stored(version) => {
                    claim_guard.redeemed();
                    known.version = Some(version);
                }
                RemoteFill::Nothing => claim_guard.redeemed(),
                // Dropping the guard makes the release of the claim pending.
                RemoteFill::Unknown => drop(claim_guard),
                RemoteFill::Superseded { released } => {
                    if released {
                        claim_guard.redeemed();
                    }
                    return self.superseded(value, known.tags);
                }
            }
        }
        self.keep(value, known)
    }

    /// Stores a value in the local tier unless it was superseded. A value that is not to be kept
    /// removes the old one.
    fn keep(&self, value: Option<V>, known: ValueInfo<'_>) -> SharedOutcome<V> {
        let (inner, key) = (&*self.inner, self.handle.key());
        let slots = inner.slots(known.tags);
        let birth = Birth {
            born: self.born,
            ttl: known.ttl,
            local: inner.local_ttl(),
            age: known.age,
            took: known.took,
            version: known.version,
            tags: slots.clone(),
            // Foreign code (clones, the weigher) runs before the lock is taken.
            weight: inner.weight(key, value.as_ref()),
        };
        let mut entry = (!known.ttl.is_zero()).then(|| (key.clone(), inner.entry(value.clone(), birth, known.now)));
        let left = self.handle.finish(|current| {
            // The guard against stale stores: no load that began before an invalidation stores after it.
            (current && !inner.tags.invalidated_since(self.born, &slots)).then(|| match entry.take() {
                Some((own, entry)) => inner.local.insert(own, key, entry),
                None => inner.local.remove(key),
            })
        });
        match left {
            Some(left) => inner.clear_away(left),
            None => self.report_superseded(),
        }
        self.outcome(value.map_or(LoadResult::Absent, LoadResult::Value), known.tags)
    }

    /// Returns `true` if the load took longer than the sliding expiry, so that the entry has
    /// expired.
    fn slid(&self, known: &ValueInfo<'_>) -> bool {
        self.inner.config.sliding.is_some_and(|idle| known.took >= idle)
    }

    /// Returns the value to current waiters without caching it.
    fn superseded(&self, value: Option<V>, tags: &[String]) -> SharedOutcome<V> {
        self.handle.finish(|_| ());
        self.report_superseded();
        self.outcome(value.map_or(LoadResult::Absent, LoadResult::Value), tags)
    }

    fn report_superseded(&self) {
        count(&self.inner.report.stats.superseded);
        self.inner.report.event(|| Event::Superseded);
    }

    /// Ends with a failure. The existing entry stays, and the source is not asked again for a
    /// while.
    async fn failed(
        &self,
        claim_guard: Option<ClaimGuard<'_, K, V>>,
        result: LoadResult<V>,
        took: Duration,
    ) -> SharedOutcome<V> {
        let (inner, key) = (&*self.inner, self.handle.key());
        if let (Some(remote), Some(claim_guard)) = (self.remote(), claim_guard)
            && remote.release(&inner.report, &claim_guard.claim, inner.report.now() + claim_guard.claim.left).await
        {
            claim_guard.redeemed();
        }
        let now = inner.report.now();
        let (mut serves_stale, mut left) = (false, None);
        // This lookup makes the foreign clones outside the lock.
        let old = inner.retry_at().and_then(|until| Some((until, key.clone(), inner.local.peek(key)?)));
        self.handle.finish(|current| {
            // The entry may have been replaced meanwhile, so it is checked again under the lock.
            if let Some((until, key, old)) = old
                && current
                && inner.local.holds(&key, &old)
            {
                serves_stale = now >= old.rest.fresh_until && now < old.rest.stale_until;
                left = Some(inner.local.mark(key, old.throttled(until)));
            }
        });
        drop(left);
        count(&inner.report.stats.load_failures);
        let timed_out = matches!(result, LoadResult::TimedOut);
        inner.report.event(|| Event::LoadFailed { took, timed_out, serves_stale });
        self.outcome(result, &[])
    }

    /// Ends without a value.
    fn nothing(&self) -> SharedOutcome<V> {
        self.handle.finish(|_| ());
        self.outcome(LoadResult::Nothing, &[])
    }

    fn outcome(&self, result: LoadResult<V>, tags: &[String]) -> SharedOutcome<V> {
        Arc::new(LoadOutcome { result, born: self.born, tags: self.inner.slots(tags) })
    }

    fn remote(&self) -> Option<&super::remote::lookup::Remote<V>> {
        self.inner.shared.as_ref()?.remote.as_ref()
    }
}
