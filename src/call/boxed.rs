//! The pipeline for a struct's field: its type names no policy.
use std::{fmt, future::Future, pin::Pin, sync::Arc};

use super::{
    Attempt, CallContext, Explanation, Operation, Pipeline, Policy,
    pipeline::finish,
    policy::Judged,
};
use crate::outcome::{CallError, Classify, Outcome};

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A [`Pipeline`] behind a pointer, for results of one type. Costs two allocations a call more than the pipeline itself; a
/// clone shares everything.
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
    policy: Arc<dyn DynPolicy<T, E>>,
    classify: Arc<dyn Classify<T, E>>,
}

impl<P: Policy + 'static, C> Pipeline<P, C> {
    /// The same pipeline with its type forgotten, for results of type `Result<T, E>`.
    pub fn boxed<T: Send, E: Send>(self) -> BoxedPipeline<T, E>
    where
        C: Classify<T, E> + 'static,
    {
        BoxedPipeline { policy: Arc::new((self.policy, self.name)), classify: Arc::new(self.classify) }
    }
}

impl<T: Send, E: Send> BoxedPipeline<T, E> {
    /// As [`Pipeline::call`].
    ///
    /// # Errors
    /// As [`Pipeline::call`].
    ///
    /// # Cancel safety
    /// As [`Pipeline::call`].
    pub async fn call<O: Operation<Output = T, Error = E>>(&self, operation: O) -> Result<T, CallError<E>> {
        let cx = CallContext::root().idempotent(operation.is_idempotent());
        let mut judged = Judged { operation, classify: &*self.classify, attempts: 0 };
        let outcome = self.policy.around_dyn(&mut judged, cx).await;
        finish(outcome, judged.attempts)
    }

    /// As [`Pipeline::explain`].
    pub fn explain(&self) -> Explanation {
        self.policy.explain_dyn()
    }
}

impl<T, E> Clone for BoxedPipeline<T, E> {
    fn clone(&self) -> Self {
        Self { policy: self.policy.clone(), classify: self.classify.clone() }
    }
}

impl<T, E> fmt::Debug for BoxedPipeline<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BoxedPipeline")
    }
}

trait DynAttempt<T, E>: Send {
    fn attempt_dyn<'a>(&'a mut self, cx: CallContext<'a>) -> BoxFuture<'a, Outcome<T, E>>;
}

impl<A: Attempt> DynAttempt<A::Output, A::Error> for A {
    fn attempt_dyn<'a>(&'a mut self, cx: CallContext<'a>) -> BoxFuture<'a, Outcome<A::Output, A::Error>> {
        Box::pin(self.attempt(cx))
    }
}

struct Erased<'a, T, E>(&'a mut dyn DynAttempt<T, E>);

impl<T: Send, E: Send> Attempt for Erased<'_, T, E> {
    type Output = T;
    type Error = E;

    async fn attempt(&mut self, cx: CallContext<'_>) -> Outcome<T, E> {
        self.0.attempt_dyn(cx).await
    }
}

trait DynPolicy<T, E>: Send + Sync {
    fn around_dyn<'a>(
        &'a self,
        inner: &'a mut dyn DynAttempt<T, E>,
        cx: CallContext<'a>,
    ) -> BoxFuture<'a, Outcome<T, E>>;
    fn explain_dyn(&self) -> Explanation;
}

impl<P: Policy, T: Send, E: Send> DynPolicy<T, E> for (P, Option<crate::config::Name>) {
    fn around_dyn<'a>(
        &'a self,
        inner: &'a mut dyn DynAttempt<T, E>,
        cx: CallContext<'a>,
    ) -> BoxFuture<'a, Outcome<T, E>> {
        Box::pin(self.0.around(Erased(inner), cx))
    }

    fn explain_dyn(&self) -> Explanation {
        let mut explanation = Explanation::new(self.1.clone());
        self.0.describe(&mut explanation);
        explanation
    }
}
