//! Conversion of errors of the server and of the connection into errors of a port.
use redis::{ErrorKind, RedisError, ServerErrorKind};

use super::config::Target;
use crate::port::{PortError, PortErrorKind};

/// Refusals before the first change: of the whole request, or of the first command of a script that
/// changes something, since none of these causes begins while a script runs.
const UNCHANGED: [&str; 15] = [
    "ASK",
    "BUSY",
    "CLUSTERDOWN",
    "CROSSSLOT",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "MOVED",
    "NOAUTH",
    "NOREPLICAS",
    "NOSCRIPT",
    "OOM",
    "READONLY",
    "TRYAGAIN",
    "WRONGPASS",
];

/// Creates an error about this server.
pub(super) fn failure(target: &Target, kind: PortErrorKind, message: impl std::fmt::Display) -> PortError {
    PortError::new(kind, format!("redis: {}: {message}", target.address()))
}

/// A failed request, and how to go on.
pub(super) struct Failed {
    pub(super) error: PortError,
    /// `true` if the connection cannot be used any more.
    pub(super) is_lost: bool,
    /// The cause, for events.
    pub(super) reason: String,
}

/// Converts the error of a request. `writes` tells that the request may have changed something.
pub(super) fn failed(target: &Target, error: &RedisError, writes: bool) -> Failed {
    let Some(code) = code(error) else {
        // No answer, or one that cannot be read.
        let reason = error.to_string();
        let error = failure(target, PortErrorKind::Unavailable, format_args!("the connection was lost: {reason}"));
        return Failed { error: if writes { error.outcome_unknown() } else { error }, is_lost: true, reason };
    };
    let (kind, advice) = match code {
        "OOM" => (PortErrorKind::Full, "the server's `maxmemory` is reached, raise it or delete data: "),
        "READONLY" => (PortErrorKind::Unavailable, "the server has become a read-only replica: "),
        "LOADING" => (PortErrorKind::Unavailable, "the server is loading its data: "),
        "MASTERDOWN" => (PortErrorKind::Unavailable, "the server has lost its primary: "),
        "CLUSTERDOWN" | "TRYAGAIN" => (PortErrorKind::Unavailable, ""),
        "NOREPLICAS" => (PortErrorKind::Unavailable, "fewer replicas than `min-replicas-to-write` are connected: "),
        "MISCONF" => (PortErrorKind::Full, "the server cannot write its files, free space on its disk: "),
        "BUSY" => (PortErrorKind::Throttled, "another script is running: "),
        "NOPERM" => (PortErrorKind::Denied, "the user lacks a right (`ACL SETUSER`): "),
        "NOAUTH" => (PortErrorKind::Denied, "the server requires a password, add it to `url`: "),
        "WRONGPASS" => (PortErrorKind::Denied, "the user or the password is wrong, check `url`: "),
        "WRONGTYPE" => (PortErrorKind::Corrupt, "a key holds another program's data: "),
        _ => (PortErrorKind::Other, ""),
    };
    // After a fail-over by name the next connection reaches the primary.
    let is_lost = matches!(code, "READONLY" | "NOAUTH" | "MASTERDOWN");
    let reason = format!("{advice}{error}");
    // A user may lack a right to one command of a script.
    let is_unchanged = UNCHANGED.contains(&code) || code == "NOPERM" && !reason.contains("script");
    let error = failure(target, kind, &reason);
    Failed { error: if writes && !is_unchanged { error.outcome_unknown() } else { error }, is_lost, reason }
}

/// Returns the code with which the server refused the request, or `None` if it did not answer.
fn code(error: &RedisError) -> Option<&str> {
    if error.kind() == ErrorKind::AuthenticationFailed {
        return Some("WRONGPASS");
    }
    let code = error.code()?;
    // An error within a script has the code in its text, with some versions: behind a sign or the line.
    let inner = error.detail().unwrap_or_default();
    let says = |code: &str| inner.contains(&format!("-{code} ")) || inner.contains(&format!(": {code} "));
    let known = ["OOM", "READONLY", "NOPERM", "NOREPLICAS", "MISCONF", "WRONGTYPE", "MASTERDOWN", "BUSY", "NOSCRIPT"];
    if code == "ERR"
        && let Some(found) = known.into_iter().find(|known| says(known))
    {
        return Some(found);
    }
    Some(code)
}

/// Returns `true` if the server does not know the script.
pub(super) fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// Returns the error of an answer of another form than expected.
pub(super) fn unexpected(target: &Target, request: &str) -> PortError {
    failure(target, PortErrorKind::Corrupt, format_args!("the answer to `{request}` has another form than expected"))
}
