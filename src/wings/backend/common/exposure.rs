//! The protection of a connection on its way to the server.
use std::{fmt, net::IpAddr};

use crate::backend::ConnectionEvent;

/// The server of a connection, and what a third party on the way can do.
#[derive(Debug, Clone)]
pub(crate) struct Exposure {
    server: String,
    protection: Protection,
    advice: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protection {
    /// It does not leave this machine.
    Local,
    Verified,
    /// Encrypted for whoever answers.
    Unverified,
    Plain,
}

impl Exposure {
    /// Returns that of a connection to one of these hosts. `tls` tells if the server's certificate
    /// is verified; without TLS it is `None`. `advice` names the setting that protects it.
    pub(crate) fn of<'a>(
        server: String,
        mut hosts: impl Iterator<Item = &'a str>,
        tls: Option<bool>,
        advice: &'static str,
    ) -> Self {
        let protection = match tls {
            Some(true) => Protection::Verified,
            _ if hosts.all(is_local) => Protection::Local,
            Some(false) => Protection::Unverified,
            None => Protection::Plain,
        };
        Self { server, protection, advice }
    }

    /// Returns the engine and its address.
    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    /// Returns the event that warns of a connection without protection.
    pub(crate) fn event(&self) -> Option<ConnectionEvent> {
        let is_exposed = matches!(self.protection, Protection::Unverified | Protection::Plain);
        is_exposed.then(|| ConnectionEvent::Exposed { server: self.server.clone(), reason: self.to_string() })
    }
}

impl fmt::Display for Exposure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.protection {
            Protection::Local => f.write_str("does not leave this machine"),
            Protection::Verified => f.write_str("encrypted, and the server's certificate is verified"),
            Protection::Unverified => {
                write!(f, "encrypted, but the server's certificate is not verified: {}", self.advice)
            }
            Protection::Plain => write!(f, "not encrypted, although it leaves this machine: {}", self.advice),
        }
    }
}

/// Returns `true` for loopback and for sockets in a folder.
fn is_local(host: &str) -> bool {
    let name = host.trim_end_matches('.').to_ascii_lowercase();
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    host.starts_with('/')
        || name == "localhost"
        || name.ends_with(".localhost")
        || bare.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use super::*;

    #[test]
    fn loopback_and_sockets_are_local_and_nothing_else() {
        for host in ["localhost", "LOCALHOST.", "db.localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]", "/run/x"] {
            assert!(is_local(host), "{host}");
        }
        for host in ["", "0.0.0.0", "10.0.0.1", "db.internal", "localhost.evil", "::", "127.0.0.1.evil"] {
            assert!(!is_local(host), "{host}");
        }
        assert!(is_local("::ffff:127.0.0.1"));
    }

    #[test]
    fn one_remote_host_among_local_ones_is_told() {
        let of = |hosts: &[&str], tls| Exposure::of("x".to_owned(), hosts.iter().copied(), tls, "set `tls`");
        assert!(of(&["localhost", "/run"], None).event().is_none());
        assert!(of(&["10.0.0.1"], Some(true)).event().is_none());
        for tls in [None, Some(false)] {
            let Some(ConnectionEvent::Exposed { reason, .. }) = of(&["localhost", "10.0.0.1"], tls).event() else {
                panic!("it is exposed")
            };
            assert!(reason.ends_with(": set `tls`"), "{reason}");
        }
    }
}
