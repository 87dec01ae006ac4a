//! Settings of a connection to Redis.
use std::{fmt, time::Duration};

use redis::{ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo};
use serde::{Deserialize, Serialize};

use crate::{
    backend::{
        TlsConfig,
        common::settings::{self, Hidden},
    },
    backoff::BackoffConfig,
    config::{ConfigError, human, require, require_some_time, setters},
};

/// Settings of a [`Redis`](super::Redis).
///
/// `Debug` shows no password: of the URL the server alone.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RedisConfig {
    /// The server, the user and the database: `redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE]`.
    /// `rediss://` connects with TLS. Special characters of the user and password are
    /// percent-encoded, such as `%40` for `@`.
    pub url: String,
    /// First part of the names of all keys and channels: 1 to 64 bytes without `{`, `}` and `:`.
    /// `steadfast` by default. Several prefixes of one database are independent.
    #[serde(default = "settings::name")]
    pub prefix: String,
    /// Time limit of a connection attempt. 2 s by default.
    #[serde(default = "settings::connect_timeout", with = "human")]
    pub connect_timeout: Duration,
    /// Time limit of a request. 5 s by default.
    #[serde(default = "settings::request_timeout", with = "human")]
    pub request_timeout: Duration,
    /// TLS settings. Without them TLS is used if the URL begins with `rediss:`, with the operating
    /// system's root certificates.
    #[serde(default)]
    pub tls: Option<TlsConfig>,
    /// Delays between the attempts to restore a lost connection. The first attempt is made at once;
    /// later delays grow from 50 ms to 2 s by default.
    #[serde(default = "settings::reconnect")]
    pub reconnect: BackoffConfig,
    /// Number of replicas that must confirm each write before it is accepted (`WAIT`). 0 by
    /// default.
    #[serde(default)]
    pub replicas: u16,
    /// Interval at which a waiting receiver looks for messages without having been notified. 30 s
    /// by default. Notices arrive earlier; the interval matters only for those that were lost, such
    /// as that of a sender that was killed behind its send.
    #[serde(default = "settings::poll", with = "human")]
    pub poll: Duration,
    /// Time for which a queue remembers a de-duplication id. Five minutes by default. With zero, a
    /// queue recognizes duplicates within one request.
    #[serde(default = "settings::window", with = "human")]
    pub deduplication_window: Duration,
}

setters! {
    impl RedisConfig {
        url: impl Into<String>,
        prefix: impl Into<String>,
        connect_timeout: Duration,
        request_timeout: Duration,
        tls: impl Into<Option<TlsConfig>>,
        reconnect: BackoffConfig,
        replicas: u16,
        poll: Duration,
        deduplication_window: Duration,
    }
}

impl RedisConfig {
    /// Creates the default settings for the server at this URL.
    ///
    /// ```
    /// use steadfast::backend::redis::RedisConfig;
    ///
    /// let config = RedisConfig::at("redis://app:secret@cache.internal/2").replicas(1);
    /// assert!(!format!("{config:?}").contains("secret"));
    /// ```
    pub fn at(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            prefix: settings::name(),
            connect_timeout: settings::connect_timeout(),
            request_timeout: settings::request_timeout(),
            tls: None,
            reconnect: settings::reconnect(),
            replicas: 0,
            poll: settings::poll(),
            deduplication_window: settings::window(),
        }
    }

    pub(super) fn check(&self) -> Result<Target, ConfigError> {
        require(!self.prefix.is_empty(), "prefix", "must not be empty")?;
        require(self.prefix.len() <= 64, "prefix", "must be at most 64 bytes")?;
        // Braces delimit the part of a key that a cluster hashes.
        require(!self.prefix.contains(['{', '}', ':']), "prefix", "must not contain `{`, `}` or `:`")?;
        settings::check_timeouts(self.connect_timeout, self.request_timeout)?;
        require_some_time(self.poll, "poll")?;
        self.reconnect.check().map_err(|error| error.within("reconnect"))?;
        Target::parse(&self.url)
    }
}

/// The server that a URL names.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) user: RedisConnectionInfo,
    pub(super) is_tls: bool,
}

impl Target {
    /// Parses a URL. The error does not repeat it, because it may contain a password.
    fn parse(url: &str) -> Result<Self, ConfigError> {
        const FORM: &str = "must be `redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE]`";
        const NO_QUERY: &str = "must have no query: further settings are fields of `RedisConfig`";
        let form = || ConfigError::new("url", FORM);
        let (is_tls, rest) = settings::split_url(url, ["redis://", "rediss://"], FORM, NO_QUERY)?;
        // The client's parser knows escapes and IPv6.
        let parsed = format!("redis://{rest}").into_connection_info().map_err(|_| form())?;
        let ConnectionAddr::Tcp(host, port) = parsed.addr() else { return Err(form()) };
        let user = parsed.redis_settings().clone();
        require(user.username().is_none() || user.password().is_some(), "url", "must have a password for its user")?;
        require((0..=i64::from(u16::MAX)).contains(&user.db()), "url", "must have a database number of at least 0")?;
        settings::check_port(*port, "url")?;
        Ok(Self { host: host.clone(), port: *port, user, is_tls })
    }

    /// Returns the server's address as error messages show it.
    pub(super) fn address(&self) -> String {
        settings::address(&self.host, self.port)
    }
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("RedisConfig");
        out.field("url", &Hidden(Target::parse(&self.url).ok().map(|target| target.address())));
        out.field("prefix", &self.prefix);
        out.field("connect_timeout", &self.connect_timeout).field("request_timeout", &self.request_timeout);
        out.field("tls", &self.tls).field("reconnect", &self.reconnect).field("replicas", &self.replicas);
        out.field("poll", &self.poll).field("deduplication_window", &self.deduplication_window).finish()
    }
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_parsed_and_its_password_is_never_shown() {
        let target = |url: &str| RedisConfig::at(url).check();
        let full = target("rediss://app:s%40cret@cache.internal:7000/2").unwrap();
        assert_eq!((full.address().as_str(), full.is_tls, full.user.db()), ("cache.internal:7000", true, 2));
        assert_eq!((full.user.username(), full.user.password()), (Some("app"), Some("s@cret")));
        assert_eq!(target("redis://[::1]").unwrap().address(), "[::1]:6379");
        for url in ["http://s:secret@x", "redis://u:secret@", "redis://u:secret@x/y", "redis://u:secret@x?secret=1"] {
            let Err(error) = target(url) else { panic!("{url} was accepted") };
            assert!(error.field() == "url" && !error.to_string().contains("secret"), "{error}");
            assert!(!format!("{:?}", RedisConfig::at(url)).contains("u:secret"), "{url}");
        }
        assert_eq!(target("redis://user@x").err().unwrap().rule(), "must have a password for its user");
    }

    #[test]
    fn a_setting_that_breaks_a_rule_is_named() {
        let valid = || RedisConfig::at("redis://localhost");
        valid().check().unwrap();
        let refused = [
            (valid().prefix(""), "prefix"),
            (valid().prefix("a{b"), "prefix"),
            (valid().prefix("a".repeat(65)), "prefix"),
            (valid().connect_timeout(Duration::ZERO), "connect_timeout"),
            (valid().request_timeout(Duration::ZERO), "request_timeout"),
            (valid().poll(Duration::ZERO), "poll"),
            (valid().reconnect(BackoffConfig::default().factor(0.0)), "reconnect.factor"),
        ];
        for (config, field) in refused {
            assert_eq!(config.check().err().unwrap().field(), field);
        }
        let parsed: RedisConfig = toml::from_str("url = \"redis://localhost\"").unwrap();
        assert_eq!(parsed, valid());
    }
}
