//! A load: what a flight does, from the look into the remote tier to the entry in the local one.
use std::{any::Any, future::Future, hash::Hash, sync::Arc, time::Duration};

use super::{
    CacheAsideEvent as Event, Loaded,
    entry::Birth,
    inner::{Inner, Landed, What},
    remote::{Filled, Found, Looked, Purpose, Remote},
    shared::Holding,
    stats::count,
};
use crate::{
    flight::Ticket,
    race::{First, race},
    store::Version,
    time::Instant,
};

/// How a loader ends, its error's type forgotten.
pub(super) type LoaderResult<V> = Result<Option<Loaded<V>>, Arc<dyn Any + Send + Sync>>;

/// What a flight is for.
#[derive(Clone, Copy)]
pub(super) enum For {
    /// Somebody waits for a value.
    Load,
    /// A value is to be refreshed while it is valid; this is the remote tier's version of it.
    Refresh(Option<Version>),
}

/// One load.
pub(super) struct Load<K: Hash + Eq, V> {
    pub(super) inner: Arc<Inner<K, V>>,
    pub(super) ticket: Ticket<K, Landed<V>>,
    /// The number of the sequence before anything was asked.
    pub(super) born: u64,
}

/// The remote tier holds a newer generation.
struct Overtaken;

/// What is known of a value, beside itself.
struct Known<'a> {
    ttl: Duration,
    tags: &'a [String],
    /// When its times begin, and the time since its load then.
    now: Instant,
    age: Duration,
    took: Duration,
    version: Option<Version>,
}

impl<K: Hash + Eq + Clone, V: Clone> Load<K, V> {
    /// Asks the remote tier, then the source; stores what comes, unless it was overtaken.
    pub(super) async fn run(self, purpose: For, loader: impl Future<Output = LoaderResult<V>>) -> Landed<V> {
        let (inner, key) = (&*self.inner, self.ticket.key());
        let mut holding = None;
        if let Some(shared) = &inner.shared {
            let purpose = match purpose {
                For::Refresh(version) => Purpose::Refresh(version),
                // What was loaded here while the remote tier was away is newer than what it held before.
                For::Load => {
                    Purpose::Load { takes: inner.local.peek(key).is_none_or(|entry| entry.rest.version.is_some()) }
                }
            };
            // All that asks a remote tier is boxed: a load without one stays small.
            match Box::pin(shared.look(&inner.report, key, purpose)).await {
                Looked::Found(found) => return self.found(found),
                Looked::Claimed(claim) => holding = Some(Holding::new(shared, &inner.report, claim)),
                Looked::Elsewhere | Looked::Nothing => return self.nothing(),
                Looked::Without => {}
            }
        }
        count(&inner.report.stats.loads);
        let asked = inner.report.now();
        let result = match inner.config.hard_timeout {
            // The timer is made where it is waited for, not for a loader that is ready.
            Some(limit) => race(loader, async { inner.report.clock.sleep_until(asked + limit).await }).await,
            None => First::One(loader.await),
        };
        let loaded = inner.report.now();
        let took = loaded - asked;
        let known = Known { ttl: Duration::ZERO, tags: &[], now: loaded, age: Duration::ZERO, took, version: None };
        match result {
            First::One(Ok(Some(Loaded { value, ttl, tags }))) => {
                let known = Known { ttl: ttl.unwrap_or(inner.config.ttl), tags: &tags, ..known };
                self.fill(holding, Some(value), known).await
            }
            First::One(Ok(None)) => {
                let known = Known { ttl: inner.config.negative_ttl.unwrap_or_default(), ..known };
                self.fill(holding, None, known).await
            }
            First::One(Err(error)) => self.failed(holding, What::Failed(error), took).await,
            First::Other(()) => self.failed(holding, What::TimedOut, took).await,
        }
    }

    /// Looks into the remote tier, and asks no source.
    pub(super) async fn look_up(self) -> Landed<V> {
        let (inner, key) = (&*self.inner, self.ticket.key());
        let Some(shared) = &inner.shared else { return self.nothing() };
        match shared.look(&inner.report, key, Purpose::LookUp).await {
            Looked::Found(found) => self.found(found),
            _ => self.nothing(),
        }
    }

    fn found(&self, found: Found<V>) -> Landed<V> {
        let Found { value, tags, ttl, age, version } = found;
        let inner = &*self.inner;
        count(&inner.report.stats.remote_hits);
        let now = inner.report.now();
        // Seen before, its age is known without the wall clocks.
        let before = inner.local.peek(self.ticket.key()).filter(|entry| entry.rest.version == Some(version));
        let (age, took) = before.map_or((age, Duration::ZERO), |entry| (entry.age(now), entry.rest.took));
        self.keep(value, Known { ttl, tags: &tags, now, age, took, version: Some(version) })
    }

    /// Stores what the source gave: in the remote tier first, then here.
    async fn fill(&self, holding: Option<Holding<'_, K, V>>, value: Option<V>, mut known: Known<'_>) -> Landed<V> {
        if self.slid(&known) {
            return self.overtaken(value, known.tags);
        }
        if let (Some(remote), Some(holding)) = (self.remote(), holding) {
            match Box::pin(self.fill_remote(remote, holding, value.as_ref(), &known)).await {
                Ok(version) => known.version = version,
                Err(Overtaken) => return self.overtaken(value, known.tags),
            }
        }
        self.keep(value, known)
    }

    /// Stores it in the remote tier, and gives the version there, if that is known.
    async fn fill_remote(
        &self,
        remote: &Remote<V>,
        holding: Holding<'_, K, V>,
        value: Option<&V>,
        known: &Known<'_>,
    ) -> Result<Option<Version>, Overtaken> {
        match remote.fill(&self.inner.report, &holding.claim, value, known.ttl, known.tags).await {
            Filled::Stored(version) => {
                holding.over();
                return Ok(Some(version));
            }
            Filled::Nothing => holding.over(),
            // It is given back as soon as that can be.
            Filled::Unknown => drop(holding),
            Filled::Superseded { released } => {
                if released {
                    holding.over();
                }
                return Err(Overtaken);
            }
        }
        Ok(None)
    }

    /// Puts it into the local tier, unless it was overtaken; or is not to be kept at all, and then the old one goes, too.
    fn keep(&self, value: Option<V>, known: Known<'_>) -> Landed<V> {
        let (inner, key) = (&*self.inner, self.ticket.key());
        let slots = inner.slots(known.tags);
        let birth = Birth {
            born: self.born,
            ttl: known.ttl,
            local: inner.local_ttl(),
            age: known.age,
            took: known.took,
            version: known.version,
            tags: slots.clone(),
            // What is foreign (clones, the weigher) runs before the lock.
            weight: inner.weight(key, value.as_ref()),
        };
        let mut entry = (!known.ttl.is_zero()).then(|| (key.clone(), inner.entry(value.clone(), birth, known.now)));
        let left = self.ticket.land(|current| {
            // This is the guard: nothing that began before an invalidation is stored after it.
            (current && !inner.tags.overtook(self.born, &slots)).then(|| match entry.take() {
                Some((own, entry)) => inner.local.insert(own, key, entry),
                None => inner.local.remove(key),
            })
        });
        match left {
            Some(left) => inner.clear_away(left),
            None => self.tell_overtaken(),
        }
        self.landed(value.map_or(What::Absent, What::Value), known.tags)
    }

    /// Nobody asked for as long as it took: what slides has expired in between.
    fn slid(&self, known: &Known<'_>) -> bool {
        self.inner.config.sliding.is_some_and(|idle| known.took >= idle)
    }

    /// Its value is for those who wait, and for nobody else.
    fn overtaken(&self, value: Option<V>, tags: &[String]) -> Landed<V> {
        self.ticket.land(|_| ());
        self.tell_overtaken();
        self.landed(value.map_or(What::Absent, What::Value), tags)
    }

    fn tell_overtaken(&self) {
        count(&self.inner.report.stats.superseded);
        self.inner.report.tell(|| Event::Superseded);
    }

    /// Leaves what is there, and the source alone for a while.
    async fn failed(&self, holding: Option<Holding<'_, K, V>>, what: What<V>, took: Duration) -> Landed<V> {
        let (inner, key) = (&*self.inner, self.ticket.key());
        if let (Some(remote), Some(holding)) = (self.remote(), holding)
            && Box::pin(remote.release(&inner.report, &holding.claim, inner.report.now() + holding.claim.left)).await
        {
            holding.over();
        }
        let now = inner.report.now();
        let (mut serves_stale, mut left) = (false, None);
        // (The first look makes the foreign clones.)
        let old = inner.retry_at().and_then(|until| Some((until, key.clone(), inner.local.peek(key)?)));
        self.ticket.land(|current| {
            // The entry may be another by now: it is looked at again, under the lock.
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
        let timed_out = matches!(what, What::TimedOut);
        inner.report.tell(|| Event::LoadFailed { took, timed_out, serves_stale });
        self.landed(what, &[])
    }

    /// Ends without a value.
    fn nothing(&self) -> Landed<V> {
        self.ticket.land(|_| ());
        self.landed(What::Nothing, &[])
    }

    fn landed(&self, what: What<V>, tags: &[String]) -> Landed<V> {
        Landed { what, born: self.born, tags: self.inner.slots(tags) }
    }

    fn remote(&self) -> Option<&Remote<V>> {
        self.inner.shared.as_ref()?.remote.as_ref()
    }
}
