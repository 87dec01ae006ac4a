//! The layer of an exposed service: requests that break a rule go no further.
use std::{
    fmt,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, Response, Version, header, request::Parts};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    GateConfig, GateRules,
    gate_bodies::{Bodies, Entered},
    gate_event::{GateEvent, GateRule},
    gate_rules::{Kept, Route, size},
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
    kept: Vec<Kept>,
    config: GateConfig,
    bodies: Bodies,
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
        Ok(Self(Arc::new(Gate { rules, kept, config, bodies: Bodies::default(), name, clock, events: hooks.events() })))
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

    /// Returns the number of requests with a body that are read, or in the inner service, now.
    pub fn bodies(&self) -> u64 {
        self.0.bodies.taken()
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
            let version = request.version();
            let mut whole = pin!(async {
                let (request, _entered) = match gate.admit(request).await {
                    Ok(admitted) => admitted,
                    Err(rule) => return Ok(gate.refuse(rule, version)),
                };
                poll_fn(|cx| inner.poll_ready(cx)).await?;
                inner.call(request).await
            });
            let caught = poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| whole.as_mut().poll(cx))) {
                Ok(polled) => polled.map(Some),
                Err(_) => Poll::Ready(None),
            });
            match caught.await {
                Some(answer) => answer,
                None => Ok(gate.refuse(GateRule::Panicked, version)),
            }
        })
    }
}

impl Gate {
    /// Returns the request with a complete body and the headers that pass, and the place of a body,
    /// or the rule that the request breaks.
    async fn admit<B>(&self, request: Request<B>) -> Result<(Request<B>, Option<Entered>), GateRule>
    where
        B: Body + From<Bytes>,
    {
        let (mut parts, body) = request.into_parts();
        let length = self.judge(&parts, &body)?;
        let (bytes, entered) = match length {
            0 => (Bytes::new(), None),
            length => {
                let entered = self.bodies.enter(self.config.max_bodies).ok_or(GateRule::Busy)?;
                // A body that is there already needs no timer.
                let late = async { self.clock.sleep(self.config.body_timeout).await };
                match race(read(body, length), late).await {
                    First::One(read) => (read?, Some(entered)),
                    First::Other(()) => return Err(GateRule::BodyTooSlow),
                }
            }
        };
        parts.headers = self.passed(parts.headers, bytes.len());
        Ok((Request::from_parts(parts, B::from(bytes)), entered))
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
        let is_one = match (hosts.next(), uri.authority()) {
            (Some(host), Some(authority)) => host.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes()),
            (None, None) => parts.version < Version::HTTP_11,
            _ => true,
        };
        // Of two values one hop takes the first, and another the last.
        let is_repeated = |kept: &Kept| !kept.is_list && headers.get_all(&kept.name).iter().nth(1).is_some();
        if !is_one || hosts.next().is_some() || self.kept.iter().any(is_repeated) {
            return Err(GateRule::Framing);
        }
        framed(route, headers, body)
    }

    /// Returns the headers that pass.
    fn passed(&self, mut headers: HeaderMap, length: usize) -> HeaderMap {
        let mut passed = HeaderMap::with_capacity(self.kept.len() + 2);
        for Kept { name, is_list } in &self.kept {
            if *is_list {
                for value in headers.get_all(name) {
                    passed.append(name, value.clone());
                }
            } else if let Some(value) = headers.remove(name) {
                passed.insert(name, value);
            }
        }
        if length > 0 {
            if let Some(value) = headers.remove(header::CONTENT_TYPE) {
                passed.insert(header::CONTENT_TYPE, value);
            }
            // Written anew: `007` is a number, too.
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
        if version <= Version::HTTP_11 {
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
    let mut types = headers.get_all(header::CONTENT_TYPE).iter();
    let named = types.next();
    if length > 0 && types.next().is_some() {
        return Err(GateRule::ContentType);
    }
    if let Some(wanted) = &route.content_type {
        let is_it = |value: &HeaderValue| {
            let name = value.to_str().ok().and_then(|text| text.split(';').next());
            name.is_some_and(|name| name.trim().eq_ignore_ascii_case(wanted))
        };
        if !named.is_some_and(is_it) {
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
    let mut body = pin!(body);
    // A body that comes at once is not copied.
    let (mut whole, mut read) = (Bytes::new(), BytesMut::new());
    while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        // Trailers are dropped.
        let Ok(mut data) = frame.map_err(|_| GateRule::BodyBroken)?.into_data() else { continue };
        let arrived = data.remaining();
        if arrived > length - whole.len() - read.len() {
            return Err(GateRule::Framing);
        }
        if arrived == length {
            whole = data.copy_to_bytes(arrived);
        } else if arrived > 0 {
            if read.is_empty() {
                read.reserve(length.min(RESERVED));
            }
            read.put(data);
        }
    }
    match whole.len() + read.len() {
        arrived if arrived < length => Err(GateRule::BodyBroken),
        _ if read.is_empty() => Ok(whole),
        _ => Ok(read.freeze()),
    }
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
