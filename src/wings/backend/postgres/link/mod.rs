//! Requests to the server: one statement and one round trip each.
pub(super) mod connection;
pub(super) mod direct;
pub(super) mod failure;
pub(super) mod pool;
pub(super) mod server;
mod tls;

use std::{collections::HashMap, fmt, time::Duration};

use tokio_postgres::{
    Client, Error, Row, Statement,
    error::SqlState,
    types::{ToSql, Type},
};

pub(crate) use self::failure::Effect;
use self::{
    connection::Connector,
    failure::{failure, timed_out},
    pool::{Borrowed, Pool, Pooled},
    server::Server,
};
use super::{PostgresConfig, config::check_schema, schema::VERSION};
use crate::{
    backend::{
        ConnectionEvent,
        common::{early_timer::EarlyTimer, exposure::Exposure},
    },
    observe::Events,
    port::{PortError, PortErrorKind, within},
    time::Clock,
};

/// A parameter of a statement, with its type.
pub(crate) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// Largest sum of the values of a request, in bytes. The server takes less than 1 GiB, and requests
/// that meet share a statement.
const LARGEST: usize = 512 << 20;

/// Refuses a request that the server would answer by closing the connection.
pub(crate) fn check_size(field: &str, bytes: usize) -> Result<(), PortError> {
    if bytes <= LARGEST {
        return Ok(());
    }
    Err(PortError::invalid(field, format_args!("must have at most {LARGEST} bytes together, has {bytes}")))
}

/// Refuses a transaction whose statements do not see what others have committed.
pub(crate) fn refuse_isolation(place: &str) -> PortError {
    let message = format!("postgres: {place}: the transaction must have the isolation level READ COMMITTED");
    PortError::new(PortErrorKind::Unsupported, message)
}

/// Condition of a statement within a transaction of the user.
pub(crate) const READ_COMMITTED: &str = "current_setting('transaction_isolation') = 'read committed'";

const FITS: &str = "(SELECT value <= {version} FROM {s}.meta WHERE name = 'version')";

/// Returns the condition of a statement for the queue with the number of this parameter.
pub(crate) fn knows(queue: &str) -> String {
    format!(
        "CASE WHEN {FITS} AND EXISTS (SELECT FROM {{s}}.queues WHERE id = abs({queue})) THEN true
            ELSE {{s}}.refuse({{version}}, abs({queue})) END"
    )
}

/// The connections of a handle, and the names of its schema.
pub(crate) struct Link {
    pool: Pool,
    /// The schema's name, quoted for a statement.
    schema: String,
    /// Number that identifies the schema in advisory locks and names of channels.
    id: u64,
    limit: Duration,
    /// Permits of requests that wait for other transactions, so that they leave connections to the
    /// others.
    patient: tokio::sync::Semaphore,
    early: EarlyTimer,
    pub(crate) clock: Clock,
}

impl Link {
    pub(crate) fn new(
        config: &PostgresConfig,
        clock: &Clock,
        events: Events<ConnectionEvent>,
    ) -> Result<Self, PortError> {
        check_schema(&config.schema)?;
        Ok(Self {
            pool: Pool::new(config, Connector::new(config, false, clock)?, events),
            schema: format!("\"{}\"", config.schema),
            id: crate::hash::stable_hash(config.schema.as_bytes()),
            limit: config.request_timeout,
            patient: tokio::sync::Semaphore::new(config.connections.div_ceil(2)),
            early: EarlyTimer::new(clock, config.request_timeout),
            clock: clock.clone(),
        })
    }

    /// Waits for the permission to send a request that waits for other transactions.
    pub(crate) async fn patience(&self) -> Result<tokio::sync::SemaphorePermit<'_>, PortError> {
        let throttled = || {
            let what = "too many requests wait for locks that other transactions hold";
            PortError::new(PortErrorKind::Throttled, format!("postgres: {}: {what}", self.place()))
        };
        let permit = within(&self.clock, self.limit, self.patient.acquire()).await;
        permit.and_then(Result::ok).ok_or_else(throttled)
    }

    /// Opens the first connection, and checks the server.
    pub(crate) async fn begin(&self) -> Result<Server, PortError> {
        self.pool.core().begin().await
    }

    /// Returns the protection of the connections.
    pub(crate) fn exposure(&self) -> Exposure {
        self.pool.core().connector.exposure()
    }

    /// Returns the hosts and the database, as errors name them.
    pub(crate) fn place(&self) -> &str {
        &self.pool.core().connector.place
    }

    /// Returns the statement with each `{s}` replaced by the schema's quoted name, and `{class}` by
    /// the class of its advisory locks. Build it once for each port.
    ///
    /// `{fits}` is a condition that holds unless a newer release changed the schema: the statement
    /// then fails, and changes nothing. So does that of [`knows`] if the queue is gone.
    pub(crate) fn sql(&self, template: &str) -> String {
        // The lower half of the number: locks of a class have 32 bits for themselves.
        let class = (self.id as u32).cast_signed();
        template
            .replace("{fits}", &format!("CASE WHEN {FITS} THEN true ELSE {{s}}.refuse({{version}}) END"))
            .replace("{s}", &self.schema)
            .replace("{class}", &class.to_string())
            .replace("{version}", &VERSION.to_string())
    }

    /// Sends an event of this handle.
    pub(crate) fn tell(&self, event: ConnectionEvent) {
        self.pool.core().tell(event);
    }

    /// Returns the number of the schema, for advisory locks and names of channels.
    pub(crate) const fn schema_id(&self) -> u64 {
        self.id
    }

    /// Returns the start of the names of the channels of this schema's queues.
    pub(crate) fn channels(&self) -> String {
        format!("steadfast_{:016x}", self.id)
    }

    /// Sends one statement, and returns its rows. A read is repeated once if its connection was
    /// lost. A write without an answer fails with an unknown outcome.
    ///
    /// # Cancel safety
    /// If the future is dropped, the statement takes effect as a whole or not at all.
    pub(crate) async fn query(&self, effect: Effect, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, PortError> {
        self.request(effect, sql, params, true).await
    }

    /// Same as [`query`](Self::query) for one of many texts, which are never prepared: each would
    /// stay at the server.
    pub(crate) async fn read_once(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, PortError> {
        self.request(Effect::Read, sql, params, false).await
    }

    async fn request(
        &self,
        effect: Effect,
        sql: &str,
        params: &[Param<'_>],
        stays: bool,
    ) -> Result<Vec<Row>, PortError> {
        let mut borrowed = self.pool.core().borrow().await?;
        match self.send(&mut borrowed, effect, sql, params, stays).await {
            Err(error) if effect == Effect::Read && error.kind() == PortErrorKind::Unavailable => {
                drop(borrowed);
                let mut borrowed = self.pool.core().borrow().await?;
                self.send(&mut borrowed, effect, sql, params, stays).await
            }
            sent => sent,
        }
    }

    async fn send(
        &self,
        borrowed: &mut Borrowed,
        effect: Effect,
        sql: &str,
        params: &[Param<'_>],
        stays: bool,
    ) -> Result<Vec<Row>, PortError> {
        borrowed.is_busy = true;
        self.early.note_request();
        let sent = self.clock.now();
        let answer = within(&self.clock, self.limit, borrowed.pooled()?.rows(sql, params, stays)).await;
        borrowed.is_busy = false;
        if answer.is_some() {
            borrowed.pooled()?.heard = self.clock.now();
        }
        match answer {
            Some(Ok(rows)) => Ok(rows),
            Some(Err(error)) => {
                let error = failure(self.place(), error, effect);
                if error.kind() == PortErrorKind::Unavailable {
                    // Also of a server that is alive and no longer the primary.
                    borrowed.abandon();
                }
                Err(error)
            }
            None => {
                borrowed.give_up(sent);
                let error = timed_out(self.place(), "a request", self.limit);
                Err(if effect == Effect::Write { error.outcome_unknown() } else { error })
            }
        }
    }

    /// Runs statements without parameters, in one implicit transaction.
    pub(crate) async fn run(&self, statements: &str, limit: Duration) -> Result<(), PortError> {
        let mut borrowed = self.pool.core().borrow().await?;
        borrowed.is_busy = true;
        let ran = within(&self.clock, limit, borrowed.pooled()?.connection.client.batch_execute(statements)).await;
        borrowed.is_busy = false;
        match ran {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => {
                // Its transaction is aborted, and still open.
                borrowed.abandon();
                Err(failure(self.place(), error, Effect::Write))
            }
            None => {
                borrowed.abandon();
                Err(timed_out(self.place(), "a migration", limit).outcome_unknown())
            }
        }
    }

    /// Returns a column of an answer.
    pub(crate) fn column<'a, T: tokio_postgres::types::FromSql<'a>>(
        &self,
        row: &'a Row,
        i: usize,
    ) -> Result<T, PortError> {
        row.try_get(i).map_err(|error| failure(self.place(), error, Effect::Read))
    }
}

/// Errors of a prepared statement that is unknown, or has other columns by now. Nothing was run.
const STALE: [SqlState; 3] =
    [SqlState::UNDEFINED_PSTATEMENT, SqlState::DUPLICATE_PSTATEMENT, SqlState::FEATURE_NOT_SUPPORTED];

impl Pooled {
    /// Sends a statement, and returns its rows. If it `stays`, it is prepared where this connection
    /// prepares.
    async fn rows(&mut self, sql: &str, params: &[Param<'_>], stays: bool) -> Result<Vec<Row>, Error> {
        if stays && let Some(prepared) = &mut self.prepared {
            match Self::rows_prepared(&self.connection.client, prepared, sql, params).await {
                // Somebody made the session forget it, or replaced the schema.
                Err(error) if error.code().is_some_and(|code| STALE.contains(code)) => self.prepared = None,
                answer => return answer,
            }
        }
        self.connection.client.query_typed(sql, params).await
    }

    async fn rows_prepared(
        client: &Client,
        prepared: &mut HashMap<String, Statement>,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, Error> {
        let statement = match prepared.get(sql) {
            Some(statement) => statement,
            None => {
                let types: Vec<Type> = params.iter().map(|(_, of)| of.clone()).collect();
                let statement = client.prepare_typed(sql, &types).await?;
                prepared.entry(sql.to_owned()).or_insert(statement)
            }
        };
        let values: Vec<&(dyn ToSql + Sync)> = params.iter().map(|(value, _)| *value).collect();
        client.query(statement, &values).await
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("place", &self.place()).field("schema", &self.schema).finish_non_exhaustive()
    }
}
