//! Makes connections, and their hand-shake.
use std::{
    future::Future,
    io,
    pin::{Pin, pin},
    sync::Arc,
};

use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, ProtocolVersion, RedisConnectionInfo, RedisError, Value,
    aio::{AsyncStream, MultiplexedConnection},
};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{
    config::{Address, RedisConfig, Target},
    failure::{Failed, failed, failure},
    script::Request,
};
use crate::{
    backend::TlsConfig,
    config::ConfigError,
    port::{PortError, PortErrorKind},
    race::{First, both, race},
};

/// The work that moves bytes between a connection's requests and its socket.
pub(super) type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Receives pushed messages in the order of the socket.
pub(super) type OnPush = Arc<dyn Fn(redis::PushInfo) + Send + Sync>;

pub(super) type Stream = Pin<Box<dyn AsyncStream + Send>>;

/// Opens connections to one server, or to that which sentinels name.
pub(super) struct Connector {
    pub(super) target: Target,
    tls: Option<TlsConnector>,
}

impl Connector {
    /// Creates a connector for the server of this configuration.
    pub(super) fn new(config: &RedisConfig) -> Result<Self, ConfigError> {
        let target = config.check()?;
        let settings = match &config.tls {
            Some(tls) => Some(tls.clone()),
            None => target.is_tls.then(TlsConfig::default),
        };
        let tls = settings.map(|tls| tls.client()).transpose()?.map(|tls| TlsConnector::from(Arc::new(tls)));
        Ok(Self { target, tls })
    }

    /// Connects to the server at this address, and authenticates. The caller limits the time.
    pub(super) async fn connect(
        &self,
        address: &Address,
        on_push: Option<OnPush>,
    ) -> Result<(MultiplexedConnection, Driver), PortError> {
        let stream = self.dial(address).await?;
        log_in(stream, &self.target.user, on_push).await.map_err(|error| refused(&self.target, &error))
    }

    /// Returns a further question about a server that does not answer. One without TLS waits for
    /// the end of what it takes for a request.
    pub(super) const fn advice_on_silence(&self) -> &'static str {
        if self.tls.is_some() { ", and does it speak TLS at this port" } else { "" }
    }

    /// Returns the error of a connection that the server closed at once.
    pub(super) fn closed(&self) -> PortError {
        let advice = match self.tls {
            Some(_) => "does it demand a certificate of the client (`tls.certificate`)?",
            None => "does it demand TLS (`rediss:`), or does it have too many clients?",
        };
        failure(&self.target, PortErrorKind::Unavailable, format_args!("the server closed the connection: {advice}"))
    }

    /// Opens the socket, with TLS if that is set.
    pub(super) async fn dial(&self, address: &Address) -> Result<Stream, PortError> {
        let Address { host, port } = address;
        let fail = |kind, what: &str, error: io::Error| {
            let at = if self.target.is_watched() { format!("{address}: ") } else { String::new() };
            failure(&self.target, kind, format_args!("{at}{what}: {error}")).with_source(error)
        };
        let unavailable = |what: &str, error| fail(PortErrorKind::Unavailable, what, error);
        let found = tokio::net::lookup_host((host.as_str(), *port)).await;
        let addresses = found.map_err(|error| unavailable("the host's name cannot be resolved", error))?;
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in addresses {
            let socket = match TcpStream::connect(address).await {
                Ok(socket) => socket,
                Err(error) => {
                    last = error;
                    continue;
                }
            };
            socket.set_nodelay(true).map_err(|error| unavailable("the socket failed", error))?;
            let Some(tls) = &self.tls else { return Ok(Box::pin(socket)) };
            let name = ServerName::try_from(host.clone()).map_err(|error| {
                failure(&self.target, PortErrorKind::Invalid, format_args!("no TLS with this host name: {error}"))
            })?;
            return match tls.connect(name, socket).await {
                Ok(stream) => Ok(Box::pin(stream)),
                Err(error) => {
                    let rustls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
                    Err(match rustls {
                        Some(rustls::Error::InvalidCertificate(_)) => {
                            let what = "the server's certificate is not trusted, check `tls.roots` and the host name";
                            fail(PortErrorKind::Denied, what, error)
                        }
                        Some(rustls::Error::InvalidMessage(_)) => {
                            fail(PortErrorKind::Unavailable, "the server does not speak TLS at this port", error)
                        }
                        _ => unavailable("the TLS hand-shake failed", error),
                    })
                }
            };
        }
        let what = match last.kind() {
            // With `appendfsync always`, a full disk ends the server.
            io::ErrorKind::ConnectionRefused => "cannot connect, does the server run? Its log tells why it ended",
            _ => "cannot connect",
        };
        Err(unavailable(what, last))
    }
}

/// Makes the hand-shake as this user. Without pushed messages the login is a command of its own:
/// the client passes no reason why the server refuses that.
pub(super) async fn log_in(
    stream: Stream,
    user: &RedisConnectionInfo,
    on_push: Option<OnPush>,
) -> Result<(MultiplexedConnection, Driver), RedisError> {
    if on_push.is_some() {
        return shake_hands(stream, user, on_push).await;
    }
    let (mut connection, mut driver) = shake_hands(stream, &RedisConnectionInfo::default(), None).await?;
    let mut login = redis::pipe();
    if let Some(password) = user.password() {
        // Without a name the argument is none.
        login.cmd("AUTH").arg(user.username()).arg(password);
    }
    if user.db() != 0 {
        login.cmd("SELECT").arg(user.db());
    }
    if login.is_empty() {
        return Ok((connection, driver));
    }
    let refused = {
        let mut request = pin!(connection.send_packed_commands(&login, 0, login.len()));
        match race(request.as_mut(), &mut driver).await {
            First::One(answers) => refusal(answers?),
            First::Other(()) => {
                drop(driver);
                // The server may have answered before it closed the connection.
                let refused = refusal(request.await?);
                return Err(refused.unwrap_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof).into()));
            }
        }
    };
    refused.map_or(Ok((connection, driver)), Err)
}

/// Returns the first refusal among these answers.
fn refusal(answers: Vec<Value>) -> Option<RedisError> {
    answers.into_iter().find_map(|answer| match answer {
        Value::ServerError(refusal) => Some(refusal.into()),
        _ => None,
    })
}

async fn shake_hands(
    stream: Stream,
    user: &RedisConnectionInfo,
    on_push: Option<OnPush>,
) -> Result<(MultiplexedConnection, Driver), RedisError> {
    let mut user = user.clone().set_protocol(ProtocolVersion::RESP2).set_skip_set_lib_name();
    // The time limits of requests are the handle's own.
    let mut settings = AsyncConnectionConfig::new().set_response_timeout(None).set_pipeline_buffer_size(1024);
    if let Some(on_push) = on_push {
        user = user.set_protocol(ProtocolVersion::RESP3);
        settings = settings.set_push_sender(move |push| {
            on_push(push);
            Ok::<(), ()>(())
        });
    }
    let (connection, driver) = MultiplexedConnection::new_with_config(&user, stream, settings).await?;
    Ok((connection, Box::pin(driver)))
}

/// Returns `true` if the server refuses the user or the password, and not for another reason.
pub(super) fn is_denied(error: &RedisError) -> bool {
    // The last is that of a server without a password.
    const DENIALS: [&str; 3] = ["WRONGPASS", "NOAUTH", "without any password configured"];
    let text = error.to_string();
    error.kind() == ErrorKind::AuthenticationFailed
        || matches!(error.code(), Some("WRONGPASS" | "NOAUTH" | "NOPERM"))
        || DENIALS.iter().any(|denial| text.contains(denial))
}

/// Returns the text of an error of the hand-shake without what it repeats of the login.
pub(super) fn without_login(error: &RedisError, user: &RedisConnectionInfo) -> String {
    let text = error.to_string();
    // Arguments may be cut off, so that a search for the password does not find them.
    let text = text.split(", with args beginning with").next().unwrap_or_default();
    match user.password() {
        Some(password) if !password.is_empty() => text.replace(password, "***"),
        _ => text.to_owned(),
    }
}

/// Converts an error of the hand-shake.
fn refused(target: &Target, error: &RedisError) -> PortError {
    let text = without_login(error, &target.user);
    if is_denied(error) {
        let user = target.user.username().unwrap_or("default");
        let rule = match target.user.password() {
            Some(_) => {
                format!("authentication failed: the server refuses the user `{user}` with this password: check `url`")
            }
            None => "the server requires a password: add it to `url`".to_owned(),
        };
        return failure(target, PortErrorKind::Denied, rule);
    }
    if text.contains("DB index") || text.contains("database number") {
        let rule = format_args!("the server has no database {}: check `url`", target.user.db());
        return failure(target, PortErrorKind::Invalid, rule);
    }
    let message =
        format_args!("the hand-shake failed, is this a Redis server, and does it need TLS (`rediss:`)? {text}");
    failure(target, PortErrorKind::Unavailable, message)
}

/// Sends a command, and returns the server's refusal as an error.
pub(super) async fn send(connection: &mut MultiplexedConnection, command: &Cmd) -> Result<Value, RedisError> {
    match connection.send_packed_command(command).await? {
        Value::ServerError(refusal) => Err(refusal.into()),
        answer => Ok(answer),
    }
}

/// Sends a request, and returns the server's refusal as an error.
pub(super) async fn request(connection: &mut MultiplexedConnection, request: &Request) -> Result<Value, RedisError> {
    match request {
        Request::One(command) => send(connection, command).await,
        Request::Both(both) => {
            let mut answers = connection.send_packed_commands(both, 0, 2).await?;
            match answers.iter().position(|answer| matches!(answer, Value::ServerError(_))) {
                Some(refused) => match answers.swap_remove(refused) {
                    Value::ServerError(refusal) => Err(refusal.into()),
                    answer => Ok(answer),
                },
                None => Ok(Value::Array(answers)),
            }
        }
    }
}

/// A request without a result.
pub(super) enum Refused {
    Server(RedisError),
    /// The write was made, but too few replicas confirmed it, or the server refused to ask them.
    Unconfirmed(Failed),
}

impl From<RedisError> for Refused {
    fn from(error: RedisError) -> Self {
        Self::Server(error)
    }
}

/// Sends a call, and waits until replicas have its writes.
pub(super) async fn confirmed(
    connection: &mut MultiplexedConnection,
    call: &Request,
    replicas: u16,
    (config, target): (&RedisConfig, &Target),
) -> Result<Value, Refused> {
    if replicas == 0 {
        return Ok(request(connection, call).await?);
    }
    let mut wait = redis::cmd("WAIT");
    // The server's limit ends before that of the request.
    let limit = config.request_timeout.as_millis() * 3 / 4;
    wait.arg(replicas).arg(u64::try_from(limit).unwrap_or(u64::MAX).max(1));
    let mut same = connection.clone();
    // Sent together: the second follows the first.
    let (answer, confirmed) = both(request(connection, call), send(&mut same, &wait)).await;
    let answer = answer?;
    let confirmed = confirmed.map_err(|error| {
        let Failed { error, is_lost, reason } = failed(target, &error, true);
        Refused::Unconfirmed(Failed { error: error.outcome_unknown(), is_lost, reason })
    })?;
    let confirmed: i64 = redis::from_redis_value(confirmed).unwrap_or(0);
    if confirmed < i64::from(replicas) {
        let reason = format!("{confirmed} of {replicas} replicas confirmed the write in time");
        let error = failure(target, PortErrorKind::TimedOut, &reason).outcome_unknown();
        return Err(Refused::Unconfirmed(Failed { error, is_lost: false, reason }));
    }
    Ok(answer)
}
