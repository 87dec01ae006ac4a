//! The primitives of the lock-free rooms: std's, or loom's when a model is checked (`--cfg steadfast_loom`).
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

/// A mutex that a panic elsewhere does not poison: what it guards is put in order before anything foreign runs.
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

/// A value on cache lines of its own, so that who writes it does not take its neighbours from who reads them. Two lines, as
/// processors fetch pairs.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Line<T>(pub(crate) T);
