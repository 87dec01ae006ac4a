//! The primitives of the lock-free rooms: std's, or loom's when a model is checked
//! (`--cfg steadfast_loom`).
#[cfg(steadfast_loom)]
pub(crate) use loom::sync::{
    MutexGuard,
    atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering, fence},
};
#[cfg(not(steadfast_loom))]
pub(crate) use std::sync::{
    MutexGuard,
    atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering, fence},
};

#[cfg(steadfast_loom)]
use loom::sync::Condvar as RawCondvar;
#[cfg(steadfast_loom)]
use loom::sync::Mutex as RawMutex;
#[cfg(not(steadfast_loom))]
use std::sync::Condvar as RawCondvar;
#[cfg(not(steadfast_loom))]
use std::sync::Mutex as RawMutex;
use std::{
    fmt,
    sync::{LockResult, PoisonError},
};

/// Returns the guard or value of a lock, also if a task panicked while it held the lock.
pub(crate) fn unpoisoned<G>(locked: LockResult<G>) -> G {
    locked.unwrap_or_else(PoisonError::into_inner)
}

/// A mutex without poisoning: its users restore the invariants of the value before they call
/// foreign code.
pub(crate) struct Mutex<T>(RawMutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(RawMutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        unpoisoned(self.0.lock())
    }

    /// Locks the mutex if no other thread holds it.
    #[allow(dead_code, reason = "used by a backend")]
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Err(std::sync::TryLockError::WouldBlock) => None,
            Err(std::sync::TryLockError::Poisoned(panicked)) => Some(panicked.into_inner()),
            Ok(guard) => Some(guard),
        }
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mutex")
    }
}

/// A condition variable for [`Mutex`].
#[derive(Default)]
pub(crate) struct Condvar(RawCondvar);

impl Condvar {
    #[allow(dead_code, reason = "used by a backend")]
    pub(crate) fn new() -> Self {
        Self(RawCondvar::new())
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    #[allow(dead_code, reason = "used by a backend")]
    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }

    #[allow(dead_code, reason = "used by a backend")]
    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        unpoisoned(self.0.wait(guard))
    }

    pub(crate) fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        limit: std::time::Duration,
    ) -> MutexGuard<'a, T> {
        unpoisoned(self.0.wait_timeout(guard, limit)).0
    }
}

/// A value on cache lines of its own, so that a write does not invalidate its neighbours in other
/// caches. The alignment is two lines, because processors fetch pairs.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Line<T>(pub(crate) T);
