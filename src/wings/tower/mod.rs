//! A pipeline as a tower [`Layer`](tower_layer::Layer), around any [`Service`](tower_service::Service). By feature `tower`.
//!
//! # When, and when not
//!
//! Where services are stacked from layers: clients of hyper, reqwest or tonic, servers of axum. Where you hold the call yourself,
//! [`Pipeline::call`](crate::Pipeline::call) is shorter, borrows what it needs, and allocates nothing.
//!
//! # Defaults
//!
//! | what | by default | otherwise |
//! |---|---|---|
//! | another attempt needs another request | [`ByClone`]: requests are cloned | [`once`](PipelineLayer::once), [`requests`](PipelineLayer::requests) |
//! | a request may be repeated | as the pipeline's policies say: by default only if it surely was not sent | [`Requests::is_idempotent`]; `HttpRequests` goes by the method |
//! | a request's own deadline and priority | none | [`Requests::outer`], [`Requests::priority`]; `ReceivedRequests` reads headers |
//! | errors | [`CallError`](crate::CallError) of the service's error | [`boxing_errors`](PipelineLayer::boxing_errors), `answering` |
//! | results are judged | as the pipeline has it | [`Pipeline::classify`](crate::Pipeline::classify) |
//!
//! # Example
//!
//! ```
//! use std::{convert::Infallible, task::{Context, Poll}};
//! use steadfast::{Pipeline, retry::{Retry, RetryConfig}, time::Clock, tower::PipelineLayer};
//! use tower_layer::Layer;
//! use tower_service::Service;
//!
//! #[derive(Clone)]
//! struct Greeter;
//!
//! impl Service<String> for Greeter {
//!     type Response = String;
//!     type Error = Infallible;
//!     type Future = std::future::Ready<Result<String, Infallible>>;
//!     fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
//!         Poll::Ready(Ok(()))
//!     }
//!     fn call(&mut self, name: String) -> Self::Future {
//!         std::future::ready(Ok(format!("Hello, {name}.")))
//!     }
//! }
//!
//! let (_, hand) = Clock::manual();
//! let pipeline = Pipeline::new().then(Retry::new(RetryConfig::default()).unwrap());
//! let mut greeter = PipelineLayer::new(pipeline).layer(Greeter);
//! assert_eq!(hand.block_on(greeter.call("you".into())).unwrap(), "Hello, you.");
//! ```
//!
//! # How it works
//!
//! The layer is always ready, and [`poll_ready`](tower_service::Service::poll_ready) asks nobody: what is polled and then dropped, or
//! kept and never called, holds nothing. Each attempt takes a clone of the inner service of its own, waits until that clone is ready, calls it,
//! and drops it. So the time-outs bound the wait for readiness, an open breaker refuses although the service behind it is not ready, and
//! between two attempts no place in the inner service is held.
//!
//! A request is cloned only inside a retry or a hedge; without one it is moved. One that cannot be cloned is moved too, and then no other
//! attempt follows: the call fails with the error that it met, and the retry says [`Spent`](crate::outcome::StopReason::Spent).
//! As no retry of this pipeline repeats it, a retry in the handler does its own work.
//!
//! With feature `http`, `HttpRequests` knows what a client sends (what may be repeated, by its method; the deadline as a header), and
//! `ReceivedRequests` what a server received (its sender's deadline and priority, handed on to the handler).
//!
//! # Composing
//!
//! One layer with one pipeline, not a layer for each policy: the policies see each other, and the error stays flat. Layers that must see
//! each attempt (tracing headers, authentication) go inside. A policy whose key comes from the request (a rate limit by tenant) is asked
//! in a layer or a handler of your own: its refusal becomes an answer by `http::refusal`.
//!
//! ```
//! # #[cfg(feature = "http")] {
//! use axum::{Router, routing::get};
//! use http::HeaderName;
//! use steadfast::{Pipeline, http::ByStatus, throttling::{ConcurrencyLimitConfig, ConcurrencyLimiter}};
//! use steadfast::tower::{PipelineLayer, ReceivedRequests};
//!
//! let pipeline = Pipeline::new()
//!     .then(ConcurrencyLimiter::new(ConcurrencyLimitConfig::of(100)).unwrap())
//!     .classify(ByStatus::new());
//! let layer = PipelineLayer::new(pipeline)
//!     .requests(ReceivedRequests::new().believing_priority(HeaderName::from_static("x-priority")))
//!     .answering(); // what it refuses is 503 with `retry-after`
//! let app: Router = Router::new().route("/", get(async || "hello")).layer(layer);
//! # }
//! ```
//!
//! # Guarantees
//!
//! 1. `poll_ready` reserves nothing that a drop would leak. No permit of the inner service is held
//!    between two attempts, and a dropped call returns everything.
//! 2. A request is cloned only for a retry or a hedge. A request that cannot be cloned, or must not
//!    be repeated, is sent once.
//! 3. Clones of a service, and services of one layer, share the state of the policies. Errors are
//!    flat, and contain the service's own.
//! 4. Deadlines and priorities travel in headers, from a client to a server and on to the handler's
//!    own calls.
//!
//! # Cancel safety
//!
//! A dropped response future drops the running attempt with its clone of the inner service, and gives back all that the policies held.
//!
//! # Events
//!
//! Those of the policies.
//!
//! # Pitfalls
//!
//! The inner service must be [`Clone`], and its clones must share what they limit, as tower's own do. As the layer is always ready, tower's
//! `LoadShed` or `Balance` around it learn nothing from readiness: put a [`ConcurrencyLimiter`](crate::throttling::ConcurrencyLimiter) into
//! the pipeline, which refuses at once. The response future is boxed: one allocation a call.
//!
//! # Source
//!
//! tower's own guide "Inventing the `Service` trait" and the chapter on cloning in the documentation of `Service`.
mod finish;
#[cfg(feature = "http")]
mod http_requests;
mod layer;
mod requests;
mod service;

#[cfg(feature = "http")]
pub use finish::Answering;
pub use finish::{BoxError, Boxing, Finish, Flat, OperationError};
#[cfg(feature = "http")]
pub use http_requests::{HttpRequests, ReceivedRequests};
pub use layer::PipelineLayer;
pub use requests::{ByClone, Once, Requests};
pub use service::{PipelineService, ResponseFuture};
