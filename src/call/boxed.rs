//! The boxed pipeline: its type names no policy, so it fits into a struct's field.
use std::{fmt, future::Future, pin::Pin, sync::Arc};

use super::{
    Answered, Attempt, AttemptInfo, CallContext, CallState, Explanation, Failed, FellBack, Fork, Forks, Operation,
    Pipeline, Policy, WithAttempt,
    attempt::AttemptInternals,
    instead::run_or,
    run::{Callee, run},
    state::TypedCallState,
};
use crate::{
    config::Name,
    outcome::{CallError, Classify, ErrIsFailure, Outcome},
};

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A [`Pipeline`] behind a pointer, for results of one type.
///
/// A call costs two allocations more than through the pipeline itself. A clone shares everything.
///
/// ```
/// use steadfast::{Pipeline, call::BoxedPipeline, timeout::Timeout};
///
/// struct Repository { calls: BoxedPipeline<String, std::io::Error> }
///
/// let repository = Repository {
///     calls: Pipeline::new().then(Timeout::new(std::time::Duration::from_secs(1))).boxed(),
/// };
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// assert_eq!(repository.calls.call(|| async { Ok("found".into()) }).await.unwrap(), "found");
/// # });
/// ```
pub struct BoxedPipeline<T, E> {
    policies: Arc<dyn DynPolicy>,
    classify: Arc<dyn Classify<T, E>>,
}

impl<P: Policy + 'static, C> Pipeline<P, C> {
    /// Erases the types of the policies, for results of type `Result<T, E>`.
    pub fn boxed<T, E>(self) -> BoxedPipeline<T, E>
    where
        C: Classify<T, E> + 'static,
    {
        let Self { policy, classify, name } = self;
        let policies = Pipeline { policy, classify: ErrIsFailure, name };
        BoxedPipeline { policies: Arc::new(policies), classify: Arc::new(classify) }
    }
}

impl<T: Send, E: Send> BoxedPipeline<T, E> {
    /// Runs `operation`, as [`Pipeline::call`].
    ///
    /// # Errors
    /// As [`Pipeline::call`].
    ///
    /// # Cancel safety
    /// As [`Pipeline::call`].
    pub fn call<O: Operation<Output = T, Error = E>>(
        &self,
        operation: O,
    ) -> impl Future<Output = Result<T, CallError<E>>> + Send {
        let cx = CallContext::of(&operation);
        run(self.callee(), cx, operation, TypedCallState::result)
    }

    /// Runs `operation`, which receives the attempt's number and deadline, as
    /// [`Pipeline::call_with`].
    ///
    /// # Errors
    /// As [`Pipeline::call`].
    ///
    /// # Cancel safety
    /// As [`Pipeline::call`].
    pub fn call_with<F, Fut>(&self, operation: F) -> impl Future<Output = Result<T, CallError<E>>> + Send
    where
        F: FnMut(AttemptInfo) -> Fut + Send,
        Fut: Future<Output = Result<T, E>> + Send,
    {
        self.call(WithAttempt(operation))
    }

    /// Runs `operation` inside an attempt of another pipeline, as [`Pipeline::call_within`].
    ///
    /// # Errors
    /// As [`Pipeline::call`].
    ///
    /// # Cancel safety
    /// As [`Pipeline::call`].
    pub fn call_within<O: Operation<Output = T, Error = E>>(
        &self,
        outer: AttemptInfo,
        operation: O,
    ) -> impl Future<Output = Result<T, CallError<E>>> + Send {
        let frame = outer.frame(&operation);
        run(self.callee(), frame, operation, TypedCallState::result)
    }

    /// Runs `operation` with a fallback, as [`Pipeline::call_or`].
    ///
    /// # Errors
    /// As [`Pipeline::call_or`].
    ///
    /// # Cancel safety
    /// As [`Pipeline::call_or`].
    pub fn call_or<O, F, Fut>(&self, operation: O, instead: F) -> impl Future<Output = Answered<O>> + Send
    where
        O: Operation<Output = T, Error = E>,
        F: FnOnce(Failed<'_, T, E>) -> Fut + Send,
        Fut: Future<Output = Result<T, E>> + Send,
    {
        let cx = CallContext::of(&operation);
        run_or(self.callee(), cx, operation, instead)
    }

    /// Runs `operation` with a fallback, inside an attempt of another pipeline, as
    /// [`Pipeline::call_within_or`].
    ///
    /// # Errors
    /// As [`Pipeline::call_or`].
    ///
    /// # Cancel safety
    /// As [`Pipeline::call_or`].
    pub fn call_within_or<O, F, Fut>(
        &self,
        outer: AttemptInfo,
        operation: O,
        instead: F,
    ) -> impl Future<Output = Answered<O>> + Send
    where
        O: Operation<Output = T, Error = E>,
        F: FnOnce(Failed<'_, T, E>) -> Fut + Send,
        Fut: Future<Output = Result<T, E>> + Send,
    {
        let frame = outer.frame(&operation);
        run_or(self.callee(), frame, operation, instead)
    }

    /// Returns the name, if one is set, as [`Pipeline::name`].
    pub fn name(&self) -> Option<&str> {
        self.policies.name_dyn().map(Name::as_str)
    }

    /// Describes the policies, as [`Pipeline::explain`].
    pub fn explain(&self) -> Explanation {
        self.policies.explain_dyn()
    }

    /// Describes the policies for calls of this operation, as [`Pipeline::explain_for`].
    pub fn explain_for(&self, operation: &impl Operation) -> Explanation {
        self.explain().of(operation)
    }
}

impl<T, E> BoxedPipeline<T, E> {
    pub(super) fn callee(&self) -> BoxedCallee<'_, T, E> {
        BoxedCallee { policies: Boxed(&*self.policies), classify: &*self.classify }
    }
}

/// The parts of a boxed pipeline that a call needs.
pub(super) struct BoxedCallee<'a, T, E> {
    policies: Boxed<'a>,
    pub(super) classify: &'a dyn Classify<T, E>,
}

impl<'a, T, E> Callee for BoxedCallee<'a, T, E> {
    type Policy = Boxed<'a>;
    type Classify = dyn Classify<T, E> + 'a;

    fn name(&self) -> Option<&Name> {
        self.policies.0.name_dyn()
    }

    fn policy(&self) -> &Boxed<'a> {
        &self.policies
    }

    fn classify(&self) -> &(dyn Classify<T, E> + 'a) {
        self.classify
    }
}

impl<T, E> Clone for BoxedPipeline<T, E> {
    fn clone(&self) -> Self {
        Self { policies: self.policies.clone(), classify: self.classify.clone() }
    }
}

impl<T, E> fmt::Debug for BoxedPipeline<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BoxedPipeline")
    }
}

trait DynAttempt: Send {
    fn attempt_dyn<'a>(&'a mut self, cx: CallContext<'a>) -> BoxFuture<'a, Outcome>;
    fn call_state_dyn(&mut self) -> &mut dyn CallState;
    fn claim_fallback_dyn(&mut self);
    fn fork_dyn(&mut self) -> Option<Box<dyn DynForks + '_>>;
    fn fall_back_dyn<'a>(&'a mut self, cx: CallContext<'a>) -> BoxFuture<'a, FellBack>;
}

trait DynForks: Send + Sync {
    fn next_dyn(&self) -> Box<dyn DynFork + '_>;
}

trait DynFork: DynAttempt {
    fn keep_dyn(self: Box<Self>);
}

impl<A: Attempt> DynAttempt for A {
    fn attempt_dyn<'a>(&'a mut self, cx: CallContext<'a>) -> BoxFuture<'a, Outcome> {
        Box::pin(self.attempt(cx))
    }

    fn call_state_dyn(&mut self) -> &mut dyn CallState {
        self.call_state()
    }

    fn claim_fallback_dyn(&mut self) {
        self.claim_fallback();
    }

    fn fork_dyn(&mut self) -> Option<Box<dyn DynForks + '_>> {
        self.fork().map(|forks| Box::new(forks) as Box<dyn DynForks + '_>)
    }

    fn fall_back_dyn<'a>(&'a mut self, cx: CallContext<'a>) -> BoxFuture<'a, FellBack> {
        Box::pin(self.fall_back(cx))
    }
}

impl<F: Forks> DynForks for F {
    fn next_dyn(&self) -> Box<dyn DynFork + '_> {
        Box::new(self.next())
    }
}

impl<F: Fork> DynFork for F {
    fn keep_dyn(self: Box<Self>) {
        self.keep();
    }
}

struct Erased<'a>(&'a mut dyn DynAttempt);

impl Attempt for Erased<'_> {
    async fn attempt(&mut self, cx: CallContext<'_>) -> Outcome {
        self.0.attempt_dyn(cx).await
    }
}

impl AttemptInternals for Erased<'_> {
    fn attempt_nested(&mut self, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send {
        self.attempt(cx)
    }

    fn call_state(&mut self) -> &mut dyn CallState {
        self.0.call_state_dyn()
    }

    fn claim_fallback(&mut self) {
        self.0.claim_fallback_dyn();
    }

    fn fork(&mut self) -> Option<impl Forks> {
        self.0.fork_dyn().map(ErasedForks)
    }

    async fn fall_back(&mut self, cx: CallContext<'_>) -> FellBack {
        self.0.fall_back_dyn(cx).await
    }
}

struct ErasedForks<'a>(Box<dyn DynForks + 'a>);

impl Forks for ErasedForks<'_> {
    fn next(&self) -> impl Fork {
        ErasedFork(self.0.next_dyn())
    }
}

struct ErasedFork<'a>(Box<dyn DynFork + 'a>);

impl Attempt for ErasedFork<'_> {
    async fn attempt(&mut self, cx: CallContext<'_>) -> Outcome {
        self.0.attempt_dyn(cx).await
    }
}

impl AttemptInternals for ErasedFork<'_> {
    fn attempt_nested(&mut self, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send {
        self.attempt(cx)
    }

    fn call_state(&mut self) -> &mut dyn CallState {
        self.0.call_state_dyn()
    }

    fn claim_fallback(&mut self) {
        self.0.claim_fallback_dyn();
    }
}

impl Fork for ErasedFork<'_> {
    fn keep(self) {
        self.0.keep_dyn();
    }
}

/// The erased policies as one policy.
pub(super) struct Boxed<'a>(&'a dyn DynPolicy);

impl Policy for Boxed<'_> {
    async fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> Outcome {
        self.0.around_dyn(&mut inner, cx).await
    }

    fn has_fallback(&self) -> bool {
        self.0.has_fallback_dyn()
    }
}

trait DynPolicy: Send + Sync {
    fn name_dyn(&self) -> Option<&Name>;
    fn around_dyn<'a>(&'a self, inner: &'a mut dyn DynAttempt, cx: CallContext<'a>) -> BoxFuture<'a, Outcome>;
    fn explain_dyn(&self) -> Explanation;
    fn has_fallback_dyn(&self) -> bool;
}

impl<P: Policy, C: Send + Sync> DynPolicy for Pipeline<P, C> {
    fn name_dyn(&self) -> Option<&Name> {
        self.name.as_ref()
    }

    fn around_dyn<'a>(&'a self, inner: &'a mut dyn DynAttempt, cx: CallContext<'a>) -> BoxFuture<'a, Outcome> {
        Box::pin(self.policy.around(Erased(inner), cx))
    }

    fn explain_dyn(&self) -> Explanation {
        self.explain()
    }

    fn has_fallback_dyn(&self) -> bool {
        self.policy.has_fallback()
    }
}
