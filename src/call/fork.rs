//! One attempt made several times at once: what a hedge asks of whatever is inside it.
//!
//! The futures of a closure borrow nothing of the closure, so several can run beside each other. Each *fork* is the whole of what is inside
//! a policy, on a run of its own: the inner policies are the same, the operation is shared for as long as it takes to start it, and
//! what comes of it is kept apart until one is chosen.
use std::{convert::Infallible, future::Future};

use super::{Attempt, CallContext, Ledger, Operation, ledger::Kept};
use crate::{
    outcome::{Classify, Outcome, PolicyKind, Reason, Rejected},
    sync::Mutex,
};

/// Where forks of an attempt come from: [`Attempt::fork`].
pub trait Forks: Send + Sync {
    /// Another one, which runs beside those that are there.
    fn next(&self) -> impl Fork;
}

/// An attempt that runs beside others of its kind. What is dropped has no part in the call's result.
pub trait Fork: Attempt {
    /// Makes what came of it the result of the attempt that was forked.
    fn keep(self);
}

/// The forks of the innermost attempt.
pub(super) struct OperationForks<'a, O: Operation, C: ?Sized> {
    /// Of one call and, for as long as an operation is started, of one of its forks: nobody ever waits for it.
    shared: Mutex<Shared<'a, O>>,
    classify: &'a C,
}

struct Shared<'a, O: Operation> {
    operation: &'a mut O,
    kept: &'a mut Kept<O::Output, O::Error>,
}

impl<'a, O: Operation, C: ?Sized> OperationForks<'a, O, C> {
    pub(super) fn new(operation: &'a mut O, kept: &'a mut Kept<O::Output, O::Error>, classify: &'a C) -> Self {
        Self { shared: Mutex::new(Shared { operation, kept }), classify }
    }
}

impl<O: Operation, C: Classify<O::Output, O::Error> + ?Sized> Forks for OperationForks<'_, O, C> {
    #[inline]
    fn next(&self) -> impl Fork {
        OperationFork { forks: self, kept: Kept::new() }
    }
}

/// A run of the operation, with what came of it. It is not forked again: a hedge inside a hedge leaves that to the outer.
struct OperationFork<'f, 'a, O: Operation, C: ?Sized> {
    forks: &'f OperationForks<'a, O, C>,
    kept: Kept<O::Output, O::Error>,
}

impl<O: Operation, C: Classify<O::Output, O::Error> + ?Sized> Attempt for OperationFork<'_, '_, O, C> {
    #[inline]
    async fn attempt(&mut self, cx: CallContext<'_>) -> Outcome {
        let work = {
            let mut shared = self.forks.shared.lock();
            // Counted for the call, so that the count survives whatever drops this.
            shared.kept.attempts += 1;
            shared.operation.start(cx)
        };
        match work {
            Some(work) => self.kept.judge(work.await, self.forks.classify),
            None => self.refuse(Rejected::new(
                PolicyKind::Custom("operation"),
                Reason::Custom("it says that it can overlap itself, and cannot"),
            )),
        }
    }

    fn ledger(&mut self) -> &mut dyn Ledger {
        &mut self.kept
    }
}

impl<O: Operation, C: Classify<O::Output, O::Error> + ?Sized> Fork for OperationFork<'_, '_, O, C> {
    #[inline]
    fn keep(self) {
        self.forks.shared.lock().kept.adopt(self.kept);
    }
}

/// The forks of what cannot be forked.
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

    fn ledger(&mut self) -> &mut dyn Ledger {
        match self.0 {}
    }
}

impl Fork for NoForks {
    fn keep(self) {}
}
