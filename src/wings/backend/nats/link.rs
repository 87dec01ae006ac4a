//! The connection of a handle: supervised, restored after a loss, shared by all requests.
use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use async_nats::{
    Client, ConnectOptions, Event, HeaderMap, Message, RequestErrorKind, Subscriber, client::Request, connection::State,
};
use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::watch;

use super::{
    api::{ApiError, PubAck, Refusal},
    config::{Login, NatsConfig, Target},
    failure::{failure, refused, rejected},
};
use crate::{
    backend::{ConnectionEvent, ConnectionRole, TlsConfig, common::early_timer::EarlyTimer},
    backoff::Backoff,
    config::{ConfigError, Name},
    entropy::Entropy,
    observe::Events,
    port::{PortError, PortErrorKind, within},
    race::{First, race},
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
}

/// The state of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Health {
    pub(super) is_up: bool,
    /// Number of losses. A subscription that sees it grow may have missed messages.
    pub(super) losses: u64,
    /// Number of times that messages to a slow subscription were dropped.
    pub(super) drops: u64,
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
        Ok(Self { config, target, clock, entropy, events, source, health, early, delays, attempts })
    }

    fn send(&self, event: impl FnOnce() -> ConnectionEvent) {
        self.events.send(Some(&self.source), self.clock.now(), event);
    }

    /// Records an event of the client.
    fn on(&self, event: &Event) {
        let role = ConnectionRole::Requests;
        match event {
            Event::Connected => {
                let attempts = self.attempts.swap(0, Ordering::Relaxed).max(1);
                let mut losses = 0;
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
            Event::SlowConsumer(_) => self.health.send_modify(|health| health.drops += 1),
            _ => {}
        }
    }

    fn next_delay(&self) -> Duration {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        self.delays.lock().next().unwrap_or(Duration::from_secs(1))
    }

    fn options(self: &Arc<Self>) -> Result<ConnectOptions, ConfigError> {
        let Self { config, target, .. } = &**self;
        let (events, delays): (Weak<Self>, Weak<Self>) = (Arc::downgrade(self), Arc::downgrade(self));
        // Three unanswered pings end a connection.
        let ping = (config.request_timeout / 3).clamp(Duration::from_millis(500), Duration::from_secs(20));
        let mut options = ConnectOptions::new()
            .name("steadfast")
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
            .reconnect_delay_callback(move |_| delays.upgrade().map_or(ABANDONED, |base| base.next_delay()));
        options = match target.login.clone() {
            Login::None => options,
            Login::Token(token) => options.token(token),
            Login::User(user, password) => options.user_and_password(user, password),
        };
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
        let connect = base.options()?.connect(base.target.servers.clone());
        // The client tries one server after the other, each for the time limit at most.
        let servers = u32::try_from(base.target.servers.len()).unwrap_or(u32::MAX);
        let limit = base.config.connect_timeout.saturating_mul(servers);
        let Some(connected) = within(&base.clock, limit, connect).await else {
            let limit = humantime::format_duration(limit);
            let message = format_args!("no connection within {limit}: is the server running, and reachable?");
            return Err(failure(&base.target, PortErrorKind::TimedOut, message));
        };
        let client = connected.map_err(|error| refused(&base.target, error))?;
        // The client's own event may come later than the first request.
        if client.connection_state() == State::Connected {
            base.health.send_modify(|health| health.is_up = true);
        }
        Ok(Self(Arc::new(LinkCore { client, base })))
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
            return Err(self.failure(PortErrorKind::Unavailable, "the connection is lost, and is being restored"));
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
        let answer = self.supervise(effect, async {
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
                if let Some(answer) = within(clock, AGAIN, send()).await {
                    return answer;
                }
            }
        });
        let answer = answer.await?;
        answer.map_err(|error| match error.kind() {
            RequestErrorKind::NoResponders => {
                let message =
                    "no stream takes the request: is JetStream on, has the cluster a leader, was the stream deleted?";
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
        let answer = self.request(format!("$JS.API.{call}"), None, body.into(), effect).await?;
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
        let published = self.supervise(Effect::Reads, self.0.client.publish(subject, payload)).await?;
        published.map_err(|error| self.failure(PortErrorKind::Unavailable, error))?;
        self.round_trip().await
    }

    /// Subscribes to a subject, and returns when the server knows.
    pub(super) async fn subscribe(&self, subject: String) -> Result<Subscriber, PortError> {
        let subscribed = self.supervise(Effect::Reads, self.0.client.subscribe(subject)).await?;
        let subscriber = subscribed.map_err(|error| self.failure(PortErrorKind::Unavailable, error))?;
        self.round_trip().await?;
        Ok(subscriber)
    }

    /// Returns when the server has read all that was sent before: it answers in order.
    pub(super) async fn round_trip(&self) -> Result<(), PortError> {
        // Nobody listens to the subject, and the server says so. The client's flush hears nothing.
        let subject = format!("{}.none", self.0.base.config.prefix);
        let request = Request::new().timeout(None);
        let answer = self.supervise(Effect::Reads, self.0.client.send_request(subject, request)).await?;
        match answer {
            Err(error) if error.kind() != RequestErrorKind::NoResponders => {
                Err(self.failure(PortErrorKind::Unavailable, error))
            }
            _ => Ok(()),
        }
    }
}
