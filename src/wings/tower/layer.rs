//! The layer that wraps services in a pipeline.
use std::sync::Arc;

use tower_layer::Layer;

use super::{Boxing, ByClone, Flat, Once, PipelineService};
use crate::call::{Identity, Pipeline};
use crate::outcome::ErrIsFailure;

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
