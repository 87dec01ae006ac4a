//! A get that finds nothing to serve: it begins or joins a load, and waits for it.
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
    entry::Entry,
    inner::{Landed, What},
    load::{For, LoaderResult},
    stats::count,
    wait::{Wait, Waited},
};
use crate::{
    call::Cold,
    flight::{Boarding, Seat},
};

/// The result of a get. It has no value only where that may be.
pub(super) type Answer<V, E> = Result<Option<V>, LoadError<E>>;

/// A get for which there is nothing to serve.
pub(super) struct Miss<L, V> {
    /// Here until it leads.
    pub(super) loader: Option<L>,
    /// To be served if the load fails.
    pub(super) stale: Option<Box<Entry<V>>>,
    pub(super) may_be_absent: bool,
}

/// A seat in a flight, and whether it leads.
type Boarded<K, V> = (Seat<K, Landed<V>>, bool);

/// A miss after the first poll of its load.
enum Begun<K: Hash + Eq, L, V, E> {
    Ended(Answer<V, E>),
    /// Without a seat it asks anew.
    Waits(Miss<L, V>, Wait, Option<Boarded<K, V>>),
}

impl<K, V> CacheAside<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Loads, or waits for a load. A load that is ready at once is waited for in place; only one that is not costs a box for the wait.
    pub(super) async fn ask<Q, L, F, E>(&self, key: &Q, miss: Miss<L, V>) -> Result<Option<V>, LoadError<E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        L: FnOnce() -> F,
        F: Future<Output = LoaderResult<V>> + Send + 'static,
        E: Send + Sync + 'static,
    {
        let mut miss = Some(miss);
        let begun = poll_fn(|cx| miss.take().map_or(Poll::Pending, |miss| Poll::Ready(self.begin(key, miss, cx))));
        match Cold::new(begun).await {
            Begun::Ended(result) => result,
            // Boxed, so that a hit moves a small future.
            Begun::Waits(miss, wait, seat) => Cold::new(Box::pin(self.get_slowly(key, miss, wait, seat))).await,
        }
    }

    /// Begins or joins a load, and polls it once.
    fn begin<Q, L, F, E>(&self, key: &Q, mut miss: Miss<L, V>, cx: &mut Context<'_>) -> Begun<K, L, V, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        L: FnOnce() -> F,
        F: Future<Output = LoaderResult<V>> + Send + 'static,
        E: Send + Sync + 'static,
    {
        let inner = &self.0;
        inner.report.stats.misses.increase();
        let wait = Wait::new(inner, inner.config.soft_timeout.filter(|_| miss.stale.is_some()));
        let (mut seat, leads) = match self.board(key, &mut miss) {
            Ok(boarded) => boarded,
            Err(answer) => return Begun::Ended(answer),
        };
        let Poll::Ready(landed) = Pin::new(&mut seat).poll(cx) else {
            return Begun::Waits(miss, wait.after_a_poll(), Some((seat, leads)));
        };
        match self.judge::<_, F, E>(Waited::Landed(landed), &seat, leads, &mut miss) {
            Some(result) => Begun::Ended(result),
            None => Begun::Waits(miss, wait, None),
        }
    }

    /// Joins the flight of the key, or begins one with the loader; says whether it leads. Else the answer.
    fn board<Q, L, F, E>(&self, key: &Q, miss: &mut Miss<L, V>) -> Result<Boarded<K, V>, Answer<V, E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        L: FnOnce() -> F,
        F: Future<Output = LoaderResult<V>> + Send + 'static,
    {
        let inner = &self.0;
        // Between the first look and this one a load may have ended.
        let answer = || inner.peek(key).filter(|(entry, _)| entry.hot.value.is_some() || miss.may_be_absent);
        match inner.flights.board_unless(key, answer) {
            Err((entry, is_stale)) => {
                if is_stale {
                    count(&inner.report.stats.stale_hits);
                }
                Err(Ok(entry.hot.value))
            }
            Ok(Boarding::Joined(seat)) => Ok((seat, false)),
            Ok(Boarding::Leads(lead)) => {
                // A leader has brought its loader, and comes back here never again.
                let Some(loader) = miss.loader.take() else { return Err(Err(LoadError::Panicked)) };
                let lead = lead.of_type(TypeId::of::<F>());
                let load = self.load(&lead);
                Ok((lead.depart(Box::pin(load.run(For::Load, loader()))), true))
            }
        }
    }

    /// Waits for the load that was begun or joined; where it gave nothing, asks anew.
    async fn get_slowly<Q, L, F, E>(
        &self,
        key: &Q,
        mut miss: Miss<L, V>,
        mut wait: Wait,
        mut boarded: Option<Boarded<K, V>>,
    ) -> Answer<V, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        L: FnOnce() -> F,
        F: Future<Output = LoaderResult<V>> + Send + 'static,
        E: Send + Sync + 'static,
    {
        let report = &self.0.report;
        loop {
            let (mut seat, leads) = match boarded.take() {
                Some(boarded) => boarded,
                None => match self.board(key, &mut miss) {
                    Ok(boarded) => boarded,
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
            if let Some(answer) = self.judge::<_, F, E>(waited, &seat, leads, &mut miss) {
                return answer;
            }
        }
    }

    /// Returns the answer that the end of a wait gives, or `None` where the caller has to ask anew.
    fn judge<L, F: 'static, E: Send + Sync + 'static>(
        &self,
        waited: Waited<V>,
        seat: &Seat<K, Landed<V>>,
        leads: bool,
        miss: &mut Miss<L, V>,
    ) -> Option<Answer<V, E>> {
        let inner = &self.0;
        let timed_out = || LoadError::TimedOut { after: inner.config.hard_timeout.unwrap_or_default() };
        let error = match waited {
            Waited::Landed(Some(landed)) if !leads && !inner.is_current(&landed) => return None,
            Waited::Landed(Some(landed)) => match landed.into_what() {
                What::Value(value) => return Some(Ok(Some(value))),
                What::Absent if miss.may_be_absent => return Some(Ok(None)),
                What::Failed(error) => match error.downcast::<E>() {
                    Ok(error) => LoadError::Failed(error),
                    // Another caller's error, of another type: this one asks by itself.
                    Err(_) if !leads => return None,
                    Err(_) => LoadError::Panicked,
                },
                What::TimedOut => timed_out(),
                What::Absent | What::Nothing if !leads => return None,
                What::Absent | What::Nothing => LoadError::Panicked,
            },
            // Another caller's loader, of another type, panicked: this one asks by itself. One of its own type would panic, too.
            Waited::Landed(None) if !leads && !seat.works_as(TypeId::of::<F>()) => return None,
            Waited::Landed(None) => LoadError::Panicked,
            Waited::Soft | Waited::Limit => timed_out(),
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
