//! A get without a servable value: it starts or joins a load and waits for it.
use std::{
    any::TypeId,
    borrow::Borrow,
    future::{Future, poll_fn},
    hash::Hash,
    pin::Pin,
    task::{Context, Poll},
};

use super::{
    CacheAside, LoadError,
    load::{LoadPurpose, LoaderResult},
    local::entry::Entry,
    options::CallOptions,
    state::{LoadOutcome, LoadResult},
    stats::count,
    wait::{Wait, Waited},
};
use crate::{
    call::{Cold, boxed_in_place},
    flight::{JoinOrLead, Seat},
};

/// The result of a get. It is `Ok(None)` only if the value may be absent.
pub(super) type Answer<V, E> = Result<Option<V>, LoadError<E>>;

/// A get without a servable value.
pub(super) struct Miss<L, V, O> {
    /// The loader, until this get leads a load.
    pub(super) loader: Option<L>,
    /// An expired value, to be served if the load fails.
    pub(super) stale: Option<Box<Entry<V>>>,
    pub(super) may_be_absent: bool,
    pub(super) options: O,
}

/// A seat in a flight, and whether it leads.
pub(super) type JoinedSeat<K, V> = (Seat<K, LoadOutcome<V>>, bool);

/// A miss after the first poll of its load.
enum Begun<K: Hash + Eq, L, V, E, O> {
    Ended(Answer<V, E>),
    /// Without a seat it asks anew.
    Waits(Miss<L, V, O>, Wait, Option<JoinedSeat<K, V>>),
}

impl<K, V> CacheAside<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Loads, or waits for a load in progress. A load that is ready at once is polled in place;
    /// only a pending one costs a box for the wait.
    // A block, not an `async fn`, which would store the miss twice.
    pub(super) fn ask<Q, L, F, E, O>(&self, key: &Q, miss: Miss<L, V, O>) -> impl Future<Output = Answer<V, E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        L: FnOnce() -> F,
        F: Future<Output = LoaderResult<V>> + Send + 'static,
        E: Send + Sync + 'static,
        O: CallOptions,
    {
        let mut miss = Some(miss);
        async move {
            let begun = poll_fn(|cx| miss.take().map_or(Poll::Pending, |miss| Poll::Ready(self.begin(key, miss, cx))));
            match Cold::new(begun).await {
                Begun::Ended(result) => result,
                // Boxed, so that the future of a hit stays small.
                Begun::Waits(miss, wait, seat) => Cold::new(Box::pin(self.get_slowly(key, miss, wait, seat))).await,
            }
        }
    }

    /// Starts or joins a load, and polls it once.
    fn begin<Q, L, F, E, O>(&self, key: &Q, mut miss: Miss<L, V, O>, cx: &mut Context<'_>) -> Begun<K, L, V, E, O>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        L: FnOnce() -> F,
        F: Future<Output = LoaderResult<V>> + Send + 'static,
        E: Send + Sync + 'static,
        O: CallOptions,
    {
        let inner = &self.0;
        inner.report.stats.misses.increase();
        let (mut seat, leads) = match self.join_or_lead(key, &mut miss) {
            Ok(joined) => joined,
            Err(answer) => return Begun::Ended(answer),
        };
        let Poll::Ready(outcome) = Pin::new(&mut seat).poll(cx) else {
            let wait = self.wait(&miss).after_a_poll();
            return Begun::Waits(miss, wait, Some((seat, leads)));
        };
        match self.judge::<_, F, E, _>(Waited::Ended(outcome), &seat, leads, &mut miss) {
            Some(result) => Begun::Ended(result),
            None => {
                let wait = self.wait(&miss);
                Begun::Waits(miss, wait, None)
            }
        }
    }

    /// Returns the wait of a get for its load.
    pub(super) fn wait<L, O: CallOptions>(&self, miss: &Miss<L, V, O>) -> Wait {
        let config = &self.0.config.load();
        let soft = miss.options.soft_timeout(config).filter(|_| miss.stale.is_some());
        Wait::new(&self.0, soft, miss.options.hard_timeout(config))
    }

    /// Joins the key's flight, or starts one with the loader. Returns the seat and whether it
    /// leads.
    ///
    /// # Errors
    /// The answer, if there is one already.
    fn join_or_lead<Q, L, F, E, O>(&self, key: &Q, miss: &mut Miss<L, V, O>) -> Result<JoinedSeat<K, V>, Answer<V, E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        L: FnOnce() -> F,
        F: Future<Output = LoaderResult<V>> + Send + 'static,
        O: CallOptions,
    {
        let inner = &self.0;
        // A load may have ended between the first lookup and this one.
        let reads = !miss.options.is(|options| options.skip_local_read);
        let answer = || inner.peek(key).filter(|(entry, _)| reads && (entry.hot.value.is_some() || miss.may_be_absent));
        match inner.flights.join_or_lead_unless(key, TypeId::of::<F>(), answer) {
            Err((entry, is_stale)) => {
                if is_stale {
                    count(&inner.report.stats.stale_hits);
                }
                Err(Ok(entry.hot.value))
            }
            Ok(JoinOrLead::Joined(seat)) => Ok((seat, false)),
            Ok(JoinOrLead::Leads(lead)) => {
                // A caller that leads has given its loader away, and never gets here again.
                let Some(loader) = miss.loader.take() else { return Err(Err(LoadError::Panicked)) };
                let load = self.load(&lead);
                let work = boxed_in_place(|| load.run(LoadPurpose::Load, loader(), miss.options.clone()));
                Ok((lead.start_here(work), true))
            }
        }
    }

    /// Waits for the load that was started or joined, and tries again if it gave no usable result.
    pub(super) async fn get_slowly<Q, L, F, E, O>(
        &self,
        key: &Q,
        mut miss: Miss<L, V, O>,
        mut wait: Wait,
        mut joined: Option<JoinedSeat<K, V>>,
    ) -> Answer<V, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        L: FnOnce() -> F,
        F: Future<Output = LoaderResult<V>> + Send + 'static,
        E: Send + Sync + 'static,
        O: CallOptions,
    {
        let report = &self.0.report;
        loop {
            let (mut seat, leads) = match joined.take() {
                Some(joined) => joined,
                None => match self.join_or_lead(key, &mut miss) {
                    Ok(joined) => joined,
                    Err(answer) => return answer,
                },
            };
            let mut waited = wait.on(report, &mut seat).await;
            if let (Waited::Soft, Some(stale)) = (&waited, miss.stale.as_deref()) {
                if self.leave_in_background(key, &seat, stale) {
                    count(&report.stats.stale_hits);
                    return Ok(stale.hot.value.clone());
                }
                waited = wait.on(report, &mut seat).await;
            }
            if let Some(answer) = self.judge::<_, F, E, _>(waited, &seat, leads, &mut miss) {
                return answer;
            }
        }
    }

    /// Returns the answer to which the end of a wait leads, or `None` if the caller must try again.
    fn judge<L, F: 'static, E: Send + Sync + 'static, O: CallOptions>(
        &self,
        waited: Waited<V>,
        seat: &Seat<K, LoadOutcome<V>>,
        leads: bool,
        miss: &mut Miss<L, V, O>,
    ) -> Option<Answer<V, E>> {
        let inner = &self.0;
        let timed_out = |after| LoadError::TimedOut { after };
        let error = match waited {
            Waited::Ended(Some(outcome)) if !leads && !inner.is_current(&outcome) => return None,
            Waited::Ended(Some(outcome)) => match outcome.into_result() {
                LoadResult::Value(value) => return Some(Ok(Some(value))),
                LoadResult::Absent if miss.may_be_absent => return Some(Ok(None)),
                LoadResult::Failed(error) => match error.downcast::<E>() {
                    Ok(error) => LoadError::Failed(error),
                    // The load of another caller failed with another error type: load separately.
                    Err(_) if !leads => return None,
                    Err(_) => LoadError::Panicked,
                },
                LoadResult::TimedOut(limit) => timed_out(limit),
                LoadResult::Absent | LoadResult::Nothing if !leads => return None,
                LoadResult::Absent | LoadResult::Nothing => LoadError::Panicked,
            },
            // Another caller's loader, of another type, panicked: load separately. A loader of the same
            // type would panic, too.
            Waited::Ended(None) if !leads && !seat.works_as(TypeId::of::<F>()) => return None,
            Waited::Ended(None) => LoadError::Panicked,
            Waited::Soft | Waited::Limit => {
                timed_out(miss.options.hard_timeout(&inner.config.now()).unwrap_or_default())
            }
        };
        Some(match miss.stale.take() {
            Some(stale) if inner.report.now() < stale.rest.stale_until => {
                count(&inner.report.stats.stale_hits);
                Ok(stale.hot.value)
            }
            _ => Err(error),
        })
    }
}
