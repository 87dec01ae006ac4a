//! The console as a tower service: builder, routes, and the headers of responses.
use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
};

use http::{HeaderValue, Method, Request, Response, StatusCode, header, request::Parts};
use http_body::Body;
use serde::Serialize;
use tower_service::Service;

use super::{
    access::{Access, Authorize, decide, is_for_host, is_from_another_site, is_own_page},
    board::{ActionResult, Board, Reading, Shown},
    body::{ConsoleBody, Live, Viewers, form},
    config::ConsoleConfig,
    event::{ConsoleEvent, ConsoleRefusal},
    markup::{Fields, encoded},
    page::{self, Content, Form, Notice, POLICY, Place, Stage},
    panel::{Order, Panel},
    panels::{self, Control},
    readout::{Action, Note, ReadOut},
    token::Tokens,
};
use crate::{
    build::{Builder, Common, Component, HasEntropy, HasEvents, HasName},
    config::{ConfigError, require},
    entropy::Entropy,
    observe::Subscription,
    port::BoxFuture,
    queue::Queue,
    spawn::Spawner,
};

/// Version of `state.json`.
const VERSION: u32 = 1;

/// One page for the people who run a service. The [module's page](super) has the details.
///
/// Clones share their state.
#[derive(Clone)]
pub struct Console(Arc<ConsoleInner>);

struct ConsoleInner {
    board: Arc<Board>,
    authorize: Authorize,
    tokens: Tokens,
    viewers: Viewers,
    entropy: Entropy,
    /// Names under which the console answers, if not under all.
    hosts: Option<Vec<String>>,
}

/// Arguments of a console, beside name, clock and entropy.
pub struct ConsoleSpec {
    config: ConsoleConfig,
    shown: Vec<Shown>,
    authorize: Option<Authorize>,
    hosts: Option<Vec<String>>,
    hides_bodies: bool,
    spawner: Spawner,
    pub(super) control: Option<Arc<dyn Control>>,
}

impl Console {
    /// Creates a builder of a console that shows nothing yet.
    ///
    /// Methods of [this builder alone](crate::Builder#impl-Builder%3CConsole%3E): `watch`, `queue`,
    /// `control`, `authorize`, `open`, `hosts`, `hide_bodies`, `spawner`.
    pub fn builder(config: ConsoleConfig) -> Builder<Self> {
        Builder::new(ConsoleSpec {
            config,
            shown: Vec::new(),
            authorize: None,
            hosts: None,
            hides_bodies: false,
            spawner: Spawner::default(),
            control: None,
        })
    }

    /// Subscribes to the actions of operators, and to those that were refused.
    pub fn events(&self) -> Subscription<ConsoleEvent> {
        self.0.board.events.subscribe()
    }

    /// Returns the number of pages that are updated live now.
    pub fn viewers(&self) -> u64 {
        self.0.viewers.count(self.0.board.clock.now())
    }
}

impl Builder<Console> {
    /// Shows this component under a name, which no other component of this console has.
    pub fn watch(mut self, name: impl Into<String>, component: &(impl Panel + ?Sized)) -> Self {
        self.spec.shown.push(Shown::new(name.into(), component.view().0));
        self
    }

    /// Shows this queue with its dead letters. With a group that listens to queues, `control` lets
    /// operators pause the queues that are added after it.
    pub fn queue(mut self, name: impl Into<String>, queue: impl Queue + 'static) -> Self {
        let view = panels::queue(Arc::new(queue), self.spec.control.clone());
        self.spec.shown.push(Shown::new(name.into(), view.0));
        self
    }

    /// Decides on each request by this function: by the headers, or by the extensions that a layer
    /// of the service has set.
    pub fn authorize(mut self, authorize: impl Fn(&Parts) -> Access + Send + Sync + 'static) -> Self {
        self.spec.authorize = Some(Arc::new(authorize));
        self
    }

    /// Lets everyone who reaches the console act, under the name `anonymous`. For a console that
    /// only operators can reach, and for tests.
    ///
    /// It answers requests to this machine and to an IP address, and refuses those to a name with
    /// 421: a browser inside would otherwise let a page of another site in, whose name leads to the
    /// console's address. [`hosts`](Self::hosts) adds names.
    pub fn open(mut self) -> Self {
        self.spec.hosts.get_or_insert_default();
        self.authorize(|_| Access::Operate("anonymous".to_owned()))
    }

    /// Answers requests to these names, to this machine and to an IP address, and refuses others
    /// with 421.
    pub fn hosts(mut self, hosts: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.spec.hosts.get_or_insert_default().extend(hosts.into_iter().map(Into::into));
        self
    }

    /// Shows no body of a message.
    pub fn hide_bodies(mut self) -> Self {
        self.spec.hides_bodies = true;
        self
    }

    /// Runs read-outs and actions by this function instead of by tokio's `spawn`.
    pub fn spawner(mut self, spawn: impl Fn(BoxFuture<'static, ()>) + Send + Sync + 'static) -> Self {
        self.spec.spawner = Spawner::own(spawn);
        self
    }
}

impl Component for Console {
    type Built = Result<Self, ConfigError>;
    type Spec = ConsoleSpec;

    fn assemble(spec: ConsoleSpec, common: Common) -> Self::Built {
        let (entropy, Common { name, clock, hooks, .. }) = (common.entropy(), common);
        let ConsoleSpec { config, mut shown, authorize, hosts, hides_bodies, spawner, .. } = spec;
        config.check()?;
        let rule = "must be given, or `open` if everyone who reaches the console may act";
        let authorize = authorize.ok_or_else(|| ConfigError::new("authorize", rule))?;
        for (at, component) in shown.iter().enumerate() {
            require(!component.name.is_empty(), "name", "of a component must not be empty")?;
            let is_taken = shown[..at].iter().any(|other| other.name == component.name);
            require(!is_taken, "name", "of a component must not be that of another one")?;
        }
        let breakers: Vec<_> = shown.iter().filter_map(|shown| shown.source.breaker().cloned()).collect();
        shown.iter_mut().for_each(|shown| shown.source.start(&clock, &breakers));
        let board = Board::new(name, clock, config, hooks.events(), shown, hides_bodies, spawner);
        let (board, tokens, viewers) = (Arc::new(board), Tokens::new(), Viewers::default());
        Ok(Self(Arc::new(ConsoleInner { board, authorize, tokens, viewers, entropy, hosts })))
    }
}

impl HasName for Console {}
impl HasEntropy for Console {}
impl HasEvents<ConsoleEvent> for Console {}

crate::build::debug_fields!(Console, |this| name: this.0.board.name, config: this.0.board.config);

impl<B> Service<Request<B>> for Console
where
    B: Body + Send + 'static,
    B::Data: Send,
{
    type Response = Response<ConsoleBody>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<ConsoleBody>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let console = self.0.clone();
        Box::pin(async move { Ok(console.answer(request).await) })
    }
}

/// The answer to a request that is not a page.
fn bare(status: StatusCode, text: &'static str) -> Response<ConsoleBody> {
    respond(status, "text/plain; charset=utf-8", ConsoleBody::whole(text))
}

fn respond(status: StatusCode, content_type: &'static str, body: ConsoleBody) -> Response<ConsoleBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    let policy = HeaderValue::from_str(&POLICY).unwrap_or(HeaderValue::from_static("default-src 'none'"));
    headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    for (name, value) in [
        (header::CONTENT_TYPE, content_type),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // With `no-referrer` browsers send `Origin: null` with the page's own forms.
        (header::REFERRER_POLICY, "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

impl ConsoleInner {
    async fn answer<B>(&self, request: Request<B>) -> Response<ConsoleBody>
    where
        B: Body + Send + 'static,
        B::Data: Send,
    {
        let (parts, body) = request.into_parts();
        if self.hosts.as_ref().is_some_and(|hosts| !is_for_host(&parts, hosts)) {
            return bare(StatusCode::MISDIRECTED_REQUEST, "the console does not answer under this name");
        }
        let access = decide(&self.authorize, &parts);
        let Some(user) = access.user() else {
            return bare(StatusCode::FORBIDDEN, "no access");
        };
        let query = Fields::parse(parts.uri.query().unwrap_or_default());
        match parts.method {
            Method::GET if is_from_another_site(&parts) => {
                bare(StatusCode::FORBIDDEN, "not from a page of this console")
            }
            Method::GET => self.look(&parts, &query, user, access.operates()).await,
            Method::POST => self.act(&parts, &query, body, user, access.operates()).await,
            _ => bare(StatusCode::METHOD_NOT_ALLOWED, "only GET and POST"),
        }
    }

    async fn look(&self, parts: &Parts, query: &Fields, user: &str, operates: bool) -> Response<ConsoleBody> {
        let board = &self.board;
        let component = match query.find("component") {
            None => None,
            Some(name) => match board.find(name) {
                None => return bare(StatusCode::NOT_FOUND, "no such component"),
                component => component,
            },
        };
        let place = Place { component, of: query.find("of").filter(|of| !of.is_empty()).map(str::to_owned) };
        if parts.uri.path().ends_with("/state.json") {
            return self.state(&place).await;
        }
        if query.find("live").is_some() {
            return self.live(place, operates);
        }
        if let (Some(component), Some(action), true) = (component, query.find("do"), operates) {
            return self.confirm(component, place.of.as_deref(), action, user).await;
        }
        let notice = query.find("told").and_then(|form| board.result(user, form));
        self.page(StatusCode::OK, &place, notice.as_ref().map(Notice::of), user, operates).await
    }

    async fn page(
        &self,
        status: StatusCode,
        place: &Place,
        notice: Option<Notice>,
        user: &str,
        operates: bool,
    ) -> Response<ConsoleBody> {
        let content = page::content(&self.board, place, operates).await;
        self.html(status, &content, Some(place), notice.as_ref(), user)
    }

    fn html(
        &self,
        status: StatusCode,
        content: &Content,
        live: Option<&Place>,
        notice: Option<&Notice>,
        user: &str,
    ) -> Response<ConsoleBody> {
        let document = page::document(&self.board, content, live, notice, user);
        respond(status, "text/html; charset=utf-8", ConsoleBody::whole(document))
    }

    fn live(&self, place: Place, operates: bool) -> Response<ConsoleBody> {
        let board = self.board.clone();
        let Some(viewer) = self.viewers.enter(board.config.max_viewers, board.clock.now()) else {
            return bare(StatusCode::SERVICE_UNAVAILABLE, "as many pages are updated live as may be");
        };
        let now = board.clock.now();
        let live = Live { board, place, operates, begun: now, last: None, sent: now, _viewer: viewer };
        respond(StatusCode::OK, "text/event-stream", ConsoleBody::live(live))
    }

    async fn confirm(&self, component: usize, of: Option<&str>, action: &str, user: &str) -> Response<ConsoleBody> {
        let (now, acts) = self.board.read_anew(component, of).await;
        let Some(action) = now.actions.iter().find(|offered| offered.name == action) else {
            let notice = Notice { text: "This action is not possible now.".to_owned(), is_wrong: true };
            let place = Place { component: Some(component), of: of.map(str::to_owned) };
            return self.page(StatusCode::CONFLICT, &place, Some(notice), user, true).await;
        };
        let stage = if action.note == Note::Settings { Stage::Edit(&action.text) } else { Stage::Confirm };
        self.ask(StatusCode::OK, component, of, (action, acts, stage), None, user)
    }

    /// Answers with the page of an action, whose form has an id of its own.
    fn ask(
        &self,
        status: StatusCode,
        component: usize,
        of: Option<&str>,
        (action, acts, stage): (&Action, u64, Stage<'_>),
        notice: Option<Notice>,
        user: &str,
    ) -> Response<ConsoleBody> {
        let token = self.tokens.make(user, self.board.clock.now());
        let form = Form { token: &token, id: &self.entropy.id(), acts };
        let content = page::confirmation(&self.board, component, of, action, form, stage);
        self.html(status, &content, None, notice.as_ref(), user)
    }

    /// Shows what settings would change, and changes nothing.
    async fn review(&self, component: usize, order: Order, user: &str) -> Response<ConsoleBody> {
        let (of, text) = (order.of.as_deref(), order.note.replace("\r\n", "\n"));
        let (action, changes) = match self.board.compare(user, component, &order).await {
            Ok(compared) => compared,
            Err(conflict) => return self.conflict(component, order.of, &conflict, user).await,
        };
        let wrong = |text| Some(Notice { text, is_wrong: true });
        let (status, stage, notice) = match &changes {
            Ok(changes) if !changes.is_empty() => (StatusCode::OK, Stage::Apply(&text, changes), None),
            Ok(_) => (StatusCode::OK, Stage::Edit(&text), wrong("These are the settings in effect.".to_owned())),
            Err(why) => {
                (StatusCode::UNPROCESSABLE_ENTITY, Stage::Edit(&text), wrong(format!("Nothing was done: {why}.")))
            }
        };
        self.ask(status, component, of, (&action, order.acts, stage), notice, user)
    }

    /// Answers with the state that a conflict is about.
    async fn conflict(
        &self,
        component: usize,
        of: Option<String>,
        result: &ActionResult,
        user: &str,
    ) -> Response<ConsoleBody> {
        let place = Place { component: Some(component), of };
        let content = page::content(&self.board, &place, true).await;
        // Not live: a script that reloads this page would send the form again.
        self.html(StatusCode::CONFLICT, &content, None, Some(&Notice::of(result)), user)
    }

    async fn act<B: Body>(
        &self,
        parts: &Parts,
        query: &Fields,
        body: B,
        user: &str,
        operates: bool,
    ) -> Response<ConsoleBody> {
        let board = &self.board;
        let name = query.get("component");
        let refuse = |reason, status, text| {
            board.refused(user, name, query.get("do"), reason);
            bare(status, text)
        };
        // Before anything of the body is read.
        if !operates {
            return refuse(ConsoleRefusal::Access, StatusCode::FORBIDDEN, "no right to act");
        }
        if !is_own_page(parts) {
            return refuse(ConsoleRefusal::Forged, StatusCode::FORBIDDEN, "not from a page of this console");
        }
        let content_type =
            parts.headers.get(header::CONTENT_TYPE).and_then(|text| text.to_str().ok()).unwrap_or_default();
        let is_form = content_type.split(';').next().unwrap_or_default().trim() == "application/x-www-form-urlencoded";
        let Some(sent) = (if is_form { form(board, body).await } else { None }) else {
            let text = "not a form, too large, or too slow";
            return refuse(ConsoleRefusal::Malformed, StatusCode::BAD_REQUEST, text);
        };
        let fields = Fields::parse(&sent);
        if !self.tokens.is_valid(fields.get("token"), user, board.clock.now()) {
            let text = "the page is too old, or not of this process: load it again";
            return refuse(ConsoleRefusal::Stale, StatusCode::FORBIDDEN, text);
        }
        let form = fields.get("form");
        let Some(component) = board.find(name).filter(|_| !form.is_empty()) else {
            return refuse(ConsoleRefusal::Malformed, StatusCode::BAD_REQUEST, "no such component");
        };
        let Ok(acts) = query.get("acts").parse() else {
            return refuse(ConsoleRefusal::Malformed, StatusCode::BAD_REQUEST, "no form of this console");
        };
        let of = Some(query.get("of")).filter(|of| !of.is_empty()).map(str::to_owned);
        let order = Order {
            action: query.get("do").to_owned(),
            of: of.clone(),
            note: fields.get("note").to_owned(),
            version: query.get("version").to_owned(),
            acts,
        };
        if query.find("review").is_some() {
            return self.review(component, order, user).await;
        }
        let result = board.act(user, form, component, order).await;
        if let ActionResult::Conflict(_) = result {
            return self.conflict(component, of, &result, user).await;
        }
        // A reload of the next page sends nothing again.
        let of = of.map(|of| format!("&of={}", encoded(&of))).unwrap_or_default();
        let next = format!("?component={}{of}&told={}", encoded(name), encoded(form));
        let mut response = bare(StatusCode::SEE_OTHER, "");
        if let Ok(next) = HeaderValue::from_str(&next) {
            response.headers_mut().insert(header::LOCATION, next);
        }
        response
    }

    async fn state(&self, place: &Place) -> Response<ConsoleBody> {
        let board = &self.board;
        let readings = match place.component {
            None => board.read_all().await,
            Some(component) => vec![board.read(component, place.of.as_deref()).await],
        };
        let shown = match place.component {
            None => board.shown.as_slice(),
            Some(component) => std::slice::from_ref(&board.shown[component]),
        };
        let components = shown.iter().zip(&readings).map(|(shown, reading)| ComponentState::new(shown, reading));
        let name = board.name.as_ref().map(|name| name.as_str());
        let state =
            State { version: VERSION, at: board.clock.wall().to_string(), name, components: components.collect() };
        match serde_json::to_vec(&state) {
            Ok(state) => respond(StatusCode::OK, "application/json", ConsoleBody::whole(state)),
            Err(_) => bare(StatusCode::INTERNAL_SERVER_ERROR, "the state cannot be written"),
        }
    }
}

/// The content of `state.json`.
#[derive(Serialize)]
struct State<'a> {
    version: u32,
    at: String,
    name: Option<&'a str>,
    components: Vec<ComponentState<'a>>,
}

#[derive(Serialize)]
struct ComponentState<'a> {
    name: &'a str,
    kind: &'static str,
    #[serde(flatten)]
    out: &'a ReadOut,
}

impl<'a> ComponentState<'a> {
    fn new(shown: &'a Shown, reading: &'a Reading) -> Self {
        Self { name: &shown.name, kind: shown.source.kind(), out: &reading.out }
    }
}
