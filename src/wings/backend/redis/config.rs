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
    ///
    /// With sentinels:
    /// `redis+sentinel://[[USER]:PASSWORD@]HOST[:PORT][,HOST[:PORT]..]/SERVICE[/DATABASE]`, or
    /// `rediss+sentinel://`. The hosts are the sentinels, at port 26379 by default; the user and
    /// the password are those of the servers. TLS applies to both.
    pub url: String,
    /// First part of the names of all keys and channels: 1 to 64 bytes without `{`, `}` and `:`.
    /// `steadfast` by default. Several prefixes of one database are independent.
    #[serde(default = "settings::name")]
    pub prefix: String,
    /// Time limit of a connection attempt, which takes two to five round trips, and two to four
    /// more with sentinels. 5 s by default.
    #[serde(default = "connect_timeout", with = "human")]
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
    /// The user for the sentinels, if they have users.
    #[serde(default)]
    pub sentinel_user: Option<String>,
    /// The password for the sentinels, if they demand one.
    #[serde(default)]
    pub sentinel_password: Option<String>,
}

/// Several round trips of a distant server.
const fn connect_timeout() -> Duration {
    Duration::from_secs(5)
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
        sentinel_user: impl Into<Option<String>>,
        sentinel_password: impl Into<Option<String>>,
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
            connect_timeout: connect_timeout(),
            request_timeout: settings::request_timeout(),
            tls: None,
            reconnect: settings::reconnect(),
            replicas: 0,
            poll: settings::poll(),
            deduplication_window: settings::window(),
            sentinel_user: None,
            sentinel_password: None,
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
        let mut target = Target::parse(&self.url)?;
        let has_password = self.sentinel_password.is_some();
        require(self.sentinel_user.is_none() || has_password, "sentinel_password", "must be set for `sentinel_user`")?;
        require(
            !has_password || target.is_watched(),
            "sentinel_password",
            "must be absent without sentinels in `url`",
        )?;
        let user =
            [&self.sentinel_user].into_iter().flatten().fold(target.sentinel_user, |to, user| to.set_username(user));
        target.sentinel_user =
            [&self.sentinel_password].into_iter().flatten().fold(user, |to, password| to.set_password(password));
        Ok(target)
    }
}

/// The server that a URL names.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) place: Place,
    pub(super) user: RedisConnectionInfo,
    pub(super) sentinel_user: RedisConnectionInfo,
    pub(super) is_tls: bool,
}

#[derive(Clone)]
pub(super) enum Place {
    Server(Address),
    /// The server that these sentinels name the primary of this service.
    Watched {
        sentinels: Vec<Address>,
        service: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&settings::address(&self.host, self.port))
    }
}

impl Target {
    /// Parses a URL. The error does not repeat it, because it may contain a password.
    fn parse(url: &str) -> Result<Self, ConfigError> {
        let no_query = "must have no query: further settings are fields of `RedisConfig`";
        let sentinel_user = RedisConnectionInfo::default();
        let watched = ["redis+sentinel://", "rediss+sentinel://"];
        if !watched.iter().any(|scheme| url.starts_with(scheme)) {
            let (is_tls, rest) = settings::split_url(url, ["redis://", "rediss://"], FORM, no_query)?;
            let (address, user) = parse_server(rest)?;
            return Ok(Self { place: Place::Server(address), user, sentinel_user, is_tls });
        }
        let form = || ConfigError::new("url", WATCHED_FORM);
        let (is_tls, rest) = settings::split_url(url, watched, WATCHED_FORM, no_query)?;
        let (authority, path) = rest.split_once('/').ok_or_else(form)?;
        let (login, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
        let (service, database) = path.split_once('/').unwrap_or((path, ""));
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        require(!service.is_empty() && service.bytes().all(is_plain), "url", WATCHED_FORM)?;
        let mut user = RedisConnectionInfo::default();
        let mut sentinels = Vec::new();
        for host in hosts.split(',') {
            let has_port = host.rsplit(']').next().is_some_and(|end| end.contains(':'));
            let port = if has_port { "" } else { ":26379" };
            let (address, login) = parse_server(&format!("{login}{host}{port}/{database}"))
                .map_err(|error| if error.rule() == FORM { form() } else { error })?;
            sentinels.push(address);
            user = login;
        }
        Ok(Self { place: Place::Watched { sentinels, service: service.to_owned() }, user, sentinel_user, is_tls })
    }

    /// Returns `true` if sentinels name the server: another may take over at any time.
    pub(super) const fn is_watched(&self) -> bool {
        matches!(self.place, Place::Watched { .. })
    }

    /// Returns the hosts that the URL names.
    pub(super) fn hosts(&self) -> impl Iterator<Item = &str> {
        let addresses = match &self.place {
            Place::Server(address) => std::slice::from_ref(address),
            Place::Watched { sentinels, .. } => sentinels,
        };
        addresses.iter().map(|address| address.host.as_str())
    }

    /// Returns the server as error messages show it, or the service with its sentinels.
    pub(super) fn address(&self) -> String {
        match &self.place {
            Place::Server(address) => address.to_string(),
            Place::Watched { sentinels, service } => {
                let sentinels: Vec<_> = sentinels.iter().map(Address::to_string).collect();
                format!("{service} at {}", sentinels.join(","))
            }
        }
    }
}

const FORM: &str = "must be `redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE]`";
const WATCHED_FORM: &str =
    "must be `redis+sentinel://[[USER]:PASSWORD@]HOST[:PORT][,HOST[:PORT]..]/SERVICE[/DATABASE]`";

/// Parses what is behind the scheme of a URL.
fn parse_server(rest: &str) -> Result<(Address, RedisConnectionInfo), ConfigError> {
    let form = || ConfigError::new("url", FORM);
    // The client's parser knows escapes and IPv6.
    let parsed = format!("redis://{rest}").into_connection_info().map_err(|_| form())?;
    let ConnectionAddr::Tcp(host, port) = parsed.addr() else { return Err(form()) };
    let user = parsed.redis_settings().clone();
    require(user.username().is_none() || user.password().is_some(), "url", "must have a password for its user")?;
    require((0..=i64::from(u16::MAX)).contains(&user.db()), "url", "must have a database number of at least 0")?;
    settings::check_port(*port, "url")?;
    Ok((Address { host: host.clone(), port: *port }, user))
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("RedisConfig");
        out.field("url", &Hidden(Target::parse(&self.url).ok().map(|target| target.address())));
        out.field("prefix", &self.prefix);
        out.field("connect_timeout", &self.connect_timeout).field("request_timeout", &self.request_timeout);
        out.field("tls", &self.tls).field("reconnect", &self.reconnect).field("replicas", &self.replicas);
        out.field("poll", &self.poll).field("deduplication_window", &self.deduplication_window);
        out.field("sentinel_user", &self.sentinel_user);
        out.field("sentinel_password", &self.sentinel_password.as_ref().map(|_| "hidden")).finish()
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
    fn a_url_with_sentinels_names_them_and_their_service() {
        let target = |url: &str| RedisConfig::at(url).sentinel_password("secret".to_owned()).check();
        let full = target("rediss+sentinel://app:s%40cret@a,b:26380,[::1]/jobs-1/2").unwrap();
        assert_eq!(full.address(), "jobs-1 at a:26379,b:26380,[::1]:26379");
        assert!(full.is_tls && full.is_watched());
        assert_eq!((full.user.username(), full.user.password(), full.user.db()), (Some("app"), Some("s@cret"), 2));
        assert_eq!((full.sentinel_user.username(), full.sentinel_user.password()), (None, Some("secret")));
        assert_eq!(target("redis+sentinel://a/b").unwrap().user.password(), None);
        for url in ["a", "a/", ":secret@/b", "a,/b", "a:b/c", "a/secret@x", "a/b/c", ":secret@a/b?c", "a/b:c"] {
            let url = format!("redis+sentinel://{url}");
            let Err(error) = target(&url) else { panic!("{url} was accepted") };
            assert!(error.field() == "url" && !error.to_string().contains("secret"), "{error}");
        }
        let user = RedisConfig::at("redis+sentinel://a/b").sentinel_user("x".to_owned());
        assert_eq!(user.check().err().unwrap().field(), "sentinel_password");
        assert_eq!(target("redis://a").err().unwrap().field(), "sentinel_password");
        assert!(!format!("{:?}", user.sentinel_password("secret".to_owned())).contains("secret"));
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
