//! Settings that the engines on a server have in common: defaults, rules, and parts of URLs.
use std::{fmt, time::Duration};

use crate::{
    backoff::BackoffConfig,
    config::{ConfigError, require_some_time},
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
    let rule = if rest.contains(['?', '#']) { Err(ConfigError::new("url", no_query)) } else { Ok(()) };
    rule.map(|()| (is_tls, rest))
}

/// Returns a server's address as error messages show it.
pub(crate) fn address(host: &str, port: u16) -> String {
    if host.contains(':') && !host.starts_with('[') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// A URL without its user and password.
pub(crate) struct Hidden<'a>(pub(crate) &'a str);

impl fmt::Debug for Hidden<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.split_once("://"), self.0.rsplit_once('@')) {
            (Some((scheme, _)), Some((_, server))) => write!(f, "\"{scheme}://...@{server}\""),
            _ => self.0.fmt(f),
        }
    }
}
