//! Settings that the engines on a server have in common: defaults, rules, and parts of URLs.
use std::{fmt, time::Duration};

use crate::{
    backoff::BackoffConfig,
    config::{ConfigError, require, require_some_time},
};

/// Returns the first part of all names on the server.
pub(crate) fn name() -> String {
    "steadfast".to_owned()
}

pub(crate) const fn connect_timeout() -> Duration {
    Duration::from_secs(2)
}

pub(crate) const fn request_timeout() -> Duration {
    Duration::from_secs(5)
}

/// Returns the delays between attempts to connect: the first is made at once.
pub(crate) fn reconnect() -> BackoffConfig {
    BackoffConfig::default().between(Duration::from_millis(50), Duration::from_secs(2)).immediate_first(true)
}

pub(crate) const fn poll() -> Duration {
    Duration::from_secs(30)
}

pub(crate) const fn window() -> Duration {
    Duration::from_secs(300)
}

/// Rejects time limits of zero.
pub(crate) fn check_timeouts(connect: Duration, request: Duration) -> Result<(), ConfigError> {
    require_some_time(connect, "connect_timeout")?;
    require_some_time(request, "request_timeout")
}

/// Splits a URL into `true` for its second scheme, which demands TLS, and what is behind the
/// scheme. The error is that of `form`, or `no_query` for a URL with a query.
pub(crate) fn split_url<'a>(
    url: &'a str,
    [plain, tls]: [&str; 2],
    form: &'static str,
    no_query: &'static str,
) -> Result<(bool, &'a str), ConfigError> {
    let (is_tls, rest) = match (url.strip_prefix(plain), url.strip_prefix(tls)) {
        (Some(rest), _) => (false, rest),
        (None, Some(rest)) => (true, rest),
        (None, None) => return Err(ConfigError::new("url", form)),
    };
    // Ahead of the query's: an unescaped `?` or `#` of a password is not taken for one.
    check_login(rest, "url")?;
    let rule = if rest.contains(['?', '#']) { Err(ConfigError::new("url", no_query)) } else { Ok(()) };
    rule.map(|()| (is_tls, rest))
}

/// Returns a server's address as error messages show it.
pub(crate) fn address(host: &str, port: u16) -> String {
    if host.contains(':') && !host.starts_with('[') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Refuses what follows the scheme of a URL if it does not say where the password ends: the first
/// `@` is behind it to one reader, and the last one to another, and the rest of the password would
/// be taken for a host. Only one `@` may be there, ahead of the first `/`, `?` or `#`.
pub(crate) fn check_login(rest: &str, field: &'static str) -> Result<(), ConfigError> {
    const RULE: &str = "must have at most one `@`, behind the user and the password, whose special characters are \
                        percent-encoded, such as `%40` for `@` and `%2F` for `/`";
    let (authority, behind) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    require(authority.matches('@').count() <= 1 && !behind.contains('@'), field, RULE)
}

/// Refuses the port 0, which no server has.
pub(crate) fn check_port(port: u16, field: &'static str) -> Result<(), ConfigError> {
    require(port != 0, field, "must have ports from 1 to 65535")
}

/// The servers of a URL, without its user and password. A URL that is not valid is not shown: it
/// is unknown where the password is.
pub(crate) struct Hidden<T>(pub(crate) Option<T>);

impl<T: fmt::Display> fmt::Debug for Hidden<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(servers) => write!(f, "\"{servers}\""),
            None => f.write_str("invalid"),
        }
    }
}

/// A setting that is a secret, or the path of a file with it. Only a path is shown.
pub(crate) struct Secret<'a>(pub(crate) &'a str);

impl Secret<'_> {
    /// Returns `true` if it looks like a path, and like no key: those have neither dots nor a `/`
    /// in front.
    fn is_path(&self) -> bool {
        self.0.len() <= 255
            && !self.0.contains(char::is_whitespace)
            && (self.0.starts_with('/') || self.0.contains('.'))
    }
}

/// Returns the content of a setting that is a text itself, or the path of a file with it.
pub(crate) fn text_or_file(field: &'static str, source: &str, is_text: bool) -> Result<Vec<u8>, ConfigError> {
    if is_text {
        return Ok(source.as_bytes().to_vec());
    }
    let path = Secret(source);
    std::fs::read(source).map_err(|error| ConfigError::new(field, format!("cannot be read from {path:?}: {error}")))
}

impl fmt::Debug for Secret<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_path() { self.0.fmt(f) } else { f.write_str("hidden") }
    }
}
