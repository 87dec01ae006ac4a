//! Handle on a schema of a server.
use std::{fmt, sync::Arc};

use super::{
    PostgresConfig, lease::LeaseSql, link::Link, link::server::Server, notices::NotifierCore,
    notices::listen::Listener, notices::wake::Wakes, schema, store::StoreCore,
};
use crate::{
    backend::ConnectionEvent,
    observe::{Events, Subscription},
    port::PortError,
    time::Clock,
};

/// A schema of a PostgreSQL server with the ports on it. The [module's page](super) describes its
/// promises.
///
/// A clone shares the connections. Dropping the last clone and the last port closes them.
#[derive(Clone)]
pub struct Postgres(pub(crate) Arc<PostgresCore>);

pub(crate) struct PostgresCore {
    pub(crate) link: Arc<Link>,
    pub(crate) listener: Listener,
    pub(crate) wakes: Arc<Wakes>,
    pub(crate) config: PostgresConfig,
    /// The promises of the server when this handle connected.
    pub(crate) server: Server,
    /// Notices of other processes arrive.
    pub(crate) hears: bool,
    pub(crate) clock: Clock,
    pub(crate) store: StoreCore,
    pub(crate) lease: LeaseSql,
    pub(crate) notifier: NotifierCore,
    events: Events<ConnectionEvent>,
}

impl PostgresCore {
    /// Returns the text of the database and schema, which all their queues share.
    pub(crate) fn engine(&self) -> String {
        format!("postgres-{} {}", self.link.place(), self.config.schema)
    }
}

impl Postgres {
    /// Connects to the server, checks it, and creates or updates the schema.
    ///
    /// # Errors
    /// - `Invalid`: a setting violates a rule, the database does not exist, or the schema does not
    ///   and `migrate` is off.
    /// - `Denied`: the password, the user's rights or a certificate do not suffice, or transactions
    ///   are read-only by default.
    /// - `Unsupported`: the server is older than version 13, or its default isolation is not `read
    ///   committed`.
    /// - `TooNew`: a newer release created the schema.
    /// - `Corrupt`: a table of the schema was dropped.
    /// - `Unavailable`, `TimedOut`: the server of `url` or of `notices_url` was not reached in
    ///   time, or is a standby.
    ///
    /// # Cancel safety
    /// If the future is dropped, the schema is created or not; nothing else happened.
    pub async fn connect(config: PostgresConfig) -> Result<Self, PortError> {
        config.check()?;
        let (clock, events) = (Clock::tokio(), Events::new());
        let link = Link::new(&config, &clock, events.clone())?;
        let listener = Listener::new(&config, &clock, events.clone())?;
        let server = link.begin().await?;
        schema::prepare(&link, &config).await?;
        let hears = match (&config.notices_url, server.is_direct) {
            (None, true) => true,
            _ => listener.hears(&link).await?,
        };
        if !hears {
            link.tell(ConnectionEvent::NoNotices { reason: listener.deafness().to_string() });
        }
        let link = Arc::new(link);
        Ok(Self(Arc::new(PostgresCore {
            store: StoreCore::new(&link),
            lease: LeaseSql::new(&link),
            notifier: NotifierCore::new(&link),
            link,
            listener,
            wakes: Arc::default(),
            config,
            server,
            hears,
            clock,
            events,
        })))
    }

    /// Returns the statements that create or update the schema, for an administrator who runs them
    /// instead of the program.
    ///
    /// # Errors
    /// `Invalid` if a setting violates a rule.
    pub fn statements(config: &PostgresConfig) -> Result<String, PortError> {
        config.check()?;
        Ok(schema::statements(&Link::new(config, &Clock::tokio(), Events::new())?))
    }

    /// Describes the connection in a line: the server, the schema, and the protection on the way.
    pub fn explain(&self) -> String {
        let exposure = self.0.link.exposure();
        format!("{}, schema `{}`: {exposure}", exposure.server(), self.0.config.schema)
    }

    /// Subscribes to the losses and restorations of this handle's connections.
    pub fn events(&self) -> Subscription<ConnectionEvent> {
        self.0.events.subscribe()
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres").field("link", &self.0.link).finish_non_exhaustive()
    }
}
