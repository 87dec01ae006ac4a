//! A tower [`Layer`](tower_layer::Layer) that wraps any [`Service`](tower_service::Service) in a
//! pipeline. Enabled by feature `tower`.
//!
//! # When, and when not
//!
//! For services that are stacked from layers: clients of hyper, reqwest or tonic, servers of axum.
//! If you make the call yourself, [`Pipeline::call`](crate::Pipeline::call) is shorter, can borrow,
//! and does not allocate.
//!
//! # Defaults
//!
//! | question | by default | otherwise |
//! |---|---|---|
//! | Where does the request of a further attempt come from? | [`ByClone`]: it is cloned | [`once`](PipelineLayer::once), [`requests`](PipelineLayer::requests) |
//! | May a request be repeated? | the pipeline's policies decide: by default only if it was certainly not sent | [`Requests::is_idempotent`]; `HttpRequests` reads the method |
//! | Has a request its own deadline and priority? | no | [`Requests::outer`], [`Requests::priority`]; `ReceivedRequests` reads headers |
//! | Which error is returned? | [`CallError`](crate::CallError) of the service's error | [`boxing_errors`](PipelineLayer::boxing_errors), `answering` |
//! | How are results judged? | by the pipeline's classifier | [`Pipeline::classify`](crate::Pipeline::classify) |
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
//! let (_, time) = Clock::manual();
//! let pipeline = Pipeline::new().then(Retry::new(RetryConfig::default()).unwrap());
//! let mut greeter = PipelineLayer::new(pipeline).layer(Greeter);
//! assert_eq!(time.block_on(greeter.call("you".into())).unwrap(), "Hello, you.");
//! ```
//!
//! # How it works
//!
//! The layer's service is always ready, and its [`poll_ready`](tower_service::Service::poll_ready)
//! reserves nothing: a service that is polled and then dropped, or kept and never called, holds no
//! permit. Each attempt takes its own clone of the inner service, waits until the clone is ready,
//! calls it, and drops it. Therefore the time-outs bound the wait for readiness, an open breaker
//! rejects also while the inner service is not ready, and between two attempts no permit of the
//! inner service is held.
//!
//! A request is cloned only inside a retry or a hedge; otherwise it is moved. A request that cannot
//! be cloned is moved, too, and no further attempt follows: the call fails with its error, and the
//! retry reports [`Spent`](crate::outcome::StopReason::Spent). Because no retry of this pipeline
//! repeats the request, a retry inside the handler is not limited by it.
//!
//! With feature `http`, `HttpRequests` handles requests that a client sends (retries by method, the
//! deadline as a header), and `ReceivedRequests` those that a server received (the sender's
//! deadline and priority, passed to the handler).
//!
//! # Composing
//!
//! Use one layer with one pipeline, not a layer for each policy: the policies see each other, and
//! the error stays flat. Layers that must see each attempt (tracing headers, authentication) go
//! inside. A policy whose key comes from the request, such as a rate limit by tenant, is called in
//! a layer or a handler of your own; `http::refusal` makes a response of its rejection.
//!
//! ```
//! # #[cfg(feature = "http")] {
//! use axum::{Router, routing::get};
//! use http::HeaderName;
//! use steadfast::{
//!     Pipeline,
//!     http::ByStatus,
//!     throttling::{ConcurrencyLimitConfig, ConcurrencyLimiter},
//!     tower::{PipelineLayer, ReceivedRequests},
//! };
//!
//! let pipeline = Pipeline::new()
//!     .then(ConcurrencyLimiter::new(ConcurrencyLimitConfig::of(100)).unwrap())
//!     .classify(ByStatus::new());
//! let layer = PipelineLayer::new(pipeline)
//!     .requests(ReceivedRequests::new().believing_priority(HeaderName::from_static("x-priority")))
//!     .answering(); // a rejection is a 503 with `retry-after`
//! let app: Router = Router::new().route("/", get(async || "hello")).layer(layer);
//! # }
//! ```
//!
//! # Gates
//!
//! With feature `http`, `GateLayer` is the layer of a service that faces callers: requests that
//! break a rule go no further. It is the first half of `gatekeeper`, and of use without the second.
//!
//! ```
//! # #[cfg(feature = "http")] {
//! use axum::{Router, routing::post};
//! use steadfast::tower::{GateConfig, GateLayer, GateRules};
//!
//! let rules = GateRules::new()
//!     .post("/orders").json().max_body(64 << 10)
//!     .get("/orders/{id}")
//!     .keep_headers(["authorization", "idempotency-key"]);
//! let gate = GateLayer::new(rules, GateConfig::default()).unwrap();
//! let app: Router = Router::new().route("/orders", post(async || "accepted")).layer(gate);
//! # }
//! ```
//!
//! | step | refused with | settings, by default |
//! |---|---|---|
//! | length of path and query | 414 | `max_uri` 2 KiB |
//! | ambiguous path, target with a host | 400 | `http::strict_path` |
//! | no route of this path, of this method | 404, 405 | `GateRules` |
//! | number and size of headers | 431 | `max_headers` 64, `max_header_bytes` 16 KiB |
//! | no host or two, two of a header that passes, unless it is a list | 400 | |
//! | two lengths, a length beside a transfer coding | 400 | |
//! | body without a length, too large | 411, 413 | `GateRules::max_body`, required for each body |
//! | other type, two types, a content coding | 415 | `GateRules::json` |
//! | too many bodies at once | 503 | `max_bodies` 1,024 |
//! | body that is late, or of another length | 408, 400 | `body_timeout` 10 s |
//!
//! The body is read as a whole before the inner service is called. After a refusal an HTTP/1
//! connection is closed, since the rest of the request may be framed otherwise. Admission by tenant
//! is a `PipelineLayer` inside the gate.
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
//! 5. A gate checks the cheapest rule first. A refused request has cost nothing of the later ones:
//!    no byte of its body is read, and the inner service is not called. A body that passes has
//!    exactly its declared length, and arrived before one deadline. At most `max_bodies` are in
//!    memory.
//! 6. Refusals of a gate are bare: 400, 404, 405, 408, 411, 413, 414, 415, 431 or 503, and 500 for
//!    a panic of the inner service or of a body. Events name the rule, and never a part of the
//!    request.
//! 7. A path that two programs might read differently is refused, and never normalised. Of the
//!    headers only the named ones pass, and those of identity and forwarding never.
//!
//! # Cancel safety
//!
//! Dropping the response future drops the running attempt with its clone of the inner service, and
//! returns all permits of the policies.
//!
//! # Events
//!
//! Those of the policies. A gate sends `GateEvent`: refused. The metrics count the same.
//!
//! # Pitfalls
//!
//! The inner service must be [`Clone`], and its clones must share what they limit, as tower's own
//! services do. Because the layer is always ready, tower's `LoadShed` or `Balance` around it learn
//! nothing from readiness: put a [`ConcurrencyLimiter`](crate::throttling::ConcurrencyLimiter) into
//! the pipeline, which rejects at once. The response future is boxed: one allocation a call, but
//! for a service of [`unboxed`](PipelineLayer::unboxed).
//!
//! `axum`'s `Router::layer` covers the routes that were added before it alone, and within `nest` a
//! layer sees the rest of the path: put a gate around the whole router, last. A server cuts the
//! fragment of a target (`/orders#/../x`) off before any layer sees it. `axum::serve` sets no time
//! limit for headers that arrive slowly; `hyper` has one, if it gets a timer.
//!
//! # Source
//!
//! tower's guide "Inventing the `Service` trait" and the chapter on cloning in the documentation of
//! `Service`.
mod finish;
#[cfg(feature = "http")]
mod gate; // requests that break a rule go no further
#[cfg(feature = "http")]
mod gate_bodies;
#[cfg(feature = "http")]
mod gate_event;
#[cfg(feature = "http")]
mod gate_rules;
#[cfg(feature = "http")]
mod http_requests;
mod layer;
mod requests;
mod service;

#[cfg(feature = "http")]
pub use finish::Answering;
pub use finish::{BoxError, Boxing, Finish, Flat, OperationError};
#[cfg(feature = "http")]
pub use gate::{GateLayer, GateService};
#[cfg(feature = "http")]
pub use gate_event::{GateEvent, GateRule};
#[cfg(feature = "http")]
pub use gate_rules::{GateConfig, GateRules};
#[cfg(feature = "http")]
pub use http_requests::{HttpRequests, ReceivedRequests};
pub use layer::PipelineLayer;
pub use requests::{ByClone, Once, Requests};
pub use service::{PipelineService, ResponseFuture};
