//! The kind of failure by the status code.
use http::StatusCode;

use crate::outcome::FailureKind;

/// Returns the kind of failure that a status stands for; `None` below 400. [The page](super) has
/// the table.
pub const fn kind_of(status: StatusCode) -> Option<FailureKind> {
    Some(match status.as_u16() {
        0..400 => return None,
        408 | 504 => FailureKind::Timeout,
        429 => FailureKind::Throttled,
        503 | 529 => FailureKind::Overloaded,
        501 | 505 | 400..500 => FailureKind::Client,
        500..600 => FailureKind::Server,
        _ => FailureKind::Other,
    })
}
