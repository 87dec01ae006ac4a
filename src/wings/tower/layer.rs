//! The layer that wraps services in a pipeline.
use std::sync::Arc;

use tower_layer::Layer;
use tower_service::Service;

use super::{Boxing, ByClone, Finish, Flat, Once, PipelineService, Requests, service::Unboxed};
use crate::{
    call::{Identity, Pipeline, Policy},
    outcome::{Classify, ErrIsFailure},
};

/// A layer that wraps services in a pipeline. All services of one layer, and their clones, share
/// the policies' state.
pub struct PipelineLayer<P = Identity, C = ErrIsFailure, R = ByClone, F = Flat> {
    pipeline: Arc<Pipeline<P, C>>,
    requests: R,
    finish: F,
}

impl<P, C> PipelineLayer<P, C> {
    /// Creates a layer with this pipeline. It clones requests if a retry or a hedge needs that, and
    /// its services return [`CallError`](crate::CallError)s.
    pub fn new(pipeline: Pipeline<P, C>) -> Self {
        Self { pipeline: Arc::new(pipeline), requests: ByClone, finish: Flat }
    }
}

impl<P, C, R, F> PipelineLayer<P, C, R, F> {
    /// Sets the knowledge about requests: any [`Requests`](super::Requests).
    pub fn requests<Q>(self, requests: Q) -> PipelineLayer<P, C, Q, F> {
        PipelineLayer { pipeline: self.pipeline, requests, finish: self.finish }
    }

    /// Limits each call to one attempt, for requests that cannot be cloned.
    pub fn once(self) -> PipelineLayer<P, C, Once, F> {
        self.requests(Once)
    }

    /// Sets the conversion of results: any [`Finish`](super::Finish).
    pub fn finishing<G>(self, finish: G) -> PipelineLayer<P, C, R, G> {
        PipelineLayer { pipeline: self.pipeline, requests: self.requests, finish }
    }

    /// Boxes errors, for stacks of layers that require it.
    pub fn boxing_errors(self) -> PipelineLayer<P, C, R, Boxing> {
        self.finishing(Boxing)
    }

    /// Converts rejections and time-outs to [responses](crate::http::answer), for HTTP servers.
    #[cfg(feature = "http")]
    pub fn answering(self) -> PipelineLayer<P, C, R, super::Answering> {
        self.finishing(super::Answering)
    }

    /// Wraps a service of requests `Req` as [`layer`](Layer::layer) does, without a box around the
    /// future of each call. The service and its futures have types without names: use it where the
    /// service is a local variable, or is boxed as a whole. In a stack of layers it is
    /// `tower::layer::layer_fn(|inner| layer.unboxed::<_, Req>(inner))`.
    ///
    /// ```
    /// use std::{convert::Infallible, task::{Context, Poll}};
    /// use steadfast::{Pipeline, timeout::Timeout, tower::PipelineLayer};
    /// use tower_service::Service;
    ///
    /// #[derive(Clone)]
    /// struct Length;
    ///
    /// impl Service<String> for Length {
    ///     type Response = usize;
    ///     type Error = Infallible;
    ///     type Future = std::future::Ready<Result<usize, Infallible>>;
    ///     fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
    ///         Poll::Ready(Ok(()))
    ///     }
    ///     fn call(&mut self, text: String) -> Self::Future {
    ///         std::future::ready(Ok(text.len()))
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let timeout = Timeout::new(std::time::Duration::from_secs(1));
    /// let layer = PipelineLayer::new(Pipeline::new().then(timeout));
    /// let mut length = layer.unboxed(Length);
    /// assert_eq!(length.call("seven".to_owned()).await.unwrap(), 5);
    /// # }
    /// ```
    pub fn unboxed<S, Req>(
        &self,
        inner: S,
    ) -> impl Service<Req, Response = S::Response, Error = F::Error, Future: Send> + Clone + use<S, Req, P, C, R, F>
    where
        S: Service<Req> + Clone + Send,
        S::Future: Send,
        S::Response: Send,
        S::Error: Send,
        Req: Send,
        P: Policy,
        C: Classify<S::Response, S::Error>,
        R: Requests<Req> + Clone,
        F: Finish<S::Response, S::Error> + Clone,
    {
        let service = self.layer(inner);
        Unboxed(move |request| service.start(request))
    }

    /// Returns the pipeline.
    pub fn pipeline(&self) -> &Pipeline<P, C> {
        &self.pipeline
    }
}

impl<S, P, C, R: Clone, F: Clone> Layer<S> for PipelineLayer<P, C, R, F> {
    type Service = PipelineService<S, P, C, R, F>;

    fn layer(&self, inner: S) -> Self::Service {
        PipelineService::new(inner, self.pipeline.clone(), self.requests.clone(), self.finish.clone())
    }
}

impl<P, C, R: Clone, F: Clone> Clone for PipelineLayer<P, C, R, F> {
    fn clone(&self) -> Self {
        Self { pipeline: self.pipeline.clone(), requests: self.requests.clone(), finish: self.finish.clone() }
    }
}

crate::build::debug_fields!([P, C, R, F] PipelineLayer<P, C, R, F>, |this| pipeline: this.pipeline.name());
