//! Policies: one trait for those of the crate and for your own.
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use super::{
    CallContext, CallState, Explanation, FellBack, Fork, Forks, Operation,
    fork::{NoForks, OperationForks},
    state::TypedCallState,
};
use crate::outcome::{CallError, Classify, Outcome, PolicyKind, Reason, Rejected, Verdict};

/// One attempt as a policy sees it. A policy can make it, also several times, but never sees its
/// value.
pub trait Attempt: Send {
    /// Makes the attempt.
    fn attempt(&mut self, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send;

    /// Returns the state of the call.
    fn call_state(&mut self) -> &mut dyn CallState;

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

    /// Rejects the call: a policy returns the outcome that this returns.
    #[cold]
    fn refuse(&mut self, rejected: Rejected) -> Outcome {
        self.call_state().reject(rejected);
        Outcome::Rejected
    }
}

/// A wrapper around attempts: it may let them pass, reject them, repeat them, or bound their time.
///
/// Your own policy implements this trait. Its contract:
///
/// - Call `inner.attempt` for each attempt, and return the outcome unchanged, or reject with
///   [`Attempt::refuse`].
/// - Hold no lock across an `.await`.
/// - Return all permits if the future is dropped.
///
/// ```
/// use steadfast::call::{Attempt, CallContext, Policy};
/// use steadfast::{Outcome, PolicyKind, Reason, Rejected};
/// use std::sync::atomic::{AtomicBool, Ordering};
///
/// struct KillSwitch(AtomicBool);
///
/// impl Policy for KillSwitch {
///     async fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> Outcome {
///         if self.0.load(Ordering::Relaxed) {
///             let by = PolicyKind::Custom("kill switch");
///             return inner.refuse(Rejected::new(by, Reason::Custom("switched off")));
///         }
///         inner.attempt(cx).await
///     }
/// }
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let pipeline = steadfast::Pipeline::new().then(KillSwitch(AtomicBool::new(true)));
/// let error = pipeline.call(|| async { Ok::<_, std::io::Error>(1) }).await.unwrap_err();
/// assert_eq!(error.to_string(), "rejected by the kill switch: switched off");
/// # });
/// # use std::fmt;
/// # impl fmt::Debug for KillSwitch {
/// #     fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result { Ok(()) }
/// # }
/// ```
pub trait Policy: Send + Sync {
    /// Runs `inner` under this policy.
    fn around<A: Attempt>(&self, inner: A, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send;

    /// Runs `next` under this policy, and `inner` under `next`. The empty policy leaves itself out,
    /// so that the type of each call nests one level less.
    #[doc(hidden)]
    #[inline]
    fn around_next<Q: Policy, A: Attempt>(
        &self,
        next: &Q,
        inner: A,
        cx: CallContext<'_>,
    ) -> impl Future<Output = Outcome> + Send {
        self.around(PolicyAttempt { policy: next, inner }, cx)
    }

    /// Describes the policy, for [`Pipeline::explain`](super::Pipeline::explain). Describes nothing
    /// by default.
    fn describe(&self, _explanation: &mut Explanation) {}

    /// Returns `true` if the policy runs the call's fallback by its own rules. If no policy does,
    /// [`call_or`](super::Pipeline::call_or) runs it at the end of the call.
    fn has_fallback(&self) -> bool {
        false
    }
}

/// The policy of an empty pipeline: it lets everything pass.
#[derive(Clone, Copy, Debug, Default)]
pub struct Identity;

impl Policy for Identity {
    #[inline]
    async fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> Outcome {
        inner.attempt(cx).await
    }

    #[inline]
    fn around_next<Q: Policy, A: Attempt>(
        &self,
        next: &Q,
        inner: A,
        cx: CallContext<'_>,
    ) -> impl Future<Output = Outcome> + Send {
        next.around(inner, cx)
    }
}

/// Two policies, one around the other.
#[derive(Clone, Copy, Debug)]
pub struct Stack<Outer, Inner> {
    pub(super) outer: Outer,
    pub(super) inner: Inner,
}

impl<P, Q> Stack<P, Q> {
    pub(crate) const fn new(outer: P, inner: Q) -> Self {
        Self { outer, inner }
    }
}

impl<P: Policy, Q: Policy> Policy for Stack<P, Q> {
    #[inline]
    fn around<A: Attempt>(&self, inner: A, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send {
        // Not an `async fn`: each one nests the type of a call by about six levels, of which
        // compilers allow 128.
        self.outer.around_next(&self.inner, inner, cx)
    }

    fn describe(&self, explanation: &mut Explanation) {
        self.outer.describe(explanation);
        self.inner.describe(explanation);
    }

    fn has_fallback(&self) -> bool {
        self.outer.has_fallback() || self.inner.has_fallback()
    }
}

pin_project_lite::pin_project! {
    /// One of two futures. An `async` block with a `match` would do the same with a more deeply
    /// nested type, and compilers limit that depth.
    #[project = EitherProj]
    pub(crate) enum Either<L, R> {
        Left { #[pin] future: L },
        Right { #[pin] future: R },
    }
}

impl<L: Future<Output = Outcome>, R: Future<Output = Outcome>> Future for Either<L, R> {
    type Output = Outcome;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        match self.project() {
            EitherProj::Left { future } => future.poll(cx),
            EitherProj::Right { future } => future.poll(cx),
        }
    }
}

/// An optional policy: `None` lets everything pass.
impl<P: Policy> Policy for Option<P> {
    #[inline]
    fn around<A: Attempt>(&self, inner: A, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send {
        match self {
            Some(policy) => Either::Left { future: policy.around(inner, cx) },
            None => Either::Right { future: Identity.around(inner, cx) },
        }
    }

    fn describe(&self, explanation: &mut Explanation) {
        if let Some(policy) = self {
            policy.describe(explanation);
        }
    }

    fn has_fallback(&self) -> bool {
        self.as_ref().is_some_and(P::has_fallback)
    }
}

/// A borrowed policy behaves as the policy itself.
impl<P: Policy> Policy for &P {
    #[inline]
    fn around<A: Attempt>(&self, inner: A, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send {
        (**self).around(inner, cx)
    }

    fn describe(&self, explanation: &mut Explanation) {
        (**self).describe(explanation);
    }

    fn has_fallback(&self) -> bool {
        (**self).has_fallback()
    }
}

/// A policy behind a shared pointer behaves as the policy itself.
impl<P: Policy + ?Sized> Policy for std::sync::Arc<P> {
    #[inline]
    fn around<A: Attempt>(&self, inner: A, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send {
        (**self).around(inner, cx)
    }

    fn describe(&self, explanation: &mut Explanation) {
        (**self).describe(explanation);
    }

    fn has_fallback(&self) -> bool {
        (**self).has_fallback()
    }
}

/// An attempt that runs inside `policy`.
struct PolicyAttempt<'a, P, A> {
    policy: &'a P,
    inner: A,
}

impl<P: Policy, A: Attempt> Attempt for PolicyAttempt<'_, P, A> {
    #[inline]
    fn attempt(&mut self, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send {
        self.policy.around(BorrowedAttempt(&mut self.inner), cx)
    }

    fn call_state(&mut self) -> &mut dyn CallState {
        self.inner.call_state()
    }

    fn fork(&mut self) -> Option<impl Forks> {
        let policy = self.policy;
        self.inner.fork().map(|inner| PolicyAttempt { policy, inner })
    }

    #[inline]
    fn fall_back(&mut self, cx: CallContext<'_>) -> impl Future<Output = FellBack> + Send {
        self.inner.fall_back(cx)
    }
}

impl<P: Policy, F: Forks> Forks for PolicyAttempt<'_, P, F> {
    #[inline]
    fn next(&self) -> impl Fork {
        PolicyAttempt { policy: self.policy, inner: self.inner.next() }
    }
}

impl<P: Policy, F: Fork> Fork for PolicyAttempt<'_, P, F> {
    #[inline]
    fn keep(self) {
        self.inner.keep();
    }
}

/// A borrowed attempt, so that the outer policy may make it again.
pub(crate) struct BorrowedAttempt<'a, A>(pub(crate) &'a mut A);

impl<A: Attempt> Attempt for BorrowedAttempt<'_, A> {
    #[inline]
    fn attempt(&mut self, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send {
        self.0.attempt(cx)
    }

    fn call_state(&mut self) -> &mut dyn CallState {
        self.0.call_state()
    }

    #[inline]
    fn fork(&mut self) -> Option<impl Forks> {
        self.0.fork()
    }

    #[inline]
    fn fall_back(&mut self, cx: CallContext<'_>) -> impl Future<Output = FellBack> + Send {
        self.0.fall_back(cx)
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
    pub(super) fn judge(&self, result: &Result<O::Output, O::Error>) -> Verdict
    where
        C: Classify<O::Output, O::Error>,
    {
        self.classify.classify(result)
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
            let result = self.operation.run(cx).await;
            let outcome = self.state.judge(result, self.classify);
            if outcome.is_failure() && self.operation.is_spent() {
                self.state.set_spent();
            }
            outcome
        }
    }

    fn call_state(&mut self) -> &mut dyn CallState {
        &mut self.state
    }

    #[inline]
    fn fork(&mut self) -> Option<impl Forks> {
        let Self { operation, classify, state } = self;
        operation.can_overlap().then(|| OperationForks::new(&mut **operation, state, *classify))
    }
}
