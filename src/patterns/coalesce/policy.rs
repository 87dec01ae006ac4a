//! The door: who comes first works, who comes meanwhile waits.
use std::{
    borrow::Borrow,
    cell::RefCell,
    fmt,
    future::{Future, poll_fn},
    hash::Hash,
    pin::pin,
    sync::Arc,
};

use crate::{
    flight::{Boarding, Flights, Given, Seat},
    port::BoxFuture,
};

/// One call a key at a time, shared by all who ask for it meanwhile.
///
/// A clone is the same one.
pub struct Coalesce<K: Hash + Eq, T>(Flights<K, T>);

/// The work gave no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Lost {
    /// It panicked while another caller drove it.
    #[error("the shared execution panicked")]
    Panicked,
    /// It asks for its own key: it would wait for itself.
    #[error("the work for a key asks for the same key")]
    OwnKey,
}

thread_local! {
    /// The flights whose work this thread is polling now, the outermost first.
    static POLLED: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Notes a flight as being polled, while it lives.
struct Polling;

impl Polling {
    fn begin(flight: usize) -> Self {
        POLLED.with_borrow_mut(|polled| polled.push(flight));
        Self
    }

    fn is(flight: usize) -> bool {
        POLLED.with_borrow(|polled| polled.contains(&flight))
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        POLLED.with_borrow_mut(Vec::pop);
    }
}

impl<K: Hash + Eq, T> Coalesce<K, T> {
    /// Nothing under way; work that nobody waits for any more is dropped.
    pub fn new() -> Self {
        Self(Flights::new(None))
    }

    /// Nothing under way; work that nobody waits for any more goes to `spawn`, which is to finish it.
    pub fn finishing(spawn: impl Fn(BoxFuture<'static, ()>) + Send + Sync + 'static) -> Self
    where
        K: Send + Sync + 'static,
        T: Send + Sync + 'static,
    {
        let unattended = move |seat: Seat<K, T>| spawn(Box::pin(async move { drop(seat.await) }));
        Self(Flights::new(Some(Arc::new(unattended))))
    }

    /// The result of the work under way for this key, or of `work`, which is called only where none is.
    ///
    /// # Errors
    /// [`Lost::Panicked`] where this caller's work panicked while another drove it (the driver unwinds, and a caller that only waited makes
    /// its own); [`Lost::OwnKey`] where the work under way for this key asks for it. (Seen where it asks in its own task.)
    ///
    /// # Cancel safety
    /// Dropped, it takes nothing from others who wait. The last one drops the work, unless it is [finished](Self::finishing).
    pub async fn run<Q, W, F>(&self, key: &Q, work: W) -> Result<T, Lost>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        W: FnOnce() -> F,
        F: Future<Output = T> + Send + 'static,
        T: Clone,
    {
        loop {
            match self.0.board(key) {
                Boarding::Joined(seat) => {
                    if Polling::is(seat.flight_id()) {
                        return Err(Lost::OwnKey);
                    }
                    if let Some(result) = seat.await {
                        return Ok(result.into_inner());
                    }
                }
                Boarding::Leads(lead) => {
                    let (flight, work) = (lead.flight_id(), work());
                    let seat = lead.depart(Box::pin(async move {
                        let mut work = pin!(work);
                        let result = poll_fn(|task| {
                            let _polling = Polling::begin(flight);
                            work.as_mut().poll(task)
                        });
                        result.await
                    }));
                    return seat.await.map(Given::into_inner).ok_or(Lost::Panicked);
                }
            }
        }
    }

    /// Has the next caller start anew, though work for this key is under way; those who wait for that keep waiting.
    pub fn forget<Q>(&self, key: &Q)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.0.supersede(key, || ());
    }

    /// How many keys have work under way.
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
