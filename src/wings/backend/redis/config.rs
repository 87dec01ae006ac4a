//! Settings of a connection to Redis.
use std::{fmt, time::Duration};

use redis::{ConnectionAddr, IntoConnectionInfo};
use serde::{Deserialize, Serialize};

use crate::{
    backoff::BackoffConfig,
    config::{ConfigError, human, require, require_some_time, setters},
};

/// Settings of a [`Redis`](super::Redis). `Debug` hides the password, and serialization omits it.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct RedisConfig {
    /// Name or address of the server. `127.0.0.1` by default.
    pub host: String,
    /// Port of the server. 6379 by default.
    pub port: u16,
    /// User of the server's access control list. The server's user `default` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// Password of the user. None by default.
    #[serde(skip_serializing)]
    pub password: Option<String>,
    /// Number of the database. 0 by default.
    pub database: u16,
    /// First part of the names of all keys and channels. `steadfast` by default.
    pub prefix: String,
    /// Maximum time in which a connection is made. 2 s by default.
    #[serde(with = "human")]
    pub connect_timeout: Duration,
    /// Maximum time in which the server answers a request. 5 s by default.
    #[serde(with = "human")]
    pub request_timeout: Duration,
    /// Delays between the attempts to restore a lost connection. The first attempt is made at once;
    /// later delays grow from 50 ms to 2 s by default.
    pub reconnect: BackoffConfig,
    /// Number of replicas that must confirm each write before it is accepted (`WAIT`). 0 by
    /// default.
    pub replicas: u16,
    /// Time for which a queue remembers a de-duplication id. Five minutes by default. With zero, a
    /// queue recognizes duplicates within one request.
    #[serde(with = "human")]
    pub deduplication_window: Duration,
}

setters! {
    impl RedisConfig {
        host: impl Into<String>,
        port: u16,
        database: u16,
        prefix: impl Into<String>,
        connect_timeout: Duration,
        request_timeout: Duration,
        reconnect: BackoffConfig,
        replicas: u16,
        deduplication_window: Duration,
    }
}

impl Default for RedisConfig {
    fn default() -> Self {
        let (first, longest) = (Duration::from_millis(50), Duration::from_secs(2));
        Self {
            host: "127.0.0.1".to_owned(),
            port: 6379,
            username: None,
            password: None,
            database: 0,
            prefix: "steadfast".to_owned(),
            connect_timeout: Duration::from_secs(2),
            request_timeout: Duration::from_secs(5),
            reconnect: BackoffConfig::default().between(first, longest).immediate_first(true),
            replicas: 0,
            deduplication_window: Duration::from_secs(300),
        }
    }
}

impl RedisConfig {
    /// Creates the default settings for the server at this address.
    pub fn at(host: impl Into<String>, port: u16) -> Self {
        Self::default().host(host).port(port)
    }

    /// Creates the default settings for the server of a URL:
    /// `redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE]`.
    ///
    /// ```
    /// use steadfast::backend::redis::RedisConfig;
    ///
    /// let config = RedisConfig::from_url("redis://app:secret@cache.internal/2").unwrap();
    /// assert_eq!((config.host.as_str(), config.port, config.database), ("cache.internal", 6379, 2));
    /// assert!(!format!("{config:?}").contains("secret"));
    /// ```
    ///
    /// # Errors
    /// A [`ConfigError`] for `url`, which does not repeat the URL: it may contain a password.
    pub fn from_url(url: &str) -> Result<Self, ConfigError> {
        let form = || ConfigError::new("url", "must be `redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE]`");
        let rest = url.strip_prefix("redis://").ok_or_else(form)?;
        if rest.contains(['?', '#']) {
            return Err(ConfigError::new("url", "must have no query: further settings are fields of `RedisConfig`"));
        }
        // The crate's parser knows escapes and IPv6.
        let parsed = format!("redis://{rest}").into_connection_info().map_err(|_| form())?;
        let ConnectionAddr::Tcp(host, port) = parsed.addr() else { return Err(form()) };
        let settings = parsed.redis_settings();
        let mut config = Self::at(host.clone(), *port);
        config.database = u16::try_from(settings.db()).map_err(|_| form())?;
        config.username = settings.username().map(str::to_owned);
        config.password = settings.password().map(str::to_owned);
        Ok(config)
    }

    /// Sets [`username`](field@Self::username).
    #[must_use]
    pub fn username(mut self, username: impl Into<String>) -> Self {
        self.username = Some(username.into());
        self
    }

    /// Sets [`password`](field@Self::password).
    #[must_use]
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require(!self.host.is_empty(), "host", "must not be empty")?;
        require(self.port != 0, "port", "must not be 0")?;
        require(!self.prefix.is_empty(), "prefix", "must not be empty")?;
        // Braces delimit the part of a key that a cluster hashes.
        require(!self.prefix.contains(['{', '}', ':']), "prefix", "must not contain `{`, `}` or `:`")?;
        require(self.prefix.len() <= 128, "prefix", "must be at most 128 bytes")?;
        let needs_password = self.username.is_none() || self.password.is_some();
        require(needs_password, "username", "needs a `password`")?;
        require_some_time(self.connect_timeout, "connect_timeout")?;
        require_some_time(self.request_timeout, "request_timeout")?;
        self.reconnect.check().map_err(|error| error.within("reconnect"))
    }

    /// Returns the server's address as error messages show it.
    pub(super) fn address(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let password = self.password.as_ref().map(|_| "...");
        let mut out = f.debug_struct("RedisConfig");
        out.field("host", &self.host).field("port", &self.port);
        out.field("username", &self.username).field("password", &password);
        out.field("database", &self.database).field("prefix", &self.prefix);
        out.field("connect_timeout", &self.connect_timeout).field("request_timeout", &self.request_timeout);
        out.field("reconnect", &self.reconnect).field("replicas", &self.replicas);
        out.field("deduplication_window", &self.deduplication_window).finish()
    }
}
