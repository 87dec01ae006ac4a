//! Forks: concurrent runs of one attempt, for hedges.
//!
//! The futures of a closure borrow nothing of the closure, so several can run at the same time. A
//! *fork* is everything inside a policy, on a separate run: the inner policies are the same, the
//! operation is shared only while it starts, and each fork keeps its own result until one is
//! chosen.
use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use super::{Attempt, CallContext, CallState, Operation, attempt::AttemptInternals, state::TypedCallState};
use crate::{
    outcome::{Classify, LastFailure, NextAttempt, Outcome, PolicyKind, Reason, Rejected},
    sync::Mutex,
};

/// The source of forks of an attempt: see [`AttemptInternals::fork`].
pub(crate) trait Forks: Send + Sync {
    /// Creates another fork, which runs beside the existing ones.
    fn next(&self) -> impl Fork;
}

/// An attempt that runs beside other forks. A fork that is dropped has no part in the call's
/// result.
pub(crate) trait Fork: Attempt {
    /// Makes its result the result of the attempt that was forked.
    fn keep(self);
}

/// The forks of the innermost attempt.
pub(super) struct OperationForks<'a, O: Operation, C: ?Sized> {
    /// Locked by the call or, while an operation starts, by one of its forks; all of them belong to
    /// one task, so there is no contention.
    shared: Mutex<SharedRun<'a, O>>,
    classify: &'a C,
}

struct SharedRun<'a, O: Operation> {
    operation: &'a mut O,
    state: &'a mut TypedCallState<O::Output, O::Error>,
}

impl<'a, O: Operation, C: ?Sized> OperationForks<'a, O, C> {
    pub(super) fn new(
        operation: &'a mut O,
        state: &'a mut TypedCallState<O::Output, O::Error>,
        classify: &'a C,
    ) -> Self {
        Self { shared: Mutex::new(SharedRun { operation, state }), classify }
    }

    fn start(
        &self,
        cx: CallContext<'_>,
        last: Option<LastFailure<'_, O::Error>>,
    ) -> Option<impl Future<Output = Result<O::Output, O::Error>> + Send + use<O, C>> {
        let SharedRun { operation, state } = &mut *self.shared.lock();
        // Counted in the call's state, so that the count survives a drop of a fork.
        state.attempts += 1;
        // A retry around the hedge has left its failure in the call's state.
        operation.start_after(cx, last.or_else(|| state.last_failure()))
    }
}

impl<O: Operation, C: Classify<O::Output, O::Error> + ?Sized> Forks for OperationForks<'_, O, C> {
    #[inline]
    fn next(&self) -> impl Fork {
        OperationFork { forks: self, state: TypedCallState::new() }
    }
}

pin_project_lite::pin_project! {
    /// A run that may not have started. A `match` on the option would store the future twice.
    struct Started<W> {
        #[pin]
        work: Option<W>,
    }
}

impl<W: Future> Future for Started<W> {
    type Output = Option<W::Output>;

    #[inline]
    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().work.as_pin_mut() {
            Some(work) => work.poll(task).map(Some),
            None => Poll::Ready(None),
        }
    }
}

/// One run of the operation, with its result. It cannot be forked again: a hedge inside a hedge
/// leaves that to the outer one.
struct OperationFork<'f, 'a, O: Operation, C: ?Sized> {
    forks: &'f OperationForks<'a, O, C>,
    state: TypedCallState<O::Output, O::Error>,
}

impl<O: Operation, C: Classify<O::Output, O::Error> + ?Sized> Attempt for OperationFork<'_, '_, O, C> {
    #[inline]
    fn attempt(&mut self, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send {
        async move {
            let work = Started { work: self.forks.start(cx, self.state.last_failure()) };
            match work.await {
                Some(result) => self.state.judge(result, self.forks.classify),
                None => self.refuse(Rejected::new(
                    PolicyKind::Custom("operation"),
                    Reason::Custom("`can_overlap` is true but `start` returned `None`"),
                )),
            }
        }
    }
}

impl<O: Operation, C: Classify<O::Output, O::Error> + ?Sized> AttemptInternals for OperationFork<'_, '_, O, C> {
    #[inline]
    fn attempt_nested(&mut self, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send {
        self.attempt(cx)
    }

    fn call_state(&mut self) -> &mut dyn CallState {
        &mut self.state
    }

    #[cold]
    fn again(&mut self, next: NextAttempt<'_>) {
        let retrying = self.state.retrying(next);
        // The hook cannot call back: the lock is that of this call.
        self.forks.shared.lock().operation.on_retry(&retrying);
        self.forks.classify.on_retry(&retrying);
        self.state.again();
    }

    fn claim_fallback(&mut self) {
        // In the call's state, so that the claim survives a drop of this fork.
        self.forks.shared.lock().state.fallback_claimed = true;
    }
}

impl<O: Operation, C: Classify<O::Output, O::Error> + ?Sized> Fork for OperationFork<'_, '_, O, C> {
    #[inline]
    fn keep(self) {
        self.forks.shared.lock().state.adopt(self.state);
    }
}

/// The forks of an attempt that cannot be forked.
#[derive(Debug)]
pub(super) struct NoForks(Infallible);

impl Forks for NoForks {
    fn next(&self) -> impl Fork {
        Self(self.0)
    }
}

impl Attempt for NoForks {
    fn attempt(&mut self, _: CallContext<'_>) -> impl Future<Output = Outcome> + Send {
        match self.0 {}
        #[expect(unreachable_code, reason = "says which future it never gives")]
        std::future::pending()
    }
}

impl AttemptInternals for NoForks {
    fn attempt_nested(&mut self, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send {
        self.attempt(cx)
    }

    fn call_state(&mut self) -> &mut dyn CallState {
        match self.0 {}
    }

    fn again(&mut self, _: NextAttempt<'_>) {}

    fn claim_fallback(&mut self) {}
}

impl Fork for NoForks {
    fn keep(self) {}
}
