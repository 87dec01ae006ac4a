//! The deadline that a time-out adds to a call's surroundings.
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::CallContext;
use crate::time::{Clock, Instant};

/// A deadline that is not computed before somebody needs it, so that a call that is ready at once reads no clock.
///
/// The time counts from the moment when the call first waits, or when something inside first asks for the deadline.
#[derive(Debug)]
pub(crate) struct Deadline<'a> {
    /// Nanoseconds; 0 while nobody has asked.
    at: AtomicU64,
    /// How long the work was given, in nanoseconds: from the first question to this deadline, or to an outer one that is nearer.
    given: AtomicU64,
    clock: &'a Clock,
    /// The time-out in nanoseconds, which may change; read once.
    timeout: &'a AtomicU64,
    outer: CallContext<'a>,
}

impl<'a> Deadline<'a> {
    #[inline]
    pub(crate) const fn new(clock: &'a Clock, timeout: &'a AtomicU64, outer: CallContext<'a>) -> Self {
        Self { at: AtomicU64::new(0), given: AtomicU64::new(u64::MAX), clock, timeout, outer }
    }

    /// The deadline: this one's or an outer one's, whichever is nearer.
    pub(crate) fn at(&self) -> Instant {
        // Relaxed: one task at a time polls a call, and a task's moves between threads are synchronised by its executor.
        match self.at.load(Ordering::Relaxed) {
            0 => {
                let now = self.clock.now();
                let mut given = self.timeout.load(Ordering::Relaxed);
                let mut at = now + Duration::from_nanos(given);
                if let Some(outer) = self.outer.deadline()
                    && outer < at
                {
                    at = outer;
                    given = at.as_nanos().saturating_sub(now.as_nanos());
                }
                self.given.store(given, Ordering::Relaxed);
                self.at.store(at.as_nanos().max(1), Ordering::Relaxed);
                at
            }
            nanos => Instant::from_nanos(nanos),
        }
    }

    /// How long the work was given: the time-out, or what was left of an outer one.
    pub(crate) fn given(&self) -> Duration {
        Duration::from_nanos(self.given.load(Ordering::Relaxed))
    }
}
