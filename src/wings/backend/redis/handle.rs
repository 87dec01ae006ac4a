//! Handle on a server.
use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use super::{
    config::{RedisConfig, Target},
    connection::Connector,
    keys::Keys,
    lease::RedisLease,
    link::{Base, Link},
    notifier::RedisNotifier,
    pubsub::PubSub,
    queue::RedisQueue,
    store::RedisStore,
};
use crate::{
    backend::{ConnectionEvent, QUEUE_NAME},
    config::Name,
    entropy::Entropy,
    observe::{Events, Subscription},
    port::PortError,
    time::Clock,
};

/// A connection to a Redis server with the ports on it. The [module's page](super) describes them.
///
/// A clone shares the connection. Dropping the last clone, port and subscription closes it.
#[derive(Clone)]
pub struct Redis(pub(super) Arc<RedisCore>);

/// The parts that all ports of a handle share.
pub(super) struct RedisCore {
    pub(super) link: Link,
    pub(super) pubsub: PubSub,
    pub(super) keys: Keys,
    /// Set once a read found a record that has an end.
    pub(super) has_ends: OnceLock<()>,
}

impl Redis {
    /// Connects, and checks the server. The handle works on the runtime on which it was connected.
    ///
    /// # Errors
    /// - `Invalid`: a setting violates a rule.
    /// - `Unavailable`, `TimedOut`: the server was not reached in time, or is loading its data.
    /// - `Denied`: the user or the password is wrong, or a right is missing, such as that to the
    ///   channels of the prefix.
    /// - `Unsupported`: the server is too old, evicts keys, or is a node of a cluster.
    /// - `TooNew`: a newer release wrote the data.
    /// - `Full`: the server's memory is full, and the prefix is new.
    ///
    /// No error contains the password.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection. The prefix may be written.
    pub async fn connect(config: RedisConfig) -> Result<Self, PortError> {
        let connector = Connector::new(&config)?;
        let keys = Keys::new(config.prefix.clone(), connector.target.user.db());
        let base = Base {
            clock: Clock::default(),
            entropy: Entropy::from_os(),
            events: Events::new(),
            source: Name::from(format!("redis {}", connector.target.address())),
            moved: Arc::default(),
            config: Arc::new(config),
            connector: Arc::new(connector),
        };
        let link = Link::connect(base.clone()).await?;
        Ok(Self(Arc::new(RedisCore { link, pubsub: PubSub::new(base), keys, has_ends: OnceLock::new() })))
    }

    /// Returns the store on this server.
    pub fn store(&self) -> RedisStore {
        RedisStore::new(self.0.clone())
    }

    /// Returns the queue with this name on this server. A queue exists as long as it has messages;
    /// nothing is written here.
    ///
    /// # Errors
    /// `Invalid` if the name is empty or longer than 1,024 bytes.
    pub fn queue(&self, name: &str) -> Result<RedisQueue, PortError> {
        QUEUE_NAME.check_key("name", name)?;
        Ok(RedisQueue::new(self.0.clone(), name))
    }

    /// Returns the leases on this server.
    pub fn lease(&self) -> RedisLease {
        RedisLease::new(self.0.clone())
    }

    /// Returns the notifier on this server.
    pub fn notifier(&self) -> RedisNotifier {
        RedisNotifier::new(self.0.clone())
    }

    /// Describes the connection in a line: the server, the prefix, and the protection on the way.
    pub fn explain(&self) -> String {
        self.0.link.explain()
    }

    /// Subscribes to losses and restorations of the connection.
    pub fn events(&self) -> Subscription<ConnectionEvent> {
        self.0.link.base().events.subscribe()
    }
}

impl RedisCore {
    /// Returns the settings.
    pub(super) fn config(&self) -> &RedisConfig {
        &self.link.base().config
    }

    /// Returns the server, as errors name it.
    pub(super) fn target(&self) -> &Target {
        &self.link.base().connector.target
    }

    /// Returns a text that names the data of the server and the prefix.
    pub(super) fn identity(&self) -> &str {
        &self.link.server().identity
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("server", &self.0.target().address()).finish_non_exhaustive()
    }
}
