//! Attempts: the work inside a policy, down to the operation itself.
use std::future::Future;

use super::{
    CallContext, CallState, FellBack, Forks, Operation, Policy,
    fork::{NoForks, OperationForks},
    state::{TypedCallState, as_error},
};
use crate::outcome::{CallError, Classify, NextAttempt, Outcome, PolicyKind, Reason, Rejected, Verdict};

/// One attempt as a policy sees it. A policy can make it, also several times, but never sees its
/// value.
///
/// A policy receives an attempt and passes it on, also as `&mut attempt`, if it needs it again.
/// Only this crate implements the trait.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an attempt",
    label = "expected the attempt that `Policy::around` receives",
    note = "a policy passes on the attempt that it receives, or `&mut` of it; only steadfast implements `Attempt`"
)]
#[expect(private_bounds, reason = "seals the trait, and hides the methods that only policies of this crate use")]
pub trait Attempt: AttemptInternals {
    /// Makes the attempt.
    fn attempt(&mut self, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send;

    /// Rejects the call: a policy returns the outcome that this returns.
    #[cold]
    fn refuse(&mut self, rejected: Rejected) -> Outcome {
        self.call_state().reject(rejected);
        Outcome::Rejected
    }
}

/// The methods of an attempt that only policies of this crate use.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot implement `Attempt`: only steadfast does",
    label = "not an attempt of steadfast",
    note = "a policy of your own implements `Policy`, and passes on the attempt that it receives"
)]
pub(crate) trait AttemptInternals: Send {
    /// Makes the attempt inside a standard stack: see [`Nested`](super::Nested).
    fn attempt_nested(&mut self, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send;

    /// Runs `inner`, which contains an attempt of this type, under a standard stack: boxed if the
    /// stack is inside another one.
    #[inline]
    fn under_stack<S: Policy, A: Attempt>(
        stack: &S,
        inner: A,
        cx: CallContext<'_>,
    ) -> impl Future<Output = Outcome> + Send {
        stack.around(inner, cx)
    }

    /// Returns the state of the call.
    fn call_state(&mut self) -> &mut dyn CallState;

    /// Records that another attempt follows the failed one, after the hooks have seen the failure.
    /// The last outcome is over; the first of the call, and the last, are remembered.
    fn again(&mut self, next: NextAttempt<'_>);

    /// Records that a policy runs the fallback of this call by its own rules, so that
    /// [`call_or`](super::Pipeline::call_or) does not run it at the end.
    fn claim_fallback(&mut self);

    /// Forks the attempt, to make it several times at once. Returns `None` if the operation [cannot
    /// run concurrently](Operation::can_overlap), or if the attempt is a fork already.
    fn fork(&mut self) -> Option<impl Forks> {
        None::<NoForks>
    }

    /// Replaces a failed outcome with the fallback's; used by
    /// [`Fallback`](crate::fallback::Fallback). The fallback runs at most once per call. If this
    /// future is dropped, the failure stands, and the fallback does not run again.
    fn fall_back(&mut self, _cx: CallContext<'_>) -> impl Future<Output = FellBack> + Send {
        std::future::ready(FellBack::Nowhere)
    }
}

/// A borrowed attempt, so that the outer policy may make it again.
impl<A: Attempt> Attempt for &mut A {
    #[inline]
    fn attempt(&mut self, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send {
        (**self).attempt(cx)
    }
}

impl<A: Attempt> AttemptInternals for &mut A {
    #[inline]
    fn attempt_nested(&mut self, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send {
        (**self).attempt_nested(cx)
    }

    #[inline]
    fn under_stack<S: Policy, B: Attempt>(
        stack: &S,
        inner: B,
        cx: CallContext<'_>,
    ) -> impl Future<Output = Outcome> + Send {
        A::under_stack(stack, inner, cx)
    }

    fn call_state(&mut self) -> &mut dyn CallState {
        (**self).call_state()
    }

    fn again(&mut self, next: NextAttempt<'_>) {
        (**self).again(next);
    }

    #[inline]
    fn claim_fallback(&mut self) {
        (**self).claim_fallback();
    }

    #[inline]
    fn fork(&mut self) -> Option<impl Forks> {
        (**self).fork()
    }

    #[inline]
    fn fall_back(&mut self, cx: CallContext<'_>) -> impl Future<Output = FellBack> + Send {
        (**self).fall_back(cx)
    }
}

/// The innermost attempt: the operation, its classifier, and the state of the call. It counts the
/// attempts of the whole call, so that the count survives a time-out that drops everything in
/// between.
pub(crate) struct OperationAttempt<'c, O: Operation, C: ?Sized> {
    operation: &'c mut O,
    classify: &'c C,
    pub(super) state: TypedCallState<O::Output, O::Error>,
}

impl<'c, O: Operation, C: ?Sized> OperationAttempt<'c, O, C> {
    #[inline]
    pub(super) const fn new(operation: &'c mut O, classify: &'c C) -> Self {
        Self { operation, classify, state: TypedCallState::new() }
    }

    /// Returns the result of the call.
    #[inline]
    pub(crate) fn result(&mut self) -> Result<O::Output, CallError<O::Error>> {
        self.state.result()
    }

    /// Judges a result that is not the operation's, say the fallback's.
    pub(super) fn judge(&self, result: Result<O::Output, O::Error>) -> (Result<O::Output, O::Error>, Verdict)
    where
        C: Classify<O::Output, O::Error>,
    {
        let verdict = self.classify.classify(&result);
        (as_error(result, verdict, self.classify), verdict)
    }
}

impl<O: Operation, C: Classify<O::Output, O::Error> + ?Sized> Attempt for OperationAttempt<'_, O, C> {
    #[inline]
    fn attempt(&mut self, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send {
        async move {
            if self.operation.is_spent() {
                let reason = Reason::Custom("it cannot run again");
                return self.refuse(Rejected::new(PolicyKind::Custom("operation"), reason));
            }
            self.state.attempts += 1;
            let result = self.operation.run_after(cx, self.state.last_failure()).await;
            let outcome = self.state.judge(result, self.classify);
            if outcome.is_failure() && self.operation.is_spent() {
                self.state.set_spent();
            }
            outcome
        }
    }
}

impl<O: Operation, C: Classify<O::Output, O::Error> + ?Sized> AttemptInternals for OperationAttempt<'_, O, C> {
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
        self.operation.on_retry(&retrying);
        self.classify.on_retry(&retrying);
        self.state.again();
    }

    #[inline]
    fn claim_fallback(&mut self) {
        self.state.fallback_claimed = true;
    }

    #[inline]
    fn fork(&mut self) -> Option<impl Forks> {
        let Self { operation, classify, state } = self;
        operation.can_overlap().then(|| OperationForks::new(&mut **operation, state, *classify))
    }
}
