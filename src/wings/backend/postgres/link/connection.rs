//! One connection to the server, with and without TLS.
use std::{
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    task::Poll,
};

use tokio::sync::Notify;
use tokio_postgres::{
    AsyncMessage, Client, Error, Socket,
    config::{Host, LoadBalanceHosts, SslMode},
};

use super::super::{
    PostgresConfig,
    config::{Encryption, parse, place},
};
use super::failure::{connect_failure, timed_out, wants_plain};
use super::tls::{Encrypted, Tls};
use crate::{
    backend::{
        ConnectionEvent,
        common::{Verify, exposure::Exposure},
    },
    entropy::Entropy,
    port::{BoxFuture, PortError, within},
    race::race,
    spawn::Spawner,
    time::Clock,
};

/// Opens connections to one server.
#[derive(Clone)]
pub(crate) struct Connector {
    /// One for each host of the URL, in the order in which they are tried.
    hosts: Vec<tokio_postgres::Config>,
    tls: Tls,
    encryption: Encryption,
    /// State of the last connection: [`UNKNOWN`], [`PLAIN`] or [`SECRET`]. A value alone: it
    /// publishes nothing.
    last: Arc<AtomicU8>,
    /// Hosts and database, as errors name them.
    pub(crate) place: Arc<str>,
    pub(crate) clock: Clock,
    limit: std::time::Duration,
}

const UNKNOWN: u8 = 0;
const PLAIN: u8 = 1;
const SECRET: u8 = 2;

/// A connection. Dropping it ends the connection once its requests are answered.
pub(crate) struct Connection {
    pub(crate) client: Client,
    kill: Arc<Notify>,
}

/// Receives each message that the server sends on its own.
pub(crate) type OnMessage = Box<dyn FnMut(AsyncMessage) + Send>;

/// Keeps an idle connection known to firewalls, and finds a lost one in about a minute.
const KEEPALIVE: std::time::Duration = std::time::Duration::from_secs(30);

impl Connector {
    /// Creates a connector for the URL, or for that of notices.
    pub(crate) fn new(config: &PostgresConfig, notices: bool, clock: &Clock) -> Result<Self, PortError> {
        let (url, field) = match &config.notices_url {
            Some(url) if notices => (url, "notices_url"),
            _ => (&config.url, "url"),
        };
        let (mut parsed, mode) = parse(url, field)?;
        let encryption = Encryption::of(&parsed, mode, config.tls.as_ref(), field)?;
        let client = match encryption {
            Encryption::Off => None,
            Encryption::IfOffered => Some(Verify::Nothing),
            Encryption::On(verify) => Some(verify),
        };
        let settings = config.tls.clone().unwrap_or_default();
        let client = client.map(|verify| settings.client_with(verify)).transpose()?;
        parsed.ssl_mode(match encryption {
            Encryption::Off => SslMode::Disable,
            Encryption::IfOffered => SslMode::Prefer,
            Encryption::On(_) => SslMode::Require,
        });
        parsed.keepalives_idle(KEEPALIVE).keepalives_interval(KEEPALIVE / 3).keepalives_retries(3);
        parsed.connect_timeout(config.connect_timeout);
        if parsed.get_application_name().is_none() {
            parsed.application_name("steadfast");
        }
        let place = place(&parsed).into();
        let (tls, last) = (Tls::new(client.map(Arc::new), encryption.verifies()), Arc::new(AtomicU8::new(UNKNOWN)));
        let (hosts, clock, limit) = (each_host(&parsed), clock.clone(), config.connect_timeout);
        Ok(Self { hosts, tls, encryption, last, place, clock, limit })
    }

    /// Returns the protection of the last connection.
    pub(crate) fn exposure(&self) -> Exposure {
        let hosts = self.hosts.iter().flat_map(|host| {
            let names = host.get_hosts().iter().map(|host| match host {
                Host::Tcp(name) => name.clone(),
                #[cfg(unix)]
                Host::Unix(path) => path.display().to_string(),
            });
            let addresses: Vec<String> = host.get_hostaddrs().iter().map(ToString::to_string).collect();
            if addresses.is_empty() { names.collect() } else { addresses }
        });
        let hosts: Vec<String> = hosts.collect();
        let is_encrypted = self.last.load(Ordering::Relaxed) == SECRET;
        let tls = is_encrypted.then_some(self.encryption.verifies());
        let advice = "add `sslmode=verify-full` to `url`, or set `tls`";
        Exposure::of(format!("postgres {}", self.place), hosts.iter().map(String::as_str), tls, advice)
    }

    /// Returns the warning about a connection without protection, if the one before had not it.
    fn warning(&self, is_encrypted: bool) -> Option<ConnectionEvent> {
        let now = if is_encrypted { SECRET } else { PLAIN };
        let changed = self.last.swap(now, Ordering::Relaxed) != now;
        changed.then(|| self.exposure().event()).flatten()
    }

    /// Returns the time limit of a connection attempt to one host.
    pub(crate) const fn limit(&self) -> std::time::Duration {
        self.limit
    }

    /// Opens a connection. A task of its own drives it, and passes the server's messages on. `tell`
    /// gets a warning about a connection without protection.
    pub(crate) async fn open(
        &self,
        on_message: Option<OnMessage>,
        tell: impl FnOnce(ConnectionEvent),
    ) -> Result<Connection, PortError> {
        let (client, mut connection, is_encrypted) = self.dial().await?;
        if let Some(warning) = self.warning(is_encrypted) {
            tell(warning);
        }
        let kill = Arc::new(Notify::new());
        let killed = kill.clone();
        Spawner::Tokio.spawn(async move {
            let driven: BoxFuture<'_, ()> = match on_message {
                None => Box::pin(async move { drop(connection.await) }),
                Some(mut on_message) => Box::pin(std::future::poll_fn(move |cx| {
                    loop {
                        match connection.poll_message(cx) {
                            Poll::Ready(Some(Ok(message))) => on_message(message),
                            Poll::Ready(_) => return Poll::Ready(()),
                            Poll::Pending => return Poll::Pending,
                        }
                    }
                })),
            };
            race(driven, killed.notified()).await;
        });
        Ok(Connection { client, kill })
    }

    /// Connects to the first host that accepts, and returns `true` if the connection is encrypted.
    /// Each host has the whole time limit, so that one that is silent does not keep the handle from
    /// the next.
    async fn dial(&self) -> Result<Dialled, PortError> {
        let mut failed = None;
        for host in &self.hosts {
            let mut attempt = self.attempt(host).await;
            if let Some(Err(error)) = &attempt
                && self.encryption == Encryption::IfOffered
                && wants_plain(error)
            {
                let mut plain = host.clone();
                plain.ssl_mode(SslMode::Disable);
                if let Some(Ok(connected)) = self.attempt(&plain).await {
                    attempt = Some(Ok(connected));
                }
            }
            match attempt {
                Some(Ok(connected)) => return Ok(connected),
                Some(Err(error)) => {
                    failed = Some(connect_failure(&self.place, error, self.encryption == Encryption::Off));
                }
                None => failed = Some(timed_out(&self.place, "a connection attempt", self.limit)),
            }
        }
        Err(failed.unwrap_or_else(|| PortError::invalid("url", "must name a host")))
    }

    async fn attempt(&self, host: &tokio_postgres::Config) -> Option<Result<Dialled, Error>> {
        let tls = self.tls.again();
        let connected = within(&self.clock, self.limit, host.connect(tls.clone())).await?;
        Some(connected.map(|(client, connection)| (client, connection, tls.was_used())))
    }
}

type Dialled = (Client, tokio_postgres::Connection<Socket, Encrypted>, bool);

/// Returns the settings of each host by itself.
fn each_host(all: &tokio_postgres::Config) -> Vec<tokio_postgres::Config> {
    let (hosts, addresses, ports) = (all.get_hosts(), all.get_hostaddrs(), all.get_ports());
    let number = hosts.len().max(addresses.len());
    let has_one_each = |given: usize| given <= 1 || given == number;
    if !has_one_each(ports.len()) || !(hosts.is_empty() || addresses.is_empty() || hosts.len() == addresses.len()) {
        // The client itself refuses numbers that do not fit.
        return vec![all.clone()];
    }
    let of = |i: usize| {
        let mut one = tokio_postgres::Config::new();
        match hosts.get(i) {
            Some(Host::Tcp(name)) => drop(one.host(name)),
            #[cfg(unix)]
            Some(Host::Unix(path)) => drop(one.host_path(path)),
            // TLS needs a name.
            None => drop(addresses.get(i).map(|address| one.host(address.to_string()))),
        }
        addresses.get(i).map(|address| one.hostaddr(*address));
        ports.get(i).or(ports.first()).map(|port| one.port(*port));
        all.get_user().map(|user| one.user(user));
        all.get_password().map(|password| one.password(password));
        all.get_dbname().map(|name| one.dbname(name));
        all.get_options().map(|options| one.options(options));
        all.get_application_name().map(|name| one.application_name(name));
        all.get_connect_timeout().map(|limit| one.connect_timeout(*limit));
        all.get_tcp_user_timeout().map(|limit| one.tcp_user_timeout(*limit));
        all.get_keepalives_interval().map(|interval| one.keepalives_interval(interval));
        all.get_keepalives_retries().map(|retries| one.keepalives_retries(retries));
        one.keepalives(all.get_keepalives()).keepalives_idle(all.get_keepalives_idle());
        one.ssl_mode(all.get_ssl_mode()).ssl_negotiation(all.get_ssl_negotiation());
        #[cfg(unix)]
        if matches!(hosts.get(i), Some(Host::Unix(_))) {
            // A socket leads nowhere else, and the server has no TLS there.
            one.ssl_mode(SslMode::Disable);
        }
        one.target_session_attrs(all.get_target_session_attrs()).channel_binding(all.get_channel_binding());
        one
    };
    let mut each: Vec<_> = (0..number).map(of).collect();
    if all.get_load_balance_hosts() == LoadBalanceHosts::Random {
        each.rotate_left((Entropy::default().next_u64() % number as u64) as usize);
    }
    each
}

impl Connection {
    /// Ends the connection at once.
    pub(crate) fn end(self) {
        self.kill.notify_one();
    }

    /// Ends the connection at once, and asks the server to cancel its request.
    pub(crate) fn abandon(self, connector: &Connector) {
        let (cancel, tls) = (self.client.cancel_token(), connector.tls.clone());
        self.kill.notify_one();
        let (clock, limit) = (connector.clock.clone(), connector.limit);
        Spawner::Tokio.spawn(async move {
            // It frees the locks for which the request waits. Without it the server finds out later.
            drop(within(&clock, limit, cancel.cancel_query(tls)).await);
        });
    }
}
