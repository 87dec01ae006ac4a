//! Single flight: one piece of work per key at a time, whose result goes to all callers of that
//! key. It is shared by the patterns above.
//!
//! A *flight* is the work in progress for one key, and a [`Seat`] is a caller's place in it. No
//! task is spawned: the work is polled by one of its callers, the *driver*. If the driver is
//! dropped, another caller is woken to continue. The others are polled twice, on arrival and when
//! the result is there. A driver whose task is no longer polled can be replaced: see
//! [`Seat::take_over`].
//!
//! Locks are taken in one order: a shard of the table, then a flight's state. Neither is held while
//! foreign code runs: the work is taken out to be polled, and dropped outside.
//
// `closed` of a flight is stored under the lock of the flight's shard, together with the removal from the
// table, and it is never reset. The driver loads it without that lock, only to skip `close`:
//
// - If it reads `true`, the flight is being removed by a thread that holds the lock, and nothing else is
//   concluded from it.
// - If it reads `false`, `close` takes the lock and looks into the table, which decides.
//
// So a stale value costs a lock and nothing else, and `Relaxed` suffices.
//
// `polled_by` of a flight is the mark of the thread that polls the work, or zero. A thread only asks whether
// it is its own mark, which it has stored itself, so `Relaxed` suffices.
mod seat;
#[cfg(all(test, not(steadfast_loom)))]
mod tests;

pub(crate) use seat::Seat;

use std::{
    any::TypeId,
    borrow::Borrow,
    collections::BTreeMap,
    hash::{BuildHasher, Hash, RandomState},
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    task::Waker,
};

use futures_util::future::BoxFuture;
use hashbrown::{HashTable, hash_table::Entry};

use crate::{
    sharded::Sharded,
    spawn::Spawner,
    sync::{Mutex, MutexGuard},
};

/// A callback that takes over a flight without callers.
pub(crate) type Unattended<K, T> = Arc<dyn Fn(Seat<K, T>) + Send + Sync>;

/// The flights of all keys. A clone shares the table.
pub(crate) struct Flights<K: Hash + Eq, T>(Arc<Table<K, T>>);

struct Table<K: Hash + Eq, T> {
    shards: Sharded<Shard<K, T>>,
    hasher: RandomState,
    /// If it is not set, a flight without callers is dropped.
    unattended: Option<Unattended<K, T>>,
}

/// The flights that can be joined. Bounded by the number of flights in progress.
type Shard<K, T> = HashTable<Arc<Flight<K, T>>>;

/// The work in progress for a key.
pub(crate) struct Flight<K: Hash + Eq, T> {
    flights: Flights<K, T>,
    key: K,
    hash: u64,
    /// Type of the work. After a panic, callers compare it with the type of their own work.
    work_type: TypeId,
    /// `true` once the flight can no longer be joined. See the header for its ordering.
    closed: AtomicBool,
    /// Mark of the thread that is polling the work. See the header for its ordering.
    polled_by: AtomicUsize,
    state: Mutex<FlightState<T>>,
}

struct FlightState<T> {
    phase: Phase<T>,
    /// The work. It is absent before it is set, while its leader has it, and while it is polled.
    work: Option<BoxFuture<'static, T>>,
    /// The seat whose task the work wakes. If there is none, the next seat that is polled becomes
    /// it.
    driver: Option<u64>,
    /// Waker of the driver's task, once the work has been pending there.
    driver_waker: Option<Waker>,
    /// Number of polls after which the work was pending. A stalled driver does not raise it.
    polls: u64,
    /// Number of current seats.
    seats: usize,
    seated: u64,
    /// Wakers of the seats that do not drive, in order of arrival. Most flights have one caller,
    /// and never make the map.
    waiting: Option<BTreeMap<u64, Waker>>,
    /// `true` if a background task holds a seat.
    in_background: bool,
}

enum Phase<T> {
    Under,
    Done(Arc<T>),
    /// The work panicked, no seat is left, or the last seat took the result.
    Lost,
}

/// The result of a flight: moved to the only seat, or shared by several.
pub(crate) enum FlightResult<T> {
    Own(T),
    Shared(Arc<T>),
}

impl<T> Deref for FlightResult<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self {
            Self::Own(result) => result,
            Self::Shared(result) => result,
        }
    }
}

impl<T: Clone> FlightResult<T> {
    /// Returns the result, cloned if other seats share it.
    pub(crate) fn into_inner(self) -> T {
        match self {
            Self::Own(result) => result,
            Self::Shared(result) => Arc::unwrap_or_clone(result),
        }
    }
}

/// The result of joining a key's flight.
pub(crate) enum JoinOrLead<K: Hash + Eq, T> {
    /// A flight was in progress; this is a seat in it.
    Joined(Seat<K, T>),
    /// A new flight was created; its work must be set.
    Leads(Lead<K, T>),
}

/// The obligation to set the work of a new flight. If it is dropped, the flight is lost, and
/// callers that have joined meanwhile try again.
pub(crate) struct Lead<K: Hash + Eq, T>(Seat<K, T>);

/// A flight, as seen by its own work.
pub(crate) struct FlightHandle<K: Hash + Eq, T>(Arc<Flight<K, T>>);

impl<K: Hash + Eq, T> Clone for Flights<K, T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K: Hash + Eq, T> Flights<K, T> {
    /// Creates an empty table. Flights without callers go to `unattended`, or else are dropped.
    pub(crate) fn new(unattended: Option<Unattended<K, T>>) -> Self {
        Self(Arc::new(Table { shards: Sharded::new(HashTable::new), hasher: RandomState::new(), unattended }))
    }

    /// Creates an empty table whose flights without callers are finished by `spawner`.
    pub(crate) fn finishing(spawner: Spawner) -> Self
    where
        K: Send + Sync + 'static,
        T: Send + Sync + 'static,
    {
        Self::new(Some(Arc::new(move |seat: Seat<K, T>| spawner.spawn(async move { drop(seat.await) }))))
    }

    /// Joins the flight of this key, or creates one.
    pub(crate) fn join_or_lead<Q>(&self, key: &Q) -> JoinOrLead<K, T>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let Ok(joined) = self.join_or_lead_unless(key, TypeId::of::<()>(), || None::<std::convert::Infallible>);
        joined
    }

    /// Joins the flight of this key. If there is none, calls `answer` under the shard's lock, and
    /// creates a flight, for work of this type, only if that returns `None`.
    ///
    /// # Errors
    /// The returned answer.
    pub(crate) fn join_or_lead_unless<Q, A>(
        &self,
        key: &Q,
        work_type: TypeId,
        answer: impl FnOnce() -> Option<A>,
    ) -> Result<JoinOrLead<K, T>, A>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let hash = self.0.hasher.hash_one(key);
        let mut shard = self.shard(hash);
        let is_it = |flight: &Arc<Flight<K, T>>| flight.key.borrow() == key;
        match shard.entry(hash, is_it, |flight| flight.hash) {
            Entry::Occupied(found) => Ok(JoinOrLead::Joined(Seat::join(found.get().clone()))),
            Entry::Vacant(place) => {
                if let Some(answer) = answer() {
                    return Err(answer);
                }
                let (flights, key) = (self.clone(), key.to_owned());
                // Built in its place on the heap: `Arc::new` would copy it there.
                let flight = Arc::new_cyclic(|_| Flight {
                    flights,
                    key,
                    hash,
                    work_type,
                    closed: AtomicBool::new(false),
                    polled_by: AtomicUsize::new(0),
                    state: Mutex::new(FlightState::with_leader()),
                });
                place.insert(flight.clone());
                Ok(JoinOrLead::Leads(Lead(Seat::first(flight))))
            }
        }
    }

    /// Detaches the key's flight from later callers and calls `then`, both under the shard's lock.
    /// The flight continues for callers that are in it already.
    pub(crate) fn supersede<Q, R>(&self, key: &Q, then: impl FnOnce() -> R) -> R
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.0.hasher.hash_one(key);
        let mut shard = self.shard(hash);
        let cut = shard.find_entry(hash, |flight| flight.key.borrow() == key).ok().map(|found| found.remove().0);
        let result = then();
        drop(shard);
        // This is never the last reference, as a flight without seats is in no table. But dropping a key may
        // run foreign code, so it happens outside the lock.
        drop(cut);
        result
    }

    /// Calls `then` under the shard's lock, so that no flight of the key begins, ends or is
    /// superseded meanwhile.
    pub(crate) fn between<Q, R>(&self, key: &Q, then: impl FnOnce() -> R) -> R
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let _shard = self.shard(self.0.hasher.hash_one(key));
        then()
    }

    /// Calls `then` under the shard's lock if no flight of the key is in progress.
    pub(crate) fn if_idle<Q, R>(&self, key: &Q, then: impl FnOnce() -> R) -> Option<R>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.0.hasher.hash_one(key);
        let shard = self.shard(hash);
        shard.find(hash, |flight| flight.key.borrow() == key).is_none().then(then)
    }

    /// Detaches all flights, as [`supersede`](Self::supersede) does one.
    pub(crate) fn supersede_all(&self) {
        for shard in self.0.shards.iter() {
            let cut = std::mem::take(&mut *shard.lock());
            drop(cut);
        }
    }

    /// Returns the number of flights that can be joined.
    pub(crate) fn len(&self) -> usize {
        self.0.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard<K, T>> {
        self.0.shards.of(hash).lock()
    }
}

impl<K: Hash + Eq, T> Flight<K, T> {
    fn shard(&self) -> MutexGuard<'_, Shard<K, T>> {
        self.flights.shard(self.hash)
    }

    /// Removes the flight from the table. Returns `true` if it could be joined until now.
    fn close(self: &Arc<Self>, shard: &mut Shard<K, T>) -> bool {
        match shard.find_entry(self.hash, |found| Arc::ptr_eq(found, self)) {
            Ok(found) => {
                self.closed.store(true, Relaxed);
                // A seat or a handle still holds the flight, so no foreign code runs here.
                drop(found.remove());
                true
            }
            Err(_) => false,
        }
    }
}

impl<K: Hash + Eq, T> Lead<K, T> {
    /// Returns the handle by which the work can end its flight.
    pub(crate) fn handle(&self) -> FlightHandle<K, T> {
        FlightHandle(self.0.flight.clone())
    }

    /// Sets the work and returns the caller's seat.
    pub(crate) fn start(self, work: BoxFuture<'static, T>) -> Seat<K, T> {
        self.0.flight.state.lock().work = Some(work);
        self.0
    }

    /// As [`start`](Self::start), for a seat that is polled at once: other callers cannot take the
    /// work over before that, and no lock is taken for it.
    pub(crate) fn start_here(self, work: BoxFuture<'static, T>) -> Seat<K, T> {
        self.0.with_work(work)
    }
}

impl<K: Hash + Eq, T> FlightHandle<K, T> {
    /// Ends the flight and calls `then`, both under the shard's lock. `then` receives `true` if the
    /// flight could be joined until now, so it was not superseded. The work calls this as its last
    /// act.
    pub(crate) fn finish<R>(&self, then: impl FnOnce(bool) -> R) -> R {
        let mut shard = self.0.shard();
        let was_current = self.0.close(&mut shard);
        then(was_current)
    }

    /// Returns the key.
    pub(crate) fn key(&self) -> &K {
        &self.0.key
    }
}

impl<T> FlightState<T> {
    /// Creates the state of a new flight, whose creator has seat 1 and drives.
    const fn with_leader() -> Self {
        Self {
            phase: Phase::Under,
            work: None,
            driver: Some(1),
            driver_waker: None,
            polls: 0,
            seats: 1,
            seated: 1,
            waiting: None,
            in_background: false,
        }
    }
}
