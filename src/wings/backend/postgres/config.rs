//! Settings of a PostgreSQL server.
use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};
use tokio_postgres::config::{ChannelBinding, Host, SslMode, SslNegotiation};

use crate::{
    backend::{
        TlsConfig,
        common::{
            settings::{self, Hidden},
            tls::Verify,
        },
    },
    config::{ConfigError, human, require, require_some_time, setters},
};

/// Settings of a [`Postgres`](super::Postgres).
///
/// `Debug` shows no password: of a URL the servers and the database alone.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct PostgresConfig {
    /// The server, the user and the database: `postgres://user:password@host:5432/database`, with
    /// special characters percent-encoded, such as `%40` for `@`.
    ///
    /// - Several hosts, `host1,host2:5433`, are tried in order. Add
    ///   `?target_session_attrs=read-write` to skip standbys.
    /// - A folder of sockets is `postgres://user@%2Frun%2Fpostgresql/database`.
    /// - `?sslmode=..` has libpq's meaning; the [module's page](super#tls) has the table. Write
    ///   `verify-full` for a server that is reached over a network.
    /// - Further parameters: `application_name`, `options`, `keepalives`, `load_balance_hosts`.
    pub url: String,
    /// Schema that holds the tables and functions: 1 to 63 bytes. `steadfast` by default. Several
    /// schemas of one database are independent.
    #[serde(default = "settings::name")]
    pub schema: String,
    /// Maximum number of connections for requests. 6 by default. One more connection waits for
    /// notices, as soon as there is a subscriber or a waiting receiver. A server with its default
    /// of 100 connections hence has room for 13 handles with the defaults.
    #[serde(default = "PostgresConfig::connections_default")]
    pub connections: usize,
    /// Maximum number of requests that wait for a connection; further ones fail as throttled. 1,024
    /// by default.
    #[serde(default = "PostgresConfig::max_waiting_default")]
    pub max_waiting: usize,
    /// Time after which an idle connection is closed, except for the one that was used last. 30 s
    /// by default.
    #[serde(default = "PostgresConfig::idle_timeout_default", with = "human")]
    pub idle_timeout: Duration,
    /// Maximum age of a connection, which is closed once it is idle, up to a tenth earlier. 30
    /// minutes by default.
    #[serde(default = "PostgresConfig::max_lifetime_default", with = "human")]
    pub max_lifetime: Duration,
    /// Time limit of a connection attempt to one host of the URL. 2 s by default.
    #[serde(default = "settings::connect_timeout", with = "human")]
    pub connect_timeout: Duration,
    /// Time limit of a request, and of the wait for a connection. 5 s by default.
    #[serde(default = "settings::request_timeout", with = "human")]
    pub request_timeout: Duration,
    /// TLS settings. With them TLS is demanded, and the server's certificate verified. Without them
    /// TLS is used [as the URL says](super#tls), with the operating system's root certificates.
    #[serde(default)]
    pub tls: Option<TlsConfig>,
    /// URL for the connection that waits for notices, if [`url`](field@Self::url) names a pooler in
    /// transaction mode. It must lead to the same database. [`url`](field@Self::url) by default.
    #[serde(default)]
    pub notices_url: Option<String>,
    /// If set, creates or updates the schema when connecting. On by default. If off, the schema
    /// must exist: [`Postgres::statements`](super::Postgres::statements) returns the statements.
    #[serde(default = "PostgresConfig::migrate_default")]
    pub migrate: bool,
    /// If `true`, each connection prepares its statements once, which saves the server the parsing
    /// and planning of each request. If `false`, none does. By default a connection finds out: it
    /// prepares unless a pooler is between it and the server.
    #[serde(default)]
    pub prepare: Option<bool>,
    /// Interval at which a waiting receiver looks for messages without having been notified, and at
    /// most a second as long as notices do not arrive. 30 s by default. Notices arrive earlier; the
    /// interval matters only for those that were lost, such as that of a sender that was killed
    /// behind its send.
    #[serde(default = "settings::poll", with = "human")]
    pub poll: Duration,
    /// Time for which a queue remembers a de-duplication id. Five minutes by default. With zero, a
    /// queue recognizes duplicates within one request.
    #[serde(default = "settings::window", with = "human")]
    pub deduplication_window: Duration,
}

setters! {
    impl PostgresConfig {
        url: impl Into<String>,
        schema: impl Into<String>,
        connections: usize,
        max_waiting: usize,
        idle_timeout: Duration,
        max_lifetime: Duration,
        connect_timeout: Duration,
        request_timeout: Duration,
        tls: impl Into<Option<TlsConfig>>,
        notices_url: impl Into<Option<String>>,
        migrate: bool,
        prepare: Option<bool>,
        poll: Duration,
        deduplication_window: Duration,
    }
}

impl PostgresConfig {
    /// Creates the default settings for the server at this URL.
    pub fn at(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            schema: settings::name(),
            connections: Self::connections_default(),
            max_waiting: Self::max_waiting_default(),
            idle_timeout: Self::idle_timeout_default(),
            max_lifetime: Self::max_lifetime_default(),
            connect_timeout: settings::connect_timeout(),
            request_timeout: settings::request_timeout(),
            tls: None,
            notices_url: None,
            migrate: Self::migrate_default(),
            prepare: None,
            poll: settings::poll(),
            deduplication_window: settings::window(),
        }
    }

    const fn connections_default() -> usize {
        6
    }

    const fn max_waiting_default() -> usize {
        1024
    }

    const fn idle_timeout_default() -> Duration {
        Duration::from_secs(30)
    }

    const fn max_lifetime_default() -> Duration {
        Duration::from_secs(30 * 60)
    }

    const fn migrate_default() -> bool {
        true
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        for (url, field) in [(Some(&self.url), "url"), (self.notices_url.as_ref(), "notices_url")] {
            if let Some(url) = url {
                let (parsed, mode) = parse(url, field)?;
                Encryption::of(&parsed, mode, self.tls.as_ref(), field)?;
            }
        }
        check_schema(&self.schema)?;
        require((1..=1000).contains(&self.connections), "connections", "must be from 1 to 1000")?;
        settings::check_timeouts(self.connect_timeout, self.request_timeout)?;
        require_some_time(self.idle_timeout, "idle_timeout")?;
        require_some_time(self.max_lifetime, "max_lifetime")?;
        require_some_time(self.poll, "poll")
    }
}

pub(crate) fn check_schema(schema: &str) -> Result<(), ConfigError> {
    require((1..=63).contains(&schema.len()), "schema", "must be 1 to 63 bytes")?;
    // It is written into quoted names and literals, and into the bodies of functions.
    let is_reserved = |c: char| matches!(c, '"' | '\'' | '\\' | '$' | '{' | '}') || c.is_control();
    require(
        !schema.contains(is_reserved),
        "schema",
        "must not contain quotes, `\\`, `$`, braces or control characters",
    )?;
    require(!schema.starts_with("pg_"), "schema", "must not begin with `pg_`, which the server reserves")
}

/// The protection of a connection that a URL asks for by `sslmode`, as libpq reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encryption {
    Off,
    /// If the server has TLS, and without it otherwise.
    IfOffered,
    On(Verify),
}

/// Values of `sslmode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Disable,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

impl Mode {
    fn parse(text: &str) -> Result<Self, &'static str> {
        Ok(match text {
            "disable" => Self::Disable,
            "prefer" => Self::Prefer,
            "require" => Self::Require,
            "verify-ca" => Self::VerifyCa,
            "verify-full" => Self::VerifyFull,
            "allow" => return Err("sslmode: `allow` begins without TLS: write `prefer`, or better `verify-full`"),
            _ => return Err("sslmode: must be `disable`, `prefer`, `require`, `verify-ca` or `verify-full`"),
        })
    }
}

impl Encryption {
    /// Returns that of a URL with these settings of TLS.
    pub(crate) fn of(
        config: &tokio_postgres::Config,
        mode: Option<Mode>,
        tls: Option<&TlsConfig>,
        field: &'static str,
    ) -> Result<Self, ConfigError> {
        let refuse = |rule: &'static str| Err(ConfigError::new(field, rule));
        let encryption = match (mode, tls) {
            (Some(Mode::Disable), Some(_)) => {
                return refuse("sslmode: `disable` contradicts `tls`: remove one of them");
            }
            (Some(Mode::Disable), None) => Self::Off,
            (None | Some(Mode::Prefer), None) => Self::IfOffered,
            (Some(Mode::Require), None) => Self::On(Verify::Nothing),
            (Some(Mode::VerifyCa), Some(TlsConfig { roots: Some(_), .. })) => Self::On(Verify::Authority),
            // Anybody has a certificate of one of the system's authorities.
            (Some(Mode::VerifyCa), _) => return refuse("sslmode: `verify-ca` needs `tls.roots`: write `verify-full`"),
            (None | Some(Mode::Prefer | Mode::Require), Some(_)) | (Some(Mode::VerifyFull), _) => {
                Self::On(Verify::Full)
            }
        };
        if encryption == Self::Off && config.get_channel_binding() == ChannelBinding::Require {
            return refuse("channel_binding: `require` needs TLS: remove `sslmode=disable`");
        }
        if !matches!(encryption, Self::On(_)) && config.get_ssl_negotiation() == SslNegotiation::Direct {
            return refuse("sslnegotiation: `direct` needs `sslmode=require`, or stricter");
        }
        Ok(encryption)
    }

    /// Returns `true` if the server's certificate is verified.
    pub(crate) const fn verifies(self) -> bool {
        matches!(self, Self::On(Verify::Full | Verify::Authority))
    }
}

const SCHEMES: [&str; 2] = ["postgres://", "postgresql://"];

/// Parses a URL. The error contains no part of it.
pub(crate) fn parse(url: &str, field: &'static str) -> Result<(tokio_postgres::Config, Option<Mode>), ConfigError> {
    if let Some(rest) = SCHEMES.iter().find_map(|scheme| url.strip_prefix(scheme)) {
        settings::check_login(rest, field)?;
    }
    // The parser's error may quote a part of a password.
    let rule = "must be like `postgres://user@host:5432/database`, with parameters of libpq that are known, and with special \
                characters percent-encoded";
    let (url, mode) = without_mode(url);
    let mode = mode.map(|mode| Mode::parse(&mode).map_err(|rule| ConfigError::new(field, rule))).transpose()?;
    let parsed = tokio_postgres::Config::from_str(&url).map_err(|error| refuse(&url, field, rule, &error))?;
    require(!parsed.get_hosts().is_empty() || !parsed.get_hostaddrs().is_empty(), field, "must name a host")?;
    for host in parsed.get_hosts() {
        match host {
            Host::Tcp(name) => {
                require(!name.is_empty(), field, "must name a host")?;
                require(!name.contains(char::is_whitespace), field, "must have a host without spaces")?;
            }
            #[cfg(unix)]
            Host::Unix(_) => {}
        }
    }
    parsed.get_ports().iter().try_for_each(|port| settings::check_port(*port, field))?;
    // Written with escapes, it is still there.
    let mode = mode.or(match parsed.get_ssl_mode() {
        SslMode::Disable => Some(Mode::Disable),
        SslMode::Require => Some(Mode::Require),
        _ => None,
    });
    Ok((parsed, mode))
}

/// Takes `sslmode` out of a URL, or out of words: the client knows only some of its values.
fn without_mode(url: &str) -> (String, Option<String>) {
    let is_url = SCHEMES.iter().any(|scheme| url.starts_with(scheme));
    let (head, parameters, separator) = match url.split_once('?') {
        Some((head, parameters)) if is_url => (format!("{head}?"), parameters.split('&').collect(), "&"),
        _ if is_url => return (url.to_owned(), None),
        _ => (String::new(), words(url), " "),
    };
    let (modes, others): (Vec<&str>, Vec<&str>) =
        parameters.into_iter().partition(|parameter| parameter.starts_with("sslmode="));
    let mode = modes.last().and_then(|mode| mode.strip_prefix("sslmode="));
    (head + &others.join(separator), mode.map(|mode| mode.trim_matches('\'').to_owned()))
}

/// Splits words, of which each may have spaces between `'`.
fn words(text: &str) -> Vec<&str> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    text.split(|c: char| {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '\'' => is_quoted = !is_quoted,
            _ => return !is_quoted && c.is_whitespace(),
        }
        false
    })
    .collect()
}

/// Parameters of libpq that are settings of their own here.
const SETTINGS: [(&str, &str); 7] = [
    ("sslrootcert", "sslrootcert: set `tls.roots` instead"),
    ("sslcert", "sslcert: set `tls.certificate` instead"),
    ("sslkey", "sslkey: set `tls.key` instead"),
    ("sslpassword", "sslpassword: set `tls.key` to a key without a password"),
    ("passfile", "passfile: write the password into `url`"),
    ("search_path", "search_path: set `schema` instead"),
    ("pool_size", "pool_size: set `connections` instead"),
];

/// Returns the refusal of a URL. It names a parameter only by a word of ours.
fn refuse(url: &str, field: &'static str, rule: &'static str, error: &tokio_postgres::Error) -> ConfigError {
    let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    let is_named = |name: &str| cause.contains(&format!("`{name}`")) && url.contains(name);
    let setting = SETTINGS.iter().find(|(name, _)| is_named(name));
    let rule = match setting {
        Some((_, instead)) => instead,
        None if is_named("sslmode") => "sslmode: must be `disable`, `prefer`, `require`, `verify-ca` or `verify-full`",
        None => rule,
    };
    ConfigError::new(field, rule)
}

/// Returns the servers of a URL for `Debug`.
fn shown(url: &str) -> Hidden<String> {
    Hidden(parse(url, "url").ok().map(|(parsed, _)| place(&parsed)))
}

/// Returns the hosts and the database, as errors name them.
pub(crate) fn place(config: &tokio_postgres::Config) -> String {
    let ports = config.get_ports();
    let host = |(i, host): (usize, &Host)| {
        let port = ports.get(i).or(ports.first()).copied().unwrap_or(5432);
        match host {
            Host::Tcp(name) => settings::address(name, port),
            #[cfg(unix)]
            Host::Unix(path) => format!("{}:{port}", path.display()),
        }
    };
    let mut hosts: Vec<String> = config.get_hosts().iter().enumerate().map(host).collect();
    if hosts.is_empty() {
        hosts.extend(config.get_hostaddrs().iter().map(ToString::to_string));
    }
    match config.get_dbname() {
        Some(database) => format!("{}/{database}", hosts.join(",")),
        None => hosts.join(","),
    }
}

impl fmt::Debug for PostgresConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("PostgresConfig");
        out.field("url", &shown(&self.url)).field("schema", &self.schema);
        out.field("connections", &self.connections).field("max_waiting", &self.max_waiting);
        out.field("idle_timeout", &self.idle_timeout).field("max_lifetime", &self.max_lifetime);
        out.field("connect_timeout", &self.connect_timeout).field("request_timeout", &self.request_timeout);
        out.field("tls", &self.tls).field("notices_url", &self.notices_url.as_deref().map(shown));
        out.field("migrate", &self.migrate).field("prepare", &self.prepare).field("poll", &self.poll);
        out.field("deduplication_window", &self.deduplication_window).finish()
    }
}
