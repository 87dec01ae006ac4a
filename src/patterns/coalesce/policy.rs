//! The public type: the first caller of a key works, later callers wait for its result.
use std::{borrow::Borrow, fmt, future::Future, hash::Hash};

use crate::{
    call::boxed_in_place,
    flight::{FlightResult, Flights, JoinOrLead},
    port::BoxFuture,
    spawn::Spawner,
};

/// Runs one execution per key at a time and shares its result with all callers of that key.
///
/// A clone shares the executions.
pub struct Coalesce<K: Hash + Eq, T>(Flights<K, T>);

/// The error of an execution that gave no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Lost {
    /// The work panicked while another caller drove it.
    #[error("the shared execution panicked")]
    Panicked,
    /// The work asks for its own key, so it would wait for itself.
    #[error("the work for a key asks for the same key")]
    OwnKey,
}

impl<K: Hash + Eq, T> Coalesce<K, T> {
    /// Creates a coalescer that drops work when no caller waits for it any more.
    pub fn new() -> Self {
        Self(Flights::new(None))
    }

    /// Creates a coalescer that passes work to `spawn` when no caller waits for it any more;
    /// `spawn` should run it to its end.
    pub fn finishing(spawn: impl Fn(BoxFuture<'static, ()>) + Send + Sync + 'static) -> Self
    where
        K: Send + Sync + 'static,
        T: Send + Sync + 'static,
    {
        Self(Flights::finishing(Spawner::own(spawn)))
    }

    /// Returns the result of the running work for this key. If there is none, calls `work` and runs
    /// it.
    ///
    /// # Errors
    /// - [`Lost::Panicked`] if this caller's work panicked while another caller drove it. (The
    ///   driver itself unwinds, and a caller that only waited starts its own work.)
    /// - [`Lost::OwnKey`] if the running work for this key asks for the key itself. (It is detected
    ///   within the work's own task.)
    ///
    /// # Cancel safety
    /// If the future is dropped, the other callers lose nothing. The last one drops the work,
    /// unless it is [finished](Self::finishing) in the background.
    pub async fn run<Q, W, F>(&self, key: &Q, work: W) -> Result<T, Lost>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        W: FnOnce() -> F,
        F: Future<Output = T> + Send + 'static,
        T: Clone,
    {
        loop {
            match self.0.join_or_lead(key) {
                JoinOrLead::Joined(seat) => {
                    if seat.is_own() {
                        return Err(Lost::OwnKey);
                    }
                    if let Some(result) = seat.await {
                        return Ok(result.into_inner());
                    }
                }
                JoinOrLead::Leads(lead) => {
                    let seat = lead.start_here(boxed_in_place(work));
                    return seat.await.map(FlightResult::into_inner).ok_or(Lost::Panicked);
                }
            }
        }
    }

    /// Detaches the running work for this key, so that the next caller starts a new execution.
    /// Callers that already wait keep waiting for the old one.
    pub fn forget<Q>(&self, key: &Q)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.0.supersede(key, || ());
    }

    /// Returns the number of keys with running work.
    pub fn under_way(&self) -> usize {
        self.0.len()
    }
}

impl<K: Hash + Eq, T> Clone for Coalesce<K, T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K: Hash + Eq, T> Default for Coalesce<K, T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Hash + Eq, T> fmt::Debug for Coalesce<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coalesce").field("under_way", &self.under_way()).finish()
    }
}
