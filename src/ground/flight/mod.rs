//! One piece of work a key at a time, whose result goes to all who came for it. Below the patterns that need it.
//!
//! A *flight* is the work under way for one key; who came for its result has a [`Seat`]. Nobody spawns anything: the work is polled by one
//! of those who wait, its driver, and when that one leaves another is woken to go on. All others are polled twice, when they come and when
//! the result is there. A driver whose task is no longer polled can be relieved: see [`Seat::take_over`].
//!
//! Locks are taken in one order: a table's shard, then a flight's state. Neither is held while foreign code runs: the work is taken out to be
//! polled, and dropped outside.
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
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::Waker,
};

use futures_util::future::BoxFuture;
use hashbrown::{HashTable, hash_table::Entry};

use crate::sync::{Line, Mutex, MutexGuard};

/// Sees to a flight that everybody left.
pub(crate) type Unattended<K, T> = Arc<dyn Fn(Seat<K, T>) + Send + Sync>;

/// The flights of all keys. A clone is the same table.
pub(crate) struct Flights<K: Hash + Eq, T>(Arc<Table<K, T>>);

struct Table<K: Hash + Eq, T> {
    shards: Shards<K, T>,
    hasher: RandomState,
    /// Without it a flight that everybody left is dropped.
    unattended: Option<Unattended<K, T>>,
}

/// What can still be joined. Bounded by the number of flights under way.
type Shard<K, T> = HashTable<Arc<Flight<K, T>>>;

/// By the key's hash.
type Shards<K, T> = Box<[Line<Mutex<Shard<K, T>>>]>;

/// So many that two threads rarely meet in one; a power of two.
const SHARDS: usize = 64;

/// The work under way for a key.
pub(crate) struct Flight<K, T> {
    key: K,
    hash: u64,
    /// It can be joined no more. Set under its shard's lock; who reads it without asks for nothing else.
    off: AtomicBool,
    state: Mutex<State<T>>,
}

struct State<T> {
    phase: Phase<T>,
    /// Not here before it is set, and while it is polled.
    work: Option<BoxFuture<'static, T>>,
    /// The seat whose task the work wakes. With none, the next seat that is polled is.
    driver: Option<u64>,
    /// Wakes the driver's task, once the work has been pending there.
    driver_waker: Option<Waker>,
    /// The type of the work, for those who ask after a panic if the same would happen to their own.
    work_type: Option<TypeId>,
    /// Counts the polls of the work: a driver that stalls does not raise it.
    polls: u64,
    /// The seats taken, and all that were ever taken.
    seats: usize,
    seated: u64,
    /// Who is not the driver, in the order in which they came.
    waiting: BTreeMap<u64, Waker>,
    /// Somebody polls it in the background, too.
    in_background: bool,
}

enum Phase<T> {
    Under,
    Done(Arc<T>),
    /// It panicked, everybody left, or the one seat that was left took the result.
    Lost,
}

/// The result of a flight: moved to the only seat, shared where there are several.
pub(crate) enum Given<T> {
    Own(T),
    Shared(Arc<T>),
}

impl<T> Deref for Given<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self {
            Self::Own(result) => result,
            Self::Shared(result) => result,
        }
    }
}

impl<T: Clone> Given<T> {
    /// Returns the result, copied where others have it too.
    pub(crate) fn into_inner(self) -> T {
        match self {
            Self::Own(result) => result,
            Self::Shared(result) => Arc::unwrap_or_clone(result),
        }
    }
}

/// What a look for a flight found.
pub(crate) enum Boarding<K: Hash + Eq, T> {
    /// One was under way: this seat is in it.
    Joined(Seat<K, T>),
    /// None was, and now one is; its work has to be said.
    Leads(Lead<K, T>),
}

/// The duty to say what a new flight's work is. Dropped, the flight is lost: those who joined meanwhile look again.
pub(crate) struct Lead<K: Hash + Eq, T>(Seat<K, T>);

/// A flight as its own work sees it.
pub(crate) struct Ticket<K: Hash + Eq, T>(Flights<K, T>, Arc<Flight<K, T>>);

impl<K: Hash + Eq, T> Clone for Flights<K, T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K: Hash + Eq, T> Flights<K, T> {
    /// No flights. What everybody left goes to `unattended`, or else is dropped.
    pub(crate) fn new(unattended: Option<Unattended<K, T>>) -> Self {
        let shards = (0..SHARDS).map(|_| Line(Mutex::new(HashTable::new()))).collect();
        Self(Arc::new(Table { shards, hasher: RandomState::new(), unattended }))
    }

    /// Joins the flight of this key, or begins one.
    pub(crate) fn board<Q>(&self, key: &Q) -> Boarding<K, T>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let Ok(boarding) = self.board_unless(key, || None::<std::convert::Infallible>);
        boarding
    }

    /// The same, unless there is an `answer`. It is asked where no flight is under way, in a moment in which none can begin or end.
    ///
    /// # Errors
    /// The answer.
    pub(crate) fn board_unless<Q, A>(&self, key: &Q, answer: impl FnOnce() -> Option<A>) -> Result<Boarding<K, T>, A>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let hash = self.0.hasher.hash_one(key);
        let mut shard = self.shard(hash);
        let is_it = |flight: &Arc<Flight<K, T>>| flight.key.borrow() == key;
        match shard.entry(hash, is_it, |flight| flight.hash) {
            Entry::Occupied(found) => Ok(Boarding::Joined(Seat::join(self.clone(), found.get().clone()))),
            Entry::Vacant(place) => {
                if let Some(answer) = answer() {
                    return Err(answer);
                }
                let flight = Arc::new(Flight {
                    key: key.to_owned(),
                    hash,
                    off: AtomicBool::new(false),
                    state: Mutex::new(State::led()),
                });
                place.insert(flight.clone());
                Ok(Boarding::Leads(Lead(Seat::first(self.clone(), flight))))
            }
        }
    }

    /// Cuts the key's flight off from all who come from now on, and in the same moment does this. The flight goes on for those who are
    /// in it.
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
        // Never the last of it: a flight that has no seat is in no table. But a key is foreign.
        drop(cut);
        result
    }

    /// Does this in a moment in which no flight of the key begins, ends or is superseded.
    pub(crate) fn between<Q, R>(&self, key: &Q, then: impl FnOnce() -> R) -> R
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let _shard = self.shard(self.0.hasher.hash_one(key));
        then()
    }

    /// Does this if no flight of the key is under way, in a moment in which none can begin.
    pub(crate) fn if_idle<Q, R>(&self, key: &Q, then: impl FnOnce() -> R) -> Option<R>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.0.hasher.hash_one(key);
        let shard = self.shard(hash);
        shard.find(hash, |flight| flight.key.borrow() == key).is_none().then(then)
    }

    /// Cuts all flights off, as [`supersede`](Self::supersede) does one.
    pub(crate) fn supersede_all(&self) {
        for shard in &self.0.shards {
            let cut = std::mem::take(&mut *shard.0.lock());
            drop(cut);
        }
    }

    /// How many can be joined now.
    pub(crate) fn len(&self) -> usize {
        self.0.shards.iter().map(|shard| shard.0.lock().len()).sum()
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard<K, T>> {
        // The table's own buckets go by the low bits and by the highest seven.
        self.0.shards[(hash >> 32) as usize % SHARDS].0.lock()
    }

    /// Whether this flight could still be joined; from now on it cannot.
    fn take_off(&self, shard: &mut Shard<K, T>, flight: &Arc<Flight<K, T>>) -> bool {
        match shard.find_entry(flight.hash, |found| Arc::ptr_eq(found, flight)) {
            Ok(found) => {
                flight.off.store(true, Relaxed);
                // A seat or a ticket holds it yet: nothing foreign is dropped here.
                drop(found.remove());
                true
            }
            Err(_) => false,
        }
    }
}

impl<K: Hash + Eq, T> Lead<K, T> {
    /// What the work can end its flight with.
    pub(crate) fn ticket(&self) -> Ticket<K, T> {
        Ticket(self.0.flights.clone(), self.0.flight.clone())
    }

    /// Names the type of the work that will follow.
    pub(crate) fn of_type(self, work: TypeId) -> Self {
        self.0.flight.state.lock().work_type = Some(work);
        self
    }

    /// Returns the flight's number: see [`Seat::flight_id`].
    pub(crate) fn flight_id(&self) -> usize {
        self.0.flight_id()
    }

    /// Sets the work.
    pub(crate) fn depart(self, work: BoxFuture<'static, T>) -> Seat<K, T> {
        self.0.flight.state.lock().work = Some(work);
        self.0
    }
}

impl<K: Hash + Eq, T> Ticket<K, T> {
    /// Ends the flight, and in the same moment does this, told whether the flight could be joined until now: whether nobody
    /// superseded it. For the work, as its last act.
    pub(crate) fn land<R>(&self, then: impl FnOnce(bool) -> R) -> R {
        let mut shard = self.0.shard(self.1.hash);
        let was_current = self.0.take_off(&mut shard, &self.1);
        then(was_current)
    }

    /// The key.
    pub(crate) fn key(&self) -> &K {
        &self.1.key
    }
}

impl<T> State<T> {
    /// With the leader in seat 1, who drives.
    const fn led() -> Self {
        Self {
            phase: Phase::Under,
            work: None,
            driver: Some(1),
            driver_waker: None,
            work_type: None,
            polls: 0,
            seats: 1,
            seated: 1,
            waiting: BTreeMap::new(),
            in_background: false,
        }
    }
}
