//! The connection of a handle: supervised, restored after a loss, shared by all requests.
use std::sync::{Arc, Weak};

use redis::{Cmd, Value, aio::MultiplexedConnection};
use tokio::sync::{Notify, oneshot};

use super::{
    check::{self, Server},
    config::{Address, RedisConfig},
    connection::{self, Connector, Driver, OnPush, Refused, confirmed},
    failure::{failed, failure, is_unknown_script, unexpected},
    keys::Keys,
    script::Call,
    share::{Sharing, Waiting, Way},
};
use crate::{
    backend::{
        ConnectionEvent, ConnectionRole,
        common::{early_timer::EarlyTimer, exposure::Exposure},
    },
    backoff::Backoff,
    config::Name,
    entropy::Entropy,
    observe::Events,
    port::{Capability, PortError, PortErrorKind, within},
    race::{First, race, yield_now},
    spawn::Spawner,
    sync::Mutex,
    time::{Clock, Instant},
};

/// The connection for requests. A clone shares it.
///
/// Calls that meet share requests, and requests share the connection's writes. While the connection
/// is lost, requests fail at once, and one task restores it.
#[derive(Clone)]
pub(super) struct Link(Arc<LinkCore>);

struct LinkCore {
    base: Base,
    /// The server of the first connection: later ones must have the same data.
    server: Server,
    state: Mutex<State>,
    /// The protection of the last connection: sentinels may name a server elsewhere.
    exposure: Mutex<Option<Exposure>>,
    sharing: Sharing,
    early: EarlyTimer,
}

/// The parts that connections of a handle share.
#[derive(Clone)]
pub(super) struct Base {
    pub(super) config: Arc<RedisConfig>,
    pub(super) connector: Arc<Connector>,
    pub(super) clock: Clock,
    pub(super) entropy: Entropy,
    pub(super) events: Events<ConnectionEvent>,
    /// The server's address, as the source of events.
    pub(super) source: Name,
    /// Notified when sentinels name another server.
    pub(super) moved: Arc<Notify>,
}

/// A new connection.
struct Socket {
    connection: MultiplexedConnection,
    driver: Driver,
    address: Address,
}

enum State {
    Up(Current),
    /// Kind and reason of the loss, or of the last failed attempt to connect.
    Down(PortErrorKind, String),
}

/// A connection in use.
struct Current {
    connection: MultiplexedConnection,
    /// Number of the connection, so that a late failure of an earlier one does not end this one.
    number: u64,
    /// Ends the driver when it is dropped: pending requests then fail at once.
    _driven: oneshot::Sender<()>,
}

impl Base {
    /// Connects within the time limit, and checks the server. `is_first` refuses one that later may
    /// go on with what it lacks.
    async fn connect(&self, identity: &str, is_first: bool) -> Result<(Socket, Server), PortError> {
        let connect = async {
            let address = self.locate().await?;
            let (mut connection, mut driver) = self.connector.connect(&address, None).await?;
            // The driver moves the bytes of the checks.
            let target = &self.connector.target;
            let keys = Keys::new(self.config.prefix.clone(), target.user.db());
            let checks = async {
                let server = check::check((target, &keys), &mut connection, (identity, is_first)).await?;
                if self.config.replicas > 0 {
                    check::check_wait(target, &mut connection).await?;
                }
                Ok::<_, PortError>(server)
            };
            let server = match race(checks, &mut driver).await {
                First::One(server) => server?,
                First::Other(()) => return Err(self.connector.closed()),
            };
            Ok((Socket { connection, driver, address }, server))
        };
        within(&self.clock, self.config.connect_timeout, connect).await.unwrap_or_else(|| {
            let limit = humantime::format_duration(self.config.connect_timeout);
            let advice = self.connector.advice_on_silence();
            let message = format_args!("no connection within {limit}: is the server running, and reachable{advice}?");
            Err(failure(&self.connector.target, PortErrorKind::TimedOut, message))
        })
    }

    /// Returns the address of the server, which sentinels may name anew each time.
    async fn locate(&self) -> Result<Address, PortError> {
        self.connector.locate(&self.clock, self.config.connect_timeout / 2).await
    }

    /// Connects within the time limit for pushed messages.
    pub(super) async fn connect_for_pushes(
        &self,
        on_push: OnPush,
    ) -> Result<(MultiplexedConnection, Driver), PortError> {
        let connect = async {
            let address = self.locate().await?;
            // The handle has another connection with this login.
            self.connector.connect(&address, Some(on_push)).await.map_err(PortError::temporary)
        };
        within(&self.clock, self.config.connect_timeout, connect)
            .await
            .unwrap_or_else(|| Err(failure(&self.connector.target, PortErrorKind::TimedOut, "no connection in time")))
    }

    pub(super) fn send(&self, event: impl FnOnce() -> ConnectionEvent) {
        self.events.send(Some(&self.source), self.clock.now(), event);
    }

    /// Returns the protection of the connections to the server at this address, and to the
    /// sentinels.
    fn exposure(&self, address: &Address) -> Exposure {
        let target = &self.connector.target;
        let is_tls = target.is_tls || self.config.tls.is_some();
        let advice = "begin `url` with `rediss:`, or set `tls`";
        let now = if target.is_watched() { format!(", now {address}") } else { String::new() };
        let server = format!("redis {}{now}", target.address());
        let hosts = target.hosts().chain([address.host.as_str()]);
        Exposure::of(server, hosts, is_tls.then_some(true), advice)
    }

    pub(super) fn backoff(&self) -> Backoff {
        Backoff::checked(self.config.reconnect, &self.entropy)
    }
}

impl Link {
    /// Connects, and checks the server.
    pub(super) async fn connect(base: Base) -> Result<Self, PortError> {
        let identity = base.entropy.id();
        let (socket, server) = base.connect(&identity, true).await?;
        if server.hides_settings {
            base.send(|| ConnectionEvent::Unverified { capability: Capability::Durable });
        }
        let early = EarlyTimer::new(&base.clock, base.config.request_timeout);
        let state = Mutex::new(State::Down(PortErrorKind::Unavailable, String::new()));
        let exposure = Mutex::new(None);
        let core = LinkCore { base, server, state, exposure, sharing: Sharing::default(), early };
        let link = Self(Arc::new(core));
        LinkCore::set_up(&link.0, socket, 1);
        Ok(link)
    }

    /// Describes the last connection in a line.
    pub(super) fn explain(&self) -> String {
        let (prefix, exposure) = (&self.base().config.prefix, self.0.exposure.lock());
        exposure
            .as_ref()
            .map(|exposure| format!("{}, prefix `{prefix}`: {exposure}", exposure.server()))
            .unwrap_or_default()
    }

    /// Returns the properties of the server.
    pub(super) fn server(&self) -> &Server {
        &self.0.server
    }

    /// Returns the parts for another connection of the handle.
    pub(super) fn base(&self) -> &Base {
        &self.0.base
    }

    /// Makes a call, alone or with others.
    ///
    /// # Cancel safety
    /// If the future is dropped, the call is made or not.
    pub(super) async fn call(&self, call: Call) -> Result<Value, PortError> {
        let core = &self.0;
        let now = core.base.clock.now();
        if !call.may_share() {
            return LinkCore::exchange(core, &[&call], now).await;
        }
        match core.sharing.begin(call, now) {
            Way::Alone(call) => {
                let _under_way = UnderWay(core);
                LinkCore::exchange(core, &[&call], now).await
            }
            Way::Refused => {
                Err(failure(&core.base.connector.target, PortErrorKind::Throttled, "too many requests wait"))
            }
            Way::Shared { answered, spawns } => {
                if spawns {
                    Turn::spawn(core);
                }
                answered.await.unwrap_or_else(|_| {
                    let message = "the runtime is shutting down";
                    Err(failure(&core.base.connector.target, PortErrorKind::Closed, message).outcome_unknown())
                })
            }
        }
    }

    /// Runs a command that changes nothing that is kept.
    pub(super) async fn run(&self, command: &Cmd) -> Result<Value, PortError> {
        let (mut connection, number) = self.0.current()?;
        let request = async { Ok(connection::send(&mut connection, command).await?) };
        let answer = within(&self.0.base.clock, self.0.base.config.request_timeout, request).await;
        LinkCore::judge(&self.0, number, false, answer)
    }
}

/// A request under way. Its end may be that for which calls wait.
struct UnderWay<'a>(&'a Arc<LinkCore>);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if self.0.sharing.end() {
            Turn::spawn(self.0);
        }
    }
}

/// The turn of the calls that gather. Without a runtime it is dropped, and they fail.
struct Turn(Option<Arc<LinkCore>>);

impl Turn {
    fn spawn(core: &Arc<LinkCore>) {
        // Created here: also a task that is dropped before its first poll ends the turn.
        let mut turn = Self(Some(core.clone()));
        Spawner::Tokio.spawn(async move {
            yield_now().await;
            let Some(core) = turn.0.take() else { return };
            let mut groups = Call::groups(core.sharing.take()).into_iter();
            let first = groups.next();
            for group in groups {
                Spawner::Tokio.spawn(LinkCore::send_group(core.clone(), group));
            }
            if let Some(group) = first {
                LinkCore::send_group(core, group).await;
            }
        });
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(core) = self.0.take() {
            drop(core.sharing.take());
        }
    }
}

impl LinkCore {
    /// Makes calls in one request, and gives each caller its answer.
    async fn send_group(core: Arc<Self>, group: Vec<(Call, Waiting)>) {
        core.sharing.begin_shared();
        let _under_way = UnderWay(&core);
        let group = core.in_time(group);
        if group.is_empty() {
            return;
        }
        let (calls, callers): (Vec<Call>, Vec<Waiting>) = group.into_iter().unzip();
        let calls: Vec<&Call> = calls.iter().collect();
        // None is answered later than its time limit.
        let since = callers.iter().map(|caller| caller.since).min().unwrap_or_else(|| core.base.clock.now());
        let answers = match Self::exchange(&core, &calls, since).await {
            Ok(answer) => match Call::answers(&calls, answer) {
                Some(answers) => answers.into_iter().map(Ok).collect(),
                None => {
                    let error = unexpected(&core.base.connector.target, "a shared request");
                    let error = if calls[0].script.writes { error.outcome_unknown() } else { error };
                    vec![Err(error); calls.len()]
                }
            },
            // A script that would exceed the server's memory or disk stops before its first change. That is the
            // answer for a call that adds, but not for the others.
            Err(error) if error.kind() == PortErrorKind::Full && calls.len() > 1 => {
                let mut answers = Vec::with_capacity(calls.len());
                for (call, caller) in calls.iter().zip(&callers) {
                    answers.push(Self::exchange(&core, &[call], caller.since).await);
                }
                answers
            }
            Err(error) => vec![Err(error); calls.len()],
        };
        for (caller, answer) in callers.into_iter().zip(answers) {
            // A caller whose future was dropped needs no answer.
            let _ = caller.answer.send(answer);
        }
    }

    /// Answers the calls that waited beyond their time limit, and returns the others. Sent with one
    /// of them, a request would time out at once, and end the connection.
    fn in_time(&self, group: Vec<(Call, Waiting)>) -> Vec<(Call, Waiting)> {
        let (now, limit) = (self.base.clock.now(), self.base.config.request_timeout);
        let (late, in_time): (Vec<_>, Vec<_>) = group.into_iter().partition(|(_, caller)| now >= caller.since + limit);
        for (_, caller) in late {
            let message = format_args!("not sent within {}", humantime::format_duration(limit));
            let error = failure(&self.base.connector.target, PortErrorKind::TimedOut, message);
            let _ = caller.answer.send(Err(error));
        }
        in_time
    }

    /// Sends a request of these calls, within the time limit of one that began `since`.
    async fn exchange(core: &Arc<Self>, calls: &[&Call], since: Instant) -> Result<Value, PortError> {
        let (mut connection, number) = core.current()?;
        let Base { config, connector, .. } = &core.base;
        let script = calls[0].script;
        let replicas = if script.writes { config.replicas } else { 0 };
        let packed = Call::request(calls);
        let request = async {
            match confirmed(&mut connection, &packed, replicas, (config, &connector.target)).await {
                // Nothing was run.
                Err(Refused::Server(error)) if is_unknown_script(&error) => {
                    connection::send(&mut connection, &script.load()).await?;
                    confirmed(&mut connection, &packed, replicas, (config, &connector.target)).await
                }
                answer => answer,
            }
        };
        core.early.note_request();
        let deadline = since + config.request_timeout;
        let answer = match race(request, async { core.base.clock.sleep_until(deadline).await }).await {
            First::One(answer) => Some(answer),
            First::Other(()) => None,
        };
        Self::judge(core, number, script.writes, answer)
    }

    /// Returns the connection in use, and its number.
    fn current(&self) -> Result<(MultiplexedConnection, u64), PortError> {
        match &*self.state.lock() {
            State::Up(current) => Ok((current.connection.clone(), current.number)),
            State::Down(kind, reason) => {
                let message = format_args!("not connected, and trying again: {reason}");
                // A server that refuses the login is reached, and may let the handle in again at any time.
                let kind = if *kind == PortErrorKind::Denied { *kind } else { PortErrorKind::Unavailable };
                Err(failure(&self.base.connector.target, kind, message).temporary())
            }
        }
    }

    /// Converts the answer to a request, and gives up a connection that is lost.
    fn judge(
        core: &Arc<Self>,
        number: u64,
        writes: bool,
        answer: Option<Result<Value, Refused>>,
    ) -> Result<Value, PortError> {
        let config = &core.base.config;
        match answer {
            Some(Ok(value)) => Ok(value),
            Some(Err(refused)) => {
                let failed = match refused {
                    Refused::Server(error) => failed(&core.base.connector.target, &error, writes),
                    Refused::Unconfirmed(failed) => failed,
                };
                if failed.is_lost {
                    Self::lose(core, number, failed.error.kind(), failed.reason);
                    // The handle tries to connect again.
                    return Err(failed.error.temporary());
                }
                Err(failed.error)
            }
            None => {
                let reason = format!("no answer within {}", humantime::format_duration(config.request_timeout));
                let error = failure(&core.base.connector.target, PortErrorKind::TimedOut, &reason);
                // Answers come in order, so the requests behind this one would wait in vain, too.
                Self::lose(core, number, PortErrorKind::TimedOut, reason);
                Err(if writes { error.outcome_unknown() } else { error })
            }
        }
    }

    /// Uses this connection from now on.
    fn set_up(core: &Arc<Self>, socket: Socket, number: u64) {
        let Socket { connection, driver, address } = socket;
        let exposure = core.base.exposure(&address);
        let before = core.exposure.lock().replace(exposure.clone());
        if before.is_none_or(|before| before.to_string() != exposure.to_string())
            && let Some(exposed) = exposure.event()
        {
            core.base.send(|| exposed);
        }
        let (driven, ended) = oneshot::channel();
        *core.state.lock() = State::Up(Current { connection, number, _driven: driven });
        let (core, base) = (Arc::downgrade(core), core.base.clone());
        Spawner::Tokio.spawn(async move {
            let moved = base.connector.moved(&base.clock, base.config.connect_timeout / 2, &address);
            let reason = match race(race(driver, moved), ended).await {
                First::One(First::One(())) => "the server closed the connection",
                First::One(First::Other(())) => {
                    base.moved.notify_waiters();
                    "the sentinels name another primary"
                }
                First::Other(_) => return,
            };
            if let Some(core) = core.upgrade() {
                Self::lose(&core, number, PortErrorKind::Unavailable, reason.to_owned());
            }
        });
    }

    /// Gives up the connection with this number, and begins to restore it.
    fn lose(core: &Arc<Self>, number: u64, kind: PortErrorKind, reason: String) {
        let lost = {
            let mut state = core.state.lock();
            match &*state {
                State::Up(current) if current.number == number => {
                    std::mem::replace(&mut *state, State::Down(kind, reason.clone()))
                }
                _ => return,
            }
        };
        // Ends the driver, outside the lock.
        drop(lost);
        core.base.send(|| ConnectionEvent::Lost { role: ConnectionRole::Requests, kind, reason });
        Spawner::Tokio.spawn(Self::restore(Arc::downgrade(core), core.base.clone(), (number + 1, kind)));
    }

    /// Connects again, until it succeeds or the handle is dropped.
    async fn restore(core: Weak<Self>, base: Base, (number, mut told): (u64, PortErrorKind)) {
        for (delay, attempts) in base.backoff().zip(1..) {
            base.clock.sleep(delay).await;
            let Some(core) = core.upgrade() else { return };
            // A server that was emptied keeps the name of its data.
            let (kind, reason) = match base.connect(&core.server.identity, false).await {
                // Without `Durable` a restart may have emptied it, and another handle have named it.
                Ok((socket, server)) if server.identity == core.server.identity || !core.server.is_durable => {
                    Self::set_up(&core, socket, number);
                    base.send(|| ConnectionEvent::Restored { role: ConnectionRole::Requests, attempts });
                    for capability in core.server.lost_in(&server) {
                        base.send(|| ConnectionEvent::Weakened { capability });
                    }
                    return;
                }
                Ok(_) => {
                    (PortErrorKind::Unavailable, "the server holds other data than before: connect anew".to_owned())
                }
                Err(error) => (error.kind(), error.to_string()),
            };
            if let State::Down(last, why) = &mut *core.state.lock() {
                (*last, *why) = (kind, reason.clone());
            }
            if kind != std::mem::replace(&mut told, kind) {
                base.send(|| ConnectionEvent::NotRestored { role: ConnectionRole::Requests, kind, reason });
            }
        }
    }
}
