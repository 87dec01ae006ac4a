//! The primitives of the lock-free rooms: std's, or loom's when a model is checked
//! (`--cfg steadfast_loom`).
#[cfg(steadfast_loom)]
pub(crate) use loom::sync::{
    Mutex as RawMutex, MutexGuard,
    atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering},
};
#[cfg(not(steadfast_loom))]
pub(crate) use std::sync::{
    Mutex as RawMutex, MutexGuard,
    atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering},
};

/// A mutex without poisoning: its users restore the invariants of the value before they call
/// foreign code.
pub(crate) struct Mutex<T>(RawMutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(RawMutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

/// A value on cache lines of its own, so that a write does not invalidate its neighbours in other
/// caches. The alignment is two lines, because processors fetch pairs.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Line<T>(pub(crate) T);
