//! Permits: acquire, call, record.
use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll},
};

use super::{
    policy::{Inner, Shared},
    state::Ticket,
    window::Mark,
};
use crate::{
    call::CallState,
    outcome::{Class, FailureKind, Hint, Outcome, Verdict},
    time::Instant,
};

/// Permission to make one call, from
/// [`CircuitBreaker::try_acquire`](super::CircuitBreaker::try_acquire).
///
/// [`record`](Self::record) the outcome of the call. A permit that is dropped without a record
/// counts as cancelled: it changes nothing, and frees its probe's place. An outcome that is
/// recorded after the breaker has changed its state changes nothing either.
#[must_use = "a permit that is dropped unrecorded counts as cancelled"]
pub struct Permit<'a> {
    breaker: &'a Inner,
    /// `None` in shadow mode, for a call that would have been rejected: its outcome is not
    /// recorded.
    ticket: Option<Ticket>,
    /// Start of the call. Read only if slowness or late cancellation is configured.
    started: Option<Instant>,
    /// Set by a panic in the operation, so that it is told apart from a panic elsewhere.
    panicked: bool,
}

impl<'a> Permit<'a> {
    #[inline]
    pub(super) fn new(breaker: &'a Inner, ticket: Option<Ticket>) -> Self {
        let started = breaker.core.tally.plan().times_calls().then(|| breaker.starts());
        Self { breaker, ticket, started, panicked: false }
    }

    /// Records the outcome of the call.
    #[inline]
    pub fn record(mut self, verdict: Verdict) {
        if verdict.is_success() { self.settle_success() } else { self.settle(verdict) }
    }

    /// Records a success, without consuming the permit. In a full window it is at most one number.
    #[inline]
    pub(super) fn settle_success(&mut self) {
        let is_settled =
            self.started.is_none() && self.ticket.is_some_and(|ticket| self.breaker.core.success_at_once(ticket));
        if is_settled {
            self.ticket = None;
        } else {
            self.settle(Verdict::success());
        }
    }

    /// Records the outcome of the call, without consuming the permit.
    #[inline(never)]
    pub(super) fn settle(&mut self, verdict: Verdict) {
        let Some(ticket) = self.ticket.take() else { return };
        self.breaker.record(ticket, self.started, verdict);
    }

    /// Records an outcome that is not a success, with the hint that came with a failure.
    #[cold]
    #[inline(never)]
    pub(super) fn settle_other(&mut self, outcome: Outcome, state: &dyn CallState) {
        let hint = if outcome.is_failure() { state.hint() } else { Hint::None };
        self.settle(Verdict::of(outcome.class()).with_hint(hint));
    }

    /// Records a failure of unknown kind.
    #[cold]
    #[inline(never)]
    pub(super) fn settle_failure(&mut self) {
        self.settle(Verdict::failure(FailureKind::Other));
    }

    /// Records the outcome of a health probe, of which every error is a failure.
    pub(super) fn settle_probe(&mut self, failure: Option<FailureKind>) {
        if let Some(ticket) = self.ticket.take() {
            self.breaker.record_probe(ticket, self.started, failure);
        }
    }

    /// Runs a part of the call, and attributes a panic in it to the operation. Without a panic it
    /// writes nothing.
    #[inline]
    pub(super) fn run<R>(&mut self, piece: impl FnOnce() -> R) -> R {
        struct Panics<'p>(&'p mut bool);
        impl Drop for Panics<'_> {
            fn drop(&mut self) {
                *self.0 = true;
            }
        }
        let panics = Panics(&mut self.panicked);
        let done = piece();
        mem::forget(panics);
        done
    }

    /// Runs the call, and attributes a panic in it to the operation.
    #[inline]
    pub(super) const fn watch<F>(&mut self, work: F) -> Watched<'_, 'a, F> {
        Watched { permit: self, work }
    }
}

pin_project_lite::pin_project! {
    /// The work of a call under a permit.
    pub(super) struct Watched<'p, 'a, F> {
        permit: &'p mut Permit<'a>,
        #[pin]
        work: F,
    }
}

impl<F: Future> Future for Watched<'_, '_, F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        this.permit.run(|| this.work.poll(task))
    }
}

impl Inner {
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

    /// Returns the current time. Out of line, because most breakers never need it.
    #[inline(never)]
    fn starts(&self) -> Instant {
        self.shared.clock.now()
    }

    /// Returns whether a call that began at `started` is slow.
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
        let late = match (started, self.shared.set.live.cancelled_after()) {
            (Some(started), Some(limit)) => self.shared.clock.now() - started >= limit,
            _ => false,
        };
        // Counted even if `failures` does not name the kind: a panic is no answer, and a late
        // cancellation is counted because `count_cancelled_after` says so.
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
            self.breaker.record_drop(ticket, self.started, self.panicked);
        }
    }
}

impl fmt::Debug for Permit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}
