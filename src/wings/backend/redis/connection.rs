//! Makes connections, and their hand-shake.
use std::{future::Future, pin::Pin, sync::Arc};

use redis::{
    AsyncConnectionConfig, ErrorKind, ProtocolVersion, RedisConnectionInfo, RedisError,
    aio::{AsyncStream, MultiplexedConnection},
};
use tokio::net::TcpStream;

use super::{config::RedisConfig, failure::failure};
use crate::port::{PortError, PortErrorKind};

/// The work that moves bytes between a connection's requests and its socket.
pub(super) type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Receives pushed messages in the order of the socket.
pub(super) type OnPush = Arc<dyn Fn(redis::PushInfo) + Send + Sync>;

type Stream = Pin<Box<dyn AsyncStream + Send>>;

/// Connects and authenticates. The caller limits the time.
pub(super) async fn connect(
    config: &RedisConfig,
    on_push: Option<OnPush>,
) -> Result<(MultiplexedConnection, Driver), PortError> {
    let stream = dial(config).await?;
    let mut user = RedisConnectionInfo::default().set_db(i64::from(config.database)).set_skip_set_lib_name();
    if let Some(name) = &config.username {
        user = user.set_username(name);
    }
    if let Some(password) = &config.password {
        user = user.set_password(password);
    }
    // The time limits of requests are the handle's own.
    let mut settings = AsyncConnectionConfig::new().set_response_timeout(None).set_pipeline_buffer_size(1024);
    if let Some(on_push) = on_push {
        user = user.set_protocol(ProtocolVersion::RESP3);
        settings = settings.set_push_sender(move |push| {
            on_push(push);
            Ok::<(), ()>(())
        });
    }
    match MultiplexedConnection::new_with_config(&user, stream, settings).await {
        Ok((connection, driver)) => Ok((connection, Box::pin(driver))),
        Err(error) => Err(refused(config, &error)),
    }
}

/// Opens the socket.
async fn dial(config: &RedisConfig) -> Result<Stream, PortError> {
    let unavailable = |what: &str, error: std::io::Error| {
        failure(config, PortErrorKind::Unavailable, format_args!("{what}: {error}")).with_source(error)
    };
    let found = tokio::net::lookup_host((config.host.as_str(), config.port)).await;
    let addresses = found.map_err(|error| unavailable("the host's name cannot be resolved", error))?;
    let mut last = std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(socket) => {
                socket.set_nodelay(true).map_err(|error| unavailable("the socket failed", error))?;
                return Ok(Box::pin(socket));
            }
            Err(error) => last = error,
        }
    }
    Err(unavailable("cannot connect", last))
}

/// Converts an error of the hand-shake. The server's text never repeats the password.
fn refused(config: &RedisConfig, error: &RedisError) -> PortError {
    let code = error.code().unwrap_or_default();
    let text = error.to_string();
    let is_denied = error.kind() == ErrorKind::AuthenticationFailed
        || matches!(code, "WRONGPASS" | "NOAUTH" | "NOPERM")
        || text.contains("WRONGPASS")
        || text.contains("NOAUTH");
    if is_denied {
        let user = config.username.as_deref().unwrap_or("default");
        let rule = match &config.password {
            Some(_) => format!("the server refuses the user `{user}` with this password: check `username`, `password`"),
            None => "the server requires a password: set `password`".to_owned(),
        };
        return failure(config, PortErrorKind::Denied, rule);
    }
    if text.contains("DB index") || text.contains("database number") {
        let rule = format_args!("the server has no database {}: check `database`", config.database);
        return failure(config, PortErrorKind::Invalid, rule);
    }
    let message = format_args!("the hand-shake failed, is this a Redis server without TLS? {error}");
    failure(config, PortErrorKind::Unavailable, message)
}
