//! The pipeline: policies composed, outermost first.
use std::future::Future;

#[cfg(feature = "tower")]
use super::run::Entered;
use super::{
    Answered, AttemptInfo, CallContext, Explanation, Failed, Identity, Operation, Policy, WithAttempt,
    run::{Within, run},
    state::TypedCallState,
    with_fallback::{marked, run_or, unmarked},
};
use crate::{
    config::Name,
    outcome::{CallError, Classify, ErrIsFailure},
};

/// Any policies in any order, outermost first, with one classifier.
///
/// A clone is cheap and shares the policies' state, as does a policy that is used in two pipelines.
/// One pipeline serves operations of every type that its classifier can judge.
///
/// Its type names each policy. A field is a [`BoxedPipeline`](super::BoxedPipeline) or a
/// [`StandardPipeline`](crate::standard::StandardPipeline), or its struct has a type parameter for
/// the policies: `Pipeline<P>`. A function returns one of these, or `Pipeline<impl Policy>`.
//
// `P` has no default: with one, a field of type `Pipeline` would be an empty pipeline, and the
// compiler would reject each value with policies without a way out. The compiler quotes the comment
// beside `P` where it is missing.
#[derive(Clone, Debug)]
pub struct Pipeline<
    P, // for a field or a return type, use `BoxedPipeline<T, E>` or `Pipeline<impl Policy>`
    C = ErrIsFailure,
> {
    pub(super) policy: P,
    pub(super) classify: C,
    pub(super) name: Option<Name>,
}

impl Pipeline<Identity> {
    /// Creates a pipeline without policies, in which every `Err` is a failure.
    pub const fn new() -> Self {
        Self { policy: Identity, classify: ErrIsFailure, name: None }
    }
}

impl Default for Pipeline<Identity> {
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
    ///
    /// It is set once, before [`retry_if`](Self::retry_if), [`fail_when`](Self::fail_when),
    /// [`error_for_value`](Self::error_for_value) and [`on_retry`](Self::on_retry), which refine
    /// it.
    #[expect(private_bounds, reason = "holds for the default classifier alone")]
    pub fn classify<D>(self, classify: D) -> Pipeline<P, D>
    where
        C: IsDefault,
    {
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

/// Holds for the classifier that a new pipeline has, so that none that was set is replaced, and
/// with it what was refined by a closure.
#[diagnostic::on_unimplemented(
    message = "the classifier of this pipeline is already set",
    label = "this pipeline has a classifier",
    note = "`classify` comes once, before `retry_if`, `fail_when`, `error_for_value` and `on_retry`: these refine the classifier"
)]
trait IsDefault {}

impl IsDefault for ErrIsFailure {}

// `T` and `E` are parameters of all methods that make a call, and none returns `O::Output`. To name that, rustc must prove
// `O: Operation` anew, after the bodies of the function. For an async closure inside a mark it then keeps a wrong answer,
// and the next incremental build panics (rust-lang/rust 154857). `tests/compile_fail.rs` builds each method twice.
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
    pub fn call<T: Send, E: Send, O>(&self, operation: O) -> impl Future<Output = Result<T, CallError<E>>> + Send
    where
        // The compiler quotes this line where an operation does not satisfy it.
        O: Operation<Output = T, Error = E>, // `|| async { .. }`; blocks: `call_blocking`; not `Send`: `Pipeline::call_local`; `&mut`: `with_state`
        C: Classify<T, E>,
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
    /// If the outer operation returns the [`CallError`] of this call, the outer pipeline needs the
    /// classifier [`ByCallError`](crate::outcome::ByCallError): without it, it counts a rejection
    /// by a policy in this pipeline as a failure.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    ///
    /// # Cancel safety
    /// As [`call`](Self::call).
    #[inline]
    pub fn call_within<T: Send, E: Send, O: Operation<Output = T, Error = E>>(
        &self,
        outer: AttemptInfo,
        operation: O,
    ) -> impl Future<Output = Result<T, CallError<E>>> + Send
    where
        C: Classify<T, E>,
    {
        let frame = outer.frame(&operation);
        run(Within::new(self), frame, operation, TypedCallState::result)
    }

    /// As [`call`](Self::call), with a fallback.
    ///
    /// If the call fails or is rejected, `instead` runs and its value becomes the call's;
    /// [`call_or_marked`](Self::call_or_marked) also returns which of the two it is. `instead`
    /// receives the [failed call](Failed), and runs at most once. It may return a value, as
    /// `|_| ready(Ok(value))` does, compute one from the error, or make another call
    /// [within](Failed::within) the remaining time.
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
    /// assert_eq!(pipeline.call_or(ask, |_| ready(Ok(100))).await.unwrap(), 100);
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
    pub fn call_or<T: Send, E: Send, O: Operation<Output = T, Error = E>, F, Fut>(
        &self,
        operation: O,
        instead: F,
    ) -> impl Future<Output = Result<T, CallError<E>>> + Send
    where
        C: Classify<T, E>,
        F: FnOnce(Failed<'_, T, E>) -> Fut + Send,
        Fut: Future<Output = Result<T, E>> + Send,
    {
        let cx = CallContext::of(&operation);
        run_or(self, cx, operation, instead, unmarked)
    }

    /// As [`call_or`](Self::call_or), with a marked value: an [`Answer`](super::Answer) tells the
    /// operation's own value from the fallback's, and holds the failure that the latter replaces.
    ///
    /// ```
    /// use std::{future::ready, io};
    /// use steadfast::Pipeline;
    ///
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let ask = || async { Err(io::Error::other("away")) };
    /// let price = Pipeline::new().call_or_marked(ask, |_| ready(Ok(100))).await.unwrap();
    /// assert!(price.is_degraded());
    /// assert_eq!(price.error().unwrap().to_string(), "away");
    /// assert_eq!(price.into_value(), 100);
    /// # });
    /// ```
    ///
    /// # Errors
    /// As [`call_or`](Self::call_or).
    ///
    /// # Cancel safety
    /// As [`call_or`](Self::call_or).
    #[inline]
    pub fn call_or_marked<T: Send, E: Send, O: Operation<Output = T, Error = E>, F, Fut>(
        &self,
        operation: O,
        instead: F,
    ) -> impl Future<Output = Answered<T, E>> + Send
    where
        C: Classify<T, E>,
        F: FnOnce(Failed<'_, T, E>) -> Fut + Send,
        Fut: Future<Output = Result<T, E>> + Send,
    {
        let cx = CallContext::of(&operation);
        run_or(self, cx, operation, instead, marked)
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
    pub fn call_within_or<T: Send, E: Send, O: Operation<Output = T, Error = E>, F, Fut>(
        &self,
        outer: AttemptInfo,
        operation: O,
        instead: F,
    ) -> impl Future<Output = Result<T, CallError<E>>> + Send
    where
        C: Classify<T, E>,
        F: FnOnce(Failed<'_, T, E>) -> Fut + Send,
        Fut: Future<Output = Result<T, E>> + Send,
    {
        let frame = outer.frame(&operation);
        run_or(Within::new(self), frame, operation, instead, unmarked)
    }

    /// As [`call_or_marked`](Self::call_or_marked), inside an attempt of another pipeline, as
    /// [`call_within`](Self::call_within).
    ///
    /// # Errors
    /// As [`call_or`](Self::call_or).
    ///
    /// # Cancel safety
    /// As [`call_or`](Self::call_or).
    #[inline]
    pub fn call_within_or_marked<T: Send, E: Send, O: Operation<Output = T, Error = E>, F, Fut>(
        &self,
        outer: AttemptInfo,
        operation: O,
        instead: F,
    ) -> impl Future<Output = Answered<T, E>> + Send
    where
        C: Classify<T, E>,
        F: FnOnce(Failed<'_, T, E>) -> Fut + Send,
        Fut: Future<Output = Result<T, E>> + Send,
    {
        let frame = outer.frame(&operation);
        run_or(Within::new(self), frame, operation, instead, marked)
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
