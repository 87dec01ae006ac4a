//! The door without async: ask, call, record.
use std::fmt;

use super::{
    policy::{Inner, Shared},
    state::Ticket,
    tally::Mark,
};
use crate::{
    call::CallState,
    outcome::{Class, FailureKind, Hint, Outcome, Verdict},
    time::Instant,
};

/// Leave to make one call, from [`CircuitBreaker::try_acquire`](super::CircuitBreaker::try_acquire).
///
/// [`record`](Self::record) what came of the call. Dropped unrecorded, the call counts as cancelled: it changes nothing, and a
/// probe's place is free again. Recorded after the breaker has changed its state, it changes nothing either.
#[must_use = "a permit that is dropped unrecorded counts as cancelled"]
pub struct Permit<'a> {
    breaker: &'a Inner,
    /// None in shadow mode, where a call passes that would have been rejected: nothing comes of it.
    ticket: Option<Ticket>,
    /// Read only if slowness or late drops matter.
    started: Option<Instant>,
    /// Set while the operation runs, so that a panic in it is known from a panic elsewhere.
    running: bool,
}

impl<'a> Permit<'a> {
    #[inline]
    pub(super) fn new(breaker: &'a Inner, ticket: Option<Ticket>) -> Self {
        let started = breaker.core.tally.plan().times_calls().then(|| breaker.starts());
        Self { breaker, ticket, started, running: false }
    }

    /// Records what came of the call.
    #[inline]
    pub fn record(mut self, verdict: Verdict) {
        self.settle(verdict);
    }

    /// Records what came of the call, where the permit stands.
    #[inline]
    pub(super) fn settle(&mut self, verdict: Verdict) {
        let Some(ticket) = self.ticket.take() else { return };
        self.breaker.record(ticket, self.started, verdict);
    }

    /// Records what was no success, with the hint that came with a failure.
    #[cold]
    #[inline(never)]
    pub(super) fn settle_other(&mut self, outcome: Outcome, state: &dyn CallState) {
        let hint = if outcome.is_failure() { state.hint() } else { Hint::None };
        self.settle(Verdict::of(outcome.class()).with_hint(hint));
    }

    /// Records a failure of which nothing more is known.
    #[cold]
    #[inline(never)]
    pub(super) fn settle_failure(&mut self) {
        self.settle(Verdict::failure(FailureKind::Other));
    }

    /// Records how a probe of a loop ended: there, every error is a failure.
    pub(super) fn settle_probe(&mut self, failure: Option<FailureKind>) {
        if let Some(ticket) = self.ticket.take() {
            self.breaker.record_probe(ticket, self.started, failure);
        }
    }

    /// Runs a piece of the call: a panic in it is the call's own.
    #[inline]
    pub(super) fn run<R>(&mut self, piece: impl FnOnce() -> R) -> R {
        self.running = true;
        let done = piece();
        self.running = false;
        done
    }
}

impl Inner {
    #[inline]
    fn record(&self, ticket: Ticket, started: Option<Instant>, verdict: Verdict) {
        let failure = match verdict.class() {
            Class::Ignore => return self.core.ignore(&self.shared.set, ticket, || self.shared.clock.now()),
            Class::Success => None,
            Class::Failure { kind, weight } => self.shared.set.live.is_failure(kind).then_some((kind, weight)),
        };
        let slow = started.is_some_and(|started| self.took_longer(started));
        if failure.is_none() && !slow {
            if self.core.success(&self.shared.set, ticket, || self.shared.clock.now()) {
                self.flush();
            }
            return;
        }
        self.record_bad(ticket, failure, slow, verdict.hint());
    }

    /// The time now, out of line: most breakers never ask.
    #[inline(never)]
    fn starts(&self) -> Instant {
        self.shared.clock.now()
    }

    /// Whether a call that began then is slow.
    fn took_longer(&self, started: Instant) -> bool {
        self.shared.set.live.slow_call().is_some_and(|limit| self.shared.clock.now() - started > limit)
    }

    fn record_probe(&self, ticket: Ticket, started: Option<Instant>, failure: Option<FailureKind>) {
        let failure = failure.map(|kind| (kind, kind.default_weight()));
        let slow = started.is_some_and(|started| self.took_longer(started));
        if failure.is_some() || slow {
            return self.record_bad(ticket, failure, slow, Hint::None);
        }
        self.core.success(&self.shared.set, ticket, || self.shared.clock.now());
        self.flush();
    }

    #[cold]
    fn record_bad(&self, ticket: Ticket, failure: Option<(FailureKind, u32)>, slow: bool, hint: Hint) {
        use super::CircuitBreakerEvent::{Failed, Slow};
        let mut mark = Mark { slow, ..Mark::default() };
        if let Some((kind, weight)) = failure {
            (mark.failure, mark.weight) = (Some(kind), weight);
            match hint {
                Hint::UnavailableFor(d) => mark.unavailable = Some(d),
                other => mark.retry_after = other.retry_after(),
            }
        }
        let Shared { set, clock, .. } = &*self.shared;
        if set.events.wanted() {
            let event = || mark.failure.map_or(Slow, |kind| Failed { kind });
            set.events.stage_as(self.core.name.as_ref(), clock.now(), event);
        }
        self.core.bad(set, ticket, mark, || clock.now());
        self.flush();
    }

    #[cold]
    fn record_drop(&self, ticket: Ticket, started: Option<Instant>, panicked: bool) {
        let late = match (started, self.shared.set.live.drop_after()) {
            (Some(started), Some(limit)) => self.shared.clock.now() - started >= limit,
            _ => false,
        };
        // Counted whatever the set of kinds: a panic is no answer, and a drop is counted because another setting says so.
        let kind = match (panicked, late) {
            (true, _) => FailureKind::Panic,
            (false, true) => FailureKind::Cancelled,
            (false, false) => return self.core.ignore(&self.shared.set, ticket, || self.shared.clock.now()),
        };
        self.record_bad(ticket, Some((kind, kind.default_weight())), false, Hint::None);
    }
}

impl Drop for Permit<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.breaker.record_drop(ticket, self.started, self.running && std::thread::panicking());
        }
    }
}

impl fmt::Debug for Permit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}
