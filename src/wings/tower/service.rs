//! The service that the layer makes, and the attempts of one call.
use std::{
    fmt,
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tower_service::Service;

use super::{Finish, Requests};
use crate::{
    call::{CallContext, Operation, OperationName, Pipeline, Policy, boxed_in_place},
    outcome::{Classify, Priority},
};

/// A service inside a pipeline: see [`PipelineLayer`](super::PipelineLayer). Clones share the
/// policies' state.
pub struct PipelineService<S, P, C, R, F> {
    inner: S,
    pipeline: Arc<Pipeline<P, C>>,
    requests: R,
    finish: F,
}

/// The boxed future of a call.
pub type ResponseFuture<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

impl<S, P, C, R, F> PipelineService<S, P, C, R, F> {
    pub(super) const fn new(inner: S, pipeline: Arc<Pipeline<P, C>>, requests: R, finish: F) -> Self {
        Self { inner, pipeline, requests, finish }
    }

    /// Returns the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns the inner service by value.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, Req, P, C, R, F> Service<Req> for PipelineService<S, P, C, R, F>
where
    S: Service<Req> + Clone + Send + 'static,
    S::Future: Send,
    S::Response: Send + 'static,
    S::Error: Send + 'static,
    Req: Send + 'static,
    P: Policy + 'static,
    C: Classify<S::Response, S::Error> + 'static,
    R: Requests<Req> + Clone + 'static,
    F: Finish<S::Response, S::Error> + Clone + 'static,
{
    type Response = S::Response;
    type Error = F::Error;
    type Future = ResponseFuture<S::Response, F::Error>;

    /// Returns ready at once. Policies and the inner service take permits during the call, never
    /// before.
    #[inline]
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), F::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Req) -> Self::Future {
        boxed_in_place(|| self.start(request))
    }
}

impl<S: Clone, P: Policy, C, R: Clone, F: Clone> PipelineService<S, P, C, R, F> {
    /// Starts a call, as a future that owns all its parts.
    #[inline]
    pub(super) fn start<Req>(
        &self,
        request: Req,
    ) -> impl Future<Output = Result<S::Response, F::Error>> + Send + use<S, Req, P, C, R, F>
    where
        S: Service<Req> + Send,
        S::Future: Send,
        S::Response: Send,
        S::Error: Send,
        Req: Send,
        C: Classify<S::Response, S::Error>,
        R: Requests<Req>,
        F: Finish<S::Response, S::Error>,
    {
        let Self { inner, pipeline, requests, finish } = self.clone();
        let outer = requests.outer(&request);
        let attempts = Attempts {
            idempotent: requests.is_idempotent(&request),
            priority: requests.priority(&request),
            name: requests.name(&request),
            parts: Some((inner, request)),
            requests,
        };
        pipeline.call_owned(outer, attempts, move |result| finish.finish(result))
    }
}

/// A service of calls that a function starts.
#[derive(Clone)]
pub(super) struct Unboxed<M>(pub(super) M);

impl<M, Req, Fut, T, E> Service<Req> for Unboxed<M>
where
    M: Fn(Req) -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    type Response = T;
    type Error = E;
    type Future = Fut;

    #[inline]
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), E>> {
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn call(&mut self, request: Req) -> Fut {
        (self.0)(request)
    }
}

/// The attempts of one call.
struct Attempts<S, R, Req> {
    /// The service and the request for the next attempt; `None` once they were moved into an
    /// attempt.
    parts: Option<(S, Req)>,
    requests: R,
    idempotent: Option<bool>,
    priority: Option<Priority>,
    name: Option<&'static OperationName>,
}

impl<S: Clone, R: Requests<Req>, Req> Attempts<S, R, Req> {
    /// Returns a copy of the parts, for an attempt that another may follow or run beside.
    fn copied(&self, cx: CallContext<'_>) -> Option<(S, Req)> {
        let (service, request) = self.parts.as_ref()?;
        let mut request = self.requests.another(request)?;
        self.requests.before_attempt(&mut request, cx);
        Some((service.clone(), request))
    }

    /// Takes the parts, for the last attempt.
    #[inline]
    fn moved(&mut self, cx: CallContext<'_>) -> Option<(S, Req)> {
        let (service, mut request) = self.parts.take()?;
        self.requests.before_attempt(&mut request, cx.once().context());
        Some((service, request))
    }
}

/// Runs one attempt on a service of its own. Dropping the future drops the service, and with it
/// what the service reserved to become ready.
#[inline]
async fn attempt<S: Service<Req>, Req>((mut service, request): (S, Req)) -> Result<S::Response, S::Error> {
    poll_fn(|task| service.poll_ready(task)).await?;
    let response = service.call(request);
    drop(service);
    response.await
}

impl<S, R, Req> Operation for Attempts<S, R, Req>
where
    S: Service<Req> + Clone + Send,
    S::Future: Send,
    S::Response: Send,
    S::Error: Send,
    R: Requests<Req>,
    Req: Send,
{
    type Output = S::Response;
    type Error = S::Error;

    #[inline]
    async fn run(&mut self, cx: CallContext<'_>) -> Result<S::Response, S::Error> {
        let copy = if cx.is_retried() { self.copied(cx) } else { None };
        match copy.or_else(|| self.moved(cx)) {
            Some(parts) => attempt(parts).await,
            // Unreachable: no policy runs a spent operation.
            None => std::future::pending().await,
        }
    }

    fn is_idempotent(&self) -> Option<bool> {
        self.idempotent
    }

    fn priority(&self) -> Option<Priority> {
        self.priority
    }

    fn name(&self) -> Option<&'static OperationName> {
        self.name
    }

    fn is_spent(&self) -> bool {
        self.parts.is_none()
    }

    fn can_overlap(&self) -> bool {
        self.parts.as_ref().is_some_and(|(_, request)| self.requests.can_repeat(request))
    }

    fn start(
        &mut self,
        cx: CallContext<'_>,
    ) -> Option<impl Future<Output = Result<S::Response, S::Error>> + Send + use<S, R, Req>> {
        self.copied(cx).map(attempt)
    }
}

impl<S: Clone, P, C, R: Clone, F: Clone> Clone for PipelineService<S, P, C, R, F> {
    fn clone(&self) -> Self {
        let Self { inner, pipeline, requests, finish } = self;
        Self::new(inner.clone(), pipeline.clone(), requests.clone(), finish.clone())
    }
}

crate::build::debug_fields!([S: fmt::Debug, P, C, R, F] PipelineService<S, P, C, R, F>, |this|
    inner: this.inner, pipeline: this.pipeline.name()
);
