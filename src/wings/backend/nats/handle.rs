//! Handle on the servers.
use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Weak},
};

use super::{
    config::NatsConfig,
    features::Features,
    link::{Base, Link},
    names::Names,
    notifier::NatsNotifier,
    queue::{NatsQueue, QueueCore},
    rights::permissions,
    setup::{self, Retention, Stream, Wanted},
    store::NatsStore,
    sweep::Deleted,
};
use crate::{
    backend::{ConnectionEvent, QUEUE_NAME},
    lease::StoreLease,
    observe::Subscription,
    port::PortError,
    sync::Mutex,
};

/// A connection to NATS with the ports on it. The [module's page](super) describes them.
///
/// A clone shares the connection. Dropping the last clone, port and subscription closes it.
#[derive(Clone)]
pub struct Nats {
    pub(super) core: Arc<NatsCore>,
    lease: StoreLease,
}

/// The parts that all ports of a handle share.
pub(super) struct NatsCore {
    pub(super) link: Link,
    pub(super) names: Names,
    /// The stream of the store.
    pub(super) stream: Stream,
    pub(super) features: Features,
    pub(super) deleted: Deleted,
    /// Appends of the handle to one partition take turns, by its hash: they would conflict.
    pub(super) turns: [tokio::sync::Mutex<()>; 64],
    /// Queues in use, by name.
    pub(super) queues: Mutex<HashMap<String, Weak<QueueCore>>>,
}

impl Nats {
    /// Connects, checks the server, and creates the stream of the store. The handle works on the
    /// runtime on which it was connected.
    ///
    /// # Errors
    /// - `Invalid`: a setting violates a rule.
    /// - `Unavailable`, `TimedOut`: no server was reached in time, or the cluster has no leader.
    /// - `Denied`: the user, the password, the token or a right is missing.
    /// - `Unsupported`: the server is too old, JetStream is switched off, there are fewer servers
    ///   than [`replicas`](field@NatsConfig::replicas), or a setting of a stream was changed.
    /// - `Corrupt`: a stream of the same name is another program's.
    /// - `TooNew`: a newer release wrote the data.
    /// - `Full`: the server or the account has no room for the stream.
    ///
    /// No error contains the password.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection. The stream may be created.
    pub async fn connect(config: NatsConfig) -> Result<Self, PortError> {
        let names = Names::new(config.prefix.clone());
        let link = Link::connect(Arc::new(Base::new(config)?)).await?;
        setup::check_server(&link)?;
        let (name, subject) = (names.store(), names.all_records());
        let wanted = Wanted::plain(&name, subject, Retention::All);
        let stream = setup::stream(&link, &wanted).await?;
        let features = Features::of(&link, &name).await?;
        let (deleted, turns) = (Deleted::default(), std::array::from_fn(|_| tokio::sync::Mutex::new(())));
        let core = NatsCore { link, names, stream, features, deleted, turns, queues: Mutex::default() };
        let core = Arc::new(core);
        // A lease needs reads that no old leader answers, whatever the setting.
        let lease = StoreLease::new(Arc::new(NatsStore::new(core.clone(), true)))?;
        Ok(Self { core, lease })
    }

    /// Returns the store.
    pub fn store(&self) -> NatsStore {
        let confirms = self.core.link.base().config.confirmed_reads;
        NatsStore::new(self.core.clone(), confirms)
    }

    /// Returns the queue with this name; creates its stream if it does not exist.
    ///
    /// # Errors
    /// `Invalid` if the name is empty or longer than 1,024 bytes; otherwise those of
    /// [`connect`](Self::connect).
    ///
    /// # Cancel safety
    /// If the future is dropped, the stream is created or not.
    pub async fn queue(&self, name: &str) -> Result<NatsQueue, PortError> {
        QUEUE_NAME.check_key("name", name)?;
        NatsQueue::open(&self.core, name).await
    }

    /// Returns the leases, which are records of the store.
    pub fn lease(&self) -> StoreLease {
        self.lease.clone()
    }

    /// Returns the notifier.
    pub fn notifier(&self) -> NatsNotifier {
        NatsNotifier::new(self.core.clone())
    }

    /// Returns the rights that a user needs for this prefix with these queues, for the
    /// administrator who gives them: `{"publish": [..], "subscribe": [..]}`, as `permissions` of a
    /// user in the server's configuration, or `pub.allow` and `sub.allow` of a user's JWT. Other
    /// prefixes of the account stay closed.
    ///
    /// ```
    /// use steadfast::backend::nats::{Nats, NatsConfig};
    ///
    /// let config = NatsConfig::at("nats://one.internal").prefix("shop");
    /// let rights = Nats::permissions(&config, &["jobs"])?;
    /// assert!(rights.contains(r#""$JS.API.STREAM.*.shop_store""#));
    /// # Ok::<(), steadfast::port::PortError>(())
    /// ```
    ///
    /// # Errors
    /// `Invalid` if a setting violates a rule.
    pub fn permissions(config: &NatsConfig, queues: &[&str]) -> Result<String, PortError> {
        config.check()?;
        Ok(permissions(config, queues))
    }

    /// Describes the connection in a line: the server, the prefix, and the protection on the way.
    pub fn explain(&self) -> String {
        let link = &self.core.link;
        format!("{}, prefix `{}`: {}", link.exposure().server(), link.base().config.prefix, link.exposure())
    }

    /// Subscribes to losses and restorations of the connection.
    pub fn events(&self) -> Subscription<ConnectionEvent> {
        self.core.link.base().events.subscribe()
    }
}

impl fmt::Debug for Nats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nats").field("server", &self.core.link.target().address()).finish_non_exhaustive()
    }
}
