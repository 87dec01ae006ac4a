//! What stands around an operation: one trait for the crate's policies and for yours.
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use super::{
    CallContext, Explanation, FellBack, Fork, Forks, Ledger, Operation,
    fork::{NoForks, OperationForks},
    ledger::Kept,
};
use crate::outcome::{CallError, Classify, Outcome, PolicyKind, Reason, Rejected, Verdict};

/// One attempt as a policy sees it: it may be made, and made again; its value cannot be touched.
pub trait Attempt: Send {
    /// Makes the attempt.
    fn attempt(&mut self, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send;

    /// What is kept of the call.
    fn ledger(&mut self) -> &mut dyn Ledger;

    /// Forks it, to make it several times at once. None where the operation [cannot overlap](Operation::can_overlap) itself, and
    /// in what is a fork already.
    fn fork(&mut self) -> Option<impl Forks> {
        None::<NoForks>
    }

    /// Has the call's substitute, if it has one, take the place of what failed: what a [`Fallback`](crate::fallback::Fallback) asks for. Dropped
    /// before it is ready, it leaves the failure as it was; the substitute is gone, for it is asked once a call.
    fn fall_back(&mut self, _cx: CallContext<'_>) -> impl Future<Output = FellBack> + Send {
        std::future::ready(FellBack::Nowhere)
    }

    /// Refuses to make it: a policy returns what this gives.
    #[cold]
    fn refuse(&mut self, rejected: Rejected) -> Outcome {
        self.ledger().reject(rejected);
        Outcome::Rejected
    }
}

/// Something that stands around attempts: it may let them pass, refuse them, repeat them, or cut them short.
///
/// A policy of your own is this one trait. Its contract: call `inner.attempt` for each attempt, hand the outcome outwards as
/// it is, or refuse with [`Attempt::refuse`]; hold no lock across the await; give back whatever it holds when its future is
/// dropped.
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
///             return inner.refuse(Rejected::new(PolicyKind::Custom("kill switch"), Reason::Custom("switched off")));
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
/// # impl std::fmt::Debug for KillSwitch { fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { Ok(()) } }
/// ```
pub trait Policy: Send + Sync {
    /// Runs `inner` under this policy.
    fn around<A: Attempt>(&self, inner: A, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send;

    /// Says what it is, for [`Pipeline::explain`](super::Pipeline::explain). By default it says nothing.
    fn describe(&self, _explanation: &mut Explanation) {}

    /// Whether it asks for the call's substitute when it thinks fit. Where no policy does, [`call_or`](super::Pipeline::call_or) does so at the
    /// end of the call.
    fn has_fallback(&self) -> bool {
        false
    }
}

/// No policy: what an empty pipeline holds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Identity;

impl Policy for Identity {
    #[inline]
    async fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> Outcome {
        inner.attempt(cx).await
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
    async fn around<A: Attempt>(&self, inner: A, cx: CallContext<'_>) -> Outcome {
        // Kept here and lent: one pointer is handed on, however deep the stack.
        let mut through = Through { policy: &self.inner, inner };
        self.outer.around(ByMut(&mut through), cx).await
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
    /// One of two futures. An `async` block with a `match` would do the same, and nest its type deeper: compilers bound that depth.
    #[project = EitherProj]
    pub(super) enum Either<L, R> {
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

/// A policy that may be absent: absent, it lets everything pass.
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

/// A policy lent is the same policy.
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

/// A policy behind a shared pointer is the same policy.
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

/// An attempt seen through the next inner policy.
struct Through<'a, P, A> {
    policy: &'a P,
    inner: A,
}

impl<P: Policy, A: Attempt> Attempt for Through<'_, P, A> {
    #[inline]
    fn attempt(&mut self, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send {
        self.policy.around(ByMut(&mut self.inner), cx)
    }

    fn ledger(&mut self) -> &mut dyn Ledger {
        self.inner.ledger()
    }

    fn fork(&mut self) -> Option<impl Forks> {
        let policy = self.policy;
        self.inner.fork().map(|inner| Through { policy, inner })
    }

    #[inline]
    fn fall_back(&mut self, cx: CallContext<'_>) -> impl Future<Output = FellBack> + Send {
        self.inner.fall_back(cx)
    }
}

impl<P: Policy, F: Forks> Forks for Through<'_, P, F> {
    #[inline]
    fn next(&self) -> impl Fork {
        Through { policy: self.policy, inner: self.inner.next() }
    }
}

impl<P: Policy, F: Fork> Fork for Through<'_, P, F> {
    #[inline]
    fn keep(self) {
        self.inner.keep();
    }
}

/// An attempt lent, so that the outer policy may make it again.
pub(crate) struct ByMut<'a, A>(pub(crate) &'a mut A);

impl<A: Attempt> Attempt for ByMut<'_, A> {
    #[inline]
    fn attempt(&mut self, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send {
        self.0.attempt(cx)
    }

    fn ledger(&mut self) -> &mut dyn Ledger {
        self.0.ledger()
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

/// The innermost attempt: the operation itself, the verdict on it, and what is kept of both. It counts the attempts for the whole
/// call, so that the count survives a time-out that drops everything between.
pub(crate) struct Judged<'c, O: Operation, C: ?Sized> {
    operation: O,
    classify: &'c C,
    pub(super) kept: Kept<O::Output, O::Error>,
}

impl<'c, O: Operation, C: ?Sized> Judged<'c, O, C> {
    #[inline]
    pub(super) const fn new(operation: O, classify: &'c C) -> Self {
        Self { operation, classify, kept: Kept::new() }
    }

    /// What the caller gets.
    #[inline]
    pub(crate) fn result(&mut self) -> Result<O::Output, CallError<O::Error>> {
        self.kept.result()
    }

    /// The verdict on a result that is not the operation's.
    pub(super) fn judge(&self, result: &Result<O::Output, O::Error>) -> Verdict
    where
        C: Classify<O::Output, O::Error>,
    {
        self.classify.classify(result)
    }
}

impl<O: Operation, C: Classify<O::Output, O::Error> + ?Sized> Attempt for Judged<'_, O, C> {
    #[inline]
    async fn attempt(&mut self, cx: CallContext<'_>) -> Outcome {
        if self.operation.is_spent() {
            let reason = Reason::Custom("it cannot be run again");
            return self.refuse(Rejected::new(PolicyKind::Custom("operation"), reason));
        }
        self.kept.attempts += 1;
        let result = self.operation.run(cx).await;
        let outcome = self.kept.judge(result, self.classify);
        if outcome.is_failure() && self.operation.is_spent() {
            self.kept.set_spent();
        }
        outcome
    }

    fn ledger(&mut self) -> &mut dyn Ledger {
        &mut self.kept
    }

    #[inline]
    fn fork(&mut self) -> Option<impl Forks> {
        let Self { operation, classify, kept } = self;
        operation.can_overlap().then(|| OperationForks::new(operation, kept, *classify))
    }
}
