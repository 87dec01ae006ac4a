//! A pool of connections that fails at once while the server is down.
//!
//! A request takes an idle connection, or opens one, or waits for one; the number of waiting
//! requests is limited. After a failed attempt to connect, requests fail at once, and one task
//! tries again with back-off until the server answers.
//!
//! A server that is there and has no connection left (53300), or a pooler that accepts no further
//! client, refuses openings alone: they pause, and requests wait for the connections that are open,
//! in their order.
use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio_postgres::Statement;

use super::super::PostgresConfig;
use super::{
    connection::{Connection, Connector},
    failure::refuses_login,
    server::{self, Server},
};
use crate::{
    backend::{ConnectionEvent, ConnectionRole},
    backoff::{Backoff, BackoffConfig},
    entropy::Entropy,
    observe::Events,
    port::{PortError, PortErrorKind, within},
    race::{First, race},
    spawn::Spawner,
    sync::Mutex,
    time::{Clock, Instant, scaled},
};

/// The connections for requests.
pub(crate) struct Pool(Arc<PoolCore>);

pub(crate) struct PoolCore {
    pub(crate) connector: Connector,
    permits: Arc<Semaphore>,
    /// Number of requests that wait for a permit. A count alone: it publishes nothing.
    waiting: AtomicUsize,
    max_waiting: usize,
    limit: Duration,
    idle_timeout: Duration,
    max_lifetime: Duration,
    /// `None` if each connection finds out.
    prepares: Option<bool>,
    state: Mutex<PoolState>,
    entropy: Entropy,
    pub(crate) events: Events<ConnectionEvent>,
}

#[derive(Default)]
struct PoolState {
    /// The most recently used one is last.
    idle: Vec<Pooled>,
    /// The failure of the last attempt to connect, while the supervisor tries again.
    down: Option<PortError>,
    /// The state of the server that the first connection found.
    server: Option<Server>,
    /// Requests that wait for a connection of this pool, while the server refuses another one.
    heirs: VecDeque<oneshot::Sender<Borrowed>>,
    /// The pause of openings, while the server has no connection left.
    pause: Option<Pause>,
    /// `true` while a task closes idle connections.
    is_reaping: bool,
}

/// A pause of openings after the server refused one.
struct Pause {
    refusal: PortError,
    until: Instant,
    delays: Backoff,
}

/// An open connection.
pub(crate) struct Pooled {
    pub(crate) connection: Connection,
    /// The statements that it prepared; `None` if it does not prepare any.
    pub(crate) prepared: Option<HashMap<String, Statement>>,
    /// Time of the last answer.
    pub(crate) heard: Instant,
    /// End of its life: it is closed once it is idle.
    ends: Instant,
}

/// A connection in use. Dropped while its request is under way, it waits for the answer, and then
/// returns to the pool.
pub(crate) struct Borrowed {
    pool: Arc<PoolCore>,
    pooled: Option<Pooled>,
    permit: Option<OwnedSemaphorePermit>,
    /// `true` while an answer is outstanding.
    pub(crate) is_busy: bool,
}

/// Delays between attempts to reach a server that is down.
pub(crate) const RECONNECT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// Delays between openings at a server that has no connection left.
const REFUSED: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Longest sleep of the task that closes idle connections.
const NAP: Duration = Duration::from_secs(3600);

/// A way to a connection.
#[allow(clippy::large_enum_variant, reason = "it is used at once, and a box would cost an allocation a request")]
enum Way {
    Idle(Pooled),
    Open,
    /// Another request returns one, or openings are tried again at this time.
    Wait(oneshot::Receiver<Borrowed>, Instant),
}

impl Pool {
    pub(crate) fn new(config: &PostgresConfig, connector: Connector, events: Events<ConnectionEvent>) -> Self {
        Self(Arc::new(PoolCore {
            connector,
            permits: Arc::new(Semaphore::new(config.connections)),
            waiting: AtomicUsize::new(0),
            max_waiting: config.max_waiting,
            limit: config.request_timeout,
            idle_timeout: config.idle_timeout,
            max_lifetime: config.max_lifetime,
            prepares: config.prepare,
            state: Mutex::default(),
            entropy: Entropy::default(),
            events,
        }))
    }

    pub(crate) fn core(&self) -> &Arc<PoolCore> {
        &self.0
    }
}

impl PoolCore {
    /// Opens the first connection, and checks the server.
    pub(crate) async fn begin(self: &Arc<Self>) -> Result<Server, PortError> {
        let (pooled, server) = self.open().await?;
        self.put_back(pooled);
        Ok(server)
    }

    /// Takes a connection. Fails at once while the server is down.
    pub(crate) async fn borrow(self: &Arc<Self>) -> Result<Borrowed, PortError> {
        self.check_up()?;
        let end = self.connector.clock.now() + self.limit;
        let mut permit = match self.permits.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => self.wait().await?,
        };
        loop {
            // The server may have gone down during the wait.
            self.check_up()?;
            let (heir, again) = match self.way() {
                Way::Idle(pooled) => return Ok(self.lend(pooled, Some(permit))),
                Way::Open => {
                    self.check_reachable()?;
                    match self.open_for(permit).await? {
                        Ok(borrowed) => return Ok(borrowed),
                        Err(unused) => permit = unused,
                    }
                    continue;
                }
                Way::Wait(heir, again) => (heir, again),
            };
            if let Some(mut borrowed) = self.inherit(heir, again.min(end)).await {
                borrowed.permit = Some(permit);
                return Ok(borrowed);
            }
            if self.connector.clock.now() >= end {
                return Err(self.refusal());
            }
        }
    }

    fn lend(self: &Arc<Self>, pooled: Pooled, permit: Option<OwnedSemaphorePermit>) -> Borrowed {
        Borrowed { pool: self.clone(), pooled: Some(pooled), permit, is_busy: false }
    }

    /// Chooses an idle connection, an opening, or a wait.
    fn way(&self) -> Way {
        let now = self.connector.clock.now();
        let mut state = self.state.lock();
        while let Some(pooled) = state.idle.pop() {
            if pooled.is_good(now) {
                return Way::Idle(pooled);
            }
        }
        let Some(pause) = &mut state.pause else { return Way::Open };
        if now >= pause.until {
            // This request tries, and the others wait on.
            pause.begin(now);
            return Way::Open;
        }
        let (until, (heir, inherits)) = (pause.until, oneshot::channel());
        // Those that no longer wait would stay for as long as no connection is returned.
        state.heirs.retain(|heir| !heir.is_closed());
        state.heirs.push_back(heir);
        Way::Wait(inherits, until)
    }

    /// Waits until this time for a connection that another request returns.
    async fn inherit(&self, mut heir: oneshot::Receiver<Borrowed>, until: Instant) -> Option<Borrowed> {
        match race(&mut heir, self.connector.clock.sleep_until(until)).await {
            First::One(inherited) => inherited.ok(),
            First::Other(()) => heir.try_recv().ok(),
        }
    }

    /// Pauses openings, because the server refused one.
    fn pause(&self, refusal: PortError) {
        let now = self.connector.clock.now();
        let delays = BackoffConfig::default().between(REFUSED.0, REFUSED.1);
        let mut state = self.state.lock();
        match &mut state.pause {
            Some(pause) => pause.refusal = refusal,
            None => {
                let mut pause = Pause { refusal, until: now, delays: Backoff::checked(delays, &self.entropy) };
                pause.begin(now);
                state.pause = Some(pause);
            }
        }
    }

    /// Returns the error of a request that found no connection in time.
    fn refusal(&self) -> PortError {
        let refusal = self.state.lock().pause.as_ref().map(|pause| pause.refusal.clone());
        refusal.unwrap_or_else(|| self.throttled("no connection became free in time"))
    }

    /// Opens a connection in a task. If the caller's future is dropped meanwhile, the connection
    /// goes to the pool. Returns the permit if the server has no connection left.
    async fn open_for(
        self: &Arc<Self>,
        permit: OwnedSemaphorePermit,
    ) -> Result<Result<Borrowed, OwnedSemaphorePermit>, PortError> {
        let (answer, opened) = oneshot::channel();
        let pool = self.clone();
        Spawner::Tokio.spawn(async move {
            let borrowed = match pool.open().await {
                Ok((pooled, _)) => Ok(Ok(pool.lend(pooled, Some(permit)))),
                Err(error) if error.kind() == PortErrorKind::Throttled => {
                    pool.pause(error);
                    Ok(Err(permit))
                }
                Err(error) => {
                    pool.go_down(&error);
                    // It was reached before, and is tried again.
                    Err(error.temporary())
                }
            };
            drop(answer.send(borrowed));
        });
        let lost = |_| PortError::new(PortErrorKind::Closed, "postgres: the runtime is shutting down");
        opened.await.map_err(lost)?
    }

    /// Refuses a request while the server is down. A server that answers, and only refuses new
    /// connections, such as after a change of the password, still serves those that are open.
    fn check_up(&self) -> Result<(), PortError> {
        let state = self.state.lock();
        if state.down.as_ref().is_some_and(refuses_login) && !state.idle.is_empty() {
            return Ok(());
        }
        drop(state);
        self.check_reachable()
    }

    /// Refuses a request that needs a new connection while there is none to be had.
    fn check_reachable(&self) -> Result<(), PortError> {
        match &self.state.lock().down {
            // The server is there: a caller need not wait for it.
            Some(error) if refuses_login(error) => Err(error.clone().temporary()),
            // Whatever the reason, it may be mended meanwhile.
            Some(error) => Err(PortError::new(PortErrorKind::Unavailable, error.to_string())),
            None => Ok(()),
        }
    }

    fn throttled(&self, what: &str) -> PortError {
        let message = format!("postgres: {}: {what}: raise `connections`", self.connector.place);
        PortError::new(PortErrorKind::Throttled, message)
    }

    async fn wait(self: &Arc<Self>) -> Result<OwnedSemaphorePermit, PortError> {
        let waiting = Counted::new(self);
        if waiting.0.waiting.load(Ordering::Relaxed) > self.max_waiting {
            return Err(self.throttled("too many requests wait for a connection"));
        }
        match within(&self.connector.clock, self.limit, self.permits.clone().acquire_owned()).await {
            Some(Ok(permit)) => Ok(permit),
            Some(Err(_)) => Err(PortError::new(PortErrorKind::Closed, "postgres: the pool is closed")),
            None => Err(self.refusal()),
        }
    }

    /// Gives a connection to the request that has waited longest, or to the pool.
    fn put_back(self: &Arc<Self>, pooled: Pooled) {
        if pooled.connection.client.is_closed() {
            return;
        }
        let mut state = self.state.lock();
        while let Some(heir) = state.heirs.pop_front() {
            if !heir.is_closed() {
                drop(state);
                // If its future was dropped meanwhile, the connection comes back.
                drop(heir.send(self.lend(pooled, None)));
                return;
            }
        }
        if !pooled.is_good(self.connector.clock.now()) {
            return;
        }
        state.idle.push(pooled);
        if Spawner::Tokio.is_there() && !std::mem::replace(&mut state.is_reaping, true) {
            Spawner::Tokio.spawn(reap(Arc::downgrade(self), self.connector.clock.clone()));
        }
    }

    /// Closes connections that are idle for too long, except the one that was used last, and those
    /// whose life is over. Returns the time until it should do so again, if any connection is idle.
    fn reap(&self) -> Option<Duration> {
        let now = self.connector.clock.now();
        let mut state = self.state.lock();
        let (mut next, mut left) = (self.idle_timeout.min(NAP), state.idle.len());
        state.idle.retain(|pooled| {
            left -= 1;
            let idle = now - pooled.heard;
            let stays = pooled.is_good(now) && (left == 0 || idle < self.idle_timeout);
            if stays {
                let idles = if left == 0 { Duration::MAX } else { self.idle_timeout - idle };
                next = next.min(idles).min(pooled.ends - now);
            }
            stays
        });
        state.is_reaping = !state.idle.is_empty();
        state.is_reaping.then(|| next.max(Duration::from_millis(1)))
    }

    /// Closes the idle connections without an answer since then: one that was sent a request then
    /// got none, and the way to the server is the same for all.
    pub(crate) fn distrust(&self, since: Instant) {
        let silent: Vec<Pooled> = {
            let mut state = self.state.lock();
            let (heard, silent) = std::mem::take(&mut state.idle).into_iter().partition(|one| one.heard > since);
            state.idle = heard;
            silent
        };
        silent.into_iter().for_each(|pooled| pooled.connection.end());
    }

    /// Opens a connection and checks the server behind it, which may be another one than before.
    async fn open(&self) -> Result<(Pooled, Server), PortError> {
        let connection = self.connector.open(None, |warning| self.tell(warning)).await?;
        let server = server::inspect(&connection, &self.connector).await?;
        let first = *self.state.lock().server.get_or_insert(server);
        server.check_against(&first, &self.connector.place)?;
        let prepared = self.prepares.unwrap_or(server.is_direct).then(HashMap::new);
        let heard = self.connector.clock.now();
        // The connections of many processes that begin at once do not end at once.
        let life = self.max_lifetime - scaled(self.max_lifetime / 10, self.entropy.unit());
        let mut state = self.state.lock();
        if state.pause.take().is_some() {
            // Those that wait for a connection of another request open one.
            state.heirs.clear();
        }
        drop(state);
        Ok((Pooled { connection, prepared, heard, ends: heard + life }, server))
    }

    /// Lets requests fail at once, until a task has reached the server.
    pub(crate) fn go_down(self: &Arc<Self>, error: &PortError) {
        {
            let mut state = self.state.lock();
            // Those that wait for a connection find out.
            state.heirs.clear();
            if state.down.replace(error.clone()).is_some() {
                return;
            }
        }
        let lost =
            ConnectionEvent::Lost { role: ConnectionRole::Requests, kind: error.kind(), reason: error.to_string() };
        self.tell(lost);
        let (pool, mut told) = (Arc::downgrade(self), error.kind());
        let delays = BackoffConfig::default().between(RECONNECT.0, RECONNECT.1);
        let (delays, clock) = (Backoff::checked(delays, &self.entropy), self.connector.clock.clone());
        Spawner::Tokio.spawn(async move {
            for (attempts, delay) in (1..).zip(delays) {
                clock.sleep(delay).await;
                // Ends with the last handle.
                let Some(pool) = pool.upgrade() else { return };
                match pool.open().await {
                    Ok((pooled, _)) => {
                        pool.put_back(pooled);
                        pool.state.lock().down = None;
                        pool.tell(ConnectionEvent::Restored { role: ConnectionRole::Requests, attempts });
                        return;
                    }
                    Err(error) if error.kind() == PortErrorKind::Throttled => {
                        // The server is there, and short of connections.
                        pool.pause(error);
                        pool.state.lock().down = None;
                        pool.tell(ConnectionEvent::Restored { role: ConnectionRole::Requests, attempts });
                        return;
                    }
                    Err(error) => {
                        let (role, kind, reason) = (ConnectionRole::Requests, error.kind(), error.to_string());
                        pool.state.lock().down = Some(error);
                        if kind != std::mem::replace(&mut told, kind) {
                            pool.tell(ConnectionEvent::NotRestored { role, kind, reason });
                        }
                    }
                }
            }
        });
    }

    pub(crate) fn tell(&self, event: ConnectionEvent) {
        self.events.stage(self.connector.clock.now(), || event);
        self.events.flush(None);
    }
}

impl Pause {
    fn begin(&mut self, now: Instant) {
        self.until = now + self.delays.next().unwrap_or(REFUSED.1);
    }
}

impl Pooled {
    fn is_good(&self, now: Instant) -> bool {
        now < self.ends && !self.connection.client.is_closed()
    }
}

/// Closes idle connections until there is none, or the last handle is gone.
async fn reap(pool: Weak<PoolCore>, clock: Clock) {
    while let Some(next) = pool.upgrade().and_then(|pool| pool.reap()) {
        clock.sleep(next).await;
    }
}

/// Counts a waiting request.
struct Counted<'a>(&'a PoolCore);

impl<'a> Counted<'a> {
    fn new(pool: &'a PoolCore) -> Self {
        pool.waiting.fetch_add(1, Ordering::Relaxed);
        Self(pool)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Borrowed {
    /// Returns the connection. It is there until it is abandoned.
    pub(crate) fn pooled(&mut self) -> Result<&mut Pooled, PortError> {
        let closed = || PortError::new(PortErrorKind::Unavailable, "postgres: the connection was given up");
        self.pooled.as_mut().ok_or_else(closed)
    }

    /// Ends the connection at once: its request was not answered in time, or its server is not the
    /// primary.
    pub(crate) fn abandon(&mut self) {
        if let Some(pooled) = self.pooled.take() {
            pooled.connection.abandon(&self.pool.connector);
        }
    }

    /// Same as [`abandon`](Self::abandon) for a request that was sent then, and not answered in
    /// time: idle connections that are as silent as this one end with it.
    pub(crate) fn give_up(&mut self, sent: Instant) {
        self.abandon();
        self.pool.distrust(sent);
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        let Some(mut pooled) = self.pooled.take() else { return };
        if !self.is_busy {
            self.pool.put_back(pooled);
            return;
        }
        // The caller's future was dropped. The next request must not wait behind this one, which may wait for a lock.
        let (pool, permit) = (self.pool.clone(), self.permit.take());
        Spawner::Tokio.spawn(async move {
            let (clock, sent) = (&pool.connector.clock, pool.connector.clock.now());
            match within(clock, pool.limit, pooled.connection.client.check_connection()).await {
                Some(_) => {
                    pooled.heard = clock.now();
                    pool.put_back(pooled);
                }
                None => {
                    pooled.connection.abandon(&pool.connector);
                    pool.distrust(sent);
                }
            }
            drop(permit);
        });
    }
}
