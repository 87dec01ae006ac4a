//! A load: the work of a flight, from the lookup in the remote tier to the entry in the local one.
use std::{any::Any, future::Future, hash::Hash, pin::pin, sync::Arc, time::Duration};

use super::{
    CacheAsideEvent as Event, Loaded,
    loaded::ValueSettings,
    local::entry::{Birth, Entry},
    local::table::Stored,
    options::CallOptions,
    remote::background::BackgroundWrite,
    remote::fill::Content,
    remote::lookup::{Claim, LookupPurpose, Remote, RemoteFill, RemoteLookup, RemoteValue},
    remote::shared::{ClaimGuard, Shared},
    state::{Inner, LoadOutcome, LoadResult},
    stats::count,
};
use crate::{
    flight::FlightHandle,
    race::{First, race_pinned},
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

/// The end of a load.
enum Ended<V> {
    Loaded(Option<V>, ValueInfo),
    /// Without a value, after this time.
    Failed(LoadResult<V>, Duration),
}

/// Data about a loaded value.
struct ValueInfo {
    ttl: Duration,
    tags: Vec<String>,
    settings: Option<Box<ValueSettings>>,
    /// Start of its time to live.
    now: Instant,
    age: Duration,
    took: Duration,
    /// `true` if the load took longer than the sliding expiry, so that the entry has expired.
    slid: bool,
    version: Option<Version>,
}

impl ValueInfo {
    fn settings(&self) -> &ValueSettings {
        self.settings.as_deref().unwrap_or(ValueSettings::NONE)
    }
}

impl<K, V> Load<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Asks the remote tier and then the source, and stores the value unless it was superseded.
    // A block, not an `async fn`, which would store the loader twice.
    pub(super) fn run<O: CallOptions>(
        self,
        purpose: LoadPurpose,
        loader: impl Future<Output = LoaderResult<V>>,
        options: O,
    ) -> impl Future<Output = LoadOutcome<V>> {
        async move {
            let inner = &*self.inner;
            let mut claim_guard = None;
            if let Some(shared) = &inner.shared {
                // Calls of the remote tier are boxed, so that a load without one stays small.
                match Box::pin(self.look(inner, shared, purpose, &options)).await {
                    Ok(claimed) => claim_guard = claimed,
                    Err(outcome) => return outcome,
                }
            }
            count(&inner.report.stats.loads);
            let asked = inner.report.now();
            // The timer is created only if the loader is not ready at once.
            let late = async {
                let limit = options.hard_timeout(&inner.config.load());
                match limit {
                    Some(limit) => inner.report.clock.sleep_until(asked + limit).await,
                    None => std::future::pending().await,
                }
            };
            let result = race_pinned(pin!(loader), pin!(late)).await;
            match claim_guard {
                Some(claim_guard) => Box::pin(self.settle_claimed(claim_guard, result, asked, &options)).await,
                None => self.settle(result, asked, &options),
            }
        }
    }

    /// Looks the key up in the remote tier before a load. Returns the claim under which the loaded
    /// value is to be stored there, if any.
    ///
    /// # Errors
    /// The outcome, if there is nothing to load.
    pub(super) async fn look<'a, O: CallOptions>(
        &self,
        inner: &'a Inner<K, V>,
        shared: &'a Shared<K, V>,
        purpose: LoadPurpose,
        options: &O,
    ) -> Result<Option<ClaimGuard<'a, K, V>>, LoadOutcome<V>> {
        let key = self.handle.key();
        let writes = !options.is(|options| options.skip_remote_write);
        let purpose = match purpose {
            LoadPurpose::Refresh(version) if writes => LookupPurpose::Refresh(version),
            LoadPurpose::Refresh(_) => return Ok(None),
            LoadPurpose::Load => {
                // A value that was loaded while the remote tier was unavailable is newer than the one there.
                let takes = !options.is(|options| options.skip_remote_read)
                    && inner.local.peek(key).is_none_or(|entry| entry.rest.version.is_some());
                match (writes, takes) {
                    (true, takes) => LookupPurpose::Load { takes },
                    (false, true) => LookupPurpose::LookUp,
                    (false, false) => return Ok(None),
                }
            }
        };
        match shared.look(&inner.report, key, purpose).await {
            RemoteLookup::Found(found) => Err(self.found(found, options.is(|options| options.skip_local_write))),
            RemoteLookup::Claimed(claim) => Ok(Some(ClaimGuard::new(shared, &inner.report, claim))),
            RemoteLookup::Nothing if purpose == LookupPurpose::LookUp => Ok(None),
            RemoteLookup::Elsewhere | RemoteLookup::Nothing => Err(self.nothing()),
            RemoteLookup::Blocked(_) | RemoteLookup::Without => Ok(None),
        }
    }

    /// Stores the result of a loader that was asked at this time in the local tier, unless it was
    /// superseded.
    pub(super) fn settle<O: CallOptions>(
        &self,
        result: First<LoaderResult<V>, ()>,
        asked: Instant,
        options: &O,
    ) -> LoadOutcome<V> {
        match self.end(result, asked, options) {
            Ended::Loaded(value, known) if known.slid => self.superseded(value, &known.tags),
            Ended::Loaded(value, known) => self.keep(value, known, None),
            Ended::Failed(result, took) => self.failed(result, took),
        }
    }

    /// As [`settle`](Self::settle), and stores it in the remote tier first.
    pub(super) async fn settle_claimed<O: CallOptions>(
        &self,
        claim_guard: ClaimGuard<'_, K, V>,
        result: First<LoaderResult<V>, ()>,
        asked: Instant,
        options: &O,
    ) -> LoadOutcome<V> {
        let inner = &*self.inner;
        match self.end(result, asked, options) {
            Ended::Loaded(value, known) => self.fill(claim_guard, value, known).await,
            Ended::Failed(result, took) => {
                if let Some(remote) = self.remote()
                    && remote
                        .release(&inner.report, &claim_guard.claim, inner.report.now() + claim_guard.claim.left)
                        .await
                {
                    claim_guard.redeemed();
                }
                self.failed(result, took)
            }
        }
    }

    fn end<O: CallOptions>(&self, result: First<LoaderResult<V>, ()>, asked: Instant, options: &O) -> Ended<V> {
        let inner = &*self.inner;
        let now = inner.report.now();
        let took = now - asked;
        let config = inner.config.load();
        let (value, ttl, tags, settings) = match result {
            First::One(Ok(Some(loaded))) => {
                let (value, ttl, tags, settings) = options.apply(loaded).into_parts();
                (Some(value), ttl.unwrap_or(config.ttl), tags, settings)
            }
            First::One(Ok(None)) => (None, options.negative_ttl(&config).unwrap_or_default(), Vec::new(), None),
            First::One(Err(error)) => return Ended::Failed(LoadResult::Failed(error), took),
            First::Other(()) => {
                let limit = options.hard_timeout(&config).unwrap_or_default();
                return Ended::Failed(LoadResult::TimedOut(limit), took);
            }
        };
        let slid = config.sliding.is_some_and(|idle| took >= idle);
        Ended::Loaded(value, ValueInfo { ttl, tags, settings, now, age: Duration::ZERO, took, slid, version: None })
    }

    /// Looks the key up in the remote tier, without asking the source.
    pub(super) async fn look_up(self) -> LoadOutcome<V> {
        let (inner, key) = (&*self.inner, self.handle.key());
        let Some(shared) = &inner.shared else { return self.nothing() };
        match shared.look(&inner.report, key, LookupPurpose::LookUp).await {
            RemoteLookup::Found(found) => self.found(found, false),
            _ => self.nothing(),
        }
    }

    fn found(&self, found: RemoteValue<V>, skips_local: bool) -> LoadOutcome<V> {
        let RemoteValue { value, tags, mut settings, ttl, age, version } = found;
        settings.skip_local_write = skips_local;
        let inner = &*self.inner;
        count(&inner.report.stats.remote_hits);
        let now = inner.report.now();
        // For a version that was seen before, the age is known without wall clocks.
        let before = inner.local.peek(self.handle.key()).filter(|entry| entry.rest.version == Some(version));
        let (age, took) = before.map_or((age, Duration::ZERO), |entry| (entry.age(now), entry.rest.ahead.took()));
        let version = Some(version);
        let settings = (settings != *ValueSettings::NONE).then(|| Box::new(settings));
        self.keep(value, ValueInfo { ttl, tags, settings, now, age, took, slid: false, version }, None)
    }

    /// Stores a loaded value, first in the remote tier and then in the local one.
    async fn fill(&self, claim_guard: ClaimGuard<'_, K, V>, value: Option<V>, mut known: ValueInfo) -> LoadOutcome<V> {
        if known.slid {
            return self.superseded(value, &known.tags);
        }
        if let Some(shared) = &self.inner.shared
            && let Some(remote) = &shared.remote
        {
            if let Some(write) = self.begin_in_background(shared, &known) {
                return self.fill_later(write, claim_guard.into_claim(), value, known);
            }
            match self.fill_remote(remote, claim_guard, value.as_ref(), &known).await {
                Ok(version) => known.version = version,
                Err(Superseded) => return self.superseded(value, &known.tags),
            }
        }
        self.keep(value, known, None)
    }

    /// Begins a background write if the value may be written in the background.
    fn begin_in_background(&self, shared: &Shared<K, V>, known: &ValueInfo) -> Option<BackgroundWrite<K, V>> {
        let inner = &self.inner;
        let most = inner.config.now().remote.background_writes;
        let settings = known.settings();
        let stays = !known.ttl.is_zero() && !settings.skip_local_write && !settings.skip_remote_write;
        if most == 0 || !stays || !inner.spawner.is_there() {
            return None;
        }
        // Foreign code (a clone) runs before the write is counted. Later code may panic: the drop of the
        // write ends it.
        let key = self.handle.key().clone();
        let number = shared.background.start(most)?;
        Some(BackgroundWrite {
            inner: inner.clone(),
            key,
            number,
            claim: None,
            value: None,
            ttl: known.ttl,
            tags: known.tags.clone(),
            slots: inner.slots(&known.tags),
            settings: settings.clone(),
            kept: None,
        })
    }

    /// Stores a loaded value in the local tier, and in the remote one in the background.
    fn fill_later(
        &self,
        mut write: BackgroundWrite<K, V>,
        claim: Claim,
        value: Option<V>,
        known: ValueInfo,
    ) -> LoadOutcome<V> {
        write.claim = Some(claim);
        write.value = value.clone();
        let outcome = self.keep(value, known, Some(&mut write.kept));
        self.inner.spawner.spawn(write.run());
        outcome
    }

    /// Stores a loaded value in the remote tier. Returns its version there, if known.
    async fn fill_remote(
        &self,
        remote: &Remote<V>,
        claim_guard: ClaimGuard<'_, K, V>,
        value: Option<&V>,
        known: &ValueInfo,
    ) -> Result<Option<Version>, Superseded> {
        let content = Content { value, ttl: known.ttl, tags: &known.tags, settings: known.settings() };
        match remote.fill(&self.inner.report, &claim_guard.claim, content).await {
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
    /// removes the old one. `kept` receives a copy of a stored entry, and the key's epoch.
    fn keep(&self, value: Option<V>, known: ValueInfo, kept: Option<&mut Option<(Entry<V>, u64)>>) -> LoadOutcome<V> {
        let (inner, key) = (&*self.inner, self.handle.key());
        let (slots, settings) = (inner.slots(&known.tags), known.settings());
        let birth = Birth {
            born: self.born,
            ttl: known.ttl,
            local: inner.local_ttl(),
            age: known.age,
            took: known.took,
            version: known.version,
            tags: slots.clone(),
            names: &known.tags,
            settings,
            // Foreign code (clones, the weigher) runs before the lock is taken.
            weight: inner.weight(key, value.as_ref()),
        };
        let stays = !known.ttl.is_zero() && !settings.skip_local_write;
        let entry = stays.then(|| inner.entry(value.clone(), birth, known.now));
        let copy = kept.map(|kept| (kept, entry.clone()));
        let mut stored = entry.map(|entry| (key.clone(), Stored::from(entry)));
        let left = self.handle.finish(|current| {
            // The guard against stale stores: no load that began before an invalidation stores after it.
            (current && !inner.tags.invalidated_since(self.born, &slots)).then(|| match stored.take() {
                Some((own, stored)) => {
                    if let Some((kept, copy)) = copy {
                        let epoch = inner.shared.as_ref().map_or(0, |shared| shared.epochs.now(key));
                        *kept = copy.map(|entry| (entry, epoch));
                    }
                    inner.local.insert(own, key, stored)
                }
                None => inner.local.remove(key),
            })
        });
        match left {
            Some(left) => inner.clear_away(left),
            None => self.report_superseded(),
        }
        LoadOutcome { result: value.map_or(LoadResult::Absent, LoadResult::Value), born: self.born, tags: slots }
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
    fn failed(&self, result: LoadResult<V>, took: Duration) -> LoadOutcome<V> {
        let (inner, key) = (&*self.inner, self.handle.key());
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
        let timed_out = matches!(result, LoadResult::TimedOut(_));
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
