//! The pipeline: policies composed, outermost first.
#[cfg(feature = "tower")]
use std::sync::Arc;
use std::{future::Future, pin::Pin};

use tracing::Instrument;

#[cfg(feature = "tower")]
use super::Frame;
use super::{
    Answered, AttemptInfo, CallContext, Explanation, Failed, Identity, Operation, Policy, WithAttempt,
    attempt::OperationAttempt,
    instead::run_or,
    nested::Inside,
    traced::{self, Traced},
};
use crate::{
    config::Name,
    outcome::{CallError, Classify, ErrIsFailure},
};

/// Any policies in any order, outermost first, with one classifier.
///
/// A clone is cheap and shares the policies' state, as does a policy that is used in two pipelines.
/// One pipeline serves operations of every type that its classifier can judge.
#[derive(Clone, Debug)]
pub struct Pipeline<P = Identity, C = ErrIsFailure> {
    pub(super) policy: P,
    pub(super) classify: C,
    pub(super) name: Option<Name>,
}

impl Pipeline {
    /// Creates a pipeline without policies, in which every `Err` is a failure.
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
    /// Adds `inner` inside all policies so far.
    pub fn then<Q: Policy>(self, inner: Q) -> Pipeline<(P, Q), C> {
        let Self { policy: outer, classify, name } = self;
        Pipeline { policy: (outer, inner), classify, name }
    }

    /// Sets the classifier: a `Fn(&Result<T, E>) -> Verdict`, or any [`Classify`].
    pub fn classify<D>(self, classify: D) -> Pipeline<P, D> {
        Pipeline { policy: self.policy, classify, name: self.name }
    }

    /// Sets the name, for spans and for the explanation.
    #[must_use]
    pub fn named(mut self, name: impl Into<Name>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Returns the name, if one is set.
    pub fn name(&self) -> Option<&str> {
        self.name.as_ref().map(Name::as_str)
    }

    /// Returns the policies, as one.
    pub fn policy(&self) -> &P {
        &self.policy
    }
}

impl<P: Policy, C> Pipeline<P, C> {
    /// Runs `operation` under the policies.
    ///
    /// # Errors
    /// Returns a [`CallError`]: the operation's own error, a rejection by a policy, or a time-out.
    ///
    /// # Cancel safety
    /// If the future is dropped, it drops the running attempt, returns every permit, and counts
    /// neither a success nor a failure. It is unknown if the operation had its effect, as with any
    /// dropped call.
    #[inline]
    pub fn call<O: Operation>(
        &self,
        operation: O,
    ) -> impl Future<Output = Result<O::Output, CallError<O::Error>>> + Send
    where
        C: Classify<O::Output, O::Error>,
    {
        // Not an `async fn`, here and below: each `async fn` around another moves the result once
        // more.
        let cx = CallContext::of(&operation);
        run(self.name.as_ref(), &self.policy, &self.classify, operation, cx)
    }

    /// As [`call`](Self::call), for a closure that receives the attempt's number and deadline.
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

    /// As [`call`](Self::call), inside an attempt of another pipeline. The outer deadline holds
    /// here, too, and a retry in this pipeline leaves the attempts to a retry in the outer one.
    /// Also used for a deadline that came in a header ([`AttemptInfo::with_deadline`]).
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
        run(self.name.as_ref(), &Inside(&self.policy), &self.classify, operation, frame.context()).await
    }

    /// As [`call`](Self::call), with a fallback.
    ///
    /// If the call fails or is rejected, `instead` runs and its value becomes the call's,
    /// [marked](super::Answer::Degraded) as degraded. It receives the [failed call](Failed), and
    /// runs at most once. It may return a value (`|_| ready(Ok(value))`), compute one from the
    /// error, or make another call [within](Failed::within) the remaining time.
    ///
    /// A [`Fallback`](crate::fallback::Fallback) among the policies decides after which failures it
    /// runs, and bounds its time. Without one it runs at the end of the call, after every rejection
    /// and every failure except the kinds `client`, `cancelled` and `panic`; its time is not
    /// bounded.
    ///
    /// ```
    /// use std::{future::ready, io};
    /// use steadfast::{Pipeline, fallback::{Fallback, FallbackConfig}};
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    /// # runtime.unwrap().block_on(async {
    /// let pipeline = Pipeline::new().then(Fallback::new(FallbackConfig::default()).unwrap());
    /// let ask = || async { Err(io::Error::other("away")) };
    /// let price = pipeline.call_or(ask, |_| ready(Ok(100))).await.unwrap();
    /// assert!(price.is_degraded());
    /// assert_eq!(price.error().unwrap().to_string(), "away");
    /// assert_eq!(price.into_value(), 100);
    /// # });
    /// ```
    ///
    /// # Errors
    /// As [`call`](Self::call). If the fallback also fails, the error is that of the call, and
    /// [`CallError::fallback`] returns the fallback's.
    ///
    /// # Cancel safety
    /// As [`call`](Self::call); if the fallback is running, it is dropped.
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

    /// As [`call_or`](Self::call_or), inside an attempt of another pipeline, as
    /// [`call_within`](Self::call_within).
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
        run_or(self.name.as_ref(), &Inside(&self.policy), &self.classify, operation, instead, frame.context()).await
    }

    /// As [`call`](Self::call) or [`call_within`](Self::call_within), as one future that owns all
    /// its parts and stores none of them twice. The caller boxes it.
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
            let mut attempt = OperationAttempt::new(operation, classify);
            policy.around(&mut attempt, cx).await;
            finish(attempt.result())
        }
    }

    /// Describes the policies around a call, in order, with warnings about order and settings.
    pub fn explain(&self) -> Explanation {
        let mut explanation = Explanation::new(self.name.clone());
        self.policy.describe(&mut explanation);
        explanation
    }

    /// As [`explain`](Self::explain), for calls of this operation: also warns about settings that
    /// do not fit it.
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
        // On the heap, so that calls without a subscriber reserve no space for it.
        let traced = Box::pin(run_traced(policy, classify, operation, cx).instrument(traced::call(name)));
        return (traced as Pin<Box<dyn Future<Output = _> + Send + '_>>).await;
    }
    let mut attempt = OperationAttempt::new(operation, classify);
    policy.around(&mut attempt, cx).await;
    attempt.result()
}

async fn run_traced<P: Policy, C: Classify<O::Output, O::Error> + ?Sized, O: Operation>(
    policy: &P,
    classify: &C,
    operation: O,
    cx: CallContext<'_>,
) -> Result<O::Output, CallError<O::Error>> {
    let mut attempt = OperationAttempt::new(Traced(operation), classify);
    policy.around(&mut attempt, cx).await;
    let attempts = attempt.state.attempts;
    let result = attempt.state.result();
    traced::note(attempts, result.is_ok());
    result
}

/// Runs `operation` under a single policy; every `Err` is a failure.
#[inline]
pub(crate) fn call_alone<P: Policy, O: Operation>(
    policy: &P,
    operation: O,
) -> impl Future<Output = Result<O::Output, CallError<O::Error>>> + Send {
    let cx = CallContext::of(&operation);
    run(None, policy, &ErrIsFailure, operation, cx)
}

/// Runs `operation` under a single policy, with a fallback.
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
