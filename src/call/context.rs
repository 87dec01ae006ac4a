//! What a policy and an operation may know about the call they are part of.
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::time::{Clock, Instant};

/// The surroundings of one attempt: its number, its deadline, whether a retry stands around it.
///
/// It is handed inwards, from policy to policy to operation. To carry it into a pipeline that the operation itself calls,
/// take it with [`Pipeline::call_with`](super::Pipeline::call_with) as an [`AttemptInfo`] and enter the inner pipeline by
/// [`Pipeline::call_within`](super::Pipeline::call_within).
#[derive(Clone, Copy, Debug)]
pub struct CallContext<'a> {
    attempt: u32,
    retried: bool,
    idempotent: bool,
    deadline: Option<&'a Deadline<'a>>,
    fixed: Option<Instant>,
}

impl<'a> CallContext<'a> {
    /// The surroundings of a call that nothing surrounds.
    pub const fn root() -> Self {
        Self { attempt: 1, retried: false, idempotent: true, deadline: None, fixed: None }
    }

    /// The number of the attempt, from 1.
    pub const fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Whether a retry stands around this: then an inner one leaves the attempts to it.
    pub const fn is_retried(&self) -> bool {
        self.retried
    }

    /// Whether running the operation twice is as good as once.
    pub const fn is_idempotent(&self) -> bool {
        self.idempotent
    }

    /// When the call's time is over, if a time-out or a caller's deadline surrounds it. Reads the time-out's clock if that
    /// time-out has not yet started to count.
    pub fn deadline(&self) -> Option<Instant> {
        match (self.deadline.map(Deadline::at), self.fixed) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// The same, as attempt number `n` of a retry.
    #[must_use]
    pub const fn retrying(mut self, n: u32) -> Self {
        self.attempt = n;
        self.retried = true;
        self
    }

    #[must_use]
    pub(crate) const fn idempotent(mut self, is: bool) -> Self {
        self.idempotent = is;
        self
    }

    /// The same, with a nearer deadline around it.
    #[must_use]
    pub(crate) fn until<'b>(self, deadline: &'b Deadline<'b>) -> CallContext<'b>
    where
        'a: 'b,
    {
        CallContext { deadline: Some(deadline), ..self }
    }

    /// What of this an operation may keep: nothing borrowed, the deadline read.
    pub fn info(&self) -> AttemptInfo {
        AttemptInfo { number: self.attempt, retried: self.retried, deadline: self.deadline() }
    }
}

/// What an operation may know about its attempt, free of borrows: hand it to tasks, to inner calls, into a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttemptInfo {
    number: u32,
    retried: bool,
    deadline: Option<Instant>,
}

impl AttemptInfo {
    /// The first attempt of a call with this deadline: for a caller who got one from outside, say in a header.
    pub const fn with_deadline(deadline: Instant) -> Self {
        Self { number: 1, retried: false, deadline: Some(deadline) }
    }

    /// The number of the attempt, from 1.
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// When the call's time is over, by the clock of the policies around it.
    pub const fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// How much of the call's time is left at `now`: for a header such as gRPC's `grpc-timeout`.
    pub fn remaining(&self, now: Instant) -> Option<Duration> {
        self.deadline.map(|at| at - now)
    }

    pub(crate) fn context(&self) -> CallContext<'static> {
        CallContext { attempt: 1, retried: self.retried, idempotent: true, deadline: None, fixed: self.deadline }
    }
}

/// A deadline that is not computed before somebody needs it, so that a call that is ready at once reads no clock.
///
/// The time counts from the moment when the call first waits, or when something inside first asks for the deadline.
#[derive(Debug)]
pub(crate) struct Deadline<'a> {
    /// Nanoseconds; 0 while nobody has asked.
    at: AtomicU64,
    /// Nanoseconds from the first question to the deadline.
    given: AtomicU64,
    clock: &'a Clock,
    timeout: Duration,
    outer: CallContext<'a>,
}

impl<'a> Deadline<'a> {
    pub(crate) fn new(clock: &'a Clock, timeout: Duration, outer: CallContext<'a>) -> Self {
        Self { at: AtomicU64::new(0), given: AtomicU64::new(0), clock, timeout, outer }
    }

    /// The deadline: this one's or an outer one's, whichever is nearer.
    pub(crate) fn at(&self) -> Instant {
        // Relaxed: one task at a time polls a call, and a task's moves between threads are synchronised by its executor.
        match self.at.load(Ordering::Relaxed) {
            0 => {
                let now = self.clock.now();
                let own = now + self.timeout;
                let at = self.outer.deadline().map_or(own, |outer| own.min(outer));
                self.given.store((at - now).as_nanos() as u64, Ordering::Relaxed);
                self.at.store(at.as_nanos().max(1), Ordering::Relaxed);
                at
            }
            nanos => Instant::from_nanos(nanos),
        }
    }

    /// How long the work was given: the time-out, or what was left of an outer one.
    pub(crate) fn given(&self) -> Duration {
        Duration::from_nanos(self.given.load(Ordering::Relaxed)).min(self.timeout)
    }
}
