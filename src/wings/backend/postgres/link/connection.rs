//! One connection to the server, with and without TLS.
use std::{
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::Notify,
};
use tokio_postgres::{
    AsyncMessage, Client, Socket,
    config::{Host, LoadBalanceHosts, SslMode},
    tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream},
};
use tokio_rustls::TlsConnector;

use super::super::{
    PostgresConfig,
    config::{parse, place},
};
use super::failure::{connect_failure, timed_out};
use crate::{
    backend::TlsConfig,
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
    /// Hosts and database, as errors name them.
    pub(crate) place: Arc<str>,
    pub(crate) clock: Clock,
    limit: std::time::Duration,
}

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
        let mut parsed = parse(url, field)?;
        let settings = match (&config.tls, parsed.get_ssl_mode()) {
            (Some(tls), _) => Some(tls.clone()),
            (None, SslMode::Require) => Some(TlsConfig::default()),
            (None, _) => None,
        };
        let client = settings.map(|settings| settings.client()).transpose()?;
        parsed.ssl_mode(if client.is_some() { SslMode::Require } else { SslMode::Disable });
        parsed.keepalives_idle(KEEPALIVE).keepalives_interval(KEEPALIVE / 3).keepalives_retries(3);
        parsed.connect_timeout(config.connect_timeout);
        if parsed.get_application_name().is_none() {
            parsed.application_name("steadfast");
        }
        let place = place(&parsed).into();
        let tls = Tls(client.map(Arc::new));
        Ok(Self { hosts: each_host(&parsed), tls, place, clock: clock.clone(), limit: config.connect_timeout })
    }

    /// Returns the time limit of a connection attempt to one host.
    pub(crate) const fn limit(&self) -> std::time::Duration {
        self.limit
    }

    /// Opens a connection. A task of its own drives it, and passes the server's messages on.
    pub(crate) async fn open(&self, on_message: Option<OnMessage>) -> Result<Connection, PortError> {
        let (client, mut connection) = self.dial().await?;
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

    /// Connects to the first host that accepts. Each host has the whole time limit, so that one
    /// that is silent does not keep the handle from the next.
    async fn dial(&self) -> Result<(Client, tokio_postgres::Connection<Socket, Encrypted>), PortError> {
        let mut failed = None;
        for host in &self.hosts {
            match within(&self.clock, self.limit, host.connect(self.tls.clone())).await {
                Some(Ok(connected)) => return Ok(connected),
                Some(Err(error)) => failed = Some(connect_failure(&self.place, error)),
                None => failed = Some(timed_out(&self.place, "a connection attempt", self.limit)),
            }
        }
        Err(failed.unwrap_or_else(|| PortError::invalid("url", "must name a host")))
    }
}

/// Returns the settings of each host by itself.
fn each_host(all: &tokio_postgres::Config) -> Vec<tokio_postgres::Config> {
    let (hosts, addresses, ports) = (all.get_hosts(), all.get_hostaddrs(), all.get_ports());
    let number = hosts.len().max(addresses.len());
    let has_one_each = |given: usize| given <= 1 || given == number;
    if number == 1
        || !has_one_each(ports.len())
        || !(hosts.is_empty() || addresses.is_empty() || hosts.len() == addresses.len())
    {
        // The client itself refuses numbers that do not fit.
        return vec![all.clone()];
    }
    let of = |i: usize| {
        let mut one = tokio_postgres::Config::new();
        match hosts.get(i) {
            Some(Host::Tcp(name)) => drop(one.host(name)),
            #[cfg(unix)]
            Some(Host::Unix(path)) => drop(one.host_path(path)),
            None => {}
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

/// rustls as `tokio_postgres` uses it.
#[derive(Clone)]
pub(crate) struct Tls(Option<Arc<rustls::ClientConfig>>);

pub(crate) struct TlsHandshake {
    config: Option<Arc<rustls::ClientConfig>>,
    name: Option<ServerName<'static>>,
}

impl MakeTlsConnect<Socket> for Tls {
    type Stream = Encrypted;
    type TlsConnect = TlsHandshake;
    type Error = io::Error;

    fn make_tls_connect(&mut self, domain: &str) -> io::Result<TlsHandshake> {
        Ok(TlsHandshake { config: self.0.clone(), name: ServerName::try_from(domain.to_owned()).ok() })
    }
}

impl TlsConnect<Socket> for TlsHandshake {
    type Stream = Encrypted;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Encrypted>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move {
            let config = self.config.ok_or_else(|| io::Error::other("TLS is not configured"))?;
            let name = self.name.ok_or_else(|| io::Error::other("TLS needs a host name in `url`"))?;
            Ok(Encrypted(TlsConnector::from(config).connect(name, socket).await?))
        })
    }
}

/// An encrypted connection.
pub(crate) struct Encrypted(tokio_rustls::client::TlsStream<Socket>);

impl TlsStream for Encrypted {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Encrypted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
