//! HTTP requests: those that a client sends, and those that a server received.
use http::{HeaderName, Request};

use super::Requests;
use crate::{
    call::{AttemptInfo, CallContext},
    http::deadline,
    outcome::Priority,
    time::Clock,
};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

fn is_idempotent<B>(request: &Request<B>) -> bool {
    request.method().is_idempotent() || request.headers().contains_key(IDEMPOTENCY_KEY)
}

/// Requests that a client sends. They are cloned for further attempts. A request is idempotent by
/// its method (all except `POST`, `PATCH` and `CONNECT`) or if it has an `idempotency-key`.
///
/// A [`Priority`] among the request's extensions is the priority of its call. An [`AttemptInfo`]
/// there is the outer attempt that the call is part of: a handler passes on the one that it found
/// among the extensions of [the request that it received](ReceivedRequests).
///
/// ```
/// use http::Request;
/// use steadfast::tower::{HttpRequests, Requests};
///
/// let requests = HttpRequests::new();
/// assert_eq!(requests.is_idempotent(&Request::put("/a").body(()).unwrap()), Some(true));
/// assert_eq!(requests.is_idempotent(&Request::post("/a").body(()).unwrap()), Some(false));
/// let charge = Request::post("/a").header("idempotency-key", "8e03").body(()).unwrap();
/// assert_eq!(requests.is_idempotent(&charge), Some(true));
/// ```
#[derive(Debug, Clone, Default)]
pub struct HttpRequests {
    clock: Option<Clock>,
}

impl HttpRequests {
    /// Creates an implementation that reads method, key and extensions, and adds no header.
    pub const fn new() -> Self {
        Self { clock: None }
    }

    /// Writes the remaining time of the call, by this clock, into [each request's
    /// header](deadline::write). The clock must be that of the time-outs in the pipeline.
    #[must_use]
    pub fn telling_deadlines(self, clock: &Clock) -> Self {
        Self { clock: Some(clock.clone()) }
    }
}

impl<B: Clone> Requests<Request<B>> for HttpRequests {
    fn another(&self, request: &Request<B>) -> Option<Request<B>> {
        Some(request.clone())
    }

    fn can_repeat(&self, _: &Request<B>) -> bool {
        true
    }

    fn is_idempotent(&self, request: &Request<B>) -> Option<bool> {
        Some(is_idempotent(request))
    }

    fn priority(&self, request: &Request<B>) -> Option<Priority> {
        request.extensions().get().copied()
    }

    fn outer(&self, request: &Request<B>) -> Option<AttemptInfo> {
        request.extensions().get().copied()
    }

    fn before_attempt(&self, request: &mut Request<B>, cx: CallContext<'_>) {
        if let Some(clock) = &self.clock
            && let Some(deadline) = cx.deadline()
        {
            deadline::write(request.headers_mut(), deadline - clock.now());
        }
    }
}

/// Requests that a server received. Each is handled once, so bodies need not be cloned.
///
/// A [`Priority`] among a request's extensions, put there by a layer that knows the sender, is the
/// priority of its call. Headers are trusted only where configured below. The handler finds an
/// [`AttemptInfo`] among the extensions; with it the handler's own calls end no later than this
/// call.
///
/// ```
/// use http::{HeaderName, Request};
/// use steadfast::{Priority, tower::{ReceivedRequests, Requests}};
///
/// let header = HeaderName::from_static("x-priority");
/// let requests = ReceivedRequests::new().believing_priority(header);
/// let request = Request::get("/").header("x-priority", "high").body(()).unwrap();
/// assert_eq!(requests.priority(&request), Some(Priority::High));
/// ```
#[derive(Debug, Clone, Default)]
pub struct ReceivedRequests {
    clock: Option<Clock>,
    priority: Option<HeaderName>,
}

impl ReceivedRequests {
    /// Creates an implementation that reads method and extensions, and trusts no header.
    pub const fn new() -> Self {
        Self { clock: None, priority: None }
    }

    /// Limits the call to the time that [the request's headers](deadline::read) leave it, by this
    /// clock. The clock must be that of the policies in the pipeline. A false header shortens the
    /// sender's own call only.
    #[must_use]
    pub fn believing_deadlines(self, clock: &Clock) -> Self {
        Self { clock: Some(clock.clone()), ..self }
    }

    /// Reads the [priority](Priority::as_str) from this header, for trusted senders. A priority
    /// among the extensions takes precedence; an unknown word is ignored.
    #[must_use]
    pub fn believing_priority(self, header: HeaderName) -> Self {
        Self { priority: Some(header), ..self }
    }
}

impl<B> Requests<Request<B>> for ReceivedRequests {
    fn another(&self, _: &Request<B>) -> Option<Request<B>> {
        None
    }

    fn is_idempotent(&self, request: &Request<B>) -> Option<bool> {
        Some(is_idempotent(request))
    }

    fn priority(&self, request: &Request<B>) -> Option<Priority> {
        let from_header = || {
            let word = request.headers().get(self.priority.as_ref()?)?.as_bytes();
            Priority::ALL.into_iter().find(|priority| word.eq_ignore_ascii_case(priority.as_str().as_bytes()))
        };
        request.extensions().get().copied().or_else(from_header)
    }

    fn outer(&self, request: &Request<B>) -> Option<AttemptInfo> {
        let clock = self.clock.as_ref()?;
        deadline::read(request.headers()).map(|left| AttemptInfo::with_deadline(clock.now() + left))
    }

    fn before_attempt(&self, request: &mut Request<B>, cx: CallContext<'_>) {
        request.extensions_mut().insert(cx.info());
    }
}
