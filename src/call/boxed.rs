//! The boxed pipeline: its type names no policy, so it fits into a struct's field.
use std::{fmt, future::Future, sync::Arc};

use super::{
    Answered, AttemptInfo, CallContext, Explanation, Failed, Operation, Pipeline, Policy, WithAttempt,
    erased::{Boxed, DynPolicy},
    run::{Callee, run},
    state::TypedCallState,
    with_fallback::{marked, run_or, unmarked},
};
use crate::{
    config::Name,
    outcome::{CallError, Classify, ErrIsFailure},
};

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

// So that the compiler suggests `.into()` where a boxed pipeline is expected.
impl<P, C, T, E> From<Pipeline<P, C>> for BoxedPipeline<T, E>
where
    P: Policy + 'static,
    C: Classify<T, E> + 'static,
{
    fn from(pipeline: Pipeline<P, C>) -> Self {
        pipeline.boxed()
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
    pub fn call<O>(&self, operation: O) -> impl Future<Output = Result<T, CallError<E>>> + Send
    where
        O: Operation<Output = T, Error = E>, // `|| async { .. }`; blocks: `call_blocking`; not `Send`: `Pipeline::call_local`; `&mut`: `with_state`
    {
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
    pub fn call_or<O, F, Fut>(&self, operation: O, instead: F) -> impl Future<Output = Result<T, CallError<E>>> + Send
    where
        O: Operation<Output = T, Error = E>,
        F: FnOnce(Failed<'_, T, E>) -> Fut + Send,
        Fut: Future<Output = Result<T, E>> + Send,
    {
        let cx = CallContext::of(&operation);
        run_or(self.callee(), cx, operation, instead, unmarked)
    }

    /// Runs `operation` with a fallback, as [`Pipeline::call_or_marked`].
    ///
    /// # Errors
    /// As [`Pipeline::call_or`].
    ///
    /// # Cancel safety
    /// As [`Pipeline::call_or`].
    pub fn call_or_marked<O, F, Fut>(&self, operation: O, instead: F) -> impl Future<Output = Answered<T, E>> + Send
    where
        O: Operation<Output = T, Error = E>,
        F: FnOnce(Failed<'_, T, E>) -> Fut + Send,
        Fut: Future<Output = Result<T, E>> + Send,
    {
        let cx = CallContext::of(&operation);
        run_or(self.callee(), cx, operation, instead, marked)
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
    ) -> impl Future<Output = Result<T, CallError<E>>> + Send
    where
        O: Operation<Output = T, Error = E>,
        F: FnOnce(Failed<'_, T, E>) -> Fut + Send,
        Fut: Future<Output = Result<T, E>> + Send,
    {
        let frame = outer.frame(&operation);
        run_or(self.callee(), frame, operation, instead, unmarked)
    }

    /// Runs `operation` with a fallback, inside an attempt of another pipeline, as
    /// [`Pipeline::call_within_or_marked`].
    ///
    /// # Errors
    /// As [`Pipeline::call_or`].
    ///
    /// # Cancel safety
    /// As [`Pipeline::call_or`].
    pub fn call_within_or_marked<O, F, Fut>(
        &self,
        outer: AttemptInfo,
        operation: O,
        instead: F,
    ) -> impl Future<Output = Answered<T, E>> + Send
    where
        O: Operation<Output = T, Error = E>,
        F: FnOnce(Failed<'_, T, E>) -> Fut + Send,
        Fut: Future<Output = Result<T, E>> + Send,
    {
        let frame = outer.frame(&operation);
        run_or(self.callee(), frame, operation, instead, marked)
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
