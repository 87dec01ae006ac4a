//! Conversion of errors of the server and of its connections into errors of a port.
//!
//! | cause | kind | may have been applied |
//! |---|---|---|
//! | no connection: refused, unknown host, reset | `Unavailable` | a write that was sent |
//! | no answer in time | `TimedOut` | a write that was sent |
//! | the server shuts down, starts, or crashed (57P01 to 57P05) | `Unavailable` | a write that was sent |
//! | the server is read-only, or a standby (25006) | `Unavailable` | no |
//! | deadlock, lock time-out, serialization failure, too many connections, locks or memory (40, 55P03, 53), a pooler with too many clients (08P01) | `Throttled` | no |
//! | the disk is full (53100) | `Full` | no |
//! | wrong password, unknown user, missing right (28, 42501), certificate not trusted | `Denied` | no |
//! | missing database (3D000), value too large (54) | `Invalid` | no |
//! | missing table or function (42P01, 42883, 3F000), damaged data (XX, 22003), a queue that is gone (SF002) | `Corrupt` | no |
//! | a newer release changed the schema (SF001) | `TooNew` | no |
//! | statement cancelled, `statement_timeout` (57014) | `TimedOut` | no |
//! | any other | `Other` | no |
use std::{error::Error as _, io::ErrorKind};

use tokio_postgres::{
    Error,
    error::{DbError, SqlState},
};

use crate::port::{PortError, PortErrorKind};

/// The effect of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Changes nothing, so that it may be repeated.
    Read,
    /// May change something: its outcome is unknown if no answer came.
    Write,
}

/// Converts the failure of a request that was sent to the server at `place`.
pub(crate) fn failure(place: &str, error: Error, effect: Effect) -> PortError {
    let (kind, advice, unanswered) = classify(&error);
    let converted = PortError::new(kind, message(place, advice, &error)).with_source(error);
    if unanswered && effect == Effect::Write { converted.outcome_unknown() } else { converted }
}

/// Converts the failure of a connection attempt. `is_plain` tells that it did without TLS.
pub(crate) fn connect_failure(place: &str, error: Error, is_plain: bool) -> PortError {
    let text = error.to_string();
    if has_no_rule(&error) {
        let advice = if is_plain {
            "`pg_hba.conf` has no rule for this user without TLS: set `sslmode=require` or `tls`, or add a rule"
        } else {
            "add a rule for this user, database and address to the server's `pg_hba.conf`"
        };
        return PortError::new(PortErrorKind::Denied, message(place, advice, &error)).with_source(error);
    }
    if error.source().is_some_and(|source| source.to_string().contains("did not use channel binding")) {
        let message = format!(
            "postgres: {place}: the server did not bind the login to its certificate, as `channel_binding=require` \
             demands: it must ask for a password by `scram-sha-256` (`pg_hba.conf`) over TLS, with no pooler between"
        );
        return PortError::new(PortErrorKind::Denied, message).with_source(error);
    }
    if let Some(source) = error.source()
        && text.contains("TLS")
    {
        let advice = if source.to_string().contains("does not support TLS") {
            "switch TLS on at the server, or remove `tls` and `sslmode`"
        } else {
            "set `tls.roots` to the authority that signed the server's certificate, and check the host name and \
             the client's certificate"
        };
        return PortError::new(PortErrorKind::Denied, format!("postgres: {place}: TLS failed: {source}: {advice}"))
            .with_source(error);
    }
    if error.as_db_error().is_none() && (text.starts_with("authentication") || text.starts_with("invalid config")) {
        let why = error.source().map_or_else(String::new, |source| format!(": {source}"));
        let message = format!("postgres: {place}: the login failed{why}: check the user and the password in `url`");
        return PortError::new(PortErrorKind::Denied, message).with_source(error);
    }
    if error.as_db_error().is_none() && error.source().is_some_and(is_no_answer_of_the_protocol) {
        let message =
            format!("postgres: {place}: the answer is not that of a PostgreSQL server: check the port in `url`");
        return PortError::new(PortErrorKind::Unavailable, message).with_source(error);
    }
    failure(place, error, Effect::Read)
}

/// Returns `true` if the server's file of rules lets nobody like this in. The text is in any
/// language; the name of the file is in each.
fn has_no_rule(error: &Error) -> bool {
    let invalid = |db: &&DbError| *db.code() == SqlState::INVALID_AUTHORIZATION_SPECIFICATION;
    error.as_db_error().filter(invalid).is_some_and(|db| db.message().contains("pg_hba.conf"))
}

/// Returns `true` if an attempt without TLS may succeed where this one failed.
pub(crate) fn wants_plain(error: &Error) -> bool {
    has_no_rule(error) || error.to_string().contains("TLS")
}

/// Returns `true` if the server answered a connection attempt, and refused its user or password.
pub(crate) fn refuses_login(error: &PortError) -> bool {
    let source = error.source().and_then(|source| source.downcast_ref::<Error>());
    source.and_then(Error::code).is_some_and(|code| code.code().starts_with("28"))
}

fn is_no_answer_of_the_protocol(source: &(dyn std::error::Error + 'static)) -> bool {
    source.downcast_ref::<std::io::Error>().is_some_and(|io| {
        // The first bytes were taken for the length of an answer.
        matches!(io.kind(), ErrorKind::InvalidInput | ErrorKind::InvalidData)
            || io.to_string() == "bytes remaining on stream"
    })
}

/// Returns the error of a request without an answer.
pub(crate) fn timed_out(place: &str, what: &str, limit: std::time::Duration) -> PortError {
    PortError::new(PortErrorKind::TimedOut, format!("postgres: {place}: no answer to {what} within {limit:?}"))
}

fn message(place: &str, advice: &str, error: &Error) -> String {
    let colon = if advice.is_empty() { "" } else { ": " };
    match (error.as_db_error(), error.source()) {
        (Some(db), _) => {
            let hint = db.hint().map_or_else(String::new, |hint| format!(" ({hint})"));
            format!("postgres: {place}: {}{hint} [{}]{colon}{advice}", db.message(), db.code().code())
        }
        (None, Some(source)) => format!("postgres: {place}: {error}: {source}{colon}{advice}"),
        (None, None) => format!("postgres: {place}: {error}{colon}{advice}"),
    }
}

/// Returns the kind, an advice, and `true` if the server may still have applied the request.
fn classify(error: &Error) -> (PortErrorKind, &'static str, bool) {
    use PortErrorKind as Kind;
    let Some(code) = error.code() else {
        let text = error.to_string();
        let is_local = ["error serializing", "error deserializing", "invalid column", "expected "];
        return if is_local.iter().any(|start| text.starts_with(start)) {
            (Kind::Other, "", false)
        } else {
            (Kind::Unavailable, "", true)
        };
    };
    if *code == SqlState::READ_ONLY_SQL_TRANSACTION {
        return (
            Kind::Unavailable,
            "the server is read-only: connect to the primary, and check \
                 `default_transaction_read_only`",
            false,
        );
    }
    if *code == SqlState::INSUFFICIENT_PRIVILEGE {
        return (Kind::Denied, "grant the user the rights on the schema, its tables, sequences and functions", false);
    }
    if *code == SqlState::DISK_FULL {
        return (Kind::Full, "free space on the server's disk", false);
    }
    if *code == SqlState::QUERY_CANCELED {
        return (Kind::TimedOut, "", false);
    }
    if *code == SqlState::TOO_MANY_CONNECTIONS {
        return (Kind::Throttled, "raise `max_connections`, or lower `connections`", false);
    }
    if *code == SqlState::OUT_OF_MEMORY {
        return (Kind::Throttled, "raise `max_locks_per_transaction` if locks are meant", false);
    }
    if [SqlState::UNDEFINED_TABLE, SqlState::UNDEFINED_FUNCTION, SqlState::INVALID_SCHEMA_NAME].contains(code) {
        let advice = "the schema was dropped or is incomplete: restore it, or connect again with `migrate` if it was \
                      dropped as a whole";
        return (Kind::Corrupt, advice, false);
    }
    if *code == SqlState::INVALID_CATALOG_NAME {
        return (Kind::Invalid, "create the database, or correct `url`", false);
    }
    if *code == SqlState::NUMERIC_VALUE_OUT_OF_RANGE {
        return (Kind::Corrupt, "a row has a number that no release writes: correct it, or delete the row", false);
    }
    match code.code() {
        "SF001" => return (Kind::TooNew, "upgrade this program", false),
        "SF002" => return (Kind::Corrupt, "open it again", false),
        "SF003" => return (Kind::Corrupt, "restore it", false),
        _ => {}
    }
    // A pooler has this code for each of its refusals, and its texts are always English.
    let is_full = |db: &DbError| db.message().contains("no more connections allowed");
    if *code == SqlState::PROTOCOL_VIOLATION && error.as_db_error().is_some_and(is_full) {
        return (Kind::Throttled, "raise `max_client_conn` of the pooler, or lower `connections`", false);
    }
    match code.code().get(..2) {
        Some("28") => (Kind::Denied, "check the user and the password in `url`", false),
        Some("08") => (Kind::Unavailable, "", true),
        Some("57") => (Kind::Unavailable, "", true),
        Some("40") => (Kind::Throttled, "", code.code() == "40003"),
        Some("53" | "55") => (Kind::Throttled, "", false),
        Some("54") => (Kind::Invalid, "", false),
        Some("58") => (Kind::Unavailable, "", true),
        Some("XX") => (Kind::Corrupt, "", false),
        _ => (Kind::Other, "", false),
    }
}
