//! A pool of connections that fails at once while the server is down.
//!
//! A request takes an idle connection, or opens one, or waits for one; the number of waiting
//! requests is limited. After a failed attempt to connect, requests fail at once, and one task
//! tries again with back-off until the server answers.
use std::{
    collections::HashMap,
    sync::{
        Arc,
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
    spawn::Spawner,
    sync::Mutex,
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
}

/// An open connection.
pub(crate) struct Pooled {
    pub(crate) connection: Connection,
    /// The statements that it prepared; `None` if it does not prepare any.
    pub(crate) prepared: Option<HashMap<String, Statement>>,
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

impl Pool {
    pub(crate) fn new(config: &PostgresConfig, connector: Connector, events: Events<ConnectionEvent>) -> Self {
        Self(Arc::new(PoolCore {
            connector,
            permits: Arc::new(Semaphore::new(config.connections)),
            waiting: AtomicUsize::new(0),
            max_waiting: config.max_waiting,
            limit: config.request_timeout,
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
        let permit = match self.permits.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => self.wait().await?,
        };
        // The server may have gone down during the wait.
        self.check_up()?;
        match self.take_idle() {
            Some(pooled) => {
                Ok(Borrowed { pool: self.clone(), pooled: Some(pooled), permit: Some(permit), is_busy: false })
            }
            None => {
                self.check_reachable()?;
                self.open_for(permit).await
            }
        }
    }

    /// Opens a connection in a task. If the caller's future is dropped meanwhile, the connection
    /// goes to the pool.
    async fn open_for(self: &Arc<Self>, permit: OwnedSemaphorePermit) -> Result<Borrowed, PortError> {
        let (answer, opened) = oneshot::channel();
        let pool = self.clone();
        Spawner::Tokio.spawn(async move {
            let borrowed = match pool.open().await {
                Ok((pooled, _)) => Ok(Borrowed { pool, pooled: Some(pooled), permit: Some(permit), is_busy: false }),
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

    async fn wait(self: &Arc<Self>) -> Result<OwnedSemaphorePermit, PortError> {
        let throttled = |what: &str| {
            let message = format!("postgres: {}: {what}: raise `connections`", self.connector.place);
            PortError::new(PortErrorKind::Throttled, message)
        };
        let waiting = Counted::new(self);
        if waiting.0.waiting.load(Ordering::Relaxed) > self.max_waiting {
            return Err(throttled("too many requests wait for a connection"));
        }
        match within(&self.connector.clock, self.limit, self.permits.clone().acquire_owned()).await {
            Some(Ok(permit)) => Ok(permit),
            Some(Err(_)) => Err(PortError::new(PortErrorKind::Closed, "postgres: the pool is closed")),
            None => Err(throttled("no connection became free in time")),
        }
    }

    fn take_idle(&self) -> Option<Pooled> {
        let mut state = self.state.lock();
        while let Some(pooled) = state.idle.pop() {
            if !pooled.connection.client.is_closed() {
                return Some(pooled);
            }
        }
        None
    }

    fn put_back(&self, pooled: Pooled) {
        if !pooled.connection.client.is_closed() {
            self.state.lock().idle.push(pooled);
        }
    }

    /// Opens a connection and checks the server behind it, which may be another one than before.
    async fn open(&self) -> Result<(Pooled, Server), PortError> {
        let connection = self.connector.open(None, |warning| self.tell(warning)).await?;
        let server = server::inspect(&connection, &self.connector).await?;
        let first = *self.state.lock().server.get_or_insert(server);
        server.check_against(&first, &self.connector.place)?;
        let prepared = self.prepares.unwrap_or(server.is_direct).then(HashMap::new);
        Ok((Pooled { connection, prepared }, server))
    }

    /// Lets requests fail at once, until a task has reached the server.
    pub(crate) fn go_down(self: &Arc<Self>, error: &PortError) {
        if error.kind() == PortErrorKind::Throttled {
            // The server is there, and short of connections.
            return;
        }
        if self.state.lock().down.replace(error.clone()).is_some() {
            return;
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

    fn tell(&self, event: ConnectionEvent) {
        self.events.stage(self.connector.clock.now(), || event);
        self.events.flush(None);
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
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        let Some(pooled) = self.pooled.take() else { return };
        if !self.is_busy {
            self.pool.put_back(pooled);
            return;
        }
        // The caller's future was dropped. The next request must not wait behind this one, which may wait for a lock.
        let (pool, permit) = (self.pool.clone(), self.permit.take());
        Spawner::Tokio.spawn(async move {
            let probe = within(&pool.connector.clock, pool.limit, pooled.connection.client.check_connection()).await;
            match probe {
                Some(_) => pool.put_back(pooled),
                None => pooled.connection.abandon(&pool.connector),
            }
            drop(permit);
        });
    }
}
