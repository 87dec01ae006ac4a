//! Requests through a gate: each refused one by its rule, at no later cost.
use std::{
    convert::Infallible,
    future::Ready,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, Version};
use http_body_util::Full;
use hyper::body::{Body, Frame};
use steadfast::{
    testing::{ManualClock, drop_at_every_await},
    time::Clock,
    tower::{GateConfig, GateEvent, GateLayer, GateRules},
};
use tower_layer::Layer;
use tower_service::Service;

/// A body that counts the bytes that are read from it, and may never end.
pub(crate) enum Counted {
    Arriving { chunks: Vec<Bytes>, read: Arc<AtomicU64>, then_hangs: bool },
    Whole(Full<Bytes>),
}

impl From<Bytes> for Counted {
    fn from(bytes: Bytes) -> Self {
        Self::Whole(Full::new(bytes))
    }
}

impl Body for Counted {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Arriving { chunks, read, then_hangs } => match chunks.pop() {
                Some(chunk) => {
                    read.fetch_add(chunk.len() as u64, SeqCst);
                    Poll::Ready(Some(Ok(Frame::data(chunk))))
                }
                None if *then_hangs => Poll::Pending,
                None => Poll::Ready(None),
            },
            Self::Whole(full) => Pin::new(full).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Arriving { chunks, then_hangs, .. } => chunks.is_empty() && !then_hangs,
            Self::Whole(full) => full.is_end_stream(),
        }
    }
}

/// An inner service that records what reaches it.
#[derive(Clone, Default)]
pub(crate) struct Inner(Arc<Mutex<Vec<(String, HeaderMap)>>>);

impl Service<Request<Counted>> for Inner {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Counted>) -> Self::Future {
        assert!(!request.uri().path().contains("panic"), "on purpose");
        let line = format!("{} {}", request.method(), request.uri());
        self.0.lock().unwrap().push((line, request.headers().clone()));
        std::future::ready(Ok(Response::new("passed".to_owned())))
    }
}

pub(crate) struct World {
    pub(crate) time: ManualClock,
    pub(crate) inner: Inner,
    pub(crate) layer: GateLayer,
    /// Bytes that were read of bodies.
    pub(crate) read: Arc<AtomicU64>,
}

impl World {
    pub(crate) fn new() -> Self {
        let (clock, time) = Clock::manual();
        let rules = GateRules::new()
            .post("/orders")
            .json()
            .max_body(64)
            .get("/orders/{id}")
            .get("/panic")
            .keep_headers(["idempotency-key", "accept"]);
        let layer = GateLayer::builder(rules, GateConfig::default()).name("gate").clock(&clock).build().unwrap();
        Self { time, inner: Inner::default(), layer, read: Arc::default() }
    }

    pub(crate) fn body(&self, chunks: &[&str], then_hangs: bool) -> Counted {
        let chunks = chunks.iter().rev().map(|chunk| Bytes::copy_from_slice(chunk.as_bytes())).collect();
        Counted::Arriving { chunks, read: self.read.clone(), then_hangs }
    }

    /// Sends a request, with a host if it has none.
    pub(crate) fn send(&self, mut request: Request<Counted>) -> Response<String> {
        if !request.headers().contains_key("host") && request.version() <= Version::HTTP_11 {
            request.headers_mut().insert("host", http::HeaderValue::from_static("shop"));
        }
        self.send_as_it_is(request)
    }

    fn send_as_it_is(&self, request: Request<Counted>) -> Response<String> {
        let mut service = self.layer.layer(self.inner.clone());
        self.time.block_on(service.call(request)).unwrap()
    }

    pub(crate) fn passed(&self) -> usize {
        self.inner.0.lock().unwrap().len()
    }
}

fn order() -> http::request::Builder {
    Request::post("/orders").header("content-type", "application/json").header("content-length", 9)
}

const BODY: [&str; 2] = ["{\"a\":", "[7]}"];

// Guarantee: tower 5, 6.
#[test]
fn a_refused_request_has_cost_nothing_of_the_later_steps() {
    let world = World::new();
    let mut events = world.layer.events();
    let json = |length: u64| {
        Request::post("/orders").header("content-type", "application/json").header("content-length", length)
    };
    let many = |count| (0..count).fold(order(), |request, n| request.header(format!("x-{n}"), "1"));
    let get = || Request::get("/orders/7");
    let refused = [
        ("uri_too_long", 414, Request::get(format!("/orders/7?{}", "x".repeat(2048)))),
        ("path", 400, Request::get("/orders/../admin")),
        ("path", 400, Request::get("http://evil.example/orders/7")),
        ("route", 404, Request::get("/admin")),
        ("route", 404, Request::get("/orders/7/")),
        ("route", 404, Request::get("/orders/")),
        ("route", 404, Request::get("/ORDERS/7")),
        ("method", 405, Request::delete("/orders")),
        ("method", 405, Request::get("/orders")),
        ("method", 405, Request::builder().method("BREW").uri("/orders")),
        ("headers_too_large", 431, many(63)),
        ("headers_too_large", 431, order().header("x", "y".repeat(16 << 10))),
        ("framing", 400, order().header("host", "a").header("host", "b")),
        ("framing", 400, order().header("content-length", 9)),
        ("framing", 400, order().header("idempotency-key", "1").header("idempotency-key", "2")),
        ("framing", 400, order().header("idempotency-key", "1").header("idempotency-key", "1")),
        ("framing", 400, order().header("transfer-encoding", "chunked")),
        ("framing", 400, Request::post("/orders").header("content-length", "+9")),
        ("framing", 400, Request::post("/orders").header("content-length", "9, 9")),
        ("framing", 400, Request::post("/orders").header("content-length", "0x9")),
        ("framing", 400, Request::post("/orders").header("content-length", "99999999999999999999")),
        ("no_length", 411, Request::post("/orders").header("content-type", "application/json")),
        ("no_length", 411, Request::post("/orders").header("transfer-encoding", "chunked")),
        ("no_length", 411, get()),
        ("framing", 400, json(0)),
        ("body_too_large", 413, json(65)),
        ("body_too_large", 413, json(u64::MAX)),
        ("body_too_large", 413, get().header("content-length", 9)),
        ("content_type", 415, Request::post("/orders").header("content-length", 9)),
        ("content_type", 415, order().header("content-type", "application/json")),
        ("content_type", 415, Request::post("/orders").header("content-length", 9).header("content-type", "text/xml")),
        ("content_type", 415, order().header("content-encoding", "gzip")),
    ];
    for (rule, status, request) in refused {
        let request = request.body(world.body(&BODY, false)).unwrap();
        let line = format!("{} {} {:?}", request.method(), request.uri(), request.headers());
        let answer = world.send(request);
        assert_eq!(answer.status().as_u16(), status, "{rule}: {line}");
        assert_eq!((answer.body().as_str(), answer.headers().len()), ("", 1), "bare, and the connection closes");
        let GateEvent::Refused { rule: told, .. } = events.try_recv().unwrap().unwrap().what else { panic!("{line}") };
        assert_eq!(told.as_str(), rule, "{line}");
    }
    assert_eq!((world.passed(), world.read.load(SeqCst)), (0, 0), "no call, and no byte of a body");
    let fine = order().body(world.body(&BODY, false)).unwrap();
    assert_eq!(world.send(fine).body(), "passed");
    assert_eq!((world.passed(), world.read.load(SeqCst)), (1, 9));
}

// Guarantee: tower 5.
#[test]
fn a_body_has_its_declared_length_and_arrives_before_one_deadline() {
    let world = World::new();
    for (chunks, then_hangs, status) in [
        (&["{\"a\":[7]}"][..], false, 200),
        (&["{", "", "\"a\":[7]", "}"], false, 200),
        (&["{\"a\":[7]"], false, 400),
        (&["{\"a\":[7]}}"], false, 400),
        (&["{\"a\":", "[7]}", "{\"b\":8}"], true, 400),
        (&["{\"a\":["], true, 408),
        (&[], true, 408),
    ] {
        let start = world.time.now();
        let passed = world.passed();
        let answer = world.send(order().body(world.body(chunks, then_hangs)).unwrap());
        assert_eq!(answer.status().as_u16(), status, "{chunks:?}");
        assert_eq!(world.passed() - passed, usize::from(status == 200), "{chunks:?}");
        let limit = if status == 408 { Duration::from_secs(10) } else { Duration::ZERO };
        assert_eq!(world.time.now() - start, limit, "{chunks:?}");
    }
}

// Guarantee: tower 7.
#[test]
fn only_named_headers_pass_and_those_of_identity_never() {
    let world = World::new();
    let mut request = order().header("idempotency-key", "8e03").header("accept", "a").header("accept", "b");
    for name in [
        "x-forwarded-for",
        "x_forwarded_for",
        "forwarded",
        "x-real-ip",
        "remote-user",
        "remote_user",
        "x-user-id",
        "authorization",
        "cookie",
        "idempotency_key",
        "via",
        "host",
        "connection",
        "te",
        "upgrade",
    ] {
        request = request.header(name, "evil");
    }
    assert_eq!(world.send(request.body(world.body(&BODY, false)).unwrap()).status(), 200);
    let (line, headers) = world.inner.0.lock().unwrap().pop().unwrap();
    assert_eq!(line, "POST /orders");
    let mut names: Vec<_> =
        headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
    names.sort();
    let expected =
        ["accept: a", "accept: b", "content-length: 9", "content-type: application/json", "idempotency-key: 8e03"];
    assert_eq!(names, expected);
    let of_identity = [
        "x-forwarded-for",
        "X-Forwarded-Host",
        "x-forwarded",
        "forwarded",
        "x-original-url",
        "x-rewrite-url",
        "x-host",
        "x-http-method-override",
        "x-method-override",
        "x-real-ip",
        "x-client-ip",
        "client-ip",
        "client-cert-chain",
        "x-cluster-client-ip",
        "x-envoy-external-address",
        "true-client-ip",
        "fastly-client-ip",
        "x-azure-clientip",
        "cf-connecting-ip",
        "via",
        "remote-user",
        "x-remote-user",
        "x-user",
        "x-user-id",
        "x-email",
        "x-groups",
        "x-auth-request-user",
        "x-authenticated-user",
        "x-webauth-user",
        "x-ssl-client-dn",
        "ssl-client-verify",
        "x-arr-clientcert",
        "x-amzn-oidc-data",
        "x-goog-iap-jwt-assertion",
        "x-ms-token-aad-id-token",
    ];
    let of_hop = ["connection", "keep-alive", "proxy-connection", "http2-settings"];
    for name in of_identity.into_iter().chain(of_hop).chain(["a_b", "a b"]) {
        let rules = GateRules::new().get("/").keep_headers([name]);
        let refused = GateLayer::new(rules, GateConfig::default()).unwrap_err();
        assert!(refused.field().contains(name), "{refused}");
    }
}

/// One program takes the first of two values, another the last, and a third joins them.
// Guarantee: tower 7.
#[test]
fn of_a_header_that_passes_two_are_refused_unless_it_is_a_list() {
    let world = World::new();
    let rules = GateRules::new().get("/a").put("/b").max_body(9).keep_headers([
        "authorization",
        "accept",
        "cookie",
        "x-a",
        "if-match",
    ]);
    let layer = GateLayer::builder(rules, GateConfig::default()).clock(&world.time.clock()).build().unwrap();
    let send = |request: http::request::Builder, body: &[&str]| {
        let request = request.header("host", "shop").body(world.body(body, false)).unwrap();
        world.time.block_on(layer.layer(world.inner.clone()).call(request)).unwrap().status().as_u16()
    };
    for (name, expected) in [("authorization", 400), ("x-a", 400), ("accept", 200), ("cookie", 200), ("if-match", 200)]
    {
        assert_eq!(send(Request::get("/a").header(name, "1").header(name, "2"), &[]), expected, "{name}");
    }
    assert_eq!(send(Request::get("/a").header("x-b", "1").header("x-b", "2"), &[]), 200, "it does not pass anyway");
    // A route with a body and without a type.
    let put = || Request::put("/b").header("content-length", 1).header("content-type", "text/plain");
    assert_eq!(send(put(), &["x"]), 200);
    assert_eq!(send(put().header("content-type", "text/html"), &["x"]), 415);
}

// Guarantee: tower 5.
#[test]
fn a_request_without_a_host_is_refused_from_http_1_1_on() {
    let world = World::new();
    let send = |version, uri: &str| {
        let request = Request::get(uri).version(version).body(world.body(&[], false)).unwrap();
        world.send_as_it_is(request).status().as_u16()
    };
    assert_eq!(send(Version::HTTP_11, "/orders/7"), 400);
    assert_eq!(send(Version::HTTP_2, "/orders/7"), 400);
    assert_eq!(send(Version::HTTP_2, "https://shop/orders/7"), 200);
    assert_eq!(send(Version::HTTP_10, "/orders/7"), 200);
}

/// A hop could choose the one, and the next hop the other.
#[test]
fn a_request_with_one_host_in_its_target_and_another_in_its_header_is_refused() {
    let world = World::new();
    let send = |authority: &str, host: Option<&str>| {
        let request = order().version(Version::HTTP_2).uri(format!("https://{authority}/orders"));
        let request = host.into_iter().fold(request, |request, host| request.header("host", host));
        world.send(request.body(world.body(&BODY, false)).unwrap()).status().as_u16()
    };
    assert_eq!(send("shop", None), 200);
    assert_eq!(send("shop", Some("Shop")), 200);
    for (authority, host) in [("shop", "admin"), ("shop", "shop:8080"), ("shop:80", "shop"), ("ada@shop", "shop")] {
        assert_eq!(send(authority, Some(host)), 400, "{authority} and {host}");
    }
}

// Guarantee: tower 6.
#[test]
fn a_panic_behind_the_gate_is_a_bare_500() {
    let world = World::new();
    let answer = world.send(Request::get("/panic").body(world.body(&[], false)).unwrap());
    assert_eq!((answer.status().as_u16(), answer.body().as_str()), (500, ""));
}

/// A service, or a body, that panics in one of its methods.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Panics {
    PollReady,
    Call,
    Future,
    Frame,
    Conversion,
}

struct Panicking(Option<Panics>);

impl From<Bytes> for Panicking {
    fn from(bytes: Bytes) -> Self {
        assert!(bytes != "convert!!", "on purpose");
        Self(None)
    }
}

impl Body for Panicking {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        assert!(self.0 != Some(Panics::Frame), "on purpose");
        let text = if self.0 == Some(Panics::Conversion) { "convert!!" } else { "a content" };
        Poll::Ready(self.get_mut().0.take().map(|_| Ok(Frame::data(Bytes::from_static(text.as_bytes())))))
    }
}

impl Service<Request<Panicking>> for Panicking {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<String>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        assert!(self.0 != Some(Panics::PollReady), "on purpose");
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Panicking>) -> Self::Future {
        assert!(self.0 != Some(Panics::Call), "on purpose");
        let panics = self.0 == Some(Panics::Future);
        Box::pin(async move {
            assert!(!panics, "on purpose");
            Ok(Response::default())
        })
    }
}

impl Clone for Panicking {
    fn clone(&self) -> Self {
        Self(self.0)
    }
}

/// Regression: only a panic in the inner service's call and future was caught.
// Guarantee: tower 6.
#[test]
fn a_panic_of_readiness_of_a_body_or_of_a_future_is_a_bare_500_too() {
    let world = World::new();
    for panics in [Panics::PollReady, Panics::Call, Panics::Future, Panics::Frame, Panics::Conversion] {
        let mut events = world.layer.events();
        let request = order().header("host", "shop").body(Panicking(Some(panics))).unwrap();
        let answer = world.time.block_on(world.layer.layer(Panicking(Some(panics))).call(request)).unwrap();
        assert_eq!((answer.status().as_u16(), answer.body().as_str()), (500, ""), "{panics:?}");
        assert_eq!(answer.headers()["connection"], "close", "{panics:?}: a part of the body may not have been read");
        let GateEvent::Refused { rule, .. } = events.try_recv().unwrap().unwrap().what else { panic!("{panics:?}") };
        assert_eq!(rule.as_str(), "panicked");
    }
    let request = order().header("host", "shop").body(Panicking(Some(Panics::Call))).unwrap();
    assert_eq!(world.time.block_on(world.layer.layer(Panicking(None)).call(request)).unwrap().status(), 200);
}

/// Regression: any number of requests could have a body in memory.
// Guarantee: tower 5.
#[test]
fn more_bodies_at_once_than_allowed_are_refused_unread() {
    let world = World::new();
    let rules = GateRules::new().post("/orders").json().max_body(64).get("/orders/{id}");
    let layer =
        GateLayer::builder(rules, GateConfig::default().max_bodies(2)).clock(&world.time.clock()).build().unwrap();
    let start = || {
        let request = order().header("host", "shop").body(world.body(&["{\"a\":["], true)).unwrap();
        let mut call = layer.layer(world.inner.clone()).call(request);
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let polled = world.time.run_blocking(|| call.as_mut().poll(&mut cx));
        (call, matches!(polled, Poll::Ready(Ok(answer)) if answer.status() == 503))
    };
    let (one, other) = (start(), start());
    assert!(!one.1 && !other.1);
    let read = world.read.load(SeqCst);
    assert!(start().1, "the third body");
    assert_eq!(world.read.load(SeqCst), read, "of which nothing is read");
    let get = Request::get("/orders/7").header("host", "shop").body(world.body(&[], false)).unwrap();
    assert_eq!(
        world.time.block_on(layer.layer(world.inner.clone()).call(get)).unwrap().status(),
        200,
        "it has no body"
    );
    // A call that is dropped, and one that ends, make room.
    drop(other);
    let third = start();
    assert!(!third.1 && start().1);
    assert_eq!(world.time.block_on(one.0).unwrap().status(), 408);
    assert!(!start().1);
    assert!(GateLayer::new(GateRules::new(), GateConfig::default().max_bodies(0)).is_err());
}

#[test]
fn rules_that_would_let_too_much_pass_are_refused() {
    for (rules, expected) in [
        (GateRules::new().post("/a"), "max_body"),
        (GateRules::new().get("/a").json(), "max_body"),
        (GateRules::new().get("/a").get("/a"), "twice"),
        (GateRules::new().get("/a/{id}").get("/{x}/b"), "twice"),
        (GateRules::new().get("a"), "strict path"),
        (GateRules::new().get("/a//b"), "strict path"),
        (GateRules::new().get("/a%20b"), "strict path"),
        (GateRules::new().json().get("/a"), "begin with a route"),
        (GateRules::new().get("/{*rest}"), "braces"),
        (GateRules::new().get("/files/{name}.json"), "braces"),
        (GateRules::new().get("/a/{}"), "braces"),
        (GateRules::new().get("/a/{b}{c}"), "braces"),
        (GateRules::new().get("/a/b}"), "braces"),
    ] {
        let refused = GateLayer::new(rules, GateConfig::default()).unwrap_err().to_string();
        assert!(refused.contains(expected), "{refused}");
    }
    let zero = GateLayer::new(GateRules::new(), GateConfig::default().max_uri(0)).unwrap_err();
    assert_eq!(zero.field(), "max_uri");
    assert!(
        GateLayer::new(GateRules::new().get("/a/{id}").get("/a").post("/a").max_body(1), GateConfig::default()).is_ok()
    );
}

#[test]
fn a_call_that_is_dropped_at_any_await_calls_nothing_later() {
    let world = World::new();
    let make = || {
        let request = order().header("host", "shop").body(world.body(&["{\"a\":["], true)).unwrap();
        world.layer.layer(world.inner.clone()).call(request)
    };
    let polls = drop_at_every_await(&world.time, make, |_| assert_eq!(world.passed(), 0));
    assert!(polls >= 2);
}

/// Regression: memory was reserved by the declared length, which ended the process.
#[test]
fn a_declared_length_reserves_no_memory() {
    let world = World::new();
    let rules = GateRules::new().post("/a").max_body(usize::MAX);
    let layer = GateLayer::builder(rules, GateConfig::default()).clock(&world.time.clock()).build().unwrap();
    let request = Request::post("/a").header("host", "shop").header("content-length", u64::MAX >> 1);
    let request = request.body(world.body(&["x"], true)).unwrap();
    let mut service = layer.layer(world.inner.clone());
    assert_eq!(world.time.block_on(service.call(request)).unwrap().status(), 408);
}

#[test]
fn a_header_that_is_named_twice_passes_once() {
    let world = World::new();
    let rules = GateRules::new().get("/a").keep_headers(["x-a", "X-A"]).keep_headers(["x-a"]);
    let layer = GateLayer::builder(rules, GateConfig::default()).clock(&world.time.clock()).build().unwrap();
    let request = Request::get("/a").header("host", "shop").header("x-a", "1").body(world.body(&[], false)).unwrap();
    assert_eq!(world.time.block_on(layer.layer(world.inner.clone()).call(request)).unwrap().status(), 200);
    let (_, headers) = world.inner.0.lock().unwrap().pop().unwrap();
    assert_eq!(headers.get_all("x-a").iter().count(), 1);
}
