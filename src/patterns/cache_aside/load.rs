//! A load: the work of a flight, from the lookup in the remote tier to the entry in the local one.
use std::{any::Any, future::Future, hash::Hash, sync::Arc, time::Duration};

use super::{
    CacheAsideEvent as Event, Loaded,
    local::entry::Birth,
    remote::lookup::{LookupPurpose, Remote, RemoteFill, RemoteLookup, RemoteValue},
    remote::shared::ClaimGuard,
    state::{Inner, LoadOutcome, LoadResult},
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
    pub(super) handle: FlightHandle<K, LoadOutcome<V>>,
    /// Number of the tags' sequence before the remote tier or the source was asked.
    pub(super) born: u64,
}

/// The error of a fill that an invalidation or a newer value in the remote tier superseded.
struct Superseded;

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
    ) -> LoadOutcome<V> {
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
            // Calls of the remote tier are boxed, so that a load without one stays small.
            match Box::pin(shared.look(&inner.report, key, purpose)).await {
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
    pub(super) async fn look_up(self) -> LoadOutcome<V> {
        let (inner, key) = (&*self.inner, self.handle.key());
        let Some(shared) = &inner.shared else { return self.nothing() };
        match shared.look(&inner.report, key, LookupPurpose::LookUp).await {
            RemoteLookup::Found(found) => self.found(found),
            _ => self.nothing(),
        }
    }

    fn found(&self, found: RemoteValue<V>) -> LoadOutcome<V> {
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
    ) -> LoadOutcome<V> {
        if self.slid(&known) {
            return self.superseded(value, known.tags);
        }
        if let (Some(remote), Some(claim_guard)) = (self.remote(), claim_guard) {
            match Box::pin(self.fill_remote(remote, claim_guard, value.as_ref(), &known)).await {
                Ok(version) => known.version = version,
                Err(Superseded) => return self.superseded(value, known.tags),
            }
        }
        self.keep(value, known)
    }

    /// Stores a loaded value in the remote tier. Returns its version there, if known.
    async fn fill_remote(
        &self,
        remote: &Remote<V>,
        claim_guard: ClaimGuard<'_, K, V>,
        value: Option<&V>,
        known: &ValueInfo<'_>,
    ) -> Result<Option<Version>, Superseded> {
        match remote.fill(&self.inner.report, &claim_guard.claim, value, known.ttl, known.tags).await {
            RemoteFill::Stored(version) => {
                claim_guard.redeemed();
                return Ok(Some(version));
            }
            RemoteFill::Nothing => claim_guard.redeemed(),
            // Dropping the guard makes the release of the claim pending.
            RemoteFill::Unknown => drop(claim_guard),
            RemoteFill::Superseded { released } => {
                if released {
                    claim_guard.redeemed();
                }
                return Err(Superseded);
            }
        }
        Ok(None)
    }

    /// Stores a value in the local tier unless it was superseded. A value that is not to be kept
    /// removes the old one.
    fn keep(&self, value: Option<V>, known: ValueInfo<'_>) -> LoadOutcome<V> {
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
    fn superseded(&self, value: Option<V>, tags: &[String]) -> LoadOutcome<V> {
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
    ) -> LoadOutcome<V> {
        let (inner, key) = (&*self.inner, self.handle.key());
        if let (Some(remote), Some(claim_guard)) = (self.remote(), claim_guard)
            && Box::pin(remote.release(&inner.report, &claim_guard.claim, inner.report.now() + claim_guard.claim.left))
                .await
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
    fn nothing(&self) -> LoadOutcome<V> {
        self.handle.finish(|_| ());
        self.outcome(LoadResult::Nothing, &[])
    }

    fn outcome(&self, result: LoadResult<V>, tags: &[String]) -> LoadOutcome<V> {
        LoadOutcome { result, born: self.born, tags: self.inner.slots(tags) }
    }

    fn remote(&self) -> Option<&Remote<V>> {
        self.inner.shared.as_ref()?.remote.as_ref()
    }
}
