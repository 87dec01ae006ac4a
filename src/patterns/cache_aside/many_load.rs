//! One load of several keys, for the flights of all of them.
//!
//! The flights share one future, which whichever of them is polled drives on. So a key's flight
//! continues, with the load of all keys, as long as any of them has a caller.
use std::{
    any::Any,
    collections::HashMap,
    hash::Hash,
    panic::{AssertUnwindSafe, resume_unwind},
    pin::pin,
    sync::Arc,
};

use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};

use super::{
    CacheAside,
    load::{Load, LoadPurpose},
    many::BatchLoader,
    options::CallOptions,
    remote::lookup::SIDE_BY_SIDE,
    remote::shared::ClaimGuard,
    state::{Inner, LoadOutcome, LoadResult},
    stats::count,
};
use crate::{
    flight::{Lead, Seat},
    race::{First, both, race},
    sync::Mutex,
};

/// The outcomes of a load of several keys, each until its flight takes it.
type Outcomes<V> = Arc<Mutex<Vec<Option<LoadOutcome<V>>>>>;

/// The panic of a load of several keys, until the first of its flights continues it.
type Panic = Arc<Mutex<Option<Box<dyn Any + Send>>>>;

/// A key that is to be loaded: its place among all, its load, and its claim in the remote tier.
struct Missing<'a, K: Hash + Eq, V> {
    at: usize,
    load: Load<K, V>,
    claim: Option<ClaimGuard<'a, K, V>>,
}

/// The result of the lookup of one key in the remote tier.
enum Looked<'a, K: Hash + Eq, V> {
    Known(usize, LoadOutcome<V>),
    Missing(Missing<'a, K, V>),
}

/// The arguments of a load of several keys.
pub(super) struct ManyLoad<'a, K: Hash + Eq, V, O> {
    inner: &'a Inner<K, V>,
    loader: &'a BatchLoader<K, V>,
    options: &'a O,
    outcomes: &'a Outcomes<V>,
}

impl<K, V, O> ManyLoad<'_, K, V, O>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    O: CallOptions,
{
    /// Starts one load for these flights, and returns their seats in order.
    pub(super) fn start(
        cache: &CacheAside<K, V>,
        leads: Vec<(Lead<K, LoadOutcome<V>>, LoadPurpose)>,
        loader: &BatchLoader<K, V>,
        options: &O,
    ) -> Vec<Seat<K, LoadOutcome<V>>> {
        let outcomes: Outcomes<V> = Arc::new(Mutex::new(leads.iter().map(|_| None).collect()));
        let loads: Vec<_> = leads.iter().map(|(lead, purpose)| (cache.load(lead), *purpose)).collect();
        let born = cache.0.tags.now();
        let (inner, loader, options, results) = (cache.0.clone(), loader.clone(), options.clone(), outcomes.clone());
        let work = async move {
            let many = ManyLoad { inner: &inner, loader: &loader, options: &options, outcomes: &results };
            many.run(loads).await;
        };
        // A shared future that has panicked panics in each of its flights, so the panic is caught here and
        // continues in one flight alone. The callers of the others try again.
        let work =
            AssertUnwindSafe(work).catch_unwind().map(|ended| ended.map_err(|panic| Arc::new(Mutex::new(Some(panic)))));
        let work = work.boxed().shared();
        let seats = leads.into_iter().enumerate().map(|(at, (lead, _))| {
            let (work, outcomes) = (work.clone(), outcomes.clone());
            lead.start(Box::pin(async move {
                let ended: Result<(), Panic> = work.await;
                let panic = ended.err().and_then(|panic| panic.lock().take());
                if let Some(panic) = panic {
                    resume_unwind(panic);
                }
                let outcome = outcomes.lock()[at].take();
                outcome.unwrap_or_else(|| LoadOutcome { result: LoadResult::Nothing, born, tags: Box::default() })
            }))
        });
        seats.collect()
    }

    /// Looks all keys up in the remote tier, and loads those that it does not have.
    async fn run(&self, loads: Vec<(Load<K, V>, LoadPurpose)>) {
        if self.inner.shared.is_none() {
            let missing = |(at, (load, _))| Missing { at, load, claim: None };
            return self.load(loads.into_iter().enumerate().map(missing).collect()).await;
        }
        let mut queue = loads.into_iter().enumerate();
        let look = |(at, (load, purpose))| self.look(at, load, purpose);
        let mut lookups: FuturesUnordered<_> = queue.by_ref().take(SIDE_BY_SIDE).map(look).collect();
        // Lookups that wait for the load of another process do not hold up the others for long.
        let timeout = self.inner.config.now().remote.timeout;
        let mut patience = pin!(self.inner.report.sleep(timeout));
        let mut missing = Vec::new();
        while let First::One(Some(looked)) = race(lookups.next(), patience.as_mut()).await {
            lookups.extend(queue.next().map(look));
            missing.extend(self.missing(looked));
        }
        let late = async {
            let mut missing = Vec::new();
            while let Some(looked) = lookups.next().await {
                lookups.extend(queue.next().map(look));
                missing.extend(self.missing(looked));
            }
            self.load(missing).await;
        };
        both(self.load(missing), late).await;
    }

    async fn look(&self, at: usize, load: Load<K, V>, purpose: LoadPurpose) -> Looked<'_, K, V> {
        let looked = match &self.inner.shared {
            Some(shared) => load.look(self.inner, shared, purpose, self.options).await,
            None => Ok(None),
        };
        match looked {
            Ok(claim) => Looked::Missing(Missing { at, load, claim }),
            Err(outcome) => Looked::Known(at, outcome),
        }
    }

    /// Returns the key if it is to be loaded, and otherwise records its outcome.
    fn missing<'a>(&self, looked: Looked<'a, K, V>) -> Option<Missing<'a, K, V>> {
        match looked {
            Looked::Missing(missing) => Some(missing),
            Looked::Known(at, outcome) => {
                self.outcomes.lock()[at] = Some(outcome);
                None
            }
        }
    }

    /// Calls the loader for these keys, part by part and all parts concurrently.
    async fn load(&self, missing: Vec<Missing<'_, K, V>>) {
        let mut parts = FuturesUnordered::new();
        let most = self.inner.config.now().max_batch.max(1) as usize;
        let mut missing = missing.into_iter().peekable();
        while missing.peek().is_some() {
            parts.push(self.load_part(missing.by_ref().take(most).collect()));
        }
        while parts.next().await.is_some() {}
    }

    async fn load_part<'a>(&self, part: Vec<Missing<'a, K, V>>) {
        let (inner, report) = (self.inner, &self.inner.report);
        part.iter().for_each(|_| count(&report.stats.loads));
        let asked = report.now();
        let keys = part.iter().map(|missing| missing.load.handle.key().clone()).collect();
        let loader = (self.loader)(keys);
        let limit = self.options.hard_timeout(&inner.config.now());
        let result = match limit {
            Some(limit) => race(loader, async { report.clock.sleep_until(asked + limit).await }).await,
            None => First::One(loader.await),
        };
        let (mut values, failure) = match result {
            First::One(Ok(values)) => (values, None),
            First::One(Err(error)) => (HashMap::new(), Some(First::One(error))),
            First::Other(()) => (HashMap::new(), Some(First::Other(()))),
        };
        let mut queue = part.into_iter();
        let mut settle = |Missing { at, load, claim }: Missing<'a, K, V>| {
            let result = match &failure {
                None => First::One(Ok(values.remove(load.handle.key()))),
                Some(First::One(error)) => First::One(Err(error.clone())),
                Some(First::Other(())) => First::Other(()),
            };
            async move {
                let outcome = match claim {
                    Some(claim) => load.settle_claimed(claim, result, asked, self.options).await,
                    None => load.settle(result, asked, self.options),
                };
                self.outcomes.lock()[at] = Some(outcome);
            }
        };
        let mut settling: FuturesUnordered<_> = queue.by_ref().take(SIDE_BY_SIDE).map(&mut settle).collect();
        while settling.next().await.is_some() {
            settling.extend(queue.next().map(&mut settle));
        }
    }
}
