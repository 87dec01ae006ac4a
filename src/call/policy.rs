//! Policies: one trait for those of the crate and for your own.
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use super::{Attempt, CallContext, CallState, Explanation, FellBack, Fork, Forks, Nested, attempt::AttemptInternals};
use crate::outcome::{NextAttempt, Outcome};

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
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a policy",
    label = "expected a policy, such as a `Timeout`, a `Retry` or a type that implements `Policy`",
    note = "a constructor that checks its settings returns a `Result`: add `?` to use the policy in it",
    note = "settings are not a policy: pass them to the policy's constructor, such as `Retry::new(config)?`"
)]
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

    /// Returns `true` if a policy of this crate in here runs the call's fallback by its own rules,
    /// also after a rejection by an outer policy. A fallback policy inside a policy of another
    /// crate is not asked. It claims the fallback when a call reaches it.
    #[doc(hidden)]
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

/// Two policies, the first around the second.
impl<P: Policy, Q: Policy> Policy for (P, Q) {
    #[inline]
    fn around<A: Attempt>(&self, inner: A, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send {
        // Not an `async fn`: each one nests the type of a call by about six levels, of which
        // compilers allow 128.
        self.0.around_next(&self.1, inner, cx)
    }

    fn describe(&self, explanation: &mut Explanation) {
        self.0.describe(explanation);
        self.1.describe(explanation);
    }

    fn has_fallback(&self) -> bool {
        self.0.has_fallback() || self.1.has_fallback()
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
        self.policy.around(&mut self.inner, cx)
    }
}

impl<P: Policy, A: Attempt> AttemptInternals for PolicyAttempt<'_, P, A> {
    #[inline]
    fn attempt_nested(&mut self, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send {
        self.policy.around(Nested(&mut self.inner), cx)
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
        self.inner.call_state()
    }

    fn again(&mut self, next: NextAttempt<'_>) {
        self.inner.again(next);
    }

    #[inline]
    fn claim_fallback(&mut self) {
        self.inner.claim_fallback();
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
