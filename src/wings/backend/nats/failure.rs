//! Conversion of refusals of the server into errors of a port.
use std::fmt::Display;

use async_nats::ConnectError;

use super::{
    api::ApiError,
    config::{Login, Target},
};
use crate::port::{PortError, PortErrorKind};

/// Creates an error about these servers.
pub(super) fn failure(target: &Target, kind: PortErrorKind, message: impl Display) -> PortError {
    PortError::new(kind, format!("nats: {}: {message}", target.address()))
}

/// Converts the error of a connection attempt.
pub(super) fn refused(target: &Target, error: &ConnectError) -> PortError {
    // The client wraps the server's words, and the reasons of rustls.
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    not_reached(target, &text)
}

/// Converts the words of the client about a connection attempt. They begin with the kind of the
/// failure. The server's words never repeat a password.
pub(super) fn not_reached(target: &Target, text: &str) -> PortError {
    use PortErrorKind::{Denied, TimedOut, Unavailable};
    let words = text.to_ascii_lowercase();
    if words.contains("invalid peer certificate") || words.contains("invalidcertificate") {
        let what = "the server's certificate is not trusted, check `tls.roots` and the host name";
        return failure(target, Denied, format_args!("{what}: {text}"));
    }
    if words.contains("certificate required") || words.contains("certificaterequired") {
        return failure(target, Denied, "the server demands a certificate of the client (`tls.certificate`)");
    }
    let refusals = ["authorization violation", "authentication expired", "authentication revoked", "failed signing"];
    if refusals.iter().any(|refusal| words.contains(refusal)) {
        // The server says why only where a JWT has ended.
        let why = if words.contains("expired") { " (expired)" } else { "" };
        let rule = match &target.login {
            Login::User(user, _) => format!("the server refuses the user `{user}` with this password: check `url`"),
            Login::Token(_) => "the server refuses the token: check `url`".to_owned(),
            Login::Credentials => format!("the server refuses the credentials{why}: check `credentials`"),
            Login::Nkey => "the server refuses the NKey: check `nkey`".to_owned(),
            Login::None => {
                "the server demands a user or a token: add it to `url`, or set `credentials` or `nkey`".to_owned()
            }
        };
        return failure(target, Denied, format_args!("authentication failed: {rule}"));
    }
    if words.starts_with("dns error") {
        return failure(target, Unavailable, format_args!("the host's name cannot be resolved: {text}"));
    }
    if words.starts_with("timed out") {
        return failure(target, TimedOut, "no connection in time");
    }
    if words.starts_with("tls error") {
        return failure(target, Unavailable, format_args!("the TLS hand-shake failed: {text}"));
    }
    failure(target, Unavailable, format_args!("cannot connect: {text}"))
}

/// Converts a refusal of JetStream. Nothing was applied.
pub(super) fn rejected(target: &Target, what: &str, error: &ApiError) -> PortError {
    use PortErrorKind::{Corrupt, Denied, Full, Invalid, Other, Throttled, Unavailable, Unsupported};
    let (kind, advice) = match error.err_code {
        10_023 | 10_028 | 10_047 | 10_077 | 10_122 => (Full, "the server or the stream has no room: "),
        10_002 | 10_026 | 10_027 => (Full, "the account has reached a limit: "),
        10_054 => (Invalid, "the message is too large: "),
        10_005 => (Unavailable, "too few servers of the cluster are up for `replicas`: "),
        10_074 => (Unsupported, "there are too few servers for `replicas`: "),
        10_039 | 10_076 => (Unsupported, "JetStream is switched off (`jetstream: enabled`): "),
        10_035 => (Denied, "the account may not use JetStream: "),
        10_099 | 10_100 => (Unavailable, "another consumer takes the messages of the queue, delete it: "),
        10_059 => (Corrupt, "the stream was deleted, connect anew: "),
        10_060 | 10_167 => (Throttled, ""),
        10_176 | 10_210 => (Throttled, "the server has too many batches of the stream under way: "),
        10_174 => (Unsupported, "the stream takes no batches (`allow_atomic`), connect anew: "),
        10_166 => (Unsupported, "the stream keeps no lives of messages (`allow_msg_ttl`), connect anew: "),
        10_008 | 10_009 | 10_118 => (Unavailable, ""),
        _ if error.code == 503 => (Unavailable, ""),
        _ if error.code == 429 => (Throttled, ""),
        _ => (Other, ""),
    };
    failure(target, kind, format_args!("{what}: {advice}{} ({})", error.description, error.err_code))
}
