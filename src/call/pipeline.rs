//! The pipeline: policies composed, outermost first.
use std::future::Future;

#[cfg(feature = "tower")]
use super::run::Entered;
use super::{
    Answered, AttemptInfo, CallContext, Explanation, Failed, Identity, Operation, Policy, WithAttempt,
    instead::run_or,
    run::{Within, run},
    state::TypedCallState,
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
        let cx = CallContext::of(&operation);
        run(self, cx, operation, TypedCallState::result)
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
    #[inline]
    pub fn call_within<O: Operation>(
        &self,
        outer: AttemptInfo,
        operation: O,
    ) -> impl Future<Output = Result<O::Output, CallError<O::Error>>> + Send
    where
        C: Classify<O::Output, O::Error>,
    {
        let frame = outer.frame(&operation);
        run(Within::new(self), frame, operation, TypedCallState::result)
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
        run_or(self, cx, operation, instead)
    }

    /// As [`call_or`](Self::call_or), inside an attempt of another pipeline, as
    /// [`call_within`](Self::call_within).
    ///
    /// # Errors
    /// As [`call_or`](Self::call_or).
    ///
    /// # Cancel safety
    /// As [`call_or`](Self::call_or).
    #[inline]
    pub fn call_within_or<O: Operation, F, Fut>(
        &self,
        outer: AttemptInfo,
        operation: O,
        instead: F,
    ) -> impl Future<Output = Answered<O>> + Send
    where
        C: Classify<O::Output, O::Error>,
        F: FnOnce(Failed<'_, O::Output, O::Error>) -> Fut + Send,
        Fut: Future<Output = Result<O::Output, O::Error>> + Send,
    {
        let frame = outer.frame(&operation);
        run_or(Within::new(self), frame, operation, instead)
    }

    /// As [`call`](Self::call) or [`call_within`](Self::call_within), as one future that owns all
    /// its parts. The caller boxes it.
    #[cfg(feature = "tower")]
    #[inline]
    pub(crate) fn call_owned<O: Operation, T>(
        self: std::sync::Arc<Self>,
        outer: Option<AttemptInfo>,
        operation: O,
        finish: impl FnOnce(Result<O::Output, CallError<O::Error>>) -> T + Send,
    ) -> impl Future<Output = T>
    where
        C: Classify<O::Output, O::Error>,
    {
        let entry = match outer {
            Some(outer) => Entered::Inside(outer.frame(&operation)),
            None => Entered::Top(CallContext::of(&operation)),
        };
        run(self, entry, operation, |state| finish(state.result()))
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
