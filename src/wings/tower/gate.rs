//! The layer of an exposed service: requests that break a rule go no further.
use std::{
    fmt,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, Version, header, request::Parts};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    GateConfig, GateRules,
    gate_event::{GateEvent, GateRule},
    gate_rules::{Route, size},
};
use crate::{
    build::{Builder, Common, Component, HasEvents, HasName},
    config::{ConfigError, Name},
    http::strict_path,
    observe::{Events, Subscription},
    race::{First, race},
    time::Clock,
};

/// A layer that refuses requests by strict rules, cheapest first, and removes the headers that no
/// rule names. The [page of the gatekeeper](crate::tower#gates) has the details.
///
/// All services of one layer, and their clones, share its events.
#[derive(Clone)]
pub struct GateLayer(Arc<Gate>);

struct Gate {
    rules: GateRules,
    kept: Vec<HeaderName>,
    config: GateConfig,
    name: Option<Name>,
    clock: Clock,
    events: Events<GateEvent>,
}

/// Arguments of a gate, beside name and clock.
pub struct GateSpec {
    rules: GateRules,
    config: GateConfig,
}

impl Component for GateLayer {
    type Built = Result<Self, ConfigError>;
    type Spec = GateSpec;

    fn assemble(spec: GateSpec, common: Common) -> Self::Built {
        let (GateSpec { rules, config }, Common { name, clock, hooks, .. }) = (spec, common);
        config.check()?;
        let kept = rules.check()?;
        Ok(Self(Arc::new(Gate { rules, kept, config, name, clock, events: hooks.events() })))
    }
}

impl HasName for GateLayer {}
impl HasEvents<GateEvent> for GateLayer {}

impl GateLayer {
    /// Creates a layer with these rules.
    ///
    /// # Errors
    /// If a setting breaks its rule, a route with a body has no limit, two routes overlap, or a
    /// header may not pass.
    pub fn new(rules: GateRules, config: GateConfig) -> Result<Self, ConfigError> {
        Self::builder(rules, config).build()
    }

    /// Creates a builder with the arguments of [`new`](Self::new).
    pub fn builder(rules: GateRules, config: GateConfig) -> Builder<Self> {
        Builder::new(GateSpec { rules, config })
    }

    /// Subscribes to the events of the layer, from now on.
    pub fn events(&self) -> Subscription<GateEvent> {
        self.0.events.subscribe()
    }
}

impl<S> Layer<S> for GateLayer {
    type Service = GateService<S>;

    fn layer(&self, inner: S) -> GateService<S> {
        GateService { inner, gate: self.0.clone() }
    }
}

/// A service behind a gate: see [`GateLayer`].
#[derive(Clone)]
pub struct GateService<S> {
    inner: S,
    gate: Arc<Gate>,
}

impl<S> GateService<S> {
    /// Returns the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, B, R> Service<Request<B>> for GateService<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    B: Body + From<Bytes> + Send + 'static,
    B::Data: Send,
    R: Default + Send,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, S::Error>> + Send>>;

    /// Returns ready at once: a refused request does not even wait for the inner service.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let Self { mut inner, gate } = self.clone();
        Box::pin(async move {
            let request = match gate.admit(request).await {
                Ok(request) => request,
                Err((rule, version)) => return Ok(gate.refuse(rule, version)),
            };
            poll_fn(|cx| inner.poll_ready(cx)).await?;
            let mut called = match catch_unwind(AssertUnwindSafe(|| Box::pin(inner.call(request)))) {
                Ok(called) => called,
                Err(_) => return Ok(gate.refuse(GateRule::Panicked, Version::HTTP_2)),
            };
            let caught = poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| called.as_mut().poll(cx))) {
                Ok(polled) => polled.map(Some),
                Err(_) => Poll::Ready(None),
            });
            match caught.await {
                Some(answer) => answer,
                None => Ok(gate.refuse(GateRule::Panicked, Version::HTTP_2)),
            }
        })
    }
}

impl Gate {
    /// Returns the request with a complete body and the headers that pass, or the rule that it
    /// breaks.
    async fn admit<B>(&self, request: Request<B>) -> Result<Request<B>, (GateRule, Version)>
    where
        B: Body + From<Bytes>,
    {
        let (mut parts, body) = request.into_parts();
        let version = parts.version;
        let length = self.judge(&parts, &body).map_err(|rule| (rule, version))?;
        let bytes = match length {
            0 => Bytes::new(),
            length => {
                let read = race(read(body, length), self.clock.sleep(self.config.body_timeout));
                match read.await {
                    First::One(read) => read.map_err(|rule| (rule, version))?,
                    First::Other(()) => return Err((GateRule::BodyTooSlow, version)),
                }
            }
        };
        parts.headers = self.passed(&parts.headers, bytes.len());
        Ok(Request::from_parts(parts, B::from(bytes)))
    }

    /// Returns the declared length of the body, or the first rule that the request breaks. No byte
    /// of the body is read.
    fn judge<B: Body>(&self, parts: &Parts, body: &B) -> Result<usize, GateRule> {
        let (uri, headers, config) = (&parts.uri, &parts.headers, &self.config);
        let size_of_uri = uri.path_and_query().map_or(0, |both| both.as_str().len());
        if size_of_uri > config.max_uri {
            return Err(GateRule::UriTooLong);
        }
        let path = strict_path(uri.path()).map_err(|_| GateRule::Path)?;
        // A target with a host belongs to a proxy; in HTTP/2 each has one.
        if parts.version <= Version::HTTP_11 && uri.authority().is_some() {
            return Err(GateRule::Path);
        }
        let route = self
            .rules
            .find(&parts.method, path)
            .map_err(|is_known| if is_known { GateRule::Method } else { GateRule::Route })?;
        if headers.len() > config.max_headers || size(headers) > config.max_header_bytes {
            return Err(GateRule::HeadersTooLarge);
        }
        let mut hosts = headers.get_all(header::HOST).iter();
        // In HTTP/2 the target has a host, too. Hops would choose one of two.
        let differs = hosts
            .next()
            .zip(uri.authority())
            .is_some_and(|(host, authority)| !host.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes()));
        if differs || hosts.next().is_some() {
            return Err(GateRule::Framing);
        }
        framed(route, headers, body)
    }

    /// Returns the headers that pass.
    fn passed(&self, headers: &HeaderMap, length: usize) -> HeaderMap {
        let mut passed = HeaderMap::new();
        let own = (length > 0).then_some(&header::CONTENT_TYPE);
        for name in self.kept.iter().chain(own.filter(|own| !self.kept.contains(own))) {
            for value in headers.get_all(name) {
                passed.append(name, value.clone());
            }
        }
        if length > 0 {
            passed.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        }
        passed
    }

    fn refuse<R: Default>(&self, rule: GateRule, version: Version) -> Response<R> {
        let status = rule.status();
        self.events.send(self.name.as_ref(), self.clock.now(), || GateEvent::Refused { rule, status });
        let mut answer = Response::new(R::default());
        *answer.status_mut() = status;
        // What follows on the connection may be a part of this request that was framed otherwise.
        if rule.is_about_body() && version <= Version::HTTP_11 {
            answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        answer
    }
}

/// Returns the declared length of the body, or the rule that length or type break.
fn framed<B: Body>(route: &Route, headers: &HeaderMap, body: &B) -> Result<usize, GateRule> {
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    let declared = match (lengths.next(), lengths.next()) {
        (Some(_), Some(_)) => return Err(GateRule::Framing),
        (Some(length), None) => {
            let text = length.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
            Some(text.and_then(|text| text.parse::<u64>().ok()).ok_or(GateRule::Framing)?)
        }
        (None, _) => None,
    };
    if headers.contains_key(header::TRANSFER_ENCODING) {
        return Err(if declared.is_some() { GateRule::Framing } else { GateRule::NoLength });
    }
    let most = route.max_body.unwrap_or(0);
    let length = declared.map_or(Some(0), |length| usize::try_from(length).ok()).filter(|length| *length <= most);
    let length = length.ok_or(GateRule::BodyTooLarge)?;
    if length == 0 && !body.is_end_stream() {
        return Err(if declared.is_some() { GateRule::Framing } else { GateRule::NoLength });
    }
    // A route with a type demands a body.
    if length == 0 && route.content_type.is_some() {
        return Err(GateRule::NoLength);
    }
    if let Some(wanted) = &route.content_type {
        let mut types = headers.get_all(header::CONTENT_TYPE).iter();
        let is_it = |value: &HeaderValue| {
            let name = value.to_str().ok().and_then(|text| text.split(';').next());
            name.is_some_and(|name| name.trim().eq_ignore_ascii_case(wanted))
        };
        if !types.next().is_some_and(is_it) || types.next().is_some() {
            return Err(GateRule::ContentType);
        }
    }
    // A coding hides the size and the content from each check.
    if headers.contains_key(header::CONTENT_ENCODING) {
        return Err(GateRule::ContentType);
    }
    Ok(length)
}

/// Bytes that are reserved for a body before it arrives: a declared length costs its sender
/// nothing.
const RESERVED: usize = 16 << 10;

/// Reads a body of exactly the declared length.
async fn read<B: Body>(body: B, length: usize) -> Result<Bytes, GateRule> {
    use bytes::Buf;
    let mut body = Box::pin(body);
    let mut read = BytesMut::with_capacity(length.min(RESERVED));
    while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        // Trailers are dropped.
        let Ok(mut data) = frame.map_err(|_| GateRule::BodyBroken)?.into_data() else { continue };
        while data.has_remaining() {
            let chunk = data.chunk();
            if chunk.len() > length - read.len() {
                return Err(GateRule::Framing);
            }
            read.extend_from_slice(chunk);
            let taken = chunk.len();
            data.advance(taken);
        }
    }
    if read.len() == length { Ok(read.freeze()) } else { Err(GateRule::BodyBroken) }
}

impl fmt::Debug for GateLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateLayer").field("name", &self.0.name).finish_non_exhaustive()
    }
}

impl<S> fmt::Debug for GateService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateService").field("name", &self.gate.name).finish_non_exhaustive()
    }
}
