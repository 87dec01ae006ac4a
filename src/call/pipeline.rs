//! Policies composed, outermost first.
#[cfg(feature = "tower")]
use std::sync::Arc;
use std::{future::Future, pin::Pin};

use tracing::Instrument;

#[cfg(feature = "tower")]
use super::Frame;
use super::{
    Answered, AttemptInfo, CallContext, Explanation, Failed, Identity, Operation, Policy, Stack, WithAttempt,
    instead::run_or,
    policy::{ByMut, Judged},
    traced::{self, Traced},
};
use crate::{
    config::Name,
    outcome::{CallError, Classify, ErrIsFailure},
};

/// Any policies in any order, outermost first, with one classifier.
///
/// A clone is cheap and shares the policies' state; so does a policy that is put into two pipelines. One pipeline serves
/// operations of any type that its classifier can judge.
#[derive(Clone, Debug)]
pub struct Pipeline<P = Identity, C = ErrIsFailure> {
    pub(super) policy: P,
    pub(super) classify: C,
    pub(super) name: Option<Name>,
}

impl Pipeline {
    /// No policy yet; every `Err` is a failure.
    pub const fn new() -> Self {
        Self { policy: Identity, classify: ErrIsFailure, name: None }
    }
}

impl Default for Pipeline {
    fn default() -> Self {
        Self::new()
    }
}

impl<P, C> Pipeline<P, C> {
    /// The same with `inner` inside all policies so far.
    pub fn then<Q: Policy>(self, inner: Q) -> Pipeline<Stack<P, Q>, C> {
        let Self { policy: outer, classify, name } = self;
        Pipeline { policy: Stack { outer, inner }, classify, name }
    }

    /// The same with another judge of results: a `Fn(&Result<T, E>) -> Verdict`, or any [`Classify`].
    pub fn classify<D>(self, classify: D) -> Pipeline<P, D> {
        Pipeline { policy: self.policy, classify, name: self.name }
    }

    /// The same with a name, for its spans and its explanation.
    #[must_use]
    pub fn named(mut self, name: impl Into<Name>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Its name.
    pub fn name(&self) -> Option<&str> {
        self.name.as_ref().map(Name::as_str)
    }

    /// Its policies, as one.
    pub fn policy(&self) -> &P {
        &self.policy
    }
}

impl<P: Policy, C> Pipeline<P, C> {
    /// Runs `operation` under the policies.
    ///
    /// # Errors
    /// The operation's own error, a policy's refusal, or a time-out: [`CallError`].
    ///
    /// # Cancel safety
    /// Dropped, it drops the running attempt, gives back every permit, and counts nothing for or against the other side.
    /// Whether the operation had its effect is unknown, as with any dropped call.
    #[inline]
    pub fn call<O: Operation>(
        &self,
        operation: O,
    ) -> impl Future<Output = Result<O::Output, CallError<O::Error>>> + Send
    where
        C: Classify<O::Output, O::Error>,
    {
        // Not an `async fn`, here and below: each one around another moves the result once more.
        let cx = CallContext::of(&operation);
        run(self.name.as_ref(), &self.policy, &self.classify, operation, cx)
    }

    /// As [`call`](Self::call), for a closure that is told the attempt's number and deadline.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    ///
    /// # Cancel safety
    /// As [`call`](Self::call).
    #[inline]
    pub fn call_with<T: Send, E: Send, F, Fut>(
        &self,
        operation: F,
    ) -> impl Future<Output = Result<T, CallError<E>>> + Send
    where
        F: FnMut(AttemptInfo) -> Fut + Send,
        Fut: Future<Output = Result<T, E>> + Send,
        C: Classify<T, E>,
    {
        self.call(WithAttempt(operation))
    }

    /// As [`call`](Self::call), inside an attempt of another pipeline: its deadline holds here too, and a retry here leaves
    /// the attempts to a retry there. Also the door for a deadline that came in a header
    /// ([`AttemptInfo::with_deadline`]).
    ///
    /// # Errors
    /// As [`call`](Self::call).
    ///
    /// # Cancel safety
    /// As [`call`](Self::call).
    pub async fn call_within<O: Operation>(
        &self,
        outer: AttemptInfo,
        operation: O,
    ) -> Result<O::Output, CallError<O::Error>>
    where
        C: Classify<O::Output, O::Error>,
    {
        let frame = outer.frame(&operation);
        run(self.name.as_ref(), &self.policy, &self.classify, operation, frame.context()).await
    }

    /// As [`call`](Self::call), with `instead` to fall back on when the call fails or is refused: its value is the call's, and
    /// [marked](super::Answer::Degraded). It is told what [failed](Failed), and asked once. It may give a value
    /// (`|_| ready(Ok(value))`), make one of the error, or make another call, [within](Failed::within) what is left of the time.
    ///
    /// A [`Fallback`](crate::fallback::Fallback) among the policies decides after which failures, and bounds its time. Without one it is asked at the
    /// end of the call, after every failure but `client`, `cancelled` and `panic`, and every refusal; its time is its own.
    ///
    /// ```
    /// use std::{future::ready, io};
    /// use steadfast::{Pipeline, fallback::{Fallback, FallbackConfig}};
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// let pipeline = Pipeline::new().then(Fallback::new(FallbackConfig::default()).unwrap());
    /// let price = pipeline.call_or(|| async { Err(io::Error::other("away")) }, |_| ready(Ok(100))).await.unwrap();
    /// assert!(price.is_degraded());
    /// assert_eq!(price.error().unwrap().to_string(), "away");
    /// assert_eq!(price.into_value(), 100);
    /// # });
    /// ```
    ///
    /// # Errors
    /// As [`call`](Self::call). Where the substitute failed, too, the error is that of the call, and
    /// [`CallError::fallback`] the substitute's.
    ///
    /// # Cancel safety
    /// As [`call`](Self::call); dropped while the substitute is at work, it drops that.
    #[inline]
    pub fn call_or<O: Operation, F, Fut>(&self, operation: O, instead: F) -> impl Future<Output = Answered<O>> + Send
    where
        C: Classify<O::Output, O::Error>,
        F: FnOnce(Failed<'_, O::Output, O::Error>) -> Fut + Send,
        Fut: Future<Output = Result<O::Output, O::Error>> + Send,
    {
        let cx = CallContext::of(&operation);
        run_or(self.name.as_ref(), &self.policy, &self.classify, operation, instead, cx)
    }

    /// As [`call_or`](Self::call_or), inside an attempt of another pipeline, as [`call_within`](Self::call_within).
    ///
    /// # Errors
    /// As [`call_or`](Self::call_or).
    ///
    /// # Cancel safety
    /// As [`call_or`](Self::call_or).
    pub async fn call_within_or<O: Operation, F, Fut>(
        &self,
        outer: AttemptInfo,
        operation: O,
        instead: F,
    ) -> Answered<O>
    where
        C: Classify<O::Output, O::Error>,
        F: FnOnce(Failed<'_, O::Output, O::Error>) -> Fut + Send,
        Fut: Future<Output = Result<O::Output, O::Error>> + Send,
    {
        let frame = outer.frame(&operation);
        run_or(self.name.as_ref(), &self.policy, &self.classify, operation, instead, frame.context()).await
    }

    /// As [`call`](Self::call) or [`call_within`](Self::call_within), as one future that owns all it needs, with nothing in it twice: it is
    /// to be boxed.
    #[cfg(feature = "tower")]
    #[inline]
    pub(crate) fn call_owned<O: Operation, T>(
        self: Arc<Self>,
        outer: Option<AttemptInfo>,
        operation: O,
        finish: impl FnOnce(Result<O::Output, CallError<O::Error>>) -> T,
    ) -> impl Future<Output = T>
    where
        C: Classify<O::Output, O::Error>,
    {
        let frame = outer.map(|outer| outer.frame(&operation));
        async move {
            let Self { policy, classify, name } = &*self;
            let cx = frame.as_ref().map_or_else(|| CallContext::of(&operation), Frame::context);
            if traced::wanted() {
                let traced =
                    Box::pin(run_traced(policy, classify, operation, cx).instrument(traced::call(name.as_ref())));
                return finish(traced.await);
            }
            let mut judged = Judged::new(operation, classify);
            policy.around(ByMut(&mut judged), cx).await;
            finish(judged.result())
        }
    }

    /// What stands around a call, in order, with warnings where the order or the settings will hurt.
    pub fn explain(&self) -> Explanation {
        let mut explanation = Explanation::new(self.name.clone());
        self.policy.describe(&mut explanation);
        explanation
    }

    /// As [`explain`](Self::explain), for calls of this operation: warns also of what does not fit together with it.
    ///
    /// ```
    /// use steadfast::{Pipeline, call::not_idempotent, hedge::{Hedge, HedgeConfig}};
    ///
    /// let pipeline = Pipeline::new().then(Hedge::new(HedgeConfig::default()).unwrap());
    /// let charge = not_idempotent(|| async { Ok::<_, std::io::Error>(7) });
    /// let warnings = pipeline.explain_for(&charge).warnings();
    /// assert!(warnings.iter().any(|w| w.contains("not marked as idempotent")));
    /// ```
    pub fn explain_for(&self, operation: &impl Operation) -> Explanation {
        self.explain().of(operation)
    }
}

#[inline]
pub(super) async fn run<P: Policy, C: Classify<O::Output, O::Error> + ?Sized, O: Operation>(
    name: Option<&Name>,
    policy: &P,
    classify: &C,
    operation: O,
    cx: CallContext<'_>,
) -> Result<O::Output, CallError<O::Error>> {
    if traced::wanted() {
        // On the heap, so that calls without a subscriber have no room for it.
        let traced = Box::pin(run_traced(policy, classify, operation, cx).instrument(traced::call(name)));
        return (traced as Pin<Box<dyn Future<Output = _> + Send + '_>>).await;
    }
    let mut judged = Judged::new(operation, classify);
    policy.around(ByMut(&mut judged), cx).await;
    judged.result()
}

async fn run_traced<P: Policy, C: Classify<O::Output, O::Error> + ?Sized, O: Operation>(
    policy: &P,
    classify: &C,
    operation: O,
    cx: CallContext<'_>,
) -> Result<O::Output, CallError<O::Error>> {
    let mut judged = Judged::new(Traced(operation), classify);
    policy.around(ByMut(&mut judged), cx).await;
    let attempts = judged.kept.attempts;
    let result = judged.kept.result();
    traced::note(attempts, result.is_ok());
    result
}

/// The door of a single policy: a call with nothing else around it, where every `Err` is a failure.
#[inline]
pub(crate) fn call_alone<P: Policy, O: Operation>(
    policy: &P,
    operation: O,
) -> impl Future<Output = Result<O::Output, CallError<O::Error>>> + Send {
    let cx = CallContext::of(&operation);
    run(None, policy, &ErrIsFailure, operation, cx)
}

/// The door of a single policy, with something to fall back on.
#[inline]
pub(crate) fn call_alone_or<P: Policy, O: Operation, F, Fut>(
    policy: &P,
    operation: O,
    instead: F,
) -> impl Future<Output = Answered<O>> + Send
where
    F: FnOnce(Failed<'_, O::Output, O::Error>) -> Fut + Send,
    Fut: Future<Output = Result<O::Output, O::Error>> + Send,
{
    let cx = CallContext::of(&operation);
    run_or(None, policy, &ErrIsFailure, operation, instead, cx)
}
