//! The console by plain requests of HTTP, on the paused time of a runtime.
mod access;
mod actions;
mod layers;
mod pages;
mod settings;
mod viewers;

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::future::{Either, select};
use http::{HeaderMap, Request, StatusCode, request::Parts};
use http_body_util::{BodyExt, Full};
use serde_json::Value;
use steadfast::{
    Builder,
    console::{Access, Console, ConsoleBody, ConsoleConfig},
    queue::{Depth, InMemoryQueue, Message, Peeked, Queue, QueueExt, QueueFuture},
    time::Clock,
};
use tower_service::Service;

use crate::world::S;

/// Headers that a browser sends with a form of the console's own page.
const OWN: [(&str, &str); 2] =
    [("sec-fetch-site", "same-origin"), ("content-type", "application/x-www-form-urlencoded")];

/// An answer, read whole.
#[derive(Debug)]
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    text: String,
}

impl Answer {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map(|value| value.to_str().unwrap()).unwrap_or_default()
    }

    /// Returns the address of the form under the name `action`, and its hidden fields.
    fn fields(&self) -> Vec<(String, String)> {
        let field = |rest: &str| {
            let (name, rest) = rest.split_once('"').unwrap();
            let value = rest.split_once("=\"").unwrap().1.split_once('"').unwrap().0;
            let unescaped =
                value.replace("&#39;", "'").replace("&quot;", "\"").replace("&lt;", "<").replace("&gt;", ">");
            (name.to_owned(), unescaped.replace("&amp;", "&"))
        };
        let action = self.text.split("<form method=\"post\" ").nth(1).map(|rest| {
            let address = rest.split('"').nth(1).unwrap();
            ("action".to_owned(), address.replace("&amp;", "&"))
        });
        action.into_iter().chain(self.text.split("<input type=\"hidden\" name=\"").skip(1).map(field)).collect()
    }
}

/// Returns the user of the header `x-user`, who may act if the name begins with `o`, unless there is `x-demoted`.
fn rights(request: &Parts) -> Access {
    let is_demoted = request.headers.contains_key("x-demoted");
    match request.headers.get("x-user").map(|user| user.to_str().unwrap()) {
        Some("panic") => panic!("the check failed"),
        Some(user) if user.starts_with('o') && !is_demoted => Access::Operate(user.to_owned()),
        Some(user) => Access::Read(user.to_owned()),
        None => Access::None,
    }
}

fn builder() -> Builder<Console> {
    Console::builder(ConsoleConfig::default()).name("shop").authorize(rights)
}

async fn send(console: &Console, request: Request<Full<Bytes>>) -> (http::response::Parts, ConsoleBody) {
    console.clone().call(request).await.unwrap().into_parts()
}

async fn whole(console: &Console, request: Request<Full<Bytes>>) -> Answer {
    let (parts, body) = send(console, request).await;
    let bytes = body.collect().await.unwrap().to_bytes();
    Answer { status: parts.status, headers: parts.headers, text: String::from_utf8(bytes.to_vec()).unwrap() }
}

fn get_request(user: &str, target: &str) -> Request<Full<Bytes>> {
    Request::get(target).header("x-user", user).body(Full::default()).unwrap()
}

async fn get(console: &Console, user: &str, target: &str) -> Answer {
    whole(console, get_request(user, target)).await
}

async fn state(console: &Console) -> Value {
    serde_json::from_str(&get(console, "ann", "/console/state.json").await.text).unwrap()
}

async fn post(console: &Console, user: &str, headers: &[(&str, &str)], fields: &[(String, String)]) -> Answer {
    let encoded = |text: &str| text.bytes().map(|byte| format!("%{byte:02x}")).collect::<String>();
    let target = fields.iter().find(|(name, _)| name == "action").map_or("/", |(_, action)| action);
    let form = fields.iter().filter(|(name, _)| name != "action");
    let form: Vec<_> = form.map(|(name, value)| format!("{name}={}", encoded(value))).collect();
    let mut request = Request::post(format!("/{}", target.trim_start_matches('/')))
        .header("x-user", user)
        .header("host", "shop.example");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    whole(console, request.body(Full::from(form.join("&"))).unwrap()).await
}

/// Opens the page on which an action is confirmed, and returns its form.
async fn form(console: &Console, user: &str, component: &str, of: &str, action: &str) -> Vec<(String, String)> {
    let of = of.replace(' ', "%20");
    let page = get(console, user, &format!("/?component={component}&of={of}&do={action}")).await;
    assert_eq!(page.status, StatusCode::OK, "{}", page.text);
    page.fields()
}

/// Confirms an action, and returns the page that tells its result.
async fn act(console: &Console, user: &str, (component, of, action): (&str, &str, &str), note: &str) -> Answer {
    let mut fields = form(console, user, component, of, action).await;
    fields.push(("note".to_owned(), note.to_owned()));
    let answer = post(console, user, &OWN, &fields).await;
    assert_eq!(answer.status, StatusCode::SEE_OTHER, "{}", answer.text);
    let next = answer.header("location").to_owned();
    get(console, user, &format!("/{next}")).await
}

/// A queue that counts requests, and misbehaves on demand.
#[derive(Debug, Default)]
struct Counted {
    requests: AtomicU64,
    mood: AtomicU64,
}

const WELL: u64 = 0;
const HANGS: u64 = 1;
const PANICS: u64 = 2;
const FAILS: u64 = 3;

#[derive(Debug, Clone)]
struct Moody(Arc<Counted>, InMemoryQueue);

impl Moody {
    fn new() -> Self {
        Self(Arc::default(), InMemoryQueue::new("moody"))
    }

    fn requests(&self) -> u64 {
        self.0.requests.load(SeqCst)
    }

    fn is(&self, mood: u64) {
        self.0.mood.store(mood, SeqCst);
    }
}

impl Queue for Moody {
    forward_queue!(1: capabilities, identity, address, send, receive, settle, extend, purge, dead_letters);

    fn depth(&self) -> QueueFuture<'_, Depth> {
        self.0.requests.fetch_add(1, SeqCst);
        match self.0.mood.load(SeqCst) {
            WELL => self.1.depth(),
            HANGS => Box::pin(std::future::pending()),
            PANICS => panic!("<b>planted</b>"),
            mood => {
                assert_eq!(mood, FAILS);
                let error = steadfast::port::PortError::new(steadfast::port::PortErrorKind::Other, "no route");
                Box::pin(async { Err(error.into()) })
            }
        }
    }

    fn peek(&self, max: usize) -> QueueFuture<'_, Vec<Peeked>> {
        self.0.requests.fetch_add(1, SeqCst);
        if self.0.mood.load(SeqCst) == HANGS {
            return Box::pin(std::future::pending());
        }
        self.1.peek(max)
    }
}

/// Puts a message with this body and reason into the dead letters.
async fn bury(queue: &InMemoryQueue, body: impl Into<Bytes>, reason: &str) {
    queue.send_one(Message::new(body)).await.unwrap();
    let delivery = queue.receive_one(S(30)).await.unwrap().unwrap();
    queue.dead_letter(&delivery.receipt, reason).await.unwrap();
}

/// Returns the result of the work, or `None` if it takes longer.
async fn within<T>(time: Duration, work: impl Future<Output = T>) -> Option<T> {
    match select(pin!(work), pin!(Clock::tokio().sleep(time))).await {
        Either::Left((result, _)) => Some(result),
        Either::Right(_) => None,
    }
}
