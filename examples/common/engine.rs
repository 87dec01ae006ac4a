//! The backend that an example's `--backend` chooses: memory, a file, a server, or a server that the example starts itself.
#![allow(dead_code, reason = "no example uses all of it")]
#[cfg(any(feature = "nats", feature = "postgres", feature = "redis"))]
#[path = "../../tests/engines/server/mod.rs"]
mod server;

#[cfg(not(any(feature = "nats", feature = "postgres", feature = "redis")))]
mod server {
    /// No server, so no proxy.
    #[derive(Debug)]
    pub(crate) enum Proxy {}

    impl Proxy {
        pub(crate) fn cut(&self) {
            match *self {}
        }
        pub(crate) fn hold(&self) {
            match *self {}
        }
        pub(crate) fn pass(&self) {
            match *self {}
        }
    }
}

use std::{
    env, fmt, io,
    path::{Path, PathBuf},
    process,
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use steadfast::{
    backend::{self, Backend},
    port::PortError,
    store::Store,
    time::Clock,
};

/// Variables that lead the processes of an example to its backend. A URL may hold a password, which arguments would show.
const URL: &str = "STEADFAST_EXAMPLE_BACKEND";
const RUN: &str = "STEADFAST_EXAMPLE_RUN";

/// A cluster of three private servers.
const NATS_CLUSTER: &str = "nats:3";

/// A backend, as `--backend` names it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum EngineAt {
    Memory,
    Sqlite(PathBuf),
    /// A server that runs already, by its URL.
    Server(String),
    /// Servers that the example starts, and ends: `postgres`, `redis`, `nats`, or `nats:3` for a cluster of three.
    Private(&'static str),
}

impl FromStr for EngineAt {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            None if text == "memory" => Ok(Self::Memory),
            None if text == "postgres" => Ok(Self::Private("postgres")),
            None if text == "redis" => Ok(Self::Private("redis")),
            None if text == "nats" => Ok(Self::Private("nats")),
            Some(_) if text == NATS_CLUSTER => Ok(Self::Private(NATS_CLUSTER)),
            Some(("sqlite", file)) if !file.is_empty() => Ok(Self::Sqlite(file.into())),
            Some(("postgres" | "postgresql" | "redis" | "rediss" | "nats" | "tls", rest)) if rest.starts_with("//") => {
                Ok(Self::Server(text.to_owned()))
            }
            _ => Err(
                "must be `memory`, `sqlite:FILE`, `postgres`, `redis` or `nats` for a server of its own, `nats:3` for a cluster \
                 of three, or the URL of a server",
            ),
        }
    }
}

impl fmt::Debug for EngineAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            Self::Sqlite(file) => write!(f, "sqlite:{}", file.display()),
            // The rest may hold a password.
            Self::Server(url) => write!(f, "{}://..", url.split(':').next().unwrap_or_default()),
            Self::Private(name) => f.write_str(name),
        }
    }
}

/// A backend that runs while this value lives.
pub(crate) struct Engine {
    url: String,
    /// Distinguishes this run's names from those that an earlier run left on the same backend.
    run: String,
    private: Option<Private>,
}

enum Private {
    #[cfg(feature = "nats")]
    Nats(server::Nats),
    #[cfg(feature = "postgres")]
    Postgres(server::Postgres),
    #[cfg(feature = "redis")]
    Redis(server::Redis),
    #[cfg(feature = "nats")]
    NatsCluster(Box<server::NatsCluster>),
}

impl EngineAt {
    /// Returns the backend; starts its server if it has none yet.
    pub(crate) fn start(&self) -> Result<Engine, String> {
        let run = format!("{:x}-{:x}", process::id(), Clock::tokio().wall().as_millis());
        let of = |url: String, private| Engine { url, run: run.clone(), private };
        Ok(match self {
            Self::Memory => of("memory:".to_owned(), None),
            Self::Sqlite(file) => of(sqlite(file), None),
            Self::Server(url) => of(url.clone(), None),
            #[cfg(feature = "nats")]
            Self::Private("nats") => {
                server::Nats::installed()?;
                let server = server::Nats::durable();
                of(server.url(), Some(Private::Nats(server)))
            }
            #[cfg(feature = "postgres")]
            Self::Private("postgres") => {
                server::Postgres::installed()?;
                let server = server::Postgres::start();
                of(server.url(), Some(Private::Postgres(server)))
            }
            #[cfg(feature = "redis")]
            Self::Private("redis") => {
                server::Redis::installed()?;
                // Each write is synced before its answer.
                let server = server::Redis::durable();
                of(server.url(), Some(Private::Redis(server)))
            }
            #[cfg(feature = "nats")]
            Self::Private(NATS_CLUSTER) => {
                server::Nats::installed()?;
                // The servers do not tell clients of each other, so that those behind a proxy stay there.
                let cluster = server::NatsCluster::with("no_advertise: true");
                of(cluster.url(), Some(Private::NatsCluster(Box::new(cluster))))
            }
            Self::Private(name) => {
                let name = name.split(':').next().unwrap_or_default();
                let example = env!("CARGO_CRATE_NAME");
                return Err(format!(
                    "`{name}` needs the feature `{name}` of the crate, which this build has not: cargo run --features {name} \
                     --example {example}"
                ));
            }
        })
    }

    /// Returns the backend for several processes; without a choice, that is a file in this folder.
    pub(crate) fn start_shared(chosen: Option<&Self>, folder: &Path, file: &str) -> Result<Engine, String> {
        match chosen {
            None => Self::Sqlite(folder.join(file)).start(),
            Some(Self::Memory) => {
                Err("--backend: several processes share the state, and `memory` is that of one process".to_owned())
            }
            Some(chosen) => chosen.start().map_err(|error| format!("--backend: {error}")),
        }
    }
}

fn sqlite(file: &Path) -> String {
    format!("sqlite:{}", file.display())
}

impl Engine {
    /// Returns the backend of the process that has started this one, if there is one.
    pub(crate) fn of_parent() -> Option<Self> {
        Some(Self { url: env::var(URL).ok()?, run: env::var(RUN).ok()?, private: None })
    }

    /// Returns the variables that lead another process of this example to the backend.
    pub(crate) fn variables(&self) -> [(&'static str, &str); 2] {
        [(URL, &self.url), (RUN, &self.run)]
    }

    /// Opens its ports.
    pub(crate) async fn open(&self) -> Result<Backend, PortError> {
        backend::open(&self.url).await
    }

    /// Opens a store of its own beside the others: another file, schema or key prefix.
    pub(crate) async fn store_aside(&self, name: &str) -> Result<Arc<dyn Store>, PortError> {
        match self.url.split(':').next() {
            Some("sqlite") => Ok(backend::open(&format!("{}.{name}", self.url)).await?.store()),
            #[cfg(feature = "postgres")]
            Some("postgres" | "postgresql") => {
                let config = backend::postgres::PostgresConfig::at(&self.url).schema(format!("steadfast-{name}"));
                // Many stores share the server's connections.
                Ok(Arc::new(backend::postgres::Postgres::connect(config.connections(2)).await?.store()))
            }
            #[cfg(feature = "redis")]
            Some("redis" | "rediss") => {
                let config = backend::redis::RedisConfig::at(&self.url).prefix(format!("steadfast-{name}"));
                Ok(Arc::new(backend::redis::Redis::connect(config).await?.store()))
            }
            #[cfg(feature = "nats")]
            Some("nats" | "tls") => {
                let config = backend::nats::NatsConfig::at(&self.url).prefix(format!("steadfast-{name}"));
                Ok(Arc::new(backend::nats::Nats::connect(config).await?.store()))
            }
            _ => Ok(self.open().await?.store()),
        }
    }

    /// Returns a name that only this run uses.
    pub(crate) fn name(&self, name: &str) -> String {
        format!("{name}-{}", self.run)
    }

    /// Returns the SQLite file, if it is one.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.url.strip_prefix("sqlite:").map(Path::new)
    }

    /// Returns the name of what the processes share: a file, or a server.
    pub(crate) fn place(&self) -> &'static str {
        match self.url.split(':').next() {
            Some("memory") => "memory",
            Some("sqlite") => "file",
            Some("redis" | "rediss") => "Redis server",
            Some("nats" | "tls") if self.servers() > 1 => "NATS cluster",
            Some("nats" | "tls") => "NATS server",
            _ => "PostgreSQL server",
        }
    }

    /// Kills its server, if it is this example's own.
    pub(crate) fn kill(&self) -> io::Result<()> {
        match &self.private {
            #[cfg(feature = "nats")]
            Some(Private::Nats(server)) => server.kill(),
            #[cfg(feature = "postgres")]
            Some(Private::Postgres(server)) => server.kill(),
            #[cfg(feature = "redis")]
            Some(Private::Redis(server)) => server.kill(),
            #[cfg(feature = "nats")]
            Some(Private::NatsCluster(cluster)) => cluster.servers().iter().for_each(server::Nats::kill),
            _ => return Err(io::Error::other("the server is not this example's own")),
        }
        #[allow(unreachable_code, reason = "without servers there is nothing to kill")]
        Ok(())
    }

    /// Starts its server again after a kill.
    pub(crate) fn start_again(&self) {
        match &self.private {
            #[cfg(feature = "nats")]
            Some(Private::Nats(server)) => server.start_again(),
            #[cfg(feature = "postgres")]
            Some(Private::Postgres(server)) => server.start_again(),
            #[cfg(feature = "redis")]
            Some(Private::Redis(server)) => server.start_again(),
            #[cfg(feature = "nats")]
            Some(Private::NatsCluster(cluster)) => cluster.servers().iter().for_each(server::Nats::start_again),
            _ => {}
        }
    }

    /// Returns the number of servers that are this example's own.
    pub(crate) fn servers(&self) -> usize {
        match &self.private {
            #[cfg(feature = "nats")]
            Some(Private::NatsCluster(cluster)) => cluster.servers().len(),
            private => usize::from(private.is_some()),
        }
    }

    /// Kills one of its servers.
    pub(crate) fn kill_server(
        &self,
        #[allow(unused_variables, reason = "only a cluster has several")] at: usize,
    ) -> io::Result<()> {
        match &self.private {
            #[cfg(feature = "nats")]
            Some(Private::NatsCluster(cluster)) => cluster.servers()[at].kill(),
            _ => self.kill()?,
        }
        Ok(())
    }

    /// Starts that server again.
    pub(crate) fn start_server_again(
        &self,
        #[allow(unused_variables, reason = "only a cluster has several")] at: usize,
    ) {
        match &self.private {
            #[cfg(feature = "nats")]
            Some(Private::NatsCluster(cluster)) => cluster.servers()[at].start_again(),
            _ => self.start_again(),
        }
    }

    /// Kills the server of a cluster that leads the store after this time, and starts it again after three seconds. Returns the
    /// number of servers that were killed: one that has no others is left as it is.
    pub(crate) async fn lose_leader(
        &self,
        #[allow(unused_variables, reason = "only a cluster goes on without one")] after: Duration,
    ) -> u32 {
        match &self.private {
            #[cfg(feature = "nats")]
            Some(Private::NatsCluster(cluster)) => {
                let clock = Clock::tokio();
                clock.sleep(after).await;
                let leader = tokio::task::block_in_place(|| cluster.leader("steadfast_store"));
                tokio::task::block_in_place(|| leader.kill());
                clock.sleep(Duration::from_secs(3)).await;
                tokio::task::block_in_place(|| leader.start_again());
                1
            }
            _ => 0,
        }
    }

    /// Returns `true` if the server is this example's own, and may be killed.
    pub(crate) fn is_private(&self) -> bool {
        self.private.is_some()
    }
}

/// The way of one process to a backend: through proxies of its own, if the server is this example's.
pub(crate) struct Detour {
    engine: Engine,
    proxies: Vec<server::Proxy>,
}

impl Engine {
    /// Returns a way to the backend that can be disturbed without the others.
    pub(crate) fn detour(&self) -> Detour {
        let (url, proxies) = match &self.private {
            #[cfg(feature = "nats")]
            Some(Private::Nats(server)) => {
                let proxy = server::Proxy::start(server.port());
                (server.url_at(proxy.port()), vec![proxy])
            }
            #[cfg(feature = "postgres")]
            Some(Private::Postgres(server)) => {
                let proxy = server::Proxy::start(server.port());
                (server.url_at(proxy.port()), vec![proxy])
            }
            #[cfg(feature = "redis")]
            Some(Private::Redis(server)) => {
                let proxy = server::Proxy::start(server.port());
                (server.url_at(proxy.port()), vec![proxy])
            }
            #[cfg(feature = "nats")]
            Some(Private::NatsCluster(cluster)) => {
                let proxies: Vec<_> =
                    cluster.servers().iter().map(|server| server::Proxy::start(server.port())).collect();
                let hosts: Vec<_> = proxies.iter().map(|proxy| format!("127.0.0.1:{}", proxy.port())).collect();
                (format!("nats://{}", hosts.join(",")), proxies)
            }
            _ => (self.url.clone(), Vec::new()),
        };
        Detour { engine: Self { url, run: self.run.clone(), private: None }, proxies }
    }
}

impl Detour {
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Closes all connections. New ones are accepted.
    pub(crate) fn cut(&self) {
        self.proxies.iter().for_each(server::Proxy::cut);
    }

    /// Lets nothing pass, while the connections stay open.
    pub(crate) fn hold(&self) {
        self.proxies.iter().for_each(server::Proxy::hold);
    }

    /// Lets everything pass again.
    pub(crate) fn pass(&self) {
        self.proxies.iter().for_each(server::Proxy::pass);
    }
}
