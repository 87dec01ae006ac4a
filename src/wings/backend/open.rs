//! Opens a backend by its URL.
use std::{collections::HashMap, fmt, sync::Arc};

use super::QUEUE_NAME;
#[cfg(feature = "nats")]
use super::nats::{Nats, NatsConfig};
#[cfg(feature = "postgres")]
use super::postgres::{Postgres, PostgresConfig};
#[cfg(feature = "redis")]
use super::redis::{Redis, RedisConfig};
#[cfg(feature = "sqlite")]
use super::sqlite::{Sqlite, SqliteConfig};
use crate::{
    lease::{InMemoryLease, Lease},
    notify::{InMemoryNotifier, Notifier},
    port::PortError,
    queue::{InMemoryQueue, Queue},
    store::{InMemoryStore, Store},
    sync::Mutex,
};

/// The ports of a backend that was [opened](open) by its URL.
///
/// A clone shares the backend. A backend's own type, such as `sqlite::Sqlite`, has settings beyond
/// the URL.
#[derive(Clone)]
pub struct Backend(Engine);

#[derive(Clone)]
enum Engine {
    Memory(Arc<Memory>),
    #[cfg(feature = "nats")]
    Nats(Nats),
    #[cfg(feature = "postgres")]
    Postgres(Postgres),
    #[cfg(feature = "redis")]
    Redis(Redis),
    #[cfg(feature = "sqlite")]
    Sqlite(Sqlite, Arc<dyn Lease>),
}

#[derive(Default)]
struct Memory {
    store: Arc<InMemoryStore>,
    lease: Arc<InMemoryLease>,
    notifier: Arc<InMemoryNotifier>,
    queues: Mutex<HashMap<String, Arc<InMemoryQueue>>>,
}

/// Opens the backend that the URL names, with default settings.
///
/// | URL | backend | feature |
/// |---|---|---|
/// | `memory:` | new state in this process's memory, which ends with the last clone | |
/// | `nats://HOST`, `tls://HOST` (TLS) | the streams `steadfast_...` of NATS JetStream, connected as by `Nats::connect` | `nats` |
/// | `postgres://USER@HOST/DATABASE` | the schema `steadfast` of a PostgreSQL server, connected as by `Postgres::connect` | `postgres` |
/// | `redis://HOST`, `rediss://HOST` (TLS) | the keys `steadfast:` of a Redis server, connected as by `Redis::connect` | `redis` |
/// | `redis+sentinel://HOST,HOST/SERVICE`, `rediss+sentinel://..` | the same on the primary that sentinels name | `redis` |
/// | `sqlite:FILE` | a SQLite file, opened on the calling thread as by `Sqlite::open` | `sqlite` |
///
/// ```
/// use steadfast::{backend, queue::{Message, QueueExt}, store::{Key, StoreExt}};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let url = std::env::var("STATE").unwrap_or("memory:".to_owned());
/// let backend = backend::open(&url).await?;
/// backend.store().insert(Key::new("orders", "42"), "placed").await?;
/// backend.queue("invoices").await?.send_one(Message::new("pay 42")).await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Invalid` if the scheme is unknown, which names those that are known, or if its feature is not
/// compiled in, which names the feature. Otherwise those of the backend's own constructor. No error
/// contains a password.
///
/// # Cancel safety
/// If the future is dropped, the backend is opened or not; nothing else happened.
pub async fn open(url: &str) -> Result<Backend, PortError> {
    let invalid = |rule: &str| PortError::invalid("url", rule);
    let no_scheme = || {
        invalid("must begin with a scheme: `memory:`, `nats://HOST`, `postgres://HOST`, `redis://HOST`, `sqlite:FILE`")
    };
    let Some((scheme, rest)) = url.split_once(':') else { return Err(no_scheme()) };
    // Boxed: the future of each engine is large, and a caller's holds room for the largest.
    let engine = match scheme {
        "memory" if rest.is_empty() => Engine::Memory(Arc::default()),
        "memory" => return Err(invalid("nothing may follow `memory:`")),
        #[cfg(feature = "nats")]
        "nats" | "tls" => Engine::Nats(Box::pin(Nats::connect(NatsConfig::at(url))).await?),
        #[cfg(not(feature = "nats"))]
        "nats" | "tls" => return Err(invalid("`nats:` needs the feature `nats` of the crate")),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => Engine::Postgres(Box::pin(Postgres::connect(PostgresConfig::at(url))).await?),
        #[cfg(not(feature = "postgres"))]
        "postgres" | "postgresql" => return Err(invalid("`postgres:` needs the feature `postgres` of the crate")),
        #[cfg(feature = "redis")]
        "redis" | "rediss" | "redis+sentinel" | "rediss+sentinel" => {
            Engine::Redis(Box::pin(Redis::connect(RedisConfig::at(url))).await?)
        }
        #[cfg(not(feature = "redis"))]
        "redis" | "rediss" | "redis+sentinel" | "rediss+sentinel" => {
            return Err(invalid("`redis:` needs the feature `redis` of the crate"));
        }
        #[cfg(feature = "sqlite")]
        "sqlite" => {
            let sqlite = Sqlite::open(SqliteConfig::at(rest))?;
            let lease = crate::lease::StoreLease::new(Arc::new(sqlite.store()))?;
            Engine::Sqlite(sqlite, Arc::new(lease))
        }
        #[cfg(not(feature = "sqlite"))]
        "sqlite" => return Err(invalid("`sqlite:` needs the feature `sqlite` of the crate")),
        // The rest may contain a password. Without slashes the first part, too: it is a user then.
        other
            if rest.starts_with("//")
                && !other.is_empty()
                && other.bytes().all(|byte| byte.is_ascii_alphanumeric()) =>
        {
            return Err(invalid(&format!(
                "unknown scheme {other:?}: must be `memory:`, `nats://HOST`, `postgres://HOST`, `redis://HOST` or `sqlite:FILE`"
            )));
        }
        _ => return Err(no_scheme()),
    };
    Ok(Backend(engine))
}

impl Backend {
    /// Returns the name of its engine: `memory`, `nats`, `postgres`, `redis`, `sqlite`.
    pub fn scheme(&self) -> &'static str {
        match &self.0 {
            Engine::Memory(_) => "memory",
            #[cfg(feature = "nats")]
            Engine::Nats(_) => "nats",
            #[cfg(feature = "postgres")]
            Engine::Postgres(_) => "postgres",
            #[cfg(feature = "redis")]
            Engine::Redis(_) => "redis",
            #[cfg(feature = "sqlite")]
            Engine::Sqlite(..) => "sqlite",
        }
    }

    /// Describes the place of the state in a line; of an engine on a server also the protection of
    /// the connection on its way there.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let backend = steadfast::backend::open("memory:").await?;
    /// assert_eq!(backend.explain(), "memory: ends with this process");
    /// # Ok(())
    /// # }
    /// ```
    pub fn explain(&self) -> String {
        match &self.0 {
            Engine::Memory(_) => "memory: ends with this process".to_owned(),
            #[cfg(feature = "nats")]
            Engine::Nats(nats) => nats.explain(),
            #[cfg(feature = "postgres")]
            Engine::Postgres(postgres) => postgres.explain(),
            #[cfg(feature = "redis")]
            Engine::Redis(redis) => redis.explain(),
            #[cfg(feature = "sqlite")]
            Engine::Sqlite(..) => "sqlite: a file of this machine".to_owned(),
        }
    }

    /// Returns its store.
    pub fn store(&self) -> Arc<dyn Store> {
        match &self.0 {
            Engine::Memory(memory) => memory.store.clone(),
            #[cfg(feature = "nats")]
            Engine::Nats(nats) => Arc::new(nats.store()),
            #[cfg(feature = "postgres")]
            Engine::Postgres(postgres) => Arc::new(postgres.store()),
            #[cfg(feature = "redis")]
            Engine::Redis(redis) => Arc::new(redis.store()),
            #[cfg(feature = "sqlite")]
            Engine::Sqlite(sqlite, _) => Arc::new(sqlite.store()),
        }
    }

    /// Returns its queue with this name; creates it if it does not exist.
    ///
    /// # Errors
    /// `Invalid` if the name is empty or longer than 1,024 bytes; otherwise those of a write.
    ///
    /// # Cancel safety
    /// If the future is dropped, the queue is created or not.
    pub async fn queue(&self, name: &str) -> Result<Arc<dyn Queue>, PortError> {
        QUEUE_NAME.check_key("name", name)?;
        match &self.0 {
            Engine::Memory(memory) => {
                let mut queues = memory.queues.lock();
                let queue =
                    queues.entry(name.to_owned()).or_insert_with(|| Arc::new(InMemoryQueue::new(name.to_owned())));
                Ok(queue.clone())
            }
            #[cfg(feature = "nats")]
            Engine::Nats(nats) => Ok(Arc::new(nats.queue(name).await?)),
            #[cfg(feature = "postgres")]
            Engine::Postgres(postgres) => Ok(Arc::new(postgres.queue(name).await?)),
            #[cfg(feature = "redis")]
            Engine::Redis(redis) => Ok(Arc::new(redis.queue(name)?)),
            #[cfg(feature = "sqlite")]
            Engine::Sqlite(sqlite, _) => Ok(Arc::new(sqlite.queue(name)?)),
        }
    }

    /// Returns its leases. They are in its store if the backend has no better ones.
    pub fn lease(&self) -> Arc<dyn Lease> {
        match &self.0 {
            Engine::Memory(memory) => memory.lease.clone(),
            #[cfg(feature = "nats")]
            Engine::Nats(nats) => Arc::new(nats.lease()),
            #[cfg(feature = "postgres")]
            Engine::Postgres(postgres) => Arc::new(postgres.lease()),
            #[cfg(feature = "redis")]
            Engine::Redis(redis) => Arc::new(redis.lease()),
            #[cfg(feature = "sqlite")]
            Engine::Sqlite(_, lease) => lease.clone(),
        }
    }

    /// Returns its notifier.
    pub fn notifier(&self) -> Arc<dyn Notifier> {
        match &self.0 {
            Engine::Memory(memory) => memory.notifier.clone(),
            #[cfg(feature = "nats")]
            Engine::Nats(nats) => Arc::new(nats.notifier()),
            #[cfg(feature = "postgres")]
            Engine::Postgres(postgres) => Arc::new(postgres.notifier()),
            #[cfg(feature = "redis")]
            Engine::Redis(redis) => Arc::new(redis.notifier()),
            #[cfg(feature = "sqlite")]
            Engine::Sqlite(sqlite, _) => Arc::new(sqlite.notifier()),
        }
    }
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Backend").field(&self.scheme()).finish()
    }
}
