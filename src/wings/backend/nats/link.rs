//! The connection of a handle: supervised, restored after a loss, shared by all requests.
use std::{
    pin::pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use async_nats::{
    Client, ConnectOptions, Event, HeaderMap, Message, RequestErrorKind, Server, ServerError, Subscriber,
    client::Request, connection::State,
};
use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::watch;

use super::{
    api::{ApiError, PubAck, Refusal},
    config::{NatsConfig, Target},
    failure::{failure, not_reached, refused, rejected},
    login::identified,
    rights::{Refusals, Refused, inbox},
};
use crate::{
    backend::{
        ConnectionEvent, ConnectionRole, TlsConfig,
        common::{early_timer::EarlyTimer, exposure::Exposure},
    },
    backoff::Backoff,
    config::{ConfigError, Name},
    entropy::Entropy,
    observe::Events,
    port::{PortError, PortErrorKind, within},
    race::{First, race, yield_now},
    sync::Mutex,
    time::Clock,
};

/// The connection to the servers. A clone shares it.
///
/// Concurrent requests share the connection's writes; none waits for the answer of another. While
/// the connection is lost, requests fail at once, and the client restores it.
#[derive(Clone)]
pub(super) struct Link(Arc<LinkCore>);

struct LinkCore {
    client: Client,
    base: Arc<Base>,
}

/// The parts that outlive a loss of the connection.
pub(super) struct Base {
    pub(super) config: NatsConfig,
    pub(super) target: Target,
    pub(super) clock: Clock,
    pub(super) entropy: Entropy,
    pub(super) events: Events<ConnectionEvent>,
    /// The servers' addresses, as the source of events.
    source: Name,
    health: watch::Sender<Health>,
    early: EarlyTimer,
    delays: Mutex<Backoff>,
    /// Number of attempts since the loss. Only the client's own task counts, so `Relaxed` suffices.
    attempts: AtomicU32,
    /// The last failure to restore the connection, while it is lost.
    not_restored: Mutex<Option<PortError>>,
    refusals: Mutex<Refusals>,
    /// Set when a notice was published without a refusal. A flag alone: it publishes nothing.
    has_published: AtomicBool,
}

/// The state of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Health {
    pub(super) is_up: bool,
    /// Number of losses. A subscription that sees it grow may have missed messages.
    pub(super) losses: u64,
    /// Number of times that messages to a slow subscription were dropped.
    pub(super) drops: u64,
    /// Number of messages and subscriptions that the server refused.
    refusals: u64,
}

/// The effect of a request on stored data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// None, or one that a repetition does not change: an unanswered request is sent again.
    Reads,
    /// None that is kept, but an unanswered request is not sent again.
    Once,
    Writes,
}

/// Time after which a read is sent again: a stream that elects a leader does not answer.
const AGAIN: Duration = Duration::from_secs(1);

/// Pauses, in milliseconds, before a write that no server took is sent again: the servers of a
/// cluster tell each other of a new stream. Nothing was applied meanwhile.
const SPREADS: [u64; 5] = [10, 40, 150, 300, 500];

/// Delay between attempts to connect after the handle was dropped: the client notices at the next.
const ABANDONED: Duration = Duration::from_secs(3600);

impl Base {
    pub(super) fn new(config: NatsConfig) -> Result<Self, ConfigError> {
        let target = config.check()?;
        let entropy = Entropy::from_os();
        let source = Name::from(format!("nats {}", target.address()));
        let delays = Mutex::new(Backoff::checked(config.reconnect, &entropy));
        let (health, _) = watch::channel(Health::default());
        let (clock, events, attempts) = (Clock::default(), Events::new(), AtomicU32::new(0));
        let early = EarlyTimer::new(&clock, config.request_timeout.min(AGAIN));
        let (not_restored, refusals, has_published) = (Mutex::default(), Mutex::default(), AtomicBool::new(false));
        Ok(Self {
            config,
            target,
            clock,
            entropy,
            events,
            source,
            health,
            early,
            delays,
            attempts,
            not_restored,
            refusals,
            has_published,
        })
    }

    pub(super) fn send(&self, event: impl FnOnce() -> ConnectionEvent) {
        self.events.send(Some(&self.source), self.clock.now(), event);
    }

    /// Records an event of the client.
    fn on(&self, event: &Event) {
        let role = ConnectionRole::Requests;
        match event {
            Event::Connected => {
                let attempts = self.attempts.swap(0, Ordering::Relaxed).max(1);
                let mut losses = 0;
                *self.not_restored.lock() = None;
                self.refusals.lock().reconnected();
                self.health.send_modify(|health| (health.is_up, losses) = (true, health.losses));
                // The first connection is no restoration.
                if losses > 0 {
                    *self.delays.lock() = Backoff::checked(self.config.reconnect, &self.entropy);
                    self.send(|| ConnectionEvent::Restored { role, attempts });
                }
            }
            Event::Disconnected | Event::Closed => {
                let mut was_up = false;
                self.health.send_modify(|health| {
                    was_up = health.is_up;
                    if was_up {
                        (health.is_up, health.losses) = (false, health.losses + 1);
                    }
                });
                if was_up {
                    let (kind, reason) = (PortErrorKind::Unavailable, "the connection was lost".to_owned());
                    self.send(|| ConnectionEvent::Lost { role, kind, reason });
                }
            }
            Event::ServerError(ServerError::Other(words)) => {
                if let Some(refused) = Refused::parse(words) {
                    let number = self.refusals.lock().add(refused, &inbox(&self.config.prefix));
                    self.health.send_modify(|health| health.refusals = number);
                }
            }
            Event::SlowConsumer(_) => self.health.send_modify(|health| health.drops += 1),
            _ => {}
        }
    }

    /// Records the reason why no server was reached by the attempt before, and tells a new one.
    fn note_attempt(&self, servers: &[Server]) {
        let failures = servers.iter().filter_map(|server| server.last_error.as_deref());
        let failures = failures.map(|words| not_reached(&self.target, words));
        if self.attempts.load(Ordering::Relaxed) == 0 {
            // These are failures from before the loss.
            return;
        }
        // A server that answers, and refuses this handle, says most.
        let Some(failure) = failures.min_by_key(|failure| failure.kind() != PortErrorKind::Denied) else { return };
        let last = self.not_restored.lock().replace(failure.clone());
        let known = last.map_or(PortErrorKind::Unavailable, |last| last.kind());
        // One look: a second one in the expression would wait for a writer that waits for the first.
        let (health, kind) = (*self.health.borrow(), failure.kind());
        let is_lost = !health.is_up && health.losses > 0;
        if is_lost && kind != known {
            let (role, reason) = (ConnectionRole::Requests, failure.to_string());
            self.send(|| ConnectionEvent::NotRestored { role, kind, reason });
        }
    }

    fn next_delay(&self) -> Duration {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        self.delays.lock().next().unwrap_or(Duration::from_secs(1))
    }

    fn options(self: &Arc<Self>) -> Result<ConnectOptions, ConfigError> {
        let Self { config, target, .. } = &**self;
        let base: Weak<Self> = Arc::downgrade(self);
        let (events, attempts, delays) = (base.clone(), base.clone(), base);
        // Three unanswered pings end a connection.
        let ping = (config.request_timeout / 3).clamp(Duration::from_millis(500), Duration::from_secs(20));
        let mut options = identified(config, target)?
            .name("steadfast")
            .custom_inbox_prefix(inbox(&config.prefix))
            .connection_timeout(config.connect_timeout)
            .ping_interval(ping)
            .request_timeout(None)
            .skip_subject_validation(true)
            .event_callback(move |event| {
                if let Some(base) = events.upgrade() {
                    base.on(&event);
                }
                std::future::ready(())
            })
            .reconnect_to_server_callback(move |servers, _| {
                if let Some(base) = attempts.upgrade() {
                    base.note_attempt(&servers);
                }
                // The client chooses the server.
                std::future::ready(None)
            })
            .reconnect_delay_callback(move |_| delays.upgrade().map_or(ABANDONED, |base| base.next_delay()));
        // Root certificates of the system are read only where TLS is asked for.
        if config.tls.is_some() || target.is_tls {
            let tls = config.tls.clone().unwrap_or_else(TlsConfig::default).client()?;
            options = options.require_tls(true).tls_client_config(tls);
        }
        Ok(options)
    }
}

impl Link {
    /// Connects to one of the servers.
    pub(super) async fn connect(base: Arc<Base>) -> Result<Self, PortError> {
        let connect = Box::pin(base.options()?.connect(base.target.servers.clone()));
        // The client tries one server after the other, each for the time limit at most.
        let servers = u32::try_from(base.target.servers.len()).unwrap_or(u32::MAX);
        let limit = base.config.connect_timeout.saturating_mul(servers);
        let Some(connected) = within(&base.clock, limit, connect).await else {
            let limit = humantime::format_duration(limit);
            let message = format_args!("no connection within {limit}: is the server running, and reachable?");
            return Err(failure(&base.target, PortErrorKind::TimedOut, message));
        };
        let client = connected.map_err(|error| refused(&base.target, &error))?;
        // The client's own event may come later than the first request.
        if client.connection_state() == State::Connected {
            base.health.send_modify(|health| health.is_up = true);
        }
        let link = Self(Arc::new(LinkCore { client, base }));
        if let Some(exposed) = link.exposure().event() {
            link.base().send(|| exposed);
        }
        Ok(link)
    }

    /// Returns the protection of the connection.
    pub(super) fn exposure(&self) -> Exposure {
        let Base { config, target, .. } = &**self.base();
        let is_tls = config.tls.is_some() || target.is_tls || self.client().server_info().tls_required;
        let hosts = target.servers.iter().map(|server| server.host());
        let advice = "begin `url` with `tls:`, or set `tls`";
        Exposure::of(format!("nats {}", target.address()), hosts, is_tls.then_some(true), advice)
    }

    pub(super) fn base(&self) -> &Arc<Base> {
        &self.0.base
    }

    pub(super) fn target(&self) -> &Target {
        &self.0.base.target
    }

    pub(super) fn client(&self) -> &Client {
        &self.0.client
    }

    /// Returns the state of the connection, and its changes.
    pub(super) fn health(&self) -> watch::Receiver<Health> {
        self.0.base.health.subscribe()
    }

    /// Returns an error of this kind about the servers.
    pub(super) fn failure(&self, kind: PortErrorKind, message: impl std::fmt::Display) -> PortError {
        failure(self.target(), kind, message)
    }

    /// Returns the error of an answer of another form than expected.
    pub(super) fn unexpected(&self, request: &str) -> PortError {
        let message = format_args!("the answer to `{request}` has another form than expected");
        self.failure(PortErrorKind::Corrupt, message)
    }

    /// Runs something that needs the connection, at most for the time limit of a request. Fails at
    /// once if the connection is lost, before or meanwhile.
    pub(super) async fn supervise<F: Future>(&self, effect: Effect, work: F) -> Result<F::Output, PortError> {
        let Base { clock, config, early, .. } = &*self.0.base;
        early.note_request();
        let mut health = self.health();
        let now = *health.borrow_and_update();
        if !now.is_up {
            return Err(self.lost());
        }
        let lost = health.wait_for(|health| health.losses != now.losses);
        let error = match within(clock, config.request_timeout, race(work, lost)).await {
            Some(First::One(done)) => return Ok(done),
            Some(First::Other(_)) => self.failure(PortErrorKind::Unavailable, "the connection was lost"),
            None => {
                let limit = humantime::format_duration(config.request_timeout);
                self.failure(PortErrorKind::TimedOut, format_args!("no answer within {limit}"))
            }
        };
        Err(if effect == Effect::Writes { error.outcome_unknown() } else { error })
    }

    /// Returns the error of a request while the connection is lost.
    fn lost(&self) -> PortError {
        match &*self.base().not_restored.lock() {
            Some(failure) if failure.kind() == PortErrorKind::Denied => failure.clone().temporary(),
            Some(failure) => PortError::new(PortErrorKind::Unavailable, failure.to_string()),
            None => self.failure(PortErrorKind::Unavailable, "the connection is lost, and is being restored"),
        }
    }

    /// Returns the number of refusals so far: one of a later request is behind it.
    pub(super) fn refusals(&self) -> u64 {
        self.base().health.borrow().refusals
    }

    fn refused(&self, refused: &Refused) -> PortError {
        self.failure(PortErrorKind::Denied, refused.message())
    }

    /// Refuses a request, before it is sent, whose answer would not be heard.
    fn check_heard(&self) -> Result<(), PortError> {
        let refused = self.base().refusals.lock().of_answers();
        refused.map_or(Ok(()), |refused| Err(self.refused(&refused)))
    }

    /// Waits until the server refuses a request to this subject, or the answers to all. It answers
    /// neither, and takes a request whose answer nobody may hear.
    pub(super) async fn refusal(&self, subject: &str, since: u64, effect: Effect) -> PortError {
        let mut health = self.health();
        let mut seen = None;
        let request = Refused::Publish(subject.to_owned());
        loop {
            let (of_request, of_answers) = {
                let refusals = self.base().refusals.lock();
                (refusals.of(&request, since), refusals.of_answers())
            };
            let is_certain = effect != Effect::Writes || of_request.is_some();
            if let Some(refused) = of_answers.or(of_request) {
                let error = self.refused(&refused);
                return if is_certain { error } else { error.outcome_unknown() };
            }
            match health.wait_for(|now| seen != Some(now.refusals)).await.map(|now| now.refusals) {
                Ok(now) => seen = Some(now),
                Err(_) => std::future::pending().await,
            }
        }
    }

    /// Returns an error if the server refused this behind the number. It tells so ahead of the
    /// answer to a round trip, but the client passes it on by a task that may be late: with `waits`
    /// two further round trips give it time.
    async fn unless_refused(&self, refused: Refused, since: u64, waits: bool) -> Result<(), PortError> {
        let mut round_trips = if waits { 2 } else { 0 };
        loop {
            yield_now().await;
            if let Some(refused) = self.base().refusals.lock().of(&refused, since) {
                return Err(self.refused(&refused));
            }
            if round_trips == 0 {
                return Ok(());
            }
            round_trips -= 1;
            self.round_trip().await?;
        }
    }

    /// Returns an error if the server refused a message to one of these subjects behind the number.
    pub(super) fn unless_any_refused<'a>(
        &self,
        subjects: impl Iterator<Item = &'a String>,
        since: u64,
    ) -> Result<(), PortError> {
        let refusals = self.base().refusals.lock();
        let mut refused = subjects.filter_map(|subject| refusals.of(&Refused::Publish(subject.clone()), since));
        refused.next().map_or(Ok(()), |refused| Err(self.refused(&refused)))
    }

    /// Sends a request, and returns its answer.
    pub(super) async fn request(
        &self,
        subject: String,
        headers: Option<HeaderMap>,
        payload: Bytes,
        effect: Effect,
    ) -> Result<Message, PortError> {
        let Base { clock, .. } = &*self.0.base;
        let send = || {
            let request = Request::new().payload(payload.clone()).timeout(None);
            let request = headers.iter().fold(request, |request, headers| request.headers(headers.clone()));
            self.0.client.send_request(subject.clone(), request)
        };
        let is_cluster = self.0.client.server_info().cluster.is_some();
        self.check_heard()?;
        let since = self.refusals();
        // On the heap: the client's futures are large, and would be in those of all requests.
        let work = Box::pin(async {
            if effect != Effect::Reads {
                let mut pauses = SPREADS.iter();
                loop {
                    let answer = send().await;
                    let is_taken = !matches!(&answer, Err(error) if error.kind() == RequestErrorKind::NoResponders);
                    match pauses.next() {
                        Some(pause) if is_cluster && !is_taken => clock.sleep(Duration::from_millis(*pause)).await,
                        _ => return answer,
                    }
                }
            }
            loop {
                if let Some(answer) = within(clock, AGAIN, pin!(send())).await {
                    return answer;
                }
            }
        });
        let refusal = Box::pin(self.refusal(&subject, since, effect));
        let answer = match self.supervise(effect, race(work, refusal)).await? {
            First::One(answer) => answer,
            First::Other(refused) => return Err(refused),
        };
        answer.map_err(|error| match error.kind() {
            RequestErrorKind::NoResponders => {
                let domain = self.base().config.domain.as_deref();
                let domain = domain.map(|domain| format!("is there the domain `{domain}`, ")).unwrap_or_default();
                let message = "is JetStream on, has the cluster a leader, was the stream deleted?";
                let message = format_args!("no stream takes the request: {domain}{message}");
                self.failure(PortErrorKind::Unavailable, message)
            }
            RequestErrorKind::MaxPayloadExceeded => {
                self.failure(PortErrorKind::Invalid, "the request is larger than the server's `max_payload`")
            }
            _ => {
                let error = self.failure(PortErrorKind::Unavailable, format_args!("the request failed: {error}"));
                if effect == Effect::Writes { error.outcome_unknown() } else { error }
            }
        })
    }

    /// Calls JetStream's API. The inner error is a refusal, which changed nothing.
    pub(super) async fn api<T: DeserializeOwned>(
        &self,
        call: &str,
        body: &impl Serialize,
        effect: Effect,
    ) -> Result<Result<T, ApiError>, PortError> {
        let body = serde_json::to_vec(body).map_err(|error| self.failure(PortErrorKind::Other, error))?;
        let answer = self.request(format!("{}.{call}", self.base().config.api()), None, body.into(), effect).await?;
        self.parse(call, &answer.payload, effect)
    }

    /// Stores a message in a stream, and returns its number. The inner error is a refusal.
    pub(super) async fn store(
        &self,
        subject: String,
        headers: Option<HeaderMap>,
        payload: Bytes,
    ) -> Result<Result<u64, ApiError>, PortError> {
        let answer = self.request(subject, headers, payload, Effect::Writes).await?;
        let ack: Result<PubAck, ApiError> = self.parse("publish", &answer.payload, Effect::Writes)?;
        Ok(ack.map(|ack| ack.seq))
    }

    /// Tells the server something about a delivery, without an answer.
    pub(super) async fn tell(&self, subject: String, what: String) {
        // A delivery of which the server hears nothing ends by its time limit.
        let _ = self.supervise(Effect::Once, self.0.client.publish(subject, what.into())).await;
    }

    /// Answers a delivery, and returns when the server has noted it.
    pub(super) async fn answer(&self, subject: String, what: String) -> Result<(), PortError> {
        self.request(subject, None, what.into(), Effect::Writes).await.map(drop)
    }

    pub(super) fn parse<T: DeserializeOwned>(
        &self,
        call: &str,
        answer: &[u8],
        effect: Effect,
    ) -> Result<Result<T, ApiError>, PortError> {
        // A refusal may have the fields of an answer, too. Text in an answer has its quotes escaped.
        let key = br#""error":"#;
        if answer.windows(key.len()).any(|found| found == key)
            && let Ok(Refusal { error: Some(error) }) = serde_json::from_slice(answer)
        {
            return Ok(Err(error));
        }
        serde_json::from_slice(answer).map(Ok).map_err(|_| {
            let error = self.unexpected(call);
            if effect == Effect::Writes { error.outcome_unknown() } else { error }
        })
    }

    /// Returns the error of a message that was not sent.
    pub(super) fn unsent(&self, error: impl std::fmt::Display) -> PortError {
        self.failure(PortErrorKind::Unavailable, format_args!("the request failed: {error}"))
    }

    /// Converts a refusal into an error.
    pub(super) fn rejected(&self, what: &str, error: &ApiError) -> PortError {
        rejected(self.target(), what, error)
    }

    /// Publishes to a subject that no stream takes, and returns when the server has read it.
    pub(super) async fn publish(&self, subject: String, payload: Bytes) -> Result<(), PortError> {
        let since = self.refusals();
        let published = self.supervise(Effect::Reads, self.0.client.publish(subject.clone(), payload)).await?;
        published.map_err(|error| self.failure(PortErrorKind::Unavailable, error))?;
        self.round_trip().await?;
        // Rights seldom differ between topics: the first notice of a handle finds out.
        let has_published = &self.base().has_published;
        self.unless_refused(Refused::Publish(subject), since, !has_published.load(Ordering::Relaxed)).await?;
        has_published.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Subscribes to a subject, and returns when the server knows.
    pub(super) async fn subscribe(&self, subject: String) -> Result<Subscriber, PortError> {
        let since = self.refusals();
        let subscribed = self.supervise(Effect::Reads, self.0.client.subscribe(subject.clone())).await?;
        let subscriber = subscribed.map_err(|error| self.failure(PortErrorKind::Unavailable, error))?;
        self.round_trip().await?;
        self.unless_refused(Refused::Subscribe(subject), since, true).await?;
        Ok(subscriber)
    }

    /// Returns when the server has read all that was sent before: it answers in order.
    pub(super) async fn round_trip(&self) -> Result<(), PortError> {
        // Nobody listens to the subject, and the server says so. The client's flush hears nothing.
        let subject = format!("{}.none", self.0.base.config.prefix);
        let (request, since) = (Request::new().timeout(None), self.refusals());
        let sent = pin!(self.0.client.send_request(subject.clone(), request));
        let refusal = pin!(self.refusal(&subject, since, Effect::Reads));
        match self.supervise(Effect::Reads, race(sent, refusal)).await? {
            First::Other(refused) => Err(refused),
            First::One(answer) => self.had_no_responders(answer),
        }
    }

    fn had_no_responders(&self, answer: Result<Message, async_nats::RequestError>) -> Result<(), PortError> {
        match answer {
            Err(error) if error.kind() != RequestErrorKind::NoResponders => {
                Err(self.failure(PortErrorKind::Unavailable, error))
            }
            _ => Ok(()),
        }
    }
}
